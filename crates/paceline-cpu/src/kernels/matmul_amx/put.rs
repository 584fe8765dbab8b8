//! What goes into tiles and what comes out of them: sums lie there with outputs as rows and the
//! batch's rows as columns, activations with pairs of columns as rows.
//!
//! None of it knows the weights' format, so it is compiled once and not for each.

use std::arch::x86_64::*;
use std::ops::Range;

use super::SUMS;
use crate::acts::{ACT_BLOCK, ActView, ActViewMut, TILE_ROWS};
use crate::kernels::matmul::{Output, finish};
use crate::kernels::rows::put_acts;
use crate::lanes::avx512::Avx512Lanes;
use crate::lanes::{Lanes, TINY, WIDTH, load_first};
use crate::math::{gate_of, run_len};
use crate::packed::CodedView;

/// Rows below which taking them one by one costs less than turning sixteen.
const FEW: usize = 4;

/// Where gated sums go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GateSink {
    pub(crate) acts: ActViewMut,
    pub(crate) gelu: bool,
}

/// The largest outputs of a tile's rows so far.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct TileTops {
    pub(crate) values: [f32; TILE_ROWS],
    pub(crate) places: [u32; TILE_ROWS],
    /// Zero, unless an output was not a number, or infinite.
    pub(crate) nothing: [f32; TILE_ROWS],
}

impl TileTops {
    pub(crate) const NONE: TileTops = TileTops {
        values: [f32::NEG_INFINITY; TILE_ROWS],
        places: [0; TILE_ROWS],
        nothing: [0.0; TILE_ROWS],
    };

    /// Looks through some outputs of a row, of which `first` is the place of the first; none of
    /// those before was after them.
    pub(crate) fn note(&mut self, row: usize, first: usize, outputs: &[f32]) {
        for (i, &output) in outputs.iter().enumerate() {
            if output > self.values[row] {
                (self.values[row], self.places[row]) = (output, (first + i) as u32);
            }
            if output.is_nan() || output == f32::INFINITY {
                self.nothing[row] = f32::NAN;
            }
        }
    }
}

/// Where the largest outputs are noted: those of the first row's tile, and of those after it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TopSink {
    pub(crate) tops: *mut TileTops,
}

/// Tiles of a panel's sums in memory: sixteen outputs, each with its rows side by side.
#[derive(Clone, Copy)]
pub(super) struct Sums {
    pub(super) at: *mut f32,
    /// Floats from one output to the next: a whole tile's rows, or just the one there is.
    pub(super) step: usize,
}

impl Sums {
    pub(super) fn whole(at: *mut f32) -> Sums {
        Sums { at, step: WIDTH }
    }

    pub(super) fn tile(self, tile: usize) -> Sums {
        Sums { at: self.at.wrapping_add(tile * SUMS), ..self }
    }
}

/// What a panel's sums are of. Small, and no references: what is pointed to is read again after
/// every tile instruction.
#[derive(Clone)]
pub(super) struct Product {
    pub(super) panel: usize,
    /// Outputs of the panel.
    n_outputs: usize,
    pub(super) rows: Range<usize>,
    /// What each row's sums are multiplied with, from row 0 on.
    factors: *const f32,
}

impl Product {
    pub(super) const NONE: Product =
        Product { panel: 0, n_outputs: 0, rows: 0..0, factors: std::ptr::null() };

    #[inline(always)]
    pub(super) fn new(w: CodedView, panel: usize, acts: ActView, rows: Range<usize>) -> Product {
        let n_outputs = WIDTH.min(w.n_rows - panel * WIDTH);
        Product { panel, n_outputs, rows, factors: acts.factors }
    }

    pub(super) fn n_tiles(&self) -> usize {
        self.rows.len().div_ceil(TILE_ROWS)
    }

    /// The rows of the `nth` tile.
    pub(super) fn rows_of(&self, nth: usize) -> Range<usize> {
        let first = self.rows.start + nth * TILE_ROWS;
        first..self.rows.end.min(first + TILE_ROWS)
    }

