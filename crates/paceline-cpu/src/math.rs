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
/// weight, which will be rounded to bf16 or to a byte.
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
pub(crate) unsafe fn exp_weight<V: Lanes>(x: V) -> V {
    // SAFETY: register operations only; the caller vouches for the instruction set.
    unsafe {
        let x = x.max(V::splat(WEIGHT_MIN));
        power_of_two(x, std::f32::consts::LOG2_E, [0.055_008_97, 0.242_211_06, 0.693_282_9, 1.0])
    }
}

/// `2^(rate x)`, as exact as the polynomial with these coefficients is `2^f` for `|f| <= 1/2`.
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
unsafe fn power_of_two<V: Lanes, const N: usize>(x: V, rate: f32, coefficients: [f32; N]) -> V {
    // SAFETY: register operations only; the caller vouches for the instruction set.
    unsafe {
        // rate x = n + f
        let biased = x.mul_add(V::splat(rate), V::splat(ROUNDER));
        let minus_n = V::splat(ROUNDER).sub(biased);
        let f = x.mul_add(V::splat(rate), minus_n);
        let mut p = V::splat(coefficients[0]);
        for c in &coefficients[1..] {
            p = p.mul_add(f, V::splat(*c));
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

/// What `silu` clamps the argument of its exponential to.
const SILU_MIN: f32 = -80.0;
const SILU_MAX: f32 = 30.0;

/// `x / (1 + e^-x)`, to five parts in a million: it will be rounded to bf16 or twelve bits.
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
unsafe fn silu<V: Lanes>(x: V) -> V {
    // SAFETY: register operations only; the caller vouches for the instruction set.
    unsafe {
        let clamped = x.max(V::splat(SILU_MIN)).min(V::splat(SILU_MAX));
        let coefficients = [0.009_666_368, 0.055_921_976, 0.240_223_5, 0.693_121_1, 1.0];
        let e = power_of_two(clamped, -std::f32::consts::LOG2_E, coefficients);
        x.mul(inverse_of_next(e))
    }
}

/// `1 / (1 + e)` of a positive number, to two parts in a million. Division would take longer than
/// all the rest of a gate.
///
/// Newton's method for one over `x = k (1 + e)`, `y = y (c - x y)`: it begins with up to 1/8 too
/// much, and each `c` is in the middle of what `2 x y` can be by then. What is left in the end is a
/// factor, `k`.
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
unsafe fn inverse_of_next<V: Lanes>(e: V) -> V {
    const K: f32 = 1.270_021_4;
    // SAFETY: register operations only; the caller vouches for the instruction set.
    unsafe {
        let minus_x = e.mul_add(V::splat(-K), V::splat(-K));
        let mut y = minus_x.minus_inverse();
        for c in [2.125, 2.253_906_3] {
            y = y.mul(minus_x.mul_add(y, V::splat(c)));
        }
        y
    }
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
    #[test]
    fn silu_is_right_to_a_few_parts_in_a_million() {
        // SAFETY: plain code runs everywhere.
        let silu = |x: f32| unsafe { to_array(silu(ScalarLanes::splat(x)))[0] };
        for i in -90_000..90_000 {
            let x = i as f32 / 1000.0;
            let (found, expected) =
                (f64::from(silu(x)), f64::from(x) / (1.0 + f64::from(-x).exp()));
            let room = 5.5e-6 * expected.abs() + 1e-32;
            assert!((found - expected).abs() < room, "{x}: {found}, not {expected}");
        }
        assert!((silu(1e38) / 1e38 - 1.0).abs() < 5.5e-6);
        assert_eq!(silu(f32::INFINITY), f32::INFINITY);
        assert!(silu(f32::NAN).is_nan());
        assert!(silu(-1e30).abs() < 1e-3);
    }
}
