//! f32 weights times activations as they are.
//!
//! For output `n` of row `m`: `sum = fma(w[n][k], x[m][k], sum)` over `k` in rising order, one
//! chain per output in a lane of its own. Several panels (few rows) or several rows (many) are in
//! flight at once to hide the latency of the chain; neither changes it.

use crate::acts::ActView;
use crate::kernels::matmul::{Output, finish};
use crate::lanes::{Lanes, WIDTH};
use crate::packed::ExactView;

/// Computes outputs `panels` of `rows`.
///
/// # Safety
/// As [`Lanes`]; `panels` lies within the weight, `rows` within `acts`, whose exact rows have the
/// weight's width, and `out` has room for their outputs.
#[inline(always)]
pub(crate) unsafe fn matmul<V: Lanes>(
    w: ExactView,
    panels: std::ops::Range<usize>,
    acts: ActView,
    rows: std::ops::Range<usize>,
    out: Output,
) {
    let mut panel = panels.start;
    // SAFETY: every tile stays within `panels` and `rows`.
    unsafe {
        while panel < panels.end {
            let n_panels = if panel + 4 <= panels.end { 4 } else { 1 };
            let mut row = rows.start;
            while row + 4 <= rows.end {
                for p in panel..panel + n_panels {
                    tile::<V, 4, 1>(w, p, acts, row, out);
                }
                row += 4;
            }
            while row < rows.end {
                match n_panels {
                    4 => tile::<V, 1, 4>(w, panel, acts, row, out),
                    _ => tile::<V, 1, 1>(w, panel, acts, row, out),
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
unsafe fn tile<V: Lanes, const R: usize, const P: usize>(
    w: ExactView,
    panel: usize,
    acts: ActView,
    row: usize,
    out: Output,
) {
    // SAFETY: panels and rows lie within their buffers, as the caller vouches.
    unsafe {
        let weights = w.data.add(panel * w.n_cols * WIDTH);
        let xs = acts.exact.add(row * w.n_cols);
        let mut sums = [[V::splat(0.0); P]; R];
        for k in 0..w.n_cols {
            let mut ws = [V::splat(0.0); P];
            for (p, w_p) in ws.iter_mut().enumerate() {
                *w_p = V::load(weights.add((p * w.n_cols + k) * WIDTH));
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
                let sum = acts.scaled(sum, row + r);
                finish::<V>(sum, out, (row + r) * out.stride + first, n_outputs);
            }
        }
    }
}
