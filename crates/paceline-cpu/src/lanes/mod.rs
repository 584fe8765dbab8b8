//! The machine every kernel is written for: sixteen lanes of `f32`.
//!
//! A kernel is one generic function over [`Lanes`]; each instruction set implements the lanes
//! and nothing else. All operations work lane by lane and round as IEEE 754 says, and a
//! multiply-add rounds once everywhere, so **every instruction set computes the same bits**.
//! Reductions over lanes go through [`sum_lanes`], one fixed tree.
//!
//! The methods are `#[inline(always)]` and carry no `target_feature`; the entry points in
//! [`crate::table`] do, and everything is inlined into them. Kernels therefore hold vectors in
//! plain
//! loops and never in closures: a closure is a function of its own, compiled without the features.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod scalar;

use crate::math::ROUNDER;

/// Lanes of a vector.
pub(crate) const WIDTH: usize = 16;

/// bf16 values below this (2^-50) count as zero: matrix tiles flush denormal numbers and other
/// instructions do not, so products are kept far from them.
pub(crate) const TINY: f32 = f32::from_bits((127 - 50) << 23);

/// Sixteen `f32` lanes, with sixteen 32-bit words beside them.
///
/// # Safety
/// Callers of any method must run on a machine that has the instruction set the implementation
/// stands for (the table in `crate::table` is the one place that chooses), and pointers must be
/// valid for the sixteen elements read or written. No alignment is asked for.
pub(crate) unsafe trait Lanes: Copy {
    /// Sixteen words, each with codes or a pair of bf16 values of its lane.
    type Words: Copy;

    /// Rows a matrix kernel keeps in registers.
    const ROWS: usize;

