//! Weights' codes times activations as integers.
//!
//! Of every 32 columns of a row, `x` is rounded to whole multiples of a unit, the largest of them
//! to [`IntBits::largest`]. For output `n` of row `m`, for every 32 columns in rising order, or
//! every 16 where weights have a scale for as many:
//! ```text
//! dot = Σ code[i] * int[i]                      exact, as everything below 2^24 is
//! sum = fma((dot - centre * Σ int) * scale, unit, sum)       weights without a minimum
//! sum = fma(min, unit * Σ int, fma(dot * scale, unit, sum))  weights with one
//! ```
//! Integers add up to the same in any order, so a kernel may take columns as it likes: here two
//! by two in lanes, in [`super::matmul_int_blocks`] two or four at once, in
//! [`super::matmul_int_amx`] four by four or as tiles of bytes. No weight is turned
//! into a float, which is most of the work of [`super::matmul`] where rows are few.

use std::ops::Range;

#[cfg(doc)]
use crate::acts::IntBits;
use crate::acts::{ACT_BLOCK, ActView, ActViewMut, IntScale, KeptAs};
use crate::aligned::LINE;
use crate::kernels::format::{Codes, Format, Panel, with_int_format};
use crate::kernels::matmul::{Ahead, Output, finish, unroll_rows};
use crate::lanes::{Lanes, TINY, WIDTH, load_first};
use crate::math::{ROUNDER, run_len};
use crate::packed::CodedView;

/// Groups of a block at most, each with scales of its own.
pub(crate) const MAX_GROUPS: usize = 2;

/// Computes outputs `panels` of `rows`.
///
/// # Safety
/// As [`Lanes`]; `panels` lies within the weight, `rows` within `acts`, whose integers are half
/// words and have the weight's width, and `out` has room for their outputs.
#[inline(always)]
pub(crate) unsafe fn matmul<V: Lanes>(
    w: CodedView,
    panels: Range<usize>,
    acts: ActView,
    rows: Range<usize>,
    out: Output,
) {
    // SAFETY: forwarded contract; the layout names the format the weight was packed with.
    unsafe { with_int_format!(w.layout, all_panels::<V>(w, panels, acts, rows, out)) }
}

/// # Safety
/// As [`matmul`].
#[inline(always)]
unsafe fn all_panels<V: Lanes, F: Format>(
    w: CodedView,
    panels: Range<usize>,
    acts: ActView,
    rows: Range<usize>,
    out: Output,
) {
    for panel in panels {
        let mut row = rows.start;
        // SAFETY: the caller vouches for panels and rows.
        unsafe {
            while V::ROWS == 8 && row + 8 <= rows.end {
                some_rows::<V, F, 8>(w, panel, acts, row, out);
                row += 8;
            }
            while row + 2 <= rows.end {
                some_rows::<V, F, 2>(w, panel, acts, row, out);
                row += 2;
            }
            if row < rows.end {
                some_rows::<V, F, 1>(w, panel, acts, row, out);
            }
        }
    }
}

/// A row's outputs of a panel, those past the matrix too.
///
/// # Safety
/// As [`matmul`], for this panel and row.
#[inline(always)]
pub(crate) unsafe fn outputs_of<V: Lanes>(
    w: CodedView,
    panel: usize,
    acts: ActView,
    row: usize,
) -> [f32; WIDTH] {
    let mut outputs = [0.0; WIDTH];
    // SAFETY: forwarded contract.
    unsafe {
        let [sum] = with_int_format!(w.layout, one_row::<V>(w, panel, acts, row));
        sum.store(outputs.as_mut_ptr());
    }
    outputs
}

/// # Safety
/// As [`sums_of`].
#[inline(always)]
unsafe fn one_row<V: Lanes, F: Format>(
    w: CodedView,
    panel: usize,
    acts: ActView,
    row: usize,
) -> [V; 1] {
    // SAFETY: forwarded contract.
    unsafe { sums_of::<V, F, 1>(w, panel, acts, row) }
}

/// Rows `row..row + R` of a panel.
///
/// # Safety
/// As [`matmul`], for these rows.
#[inline(always)]
unsafe fn some_rows<V: Lanes, F: Format, const R: usize>(
    w: CodedView,
    panel: usize,
    acts: ActView,
    row: usize,
    out: Output,
) {
    // SAFETY: forwarded contract.
    unsafe {
        let sums = sums_of::<V, F, R>(w, panel, acts, row);
        let n_outputs = WIDTH.min(w.n_rows - panel * WIDTH);
        unroll_rows!(R, r, {
            finish(sums[r], out, (row + r) * out.stride + panel * WIDTH, n_outputs);
        });
    }
}

