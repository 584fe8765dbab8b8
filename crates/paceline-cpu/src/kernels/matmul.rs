//! Weights times activations, both as bf16.
//!
//! A weight is `fma(code, scale, offset)`, cut to bf16 (see [`Panel::scale_and_offset`]); an
//! activation is rounded to bf16. For output `n` of row `m`, for every 32 columns in rising order:
//! ```text
//! sum  = sum + (even + odd)
//! even = fma(w[2i], x[2i], even),  odd = fma(w[2i+1], x[2i+1], odd)     i = 0..16
//! ```
//! That is what a matrix tile computes in one instruction ([`super::matmul_amx`]); here it is
//! spelled out in lanes. The last sum is multiplied with the row's factor (see [`crate::acts`]).
//!
//! One chain per output, in a lane of its own: it does not know how many rows ride along, which
//! thread computes it or how wide the registers are. That is where batch invariance comes from.

use crate::acts::{ACT_BLOCK, ActView, TILE_ROWS};
use crate::aligned::LINE;
use crate::kernels::format::{Codes, Format, Panel, with_format};
use crate::lanes::{Lanes, WIDTH, load_first, store_first};
use crate::packed::CodedView;

/// Pages of weights that are fetched side by side, ahead of the computation.
const STREAMS: usize = 4;
const PAGE_LINES: usize = 4096 / LINE;

/// Most rows that meet all panels before the next ones do: their activations stay in the
/// second-level cache.
pub(crate) const ROWS_TOGETHER: usize = 320;

/// How many of some rows meet all panels together. All but the last are as many, since the last
/// would cost as much if they were few.
pub(crate) fn rows_together(n_rows: usize) -> usize {
    let n_groups = n_rows.div_ceil(ROWS_TOGETHER).max(1);
    n_rows.div_ceil(n_groups).next_multiple_of(TILE_ROWS)
}

/// Repeats a body for rows `0..R`, each with its row as a constant: the compiler then keeps the
/// rows' sums in registers, where a loop of this size would keep them on the stack.
macro_rules! unroll_rows {
    ($n:ident, $r:ident, $body:block) => {
        $crate::kernels::matmul::unroll_rows!(@ $n, $r, $body, 0 1 2 3 4 5 6 7)
    };
    (@ $n:ident, $r:ident, $body:block, $($row:literal)*) => {
        $(if $row < $n {
            let $r = $row;
            $body
        })*
    };
}

pub(crate) use unroll_rows;

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

/// Computes outputs `panels` of `rows`.
///
/// # Safety
/// As [`Lanes`]; `panels` lies within the weight, `rows` within `acts`, whose rows of floats have
/// the weight's width, and `out` has room for their outputs.
#[inline(always)]
pub(crate) unsafe fn matmul<V: Lanes>(
    w: CodedView,
    panels: std::ops::Range<usize>,
    acts: ActView,
    rows: std::ops::Range<usize>,
    out: Output,
) {
    // SAFETY: forwarded contract; the layout names the format the weight was packed with.
    unsafe { with_format!(w.layout, all_panels::<V>(w, panels, acts, rows, out)) }
}

/// Rows whose sums are kept at a time.
const SUMS: usize = 64;

/// Panels that go together where there are registers for it: an activation that is read meets as
/// many weights.
pub(crate) const PANELS: usize = 3;

/// # Safety
/// As [`matmul`].
#[inline(always)]
unsafe fn all_panels<V: Lanes, F: Format>(
    w: CodedView,
    panels: std::ops::Range<usize>,
    acts: ActView,
    rows: std::ops::Range<usize>,
    out: Output,
) {
    for first in rows.clone().step_by(SUMS) {
        let rows = first..rows.end.min(first + SUMS);
        let mut panel = panels.start;
        // SAFETY: the caller vouches for panels and rows.
        unsafe {
            if rows.len() == 1 {
                while panel < panels.end {
                    one_row::<V, F>(w, panel, acts, first, out);
                    panel += 1;
                }
            }
            while V::ROWS == 8 && panel + PANELS <= panels.end {
                some_rows::<V, F, PANELS>(w, panel, acts, rows.clone(), out);
                panel += PANELS;
            }
            while panel < panels.end {
                some_rows::<V, F, 1>(w, panel, acts, rows.clone(), out);
                panel += 1;
            }
        }
    }
}

