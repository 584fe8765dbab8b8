//! Products for two tiles of rows: two panels' weights are unpacked in turn, and every tile that is
//! loaded serves two products. Products lag a block behind the unpacking, and what is loaded into
//! tiles is loaded between the quarters of a block that is unpacked: a tile is sixteen loads, which
//! would keep those of the unpacking waiting.
//!
//! Loads are what counts here. While somebody else uses the other half of the physical core, a load
//! of a tile takes as long as a product, and no longer happens beside one.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::lines::Lines;
use super::put::{Product, Sums};
use super::unpack::{Between, HEADS, Heads, Unpacker};
use super::waiting::Waiting;
use super::{SUMS, Sink, TILE};
use crate::acts::{ActView, TILE_ROWS};
use crate::amx::{tile_dot_bf16, tile_load, tile_load_past, tile_store, tile_zero};
use crate::kernels::format::{Codes, Format};
use crate::lanes::avx512::Avx512Lanes;
use crate::packed::CodedView;

/// Tiles of rows.
pub(super) const TILES: usize = 2;

/// What two panels need: weights of an even and of an odd block of each.
#[repr(align(64))]
struct Scratch {
    weights: MaybeUninit<[[u16; 2 * TILE]; 2]>,
    heads: [[Heads; HEADS]; 2],
    sums: MaybeUninit<[[f32; TILES * SUMS]; 2]>,
}

/// Computes two panels at a time, as many as there are; returns the panels that are left.
///
/// # Safety
/// As [`super::all_panels`], with the tiles configured, for the rows of two tiles.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx2,fma,f16c")]
pub(super) unsafe fn all_panels<F: Format>(
    weights: [CodedView; 2],
    panels: Range<usize>,
    acts: ActView,
    rows: Range<usize>,
    sink: Sink,
) -> Range<usize> {
    let mut scratch = Scratch {
        weights: MaybeUninit::uninit(),
        heads: [[Heads::NONE; HEADS]; 2],
        sums: MaybeUninit::uninit(),
    };
    let sums: *mut f32 = scratch.sums.as_mut_ptr().cast();
    let sums = [sums, sums.wrapping_add(TILES * SUMS)];
    let n_blocks = weights[0].panel.n_blocks;
    let step = sink.pair_step();
    let mut waiting = Waiting::none(sink);
    let mut left = panels;
    while left.len() >= step {
        let panel = left.start;
        let pair = Pair {
            acts: acts.brains.wrapping_add(rows.start / TILE_ROWS * n_blocks * TILE),
            n_blocks,
            weights: scratch.weights.as_mut_ptr().cast(),
            lines: Lines::of(sink, panel, rows.clone()),
        };
        let [first, second] = &mut scratch.heads;
        // SAFETY: panels, blocks and rows stay within what the caller vouches for.
        unsafe {
            let mut from = [
                Unpacker::new(sink.panel_of_pair(weights, panel, 0), n_blocks, first),
                Unpacker::new(sink.panel_of_pair(weights, panel, 1), n_blocks, second),
            ];
            pair.multiply::<F>(&mut from, sums, &mut waiting);
        }
        let product = |nth| Product::new(weights[0], panel + nth, acts, rows.clone());
        let sums = sums.map(Sums::whole);
        waiting = match sink {
            Sink::Gate(_) => Waiting::one(sums, product(0), sink),
            _ => Waiting::two(sums, [product(0), product(1)], sink),
        };
        left.start += step;
    }
    // SAFETY: the caller vouches for the sink; the sums are there.
    unsafe { waiting.write() };
    left
}

/// Two tiles of activations, and the weights they meet.
#[derive(Clone, Copy)]
struct Pair {
    acts: *const u16,
    n_blocks: usize,
    weights: *mut u16,
    lines: Lines,
}

