//! How integers meet codes: as half words or as bytes, with VNNI or without.
//!
//! VNNI multiplies two half words, or four bytes, and adds their products to a word at once.
//! Without it ([`pairs`](super::pairs)), half words take a product and a sum. Bytes' products are
//! added up as half words first: in each the products of two columns, as many times as fit. Codes
//! of four bits may meet a whole block before they become words, those of five half of one, those
//! of six a quarter, and those of eight are met as two of four.

use std::arch::asm;
use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::pairs::Pairs;
use super::sink::{Product, Sink, Sums};
use crate::acts::{ACT_BLOCK, IntBits};
use crate::aligned::LINE;
use crate::kernels::format::{Codes, Format};
use crate::lanes::Lanes;
use crate::lanes::avx512::Avx512Lanes;

/// Vectors of a block's codes at most.
pub(super) const MAX_STEPS: usize = 16;

/// A float whose last place is one, with room above and below: a whole number that is added to its
/// bits is added to it. Sums that begin with its bits need not be converted, and the operation that
/// scales them takes it off again. Nothing is lost: scales have no more than 22 bits, so that this
/// many times a scale is a float, too.
pub(super) const RAISED: f32 = 12_582_912.0;

/// Which instructions a kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Set {
    Avx2,
    Avx512,
    Vnni,
}

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

/// Vectors without it.
pub(crate) struct Paired<V>(PhantomData<V>);

impl<V: Pairs> Products for Paired<V> {
    type Words = PairedWords<V>;
    type Bytes = PairedBytes<V>;
}

/// Sixteen words, or twice as many half words, or four times as many bytes.
pub(super) type Words<I> = <<I as Ints>::V as Lanes>::Words;

/// How integers are kept, and meet codes. All but the constants want a machine that has the
/// instructions of [`Self::SET`].
#[allow(clippy::missing_safety_doc, reason = "see above")]
pub(crate) trait Ints {
    type V: Pairs;

    const SET: Set;

    /// Bytes of a row's integers in a block.
    const ROW_BYTES: usize;

    /// Whether codes become half words, those without a minimum with their centre taken off;
    /// else bytes.
    const ARE_CENTRED: bool;

    /// How often sums become words in a group.
    #[inline(always)]
    fn stretches<F: Format>() -> usize {
        1
    }

    /// Vectors of codes that are met before they do: columns, by how many of them a lane takes at
    /// once.
    #[inline(always)]
    fn steps<F: Format>() -> usize {
        Self::ROW_BYTES / 4 / F::GROUPS
    }

    /// Whether sums begin with [`RAISED`].
    #[inline(always)]
    fn are_raised<F: Format>() -> bool {
        false
    }

    /// Unpacks a block's codes, step after step, `P` vectors apart. There is room for them.
    #[inline(always)]
    unsafe fn unpack<F: Format, const P: usize>(codes: *const u8, to: *mut u8) {
        // SAFETY: forwarded contract.
        unsafe {
            if Self::ARE_CENTRED {
                unpack_words::<Self::V, F, P>(codes, to);
            } else {
                unpack_bytes::<Self::V, F, P>(codes, to);
            }
        }
    }

    /// The products of codes and integers.
    unsafe fn products(codes: Words<Self>, ints: Words<Self>) -> Words<Self>;

    /// The same, added to `sums`.
    unsafe fn add_products(sums: Words<Self>, codes: Words<Self>, ints: Words<Self>)
    -> Words<Self>;

    /// The sums of the `nth` stretch as words, with those of the ones before.
    #[inline(always)]
    unsafe fn add_stretch<F: Format>(
        _before: Words<Self>,
        sums: Words<Self>,
        _nth: usize,
    ) -> Words<Self> {
        sums
    }

    /// Hands sums on; see [`Sink::take`].
    #[inline(always)]
    unsafe fn hand_on<const P: usize>(sums: Sums<P>, product: Product, sink: Sink) {
        // SAFETY: forwarded contract.
        unsafe { <Self::V as Pairs>::hand_on(sums, product, sink) }
    }
}

