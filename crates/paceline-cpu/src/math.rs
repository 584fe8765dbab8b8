//! Elementary functions over lanes, with the same bits on every instruction set.

use crate::lanes::{Lanes, WIDTH};

/// 1.5 * 2^23: adding it rounds a small number to the nearest whole one, in the low bits.
pub(crate) const ROUNDER: f32 = 12_582_912.0;
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;
/// Below this, `exp` is clamped: the result is tiny but normal.
const EXP_MIN: f32 = -87.0;
const EXP_MAX: f32 = 88.0;

/// The nearest whole number (ties to even), of one that is less than 2^22 in size.
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
pub(crate) unsafe fn round_whole<V: Lanes>(x: V) -> V {
    // SAFETY: register operations only; the caller vouches for the instruction set.
    unsafe { x.add(V::splat(ROUNDER)).sub(V::splat(ROUNDER)) }
}

/// The nearest whole number from `-max` to `max`; what is not a number becomes the smallest, the
/// same everywhere.
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
pub(crate) unsafe fn round_within<V: Lanes>(x: V, max: f32) -> V {
    // SAFETY: as above.
    unsafe { round_whole(x.max(V::splat(-max)).min(V::splat(max))) }
}

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

/// Below this, a token's weight is clamped: it is then nothing beside the largest, and still no
/// smaller than what counts as zero.
const WEIGHT_MIN: f32 = -34.0;

/// `e^x` of a number that is not far above zero, if at all, to one part in ten thousand: a token's
/// weight, which will be rounded to bf16 or twelve bits.
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
pub(crate) unsafe fn exp_weight<V: Lanes>(x: V) -> V {
    // SAFETY: register operations only; the caller vouches for the instruction set.
    unsafe {
        let x = x.max(V::splat(WEIGHT_MIN));
        // e^x = 2^n 2^f, |f| <= 1/2
        let biased = x.mul_add(V::splat(std::f32::consts::LOG2_E), V::splat(ROUNDER));
        let minus_n = V::splat(ROUNDER).sub(biased);
        let f = x.mul_add(V::splat(std::f32::consts::LOG2_E), minus_n);
        let mut p = V::splat(0.055_008_97);
        for c in [0.242_211_06, 0.693_282_9, 1.0] {
            p = p.mul_add(f, V::splat(c));
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes::scalar::ScalarLanes;
    use crate::lanes::{TINY, to_array};

    /// A weight of a token by the plain kernel.
    fn weight(x: f32) -> f32 {
        // SAFETY: plain code runs everywhere.
        unsafe { to_array(exp_weight(ScalarLanes::splat(x)))[0] }
    }

    #[test]
    fn weights_are_exponentials_to_one_part_in_ten_thousand() {
        for i in -10_000..34_000 {
            let x = -(i as f32) / 1000.0;
            let (found, expected) = (f64::from(weight(x)), f64::from(x).exp());
            assert!((found / expected - 1.0).abs() < 1.1e-4, "{x}: {found}, not {expected}");
        }
        assert_eq!(weight(0.0), 1.0);
        for x in [-34.0, -35.0, -1e30, f32::NEG_INFINITY] {
            assert!((TINY..2e-15).contains(&weight(x)), "{x}: {}", weight(x));
        }
    }
}
