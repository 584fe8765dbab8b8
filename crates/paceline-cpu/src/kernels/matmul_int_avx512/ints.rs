//! How integers meet codes in AVX-512: as half words or as bytes, with VNNI or without.
//!
//! VNNI multiplies two half words, or four bytes, and adds their products to a word at once.
//! Without it, half words take a product and a sum. Bytes' products are added up as half words
//! first: in each the products of two columns, as many times as fit. Codes of four bits may meet a
//! whole block before they become words, those of five half of one, and those of eight are met as
//! two of four.

use std::arch::asm;
use std::arch::x86_64::*;

use crate::aligned::LINE;
use crate::kernels::format::{Codes, Format};
use crate::lanes::Lanes;
use crate::lanes::avx512::Avx512Lanes as V;

/// Vectors of a block's codes at most.
pub(super) const MAX_STEPS: usize = 16;

/// What the machine multiplies integers with.
pub(crate) trait Products {
    type Words: Ints;
    type Bytes: Ints;
}

/// AVX-512 with VNNI.
pub(crate) struct Vnni;

impl Products for Vnni {
    type Words = VnniWords;
    type Bytes = VnniBytes;
}

/// AVX-512 without it.
pub(crate) struct Pairs;

impl Products for Pairs {
    type Words = PairedWords;
    type Bytes = PairedBytes;
}

/// How integers are kept, and meet codes. All but the constants want a machine that has AVX-512,
/// and VNNI where the name says so.
#[allow(clippy::missing_safety_doc, reason = "see above")]
pub(crate) trait Ints {
    /// Whether the kernels are compiled for VNNI.
    const HAVE_VNNI: bool;

    /// Bytes of a row's integers in a block.
    const ROW_BYTES: usize;

    /// Whether codes without a minimum are unpacked with their centre taken off.
    const ARE_CENTRED: bool;

    /// How often sums become words in a block.
    fn stretches<F: Format>() -> usize {
        1
    }

    /// Vectors of codes that are met before they do: columns, by how many of them a lane takes at
    /// once.
    fn steps<F: Format>() -> usize {
        Self::ROW_BYTES / 4
    }

    /// Unpacks a block's codes, step after step, `P` vectors apart. There is room for them.
    unsafe fn unpack<F: Format, const P: usize>(codes: *const u8, to: *mut u8);

    /// The products of codes and integers.
    unsafe fn products(codes: __m512i, ints: __m512i) -> __m512i;

    /// The same, added to `sums`.
    unsafe fn add_products(sums: __m512i, codes: __m512i, ints: __m512i) -> __m512i;

    /// The sums of the `nth` stretch as words, with those of the ones before.
    unsafe fn add_stretch<F: Format>(before: __m512i, sums: __m512i, nth: usize) -> __m512i;
}

pub(crate) struct VnniWords;

impl Ints for VnniWords {
    const HAVE_VNNI: bool = true;
    const ROW_BYTES: usize = 64;
    const ARE_CENTRED: bool = true;

    #[inline(always)]
    unsafe fn unpack<F: Format, const P: usize>(codes: *const u8, to: *mut u8) {
        // SAFETY: forwarded contract.
        unsafe { unpack_words::<F, P>(codes, to) }
    }

    #[inline(always)]
    unsafe fn products(codes: __m512i, ints: __m512i) -> __m512i {
        // SAFETY: forwarded contract.
        unsafe { Self::add_products(_mm512_setzero_si512(), codes, ints) }
    }

