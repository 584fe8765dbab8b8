//! Norms ([`super::rows`]) and integers ([`super::matmul_int`]) of several rows at once with
//! AVX-512, to the bit.
//!
//! A norm adds up a row's squares; integers need the largest of 32 columns and their sum. Alone, a
//! row is a chain of shuffles for each. Here sixteen rows are folded together, and one division
//! serves all of them: the scales of a tile's rows lie side by side.

use std::arch::x86_64::*;
use std::ops::Range;

use crate::acts::{ACT_BLOCK, ActForms, ActViewMut, KeptAs, TILE_ROWS, inverse_root};
use crate::kernels::matmul_int;
use crate::kernels::rows::{Norm, RowsToActs};
use crate::lanes::avx512::Avx512Lanes;
use crate::lanes::{TINY, WIDTH, to_array};
use crate::math::run_len;

/// Rows below which taking them one by one costs less.
const FEW: usize = 2;

/// Sixteen rows at once.
pub(crate) struct Together;

impl RowsToActs for Together {
    const ROWS: usize = TILE_ROWS;

    #[inline(always)]
    unsafe fn put_ints(x: *const f32, acts: ActViewMut, rows: Range<usize>) {
        for part in parts_of_tiles(rows.clone(), acts.tile_rows) {
            // SAFETY: forwarded contract, for some of the rows, which are of one tile.
            unsafe {
                let x = x.add((part.start - rows.start) * acts.n_cols);
                for block in 0..acts.n_blocks {
                    let floats = Floats::of_block(x, acts.n_cols, block);
                    round_rows(floats, acts, part.clone(), block);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn norm_ints(norm: Norm, x: *const f32, acts: ActViewMut, rows: Range<usize>) -> bool {
        let ActForms { exact, floats, tiles, .. } = acts.forms;
        if exact || floats || tiles || !acts.forms.has_whole_ints() || rows.len() < FEW {
            return false;
        }
        for part in parts_of_tiles(rows.clone(), acts.tile_rows) {
            // SAFETY: forwarded contract, for some of the rows, which are of one tile.
            unsafe {
                let x = x.add((part.start - rows.start) * acts.n_cols);
                let mut squares = _mm512_setzero_ps();
                for block in 0..acts.n_blocks {
                    let floats = Floats::of_block(x, acts.n_cols, block);
                    let mut normed = [[0.0; ACT_BLOCK]; WIDTH];
                    let weight = norm.weight.wrapping_add(block * ACT_BLOCK);
                    let [low, high] = norm_rows(floats, weight, &mut normed[..part.len()]);
                    squares = _mm512_add_ps(_mm512_add_ps(squares, low), high);
                    let at = normed.as_ptr().cast();
                    let floats = Floats { at, stride: ACT_BLOCK, columns: [u16::MAX; 2] };
                    round_rows(floats, acts, part.clone(), block);
                }
                for (row, squares) in part.zip(to_array(Avx512Lanes(squares))) {
                    *acts.factors.add(row) = inverse_root(squares, acts.n_cols, norm.eps);
                }
            }
        }
        true
    }
}

/// Rows cut where a tile ends.
#[inline(always)]
fn parts_of_tiles(rows: Range<usize>, tile_rows: usize) -> impl Iterator<Item = Range<usize>> {
    let tiles = rows.start / tile_rows..rows.end.div_ceil(tile_rows);
    tiles.map(move |tile| rows.start.max(tile * tile_rows)..rows.end.min((tile + 1) * tile_rows))
}

/// A bit for each of the first `n` of sixteen.
#[inline(always)]
pub(crate) fn first_of(n: usize) -> u16 {
    if n >= WIDTH { u16::MAX } else { (1 << n) - 1 }
}

/// 32 columns of some rows.
#[derive(Clone, Copy)]
pub(crate) struct Floats {
    pub(crate) at: *const f32,
    /// Elements from one row to the next.
    pub(crate) stride: usize,
    /// Which of the sixteen columns there are, and of the next sixteen.
    pub(crate) columns: [u16; 2],
}

impl Floats {
    /// A block of rows of `n_cols` columns at `x`.
    #[inline(always)]
    fn of_block(x: *const f32, n_cols: usize, block: usize) -> Floats {
        let first = block * ACT_BLOCK;
        let columns = |from: usize| first_of(run_len(from.min(n_cols), n_cols));
        let columns = [columns(first), columns(first + WIDTH)];
        Floats { at: x.wrapping_add(first), stride: n_cols, columns }
    }

    /// # Safety
    /// The row is there; the machine has AVX-512.
    #[inline(always)]
    unsafe fn row(self, row: usize) -> [__m512; 2] {
        // SAFETY: columns that are not there are not read.
        unsafe {
            let at = self.at.wrapping_add(row * self.stride);
            let [low, high] = self.columns;
            let high = _mm512_maskz_loadu_ps(high, at.wrapping_add(WIDTH));
            [_mm512_maskz_loadu_ps(low, at), high]
        }
    }
}

/// Multiplies rows with a norm's weight; returns the sums of their squares, of the first sixteen
/// columns and of the others.
///
/// # Safety
/// There is a row of `floats` for each of `normed`, and a weight for each of their columns; the
/// machine has AVX-512.
#[inline(always)]
unsafe fn norm_rows(
    floats: Floats,
    weight: *const f32,
    normed: &mut [[f32; ACT_BLOCK]],
) -> [__m512; 2] {
    // SAFETY: forwarded contract.
    unsafe {
        let weights = Floats { at: weight, stride: 0, ..floats }.row(0);
        let (mut low, mut high) =
            ([_mm512_setzero_si512(); WIDTH], [_mm512_setzero_si512(); WIDTH]);
        for (row, normed) in normed.iter_mut().take(WIDTH).enumerate() {
            let x = floats.row(row);
            _mm512_storeu_ps(normed.as_mut_ptr(), _mm512_mul_ps(x[0], weights[0]));
            _mm512_storeu_ps(normed[WIDTH..].as_mut_ptr(), _mm512_mul_ps(x[1], weights[1]));
            low[row] = _mm512_castps_si512(_mm512_mul_ps(x[0], x[0]));
            high[row] = _mm512_castps_si512(_mm512_mul_ps(x[1], x[1]));
        }
        let (low, high) = (fold::<FloatSum>(low), fold::<FloatSum>(high));
        [_mm512_castsi512_ps(low), _mm512_castsi512_ps(high)]
    }
}

/// Rounds `block` of `rows`, one to sixteen of one tile, and notes their scales.
///
/// # Safety
/// `floats` are of those rows, which lie within `acts`; the machine has AVX-512.
#[inline(always)]
pub(crate) unsafe fn round_rows(
    floats: Floats,
    acts: ActViewMut,
    rows: Range<usize>,
    block: usize,
) {
    let n = rows.len();
    // SAFETY: forwarded contract; a row of which `floats` are a block would begin that much before.
    unsafe {
        if n < FEW {
            let x = floats.at.wrapping_sub(block * ACT_BLOCK);
            return matmul_int::put_block::<Avx512Lanes>(x, acts, rows.start, block);
        }
        let mut all = [_mm512_setzero_si512(); WIDTH];
        for (row, largest) in all.iter_mut().take(n).enumerate() {
            let [low, high] = floats.row(row);
            *largest = Largest::of(magnitudes(low), magnitudes(high));
        }
        // Of magnitudes, larger bits are larger ones, and what is not a number is the largest.
        let largest = _mm512_castsi512_ps(fold::<Largest>(all));
        let is_not_tiny = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(largest, _mm512_set1_ps(TINY));
        let most = _mm512_set1_ps(acts.largest_int);
        let unit = _mm512_maskz_div_ps(is_not_tiny, largest, most);
        let per_unit = to_array(Avx512Lanes(_mm512_maskz_div_ps(is_not_tiny, most, largest)));
        let are_bytes = matches!(acts.forms.ints, Some((_, KeptAs::Bytes)));
        let (bytes, words) = (acts.int_bytes(rows.start, block), acts.int_words(rows.start, block));
        for (row, sum) in all.iter_mut().take(n).enumerate() {
            let [low, high] = ints_of(floats.row(row), per_unit[row]);
            if are_bytes {
                let to = bytes.add(row * ACT_BLOCK);
                _mm_storeu_si128(to.cast(), _mm512_cvtepi32_epi8(low));
                _mm_storeu_si128(to.add(WIDTH).cast(), _mm512_cvtepi32_epi8(high));
            } else {
                let to = words.add(row * ACT_BLOCK);
                _mm256_storeu_si256(to.cast(), _mm512_cvtepi32_epi16(low));
                _mm256_storeu_si256(to.add(WIDTH).cast(), _mm512_cvtepi32_epi16(high));
            }
            *sum = _mm512_add_epi32(low, high);
        }
        let sum = fold::<Sum>(all);
        if acts.forms.halves {
            let mut lows = [_mm512_setzero_si512(); WIDTH];
            for (row, low) in lows.iter_mut().take(n).enumerate() {
                [*low, _] = ints_of(floats.row(row), per_unit[row]);
            }
            let low = fold::<Sum>(lows);
            let sums = [low, _mm512_sub_epi32(sum, low)].map(|sum| _mm512_cvtepi32_ps(sum));
            put_fields(acts, acts.half_sums, rows.clone(), block, sums);
        }
        let sum = _mm512_cvtepi32_ps(sum);
        let fields = [unit, sum, _mm512_mul_ps(sum, unit)];
        put_fields(acts, acts.int_scales, rows, block, fields);
    }
}

/// The bits of floats without their signs.
///
/// # Safety
/// The machine has AVX-512.
#[inline(always)]
unsafe fn magnitudes(floats: __m512) -> __m512i {
    // SAFETY: register operations only.
    unsafe { _mm512_castps_si512(_mm512_abs_ps(floats)) }
}

/// # Safety
/// The machine has AVX-512.
#[inline(always)]
unsafe fn ints_of([low, high]: [__m512; 2], per_unit: f32) -> [__m512i; 2] {
    // SAFETY: register operations only.
    unsafe {
        let per_unit = _mm512_set1_ps(per_unit);
        let (low, high) = (_mm512_mul_ps(low, per_unit), _mm512_mul_ps(high, per_unit));
        [_mm512_cvtps_epi32(low), _mm512_cvtps_epi32(high)]
    }
}

/// Notes the fields of a block, as rows of a tile have them, at its place in `to`.
///
/// # Safety
/// As [`round_rows`]; `to` is of `acts`, and has as many fields.
#[inline(always)]
unsafe fn put_fields<const N: usize>(
    acts: ActViewMut,
    to: *mut f32,
    rows: Range<usize>,
    block: usize,
    fields: [__m512; N],
) {
    let tile = (rows.start / acts.tile_rows * acts.n_blocks + block) * N;
    let first = tile * acts.tile_rows + rows.start % acts.tile_rows;
    for (nth, field) in fields.into_iter().enumerate() {
        // SAFETY: the caller vouches for the rows; no others are written.
        unsafe {
            let to = to.add(first + nth * acts.tile_rows);
            _mm512_mask_storeu_ps(to, first_of(rows.len()), field);
        }
    }
}

/// What two halves of a row become.
pub(crate) trait Fold {
    /// # Safety
    /// The machine has AVX-512.
    unsafe fn of(a: __m512i, b: __m512i) -> __m512i;
}

struct Largest;

impl Fold for Largest {
    #[inline(always)]
    unsafe fn of(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: a register operation.
        unsafe { _mm512_max_epu32(a, b) }
    }
}

struct Sum;

impl Fold for Sum {
    #[inline(always)]
    unsafe fn of(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: a register operation.
        unsafe { _mm512_add_epi32(a, b) }
    }
}

struct FloatSum;

impl Fold for FloatSum {
    #[inline(always)]
    unsafe fn of(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: register operations only.
        unsafe {
            let (a, b) = (_mm512_castsi512_ps(a), _mm512_castsi512_ps(b));
            _mm512_castps_si512(_mm512_add_ps(a, b))
        }
    }
}

/// Folds each of sixteen vectors to one element, which becomes an element of the result. Halves of
/// a vector meet first, then quarters, and so on, as in [`crate::lanes::sum_lanes`].
///
/// # Safety
/// The machine has AVX-512.
#[inline(always)]
pub(crate) unsafe fn fold<F: Fold>(rows: [__m512i; WIDTH]) -> __m512i {
    // SAFETY: register operations only.
    unsafe {
        let mut quarters = [_mm512_setzero_si512(); 4];
        for (j, quarter) in quarters.iter_mut().enumerate() {
            let (a, b, c, d) = (rows[j], rows[j + 4], rows[j + 8], rows[j + 12]);
            let (ab, cd) = (fold_lanes::<F, 0x44, 0xee>(a, b), fold_lanes::<F, 0x44, 0xee>(c, d));
            *quarter = fold_lanes::<F, 0x88, 0xdd>(ab, cd);
        }
        let [x, y, z, w] = quarters;
        let (xy, zw) = (fold_pairs::<F>(x, y), fold_pairs::<F>(z, w));
        let (xy, zw) = (_mm512_castsi512_ps(xy), _mm512_castsi512_ps(zw));
        let even = _mm512_castps_si512(_mm512_shuffle_ps::<0x88>(xy, zw));
        F::of(even, _mm512_castps_si512(_mm512_shuffle_ps::<0xdd>(xy, zw)))
    }
}

/// # Safety
/// As [`fold`].
#[inline(always)]
unsafe fn fold_lanes<F: Fold, const LOW: i32, const HIGH: i32>(a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: register operations only.
    unsafe { F::of(_mm512_shuffle_i32x4::<LOW>(a, b), _mm512_shuffle_i32x4::<HIGH>(a, b)) }
}

/// # Safety
/// As [`fold`].
#[inline(always)]
unsafe fn fold_pairs<F: Fold>(a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: register operations only.
    unsafe { F::of(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b)) }
}