/// One row of a panel, its sums in registers.
///
/// # Safety
/// As [`matmul`], for one row.
#[inline(always)]
unsafe fn one_row<V: Lanes, F: Format>(
    w: CodedView,
    panel: usize,
    acts: ActView,
    row: usize,
    out: Output,
) {
    // SAFETY: the panel's blocks and the row's activations lie within their buffers, as the caller
    // vouches.
    unsafe {
        let parts = w.panel(panel);
        let xs = acts.floats.add(row * acts.n_blocks * ACT_BLOCK);
        let (mut sum, mut ahead) = (V::splat(0.0), Ahead::new(parts));
        for block in 0..w.panel.n_blocks {
            ahead.ask::<V, F>();
            let xs = xs.add(block * ACT_BLOCK);
            let (mut even, mut odd) = (V::splat(0.0), V::splat(0.0));
            for quarter in 0..4 {
                let pairs = load_weights::<V, F>(parts, block, quarter);
                for (j, (low, high)) in pairs.into_iter().enumerate() {
                    let x = xs.add(8 * quarter + 2 * j);
                    even = low.mul_add(V::splat(*x), even);
                    odd = high.mul_add(V::splat(*x.add(1)), odd);
                }
            }
            sum = sum.add(even.add(odd));
        }
        put::<V>(w, panel, acts.scaled(sum, row), row, out);
    }
}

/// Some rows of `P` panels: each block is unpacked once for all of them.
///
/// # Safety
/// As [`matmul`], for at most [`SUMS`] rows.
#[inline(always)]
unsafe fn some_rows<V: Lanes, F: Format, const P: usize>(
    w: CodedView,
    panel: usize,
    acts: ActView,
    rows: std::ops::Range<usize>,
    out: Output,
) {
    let mut weights = [[[0.0f32; WIDTH]; P]; ACT_BLOCK];
    let mut sums = [[[0.0f32; WIDTH]; P]; SUMS];
    let stride = acts.n_blocks * ACT_BLOCK;
    // SAFETY: the panels' blocks and the rows' activations lie within their buffers, as the caller
    // vouches.
    unsafe {
        let mut parts = [w.panel(panel); P];
        for (p, parts) in parts.iter_mut().enumerate() {
            *parts = w.panel(panel + p);
        }
        let mut ahead = Ahead::new(parts[0]);
        for block in 0..w.panel.n_blocks {
            for (p, parts) in parts.into_iter().enumerate() {
                ahead.ask::<V, F>();
                for quarter in 0..4 {
                    let pairs = load_weights::<V, F>(parts, block, quarter);
                    for (j, (low, high)) in pairs.into_iter().enumerate() {
                        low.store(weights[8 * quarter + 2 * j][p].as_mut_ptr());
                        high.store(weights[8 * quarter + 2 * j + 1][p].as_mut_ptr());
                    }
                }
            }
            let xs = acts.floats.add(rows.start * stride + block * ACT_BLOCK);
            let mut row = 0;
            while P == 1 && V::ROWS == 8 && row + 8 <= rows.len() {
                add_block::<V, P, 8>(&weights, xs.add(row * stride), stride, &mut sums[row..]);
                row += 8;
            }
            while P == PANELS && row + 4 <= rows.len() {
                add_block::<V, P, 4>(&weights, xs.add(row * stride), stride, &mut sums[row..]);
                row += 4;
            }
            while row + 2 <= rows.len() {
                add_block::<V, P, 2>(&weights, xs.add(row * stride), stride, &mut sums[row..]);
                row += 2;
            }
            if row < rows.len() {
                add_block::<V, P, 1>(&weights, xs.add(row * stride), stride, &mut sums[row..]);
            }
        }
        for (row, sums) in rows.zip(&sums) {
            for (p, sum) in sums.iter().enumerate() {
                let sum = acts.scaled(V::load(sum.as_ptr()), row);
                put::<V>(w, panel + p, sum, row, out);
            }
        }
    }
}

/// # Safety
/// As [`matmul`].
#[inline(always)]
unsafe fn put<V: Lanes>(w: CodedView, panel: usize, sum: V, row: usize, out: Output) {
    let n_outputs = WIDTH.min(w.n_rows - panel * WIDTH);
    // SAFETY: outputs past the matrix are not written.
    unsafe { finish(sum, out, row * out.stride + panel * WIDTH, n_outputs) }
}

/// Asks for what is read next, scales and all, while a panel is worked on.
///
/// The processor looks ahead in each page it sees read from its start, but not far, and not into
/// the next page. So the next pages are asked for in turn, a line of each: as many streams, which
/// together bring in one and a half times as much as a single one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ahead {
    /// The first of the lines that are asked for next, and where none are any more.
    next: *const u8,
    end: *const u8,
    /// Bytes that were read since lines were asked for.
    due: usize,
}

