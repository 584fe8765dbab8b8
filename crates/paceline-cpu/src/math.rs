//! Elementary functions over lanes, with the same bits on every instruction set.

use crate::lanes::{Lanes, WIDTH};

/// 1.5 * 2^23: adding it rounds a small number to the nearest whole one, in the low bits.
pub(crate) const ROUNDER: f32 = 12_582_912.0;
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;
/// Below this, `exp` is clamped: the result is tiny but normal.
const EXP_MIN: f32 = -87.0;
const EXP_MAX: f32 = 88.0;

/// `e^x`, to about one unit in the last place; clamped to finite, normal results.
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
pub(crate) unsafe fn exp<V: Lanes>(x: V) -> V {
    // SAFETY: register operations only; the caller vouches for the instruction set.
    unsafe {
        let x = x.max(V::splat(EXP_MIN)).min(V::splat(EXP_MAX));
        // x = n ln2 + r, |r| <= ln2 / 2
        let biased = x.mul_add(V::splat(std::f32::consts::LOG2_E), V::splat(ROUNDER));
        let n = biased.sub(V::splat(ROUNDER));
        let r = n.mul_add(V::splat(-LN_2_HIGH), x);
        let r = n.mul_add(V::splat(-LN_2_LOW), r);
        let mut p = V::splat(1.987_569_1e-4);
        for c in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_6e-1, 0.5] {
            p = p.mul_add(r, V::splat(c));
        }
        let p = p.mul_add(r.mul(r), r).add(V::splat(1.0));
        p.scale_by_pow2(biased)
    }
}

/// `tanh x` from `exp`.
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
pub(crate) unsafe fn tanh<V: Lanes>(x: V) -> V {
    // SAFETY: register operations only; the caller vouches for the instruction set.
    unsafe {
        let e = exp(x.add(x));
        V::splat(1.0).sub(V::splat(2.0).div(e.add(V::splat(1.0))))
    }
}

/// `x / (1 + e^-x)`.
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
unsafe fn silu<V: Lanes>(x: V) -> V {
    // SAFETY: register operations only; the caller vouches for the instruction set.
    unsafe { x.div(V::splat(1.0).add(exp(V::splat(0.0).sub(x)))) }
}

/// GELU in its tanh form.
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
unsafe fn gelu_tanh<V: Lanes>(x: V) -> V {
    // SAFETY: register operations only; the caller vouches for the instruction set.
    unsafe {
        let cube = x.mul(x).mul(x);
        let inner = cube.mul_add(V::splat(0.044_715), x).mul(V::splat(0.797_884_6));
        x.mul(V::splat(0.5)).mul(tanh(inner).add(V::splat(1.0)))
    }
}

/// Elements of the run of up to sixteen that starts at `i`, of `n`.
#[inline(always)]
pub(crate) fn run_len(i: usize, n: usize) -> usize {
    WIDTH.min(n - i)
}

/// The gate of a feed-forward: silu, or gelu as its tanh approximation has it.
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
pub(crate) unsafe fn gate_of<V: Lanes>(x: V, gelu: bool) -> V {
    // SAFETY: forwarded contract.
    unsafe { if gelu { gelu_tanh(x) } else { silu(x) } }
}