    unsafe fn splat(x: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn store(self, to: *mut f32);
    unsafe fn load_f16(from: *const u16) -> Self;
    /// Rounds to nearest even.
    unsafe fn store_f16(self, to: *mut u16);
    /// Sixteen signed bytes.
    unsafe fn load_i8(from: *const i8) -> Self;
    /// The nearest bf16 (ties away from zero), and zero where that is below [`TINY`].
    unsafe fn round_bf16(self) -> Self;
    /// The nearest bf16 (ties away from zero).
    unsafe fn round_weight(self) -> Self;
    /// The next bf16 towards zero.
    unsafe fn cut_to_bf16(self) -> Self;
    /// Stores lanes that are bf16 values.
    unsafe fn store_bf16(self, to: *mut u16);
    /// The same, as the first (0) or the second (1) of sixteen pairs; the others stay.
    #[inline(always)]
    unsafe fn store_bf16_of_pairs(self, to: *mut u16, nth: usize) {
        let mut brains = [0; WIDTH];
        // SAFETY: forwarded contract.
        unsafe {
            self.store_bf16(brains.as_mut_ptr());
            for (pair, brain) in brains.into_iter().enumerate() {
                to.add(2 * pair + nth).write_unaligned(brain);
            }
        }
    }

    unsafe fn add(self, other: Self) -> Self;
    unsafe fn sub(self, other: Self) -> Self;
    unsafe fn mul(self, other: Self) -> Self;
    unsafe fn div(self, other: Self) -> Self;
    /// `self * factor + addend`, rounded once.
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self;
    /// The larger; `other` if either is not a number.
    unsafe fn max(self, other: Self) -> Self;
    unsafe fn min(self, other: Self) -> Self;
    /// Whether a lane is larger than `x`.
    #[inline(always)]
    unsafe fn is_any_above(self, x: f32) -> bool {
        to_array(self).into_iter().any(|lane| lane > x)
    }
    /// The largest lane. Lanes must be numbers.
    #[inline(always)]
    unsafe fn max_lane(self) -> f32 {
        to_array(self).into_iter().fold(f32::NEG_INFINITY, |m, x| if x > m { x } else { m })
    }
    /// The sum of lanes that are whole numbers, few enough that floats hold every sum of theirs.
    #[inline(always)]
    unsafe fn sum_whole(self) -> f32 {
        sum_lanes(self)
    }
    /// Keeps the first `n` lanes and fills the rest with `fill`.
    unsafe fn keep_first(self, n: usize, fill: f32) -> Self;
    /// Keeps the lanes whose bits are set and fills the rest with `fill`.
    unsafe fn keep(self, lanes: u16, fill: f32) -> Self;

    /// `self * 2^n`, where `n` is a whole number held in `n_biased`'s low bits (see `math::exp`).
    unsafe fn scale_by_pow2(self, n_biased: Self) -> Self;
    /// Minus one over a negative number that is neither tiny nor huge, up to 1/8 too large.
    unsafe fn minus_inverse(self) -> Self;

    /// Asks for a cache line that will be read soon; any address will do.
    #[inline(always)]
    unsafe fn prefetch(_from: *const u8) {}
    /// The same for one of a few that will be read next, and can wait in the first-level cache.
    #[inline(always)]
    unsafe fn prefetch_near(from: *const u8) {
        // SAFETY: forwarded contract.
        unsafe { Self::prefetch(from) }
    }
    unsafe fn load_words(from: *const u8) -> Self::Words;
    /// The same number in all words.
    unsafe fn splat_words(number: i32) -> Self::Words;
    /// Bits of both halves of every word: those of `mask`, from bit `SHIFT` on.
    unsafe fn halves<const SHIFT: u32>(words: Self::Words, mask: u16) -> Self::Words;
    /// Both halves of every word: of its four signed bytes the first and third, or, if `ODD`, the
    /// second and fourth.
    unsafe fn signed_bytes<const ODD: bool>(words: Self::Words) -> Self::Words;
    /// Adds to every sum the products of a word's halves with those of `pair`.
    unsafe fn add_products(sums: Self::Words, halves: Self::Words, pair: [i16; 2]) -> Self::Words;
    /// The words as signed numbers.
    unsafe fn from_words(words: Self::Words) -> Self;
    /// Stores lanes that are whole numbers, of no more than eight bits with their sign, as byte
    /// `nth` of sixteen words; the others stay.
    #[inline(always)]
    unsafe fn store_byte_of_words(self, to: *mut i8, nth: usize) {
        for (word, number) in to_array(self).into_iter().enumerate() {
            // SAFETY: forwarded contract.
            unsafe { to.add(4 * word + nth).write(number as i8) };
        }
    }
    /// Stores lanes that are whole numbers of eight bits.
    #[inline(always)]
    unsafe fn store_i8(self, to: *mut i8) {
        // SAFETY: forwarded contract.
        unsafe {
            let raised = to_array(self.add(Self::splat(ROUNDER)));
            // A whole number is then in the low bits.
            to.cast::<[i8; WIDTH]>().write_unaligned(raised.map(|x| x.to_bits() as i8));
        }
    }
    /// Stores lanes that are whole numbers of sixteen bits.
    unsafe fn store_i16(self, to: *mut i16);
    /// The largest magnitude; not a number if any lane is none.
    unsafe fn max_magnitude(self) -> f32;
    /// Four bits of every word, from bit `SHIFT` on, less eight.
    unsafe fn nibble<const SHIFT: u32>(words: Self::Words) -> Self;
    /// The low halves of the words as bf16 values.
    unsafe fn low_bf16(words: Self::Words) -> Self;
    /// The high halves of the words as bf16 values.
    unsafe fn high_bf16(words: Self::Words) -> Self;
}

/// What the bits of `x` and `-1 / x` add up to, more or less: bits are about a logarithm.
const BITS_OF_MINUS_ONE: u32 = 1.0_f32.to_bits() + (-1.0_f32).to_bits();

/// Two half words as one word.
#[inline(always)]
pub(crate) fn word_of([low, high]: [i16; 2]) -> i32 {
    i32::from(high) << 16 | i32::from(low as u16)
}

/// One lane of [`Lanes::round_bf16`].
#[inline(always)]
pub(crate) fn round_to_bf16(x: f32) -> f32 {
    let rounded = f32::from_bits(x.to_bits().wrapping_add(0x8000) & 0xffff_0000);
    if rounded.abs() < TINY { 0.0 } else { rounded }
}

/// Loads the first `n` lanes (`n <= 16`) and fills the rest with `fill`.
///
/// # Safety
/// As [`Lanes`]; `from` must be valid for `n` reads.
#[inline(always)]
pub(crate) unsafe fn load_first<V: Lanes>(from: *const f32, n: usize, fill: f32) -> V {
    if n == WIDTH {
        // SAFETY: the caller vouches for `n` = 16 elements.
        return unsafe { V::load(from) };
    }
    let mut buffer = [fill; WIDTH];
    for (i, slot) in buffer.iter_mut().enumerate().take(n) {
        // SAFETY: `i < n`, and the caller vouches for `n` elements.
        *slot = unsafe { *from.add(i) };
    }
    // SAFETY: the buffer has sixteen elements.
    unsafe { V::load(buffer.as_ptr()) }
}

/// Stores the first `n` lanes (`n <= 16`).
///
/// # Safety
/// As [`Lanes`]; `to` must be valid for `n` writes.
#[inline(always)]
pub(crate) unsafe fn store_first<V: Lanes>(v: V, to: *mut f32, n: usize) {
    if n == WIDTH {
        // SAFETY: the caller vouches for `n` = 16 elements.
        return unsafe { v.store(to) };
    }
    let buffer = to_array(v);
    for (i, x) in buffer.iter().enumerate().take(n) {
        // SAFETY: `i < n`, and the caller vouches for `n` elements.
        unsafe { *to.add(i) = *x };
    }
}

#[inline(always)]
pub(crate) fn to_array<V: Lanes>(v: V) -> [f32; WIDTH] {
    let mut buffer = [0.0; WIDTH];
    // SAFETY: the buffer has sixteen elements; `v` exists, so the machine has its instructions.
    unsafe { v.store(buffer.as_mut_ptr()) };
    buffer
}

/// Sum of the lanes by one fixed tree: 16 → 8 → 4 → 2 → 1, lane `i` with lane `i + half`.
#[inline(always)]
pub(crate) fn sum_lanes<V: Lanes>(v: V) -> f32 {
    let mut a = to_array(v);
    let mut half = WIDTH / 2;
    while half > 0 {
        for i in 0..half {
            a[i] += a[i + half];
        }
        half /= 2;
    }
    a[0]
}
