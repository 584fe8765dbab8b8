//! The product of [`super::matmul`] on matrix tiles, to the bit.
//!
//! A tile of weights (sixteen outputs, thirty-two columns) times a tile of activations (thirty-two
//! columns, sixteen rows) is one instruction. Up to four tiles of activations meet the same
//! weights while the next weights are turned into bf16 ([`narrow`]), which is done with a table of
//! a group's sixteen possible weights where codes have four bits. Sums stay in tiles for all
//! columns. Two tiles of activations meet two panels' weights ([`pairs`]); more than four meet
//! weights that are unpacked once, two panels at a time ([`wide`]).
//!
//! What is stored as a vector and read back in parts (scales) or as a tile (weights) is stored well
//! ahead: such a read waits until the store has left the processor's queue.

mod lines;
mod narrow;
mod pairs;
mod put;
mod residual;
mod unpack;
mod waiting;
mod wide;

use std::ops::Range;

pub(crate) use lines::ask_to_write;
pub(crate) use put::{GateSink, TileTops, TopSink, put_tiles};
pub(crate) use residual::{NextNorm, ResidualSink};

use crate::acts::{ActView, TILE_ROWS};
use crate::amx::{self, TileShapes};
use crate::kernels::format::{Format, Panel, with_format};
use crate::kernels::matmul::{Output, ROWS_TOGETHER};
use crate::lanes::avx512::Avx512Lanes;
use crate::lanes::{Lanes, WIDTH};
use crate::packed::CodedView;

/// What becomes of a panel's sums.
#[derive(Clone, Copy, Debug)]
enum Sink {
    Rows(Output),
    Gate(GateSink),
    Tops(TopSink),
    Residual(ResidualSink),
}

impl Sink {
    /// Panels by which a pair of them goes on: a gate's are of two weights.
    fn pair_step(self) -> usize {
        match self {
            Sink::Gate(_) => 1,
            _ => 2,
        }
    }

    /// The `nth` of the pair that begins with `panel`.
    ///
    /// # Safety
    /// The weights have that panel.
    #[inline(always)]
    unsafe fn panel_of_pair(self, weights: [CodedView; 2], panel: usize, nth: usize) -> Panel {
        // SAFETY: forwarded contract.
        unsafe {
            match self {
                Sink::Gate(_) => weights[nth].panel(panel),
                _ => weights[0].panel(panel + nth),
            }
        }
    }
}

/// Elements of a tile of weights or activations.
const TILE: usize = 32 * 16;

/// Elements of a tile of sums.
const SUMS: usize = TILE_ROWS * WIDTH;

/// Tiles of activations that meet the weights of one panel while these are unpacked.
const STRIP: usize = 4;

/// Computes outputs `panels` of `rows`.
///
/// # Safety
/// As [`super::matmul::matmul`], on a machine whose tiles are available, for a weight and
/// activations arranged in tiles; the rows start with a tile.
#[inline(always)]
pub(crate) unsafe fn matmul<V: Lanes>(
    w: CodedView,
    panels: Range<usize>,
    acts: ActView,
    rows: Range<usize>,
    out: Output,
) {
    // SAFETY: forwarded contract; the layout names the format the weight was packed with.
    unsafe { with_format!(w.layout, all_panels::<V>([w, w], panels, acts, rows, Sink::Rows(out))) }
}

/// Computes activations `panels` of `rows`: the gate of the first weight's outputs, times the
/// second's.
///
/// # Safety
/// As [`matmul`], for two weights of one layout and shape, and room for their outputs in `to`,
/// which is arranged in tiles.
#[inline(always)]
pub(crate) unsafe fn gated(
    weights: [CodedView; 2],
    panels: Range<usize>,
    acts: ActView,
    rows: Range<usize>,
    to: GateSink,
) {
    // SAFETY: forwarded contract.
    unsafe {
        let sink = Sink::Gate(to);
        with_format!(
            weights[0].layout,
            all_panels::<Avx512Lanes>(weights, panels, acts, rows, sink)
        )
    }
}

/// Finds the largest of outputs `panels` of each of `rows`.
///
/// # Safety
/// As [`matmul`], for tiles of activations that are whole.
#[inline(always)]
pub(crate) unsafe fn find_tops(
    w: CodedView,
    panels: Range<usize>,
    acts: ActView,
    rows: Range<usize>,
    to: TopSink,
) {
    // SAFETY: forwarded contract.
    unsafe {
        let sink = Sink::Tops(to);
        with_format!(w.layout, all_panels::<Avx512Lanes>([w, w], panels, acts, rows, sink))
    }
}

/// Adds outputs `panels` of `rows` to the residual stream.
///
/// # Safety
/// As [`matmul`], for tiles of activations that are whole, a whole number of panels, and a residual
/// stream with those rows and outputs; the activations of the norm that follows are in tiles.
#[inline(always)]
pub(crate) unsafe fn add_to_residual(
    w: CodedView,
    panels: Range<usize>,
    acts: ActView,
    rows: Range<usize>,
    to: ResidualSink,
) {
    // SAFETY: forwarded contract.
    unsafe {
        let sink = Sink::Residual(to);
        with_format!(w.layout, all_panels::<Avx512Lanes>([w, w], panels, acts, rows, sink))
    }
}

/// # Safety
/// As [`matmul`] for the same weight twice and rows as sink, [`gated`] for a gate, [`find_tops`]
/// for tops, [`add_to_residual`] for the residual stream.
#[inline(always)]
unsafe fn all_panels<V: Lanes, F: Format>(
    weights: [CodedView; 2],
    panels: Range<usize>,
    acts: ActView,
    rows: Range<usize>,
    sink: Sink,
) {
    // SAFETY: panels and rows stay within what the caller vouches for; the tiles are available.
    unsafe {
        TileShapes::of_columns(acts.tile_rows).configure();
        for first in rows.clone().step_by(ROWS_TOGETHER) {
            let rows = first..rows.end.min(first + ROWS_TOGETHER);
            if rows.len() > STRIP * TILE_ROWS {
                wide::all_panels::<F>(weights, panels.clone(), acts, rows, sink);
            } else if rows.len().div_ceil(TILE_ROWS) == pairs::TILES {
                let left =
                    pairs::all_panels::<F>(weights, panels.clone(), acts, rows.clone(), sink);
                narrow::all_panels::<F>(weights, left, acts, rows, sink);
            } else {
                narrow::all_panels::<F>(weights, panels.clone(), acts, rows, sink);
            }
        }
        amx::release();
    }
}
