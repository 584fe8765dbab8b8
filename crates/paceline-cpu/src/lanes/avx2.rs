//! Sixteen lanes as two AVX registers.

use std::arch::x86_64::*;

use super::{Lanes, WIDTH};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2Lanes(pub(crate) __m256, pub(crate) __m256);

// SAFETY (whole impl): the trait's contract gives us a machine with AVX2, FMA and F16C, and
// pointers valid for the sixteen elements each method touches. All loads and stores are the
// unaligned ones.
#[allow(clippy::undocumented_unsafe_blocks, reason = "one argument covers the impl: see above")]
unsafe impl Lanes for Avx2Lanes {
    type Words = (__m256i, __m256i);

    const ROWS: usize = 2;

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
    unsafe fn keep(self, lanes: u16, fill: f32) -> Self {
        unsafe {
            let fill = _mm256_set1_ps(fill);
            let [low, high] = lanes.to_le_bytes();
            Self(
                _mm256_blendv_ps(fill, self.0, spread_bits(low)),
                _mm256_blendv_ps(fill, self.1, spread_bits(high)),
            )
        }
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
    unsafe fn minus_inverse(self) -> Self {
        unsafe {
            let sum = _mm256_set1_epi32(super::BITS_OF_MINUS_ONE as i32);
            Self(
                _mm256_castsi256_ps(_mm256_sub_epi32(sum, _mm256_castps_si256(self.0))),
                _mm256_castsi256_ps(_mm256_sub_epi32(sum, _mm256_castps_si256(self.1))),
            )
        }
    }

    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self {
        unsafe {
            let bytes = _mm_loadu_si128(from.cast());
            let low = _mm256_cvtepi8_epi32(bytes);
            let high = _mm256_cvtepi8_epi32(_mm_srli_si128::<8>(bytes));
            Self(_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high))
        }
    }

    #[inline(always)]
    unsafe fn round_bf16(self) -> Self {
        let Self(low, high) = unsafe { self.round_weight() };
        unsafe { Self(flush_tiny(low), flush_tiny(high)) }
    }

    #[inline(always)]
    unsafe fn round_weight(self) -> Self {
        unsafe { Self(round_half(self.0), round_half(self.1)) }
    }

