//! Readings of one row of logits.

use crate::lanes::{Lanes, WIDTH, load_first, sum_lanes};
use crate::math::{exp, run_len};

/// The largest element. Elements must be numbers.
///
/// # Safety
/// As [`Lanes`]; `x` holds `n` elements.
#[inline(always)]
pub(crate) unsafe fn max<V: Lanes>(x: *const f32, n: usize) -> f32 {
    // SAFETY: runs stay below `n`.
    unsafe {
        let mut best = V::splat(f32::NEG_INFINITY);
        for i in (0..n).step_by(WIDTH) {
            best = load_first::<V>(x.add(i), run_len(i, n), f32::NEG_INFINITY).max(best);
        }
        best.max_lane()
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
        while i + WIDTH <= n {
            if V::load(x.add(i)).max_lane() == best {
                break;
            }
            i += WIDTH;
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