    /// Spelled out, since the compiler takes the intrinsic apart again, into a product and a sum,
    /// to shorten chains; here the number of operations is what counts.
    #[inline]
    #[target_feature(enable = "avx512f,avx512vnni")]
    unsafe fn add_products(mut sums: __m512i, codes: __m512i, ints: __m512i) -> __m512i {
        // SAFETY: register operations only.
        unsafe {
            asm!(
                "vpdpwssd {sums}, {codes}, {ints}",
                sums = inout(zmm_reg) sums,
                codes = in(zmm_reg) codes,
                ints = in(zmm_reg) ints,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        sums
    }

    #[inline(always)]
    unsafe fn add_stretch<F: Format>(_: __m512i, sums: __m512i, _: usize) -> __m512i {
        sums
    }
}

pub(crate) struct VnniBytes;

impl Ints for VnniBytes {
    const HAVE_VNNI: bool = true;
    const ROW_BYTES: usize = 32;
    const ARE_CENTRED: bool = false;

    #[inline(always)]
    unsafe fn unpack<F: Format, const P: usize>(codes: *const u8, to: *mut u8) {
        // SAFETY: forwarded contract.
        unsafe { unpack_bytes::<F, P>(codes, to) }
    }

    #[inline(always)]
    unsafe fn products(codes: __m512i, ints: __m512i) -> __m512i {
        // SAFETY: forwarded contract.
        unsafe { Self::add_products(_mm512_setzero_si512(), codes, ints) }
    }

    #[inline(always)]
    unsafe fn add_products(sums: __m512i, codes: __m512i, ints: __m512i) -> __m512i {
        // SAFETY: forwarded contract.
        unsafe { _mm512_dpbusd_epi32(sums, codes, ints) }
    }

    #[inline(always)]
    unsafe fn add_stretch<F: Format>(_: __m512i, sums: __m512i, _: usize) -> __m512i {
        sums
    }
}

pub(crate) struct PairedWords;

impl Ints for PairedWords {
    const HAVE_VNNI: bool = false;
    const ROW_BYTES: usize = 64;
    const ARE_CENTRED: bool = true;

    #[inline(always)]
    unsafe fn unpack<F: Format, const P: usize>(codes: *const u8, to: *mut u8) {
        // SAFETY: forwarded contract.
        unsafe { unpack_words::<F, P>(codes, to) }
    }

    #[inline(always)]
    unsafe fn products(codes: __m512i, ints: __m512i) -> __m512i {
        // SAFETY: forwarded contract.
        unsafe { _mm512_madd_epi16(codes, ints) }
    }

    #[inline(always)]
    unsafe fn add_products(sums: __m512i, codes: __m512i, ints: __m512i) -> __m512i {
        // SAFETY: forwarded contract.
        unsafe { _mm512_add_epi32(sums, _mm512_madd_epi16(codes, ints)) }
    }

    #[inline(always)]
    unsafe fn add_stretch<F: Format>(_: __m512i, sums: __m512i, _: usize) -> __m512i {
        sums
    }
}

pub(crate) struct PairedBytes;

impl PairedBytes {
    /// Whether codes are met as two of four bits.
    const fn are_parted<F: Format>() -> bool {
        F::CENTRE == 128
    }
}

impl Ints for PairedBytes {
    const HAVE_VNNI: bool = false;
    const ROW_BYTES: usize = 32;
    const ARE_CENTRED: bool = false;

    #[inline(always)]
    fn stretches<F: Format>() -> usize {
        if matches!(F::CODES, Codes::Nibbles) { 1 } else { 2 }
    }

    #[inline(always)]
    fn steps<F: Format>() -> usize {
        const { assert!(fits::<F>()) };
        if matches!(F::CODES, Codes::Nibbles) || Self::are_parted::<F>() { 8 } else { 4 }
    }

    #[inline(always)]
    unsafe fn unpack<F: Format, const P: usize>(codes: *const u8, to: *mut u8) {
        // SAFETY: forwarded contract.
        unsafe {
            if !Self::are_parted::<F>() {
                return unpack_bytes::<F, P>(codes, to);
            }
            for vector in 0..F::CODE_BYTES / LINE {
                let words = V::load_words(codes.add(vector * LINE));
                put::<P>(V::halves::<0>(words, 0x0f0f), to, vector);
                put::<P>(V::halves::<4>(words, 0x0f0f), to, vector + 8);
            }
        }
    }

    #[inline(always)]
    unsafe fn products(codes: __m512i, ints: __m512i) -> __m512i {
        // SAFETY: forwarded contract.
        unsafe { _mm512_maddubs_epi16(codes, ints) }
    }

    #[inline(always)]
    unsafe fn add_products(sums: __m512i, codes: __m512i, ints: __m512i) -> __m512i {
        // SAFETY: forwarded contract.
        unsafe { _mm512_add_epi16(sums, _mm512_maddubs_epi16(codes, ints)) }
    }

    #[inline(always)]
    unsafe fn add_stretch<F: Format>(before: __m512i, sums: __m512i, nth: usize) -> __m512i {
        // SAFETY: forwarded contract.
        unsafe {
            let worth = if nth == 1 && Self::are_parted::<F>() { 16 } else { 1 };
            let words = _mm512_madd_epi16(sums, _mm512_set1_epi16(worth));
            if nth == 0 { words } else { _mm512_add_epi32(before, words) }
        }
    }
}

/// Whether the products of a stretch fit half words: two of a code and a byte in each step.
const fn fits<F: Format>() -> bool {
    let (code, steps) = match (F::CODES, PairedBytes::are_parted::<F>()) {
        (Codes::Nibbles, _) | (_, true) => (15, 8),
        _ => (2 * F::CENTRE as i32 - 1, 4),
    };
    2 * steps * code * 127 <= i16::MAX as i32
}

/// Codes as half words.
///
/// # Safety
/// As [`Ints::unpack`].
#[inline(always)]
unsafe fn unpack_words<F: Format, const P: usize>(codes: *const u8, to: *mut u8) {
    // SAFETY: forwarded contract.
    unsafe {
        for vector in 0..F::CODE_BYTES / LINE {
            let words = V::load_words(codes.add(vector * LINE));
            let step = 2 * vector;
            if matches!(F::CODES, Codes::Nibbles) {
                // The high ones belong to the second half of the columns.
                put::<P>(centred::<F>(V::halves::<0>(words, 15)), to, step);
                put::<P>(centred::<F>(V::halves::<8>(words, 15)), to, step + 1);
                put::<P>(centred::<F>(V::halves::<4>(words, 15)), to, step + 8);
                put::<P>(centred::<F>(V::halves::<12>(words, 15)), to, step + 9);
            } else {
                put::<P>(centred::<F>(V::halves::<0>(words, 255)), to, step);
                put::<P>(centred::<F>(V::halves::<8>(words, 255)), to, step + 1);
            }
        }
    }
}

/// Codes as bytes.
///
/// # Safety
/// As [`Ints::unpack`].
#[inline(always)]
unsafe fn unpack_bytes<F: Format, const P: usize>(codes: *const u8, to: *mut u8) {
    // SAFETY: forwarded contract.
    unsafe {
        for vector in 0..F::CODE_BYTES / LINE {
            let words = V::load_words(codes.add(vector * LINE));
            if matches!(F::CODES, Codes::Nibbles) {
                put::<P>(V::halves::<0>(words, 0x0f0f), to, vector);
                put::<P>(V::halves::<4>(words, 0x0f0f), to, vector + 4);
            } else {
                put::<P>(words, to, vector);
            }
        }
    }
}

/// Codes as half words with the centre taken off, where there is no minimum.
///
/// # Safety
/// The machine has AVX-512.
#[inline(always)]
unsafe fn centred<F: Format>(codes: __m512i) -> __m512i {
    if F::MIN {
        return codes;
    }
    // SAFETY: register operations only.
    unsafe { _mm512_sub_epi16(codes, _mm512_set1_epi16(i16::from(F::CENTRE))) }
}

/// Stores the codes of a step.
///
/// # Safety
/// `to` is where those of the panel's first step go; the machine has AVX-512.
#[inline(always)]
unsafe fn put<const P: usize>(codes: __m512i, to: *mut u8, step: usize) {
    // SAFETY: forwarded contract.
    unsafe { _mm512_store_si512(to.add(step * P * LINE).cast(), codes) }
}
