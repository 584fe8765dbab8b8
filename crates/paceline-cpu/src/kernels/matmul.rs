//! Weights times activations, both as bf16.
//!
//! A weight is `bf16(fma(code, scale, offset))`, an activation is rounded to bf16. For output `n`
//! of row `m`, for every 32 columns in rising order:
//! ```text
//! sum  = sum + (even + odd)
//! even = fma(w[2i], x[2i], even),  odd = fma(w[2i+1], x[2i+1], odd)     i = 0..16
//! ```
//! That is what a matrix tile computes in one instruction ([`super::matmul_amx`]); here it is
//! spelled out in lanes.
//!
//! One chain per output, in a lane of its own: it does not know how many rows ride along, which
//! thread computes it or how wide the registers are. That is where batch invariance comes from.

use crate::acts::{ACT_BLOCK, ActView};
use crate::aligned::LINE;
use crate::kernels::format::{Codes, Format, Panel, with_format};
use crate::lanes::{Lanes, WIDTH, load_first, store_first};
use crate::packed::CodedView;

/// How far ahead of the computation weights are fetched, in bytes.
const AHEAD: usize = 4096;

/// Repeats a body for rows `0..R`, each with its row as a constant: the compiler then keeps the
/// rows' sums in registers, where a loop of this size would keep them on the stack.
macro_rules! unroll_rows {
    ($n:ident, $r:ident, $body:block) => {
        unroll_rows!(@ $n, $r, $body, 0 1 2 3 4 5 6 7)
    };
    (@ $n:ident, $r:ident, $body:block, $($row:literal)*) => {
        $(if $row < $n {
            let $r = $row;
            $body
        })*
    };
}

/// Where a tile's results go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    pub(crate) data: *mut f32,
    /// Elements from one row to the next.
    pub(crate) stride: usize,
    /// Add to what is there instead of replacing it.
    pub(crate) add: bool,
}

// SAFETY: ops hold the borrow of the output while kernels run; threads write disjoint panels.
unsafe impl Send for Output {}
// SAFETY: as above.
unsafe impl Sync for Output {}

/// Computes outputs `panels` of all rows.
///
/// # Safety
/// As [`Lanes`]; `panels` lies within the weight, `acts` has `n_rows` rows of floats of the
/// weight's width, with the sums it reads, and `out` has room for `n_rows` rows of its outputs.
#[inline(always)]
pub(crate) unsafe fn matmul<V: Lanes>(
    w: CodedView,
    panels: std::ops::Range<usize>,
    acts: ActView,
    n_rows: usize,
    out: Output,
) {
    // SAFETY: forwarded contract; the layout names the format the weight was packed with.
    unsafe { with_format!(w.layout, all_panels::<V>(w, panels, acts, n_rows, out)) }
}

/// # Safety
/// As [`matmul`].
#[inline(always)]
unsafe fn all_panels<V: Lanes, F: Format>(
    w: CodedView,
    panels: std::ops::Range<usize>,
    acts: ActView,
    n_rows: usize,
    out: Output,
) {
    for panel in panels {
        let mut row = 0;
        // SAFETY: `panel` is within the weight, rows stay below `n_rows`; the caller vouches for
        // the buffers behind both.
        unsafe {
            while V::ROWS == 8 && row + 8 <= n_rows {
                tile::<V, F, 8>(w, panel, acts, row, out);
                row += 8;
            }
            while row + 2 <= n_rows {
                tile::<V, F, 2>(w, panel, acts, row, out);
                row += 2;
            }
            if row < n_rows {
                tile::<V, F, 1>(w, panel, acts, row, out);
            }
        }
    }
}

/// `R` rows of one panel.
///
/// # Safety
/// As [`matmul`], for rows `row..row + R`.
#[inline(always)]
unsafe fn tile<V: Lanes, F: Format, const R: usize>(
    w: CodedView,
    panel: usize,
    acts: ActView,
    row: usize,
    out: Output,
) {
    // SAFETY: the panel's blocks and the rows' activations lie within their buffers, as the caller
    // vouches; outputs past the matrix are not written.
    unsafe {
        let parts = w.panel(panel);
        let stride = acts.n_blocks * ACT_BLOCK;
        let xs = acts.floats.add(row * stride);
        let mut sums = [V::splat(0.0); R];
        for block in 0..w.panel.n_blocks {
            prefetch::<V, F>(parts.codes.add(block * F::CODE_BYTES));
            let xs = xs.add(block * ACT_BLOCK);
            add_block::<V, F, R>(parts, block, xs, stride, &mut sums);
        }
        let n_outputs = WIDTH.min(w.n_rows - panel * WIDTH);
        for (r, sum) in sums.into_iter().enumerate() {
            finish::<V>(sum, out, (row + r) * out.stride + panel * WIDTH, n_outputs);
        }
    }
}

