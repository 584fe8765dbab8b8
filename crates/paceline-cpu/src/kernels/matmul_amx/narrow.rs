//! Products for one tile of rows, or for three or four (two: [`super::pairs`]): they meet a panel's
//! weights while the next ones are unpacked. Products lag behind the unpacking, so that neither
//! waits for the other, and what is loaded into tiles is loaded between the quarters of a block
//! that is unpacked: a tile is sixteen loads, which would keep those of the unpacking waiting.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::lines::Lines;
use super::put::{Product, Sums};
use super::unpack::{Between, HEADS, Heads, Unpacker};
use super::waiting::Waiting;
use super::{STRIP, SUMS, Sink, TILE};
use crate::acts::{ACT_BLOCK, ActView, TILE_ROWS};
use crate::amx::{tile_dot_bf16, tile_load, tile_load_past, tile_store, tile_zero};
use crate::kernels::format::{Codes, Format};
use crate::lanes::WIDTH;
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
    let sums = [0, 1].map(|nth| Sums {
        at: scratch.sums.as_mut_ptr().cast::<f32>().wrapping_add(nth * STRIP * SUMS),
        step: if acts.tile_rows == 1 { 1 } else { WIDTH },
    });
    if acts.tile_rows < TILE_ROWS {
        for sums in sums {
            // SAFETY: the scratch has room for a tile. Its vectors are read whole.
            unsafe { sums.at.write_bytes(0, SUMS) };
        }
    }
    let unpacked: *mut u16 = scratch.weights.as_mut_ptr().cast();
    let mut waiting = Waiting::none(sink);
    for panel in panels {
        let strip = |w: CodedView, sums| Strip {
            acts: acts.brains.wrapping_add(rows.start / TILE_ROWS * w.panel.n_blocks * TILE),
            act_rows: acts.tile_rows,
            n_blocks: w.panel.n_blocks,
            weights: unpacked,
            sums,
            lines: Lines::of(sink, panel, rows.clone()),
        };
        let strips = [strip(weights[0], sums[0]), strip(weights[1], sums[1])];
        let heads = &mut scratch.heads;
        // SAFETY: panels, blocks and rows stay within what the caller vouches for.
        unsafe {
            strips[0].multiply::<F>(weights[0], panel, rows.len(), (heads, &mut waiting));
            if matches!(sink, Sink::Gate(_)) {
                strips[1].multiply::<F>(weights[1], panel, rows.len(), (heads, &mut waiting));
            }
        }
        let product = Product::new(weights[0], panel, acts, rows.clone());
        waiting = Waiting::one(sums, product, sink);
    }
    // SAFETY: the caller vouches for the sink; the sums are there.
    unsafe { waiting.write() };
}