    /// The factors of the sixteen rows from `first` on.
    ///
    /// # Safety
    /// They lie within the activations' room; the machine has AVX-512.
    #[inline(always)]
    pub(super) unsafe fn factors_from(&self, first: usize) -> __m512 {
        // SAFETY: forwarded contract.
        unsafe { _mm512_load_ps(self.factors.add(first)) }
    }

    /// A row's factor, sixteen times.
    ///
    /// # Safety
    /// As [`factors_from`](Self::factors_from).
    #[inline(always)]
    unsafe fn factor(&self, row: usize) -> __m512 {
        // SAFETY: forwarded contract.
        unsafe { _mm512_set1_ps(*self.factors.add(row)) }
    }
}

/// Writes a panel's outputs of the `nth` tile of rows.
///
/// # Safety
/// `sums` holds the tile; the rows lie within the output; the machine has AVX-512.
#[inline(always)]
pub(super) unsafe fn rows(sums: Sums, product: &Product, nth: usize, out: Output) {
    let Product { panel, n_outputs, factors, .. } = *product;
    let Range { start: first, end } = product.rows_of(nth);
    let count = end - first;
    // SAFETY: the caller vouches for the sums and the output's rows.
    unsafe {
        let sums = sums.tile(nth);
        let at = first * out.stride + panel * WIDTH;
        if count == TILE_ROWS && n_outputs == WIDTH {
            put_tile_of_rows(sums.at, factors.add(first), out.data.add(at), out);
        } else if count < FEW {
            for row in 0..count {
                let sum = _mm512_mul_ps(column(sums, row), product.factor(first + row));
                finish(Avx512Lanes(sum), out, at + row * out.stride, n_outputs);
            }
        } else {
            let columns = transposed(sums.at);
            for (row, sum) in columns.into_iter().enumerate().take(count) {
                let sum = _mm512_mul_ps(sum, product.factor(first + row));
                finish(Avx512Lanes(sum), out, at + row * out.stride, n_outputs);
            }
        }
    }
}

/// Notes which of a panel's outputs are larger than those before. Sums lie with rows side by side,
/// so that all sixteen rows of a tile are compared at once.
///
/// # Safety
/// As [`rows`], for a whole tile; the sink has room for it.
#[inline(always)]
pub(super) unsafe fn tops(sums: Sums, product: &Product, nth: usize, to: TopSink) {
    let first_output = product.panel * WIDTH;
    let first = product.rows_of(nth).start;
    // SAFETY: the caller vouches for the sums and the sink.
    unsafe {
        let (sums, to) = (sums.tile(nth).at, to.tops.add(first / TILE_ROWS));
        let factors = product.factors_from(first);
        let mut values = _mm512_load_ps((*to).values.as_ptr());
        let mut places = _mm512_load_si512((*to).places.as_ptr().cast());
        let mut nothing = _mm512_load_ps((*to).nothing.as_ptr());
        for output in 0..product.n_outputs {
            let sum = _mm512_mul_ps(_mm512_load_ps(sums.add(output * WIDTH)), factors);
            let is_larger = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(sum, values);
            let place = _mm512_set1_epi32((first_output + output) as i32);
            values = _mm512_mask_mov_ps(values, is_larger, sum);
            places = _mm512_mask_mov_epi32(places, is_larger, place);
            // Negative infinity will do, as it does for [`crate::kernels::reduce::is_sound`].
            let sum = _mm512_max_ps(_mm512_set1_ps(-1.0), sum);
            nothing = _mm512_fmadd_ps(sum, _mm512_setzero_ps(), nothing);
        }
        _mm512_store_ps((*to).values.as_mut_ptr(), values);
        _mm512_store_si512((*to).places.as_mut_ptr().cast(), places);
        _mm512_store_ps((*to).nothing.as_mut_ptr(), nothing);
    }
}

