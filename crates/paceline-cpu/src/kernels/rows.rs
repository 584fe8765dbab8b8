//! Kernels that work on one row at a time: norm, rounding, rope, activations.

use std::marker::PhantomData;
use std::ops::Range;

use crate::acts::{ACT_BLOCK, ActViewMut, inverse_root};
use crate::kernels::matmul_int;
use crate::lanes::{Lanes, WIDTH, load_first, store_first, sum_lanes};
use crate::math::{gate_of, run_len, tanh};

/// `out = x / rms(x) * weight`.
///
/// # Safety
/// As [`Lanes`]; all three hold `n` elements; `out` may be `x`.
#[inline(always)]
pub(crate) unsafe fn rms_norm<V: Lanes>(
    x: *const f32,
    weight: *const f32,
    eps: f32,
    n: usize,
    out: *mut f32,
) {
    // SAFETY: runs stay below `n`.
    unsafe {
        let mut squares = V::splat(0.0);
        for i in (0..n).step_by(WIDTH) {
            let count = run_len(i, n);
            let v = load_first::<V>(x.add(i), count, 0.0);
            squares = v.mul_add(v, squares);
        }
        let scale = V::splat(1.0 / (sum_lanes(squares) / n as f32 + eps).sqrt());
        for i in (0..n).step_by(WIDTH) {
            let count = run_len(i, n);
            let v = load_first::<V>(x.add(i), count, 0.0).mul(scale);
            let w = load_first::<V>(weight.add(i), count, 0.0);
            store_first(v.mul(w), out.add(i), count);
        }
    }
}

/// A norm before a product.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Norm {
    pub(crate) weight: *const f32,
    pub(crate) eps: f32,
}

// SAFETY: used only inside an op, which holds the borrow of the weight.
unsafe impl Send for Norm {}
// SAFETY: as above.
unsafe impl Sync for Norm {}

/// How rows of floats become activations.
pub(crate) trait RowsToActs {
    /// How many are treated together.
    const ROWS: usize;

    /// As [`matmul_int::put_ints`].
    ///
    /// # Safety
    /// As there.
    unsafe fn put_ints(x: *const f32, acts: ActViewMut, rows: Range<usize>);

    /// [`norm_later`] of rows at `x`, and [`put_acts`] of the result; false, with nothing done,
    /// where there is no faster way than that.
    ///
    /// # Safety
    /// As there.
    unsafe fn norm_ints(norm: Norm, x: *const f32, acts: ActViewMut, rows: Range<usize>) -> bool;
}

/// One by one.
pub(crate) struct Alone<V>(PhantomData<V>);

impl<V: Lanes> RowsToActs for Alone<V> {
    const ROWS: usize = 1;

    #[inline(always)]
    unsafe fn put_ints(x: *const f32, acts: ActViewMut, rows: Range<usize>) {
        // SAFETY: forwarded contract.
        unsafe { matmul_int::put_ints::<V>(x, acts, rows) }
    }

    #[inline(always)]
    unsafe fn norm_ints(_: Norm, _: *const f32, _: ActViewMut, _: Range<usize>) -> bool {
        false
    }
}

/// `out = x * weight`; returns one by the root mean square of `x`, which is left to be multiplied
/// with. Squares are added up by panels of sixteen columns, as they come from products
/// ([`crate::kernels::matmul_amx`]).
///
/// # Safety
/// As [`Lanes`]; `x`, `out` and the norm's weight hold `n` elements.
#[inline(always)]
pub(crate) unsafe fn norm_later<V: Lanes>(
    x: *const f32,
    norm: Norm,
    n: usize,
    out: *mut f32,
) -> f32 {
    let mut sum = 0.0;
    for i in (0..n).step_by(WIDTH) {
        let count = run_len(i, n);
        // SAFETY: runs stay below `n`.
        unsafe {
            let v = load_first::<V>(x.add(i), count, 0.0);
            sum += sum_lanes(v.mul(v));
            store_first(v.mul(load_first(norm.weight.add(i), count, 0.0)), out.add(i), count);
        }
    }
    inverse_root(sum, n, norm.eps)
}

/// Fills in `rows` of `acts` from rows at `x` (which may be those rows themselves), in the forms
/// asked for.
///
/// # Safety
/// As [`Lanes`]; `x` holds the rows, which lie within `acts`.
#[inline(always)]
pub(crate) unsafe fn put_acts<V: Lanes>(x: *const f32, acts: ActViewMut, rows: Range<usize>) {
    let n = acts.n_cols;
    for row in rows.clone() {
        // SAFETY: the row lies within the buffers.
        unsafe {
            let x = x.add((row - rows.start) * n);
            let exact = acts.exact.add(row * n);
            if acts.forms.exact && !std::ptr::eq(x, exact) {
                std::ptr::copy_nonoverlapping(x, exact, n);
            }
            if acts.forms.floats || acts.forms.tiles {
                for block in 0..acts.n_blocks {
                    put_block::<V>(x, acts, row, block);
                }
            }
        }
    }
}