/// A strip's tiles of activations and where their products with a panel go.
#[derive(Clone, Copy)]
struct Strip {
    acts: *const u16,
    /// Rows that a tile of activations has room for: fewer than sixteen only if it is the only one.
    act_rows: usize,
    n_blocks: usize,
    weights: *mut u16,
    sums: Sums,
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
        (heads, waiting): (&mut [Heads; HEADS], &mut Waiting),
    ) {
        // SAFETY: forwarded contract.
        unsafe {
            let mut from = Unpacker::new(w.panel(panel), self.n_blocks, heads);
            match n_rows.div_ceil(TILE_ROWS) {
                1 => self.multiply_tiles::<F, 1>(&mut from, waiting),
                2 => self.multiply_tiles::<F, 2>(&mut from, waiting),
                3 => self.multiply_tiles::<F, 3>(&mut from, waiting),
                _ => self.multiply_tiles::<F, 4>(&mut from, waiting),
            }
        }
    }

    /// # Safety
    /// As [`all_panels`], for `T` tiles of rows.
    #[inline(always)]
    unsafe fn multiply_tiles<F: Format, const T: usize>(
        self,
        from: &mut Unpacker<'_>,
        waiting: &mut Waiting,
    ) {
        // SAFETY: forwarded contract; blocks stay within the panel.
        unsafe {
            tile_zero!(0);
            tile_zero!(1);
            tile_zero!(2);
            tile_zero!(3);
            if T > 1 {
                self.add_all::<F, _>((from, waiting), |ready| Add::<T>(self, ready));
            } else if self.n_blocks * self.act_rows <= NEAR * TILE_ROWS {
                self.add_all::<F, _>((from, waiting), |ready| AddOne::<true>(self, ready));
            } else {
                self.add_all::<F, _>((from, waiting), |ready| AddOne::<false>(self, ready));
            }
            waiting.write();
            self.store::<T>();
        }
    }

    /// Where a block's weights are between unpacking and use.
    #[inline(always)]
    fn slot(self, block: usize) -> *mut u16 {
        self.weights.wrapping_add(block % SLOTS * TILE)
    }

    /// Unpacks block after block, if they are packed; `add` is what multiplies one that is ready
    /// meanwhile. The sums of the panel before are written, too.
    ///
    /// # Safety
    /// As [`multiply`](Self::multiply).
    #[inline(always)]
    unsafe fn add_all<F: Format, B: Between>(
        self,
        (from, waiting): (&mut Unpacker<'_>, &mut Waiting),
        add: impl Fn(Ready) -> B,
    ) {
        // SAFETY: blocks stay within the panel, slots within the scratch.
        unsafe {
            if F::CODES == Codes::Brains {
                for block in 0..self.n_blocks {
                    let weights = from.parts.codes.add(block * F::CODE_BYTES).cast();
                    from.ahead.ask::<Avx512Lanes, F>();
                    add(Ready { block, weights }).all();
                    waiting.write_some();
                }
                return;
            }
            let ready = |block| Ready { block, weights: self.slot(block) };
            from.start::<F>();
            for block in 0..self.n_blocks {
                from.unpack::<F>(block, self.slot(block), add(ready(block.wrapping_sub(LAG))));
                waiting.write_some();
            }
            for block in self.n_blocks.saturating_sub(LAG)..self.n_blocks {
                add(ready(block)).all();
            }
        }
    }

    /// The product of a block's weights with one of several tiles of activations, which come in
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
            tile_store!(0, self.sums.at, 4 * self.sums.step);
            if T > 1 {
                tile_store!(1, self.sums.at.add(SUMS), 64usize);
            }
            if T > 2 {
                tile_store!(2, self.sums.at.add(2 * SUMS), 64usize);
            }
            if T > 3 {
                tile_store!(3, self.sums.at.add(3 * SUMS), 64usize);
            }
        }
    }
}

/// A block whose weights are unpacked; none while the first ones are not.
#[derive(Clone, Copy)]
struct Ready {
    block: usize,
    weights: *const u16,
}

/// Multiplies a block that is ready, one tile of activations after each quarter.
#[derive(Clone, Copy)]
struct Add<const T: usize>(Strip, Ready);

impl<const T: usize> Between for Add<T> {
    #[inline(always)]
    unsafe fn after<const QUARTER: usize>(self) {
        let Add(strip, Ready { block, weights }) = self;
        if block < strip.n_blocks && QUARTER < T {
            // SAFETY: the block lies within the panel and its weights are ready.
            unsafe { strip.add_tile::<QUARTER>(weights, block) };
        }
    }
}

/// Multiplies a block that is ready with the only tile of activations, its operands loaded one
/// after the other. `IS_NEAR` if the activations stay in the first-level cache.
#[derive(Clone, Copy)]
struct AddOne<const IS_NEAR: bool>(Strip, Ready);

impl<const IS_NEAR: bool> Between for AddOne<IS_NEAR> {
    #[inline(always)]
    unsafe fn after<const QUARTER: usize>(self) {
        let AddOne(strip, Ready { block, weights }) = self;
        if block >= strip.n_blocks {
            return;
        }
        let acts = strip.acts.wrapping_add(block * ACT_BLOCK * strip.act_rows);
        let stride = strip.act_rows * size_of::<[u16; 2]>();
        // SAFETY: the block lies within the panel and its weights are ready.
        unsafe {
            match QUARTER {
                0 => tile_load!(4, weights, 64usize),
                1 => match IS_NEAR {
                    true => tile_load!(5, acts, stride),
                    false => tile_load_past!(5, acts, stride),
                },
                2 => strip.lines.ask::<1>(0, block),
                _ => tile_dot_bf16!(0, 4, 5),
            }
        }
    }
}
