//! Products for one tile of rows, or for three or four (two: [`super::pairs`]): they meet a panel's
//! weights while the next ones are unpacked. Products lag behind the unpacking, so that neither
//! waits for the other, and what is loaded into tiles is loaded between the quarters of a block
//! that is unpacked: a tile is sixteen loads, which would keep those of the unpacking waiting.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::put::{self, Lines};
use super::unpack::{Between, HEADS, Heads, Unpacker};
use super::{STRIP, SUMS, Sink, TILE};
use crate::acts::{ActView, TILE_ROWS};
use crate::amx::{tile_dot_bf16, tile_load, tile_load_past, tile_store, tile_zero};
use crate::kernels::format::{Codes, Format};
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
                    from.ahead.ask::<Avx512Lanes, F>();
                    self.add_tiles::<T>(weights.cast(), block);
                }
            } else if T > 1 {
                self.unpack_and_add::<F, T, _>(from, |block| Add::<T> { strip: self, block });
            } else if self.n_blocks <= NEAR {
                let one = |block| AddOne::<true> { strip: self, block };
                self.unpack_and_add::<F, T, _>(from, one);
            } else {
                let one = |block| AddOne::<false> { strip: self, block };
                self.unpack_and_add::<F, T, _>(from, one);
            }
            self.store::<T>();
        }
    }

    /// Where a block's weights are between unpacking and use.
    #[inline(always)]
    fn slot(self, block: usize) -> *mut u16 {
        self.weights.wrapping_add(block % SLOTS * TILE)
    }

    /// Unpacks block after block; `add` is what multiplies one that is ready meanwhile.
    ///
    /// # Safety
    /// As [`multiply`](Self::multiply).
    #[inline(always)]
    unsafe fn unpack_and_add<F: Format, const T: usize, B: Between>(
        self,
        from: &mut Unpacker<'_>,
        add: impl Fn(usize) -> B,
    ) {
        // SAFETY: blocks stay within the panel, slots within the scratch.
        unsafe {
            from.start::<F>();
            for block in 0..self.n_blocks {
                from.unpack::<F>(block, self.slot(block), add(block.wrapping_sub(LAG)));
            }
            for ready in self.n_blocks.saturating_sub(LAG)..self.n_blocks {
                self.add_tiles::<T>(self.slot(ready), ready);
            }
        }
    }

    /// The product of a block's weights with all `T` tiles of activations.
    ///
    /// # Safety
    /// As [`add_tile`](Self::add_tile).
    #[inline(always)]
    unsafe fn add_tiles<const T: usize>(self, weights: *const u16, block: usize) {
        // SAFETY: forwarded contract.
        unsafe {
            self.add_tile::<0>(weights, block);
            if T > 1 {
                self.add_tile::<1>(weights, block);
            }
            if T > 2 {
                self.add_tile::<2>(weights, block);
            }
            if T > 3 {
                self.add_tile::<3>(weights, block);
            }
        }
    }

    /// The product of a block's weights with one of the tiles of activations, which come in
    /// order. Sums are tiles 0 to 3, weights tile 4, activations 5 and 6.
    ///
    /// # Safety
    /// `weights` holds a tile, `block` lies within the activations, the tiles are configured.
    #[inline(always)]
    unsafe fn add_tile<const NTH: usize>(self, weights: *const u16, block: usize) {
        let acts = self.acts.wrapping_add((NTH * self.n_blocks + block) * TILE);
        // SAFETY: the caller vouches for both operands.
        unsafe {
            match NTH {
                0 => {
                    tile_load!(4, weights, 64usize);
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
        self.lines.ask::<1>(NTH, block);
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

/// Multiplies a block that is ready, one tile of activations after each quarter.
#[derive(Clone, Copy)]
struct Add<const T: usize> {
    strip: Strip,
    block: usize,
}

impl<const T: usize> Between for Add<T> {
    #[inline(always)]
    unsafe fn after<const QUARTER: usize>(self) {
        if self.block < self.strip.n_blocks && QUARTER < T {
            // SAFETY: the block lies within the panel and its weights are ready.
            unsafe { self.strip.add_tile::<QUARTER>(self.strip.slot(self.block), self.block) };
        }
    }
}

/// Multiplies a block that is ready with the only tile of activations, its operands loaded one
/// after the other. `IS_NEAR` if the activations stay in the first-level cache.
#[derive(Clone, Copy)]
struct AddOne<const IS_NEAR: bool> {
    strip: Strip,
    block: usize,
}

impl<const IS_NEAR: bool> Between for AddOne<IS_NEAR> {
    #[inline(always)]
    unsafe fn after<const QUARTER: usize>(self) {
        let AddOne { strip, block } = self;
        if block >= strip.n_blocks {
            return;
        }
        let acts = strip.acts.wrapping_add(block * TILE);
        // SAFETY: the block lies within the panel and its weights are ready.
        unsafe {
            match QUARTER {
                0 => tile_load!(4, strip.slot(block), 64usize),
                1 => match IS_NEAR {
                    true => tile_load!(5, acts, 64usize),
                    false => tile_load_past!(5, acts, 64usize),
                },
                2 => strip.lines.ask::<1>(0, block),
                _ => tile_dot_bf16!(0, 4, 5),
            }
        }
    }
}
