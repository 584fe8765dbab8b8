//! Products for more rows than a strip's: two panels' weights are unpacked once and stay ready, two
//! tiles of rows meet both at a time, so that each tile that is loaded serves two products. What is
//! done with unpacked weights does not know their format and is compiled once.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::lines::Lines;
use super::put::{Product, Sums};
use super::unpack::{HEADS, Heads, Unpacker};
use super::waiting::Waiting;
use super::{SUMS, Sink, TILE};
use crate::acts::{ActView, TILE_ROWS};
use crate::amx::{tile_dot_bf16, tile_load, tile_load_past, tile_store, tile_zero};
use crate::kernels::format::{Codes, Format};
use crate::kernels::matmul::ROWS_TOGETHER;
use crate::lanes::avx512::Avx512Lanes;
use crate::packed::CodedView;

/// Tiles of rows that meet the weights at a time.
const PAIR: usize = 2;

/// Blocks of weights that are kept unpacked.
const READY: usize = 64;

/// From the sums of one panel to those of the next.
const APART: usize = ROWS_TOGETHER / TILE_ROWS * SUMS;

/// What two panels need.
#[repr(align(64))]
struct Scratch {
    weights: MaybeUninit<[u16; 2 * READY * TILE]>,
    heads: [[Heads; HEADS]; 2],
    sums: MaybeUninit<[f32; 2 * APART]>,
}

/// # Safety
/// As [`super::all_panels`], with the tiles configured, for at most `ROWS_TOGETHER` rows.
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
        heads: [[Heads::NONE; HEADS]; 2],
        sums: MaybeUninit::uninit(),
    };
    let step = sink.pair_step();
    let mut waiting = Waiting::none(sink);
    for panel in panels.clone().step_by(step) {
        let job = Job { weights, panel, acts, rows: (rows.start, rows.end), sink };
        // SAFETY: forwarded contract.
        unsafe {
            if panel + step > panels.end {
                job.multiply::<F, 1>(&mut scratch, &mut waiting);
            } else {
                job.multiply::<F, 2>(&mut scratch, &mut waiting);
            }
        }
    }
    // SAFETY: the caller vouches for the sink; the sums are there.
    unsafe { waiting.write() };
}

/// One or two panels' products with some rows.
#[derive(Clone, Copy)]
struct Job {
    weights: [CodedView; 2],
    panel: usize,
    acts: ActView,
    rows: (usize, usize),
    sink: Sink,
}

/// Where the weights of the panels lie unpacked, and what is still to be done for that.
struct Source<'a> {
    unpackers: [Unpacker<'a>; 2],
    ready: [*mut u16; 2],
}

impl Job {
    /// # Safety
    /// As [`all_panels`], for `W` panels.
    #[inline(always)]
    unsafe fn multiply<F: Format, const W: usize>(
        self,
        scratch: &mut Scratch,
        waiting: &mut Waiting,
    ) {
        let n_blocks = self.weights[0].panel.n_blocks;
        let sums: *mut f32 = scratch.sums.as_mut_ptr().cast();
        let ready: *mut u16 = scratch.weights.as_mut_ptr().cast();
        let [first, second] = &mut scratch.heads;
        // SAFETY: blocks, tiles and panels stay within what the caller vouches for.
        unsafe {
            let panel = |nth| self.sink.panel_of_pair(self.weights, self.panel, nth);
            let unpackers = [
                Unpacker::new(panel(0), n_blocks, first),
                Unpacker::new(panel(W - 1), n_blocks, second),
            ];
            let mut source = Source { unpackers, ready: [ready, ready.add(READY * TILE)] };
            source.start::<F, W>();
            for blocks in (0..n_blocks).step_by(READY).map(|b| b..n_blocks.min(b + READY)) {
                source.unpack::<F, W>(blocks.clone());
                for row in (self.rows.0..self.rows.1).step_by(PAIR * TILE_ROWS) {
                    // Sums wait for all blocks only where not all are ready at once.
                    let tile = if n_blocks > READY { (row - self.rows.0) / TILE_ROWS } else { 0 };
                    let rows = row..self.rows.1.min(row + PAIR * TILE_ROWS);
                    let pair = Pair {
                        acts: self.acts.brains.add(row / TILE_ROWS * n_blocks * TILE),
                        n_blocks,
                        sums: sums.add(tile * SUMS),
                        lines: Lines::of(self.sink, self.panel, rows.clone()),
                    };
                    let weights = source.weights::<F>(blocks.start);
                    if rows.len() > TILE_ROWS {
                        pair.multiply::<W, 2>(weights, blocks.clone(), waiting);
                    } else {
                        pair.multiply::<W, 1>(weights, blocks.clone(), waiting);
                    }
                    if blocks.end == n_blocks {
                        *waiting = self.results::<W>(pair.sums, rows);
                    }
                }
            }
        }
    }

    /// What the sums of `W` panels become.
    #[inline(always)]
    fn results<const W: usize>(self, sums: *mut f32, rows: Range<usize>) -> Waiting {
        let sums = [sums, sums.wrapping_add(APART)].map(Sums::whole);
        let product =
            |nth| Product::new(self.weights[0], self.panel + nth, self.acts, rows.clone());
        match self.sink {
            Sink::Gate(_) => Waiting::one(sums, product(0), self.sink),
            _ if W == 1 => Waiting::one(sums, product(0), self.sink),
            _ => Waiting::two(sums, [product(0), product(1)], self.sink),
        }
    }
}