    #[inline(always)]
    unsafe fn cut_to_bf16(self) -> Self {
        unsafe {
            let high = _mm256_castsi256_ps(_mm256_set1_epi32(0xffff_0000_u32 as i32));
            Self(_mm256_and_ps(self.0, high), _mm256_and_ps(self.1, high))
        }
    }

    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u16) {
        unsafe {
            let low = _mm256_srli_epi32::<16>(_mm256_castps_si256(self.0));
            let high = _mm256_srli_epi32::<16>(_mm256_castps_si256(self.1));
            // Packing works within halves of a register; the permutation puts them in order.
            let packed = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(low, high));
            _mm256_storeu_si256(to.cast(), packed);
        }
    }

    #[inline(always)]
    unsafe fn prefetch(from: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
    }

    #[inline(always)]
    unsafe fn load_words(from: *const u8) -> Self::Words {
        unsafe { (_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast())) }
    }

    #[inline(always)]
    unsafe fn splat_words(number: i32) -> Self::Words {
        unsafe { (_mm256_set1_epi32(number), _mm256_set1_epi32(number)) }
    }

    #[inline(always)]
    unsafe fn halves<const SHIFT: u32>(words: Self::Words, mask: u16) -> Self::Words {
        unsafe {
            let (mask, shift) = (_mm256_set1_epi16(mask as i16), _mm_cvtsi32_si128(SHIFT as i32));
            (
                _mm256_and_si256(_mm256_srl_epi32(words.0, shift), mask),
                _mm256_and_si256(_mm256_srl_epi32(words.1, shift), mask),
            )
        }
    }

    #[inline(always)]
    unsafe fn signed_bytes<const ODD: bool>(words: Self::Words) -> Self::Words {
        unsafe {
            let (mut low, mut high) = words;
            if !ODD {
                (low, high) = (_mm256_slli_epi16::<8>(low), _mm256_slli_epi16::<8>(high));
            }
            (_mm256_srai_epi16::<8>(low), _mm256_srai_epi16::<8>(high))
        }
    }

    #[inline(always)]
    unsafe fn add_products(sums: Self::Words, halves: Self::Words, pair: [i16; 2]) -> Self::Words {
        unsafe {
            let pair = _mm256_set1_epi32(super::word_of(pair));
            (
                _mm256_add_epi32(sums.0, _mm256_madd_epi16(halves.0, pair)),
                _mm256_add_epi32(sums.1, _mm256_madd_epi16(halves.1, pair)),
            )
        }
    }

    #[inline(always)]
    unsafe fn from_words(words: Self::Words) -> Self {
        unsafe { Self(_mm256_cvtepi32_ps(words.0), _mm256_cvtepi32_ps(words.1)) }
    }

    #[inline(always)]
    unsafe fn store_i16(self, to: *mut i16) {
        unsafe {
            let (low, high) = (_mm256_cvtps_epi32(self.0), _mm256_cvtps_epi32(self.1));
            // The halves of each register are taken in turn; the permutation undoes that.
            let halves = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(low, high));
            _mm256_storeu_si256(to.cast(), halves);
        }
    }

    #[inline(always)]
    unsafe fn max_magnitude(self) -> f32 {
        unsafe {
            let magnitude = _mm256_set1_epi32(i32::MAX);
            let low = _mm256_and_si256(_mm256_castps_si256(self.0), magnitude);
            let high = _mm256_and_si256(_mm256_castps_si256(self.1), magnitude);
            let largest = _mm256_max_epu32(low, high);
            let mut lanes = [0u32; 8];
            _mm256_storeu_si256(lanes.as_mut_ptr().cast(), largest);
            f32::from_bits(lanes.into_iter().fold(0, u32::max))
        }
    }

    #[inline(always)]
    unsafe fn nibble<const SHIFT: u32>(words: Self::Words) -> Self {
        unsafe { Self(nibble_half::<SHIFT>(words.0), nibble_half::<SHIFT>(words.1)) }
    }

    #[inline(always)]
    unsafe fn low_bf16(words: Self::Words) -> Self {
        unsafe {
            Self(
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words.0)),
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words.1)),
            )
        }
    }

    #[inline(always)]
    unsafe fn high_bf16(words: Self::Words) -> Self {
        unsafe {
            let high = _mm256_set1_epi32(0xffff_0000_u32 as i32);
            Self(
                _mm256_castsi256_ps(_mm256_and_si256(words.0, high)),
                _mm256_castsi256_ps(_mm256_and_si256(words.1, high)),
            )
        }
    }
}

/// All ones in the lanes whose bits are set.
///
/// # Safety
/// The machine has AVX2.
#[inline(always)]
unsafe fn spread_bits(bits: u8) -> __m256 {
    // SAFETY: the caller's machine has AVX2; these work on registers alone.
    unsafe {
        let each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
        let set = _mm256_and_si256(_mm256_set1_epi32(i32::from(bits)), each);
        _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, each))
    }
}

/// Eight lanes of `nibble`.
///
/// # Safety
/// The machine has AVX2.
#[inline(always)]
unsafe fn nibble_half<const SHIFT: u32>(words: __m256i) -> __m256 {
    // SAFETY: the caller's machine has AVX2; these work on registers alone.
    unsafe {
        let shifted = _mm256_srl_epi32(words, _mm_cvtsi32_si128(SHIFT as i32));
        let codes = _mm256_and_si256(shifted, _mm256_set1_epi32(15));
        _mm256_cvtepi32_ps(_mm256_sub_epi32(codes, _mm256_set1_epi32(8)))
    }
}

/// Eight lanes of `round_weight`.
///
/// # Safety
/// The machine has AVX2.
#[inline(always)]
unsafe fn round_half(x: __m256) -> __m256 {
    // SAFETY: the caller's machine has AVX2; these work on registers alone.
    unsafe {
        let up = _mm256_add_epi32(_mm256_castps_si256(x), _mm256_set1_epi32(0x8000));
        let high = _mm256_set1_epi32(0xffff_0000_u32 as i32);
        _mm256_castsi256_ps(_mm256_and_si256(up, high))
    }
}

/// Zero for what is tiny.
///
/// # Safety
/// The machine has AVX2.
#[inline(always)]
unsafe fn flush_tiny(x: __m256) -> __m256 {
    // SAFETY: the caller's machine has AVX2; these work on registers alone.
    unsafe {
        let size = _mm256_andnot_ps(_mm256_set1_ps(-0.0), x);
        let large = _mm256_cmp_ps::<_CMP_NLT_UQ>(size, _mm256_set1_ps(super::TINY));
        _mm256_and_ps(x, large)
    }
}