/// Rounds 32 elements of a row.
///
/// # Safety
/// As [`put_acts`]; `block` lies within the row.
#[inline(always)]
unsafe fn put_block<V: Lanes>(x: *const f32, acts: ActViewMut, row: usize, block: usize) {
    let (n, at) = (acts.n_cols, block * ACT_BLOCK);
    // SAFETY: reads stay below `n`, writes within the row's blocks.
    unsafe {
        let low = load_first::<V>(x.add(at), run_len(at, n), 0.0).round_bf16();
        let rest = (n - at).saturating_sub(WIDTH).min(WIDTH);
        let high = load_first::<V>(x.add(at + WIDTH.min(n - at)), rest, 0.0).round_bf16();
        if acts.forms.floats {
            let to = acts.floats.add((row * acts.n_blocks + block) * ACT_BLOCK);
            low.store(to);
            high.store(to.add(WIDTH));
        }
        if acts.forms.tiles {
            let mut brains = [0u16; ACT_BLOCK];
            low.store_bf16(brains.as_mut_ptr());
            high.store_bf16(brains.as_mut_ptr().add(WIDTH));
            let n_rows = acts.tile_rows;
            let tile = (row / n_rows * acts.n_blocks + block) * ACT_BLOCK * n_rows;
            let to = acts.brains.add(tile).cast::<[u16; 2]>().add(row % n_rows);
            for (i, pair) in brains.as_chunks::<2>().0.iter().enumerate() {
                *to.add(i * n_rows) = *pair;
            }
        }
    }
}

/// `gate = act(gate) * up`.
///
/// # Safety
/// As [`Lanes`]; both hold `n` elements.
#[inline(always)]
pub(crate) unsafe fn gated<V: Lanes>(gate: *mut f32, up: *const f32, n: usize, gelu: bool) {
    for i in (0..n).step_by(WIDTH) {
        let count = run_len(i, n);
        // SAFETY: runs stay below `n`.
        unsafe {
            let g = load_first::<V>(gate.add(i), count, 0.0);
            let u = load_first::<V>(up.add(i), count, 0.0);
            store_first(gate_of(g, gelu).mul(u), gate.add(i), count);
        }
    }
}

/// Rotates the pairs `(x[i], x[i + half])` of one head by the angles whose cosines and sines are
/// given.
///
/// # Safety
/// As [`Lanes`]; `x` and `to` hold `2 * half` elements and are the same or apart, `cos` and `sin`
/// hold `half`.
#[inline(always)]
pub(crate) unsafe fn rope<V: Lanes>(
    (x, to): (*const f32, *mut f32),
    cos: *const f32,
    sin: *const f32,
    half: usize,
) {
    for i in (0..half).step_by(WIDTH) {
        let count = run_len(i, half);
        // SAFETY: runs stay below `half`.
        unsafe {
            let a = load_first::<V>(x.add(i), count, 0.0);
            let b = load_first::<V>(x.add(half + i), count, 0.0);
            let c = load_first::<V>(cos.add(i), count, 0.0);
            let s = load_first::<V>(sin.add(i), count, 0.0);
            let zero = V::splat(0.0);
            store_first(a.mul_add(c, zero.sub(b.mul(s))), to.add(i), count);
            store_first(b.mul_add(c, a.mul(s)), to.add(half + i), count);
        }
    }
}

/// `x += y`.
///
/// # Safety
/// As [`Lanes`]; both hold `n` elements.
#[inline(always)]
pub(crate) unsafe fn add<V: Lanes>(x: *mut f32, y: *const f32, n: usize) {
    for i in (0..n).step_by(WIDTH) {
        let count = run_len(i, n);
        // SAFETY: runs stay below `n`.
        unsafe {
            let sum = load_first::<V>(x.add(i), count, 0.0).add(load_first(y.add(i), count, 0.0));
            store_first(sum, x.add(i), count);
        }
    }
}

/// `x = cap * tanh(x / cap)`.
///
/// # Safety
/// As [`Lanes`]; `x` holds `n` elements.
#[inline(always)]
pub(crate) unsafe fn softcap<V: Lanes>(x: *mut f32, n: usize, cap: f32) {
    for i in (0..n).step_by(WIDTH) {
        let count = run_len(i, n);
        // SAFETY: runs stay below `n`.
        unsafe {
            let v = softcap_lanes(load_first::<V>(x.add(i), count, 0.0), cap);
            store_first(v, x.add(i), count);
        }
    }
}

/// # Safety
/// As [`Lanes`].
#[inline(always)]
pub(crate) unsafe fn softcap_lanes<V: Lanes>(x: V, cap: f32) -> V {
    // SAFETY: register operations only.
    unsafe { tanh(x.div(V::splat(cap))).mul(V::splat(cap)) }
}