/// An instruction that adds products to sums.
macro_rules! spelled_out {
    ($name:literal, $sums:ident, $codes:ident, $ints:ident) => {{
        let mut sums = $sums;
        // SAFETY: register operations only.
        unsafe {
            asm!(
                concat!($name, " {sums}, {codes}, {ints}"),
                sums = inout(zmm_reg) sums,
                codes = in(zmm_reg) $codes,
                ints = in(zmm_reg) $ints,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        sums
    }};
}

pub(crate) struct VnniWords;

impl Ints for VnniWords {
    type V = Avx512Lanes;
    const SET: Set = Set::Vnni;
    const ROW_BYTES: usize = 64;
    const ARE_CENTRED: bool = true;

    #[inline(always)]
    fn are_raised<F: Format>() -> bool {
        can_be_raised::<F>(IntBits::Twelve.largest())
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
    unsafe fn add_products(sums: __m512i, codes: __m512i, ints: __m512i) -> __m512i {
        spelled_out!("vpdpwssd", sums, codes, ints)
    }
}

pub(crate) struct VnniBytes;

impl Ints for VnniBytes {
    type V = Avx512Lanes;
    const SET: Set = Set::Vnni;
    const ROW_BYTES: usize = 32;
    const ARE_CENTRED: bool = false;

    #[inline(always)]
    fn are_raised<F: Format>() -> bool {
        const { assert!(can_be_raised::<F>(IntBits::Eight.largest())) };
        true
    }

    #[inline(always)]
    unsafe fn products(codes: __m512i, ints: __m512i) -> __m512i {
        // SAFETY: forwarded contract.
        unsafe { Self::add_products(_mm512_setzero_si512(), codes, ints) }
    }

    /// Spelled out, since the compiler likes to put off the last products of some sums until it
    /// needs them, and has to keep what they are made from.
    #[inline]
    #[target_feature(enable = "avx512f,avx512vnni")]
    unsafe fn add_products(sums: __m512i, codes: __m512i, ints: __m512i) -> __m512i {
        spelled_out!("vpdpbusd", sums, codes, ints)
    }
}

pub(crate) struct PairedWords<V>(PhantomData<V>);

impl<V: Pairs> Ints for PairedWords<V> {
    type V = V;
    const SET: Set = V::SET;
    const ROW_BYTES: usize = 64;
    const ARE_CENTRED: bool = true;

    #[inline(always)]
    unsafe fn products(codes: V::Words, ints: V::Words) -> V::Words {
        // SAFETY: forwarded contract.
        unsafe { V::pairs_of_halves(codes, ints) }
    }

    #[inline(always)]
    unsafe fn add_products(sums: V::Words, codes: V::Words, ints: V::Words) -> V::Words {
        // SAFETY: forwarded contract.
        unsafe { V::add_words(sums, V::pairs_of_halves(codes, ints)) }
    }
}

pub(crate) struct PairedBytes<V>(PhantomData<V>);

impl<V: Pairs> Ints for PairedBytes<V> {
    type V = V;
    const SET: Set = V::SET;
    const ROW_BYTES: usize = 32;
    const ARE_CENTRED: bool = false;

    #[inline(always)]
    fn stretches<F: Format>() -> usize {
        let n_columns = if are_parted::<F>() { 2 * ACT_BLOCK } else { ACT_BLOCK };
        n_columns / 4 / F::GROUPS / Self::steps::<F>()
    }

    #[inline(always)]
    fn steps<F: Format>() -> usize {
        const { assert!(fits::<F>()) };
        steps_that_fit::<F>()
    }

    #[inline(always)]
    unsafe fn unpack<F: Format, const P: usize>(codes: *const u8, to: *mut u8) {
        // SAFETY: forwarded contract.
        unsafe {
            if !are_parted::<F>() {
                return unpack_bytes::<V, F, P>(codes, to);
            }
            for vector in 0..F::CODE_BYTES / LINE {
                let words = V::load_words(codes.add(vector * LINE));
                put::<V, P>(V::halves::<0>(words, 0x0f0f), to, vector);
                put::<V, P>(V::halves::<4>(words, 0x0f0f), to, vector + 8);
            }
        }
    }

    #[inline(always)]
    unsafe fn products(codes: V::Words, ints: V::Words) -> V::Words {
        // SAFETY: forwarded contract.
        unsafe { V::pairs_of_bytes(codes, ints) }
    }

    #[inline(always)]
    unsafe fn add_products(sums: V::Words, codes: V::Words, ints: V::Words) -> V::Words {
        // SAFETY: forwarded contract.
        unsafe { V::add_halves(sums, V::pairs_of_bytes(codes, ints)) }
    }

    #[inline(always)]
    unsafe fn add_stretch<F: Format>(before: V::Words, sums: V::Words, nth: usize) -> V::Words {
        // SAFETY: forwarded contract.
        unsafe {
            let worth = if nth == 1 && are_parted::<F>() { 16 } else { 1 };
            let words = V::pairs_of_halves(sums, V::splat_halves(worth));
            if nth == 0 { words } else { V::add_words(before, words) }
        }
    }
}

/// Whether [`RAISED`] has room for a block's products of codes with integers up to `largest`.
const fn can_be_raised<F: Format>(largest: f32) -> bool {
    let code = if F::MIN { 2 * F::CENTRE as usize - 1 } else { F::CENTRE as usize };
    ACT_BLOCK * code * (largest as usize) < 1 << 22
}

/// Whether bytes without VNNI meet codes as two of four bits.
const fn are_parted<F: Format>() -> bool {
    F::CENTRE == 128
}

/// Steps of a stretch: as many as there are in a group, half or a quarter of them.
const fn steps_that_fit<F: Format>() -> usize {
    let of_group = ACT_BLOCK / 4 / F::GROUPS;
    match (F::CODES, F::CENTRE) {
        (Codes::Nibbles, _) | (_, 128) => of_group,
        // Five bits, and six.
        (_, ..=16) => 4,
        _ => 2,
    }
}

/// Whether the products of a stretch fit half words: two of a code and a byte in each step.
const fn fits<F: Format>() -> bool {
    let code = match (F::CODES, are_parted::<F>()) {
        (Codes::Nibbles, _) | (_, true) => 15,
        _ => 2 * F::CENTRE as usize - 1,
    };
    2 * steps_that_fit::<F>() * code * 127 <= i16::MAX as usize
}

/// Codes as half words, with the centre taken off where there is no minimum.
///
/// # Safety
/// As [`Ints::unpack`].
#[inline(always)]
unsafe fn unpack_words<V: Pairs, F: Format, const P: usize>(codes: *const u8, to: *mut u8) {
    // SAFETY: forwarded contract.
    unsafe {
        for vector in 0..F::CODE_BYTES / LINE {
            let words = V::load_words(codes.add(vector * LINE));
            let step = 2 * vector;
            if matches!(F::CODES, Codes::Nibbles) {
                // The high ones belong to the second half of the columns.
                put::<V, P>(centred::<V, F>(V::halves::<0>(words, 15)), to, step);
                put::<V, P>(centred::<V, F>(V::halves::<8>(words, 15)), to, step + 1);
                put::<V, P>(centred::<V, F>(V::halves::<4>(words, 15)), to, step + 8);
                put::<V, P>(centred::<V, F>(V::halves::<12>(words, 15)), to, step + 9);
            } else {
                put::<V, P>(centred::<V, F>(V::halves::<0>(words, 255)), to, step);
                put::<V, P>(centred::<V, F>(V::halves::<8>(words, 255)), to, step + 1);
            }
        }
    }
}

/// Codes as bytes.
///
/// # Safety
/// As [`Ints::unpack`].
#[inline(always)]
unsafe fn unpack_bytes<V: Pairs, F: Format, const P: usize>(codes: *const u8, to: *mut u8) {
    // SAFETY: forwarded contract.
    unsafe {
        for vector in 0..F::CODE_BYTES / LINE {
            let words = V::load_words(codes.add(vector * LINE));
            if matches!(F::CODES, Codes::Nibbles) {
                put::<V, P>(V::halves::<0>(words, 0x0f0f), to, vector);
                put::<V, P>(V::halves::<4>(words, 0x0f0f), to, vector + 4);
            } else {
                put::<V, P>(words, to, vector);
            }
        }
    }
}

/// # Safety
/// The machine has the vectors.
#[inline(always)]
unsafe fn centred<V: Pairs, F: Format>(codes: V::Words) -> V::Words {
    if F::MIN {
        return codes;
    }
    // SAFETY: register operations only.
    unsafe { V::add_halves(codes, V::splat_halves(-i16::from(F::CENTRE))) }
}

/// Stores the codes of a step.
///
/// # Safety
/// `to` is where those of the panel's first step go; the machine has the vectors.
#[inline(always)]
unsafe fn put<V: Pairs, const P: usize>(codes: V::Words, to: *mut u8, step: usize) {
    // SAFETY: forwarded contract.
    unsafe { V::store_words(codes, to.add(step * P * LINE)) }
}