impl Source<'_> {
    /// # Safety
    /// As [`Unpacker::start`].
    #[inline(always)]
    unsafe fn start<F: Format, const W: usize>(&mut self) {
        for unpacker in &mut self.unpackers[..W] {
            if F::CODES != Codes::Brains {
                // SAFETY: forwarded contract.
                unsafe { unpacker.start::<F>() };
            }
        }
    }

    /// Makes some blocks' weights ready.
    ///
    /// # Safety
    /// As [`Unpacker::unpack`].
    #[inline(always)]
    unsafe fn unpack<F: Format, const W: usize>(&mut self, blocks: Range<usize>) {
        for nth in 0..W {
            for block in blocks.clone() {
                // SAFETY: forwarded contract.
                unsafe {
                    if F::CODES == Codes::Brains {
                        self.unpackers[nth].ahead.ask::<Avx512Lanes, F>();
                    } else {
                        let to = self.ready[nth].add(block % READY * TILE);
                        self.unpackers[nth].unpack::<F>(block, to, ());
                    }
                }
            }
        }
    }

    /// Where the panels' weights begin that were made ready last, from `block` on.
    ///
    /// # Safety
    /// The block lies within the panels.
    #[inline(always)]
    unsafe fn weights<F: Format>(&self, block: usize) -> [*const u16; 2] {
        // SAFETY: forwarded contract.
        unsafe {
            match F::CODES {
                Codes::Brains => [0, 1].map(|nth: usize| {
                    self.unpackers[nth].parts.codes.add(block * F::CODE_BYTES).cast()
                }),
                _ => self.ready.map(<*mut u16>::cast_const),
            }
        }
    }
}

/// Two tiles of activations and where their products with the panels go.
#[derive(Clone, Copy)]
struct Pair {
    acts: *const u16,
    n_blocks: usize,
    sums: *mut f32,
    lines: Lines,
}

impl Pair {
    /// What waits is written meanwhile.
    ///
    /// # Safety
    /// As [`all_panels`], for `W` panels and `T` tiles; `weights` holds the panels' blocks.
    #[inline(never)]
    unsafe fn multiply<const W: usize, const T: usize>(
        self,
        weights: [*const u16; 2],
        blocks: Range<usize>,
        waiting: &mut Waiting,
    ) {
        // SAFETY: forwarded contract.
        unsafe {
            if blocks.start == 0 {
                zero_sums();
            } else {
                self.load::<W, T>();
            }
            for (nth, block) in blocks.enumerate() {
                let weights = weights.map(|panel| panel.wrapping_add(nth * TILE));
                self.add_block::<W, T>(weights, block);
                waiting.write_some();
            }
            waiting.write();
            self.store::<W, T>();
        }
    }

    /// Sums are tiles 0 to 3, weights 4 and 5, activations 6 and 7.
    ///
    /// # Safety
    /// `weights` holds a tile of each panel, `block` lies within the activations, the tiles are
    /// configured.
    #[inline(always)]
    unsafe fn add_block<const W: usize, const T: usize>(
        self,
        weights: [*const u16; 2],
        block: usize,
    ) {
        // SAFETY: the caller vouches for both operands.
        unsafe {
            let acts = self.acts.add(block * TILE);
            tile_load_past!(4, weights[0], 64usize);
            tile_load_past!(6, acts, 64usize);
            tile_dot_bf16!(0, 4, 6);
            self.lines.ask::<W>(0, block);
            if W > 1 {
                tile_load_past!(5, weights[1], 64usize);
                tile_dot_bf16!(1, 5, 6);
            }
            if T > 1 {
                tile_load_past!(7, acts.add(self.n_blocks * TILE), 64usize);
                tile_dot_bf16!(2, 4, 7);
                self.lines.ask::<W>(1, block);
                if W > 1 {
                    tile_dot_bf16!(3, 5, 7);
                }
            }
        }
    }

    /// # Safety
    /// The scratch's sums hold those of the blocks before.
    #[inline(always)]
    unsafe fn load<const W: usize, const T: usize>(self) {
        // SAFETY: forwarded contract.
        unsafe {
            tile_load!(0, self.sums, 64usize);
            if W > 1 {
                tile_load!(1, self.sums.add(APART), 64usize);
            }
            if T > 1 {
                tile_load!(2, self.sums.add(SUMS), 64usize);
            }
            if W > 1 && T > 1 {
                tile_load!(3, self.sums.add(APART + SUMS), 64usize);
            }
        }
    }

    /// # Safety
    /// The scratch's sums have room for `T` tiles of `W` panels.
    #[inline(always)]
    unsafe fn store<const W: usize, const T: usize>(self) {
        // SAFETY: forwarded contract.
        unsafe {
            tile_store!(0, self.sums, 64usize);
            if W > 1 {
                tile_store!(1, self.sums.add(APART), 64usize);
            }
            if T > 1 {
                tile_store!(2, self.sums.add(SUMS), 64usize);
            }
            if W > 1 && T > 1 {
                tile_store!(3, self.sums.add(APART + SUMS), 64usize);
            }
        }
    }
}

/// # Safety
/// The tiles are configured.
#[inline(always)]
unsafe fn zero_sums() {
    // SAFETY: forwarded contract.
    unsafe {
        tile_zero!(0);
        tile_zero!(1);
        tile_zero!(2);
        tile_zero!(3);
    }
}
