//! The largest outputs of rows, most of whose work is done with activations of eight bits.
//!
//! Activations of twelve bits take twice the operations that bytes do. So products of bytes come
//! first. A product is linear: what its activations lose changes it by no more than the length of
//! the weights times the length of what is lost (Cauchy and Schwarz). So each panel's largest
//! output is known within bounds; those panels that may hold the row's are then multiplied with
//! all bits: some ten of thousands.

use std::arch::x86_64::*;
use std::ops::Range;

use super::sink::{Product, Sink, Sums};
use super::{ROWS, Vnni, multiply};
use crate::acts::{ACT_BLOCK, ActView, ActViewMut, IntScale, TILE_ROWS};
use crate::kernels::matmul_amx::TileTops;
use crate::kernels::matmul_int;
use crate::kernels::together::{Fold, first_of, fold};
use crate::lanes::WIDTH;
use crate::lanes::avx512::Avx512Lanes as V;
use crate::packed::{CodedView, is_plain_length};

/// Panels' largest outputs, as far as bytes tell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoughTops {
    /// The rows' activations in bytes.
    pub(crate) acts: ActView,
    /// Of each row, what to multiply the length of an output's weights with to know how far off
    /// the output is at most.
    pub(crate) reaches: *const f32,
    /// The longest weights of each panel.
    pub(crate) lengths: *const f32,
    /// `[tile of rows][panel][row]`: the panel's largest output.
    pub(crate) maxima: *mut f32,
    pub(crate) n_panels: usize,
}

// SAFETY: the pointers are used inside an op only, which holds the borrows they come from; threads
// write disjoint panels.
unsafe impl Send for RoughTops {}
// SAFETY: as above.
unsafe impl Sync for RoughTops {}

impl RoughTops {
    /// What a panel's largest outputs are for a tile's rows, and how far off at most.
    ///
    /// # Safety
    /// Both are there, and the machine has AVX-512.
    #[inline(always)]
    unsafe fn of(&self, tile: usize, panel: usize, maxima: __m512) -> Bounds {
        // SAFETY: forwarded contract.
        unsafe {
            let reach = _mm512_loadu_ps(self.reaches.add(tile * TILE_ROWS));
            let length = _mm512_set1_ps(*self.lengths.add(panel));
            Bounds {
                least: _mm512_fnmadd_ps(length, reach, maxima),
                most: _mm512_fmadd_ps(length, reach, maxima),
            }
        }
    }

    fn at(&self, tile: usize, panel: usize) -> *mut f32 {
        self.maxima.wrapping_add((tile * self.n_panels + panel) * TILE_ROWS)
    }
}

/// What a tile's rows' largest outputs of a panel are at least and at most.
struct Bounds {
    least: __m512,
    most: __m512,
}

/// Makes bytes of the first `n_rows` rows' integers of twelve bits, in the order in which weights
/// for half words lie, and each row's reach.
///
/// # Safety
/// Both have as many rows of the same width, tiles of the same size, and the forms they are said
/// to have; the machine has AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
pub(crate) unsafe fn round(
    acts: ActView,
    n_rows: usize,
    to: ActViewMut,
    reaches: &mut [f32; ROWS],
) {
    let order = _mm256_broadcastsi128_si256(_mm_setr_epi8(
        0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15,
    ));
    for (row, reach) in reaches.iter_mut().enumerate().take(n_rows) {
        let (mut lost, mut all) = (_mm512_setzero_ps(), _mm512_setzero_ps());
        // SAFETY: the caller vouches for rows and blocks.
        unsafe {
            for block in 0..acts.n_blocks {
                let unit = acts.int_scale(row, block).unit;
                let ints = _mm512_loadu_si512(acts.int_words(row, block).cast());
                let bytes = _mm512_srai_epi16::<4>(_mm512_add_epi16(ints, _mm512_set1_epi16(8)));
                let rest = _mm512_sub_epi16(ints, _mm512_slli_epi16::<4>(bytes));
                lost = add_squares(rest, unit, lost);
                all = add_squares(ints, unit, all);
                let pairs = _mm512_madd_epi16(bytes, _mm512_set1_epi16(1));
                let [low, high] =
                    [0x00ff, 0xff00].map(|half| _mm512_mask_reduce_add_epi32(half, pairs) as f32);
                let sum = low + high;
                if to.forms.halves {
                    to.put_half_sums(row, block, [low, high]);
                }
                let unit = 16.0 * unit;
                to.put_int_scale(row, block, IntScale { unit, sum, total: sum * unit });
                let bytes = _mm256_shuffle_epi8(_mm512_cvtepi16_epi8(bytes), order);
                _mm256_storeu_si256(to.int_bytes(row, block).cast(), bytes);
            }
            let factor = *acts.factors.add(row);
            *to.factors.add(row) = factor;
            let length = |squares| factor.abs() * _mm512_reduce_add_ps(squares).sqrt();
            let n_groups = if to.forms.halves { 2 * acts.n_blocks } else { acts.n_blocks };
            *reach = reach_of(length(lost), length(all), n_groups);
        }
    }
}

