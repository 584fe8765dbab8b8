//! Sixteen lanes as one AVX-512 register.

use std::arch::x86_64::*;

use super::Lanes;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512Lanes(pub(crate) __m512);

// SAFETY (whole impl): the trait's contract gives us a machine with AVX-512 F, BW, DQ and VL, and
// pointers valid for the sixteen elements each method touches. All loads and stores are the
// unaligned ones.
#[allow(clippy::undocumented_unsafe_blocks, reason = "one argument covers the impl: see above")]
unsafe impl Lanes for Avx512Lanes {
    type Words = __m512i;

    const ROWS: usize = 8;

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
    unsafe fn is_any_above(self, x: f32) -> bool {
        unsafe { _mm512_cmp_ps_mask::<_CMP_GT_OQ>(self.0, _mm512_set1_ps(x)) != 0 }
    }

    #[inline(always)]
    unsafe fn max_lane(self) -> f32 {
        unsafe { _mm512_reduce_max_ps(self.0) }
    }

    #[inline(always)]
    unsafe fn sum_whole(self) -> f32 {
        unsafe { _mm512_reduce_add_ps(self.0) }
    }

    #[inline(always)]
    unsafe fn keep_first(self, n: usize, fill: f32) -> Self {
        let mask = if n >= 16 { 0xffff } else { (1u16 << n) - 1 };
        Self(unsafe { _mm512_mask_blend_ps(mask, _mm512_set1_ps(fill), self.0) })
    }

    #[inline(always)]
    unsafe fn keep(self, lanes: u16, fill: f32) -> Self {
        Self(unsafe { _mm512_mask_blend_ps(lanes, _mm512_set1_ps(fill), self.0) })
    }

    #[inline(always)]
    unsafe fn scale_by_pow2(self, n_biased: Self) -> Self {
        unsafe {
            let shifted = _mm512_slli_epi32::<23>(_mm512_castps_si512(n_biased.0));
            Self(_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(self.0), shifted)))
        }
    }

    #[inline(always)]
    unsafe fn minus_inverse(self) -> Self {
        unsafe {
            let sum = _mm512_set1_epi32(super::BITS_OF_MINUS_ONE as i32);
            Self(_mm512_castsi512_ps(_mm512_sub_epi32(sum, _mm512_castps_si512(self.0))))
        }
    }

    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self {
        Self(unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))) })
    }

    #[inline(always)]
    unsafe fn round_bf16(self) -> Self {
        unsafe {
            let rounded = self.round_weight().0;
            let large = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(
                _mm512_abs_ps(rounded),
                _mm512_set1_ps(super::TINY),
            );
            Self(_mm512_maskz_mov_ps(large, rounded))
        }
    }

    #[inline(always)]
    unsafe fn round_weight(self) -> Self {
        unsafe {
            let up = _mm512_add_epi32(_mm512_castps_si512(self.0), _mm512_set1_epi32(0x8000));
            let high = _mm512_set1_epi32(0xffff_0000_u32 as i32);
            Self(_mm512_castsi512_ps(_mm512_and_si512(up, high)))
        }
    }

    #[inline(always)]
    unsafe fn cut_to_bf16(self) -> Self {
        unsafe {
            let high = _mm512_castsi512_ps(_mm512_set1_epi32(0xffff_0000_u32 as i32));
            Self(_mm512_and_ps(self.0, high))
        }
    }

    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u16) {
        unsafe {
            let high = _mm512_srli_epi32::<16>(_mm512_castps_si512(self.0));
            _mm256_storeu_si256(to.cast(), _mm512_cvtepi32_epi16(high));
        }
    }

    #[inline(always)]
    unsafe fn store_bf16_of_pairs(self, to: *mut u16, nth: usize) {
        unsafe {
            // A float's upper half is its bf16.
            let upper = _mm512_castps_si512(self.0);
            let (pairs, mask) = match nth {
                0 => (_mm512_srli_epi32::<16>(upper), 0x5555_5555),
                _ => (upper, 0xaaaa_aaaa),
            };
            _mm512_mask_storeu_epi16(to.cast(), mask, pairs);
        }
    }

    #[inline(always)]
    unsafe fn prefetch(from: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>(from.cast()) }
    }

    #[inline(always)]
    unsafe fn prefetch_near(from: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
    }

    #[inline(always)]
    unsafe fn load_words(from: *const u8) -> Self::Words {
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    unsafe fn splat_words(number: i32) -> Self::Words {
        unsafe { _mm512_set1_epi32(number) }
    }

    #[inline(always)]
    unsafe fn halves<const SHIFT: u32>(words: Self::Words, mask: u16) -> Self::Words {
        unsafe {
            let mask = _mm512_set1_epi16(mask as i16);
            _mm512_and_si512(_mm512_srli_epi32::<SHIFT>(words), mask)
        }
    }

    #[inline(always)]
    unsafe fn signed_bytes<const ODD: bool>(words: Self::Words) -> Self::Words {
        unsafe {
            let upper = if ODD { words } else { _mm512_slli_epi16::<8>(words) };
            _mm512_srai_epi16::<8>(upper)
        }
    }

    #[inline(always)]
    unsafe fn store_byte_of_words(self, to: *mut i8, nth: usize) {
        unsafe {
            let bytes = _mm512_cvtps_epi32(self.0);
            let placed = _mm512_sll_epi32(bytes, _mm_cvtsi32_si128(8 * nth as i32));
            _mm512_mask_storeu_epi8(to, 0x1111_1111_1111_1111 << nth, placed);
        }
    }

    #[inline(always)]
    unsafe fn add_products(sums: Self::Words, halves: Self::Words, pair: [i16; 2]) -> Self::Words {
        unsafe {
            let products = _mm512_madd_epi16(halves, _mm512_set1_epi32(super::word_of(pair)));
            _mm512_add_epi32(sums, products)
        }
    }

    #[inline(always)]
    unsafe fn from_words(words: Self::Words) -> Self {
        Self(unsafe { _mm512_cvtepi32_ps(words) })
    }

    #[inline(always)]
    unsafe fn store_i8(self, to: *mut i8) {
        unsafe {
            let bytes = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(self.0));
            _mm_storeu_si128(to.cast(), bytes);
        }
    }

    #[inline(always)]
    unsafe fn store_i16(self, to: *mut i16) {
        unsafe {
            let halves = _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(self.0));
            _mm256_storeu_si256(to.cast(), halves);
        }
    }

    #[inline(always)]
    unsafe fn max_magnitude(self) -> f32 {
        unsafe {
            let bits = _mm512_castps_si512(_mm512_abs_ps(self.0));
            f32::from_bits(_mm512_reduce_max_epu32(bits))
        }
    }

    #[inline(always)]
    unsafe fn nibble<const SHIFT: u32>(words: Self::Words) -> Self {
        unsafe {
            let values = _mm512_setr_ps(
                -8.0, -7.0, -6.0, -5.0, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0,
                7.0,
            );
            // The lookup reads the lowest four bits of each index and ignores the rest.
            Self(_mm512_permutexvar_ps(_mm512_srli_epi32::<SHIFT>(words), values))
        }
    }

    #[inline(always)]
    unsafe fn low_bf16(words: Self::Words) -> Self {
        Self(unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words)) })
    }

    #[inline(always)]
    unsafe fn high_bf16(words: Self::Words) -> Self {
        let high = unsafe { _mm512_set1_epi32(0xffff_0000_u32 as i32) };
        Self(unsafe { _mm512_castsi512_ps(_mm512_and_si512(words, high)) })
    }
}
