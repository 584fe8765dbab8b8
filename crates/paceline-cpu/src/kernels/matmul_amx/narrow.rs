//! Products for the rows of one strip: its tiles of activations meet a panel's weights while the
//! next ones are unpacked. Products lag behind the unpacking, so that neither waits for the other,
//! and what is loaded into tiles is loaded between the quarters of a block that is unpacked: a tile
//! is sixteen loads, which would keep those of the unpacking waiting.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::put::{self, Lines};
use super::unpack::{HEADS, Heads, QUARTERS, Unpacker};
use super::{STRIP, SUMS, Sink, TILE};
use crate::acts::{ActView, TILE_ROWS};
use crate::amx::{tile_dot_bf16, tile_load, tile_load_past, tile_store, tile_zero};
use crate::kernels::format::{Codes, Format};
use crate::kernels::matmul::prefetch;
use crate::lanes::avx512::Avx512Lanes;
use crate::packed::CodedView;

/// Blocks of weights in flight between unpacking and use, and how far apart the two are.
const SLOTS: usize = 4;
const LAG: usize = 2;

/// Tiles of activations that are left to the first-level cache, of which they then take two thirds.
const NEAR: usize = 32;

/// What a panel needs, or each of two with a gate. Small: the first touch of each page of a
/// function's frame is paid at every call.
#[repr(align(64))]
struct Scratch {
    weights: MaybeUninit<[u16; SLOTS * TILE]>,
    heads: [Heads; HEADS],
    sums: MaybeUninit<[[f32; STRIP * SUMS]; 2]>,
}

/// # Safety
/// As [`super::all_panels`], with the tiles configured, for a strip's rows.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx2,fma,f16c")]
pub(super) unsafe fn all_panels<F: Format>(
    weights: [CodedView; 2],
    panels: Range<usize>,
    acts: ActView,
    rows: Range<usize>,
    sink: Sink,
) {
    let mut scratch = Scratch {
        weights: MaybeUninit::uninit(),
        heads: [Heads::NONE; HEADS],
        sums: MaybeUninit::uninit(),
    };
    let sums: [*mut f32; 2] =
        [0, 1].map(|nth| scratch.sums.as_mut_ptr().cast::<f32>().wrapping_add(nth * STRIP * SUMS));
    let unpacked: *mut u16 = scratch.weights.as_mut_ptr().cast();
    for panel in panels {
        let strip = |w: CodedView, sums| Strip {
            acts: acts.brains.wrapping_add(rows.start / TILE_ROWS * w.panel.n_blocks * TILE),
            n_blocks: w.panel.n_blocks,
            weights: unpacked,
            sums,
            lines: Lines::of(sink, panel, rows.start),
        };
        let strips = [strip(weights[0], sums[0]), strip(weights[1], sums[1])];
        let heads = &mut scratch.heads;
        // SAFETY: panels, blocks and rows stay within what the caller vouches for.
        unsafe {
            strips[0].multiply::<F>(weights[0], panel, rows.len(), heads);
            match sink {
                Sink::Rows(out) => put::rows(sums[0], weights[0], panel, rows.clone(), out),
                Sink::Gate(to) => {
                    strips[1].multiply::<F>(weights[1], panel, rows.len(), heads);
                    put::gated(sums.map(<*mut f32>::cast_const), panel, rows.clone(), to);
                }
            }
        }
    }
}

/// A strip's tiles of activations and where their products with a panel go.
#[derive(Clone, Copy)]
struct Strip {
    acts: *const u16,
    n_blocks: usize,
    weights: *mut u16,
    sums: *mut f32,
    lines: Lines,
}

macro_rules! load_acts {
    ($is_near:expr, $tile:literal, $from:expr) => {
        match $is_near {
            true => tile_load!($tile, $from, 64usize),
            false => tile_load_past!($tile, $from, 64usize),
        }
    };
}

