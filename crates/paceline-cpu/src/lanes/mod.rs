//! The machine every kernel is written for: sixteen lanes of `f32`.
//!
//! A kernel is one generic function over [`Lanes`]; each instruction set implements the lanes
//! and nothing else. All operations work lane by lane and round as IEEE 754 says, and a
//! multiply-add rounds once everywhere, so **every instruction set computes the same bits**.
//! Integer dot products are exact. Reductions over lanes go through [`sum_lanes`], one fixed tree.
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

/// Lanes of a vector.
pub(crate) const WIDTH: usize = 16;

/// Sixteen `f32` lanes, with sixteen `i32` lanes and sixty-four code bytes beside them.
///
/// # Safety
/// Callers of any method must run on a machine that has the instruction set the implementation
/// stands for (the table in `crate::table` is the one place that chooses), and pointers must be
/// valid for the sixteen elements read or written. No alignment is asked for.
pub(crate) unsafe trait Lanes: Copy {
    /// Sixteen `i32` lanes.
    type Int: Copy;
    /// Sixty-four bytes: four consecutive codes for each of sixteen lanes.
    type Codes: Copy;

    unsafe fn splat(x: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn store(self, to: *mut f32);
    unsafe fn load_f16(from: *const u16) -> Self;
    /// Rounds to nearest even.
    unsafe fn store_f16(self, to: *mut u16);
    unsafe fn load_bf16(from: *const u16) -> Self;

    unsafe fn add(self, other: Self) -> Self;
    unsafe fn sub(self, other: Self) -> Self;
    unsafe fn mul(self, other: Self) -> Self;
    unsafe fn div(self, other: Self) -> Self;
    /// `self * factor + addend`, rounded once.
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self;
    /// The larger; `other` if either is not a number.
    unsafe fn max(self, other: Self) -> Self;
    unsafe fn min(self, other: Self) -> Self;
    /// The largest lane. Lanes must be numbers.
    #[inline(always)]
    unsafe fn max_lane(self) -> f32 {
        to_array(self).into_iter().fold(f32::NEG_INFINITY, |m, x| if x > m { x } else { m })
    }
    /// Keeps the first `n` lanes and fills the rest with `fill`.
    unsafe fn keep_first(self, n: usize, fill: f32) -> Self;

    unsafe fn int_splat(x: i32) -> Self::Int;
    unsafe fn int_add(a: Self::Int, b: Self::Int) -> Self::Int;
    /// `256 * high + low`.
    unsafe fn int_join(high: Self::Int, low: Self::Int) -> Self::Int;
    unsafe fn int_to_f32(x: Self::Int) -> Self;
    /// `self * 2^n`, where `n` is a whole number held in `n_biased`'s low bits (see `math::exp`).
    unsafe fn scale_by_pow2(self, n_biased: Self) -> Self;

    unsafe fn load_codes(from: *const u8) -> Self::Codes;
    /// The low and the high nibble of every byte.
    unsafe fn split_nibbles(packed: Self::Codes) -> (Self::Codes, Self::Codes);
    /// Adds, in each lane, the dot product of its four codes with the four signed bytes at `acts`
    /// (the same for all lanes). `WIDE` says that codes may exceed 127.
    unsafe fn dot4<const WIDE: bool>(
        sum: Self::Int,
        codes: Self::Codes,
        acts: *const i8,
    ) -> Self::Int;
    /// Rounds each lane to the nearest whole number (ties to even, |x| < 2^22) and stores it as a
    /// byte.
    unsafe fn store_rounded_i8(self, to: *mut i8);
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