/// Asks for the codes that are read some blocks from here. The hardware looks ahead too, but not
/// far enough to keep the memory busy while we compute.
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
pub(crate) unsafe fn prefetch<V: Lanes, F: Format>(codes: *const u8) {
    for line in (0..F::CODE_BYTES).step_by(LINE) {
        // SAFETY: a prefetch of any address does no harm.
        unsafe { V::prefetch(codes.wrapping_add(AHEAD + line)) };
    }
}

/// Adds one block of 32 columns.
///
/// # Safety
/// As [`tile`]; `xs` starts the block.
#[inline(always)]
unsafe fn add_block<V: Lanes, F: Format, const R: usize>(
    parts: Panel,
    block: usize,
    xs: *const f32,
    stride: usize,
    sums: &mut [V; R],
) {
    // SAFETY: forwarded contract; quarters and pairs stay within the block.
    unsafe {
        let codes = parts.codes.add(block * F::CODE_BYTES);
        let mut even = [V::splat(0.0); R];
        let mut odd = [V::splat(0.0); R];
        for quarter in 0..4 {
            let pairs = load_pairs::<V, F>(codes, quarter);
            let group = block * F::GROUPS + quarter * F::GROUPS / 4;
            for (j, (low, high)) in pairs.into_iter().enumerate() {
                let (low, high) = weights::<V, F>(parts, group, low, high);
                let x = xs.add(8 * quarter + 2 * j);
                unroll_rows!(R, r, {
                    even[r] = low.mul_add(V::splat(*x.add(r * stride)), even[r]);
                    odd[r] = high.mul_add(V::splat(*x.add(r * stride + 1)), odd[r]);
                });
            }
        }
        unroll_rows!(R, r, {
            sums[r] = sums[r].add(even[r].add(odd[r]));
        });
    }
}

/// Two columns' weights from their codes.
///
/// # Safety
/// As [`Lanes`]; `group` lies within the panel.
#[inline(always)]
unsafe fn weights<V: Lanes, F: Format>(parts: Panel, group: usize, low: V, high: V) -> (V, V) {
    if F::GROUPS == 0 {
        return (low, high);
    }
    // SAFETY: forwarded contract. The loads are the same for a whole group; the compiler makes
    // them once.
    unsafe {
        let (scale, offset) = parts.scale_and_offset::<V, F>(group);
        (low.mul_add(scale, offset).round_weight(), high.mul_add(scale, offset).round_weight())
    }
}

/// The codes of eight columns, two by two.
///
/// # Safety
/// As [`Lanes`]; `codes` starts a block, `quarter < 4`.
#[inline(always)]
unsafe fn load_pairs<V: Lanes, F: Format>(codes: *const u8, quarter: usize) -> [(V, V); 4] {
    // SAFETY: a block has four quarters of codes, of the format's size.
    unsafe {
        let from = codes.add(quarter * F::CODE_BYTES / 4);
        match F::CODES {
            Codes::Nibbles => {
                let words = V::load_words(from);
                [
                    (V::nibble::<0>(words), V::nibble::<16>(words)),
                    (V::nibble::<4>(words), V::nibble::<20>(words)),
                    (V::nibble::<8>(words), V::nibble::<24>(words)),
                    (V::nibble::<12>(words), V::nibble::<28>(words)),
                ]
            }
            Codes::Bytes => {
                let mut pairs = [(V::splat(0.0), V::splat(0.0)); 4];
                for (j, pair) in pairs.iter_mut().enumerate() {
                    let column = from.add(2 * j * WIDTH).cast();
                    *pair = (V::load_i8(column), V::load_i8(column.add(WIDTH)));
                }
                pairs
            }
            Codes::Brains => {
                let mut pairs = [(V::splat(0.0), V::splat(0.0)); 4];
                for (j, pair) in pairs.iter_mut().enumerate() {
                    let words = V::load_words(from.add(j * 4 * WIDTH));
                    *pair = (V::low_bf16(words), V::high_bf16(words));
                }
                pairs
            }
        }
    }
}

/// # Safety
/// As [`Lanes`]; `out` has `n_outputs` elements at `at`.
#[inline(always)]
pub(crate) unsafe fn finish<V: Lanes>(sum: V, out: Output, at: usize, n_outputs: usize) {
    // SAFETY: the caller vouches for the elements.
    unsafe {
        let to = out.data.add(at);
        let value = if out.add { sum.add(load_first(to, n_outputs, 0.0)) } else { sum };
        store_first(value, to, n_outputs);
    }
}