/// The sums of [`some_rows`].
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn sums_of<V: Lanes, F: Format, const R: usize>(
    w: CodedView,
    panel: usize,
    acts: ActView,
    row: usize,
) -> [V; R] {
    // SAFETY: the panel's blocks and the rows' activations lie within their buffers, as the caller
    // vouches.
    unsafe {
        let parts = w.panel(panel);
        let (mut sums, mut ahead) = ([V::splat(0.0); R], Ahead::new(parts));
        for block in 0..w.panel.n_blocks {
            ahead.ask::<V, F>();
            // Asked for before the codes: nothing that comes after those has to wait.
            let (first, last) = (block * F::GROUPS, (block + 1) * F::GROUPS - 1);
            let scales = [Scales::<V>::load::<F>(parts, first), Scales::load::<F>(parts, last)];
            let dots = dots_of::<V, F, R>(parts, block, acts.int_words(row, block));
            for (group, (dots, scales)) in dots.into_iter().zip(scales).enumerate().take(F::GROUPS)
            {
                unroll_rows!(R, r, {
                    let x = match F::GROUPS {
                        1 => acts.int_scale(row + r, block),
                        _ => acts.half_scale(row + r, block, group),
                    };
                    sums[r] = scales.add_dot::<F>(V::from_words(dots[r]), x, sums[r]);
                });
            }
        }
        unroll_rows!(R, r, {
            sums[r] = acts.scaled(sums[r], row + r);
        });
        sums
    }
}

/// The products of a block's codes with `R` rows' integers, of each group.
///
/// # Safety
/// As [`some_rows`].
#[inline(always)]
unsafe fn dots_of<V: Lanes, F: Format, const R: usize>(
    parts: Panel,
    block: usize,
    xs: *const i16,
) -> [[V::Words; R]; MAX_GROUPS] {
    // SAFETY: a block has as many vectors of codes as its format says, and 32 columns.
    unsafe {
        // Two variables: what is an array of arrays may be kept in memory.
        let (mut first, mut second) = ([V::splat_words(0); R], [V::splat_words(0); R]);
        let codes = parts.codes.add(block * F::CODE_BYTES);
        for vector in 0..F::CODE_BYTES / LINE {
            let words = V::load_words(codes.add(vector * LINE));
            // Where codes have four bits, the high ones belong to the second half of the columns.
            let pairs = match F::CODES {
                Codes::Nibbles => [
                    (V::halves::<0>(words, 15), 0),
                    (V::halves::<8>(words, 15), 2),
                    (V::halves::<4>(words, 15), ACT_BLOCK / 2),
                    (V::halves::<12>(words, 15), ACT_BLOCK / 2 + 2),
                ],
                _ => {
                    let first = V::halves::<0>(words, 255);
                    [(first, 0), (V::halves::<8>(words, 255), 2), (first, 0), (first, 0)]
                }
            };
            let n_pairs = if matches!(F::CODES, Codes::Nibbles) { 4 } else { 2 };
            for (nth, (halves, column)) in pairs.into_iter().enumerate().take(n_pairs) {
                let x = xs.add(4 * vector + column);
                let is_second = match (F::GROUPS, F::CODES) {
                    (1, _) => false,
                    (_, Codes::Nibbles) => nth >= 2,
                    _ => 4 * vector >= ACT_BLOCK / 2,
                };
                let dots = if is_second { &mut second } else { &mut first };
                unroll_rows!(R, r, {
                    let pair = x.add(r * ACT_BLOCK).cast::<[i16; 2]>().read_unaligned();
                    dots[r] = V::add_products(dots[r], halves, pair);
                });
            }
        }
        [first, second]
    }
}

/// The sixteen outputs' scales of a group, and their minima where they have any.
#[derive(Clone, Copy)]
pub(crate) struct Scales<V> {
    pub(crate) scale: V,
    pub(crate) min: V,
}

impl<V: Lanes> Scales<V> {
    /// # Safety
    /// As [`Lanes`]; `group` lies within the panel.
    #[inline(always)]
    pub(crate) unsafe fn load<F: Format>(parts: Panel, group: usize) -> Scales<V> {
        // SAFETY: forwarded contract.
        unsafe {
            let (scale, min) = parts.scale_and_min::<V, F>(group);
            Scales { scale, min }
        }
    }

    /// `sum` with a group's products, as floats, added to it.
    ///
    /// # Safety
    /// As [`Lanes`].
    #[inline(always)]
    pub(crate) unsafe fn add_dot<F: Format>(self, dot: V, x: IntScale, sum: V) -> V {
        // SAFETY: register operations only.
        unsafe {
            if F::MIN {
                return self.add_scaled::<F>(dot.mul(self.scale), x, sum);
            }
            let centre = V::splat(-f32::from(F::CENTRE));
            self.add_centred(centre.mul_add(V::splat(x.sum), dot), x, sum)
        }
    }