/// Writes sixteen outputs of sixteen rows.
///
/// # Safety
/// As [`rows`]; `factors` are the rows', `to` is where the first row's outputs go.
#[inline(always)]
unsafe fn put_tile_of_rows(sums: *const f32, factors: *const f32, to: *mut f32, out: Output) {
    // SAFETY: forwarded contract.
    unsafe {
        let columns = transposed(sums);
        if out.add {
            for (row, sum) in columns.into_iter().enumerate() {
                let to = to.add(row * out.stride);
                let sum = _mm512_mul_ps(sum, _mm512_set1_ps(*factors.add(row)));
                _mm512_storeu_ps(to, _mm512_add_ps(sum, _mm512_loadu_ps(to)));
            }
        } else {
            for (row, sum) in columns.into_iter().enumerate() {
                let sum = _mm512_mul_ps(sum, _mm512_set1_ps(*factors.add(row)));
                _mm512_storeu_ps(to.add(row * out.stride), sum);
            }
        }
    }
}

/// Writes sixteen activations of the `nth` tile of rows, half a tile of their block: the gate of
/// the first sums, times the second.
///
/// # Safety
/// Both sums hold the tile; rows and panel lie within the sink's activations, which are in tiles;
/// the machine has AVX-512.
#[inline(always)]
pub(super) unsafe fn gated(sums: [Sums; 2], product: &Product, nth: usize, to: GateSink) {
    let rows = product.rows_of(nth);
    let sums = [sums[0].tile(nth), sums[1].tile(nth)];
    // SAFETY: forwarded contract.
    unsafe {
        let brains = half_tile(to.acts, product.panel, rows.start);
        if rows.len() < FEW {
            gate_few(sums, (product, rows), to, brains);
        } else {
            gate_tile(sums, product.factors_from(rows.start), to, brains);
        }
        fill_up(to.acts, product.panel, brains);
    }
}

/// Fills up columns with zeros to whole blocks, behind half a tile at `brains` that is the last.
///
/// # Safety
/// It is half a tile of `acts`.
#[inline(always)]
pub(super) unsafe fn fill_up(acts: ActViewMut, panel: usize, brains: *mut u16) {
    if (panel + 1) * WIDTH >= acts.n_cols && panel.is_multiple_of(2) {
        let n = WIDTH * acts.tile_rows;
        // SAFETY: the other half follows.
        unsafe { brains.add(n).write_bytes(0, n) };
    }
}

/// Where the activations of sixteen columns go, of the tile that has row `first`.
pub(super) fn half_tile(acts: ActViewMut, panel: usize, first: usize) -> *mut u16 {
    let tile = first / TILE_ROWS * acts.n_blocks * 2 + panel;
    acts.brains.wrapping_add(tile * WIDTH * acts.tile_rows)
}

/// Sixteen rows at once, two columns at a time.
///
/// # Safety
/// As [`gated`], for one tile.
#[inline(always)]
unsafe fn gate_tile([gate, up]: [Sums; 2], factors: __m512, to: GateSink, brains: *mut u16) {
    for pair in 0..WIDTH / 2 {
        // SAFETY: forwarded contract.
        unsafe {
            let mut both = [_mm512_setzero_ps(); 2];
            for (nth, value) in both.iter_mut().enumerate() {
                let at = (2 * pair + nth) * WIDTH;
                let gate = _mm512_mul_ps(_mm512_load_ps(gate.at.add(at)), factors);
                let up = _mm512_mul_ps(_mm512_load_ps(up.at.add(at)), factors);
                *value = activation(gate, up, to.gelu).0;
            }
            put_pair(rounded_pair(both), brains, pair, to.acts.tile_rows);
        }
    }
}

/// Two columns of sixteen rows side by side, as [`Lanes::round_bf16`] has it.
///
/// # Safety
/// The machine has AVX-512.
#[inline(always)]
pub(super) unsafe fn rounded_pair(columns: [__m512; 2]) -> __m512i {
    // SAFETY: forwarded contract.
    unsafe {
        let half = _mm512_set1_epi32(0x8000);
        let even = _mm512_add_epi32(_mm512_castps_si512(columns[0]), half);
        let odd = _mm512_add_epi32(_mm512_castps_si512(columns[1]), half);
        let pairs = _mm512_mask_blend_epi16(0xaaaa_aaaa, _mm512_srli_epi32::<16>(even), odd);
        // Compared without their signs, which leave on the left.
        let tiny = _mm512_set1_epi16((TINY.to_bits() >> 15) as i16);
        let large = _mm512_cmpge_epu16_mask(_mm512_add_epi16(pairs, pairs), tiny);
        _mm512_maskz_mov_epi16(large, pairs)
    }
}