impl Ahead {
    const PAGE: usize = PAGE_LINES * LINE;
    /// Pages that are fetched side by side, and a line of each.
    const WINDOW: usize = STREAMS * Self::PAGE;
    const TURN: usize = STREAMS * LINE;

    /// Lines of the window behind the one where a panel begins.
    #[inline(always)]
    pub(crate) fn new(parts: Panel) -> Ahead {
        let from = parts.scales.addr();
        let turn = from % Self::WINDOW / Self::TURN;
        let next = from / Self::WINDOW * Self::WINDOW + Self::WINDOW + turn * LINE;
        Ahead { next: parts.scales.with_addr(next), end: parts.end, due: from % Self::TURN }
    }

    /// Asks for as much as a block takes.
    ///
    /// # Safety
    /// As [`Lanes`].
    #[inline(always)]
    pub(crate) unsafe fn ask<V: Lanes, F: Format>(&mut self) {
        self.due += F::CODE_BYTES + F::GROUPS * F::SCALE_BYTES * (1 + F::MIN as usize);
        while self.due >= Self::TURN {
            self.due -= Self::TURN;
            // SAFETY: forwarded contract.
            unsafe { self.turn::<V>() };
        }
    }

    /// # Safety
    /// As [`Lanes`].
    #[inline(always)]
    unsafe fn turn<V: Lanes>(&mut self) {
        let line = |stream: usize| self.next.wrapping_add(stream * Self::PAGE);
        let are_all = line(STREAMS - 1) < self.end;
        for line in (0..STREAMS).map(line) {
            if are_all || line < self.end {
                // SAFETY: a prefetch of any address does no harm.
                unsafe { V::prefetch(line) };
            }
        }
        self.next = self.next.wrapping_add(LINE);
        if self.next.addr().is_multiple_of(Self::PAGE) {
            self.next = self.next.wrapping_add(Self::WINDOW - Self::PAGE);
        }
    }
}

/// Adds one block of 32 columns to the sums of `R` rows.
///
/// # Safety
/// As [`Lanes`]; `xs` holds `R` rows' blocks, `stride` apart; `sums` has `R` rows.
#[inline(always)]
unsafe fn add_block<V: Lanes, const P: usize, const R: usize>(
    weights: &[[[f32; WIDTH]; P]; ACT_BLOCK],
    xs: *const f32,
    stride: usize,
    sums: &mut [[[f32; WIDTH]; P]],
) {
    // SAFETY: forwarded contract.
    unsafe {
        let mut even = [[V::splat(0.0); P]; R];
        let mut odd = [[V::splat(0.0); P]; R];
        for (j, [low, high]) in weights.as_chunks::<2>().0.iter().enumerate() {
            unroll_rows!(R, r, {
                let x = V::splat(*xs.add(r * stride + 2 * j));
                for p in 0..P {
                    even[r][p] = V::load(low[p].as_ptr()).mul_add(x, even[r][p]);
                }
            });
            unroll_rows!(R, r, {
                let x = V::splat(*xs.add(r * stride + 2 * j + 1));
                for p in 0..P {
                    odd[r][p] = V::load(high[p].as_ptr()).mul_add(x, odd[r][p]);
                }
            });
        }
        unroll_rows!(R, r, {
            for p in 0..P {
                let sum = V::load(sums[r][p].as_ptr()).add(even[r][p].add(odd[r][p]));
                sum.store(sums[r][p].as_mut_ptr());
            }
        });
    }
}

/// The weights of eight columns, two by two.
///
/// # Safety
/// As [`Lanes`]; `block` lies within the panel, `quarter < 4`.
#[inline(always)]
unsafe fn load_weights<V: Lanes, F: Format>(
    parts: Panel,
    block: usize,
    quarter: usize,
) -> [(V, V); 4] {
    // SAFETY: forwarded contract.
    unsafe {
        let mut pairs = load_pairs::<V, F>(parts.codes.add(block * F::CODE_BYTES), quarter);
        if F::GROUPS > 0 {
            let group = block * F::GROUPS + quarter * F::GROUPS / 4;
            let (scale, offset) = parts.scale_and_offset::<V, F>(group);
            for (low, high) in &mut pairs {
                *low = low.mul_add(scale, offset).cut_to_bf16();
                *high = high.mul_add(scale, offset).cut_to_bf16();
            }
        }
        pairs
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
