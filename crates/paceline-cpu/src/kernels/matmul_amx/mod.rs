//! The product of [`super::matmul`] on matrix tiles, to the bit.
//!
//! A tile of weights (sixteen outputs, thirty-two columns) times a tile of activations (thirty-two
//! columns, sixteen rows) is one instruction. Up to four tiles of activations meet the same
//! weights while the next weights are turned into bf16, which is done with a table of a group's
//! sixteen possible weights where codes have four bits. Sums stay in tiles for all columns.
//! More rows than that meet weights that are unpacked once, two panels at a time ([`wide`]).
//!
//! What is stored as a vector and read back in parts (scales) or as a tile (weights) is stored well
//! ahead: such a read waits until the store has left the processor's queue.

mod put;
mod unpack;
mod wide;

use std::mem::MaybeUninit;
use std::ops::Range;

use put::Lines;
pub(crate) use put::{GateSink, put_tiles};

use crate::acts::{ActView, TILE_ROWS};
use crate::amx::{
    self, TileShapes, tile_dot_bf16, tile_load, tile_load_past, tile_store, tile_zero,
};
use crate::kernels::format::{Codes, Format, with_format};
use crate::kernels::matmul::{Output, ROWS_TOGETHER, prefetch};
use crate::lanes::avx512::Avx512Lanes;
use crate::lanes::{Lanes, WIDTH};
use crate::packed::CodedView;

use unpack::{HEADS, Heads, Unpacker};

/// What becomes of a panel's sums.
#[derive(Clone, Copy, Debug)]
enum Sink {
    Rows(Output),
    Gate(GateSink),
}

/// Elements of a tile of weights or activations.
const TILE: usize = 32 * 16;

/// Elements of a tile of sums, and of all tiles of rows' together.
const SUMS: usize = TILE_ROWS * WIDTH;
const APART: usize = ROWS_TOGETHER / TILE_ROWS * SUMS;

/// Tiles of activations that meet the weights of one panel while these are unpacked.
const STRIP: usize = 4;

/// Blocks of weights that are kept unpacked when more rows than a strip's meet them.
const READY: usize = 64;

/// Blocks of weights in flight between unpacking and use, and how far apart the two are.
const SLOTS: usize = 4;
const LAG: usize = 2;

/// Tiles of activations that are left to the first-level cache, of which they then take two thirds.
const NEAR: usize = 32;

macro_rules! load_acts {
    ($is_near:expr, $tile:literal, $from:expr) => {
        match $is_near {
            true => tile_load!($tile, $from, 64usize),
            false => tile_load_past!($tile, $from, 64usize),
        }
    };
}

/// What a product needs for one panel, or for each of two.
#[repr(align(64))]
struct Scratch {
    weights: MaybeUninit<[u16; 2 * READY * TILE]>,
    heads: [[Heads; HEADS]; 2],
    sums: MaybeUninit<[f32; 2 * APART]>,
}

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
    unsafe {
        let w = w.up_to(panels.end);
        with_format!(w.layout, all_panels::<V>([w, w], panels, acts, rows, Sink::Rows(out)))
    }
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
        let weights = [weights[0].up_to(panels.end), weights[1].up_to(panels.end)];
        let sink = Sink::Gate(to);
        with_format!(
            weights[0].layout,
            all_panels::<Avx512Lanes>(weights, panels, acts, rows, sink)
        )
    }
}

/// # Safety
/// As [`matmul`] for the same weight twice and rows as sink, [`gated`] for a gate.
#[inline(always)]
unsafe fn all_panels<V: Lanes, F: Format>(
    weights: [CodedView; 2],
    panels: Range<usize>,
    acts: ActView,
    rows: Range<usize>,
    sink: Sink,
) {
    let mut scratch = Scratch {
        weights: MaybeUninit::uninit(),
        heads: [[Heads::NONE; HEADS]; 2],
        sums: MaybeUninit::uninit(),
    };
    // SAFETY: panels and rows stay within what the caller vouches for; the tiles are available.
    unsafe {
        TileShapes::full().configure();
        for first in rows.clone().step_by(ROWS_TOGETHER) {
            let rows = first..rows.end.min(first + ROWS_TOGETHER);
            if rows.len() > STRIP * TILE_ROWS {
                wide::all_panels::<F>(weights, panels.clone(), acts, rows, sink, &mut scratch);
            } else {
                for panel in panels.clone() {
                    narrow::<F>(weights, panel, acts, rows.clone(), sink, &mut scratch);
                }
            }
        }
        amx::release();
    }
}

