//! Sums that are added to the residual stream while they are tiles, and what the norm after that
//! makes of it.

use std::arch::x86_64::*;

use super::SUMS;
use super::put::{Product, Sums, fill_up, half_tile, put_pair, rounded_pair};
use crate::acts::{ActViewMut, TILE_ROWS};
use crate::lanes::WIDTH;

/// Where sums are added to the residual stream: `[tile of rows][panel][16 outputs][16 rows]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResidualSink {
    pub(crate) tiles: *mut f32,
    pub(crate) n_panels: usize,
    pub(crate) next: Option<NextNorm>,
}

/// The norm that follows, and where its result goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NextNorm {
    pub(crate) weight: *const f32,
    pub(crate) acts: ActViewMut,
}

// SAFETY: ops hold the borrows behind the pointers while kernels run; threads write disjoint parts.
unsafe impl Send for ResidualSink {}
// SAFETY: as above.
unsafe impl Sync for ResidualSink {}

/// Adds a panel's sums of the `nth` tile of rows to the residual stream, and makes of it what the
/// next products read.
///
/// # Safety
/// As [`super::put::rows`], for a whole tile of a residual stream.
#[inline(always)]
pub(super) unsafe fn residual(sums: Sums, product: &Product, nth: usize, to: ResidualSink) {
    let panel = product.panel;
    let first = product.rows_of(nth).start;
    let place = first / TILE_ROWS * to.n_panels + panel;
    // SAFETY: the caller vouches for the sums and the sink.
    unsafe {
        let (sums, x) = (sums.tile(nth).at, to.tiles.add(place * SUMS));
        let factors = product.factors_from(first);
        let mut values = [_mm512_setzero_ps(); WIDTH];
        for (output, value) in values.iter_mut().enumerate() {
            let x = x.add(output * WIDTH);
            let sum = _mm512_mul_ps(_mm512_load_ps(sums.add(output * WIDTH)), factors);
            *value = _mm512_add_ps(sum, _mm512_load_ps(x));
            _mm512_store_ps(x, *value);
        }
        if let Some(next) = to.next {
            let squares = next.acts.squares.add(place * TILE_ROWS);
            _mm512_store_ps(squares, sum_of_squares(values));
            let brains = half_tile(next.acts, panel, first);
            put_normed(values, next.weight.add(panel * WIDTH), brains);
            fill_up(next.acts, panel, brains);
        }
    }
}

/// Sixteen rows' sums of sixteen squares, in the order of [`sum_lanes`](crate::lanes::sum_lanes).
///
/// # Safety
/// The machine has AVX-512.
#[inline(always)]
unsafe fn sum_of_squares(values: [__m512; WIDTH]) -> __m512 {
    // SAFETY: forwarded contract.
    unsafe {
        let mut squares = [_mm512_setzero_ps(); WIDTH];
        for (square, value) in squares.iter_mut().zip(values) {
            *square = _mm512_mul_ps(value, value);
        }
        let mut half = WIDTH / 2;
        while half > 0 {
            for i in 0..half {
                squares[i] = _mm512_add_ps(squares[i], squares[i + half]);
            }
            half /= 2;
        }
        squares[0]
    }
}

/// Writes sixteen columns of sixteen rows, times the norm's weights, as half a tile.
///
/// # Safety
/// `weight` holds sixteen, `brains` half a tile; the machine has AVX-512.
#[inline(always)]
unsafe fn put_normed(values: [__m512; WIDTH], weight: *const f32, brains: *mut u16) {
    // SAFETY: forwarded contract.
    unsafe {
        for pair in 0..WIDTH / 2 {
            let mut both = [_mm512_setzero_ps(); 2];
            for (nth, normed) in both.iter_mut().enumerate() {
                let weight = _mm512_set1_ps(*weight.add(2 * pair + nth));
                *normed = _mm512_mul_ps(values[2 * pair + nth], weight);
            }
            put_pair(rounded_pair(both), brains, pair, TILE_ROWS);
        }
    }
}
