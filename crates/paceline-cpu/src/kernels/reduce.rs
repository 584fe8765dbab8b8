//! Readings of one row of logits.

use crate::lanes::{Lanes, WIDTH, load_first, sum_lanes};
use crate::math::{exp, run_len};

/// Vectors that are read together, so that none waits for the one before.
const TOGETHER: usize = 8;

/// The largest element of each lane, of [`TOGETHER`] whole vectors.
///
/// # Safety
/// As [`Lanes`]; `x` holds that many elements.
#[inline(always)]
unsafe fn max_together<V: Lanes>(x: *const f32) -> V {
    // SAFETY: forwarded contract.
    unsafe {
        let load = |i: usize| V::load(x.add(i * WIDTH));
        let pair = |i: usize| load(i).max(load(i + 1));
        pair(0).max(pair(2)).max(pair(4).max(pair(6)))
    }
}

/// The largest element. Elements must be numbers.
///
/// # Safety
/// As [`Lanes`]; `x` holds `n` elements.
#[inline(always)]
pub(crate) unsafe fn max<V: Lanes>(x: *const f32, n: usize) -> f32 {
    // SAFETY: runs stay below `n`.
    unsafe {
        let mut best = V::splat(f32::NEG_INFINITY);
        let whole = n / (TOGETHER * WIDTH) * (TOGETHER * WIDTH);
        for i in (0..whole).step_by(TOGETHER * WIDTH) {
            best = max_together::<V>(x.add(i)).max(best);
        }
        for i in (whole..n).step_by(WIDTH) {
            best = load_first::<V>(x.add(i), run_len(i, n), f32::NEG_INFINITY).max(best);
        }
        best.max_lane()
    }
}

/// Whether every element is a number, and none is positive infinity.
///
/// # Safety
/// As [`Lanes`]; `x` holds `n` elements.
#[inline(always)]
pub(crate) unsafe fn is_sound<V: Lanes>(x: *const f32, n: usize) -> bool {
    // SAFETY: runs stay below `n`.
    unsafe {
        let zero = V::splat(0.0);
        // What is not a number stays so, negative infinity does not; zero times what is not finite
        // then is not a number.
        let add_nothing = |v: V, sum: V| V::splat(-1.0).max(v).mul_add(zero, sum);
        let mut nothing = [zero; TOGETHER];
        let whole = n / (TOGETHER * WIDTH) * (TOGETHER * WIDTH);
        for i in (0..whole).step_by(TOGETHER * WIDTH) {
            for (j, sum) in nothing.iter_mut().enumerate() {
                *sum = add_nothing(V::load(x.add(i + j * WIDTH)), *sum);
            }
        }
        for i in (whole..n).step_by(WIDTH) {
            let v = load_first::<V>(x.add(i), run_len(i, n), 0.0);
            nothing[0] = add_nothing(v, nothing[0]);
        }
        nothing.into_iter().all(|sum| sum_lanes(sum) == 0.0)
    }
}

/// The first position of the largest element.
///
/// # Safety
/// As [`Lanes`]; `x` holds `n` elements.
#[inline(always)]
pub(crate) unsafe fn argmax<V: Lanes>(x: *const f32, n: usize) -> usize {
    // SAFETY: runs stay below `n`.
    unsafe {
        let best = max::<V>(x, n);
        let mut i = 0;
        while i + TOGETHER * WIDTH <= n {
            if max_together::<V>(x.add(i)).max_lane() == best {
                break;
            }
            i += TOGETHER * WIDTH;
        }
        while i < n && *x.add(i) != best {
            i += 1;
        }
        if i < n { i } else { 0 }
    }
}

/// `Σ exp(x - max)`.
///
/// # Safety
/// As [`Lanes`]; `x` holds `n` elements.
#[inline(always)]
pub(crate) unsafe fn sum_exp<V: Lanes>(x: *const f32, n: usize, max: f32) -> f32 {
    // SAFETY: runs stay below `n`.
    unsafe {
        let mut total = V::splat(0.0);
        for i in (0..n).step_by(WIDTH) {
            let count = run_len(i, n);
            let v = exp(load_first::<V>(x.add(i), count, 0.0).sub(V::splat(max)));
            total = total.add(v.keep_first(count, 0.0));
        }
        sum_lanes(total)
    }
}