/// Row by row, sixteen columns at a time.
///
/// # Safety
/// As [`gated`], for some rows of one tile.
#[inline(always)]
unsafe fn gate_few(
    sums: [Sums; 2],
    (product, rows): (&Product, Range<usize>),
    to: GateSink,
    brains: *mut u16,
) {
    for row in 0..rows.len() {
        // SAFETY: forwarded contract.
        unsafe {
            let factor = product.factor(rows.start + row);
            let gate = _mm512_mul_ps(column(sums[0], row), factor);
            let up = _mm512_mul_ps(column(sums[1], row), factor);
            let columns = activation(gate, up, to.gelu).round_bf16();
            let mut pairs = [0u32; WIDTH / 2];
            columns.store_bf16(pairs.as_mut_ptr().cast());
            let brains = brains.cast::<u32>().add(row);
            for (i, pair) in pairs.into_iter().enumerate() {
                *brains.add(i * to.acts.tile_rows) = pair;
            }
        }
    }
}

/// # Safety
/// The machine has AVX-512.
#[inline(always)]
unsafe fn activation(gate: __m512, up: __m512, gelu: bool) -> Avx512Lanes {
    // SAFETY: forwarded contract.
    unsafe { gate_of(Avx512Lanes(gate), gelu).mul(Avx512Lanes(up)) }
}

/// Fills in `rows` of `acts`, which start with a tile, from rows at `x`.
///
/// # Safety
/// As [`put_acts`]; the machine has AVX-512.
#[inline(always)]
pub(crate) unsafe fn put_tiles(x: *const f32, acts: ActViewMut, rows: Range<usize>) {
    let mut others = acts;
    for first in rows.clone().step_by(TILE_ROWS) {
        let count = TILE_ROWS.min(rows.end - first);
        others.forms.tiles = acts.forms.tiles && count < FEW;
        // SAFETY: forwarded contract.
        unsafe {
            let x = x.add((first - rows.start) * acts.n_cols);
            put_acts::<Avx512Lanes>(x, others, first..first + count);
            if acts.forms.tiles && count >= FEW {
                for block in 0..acts.n_blocks {
                    put_tile(x, acts, first / TILE_ROWS, count, block);
                }
            }
        }
    }
}

/// Rounds thirty-two columns of up to sixteen rows and turns them.
///
/// # Safety
/// As [`put_tiles`]; tile and block lie within `acts`.
#[inline(always)]
unsafe fn put_tile(x: *const f32, acts: ActViewMut, tile: usize, n_rows: usize, block: usize) {
    #[repr(align(64))]
    struct Pairs([[f32; WIDTH]; TILE_ROWS]);
    let mut pairs = Pairs([[0.0; WIDTH]; TILE_ROWS]);
    // SAFETY: reads stay below the rows' ends, writes within the tile.
    unsafe {
        for (row, to) in pairs.0.iter_mut().enumerate().take(n_rows) {
            let pair = pairs_of(x.add(row * acts.n_cols), acts.n_cols, block * ACT_BLOCK);
            _mm512_store_ps(to.as_mut_ptr(), _mm512_castsi512_ps(pair));
        }
        let to = acts.brains.add((tile * acts.n_blocks + block) * ACT_BLOCK * acts.tile_rows);
        for (pair, rows) in transposed(pairs.0.as_ptr().cast()).into_iter().enumerate() {
            put_pair(_mm512_castps_si512(rows), to, pair, acts.tile_rows);
        }
    }
}

/// Writes the `nth` pair of columns of a tile, of as many rows as it has room for.
///
/// # Safety
/// `to` is a tile of activations; the machine has AVX-512.
#[inline(always)]
pub(super) unsafe fn put_pair(rows: __m512i, to: *mut u16, nth: usize, tile_rows: usize) {
    // SAFETY: forwarded contract.
    unsafe {
        let to = to.add(nth * 2 * tile_rows).cast();
        match tile_rows {
            TILE_ROWS => _mm512_store_si512(to, rows),
            _ => _mm512_mask_storeu_epi32(to.cast(), (1 << tile_rows) - 1, rows),
        }
    }
}

