//! Float weights times float activations.
//!
//! For output `n` of row `m`: `sum = fma(w[n][k], x[m][k], sum)` over `k` in rising order, one
//! chain
//! per output in a lane of its own. Several panels (few rows) or several rows (many) are in flight
//! at once to hide the latency of the chain; neither changes it.

use crate::acts::ActView;
use crate::kernels::matmul_quant::{Output, finish};
use crate::lanes::{Lanes, WIDTH};
use crate::packed::{FloatPointer, FloatView};

/// A stored float type.
trait Element: Copy {
    /// # Safety
    /// As [`Lanes`]; sixteen elements at `from`.
    unsafe fn load<V: Lanes>(from: *const Self) -> V;
}

#[derive(Clone, Copy)]
#[repr(transparent)]
struct Half(#[allow(dead_code, reason = "read through a pointer")] u16);

#[derive(Clone, Copy)]
#[repr(transparent)]
struct Brain(#[allow(dead_code, reason = "read through a pointer")] u16);

impl Element for f32 {
    #[inline(always)]
    unsafe fn load<V: Lanes>(from: *const f32) -> V {
        // SAFETY: forwarded contract.
        unsafe { V::load(from) }
    }
}

impl Element for Half {
    #[inline(always)]
    unsafe fn load<V: Lanes>(from: *const Half) -> V {
        // SAFETY: forwarded contract.
        unsafe { V::load_f16(from.cast()) }
    }
}

impl Element for Brain {
    #[inline(always)]
    unsafe fn load<V: Lanes>(from: *const Brain) -> V {
        // SAFETY: forwarded contract.
        unsafe { V::load_bf16(from.cast()) }
    }
}

/// Computes outputs `panels` of all rows.
///
/// # Safety
/// As [`Lanes`]; `panels` lies within the weight, `acts` has `n_rows` float rows of the weight's
/// width, and `out` has room for `n_rows` rows of the weight's outputs.
#[inline(always)]
pub(crate) unsafe fn matmul<V: Lanes>(
    w: FloatView,
    panels: std::ops::Range<usize>,
    acts: ActView,
    n_rows: usize,
    out: Output,
) {
    // SAFETY: forwarded contract.
    unsafe {
        match w.data {
            FloatPointer::F32(data) => run::<V, f32>(data, w, panels, acts, n_rows, out),
            FloatPointer::F16(data) => run::<V, Half>(data.cast(), w, panels, acts, n_rows, out),
            FloatPointer::BF16(data) => run::<V, Brain>(data.cast(), w, panels, acts, n_rows, out),
        }
    }
}

/// # Safety
/// As [`matmul`].
#[inline(always)]
unsafe fn run<V: Lanes, E: Element>(
    data: *const E,
    w: FloatView,
    panels: std::ops::Range<usize>,
    acts: ActView,
    n_rows: usize,
    out: Output,
) {
    let mut panel = panels.start;
    // SAFETY: every tile stays within `panels` and `n_rows`.
    unsafe {
        while panel < panels.end {
            let n_panels = if panel + 4 <= panels.end { 4 } else { 1 };
            let mut row = 0;
            while row + 4 <= n_rows {
                for p in panel..panel + n_panels {
                    tile::<V, E, 4, 1>(data, w, p, acts, row, out);
                }
                row += 4;
            }
            while row < n_rows {
                match n_panels {
                    4 => tile::<V, E, 1, 4>(data, w, panel, acts, row, out),
                    _ => tile::<V, E, 1, 1>(data, w, panel, acts, row, out),
                }
                row += 1;
            }
            panel += n_panels;
        }
    }
}

/// `R` rows of `P` panels.
///
/// # Safety
/// As [`matmul`], for rows `row..row + R` and panels `panel..panel + P`.
#[inline(always)]
unsafe fn tile<V: Lanes, E: Element, const R: usize, const P: usize>(
    data: *const E,
    w: FloatView,
    panel: usize,
    acts: ActView,
    row: usize,
    out: Output,
) {
    // SAFETY: panels and rows lie within their buffers, as the caller vouches.
    unsafe {
        let weights = data.add(panel * w.n_cols * WIDTH);
        let xs = acts.floats.add(row * w.n_cols);
        let mut sums = [[V::splat(0.0); P]; R];
        for k in 0..w.n_cols {
            let mut ws = [V::splat(0.0); P];
            for (p, w_p) in ws.iter_mut().enumerate() {
                *w_p = E::load(weights.add((p * w.n_cols + k) * WIDTH));
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let x = V::splat(*xs.add(r * w.n_cols + k));
                for p in 0..P {
                    sums[p] = ws[p].mul_add(x, sums[p]);
                }
            }
        }
        for (r, sums) in sums.into_iter().enumerate() {
            for (p, sum) in sums.into_iter().enumerate() {
                let first = (panel + p) * WIDTH;
                let n_outputs = WIDTH.min(w.n_rows - first);
                finish::<V>(sum, out, (row + r) * out.stride + first, n_outputs);
            }
        }
    }
}