impl Pair {
    /// # Safety
    /// As [`all_panels`].
    #[inline(always)]
    unsafe fn multiply<F: Format>(
        self,
        from: &mut [Unpacker<'_>; 2],
        sums: [*mut f32; 2],
        waiting: &mut Waiting,
    ) {
        // SAFETY: forwarded contract; blocks stay within the panels.
        unsafe {
            tile_zero!(0);
            tile_zero!(1);
            tile_zero!(2);
            tile_zero!(3);
            if F::CODES == Codes::Brains {
                for block in 0..self.n_blocks {
                    let at = |from: &mut Unpacker<'_>| {
                        from.ahead.ask::<Avx512Lanes, F>();
                        from.parts.codes.wrapping_add(block * F::CODE_BYTES).cast()
                    };
                    let [first, second] = from;
                    self.add_block(block, [at(first), at(second)]);
                    waiting.write_some();
                }
            } else {
                from[0].start::<F>();
                from[1].start::<F>();
                for block in 0..self.n_blocks {
                    let ready = block.wrapping_sub(1);
                    let first = First { pair: self, block: ready };
                    from[0].unpack::<F>(block, self.slot(block, 0), first);
                    let second = Second { pair: self, block: ready };
                    from[1].unpack::<F>(block, self.slot(block, 1), second);
                    waiting.write_some();
                }
                let last = self.n_blocks - 1;
                self.add_block(last, [self.slot(last, 0), self.slot(last, 1)]);
            }
            waiting.write();
            tile_store!(0, sums[0], 64usize);
            tile_store!(1, sums[0].add(SUMS), 64usize);
            tile_store!(2, sums[1], 64usize);
            tile_store!(3, sums[1].add(SUMS), 64usize);
        }
    }

    /// Where a block's weights of a panel are between unpacking and use.
    #[inline(always)]
    fn slot(self, block: usize, panel: usize) -> *mut u16 {
        self.weights.wrapping_add((block % 2 * 2 + panel) * TILE)
    }

    /// All four products of a block.
    ///
    /// # Safety
    /// As [`load_acts`](Self::load_acts); the weights hold a tile each.
    #[inline(always)]
    unsafe fn add_block(self, block: usize, weights: [*const u16; 2]) {
        // SAFETY: forwarded contract.
        unsafe {
            self.load_acts::<0>(block);
            self.load_acts::<1>(block);
            tile_load!(4, weights[0], 64usize);
            tile_dot_bf16!(0, 4, 6);
            tile_dot_bf16!(1, 4, 7);
            tile_load!(5, weights[1], 64usize);
            tile_dot_bf16!(2, 5, 6);
            tile_dot_bf16!(3, 5, 7);
        }
    }

    /// Activations are tiles 6 and 7, weights 4 and 5, sums 0 to 3.
    ///
    /// # Safety
    /// `block` lies within the activations, the tiles are configured.
    #[inline(always)]
    unsafe fn load_acts<const NTH: usize>(self, block: usize) {
        let acts = self.acts.wrapping_add((NTH * self.n_blocks + block) * TILE);
        // SAFETY: forwarded contract.
        unsafe {
            match NTH {
                0 => tile_load_past!(6, acts, 64usize),
                _ => tile_load_past!(7, acts, 64usize),
            }
        }
        self.lines.ask::<2>(NTH, block);
    }
}

/// The first panel's products of a block that is ready, between the quarters of its next one.
#[derive(Clone, Copy)]
struct First {
    pair: Pair,
    block: usize,
}

impl Between for First {
    #[inline(always)]
    unsafe fn after<const QUARTER: usize>(self) {
        let First { pair, block } = self;
        if block >= pair.n_blocks {
            return;
        }
        // SAFETY: the block lies within the panel and its weights are ready.
        unsafe {
            match QUARTER {
                0 => pair.load_acts::<0>(block),
                1 => pair.load_acts::<1>(block),
                2 => tile_load!(4, pair.slot(block, 0), 64usize),
                _ => {
                    tile_dot_bf16!(0, 4, 6);
                    tile_dot_bf16!(1, 4, 7);
                }
            }
        }
    }
}

/// The second panel's.
#[derive(Clone, Copy)]
struct Second {
    pair: Pair,
    block: usize,
}

impl Between for Second {
    #[inline(always)]
    unsafe fn after<const QUARTER: usize>(self) {
        let Second { pair, block } = self;
        if block >= pair.n_blocks {
            return;
        }
        // SAFETY: the block lies within the panel and its weights are ready.
        unsafe {
            match QUARTER {
                0 => tile_load!(5, pair.slot(block, 1), 64usize),
                1 => tile_dot_bf16!(2, 5, 6),
                2 => tile_dot_bf16!(3, 5, 7),
                _ => (),
            }
        }
    }
}