/// Columns `at..at + 32` of a row of `n`, rounded, two by two.
///
/// # Safety
/// As [`put_tiles`]; `x` holds a row.
#[inline(always)]
unsafe fn pairs_of(x: *const f32, n: usize, at: usize) -> __m512i {
    // SAFETY: reads stay below `n`.
    unsafe {
        let low = load_first::<Avx512Lanes>(x.add(at), run_len(at, n), 0.0).round_bf16();
        let rest = (n - at).saturating_sub(WIDTH).min(WIDTH);
        let high = load_first::<Avx512Lanes>(x.add(at + WIDTH.min(n - at)), rest, 0.0).round_bf16();
        // A float's upper half is its bf16: every other half word of both.
        let upper = _mm512_load_si512(UPPER.0.as_ptr().cast());
        _mm512_permutex2var_epi16(_mm512_castps_si512(low.0), upper, _mm512_castps_si512(high.0))
    }
}

#[repr(align(64))]
struct Halves([u16; 32]);

static UPPER: Halves = Halves({
    let mut halves = [0; 32];
    let mut i = 0;
    while i < 32 {
        halves[i] = 2 * i as u16 + 1;
        i += 1;
    }
    halves
});

/// One row of the batch: a column of the sums.
///
/// # Safety
/// `sums` holds it; the machine has AVX-512.
#[inline(always)]
unsafe fn column(sums: Sums, column: usize) -> __m512 {
    // SAFETY: the indices stay within the sixteen outputs.
    unsafe {
        if sums.step == 1 {
            return _mm512_load_ps(sums.at);
        }
        let rows = _mm512_setr_epi32(
            0, 16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240,
        );
        _mm512_i32gather_ps::<4>(rows, sums.at.add(column))
    }
}

/// The columns of sixteen rows of sixteen.
///
/// # Safety
/// `sums` holds them; the machine has AVX-512.
#[inline(always)]
unsafe fn transposed(sums: *const f32) -> [__m512; 16] {
    // SAFETY: loads stay within the sixteen rows.
    unsafe {
        let mut quads = [[_mm512_setzero_ps(); 4]; 4];
        for (q, quad) in quads.iter_mut().enumerate() {
            // Of four rows, the quarter register `i` of quad `c` holds column `4 i + c`.
            let row = sums.add(q * 4 * WIDTH);
            let (a, b) = (_mm512_load_ps(row), _mm512_load_ps(row.add(WIDTH)));
            let (c, d) = (_mm512_load_ps(row.add(2 * WIDTH)), _mm512_load_ps(row.add(3 * WIDTH)));
            let (ab, cd) = (_mm512_unpacklo_ps(a, b), _mm512_unpacklo_ps(c, d));
            let (ab_high, cd_high) = (_mm512_unpackhi_ps(a, b), _mm512_unpackhi_ps(c, d));
            *quad = [
                _mm512_shuffle_ps::<0x44>(ab, cd),
                _mm512_shuffle_ps::<0xee>(ab, cd),
                _mm512_shuffle_ps::<0x44>(ab_high, cd_high),
                _mm512_shuffle_ps::<0xee>(ab_high, cd_high),
            ];
        }
        let mut columns = [_mm512_setzero_ps(); 16];
        for c in 0..4 {
            let low_top = _mm512_shuffle_f32x4::<0x44>(quads[0][c], quads[1][c]);
            let high_top = _mm512_shuffle_f32x4::<0xee>(quads[0][c], quads[1][c]);
            let low_end = _mm512_shuffle_f32x4::<0x44>(quads[2][c], quads[3][c]);
            let high_end = _mm512_shuffle_f32x4::<0xee>(quads[2][c], quads[3][c]);
            columns[c] = _mm512_shuffle_f32x4::<0x88>(low_top, low_end);
            columns[4 + c] = _mm512_shuffle_f32x4::<0xdd>(low_top, low_end);
            columns[8 + c] = _mm512_shuffle_f32x4::<0x88>(high_top, high_end);
            columns[12 + c] = _mm512_shuffle_f32x4::<0xdd>(high_top, high_end);
        }
        columns
    }
}