/// A panel's results for a strip's rows.
///
/// # Safety
/// As [`all_panels`], with the tiles configured.
#[inline(always)]
unsafe fn narrow<F: Format>(
    weights: [CodedView; 2],
    panel: usize,
    acts: ActView,
    rows: Range<usize>,
    sink: Sink,
    scratch: &mut Scratch,
) {
    let sums: *mut f32 = scratch.sums.as_mut_ptr().cast();
    // SAFETY: forwarded contract.
    unsafe {
        match sink {
            Sink::Rows(out) => {
                add_up::<F>(weights[0], panel, acts, rows.clone(), (0, sink), scratch);
                put::rows(sums, weights[0], panel, rows, out);
            }
            Sink::Gate(to) => {
                add_up::<F>(weights[0], panel, acts, rows.clone(), (0, sink), scratch);
                add_up::<F>(weights[1], panel, acts, rows.clone(), (1, sink), scratch);
                put::gated([sums, sums.add(APART)], panel, rows, to);
            }
        }
    }
}

/// The sums of a strip's rows of one panel, as the scratch's `nth`.
///
/// # Safety
/// As [`narrow`].
#[inline(always)]
unsafe fn add_up<F: Format>(
    w: CodedView,
    panel: usize,
    acts: ActView,
    rows: Range<usize>,
    (nth, sink): (usize, Sink),
    scratch: &mut Scratch,
) {
    let n_blocks = w.panel.n_blocks;
    // SAFETY: blocks and tiles stay within what the caller vouches for.
    unsafe {
        let mut unpacker = Unpacker::new(w.panel(panel), n_blocks, &mut scratch.heads[nth]);
        let strip = Strip {
            acts: acts.brains.add(rows.start / TILE_ROWS * n_blocks * TILE),
            n_blocks,
            weights: scratch.weights.as_mut_ptr().cast(),
            sums: scratch.sums.as_mut_ptr().cast::<f32>().add(nth * APART),
            lines: Lines::of(sink, panel, rows.start),
        };
        strip.multiply::<F>(&mut unpacker, rows.len().div_ceil(TILE_ROWS));
    }
}

/// Some tiles of activations and where their products with a panel go.
#[derive(Clone, Copy)]
struct Strip {
    acts: *const u16,
    n_blocks: usize,
    weights: *mut u16,
    sums: *mut f32,
    lines: Lines,
}

impl Strip {
    /// # Safety
    /// As [`matmul`]; `n_tiles` tiles of activations follow.
    #[inline(always)]
    unsafe fn multiply<F: Format>(self, from: &mut Unpacker<'_>, n_tiles: usize) {
        // SAFETY: forwarded contract.
        unsafe {
            match n_tiles {
                1 => self.multiply_tiles::<F, 1>(from),
                2 => self.multiply_tiles::<F, 2>(from),
                3 => self.multiply_tiles::<F, 3>(from),
                _ => self.multiply_tiles::<F, 4>(from),
            }
        }
    }

    /// # Safety
    /// As [`multiply`](Self::multiply), with `T` tiles.
    #[inline(always)]
    unsafe fn multiply_tiles<F: Format, const T: usize>(self, from: &mut Unpacker<'_>) {
        // SAFETY: forwarded contract; blocks stay within the panel.
        unsafe {
            tile_zero!(0);
            tile_zero!(1);
            tile_zero!(2);
            tile_zero!(3);
            if F::CODES == Codes::Brains {
                for block in 0..self.n_blocks {
                    let weights = from.parts.codes.add(block * F::CODE_BYTES);
                    prefetch::<Avx512Lanes, F>(from.parts, block);
                    self.add_block::<T>(weights.cast(), block);
                }
            } else if T > 2 {
                self.unpack_and_add::<F, T>(from);
            } else if T * self.n_blocks <= NEAR {
                self.unpack_and_add_few::<F, T, true>(from);
            } else {
                self.unpack_and_add_few::<F, T, false>(from);
            }
            self.store::<T>();
        }
    }

    /// Products lag behind the unpacking, so that neither waits for the other.
    ///
    /// # Safety
    /// As [`multiply`](Self::multiply).
    #[inline(always)]
    unsafe fn unpack_and_add<F: Format, const T: usize>(self, from: &mut Unpacker<'_>) {
        // SAFETY: blocks stay within the panel, slots within the scratch.
        unsafe {
            from.start::<F>();
            for block in 0..self.n_blocks + LAG {
                if block < self.n_blocks {
                    from.unpack::<F>(block, self.weights.add(block % SLOTS * TILE));
                }
                if let Some(ready) = block.checked_sub(LAG) {
                    self.add_block::<T>(self.weights.add(ready % SLOTS * TILE), ready);
                }
            }
        }
    }