    /// The same for codes whose centre was taken off, and no minimum.
    ///
    /// # Safety
    /// As [`Lanes`].
    #[inline(always)]
    pub(crate) unsafe fn add_centred(self, dot: V, x: IntScale, sum: V) -> V {
        // SAFETY: register operations only.
        unsafe { dot.mul(self.scale).mul_add(V::splat(x.unit), sum) }
    }

    /// The same for products that were scaled; what minima add follows.
    ///
    /// # Safety
    /// As [`Lanes`].
    #[inline(always)]
    pub(crate) unsafe fn add_scaled<F: Format>(self, scaled: V, x: IntScale, sum: V) -> V {
        // SAFETY: register operations only.
        unsafe {
            let sum = scaled.mul_add(V::splat(x.unit), sum);
            if F::MIN { self.min.mul_add(V::splat(x.total), sum) } else { sum }
        }
    }
}

/// Rounds `rows` of `acts` from rows at `x` to integers, as half words or bytes.
///
/// # Safety
/// As [`Lanes`]; `x` holds the rows, which lie within `acts`.
#[inline(always)]
pub(crate) unsafe fn put_ints<V: Lanes>(x: *const f32, acts: ActViewMut, rows: Range<usize>) {
    for row in rows.clone() {
        for block in 0..acts.n_blocks {
            // SAFETY: blocks lie within the buffers.
            unsafe {
                let x = x.add((row - rows.start) * acts.n_cols);
                put_block::<V>(x, acts, row, block);
            }
        }
    }
}

/// Rounds a block of a row at `x`.
///
/// # Safety
/// As [`put_ints`].
#[inline(always)]
pub(crate) unsafe fn put_block<V: Lanes>(
    x: *const f32,
    acts: ActViewMut,
    row: usize,
    block: usize,
) {
    // SAFETY: forwarded contract.
    unsafe {
        let [low, high] = round_block::<V>(x, acts, row, block);
        if matches!(acts.forms.ints, Some((_, KeptAs::Bytes))) {
            let to = acts.int_bytes(row, block);
            low.store_i8(to);
            high.store_i8(to.add(WIDTH));
        } else {
            let to = acts.int_words(row, block);
            low.store_i16(to);
            high.store_i16(to.add(WIDTH));
            if matches!(acts.forms.ints, Some((_, KeptAs::CrossedWords))) {
                cross(to);
            }
        }
    }
}

/// Lets the middle two of every four of a block's half words change places.
///
/// # Safety
/// They may be read and written.
#[inline(always)]
unsafe fn cross(words: *mut i16) {
    for four in 0..ACT_BLOCK / 4 {
        // SAFETY: the caller vouches for the block.
        unsafe {
            let four = words.add(4 * four).cast::<[i16; 4]>();
            let [a, b, c, d] = four.read_unaligned();
            four.write_unaligned([a, c, b, d]);
        }
    }
}

/// The integers of 32 columns, whose scale is noted in `acts`.
///
/// # Safety
/// As [`Lanes`]; `x` is a row of which `block` is a part, and which lies within `acts`.
#[inline(always)]
pub(crate) unsafe fn round_block<V: Lanes>(
    x: *const f32,
    acts: ActViewMut,
    row: usize,
    block: usize,
) -> [V; 2] {
    let (n, at) = (acts.n_cols, block * ACT_BLOCK);
    // SAFETY: reads stay below `n`.
    unsafe {
        let x = x.wrapping_add(at);
        let low = load_first::<V>(x, run_len(at, n), 0.0);
        let rest = (n - at).saturating_sub(WIDTH).min(WIDTH);
        let high = load_first::<V>(x.wrapping_add(WIDTH.min(n - at)), rest, 0.0);
        let [a, b] = [low.max_magnitude(), high.max_magnitude()];
        // What is not a number stays so: its unit is none either.
        let largest = if a > b || a.is_nan() { a } else { b };
        let (is_tiny, most) = (largest < TINY, acts.largest_int);
        let (per_unit, unit) = if is_tiny { (0.0, 0.0) } else { (most / largest, largest / most) };
        let (per_unit, rounder) = (V::splat(per_unit), V::splat(ROUNDER));
        let low = low.mul(per_unit).add(rounder).sub(rounder);
        let high = high.mul(per_unit).add(rounder).sub(rounder);
        let sum = low.add(high).sum_whole();
        acts.put_int_scale(row, block, IntScale { unit, sum, total: sum * unit });
        if acts.forms.halves {
            acts.put_half_sums(row, block, [low.sum_whole(), high.sum_whole()]);
        }
        [low, high]
    }
}
