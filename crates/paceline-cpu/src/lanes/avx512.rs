//! Sixteen lanes as one AVX-512 register.

use std::arch::x86_64::*;

use super::Lanes;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512Lanes(__m512);

// SAFETY (whole impl): the trait's contract gives us a machine with AVX-512 F, BW, DQ, VL and
// VNNI, and pointers valid for the sixteen elements (sixty-four bytes, four activations) each
// method touches. All loads and stores are the unaligned ones.
#[allow(clippy::undocumented_unsafe_blocks, reason = "one argument covers the impl: see above")]
unsafe impl Lanes for Avx512Lanes {
    type Int = __m512i;
    type Codes = __m512i;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Self(unsafe { _mm512_set1_ps(x) })
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        Self(unsafe { _mm512_loadu_ps(from) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe { _mm512_storeu_ps(to, self.0) }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        Self(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) })
    }

    #[inline(always)]
    unsafe fn store_f16(self, to: *mut u16) {
        unsafe {
            let half = _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0);
            _mm256_storeu_si256(to.cast(), half);
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide)))
        }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        Self(unsafe { _mm512_add_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        Self(unsafe { _mm512_sub_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        Self(unsafe { _mm512_mul_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        Self(unsafe { _mm512_div_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self {
        Self(unsafe { _mm512_fmadd_ps(self.0, factor.0, addend.0) })
    }

    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        Self(unsafe { _mm512_max_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        Self(unsafe { _mm512_min_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn max_lane(self) -> f32 {
        unsafe { _mm512_reduce_max_ps(self.0) }
    }

    #[inline(always)]
    unsafe fn keep_first(self, n: usize, fill: f32) -> Self {
        let mask = if n >= 16 { 0xffff } else { (1u16 << n) - 1 };
        Self(unsafe { _mm512_mask_blend_ps(mask, _mm512_set1_ps(fill), self.0) })
    }

    #[inline(always)]
    unsafe fn int_splat(x: i32) -> Self::Int {
        unsafe { _mm512_set1_epi32(x) }
    }

    #[inline(always)]
    unsafe fn int_add(a: Self::Int, b: Self::Int) -> Self::Int {
        unsafe { _mm512_add_epi32(a, b) }
    }

    #[inline(always)]
    unsafe fn int_join(high: Self::Int, low: Self::Int) -> Self::Int {
        unsafe { _mm512_add_epi32(_mm512_slli_epi32::<8>(high), low) }
    }

    #[inline(always)]
    unsafe fn int_to_f32(x: Self::Int) -> Self {
        Self(unsafe { _mm512_cvtepi32_ps(x) })
    }

    #[inline(always)]
    unsafe fn scale_by_pow2(self, n_biased: Self) -> Self {
        unsafe {
            let shifted = _mm512_slli_epi32::<23>(_mm512_castps_si512(n_biased.0));
            Self(_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(self.0), shifted)))
        }
    }

    #[inline(always)]
    unsafe fn load_codes(from: *const u8) -> Self::Codes {
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    unsafe fn split_nibbles(packed: Self::Codes) -> (Self::Codes, Self::Codes) {
        unsafe {
            let low = _mm512_set1_epi8(15);
            let high = _mm512_and_si512(_mm512_srli_epi16::<4>(packed), low);
            (_mm512_and_si512(packed, low), high)
        }
    }

    #[inline(always)]
    unsafe fn dot4<const WIDE: bool>(
        sum: Self::Int,
        codes: Self::Codes,
        acts: *const i8,
    ) -> Self::Int {
        unsafe {
            let acts = _mm512_set1_epi32(acts.cast::<i32>().read_unaligned());
            _mm512_dpbusd_epi32(sum, codes, acts)
        }
    }

    #[inline(always)]
    unsafe fn store_rounded_i8(self, to: *mut i8) {
        unsafe {
            let rounded = _mm512_add_ps(self.0, _mm512_set1_ps(12_582_912.0));
            let bytes = _mm512_cvtepi32_epi8(_mm512_castps_si512(rounded));
            _mm_storeu_si128(to.cast(), bytes);
        }
    }
}