impl Strip {
    /// # Safety
    /// As [`all_panels`].
    #[inline(always)]
    unsafe fn multiply<F: Format>(
        self,
        w: CodedView,
        panel: usize,
        n_rows: usize,
        heads: &mut [Heads; HEADS],
    ) {
        // SAFETY: forwarded contract.
        unsafe {
            let mut from = Unpacker::new(w.panel(panel), self.n_blocks, heads);
            match n_rows.div_ceil(TILE_ROWS) {
                1 => self.multiply_tiles::<F, 1>(&mut from),
                2 => self.multiply_tiles::<F, 2>(&mut from),
                3 => self.multiply_tiles::<F, 3>(&mut from),
                _ => self.multiply_tiles::<F, 4>(&mut from),
            }
        }
    }

    /// # Safety
    /// As [`all_panels`], for `T` tiles of rows.
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
                    for tile in 0..T {
                        self.add_tile(weights.cast(), block, tile);
                    }
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

    /// Where a block's weights are between unpacking and use.
    #[inline(always)]
    fn slot(self, block: usize) -> *mut u16 {
        self.weights.wrapping_add(block % SLOTS * TILE)
    }

    /// # Safety
    /// As [`multiply`](Self::multiply).
    #[inline(always)]
    unsafe fn unpack_and_add<F: Format, const T: usize>(self, from: &mut Unpacker<'_>) {
        // SAFETY: blocks stay within the panel, slots within the scratch.
        unsafe {
            from.start::<F>();
            for block in 0..self.n_blocks {
                from.unpack::<F>(block, self.slot(block), |tile| {
                    if block >= LAG && tile < T {
                        self.add_tile(self.slot(block - LAG), block - LAG, tile);
                    }
                });
            }
            for ready in self.n_blocks.saturating_sub(LAG)..self.n_blocks {
                for tile in 0..T {
                    self.add_tile(self.slot(ready), ready, tile);
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
                let load = |operand| {
                    if ready < self.n_blocks && operand <= T {
                        self.load_operand::<IS_NEAR>(operand, ready);
                    }
                };
                if block < self.n_blocks {
                    from.unpack::<F>(block, self.slot(block), load);
                } else {
                    (0..QUARTERS).for_each(load);
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
    /// As [`add_tile`](Self::add_tile).
    #[inline(always)]
    unsafe fn load_operand<const IS_NEAR: bool>(self, operand: usize, block: usize) {
        let is_even = block.is_multiple_of(2);
        let acts = self.acts.wrapping_add(block * TILE);
        let second = acts.wrapping_add(self.n_blocks * TILE);
        // SAFETY: the caller vouches for the operands.
        unsafe {
            match (operand, is_even) {
                (0, true) => tile_load!(2, self.slot(block), 64usize),
                (0, false) => tile_load!(5, self.slot(block), 64usize),
                (1, true) => load_acts!(IS_NEAR, 3, acts),
                (1, false) => load_acts!(IS_NEAR, 6, acts),
                (_, true) => load_acts!(IS_NEAR, 4, second),
                (_, false) => load_acts!(IS_NEAR, 7, second),
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

    /// The product of a block's weights with one of the tiles of activations, which come in
    /// order. Sums are tiles 0 to 3, weights tile 4, activations 5 and 6.
    ///
    /// # Safety
    /// `weights` holds a tile, `block` lies within the activations, the tiles are configured.
    #[inline(always)]
    unsafe fn add_tile(self, weights: *const u16, block: usize, tile: usize) {
        let acts = self.acts.wrapping_add((tile * self.n_blocks + block) * TILE);
        // SAFETY: the caller vouches for both operands.
        unsafe {
            if tile == 0 {
                tile_load!(4, weights, 64usize);
            }
            match tile {
                0 => {
                    tile_load_past!(5, acts, 64usize);
                    tile_dot_bf16!(0, 4, 5);
                }
                1 => {
                    tile_load_past!(6, acts, 64usize);
                    tile_dot_bf16!(1, 4, 6);
                }
                2 => {
                    tile_load_past!(5, acts, 64usize);
                    tile_dot_bf16!(2, 4, 5);
                }
                _ => {
                    tile_load_past!(6, acts, 64usize);
                    tile_dot_bf16!(3, 4, 6);
                }
            }
        }
        self.lines.ask::<1>(tile, block);
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
