//! Vectors that multiply half words, or bytes, and add up the products of neighbours.

use std::arch::asm;
use std::arch::x86_64::*;

use super::ints::Set;
use super::sink::{Product, Sink, Sums, put_rows};
use crate::lanes::Lanes;
use crate::lanes::avx2::Avx2Lanes;
use crate::lanes::avx512::Avx512Lanes;

/// Words of lanes as what else they hold.
///
/// # Safety
/// As [`Lanes`].
pub(crate) unsafe trait Pairs: Lanes {
    /// Without VNNI.
    const SET: Set;

    /// Panels that go together.
    const PANELS: usize;

    /// Rows of a few panels whose sums, and what they are made from, fit the registers.
    const SUMS: usize;

    /// Words: the products of half words, two by two.
    unsafe fn pairs_of_halves(a: Self::Words, b: Self::Words) -> Self::Words;
    /// Half words: the products of bytes without sign with bytes with one, two by two, which fit.
    unsafe fn pairs_of_bytes(codes: Self::Words, ints: Self::Words) -> Self::Words;
    unsafe fn add_words(a: Self::Words, b: Self::Words) -> Self::Words;
    unsafe fn add_halves(a: Self::Words, b: Self::Words) -> Self::Words;
    unsafe fn splat_halves(number: i16) -> Self::Words;
    /// The same in a register of its own, where there are many; the compiler would rather read it
    /// again.
    unsafe fn kept(self) -> Self;
    /// The bits of floats.
    unsafe fn bits(self) -> Self::Words;
    unsafe fn of_bits(words: Self::Words) -> Self;
    /// To where a line begins.
    unsafe fn store_words(words: Self::Words, to: *mut u8);
    /// See [`Sink::take`].
    unsafe fn hand_on<const P: usize>(sums: Sums<P>, product: Product, sink: Sink);
}

// SAFETY (whole impl): the trait's contract gives us a machine with AVX-512, and pointers valid for
// what is written.
#[allow(clippy::undocumented_unsafe_blocks, reason = "one argument covers the impl: see above")]
unsafe impl Pairs for Avx512Lanes {
    const SET: Set = Set::Avx512;
    const PANELS: usize = 3;
    const SUMS: usize = 8;

    #[inline(always)]
    unsafe fn pairs_of_halves(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_madd_epi16(a, b) }
    }

    #[inline(always)]
    unsafe fn pairs_of_bytes(codes: __m512i, ints: __m512i) -> __m512i {
        unsafe { _mm512_maddubs_epi16(codes, ints) }
    }

    #[inline(always)]
    unsafe fn add_words(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_add_epi32(a, b) }
    }

    #[inline(always)]
    unsafe fn add_halves(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_add_epi16(a, b) }
    }

    #[inline(always)]
    unsafe fn splat_halves(number: i16) -> __m512i {
        unsafe { _mm512_set1_epi16(number) }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn kept(self) -> Avx512Lanes {
        let mut v = self.0;
        unsafe {
            asm!("/* {0} */", inout(zmm_reg) v, options(pure, nomem, nostack, preserves_flags))
        };
        Avx512Lanes(v)
    }

    #[inline(always)]
    unsafe fn bits(self) -> __m512i {
        unsafe { _mm512_castps_si512(self.0) }
    }

    #[inline(always)]
    unsafe fn of_bits(words: __m512i) -> Avx512Lanes {
        unsafe { Avx512Lanes(_mm512_castsi512_ps(words)) }
    }

    #[inline(always)]
    unsafe fn store_words(words: __m512i, to: *mut u8) {
        unsafe { _mm512_store_si512(to.cast(), words) }
    }

    #[inline(always)]
    unsafe fn hand_on<const P: usize>(sums: Sums<P>, product: Product, sink: Sink) {
        unsafe { sink.take(sums, product) }
    }
}

type Two = (__m256i, __m256i);

// SAFETY (whole impl): the trait's contract gives us a machine with AVX2, and pointers valid for
// what is written.
#[allow(clippy::undocumented_unsafe_blocks, reason = "one argument covers the impl: see above")]
unsafe impl Pairs for Avx2Lanes {
    const SET: Set = Set::Avx2;
    const PANELS: usize = 1;
    const SUMS: usize = 4;

    #[inline(always)]
    unsafe fn pairs_of_halves(a: Two, b: Two) -> Two {
        unsafe { (_mm256_madd_epi16(a.0, b.0), _mm256_madd_epi16(a.1, b.1)) }
    }

    #[inline(always)]
    unsafe fn pairs_of_bytes(codes: Two, ints: Two) -> Two {
        unsafe { (_mm256_maddubs_epi16(codes.0, ints.0), _mm256_maddubs_epi16(codes.1, ints.1)) }
    }

    #[inline(always)]
    unsafe fn add_words(a: Two, b: Two) -> Two {
        unsafe { (_mm256_add_epi32(a.0, b.0), _mm256_add_epi32(a.1, b.1)) }
    }

    #[inline(always)]
    unsafe fn add_halves(a: Two, b: Two) -> Two {
        unsafe { (_mm256_add_epi16(a.0, b.0), _mm256_add_epi16(a.1, b.1)) }
    }

    #[inline(always)]
    unsafe fn splat_halves(number: i16) -> Two {
        unsafe { (_mm256_set1_epi16(number), _mm256_set1_epi16(number)) }
    }

    #[inline(always)]
    unsafe fn kept(self) -> Avx2Lanes {
        self
    }

    #[inline(always)]
    unsafe fn bits(self) -> Two {
        unsafe { (_mm256_castps_si256(self.0), _mm256_castps_si256(self.1)) }
    }

    #[inline(always)]
    unsafe fn of_bits(words: Two) -> Avx2Lanes {
        unsafe { Avx2Lanes(_mm256_castsi256_ps(words.0), _mm256_castsi256_ps(words.1)) }
    }

    #[inline(always)]
    unsafe fn store_words(words: Two, to: *mut u8) {
        unsafe {
            _mm256_store_si256(to.cast(), words.0);
            _mm256_store_si256(to.add(32).cast(), words.1);
        }
    }

    /// There are kernels for rows alone.
    #[inline(always)]
    unsafe fn hand_on<const P: usize>(sums: Sums<P>, product: Product, sink: Sink) {
        debug_assert!(matches!(sink, Sink::Rows(_)));
        if let Sink::Rows(out) = sink {
            unsafe { put_rows::<Avx2Lanes, P>(sums, product, out) }
        }
    }
}
