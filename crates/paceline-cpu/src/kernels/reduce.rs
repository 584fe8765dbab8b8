//! Readings of one row of logits.

use crate::lanes::{Lanes, WIDTH, load_first, sum_lanes};
use crate::math::{exp, for_each_run};

/// The largest element, or `NaN` if any element is not a finite number.
///
/// # Safety
/// As [`Lanes`]; `x` holds `n` elements.
#[inline(always)]
pub(crate) unsafe fn max_finite<V: Lanes>(x: *const f32, n: usize) -> f32 {
    // SAFETY: runs stay below `n`.
    unsafe {
        let mut best = V::splat(f32::NEG_INFINITY);
        // Zero times a finite number is zero; anything else turns this into NaN and it stays.
        let mut poison = V::splat(0.0);
        for_each_run(n, |i, count| {
            let v = load_first::<V>(x.add(i), count, f32::MIN);
            best = v.max(best);
            poison = v.mul_add(V::splat(0.0), poison);
        });
        best.max_lane() + sum_lanes(poison)
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
        let mut best = V::splat(f32::NEG_INFINITY);
        for_each_run(n, |i, count| {
            best = load_first::<V>(x.add(i), count, f32::NEG_INFINITY).max(best);
        });
        let best = best.max_lane();
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
        for_each_run(n, |i, count| {
            let v = exp(load_first::<V>(x.add(i), count, 0.0).sub(V::splat(max)));
            total = total.add(v.keep_first(count, 0.0));
        });
        sum_lanes(total)
    }
}
