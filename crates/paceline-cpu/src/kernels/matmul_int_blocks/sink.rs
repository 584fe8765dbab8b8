//! What becomes of the sums of panels.
//!
//! None of it knows the weights' format, so it is compiled once and not for each.

use std::arch::x86_64::*;
use std::ops::Range;

use super::rough::{RoughTops, note_bounds};
use super::{GATED, ROWS};
use crate::acts::{ActView, TILE_ROWS};
use crate::kernels::matmul::{Output, finish};
use crate::kernels::matmul_amx::{GateSink, TileTops, ask_to_write};
use crate::kernels::together::{Floats, round_rows};
use crate::lanes::avx512::Avx512Lanes as V;
use crate::lanes::{Lanes, WIDTH};
use crate::math::gate_of;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Sink {
    Rows(Output),
    Gate(GateSink),
    Tops(*mut RowTops),
    /// What rows' largest outputs are at least is raised.
    Bounds(RoughTops, *mut f32),
}

/// Rows' sums of `P` panels.
pub(crate) type Sums<const P: usize> = *mut [[f32; WIDTH]; P];

/// What sums are of.
pub(crate) struct Product {
    /// The first panel.
    pub(super) panel: usize,
    /// Outputs of the weight.
    pub(super) n_outputs: usize,
    pub(super) rows: Range<usize>,
    pub(super) acts: ActView,
}

impl Sink {
    /// Asks for the lines that the `nth` rows' outputs of `P` panels will be written to.
    #[inline(always)]
    pub(super) fn ask<const P: usize>(self, product: &Product, nth: Range<usize>) {
        let Sink::Rows(out) = self else { return };
        for nth in nth.start..nth.end.min(product.rows.len()) {
            let at = (product.rows.start + nth) * out.stride + product.panel * WIDTH;
            for p in 0..P {
                ask_to_write(out.data.wrapping_add(at + p * WIDTH).cast_const().cast());
            }
        }
    }

    /// # Safety
    /// The sums are those of `product`, which are what the sink is for; a gate's are of two panels
    /// of one weight and the same two of another. The machine has AVX-512.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    pub(super) unsafe fn take<const P: usize>(self, sums: Sums<P>, product: Product) {
        // SAFETY: forwarded contract.
        unsafe {
            match self {
                Sink::Rows(out) => put_rows::<V, P>(sums, product, out),
                Sink::Gate(to) => put_gated(sums, product, to),
                Sink::Tops(tops) => note_tops(sums, product, tops),
                Sink::Bounds(rough, floors) => note_bounds(sums, product, rough, floors),
            }
        }
    }
}

/// # Safety
/// As [`Sink::take`], on a machine that has the lanes.
#[inline(always)]
pub(super) unsafe fn put_rows<L: Lanes, const P: usize>(
    sums: Sums<P>,
    product: Product,
    out: Output,
) {
    // SAFETY: outputs past the matrix are not written.
    unsafe {
        for (nth, row) in product.rows.enumerate() {
            for p in 0..P {
                let output = (product.panel + p) * WIDTH;
                let sum = L::load((&raw const (*sums.add(nth))[p]).cast());
                let n_outputs = WIDTH.min(product.n_outputs - output);
                finish(product.acts.scaled(sum, row), out, row * out.stride + output, n_outputs);
            }
        }
    }
}

/// Makes a block of activations of two panels of gates and two of what they let through.
///
/// # Safety
/// As [`Sink::take`]; the rows begin with a tile.
#[inline(always)]
unsafe fn put_gated<const P: usize>(sums: Sums<P>, product: Product, to: GateSink) {
    debug_assert_eq!(P, GATED);
    let Product { panel, rows, acts, .. } = product;
    for first in rows.clone().step_by(TILE_ROWS) {
        let tile = first..rows.end.min(first + TILE_ROWS);
        // SAFETY: forwarded contract.
        unsafe {
            let sums = sums.add(first - rows.start).cast::<f32>();
            for (nth, row) in tile.clone().enumerate() {
                let sums = sums.add(nth * P * WIDTH);
                for half in 0..P / 2 {
                    let gate = acts.scaled(V::load(sums.add(half * WIDTH)), row);
                    let up = acts.scaled(V::load(sums.add((P / 2 + half) * WIDTH)), row);
                    gate_of(gate, to.gelu).mul(up).store(sums.add(half * WIDTH));
                }
            }
            let floats = Floats { at: sums, stride: P * WIDTH, columns: [u16::MAX; 2] };
            round_rows(floats, to.acts, tile, panel / 2);
        }
    }
}

/// The largest outputs of rows so far, each lane's and the panel it was in.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct RowTops {
    values: [[f32; WIDTH]; ROWS],
    panels: [[u32; WIDTH]; ROWS],
    /// Not zero if an output was not a number, or positive infinity.
    unsound: [u16; ROWS],
    first_row: usize,
}

impl RowTops {
    pub(super) fn new(first_row: usize) -> RowTops {
        RowTops {
            values: [[f32::NEG_INFINITY; WIDTH]; ROWS],
            panels: [[0; WIDTH]; ROWS],
            unsound: [0; ROWS],
            first_row,
        }
    }

    /// Writes down what is the largest of each of the first `n` rows.
    pub(super) fn put(&self, n: usize, tops: &mut [TileTops]) {
        for row in 0..n {
            let (tile, at) = (&mut tops[row / TILE_ROWS], row % TILE_ROWS);
            let values = self.values[row];
            let largest = values.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
            let of_lane = |lane: usize| self.panels[row][lane] * WIDTH as u32 + lane as u32;
            let places = (0..WIDTH).filter(|&lane| values[lane] == largest).map(of_lane);
            tile.values[at] = largest;
            tile.places[at] = places.min().unwrap_or(0);
            tile.nothing[at] = f32::from(self.unsound[row]);
        }
    }
}

/// # Safety
/// As [`Sink::take`]; `tops` has room for the rows.
#[inline(always)]
unsafe fn note_tops<const P: usize>(sums: Sums<P>, product: Product, tops: *mut RowTops) {
    let Product { panel, n_outputs, rows, acts } = product;
    // SAFETY: forwarded contract.
    unsafe {
        for (nth, row) in rows.enumerate() {
            let own = row - (*tops).first_row;
            let values = (&raw mut (*tops).values[own]).cast::<f32>();
            let panels = (&raw mut (*tops).panels[own]).cast::<u32>();
            let (mut most, mut places) = (_mm512_load_ps(values), _mm512_load_si512(panels.cast()));
            let mut unsound = 0;
            for p in 0..P {
                let n = WIDTH.min(n_outputs - (panel + p) * WIDTH);
                let are_there = u16::MAX >> (WIDTH - n);
                let sum = V::load((&raw const (*sums.add(nth))[p]).cast());
                let sum = acts.scaled(sum, row).0;
                // Not a number, quiet or not, or positive infinity.
                unsound |= _mm512_mask_fpclass_ps_mask::<0x89>(are_there, sum);
                let is_more = _mm512_mask_cmp_ps_mask::<_CMP_GT_OQ>(are_there, sum, most);
                most = _mm512_mask_mov_ps(most, is_more, sum);
                let place = _mm512_set1_epi32((panel + p) as i32);
                places = _mm512_mask_mov_epi32(places, is_more, place);
            }
            _mm512_store_ps(values, most);
            _mm512_store_si512(panels.cast(), places);
            (*tops).unsound[own] |= unsound;
        }
    }
}
