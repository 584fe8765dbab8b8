//! Sixteen lanes as two AVX registers.

use std::arch::x86_64::*;

use super::{Lanes, WIDTH};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2Lanes(__m256, __m256);

// SAFETY (whole impl): the trait's contract gives us a machine with AVX2, FMA and F16C, and
// pointers valid for the sixteen elements (sixty-four bytes, four activations) each method
// touches. All loads and stores are the unaligned ones.
#[allow(clippy::undocumented_unsafe_blocks, reason = "one argument covers the impl: see above")]
unsafe impl Lanes for Avx2Lanes {
    type Int = (__m256i, __m256i);
    type Codes = (__m256i, __m256i);

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        let v = unsafe { _mm256_set1_ps(x) };
        Self(v, v)
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { Self(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe {
            _mm256_storeu_ps(to, self.0);
            _mm256_storeu_ps(to.add(8), self.1);
        }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        unsafe {
            Self(
                _mm256_cvtph_ps(_mm_loadu_si128(from.cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(from.add(8).cast())),
            )
        }
    }

    #[inline(always)]
    unsafe fn store_f16(self, to: *mut u16) {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT;
        unsafe {
            _mm_storeu_si128(to.cast(), _mm256_cvtps_ph::<NEAREST>(self.0));
            _mm_storeu_si128(to.add(8).cast(), _mm256_cvtps_ph::<NEAREST>(self.1));
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        unsafe {
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.add(8).cast()));
            Self(
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
            )
        }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        unsafe { Self(_mm256_add_ps(self.0, other.0), _mm256_add_ps(self.1, other.1)) }
    }

    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        unsafe { Self(_mm256_sub_ps(self.0, other.0), _mm256_sub_ps(self.1, other.1)) }
    }

    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        unsafe { Self(_mm256_mul_ps(self.0, other.0), _mm256_mul_ps(self.1, other.1)) }
    }

    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        unsafe { Self(_mm256_div_ps(self.0, other.0), _mm256_div_ps(self.1, other.1)) }
    }

    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self {
        unsafe {
            Self(
                _mm256_fmadd_ps(self.0, factor.0, addend.0),
                _mm256_fmadd_ps(self.1, factor.1, addend.1),
            )
        }
    }

    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        unsafe { Self(_mm256_max_ps(self.0, other.0), _mm256_max_ps(self.1, other.1)) }
    }

    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        unsafe { Self(_mm256_min_ps(self.0, other.0), _mm256_min_ps(self.1, other.1)) }
    }

    #[inline(always)]
    unsafe fn keep_first(self, n: usize, fill: f32) -> Self {
        // A window over ones followed by zeros selects the first `n` lanes.
        const MASK: [i32; 2 * WIDTH] = {
            let mut mask = [0; 2 * WIDTH];
            let mut i = 0;
            while i < WIDTH {
                mask[i] = -1;
                i += 1;
            }
            mask
        };
        unsafe {
            let mask = MASK.as_ptr().add(WIDTH - n.min(WIDTH));
            let low = _mm256_castsi256_ps(_mm256_loadu_si256(mask.cast()));
            let high = _mm256_castsi256_ps(_mm256_loadu_si256(mask.add(8).cast()));
            let fill = _mm256_set1_ps(fill);
            Self(_mm256_blendv_ps(fill, self.0, low), _mm256_blendv_ps(fill, self.1, high))
        }
    }

    #[inline(always)]
    unsafe fn int_splat(x: i32) -> Self::Int {
        let v = unsafe { _mm256_set1_epi32(x) };
        (v, v)
    }

    #[inline(always)]
    unsafe fn int_add(a: Self::Int, b: Self::Int) -> Self::Int {
        unsafe { (_mm256_add_epi32(a.0, b.0), _mm256_add_epi32(a.1, b.1)) }
    }

    #[inline(always)]
    unsafe fn int_join(high: Self::Int, low: Self::Int) -> Self::Int {
        unsafe {
            (
                _mm256_add_epi32(_mm256_slli_epi32::<8>(high.0), low.0),
                _mm256_add_epi32(_mm256_slli_epi32::<8>(high.1), low.1),
            )
        }
    }

    #[inline(always)]
    unsafe fn int_to_f32(x: Self::Int) -> Self {
        unsafe { Self(_mm256_cvtepi32_ps(x.0), _mm256_cvtepi32_ps(x.1)) }
    }

    #[inline(always)]
    unsafe fn scale_by_pow2(self, n_biased: Self) -> Self {
        unsafe {
            let low = _mm256_slli_epi32::<23>(_mm256_castps_si256(n_biased.0));
            let high = _mm256_slli_epi32::<23>(_mm256_castps_si256(n_biased.1));
            Self(
                _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(self.0), low)),
                _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(self.1), high)),
            )
        }
    }

    #[inline(always)]
    unsafe fn load_codes(from: *const u8) -> Self::Codes {
        unsafe { (_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast())) }
    }

    #[inline(always)]
    unsafe fn split_nibbles(packed: Self::Codes) -> (Self::Codes, Self::Codes) {
        unsafe {
            let mask = _mm256_set1_epi8(15);
            let low = (_mm256_and_si256(packed.0, mask), _mm256_and_si256(packed.1, mask));
            let high = (
                _mm256_and_si256(_mm256_srli_epi16::<4>(packed.0), mask),
                _mm256_and_si256(_mm256_srli_epi16::<4>(packed.1), mask),
            );
            (low, high)
        }
    }

    #[inline(always)]
    unsafe fn dot4<const WIDE: bool>(
        sum: Self::Int,
        codes: Self::Codes,
        acts: *const i8,
    ) -> Self::Int {
        unsafe {
            let acts = _mm256_set1_epi32(acts.cast::<i32>().read_unaligned());
            (dot4_half::<WIDE>(sum.0, codes.0, acts), dot4_half::<WIDE>(sum.1, codes.1, acts))
        }
    }

    #[inline(always)]
    unsafe fn store_rounded_i8(self, to: *mut i8) {
        let mut rounded = [0.0f32; WIDTH];
        unsafe {
            self.add(Self::splat(12_582_912.0)).store(rounded.as_mut_ptr());
            to.cast::<[i8; WIDTH]>().write_unaligned(rounded.map(|x| x.to_bits() as i8));
        }
    }
}

/// Eight lanes of `dot4`. `maddubs` adds two products in sixteen bits: 2 * 127 * 127 fits, but a
/// code above 127 would saturate, so wide codes are split into their low seven bits and the top
/// one.
///
/// # Safety
/// The machine has AVX2.
#[inline(always)]
unsafe fn dot4_half<const WIDE: bool>(sum: __m256i, codes: __m256i, acts: __m256i) -> __m256i {
    // SAFETY: the caller's machine has AVX2; these work on registers alone.
    unsafe {
        let ones = _mm256_set1_epi16(1);
        if !WIDE {
            let pairs = _mm256_maddubs_epi16(codes, acts);
            return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
        }
        let low = _mm256_and_si256(codes, _mm256_set1_epi8(127));
        let top = _mm256_and_si256(_mm256_srli_epi16::<7>(codes), _mm256_set1_epi8(1));
        let pairs_low = _mm256_maddubs_epi16(low, acts);
        let pairs_top = _mm256_maddubs_epi16(top, acts);
        let low = _mm256_madd_epi16(pairs_low, ones);
        let top = _mm256_madd_epi16(pairs_top, _mm256_set1_epi16(128));
        _mm256_add_epi32(sum, _mm256_add_epi32(low, top))
    }
}