/// # Safety
/// The machine has AVX-512.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn add_squares(ints: __m512i, unit: f32, sums: __m512) -> __m512 {
    let squares = _mm512_cvtepi32_ps(_mm512_madd_epi16(ints, ints));
    _mm512_fmadd_ps(squares, _mm512_set1_ps(unit * unit), sums)
}

/// How far an output of weights of length one can be from what all bits give, for a row of length
/// `all` that has lost a part of length `lost`.
fn reach_of(lost: f32, all: f32, n_groups: usize) -> f32 {
    if !is_plain_length(all) {
        return f32::INFINITY;
    }
    // Each group rounds both sums twice, by one part in 2^24 of at most the row's length, and a
    // few more operations follow. Twice that is still little beside what is lost.
    let rounding = (n_groups + 4) as f32 * (-22.0_f32).exp2();
    1.000_01 * (lost + rounding * all)
}

/// Notes how large outputs `panels` of `rows` are, and raises `floors` to what each row's largest
/// is at least.
///
/// # Safety
/// As [`super::find_tops`]; the weights are kept for half words and have no minimum, and `rough` is
/// of their activations.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(crate) unsafe fn bound(
    w: CodedView,
    panels: Range<usize>,
    rows: Range<usize>,
    rough: RoughTops,
    floors: &mut [f32; ROWS],
) {
    let floors = floors.as_mut_ptr();
    // SAFETY: forwarded contract.
    unsafe { multiply::<Vnni>([w, w], panels, rough.acts, rows, Sink::Bounds(rough, floors)) }
}

/// What products of bytes say of outputs.
///
/// # Safety
/// As [`Sink::take`]; the rows begin with a tile, and `rough` and `floors` are of them.
#[inline(always)]
pub(super) unsafe fn note_bounds<const P: usize>(
    sums: Sums<P>,
    product: Product,
    rough: RoughTops,
    floors: *mut f32,
) {
    let Product { panel, n_outputs, rows, acts } = product;
    for first in rows.clone().step_by(TILE_ROWS) {
        let (tile, n) = (first / TILE_ROWS, TILE_ROWS.min(rows.end - first));
        for p in 0..P {
            let are_there = first_of(WIDTH.min(n_outputs - (panel + p) * WIDTH));
            // SAFETY: forwarded contract.
            unsafe {
                let mut all = [_mm512_set1_epi32(0); TILE_ROWS];
                for (nth, all) in all.iter_mut().enumerate().take(n) {
                    let sum = (&raw const (*sums.add(first - rows.start + nth))[p]).cast();
                    let none = _mm512_set1_ps(f32::NEG_INFINITY);
                    let sum = _mm512_mask_loadu_ps(none, are_there, sum);
                    *all = _mm512_castps_si512(sum);
                }
                let factors = _mm512_loadu_ps(acts.factors.add(first));
                let maxima = _mm512_castsi512_ps(fold::<FloatMax>(all));
                // The largest times a factor is the largest of products: none is negative.
                let maxima = _mm512_mul_ps(maxima, factors);
                _mm512_storeu_ps(rough.at(tile, panel + p), maxima);
                let least = rough.of(tile, panel + p, maxima).least;
                let floors = floors.add(tile * TILE_ROWS);
                // In this order, what is not a number raises nothing.
                _mm512_storeu_ps(floors, _mm512_max_ps(least, _mm512_loadu_ps(floors)));
            }
        }
    }
}

struct FloatMax;

impl Fold for FloatMax {
    #[inline(always)]
    unsafe fn of(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: register operations only.
        unsafe {
            let (a, b) = (_mm512_castsi512_ps(a), _mm512_castsi512_ps(b));
            _mm512_castps_si512(_mm512_max_ps(a, b))
        }
    }
}

/// Multiplies those of `panels` with all bits that may hold the largest output of one of `n_rows`
/// rows, which is no less than its floor, and notes what is the largest of each.
///
/// # Safety
/// As [`bound`], which has been called for all panels.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(crate) unsafe fn settle(
    w: CodedView,
    panels: Range<usize>,
    acts: ActView,
    n_rows: usize,
    (rough, floors): (RoughTops, &[f32; ROWS]),
    tops: &mut [TileTops],
) {
    for panel in panels {
        let n_outputs = WIDTH.min(w.n_rows - panel * WIDTH);
        for (tile, tops) in tops.iter_mut().enumerate().take(n_rows.div_ceil(TILE_ROWS)) {
            let first = tile * TILE_ROWS;
            // SAFETY: forwarded contract.
            unsafe {
                let most = rough.of(tile, panel, _mm512_loadu_ps(rough.at(tile, panel))).most;
                let floors = _mm512_loadu_ps(floors.as_ptr().add(first));
                // What is not a number may be anything.
                let rows = first_of(n_rows - first);
                let mut rows = _mm512_mask_cmp_ps_mask::<_CMP_NLT_UQ>(rows, most, floors);
                while rows != 0 {
                    let row = rows.trailing_zeros() as usize;
                    let outputs = matmul_int::outputs_of::<V>(w, panel, acts, first + row);
                    tops.note(row, panel * WIDTH, &outputs[..n_outputs]);
                    rows &= rows - 1;
                }
            }
        }
    }
}

const _: () = assert!(ACT_BLOCK == 32, "a block of half words is a vector");