    /// The same for one or two tiles of rows, which leave enough tiles to load a block's operands
    /// before the block ahead of it is multiplied. `IS_NEAR` if the activations stay in the
    /// first-level cache.
    ///
    /// # Safety
    /// As [`multiply`](Self::multiply).
    #[inline(always)]
    unsafe fn unpack_and_add_few<F: Format, const T: usize, const IS_NEAR: bool>(
        self,
        from: &mut Unpacker<'_>,
    ) {
        // SAFETY: blocks stay within the panel, slots within the scratch.
        unsafe {
            from.start::<F>();
            for block in 0..=self.n_blocks + LAG {
                let ready = block.wrapping_sub(LAG);
                if ready < self.n_blocks {
                    self.load_block::<T, IS_NEAR>(self.weights.add(ready % SLOTS * TILE), ready);
                }
                if block < self.n_blocks {
                    from.unpack::<F>(block, self.weights.add(block % SLOTS * TILE));
                }
                if block > LAG {
                    self.add_loaded::<T>(ready - 1);
                }
            }
        }
    }

    /// Weights and activations become tiles 2 to 4 for even blocks, 5 to 7 for odd ones.
    ///
    /// # Safety
    /// As [`add_block`](Self::add_block).
    #[inline(always)]
    unsafe fn load_block<const T: usize, const IS_NEAR: bool>(
        self,
        weights: *const u16,
        block: usize,
    ) {
        // SAFETY: the caller vouches for both operands.
        unsafe {
            let acts = self.acts.add(block * TILE);
            let second = acts.wrapping_add(self.n_blocks * TILE);
            if block.is_multiple_of(2) {
                tile_load!(2, weights, 64usize);
                load_acts!(IS_NEAR, 3, acts);
                if T > 1 {
                    load_acts!(IS_NEAR, 4, second);
                }
            } else {
                tile_load!(5, weights, 64usize);
                load_acts!(IS_NEAR, 6, acts);
                if T > 1 {
                    load_acts!(IS_NEAR, 7, second);
                }
            }
        }
    }

    /// Sums are tiles 0 and 1.
    ///
    /// # Safety
    /// The block's operands were loaded; the tiles are configured.
    #[inline(always)]
    unsafe fn add_loaded<const T: usize>(self, block: usize) {
        // SAFETY: forwarded contract.
        unsafe {
            if block.is_multiple_of(2) {
                tile_dot_bf16!(0, 2, 3);
                if T > 1 {
                    tile_dot_bf16!(1, 2, 4);
                }
            } else {
                tile_dot_bf16!(0, 5, 6);
                if T > 1 {
                    tile_dot_bf16!(1, 5, 7);
                }
            }
        }
        for tile in 0..T {
            self.lines.ask::<1>(tile, block);
        }
    }

    /// Sums are tiles 0 to 3, weights tile 4, activations 5 and 6.
    ///
    /// # Safety
    /// `weights` holds a tile, `block` lies within the activations, the tiles are configured.
    #[inline(always)]
    unsafe fn add_block<const T: usize>(self, weights: *const u16, block: usize) {
        // SAFETY: the caller vouches for both operands.
        unsafe {
            let acts = self.acts.add(block * TILE);
            let next = self.n_blocks * TILE;
            tile_load!(4, weights, 64usize);
            tile_load_past!(5, acts, 64usize);
            tile_dot_bf16!(0, 4, 5);
            self.lines.ask::<1>(0, block);
            if T > 1 {
                tile_load_past!(6, acts.add(next), 64usize);
                tile_dot_bf16!(1, 4, 6);
                self.lines.ask::<1>(1, block);
            }
            if T > 2 {
                tile_load_past!(5, acts.add(2 * next), 64usize);
                tile_dot_bf16!(2, 4, 5);
                self.lines.ask::<1>(2, block);
            }
            if T > 3 {
                tile_load_past!(6, acts.add(3 * next), 64usize);
                tile_dot_bf16!(3, 4, 6);
                self.lines.ask::<1>(3, block);
            }
        }
    }

    /// # Safety
    /// The scratch's sums have room for `T` tiles.
    #[inline(always)]
    unsafe fn store<const T: usize>(self) {
        // SAFETY: forwarded contract.
        unsafe {
            tile_store!(0, self.sums, 64usize);
            if T > 1 {
                tile_store!(1, self.sums.add(SUMS), 64usize);
            }
            if T > 2 {
                tile_store!(2, self.sums.add(2 * SUMS), 64usize);
            }
            if T > 3 {
                tile_store!(3, self.sums.add(3 * SUMS), 64usize);
            }
        }
    }
}
