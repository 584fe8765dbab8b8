//! The product of [`super::matmul_int`] on bytes, to the bit.
//!
//! An integer is sixteen times a signed byte, plus another from -8 to 7. Codes meet both by bytes:
//! where rows are few, four columns at a time in the lanes of a register, and otherwise on matrix
//! tiles, sixteen rows at a time. A tile of four-bit codes holds each code and sixteen times it, so
//! that one product of tiles adds up both bytes of 32 columns. Weights with two scales for 32
//! columns stay in lanes.
//!
//! Sums of one block leave the tiles as integers, and are scaled and added up in registers.

mod few;

use std::arch::x86_64::*;
use std::ops::Range;

use few::{all_rows, few_rows};

use crate::acts::{ActView, ActViewMut, IntScale, TILE_ROWS};
use crate::aligned::LINE;
use crate::amx::{self, TileShapes, tile_dot_bytes, tile_load, tile_store, tile_zero};
use crate::kernels::format::{Codes, Format, Panel, with_int_format};
use crate::kernels::matmul::{Ahead, Output, ROWS_TOGETHER, finish};
use crate::kernels::matmul_int::{Scales, round_block};
use crate::lanes::avx512::Avx512Lanes;
use crate::lanes::{Lanes, WIDTH};
use crate::packed::CodedView;

/// Blocks of weights that are unpacked at a time.
const CHUNK: usize = 8;

/// Blocks that are unpacked before they are multiplied, where there is one tile of rows.
const LEAD: usize = 4;

/// Computes outputs `panels` of `rows`.
///
/// # Safety
/// As [`super::matmul_int::matmul`], on a machine whose tiles are available, for activations whose
/// integers are bytes.
#[inline(always)]
pub(crate) unsafe fn matmul<V: Lanes>(
    w: CodedView,
    panels: Range<usize>,
    acts: ActView,
    rows: Range<usize>,
    out: Output,
) {
    // SAFETY: forwarded contract; the layout names the format the weight was packed with.
    unsafe { with_int_format!(w.layout, all_panels::<V>(w, panels, acts, rows, out)) }
}

/// # Safety
/// As [`matmul`].
#[inline(always)]
unsafe fn all_panels<V: Lanes, F: Format>(
    w: CodedView,
    panels: Range<usize>,
    acts: ActView,
    rows: Range<usize>,
    out: Output,
) {
    // SAFETY: forwarded contract.
    unsafe {
        if F::GROUPS == 2 {
            return panels.for_each(|panel| all_rows::<F>(w, panel, acts, rows.clone(), out));
        }
        // Of many rows, the last group may be a few, which lie as the others do.
        match (acts.tile_rows, rows.len()) {
            (1, _) => panels.for_each(|panel| few_rows::<F, 1>(w, panel, acts, rows.start, out)),
            (2, _) => panels.for_each(|panel| few_rows::<F, 2>(w, panel, acts, rows.start, out)),
            (4, 3) => panels.for_each(|panel| few_rows::<F, 3>(w, panel, acts, rows.start, out)),
            (4, _) => panels.for_each(|panel| few_rows::<F, 4>(w, panel, acts, rows.start, out)),
            (8, _) => on_tiles::<F, 8>(w, panels, acts, rows, out),
            _ => on_tiles::<F, TILE_ROWS>(w, panels, acts, rows, out),
        }
    }
}

/// What the tiles of a panel go through, on lines of its own; most of it stays in the first-level
/// cache.
#[repr(C, align(64))]
struct Scratch {
    codes: [[u8; 1024]; CHUNK],
    /// Products of two blocks in turn; bytes have a tile for each of the integers' bytes.
    dots: [[Dots; 2]; 2],
    scales: [[f32; WIDTH]; CHUNK],
    mins: [[f32; WIDTH]; CHUNK],
    sums: [[f32; WIDTH]; ROWS_TOGETHER],
}

type Dots = [[i32; WIDTH]; TILE_ROWS];

/// `rows` of `panels`, `N` of them at a time.
///
/// # Safety
/// As [`matmul`], for at most `N` rows where `N` is less than [`TILE_ROWS`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx2,fma,f16c")]
unsafe fn on_tiles<F: Format, const N: usize>(
    w: CodedView,
    panels: Range<usize>,
    acts: ActView,
    rows: Range<usize>,
    out: Output,
) {
    let mut scratch = std::mem::MaybeUninit::<Scratch>::uninit();
    let scratch = scratch.as_mut_ptr();
    let n_tiles = rows.len().div_ceil(N);
    // SAFETY: panels, rows and blocks stay within what the caller vouches for; what is read of the
    // scratch was written before, products of rows past the last as zeros; tiles are available.
    // Rows past the last are within the activations' room, and nobody reads their sums.
    unsafe {
        (&raw mut (*scratch).dots).write_bytes(0, 1);
        shapes::<F>(rows.len().min(TILE_ROWS)).configure();
        for panel in panels {
            let (parts, n_blocks) = (w.panel(panel), w.panel.n_blocks);
            let sums = (&raw mut (*scratch).sums).cast();
            let mut unpacker = Unpacker { parts, next: 0, ahead: Ahead::new(parts), scratch };
            if n_tiles == 1 {
                unpacker.up_to::<F>(n_blocks.min(LEAD));
                let tile = Tile::new::<F>(parts, 0, acts, rows.start, scratch);
                tile.add_blocks::<F, N>(n_blocks, sums, Some(&mut unpacker));
            } else {
                for first in (0..n_blocks).step_by(CHUNK) {
                    let end = n_blocks.min(first + CHUNK);
                    unpacker.up_to::<F>(end);
                    for tile in 0..n_tiles {
                        let row = rows.start + tile * N;
                        let tile_sums = sums.add(tile * N);
                        let tile = Tile::new::<F>(parts, first, acts, row, scratch);
                        tile.add_blocks::<F, N>(end - first, tile_sums, None);
                    }
                }
            }
            let n_outputs = WIDTH.min(w.n_rows - panel * WIDTH);
            for (i, row) in rows.clone().enumerate() {
                let sum = Avx512Lanes::load((&raw const (*scratch).sums[i]).cast());
                let sum = acts.scaled(sum, row);
                finish(sum, out, row * out.stride + panel * WIDTH, n_outputs);
            }
        }
        amx::release();
    }
}

/// Tiles 0 to 3 hold sums, 4 and 5 activations, 6 and 7 codes.
const fn shapes<F: Format>(n_rows: usize) -> TileShapes {
    let shapes = TileShapes::of_rows(n_rows);
    match F::CODES {
        Codes::Nibbles => shapes.with(4, n_rows, LINE).with(5, n_rows, LINE),
        _ => {
            let half = shapes.with(4, n_rows, LINE / 2).with(5, n_rows, LINE / 2);
            half.with(6, 8, LINE).with(7, 8, LINE)
        }
    }
}

/// Gets weights ready, block after block: scales as floats, four-bit codes as bytes.
struct Unpacker {
    parts: Panel,
    next: usize,
    ahead: Ahead,
    scratch: *mut Scratch,
}

impl Unpacker {
    /// # Safety
    /// The panel has `end` blocks; nobody needs those any more that lie [`CHUNK`] before; the
    /// machine has AVX-512.
    #[inline(always)]
    unsafe fn up_to<F: Format>(&mut self, end: usize) {
        while self.next < end {
            // SAFETY: forwarded contract.
            unsafe { self.one::<F>() };
        }
    }

    /// # Safety
    /// As [`Unpacker::up_to`].
    #[inline(always)]
    unsafe fn one<F: Format>(&mut self) {
        let (block, slot, scratch) = (self.next, self.next % CHUNK, self.scratch);
        self.next += 1;
        // SAFETY: forwarded contract.
        unsafe {
            self.ahead.ask::<Avx512Lanes, F>();
            let Scales { scale, min } = Scales::<Avx512Lanes>::load::<F>(self.parts, block);
            scale.store((&raw mut (*scratch).scales[slot]).cast());
            if F::MIN {
                min.store((&raw mut (*scratch).mins[slot]).cast());
            }
            if !matches!(F::CODES, Codes::Nibbles) {
                return;
            }
            let from = self.parts.codes.add(block * F::CODE_BYTES);
            let to = (&raw mut (*scratch).codes[slot]).cast::<u8>();
            let (low, high) = (_mm512_set1_epi8(0x0f), _mm512_set1_epi8(0xf0_u8 as i8));
            for vector in 0..4 {
                let words = _mm512_loadu_si512(from.add(vector * LINE).cast());
                let to = to.add(vector * LINE);
                let rows = [
                    _mm512_and_si512(words, low),
                    _mm512_and_si512(_mm512_srli_epi32::<4>(words), low),
                    _mm512_and_si512(_mm512_slli_epi32::<4>(words), high),
                    _mm512_and_si512(words, high),
                ];
                for (nth, bytes) in rows.into_iter().enumerate() {
                    _mm512_store_si512(to.add(nth * 4 * LINE).cast(), bytes);
                }
            }
        }
    }
}

/// Rows that meet blocks of a panel.
#[derive(Clone, Copy)]
struct Tile {
    first: usize,
    /// Codes of the first block as they were packed, which bytes are multiplied from.
    codes: *const u8,
    /// The rows' integers of the first block, and bytes from one row to the next.
    ints: *const u8,
    stride: usize,
    scales: *const f32,
    scratch: *mut Scratch,
}

/// Multiplies a block into tiles `$low` and `$high`; four-bit codes need only the first.
macro_rules! multiply {
    ($self:ident, $nth:ident, $low:literal, $high:literal, $ints:literal, $codes:literal) => {{
        let ints = $self.ints.add($nth * LINE);
        if matches!(F::CODES, Codes::Nibbles) {
            let codes = (&raw const (*$self.scratch).codes[$nth % CHUNK]).cast::<u8>();
            tile_zero!($low);
            tile_load!($ints, ints, $self.stride);
            tile_load!($codes, codes, LINE);
            tile_dot_bytes!($low, $ints, $codes);
        } else {
            let codes = $self.codes.add($nth * F::CODE_BYTES);
            tile_zero!($low);
            tile_zero!($high);
            tile_load!($codes, codes, LINE);
            tile_load!($ints, ints, $self.stride);
            tile_dot_bytes!($low, $ints, $codes);
            tile_load!($ints, ints.add(LINE / 2), $self.stride);
            tile_dot_bytes!($high, $ints, $codes);
        }
    }};
}

/// Stores tiles `$low` and `$high`.
macro_rules! store {
    ($self:ident, $nth:ident, $low:literal, $high:literal) => {{
        let [low, high] = $self.dots($nth);
        tile_store!($low, low, LINE);
        if !matches!(F::CODES, Codes::Nibbles) {
            tile_store!($high, high, LINE);
        }
    }};
}

/// # Safety
/// For all methods: as [`on_tiles`]; `nth` is the place of a block among those that follow the
/// first, whose weights lie in the scratch.
#[allow(clippy::missing_safety_doc, reason = "see above")]
impl Tile {
    #[inline(always)]
    unsafe fn new<F: Format>(
        parts: Panel,
        first: usize,
        acts: ActView,
        row: usize,
        scratch: *mut Scratch,
    ) -> Tile {
        // SAFETY: forwarded contract.
        unsafe {
            Tile {
                first,
                codes: parts.codes.add(first * F::CODE_BYTES),
                ints: acts.ints.add((row * acts.n_blocks + first) * LINE),
                stride: acts.n_blocks * LINE,
                scales: acts.int_scales_of(row, first),
                scratch,
            }
        }
    }

    /// Adds `n` blocks to the sums of `N` rows. Weights are unpacked on the way where nobody has
    /// done it before.
    ///
    /// A block's products are begun two blocks ahead, and stored one block ahead: what is stored
    /// as a tile can be read as vectors only when it has left the processor's queue. The same holds
    /// for weights that are stored as vectors and read as a tile.
    #[inline(always)]
    unsafe fn add_blocks<F: Format, const N: usize>(
        self,
        n: usize,
        sums: *mut [f32; WIDTH],
        mut unpacker: Option<&mut Unpacker>,
    ) {
        // SAFETY: forwarded contract.
        unsafe {
            let mut all = [_mm512_setzero_ps(); N];
            if self.first > 0 {
                for (r, sum) in all.iter_mut().enumerate() {
                    *sum = _mm512_load_ps(sums.add(r).cast());
                }
            }
            let mut nth = 0;
            self.multiply_even::<F>(0);
            if n > 1 {
                self.multiply_odd::<F>(1);
            }
            self.store_even::<F>(0);
            while nth + 3 < n {
                if let Some(unpacker) = unpacker.as_mut() {
                    unpacker.up_to::<F>(n.min(nth + LEAD + 1));
                }
                self.multiply_even::<F>(nth + 2);
                self.store_odd::<F>(nth + 1);
                self.add::<F, N>(nth, &mut all);
                if let Some(unpacker) = unpacker.as_mut() {
                    unpacker.up_to::<F>(n.min(nth + LEAD + 2));
                }
                self.multiply_odd::<F>(nth + 3);
                self.store_even::<F>(nth + 2);
                self.add::<F, N>(nth + 1, &mut all);
                nth += 2;
            }
            if nth + 2 < n {
                self.multiply_even::<F>(nth + 2);
            }
            if nth + 1 < n {
                self.store_odd::<F>(nth + 1);
            }
            self.add::<F, N>(nth, &mut all);
            if nth + 1 < n {
                self.add::<F, N>(nth + 1, &mut all);
            }
            if nth + 2 < n {
                self.store_even::<F>(nth + 2);
                self.add::<F, N>(nth + 2, &mut all);
            }
            for (r, sum) in all.iter().enumerate() {
                _mm512_store_ps(sums.add(r).cast(), *sum);
            }
        }
    }

    #[inline(always)]
    unsafe fn multiply_even<F: Format>(self, nth: usize) {
        // SAFETY: forwarded contract.
        unsafe { multiply!(self, nth, 0, 1, 4, 6) }
    }

    #[inline(always)]
    unsafe fn multiply_odd<F: Format>(self, nth: usize) {
        // SAFETY: forwarded contract.
        unsafe { multiply!(self, nth, 2, 3, 5, 7) }
    }

    #[inline(always)]
    unsafe fn store_even<F: Format>(self, nth: usize) {
        // SAFETY: forwarded contract.
        unsafe { store!(self, nth, 0, 1) }
    }

    #[inline(always)]
    unsafe fn store_odd<F: Format>(self, nth: usize) {
        // SAFETY: forwarded contract.
        unsafe { store!(self, nth, 2, 3) }
    }

    /// Where a block's products lie.
    #[inline(always)]
    unsafe fn dots(self, nth: usize) -> [*mut Dots; 2] {
        // SAFETY: forwarded contract.
        unsafe { [0, 1].map(|byte| &raw mut (*self.scratch).dots[byte][nth % 2]) }
    }

    /// Scales a block's products and adds them to the rows' sums.
    #[inline(always)]
    unsafe fn add<F: Format, const N: usize>(self, nth: usize, sums: &mut [__m512; N]) {
        // SAFETY: forwarded contract.
        unsafe {
            let [low, high] = self.dots(nth);
            let (scratch, slot) = (self.scratch, nth % CHUNK);
            let mut scales = Scales {
                scale: Avx512Lanes::load((&raw const (*scratch).scales[slot]).cast()),
                min: Avx512Lanes::splat(0.0),
            };
            if F::MIN {
                scales.min = Avx512Lanes::load((&raw const (*scratch).mins[slot]).cast());
            }
            let xs = self.scales.add(nth * IntScale::FIELDS * N);
            for (r, sum) in sums.iter_mut().enumerate() {
                let mut dot = _mm512_load_si512((&raw const (*low)[r]).cast());
                if !matches!(F::CODES, Codes::Nibbles) {
                    let high = _mm512_load_si512((&raw const (*high)[r]).cast());
                    dot = _mm512_add_epi32(dot, _mm512_slli_epi32::<4>(high));
                }
                let x = IntScale::read(xs.add(r), N);
                *sum = scales.add_dot::<F>(Avx512Lanes::from_words(dot), x, Avx512Lanes(*sum)).0;
            }
        }
    }
}

/// Rounds `rows` of `acts` from rows at `x` to integers, as bytes.
///
/// # Safety
/// `x` holds the rows, which lie within `acts`; the machine has AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx2,fma,f16c")]
pub(crate) unsafe fn put_bytes(x: *const f32, acts: ActViewMut, rows: Range<usize>) {
    // SAFETY: blocks lie within the buffers.
    unsafe {
        for row in rows.clone() {
            for block in 0..acts.n_blocks {
                let x = x.add((row - rows.start) * acts.n_cols);
                let [low, high] = round_block::<Avx512Lanes>(x, acts, row, block);
                let to = acts.ints.add((row * acts.n_blocks + block) * LINE);
                put_half(low.0, to);
                put_half(high.0, to.add(WIDTH));
            }
        }
    }
}

/// Writes the two bytes of sixteen integers, the second ones half a line behind the first.
///
/// # Safety
/// `to` has room for them; the machine has AVX-512.
#[inline(always)]
unsafe fn put_half(ints: __m512, to: *mut u8) {
    // SAFETY: forwarded contract.
    unsafe {
        let ints = _mm512_cvtps_epi32(ints);
        let sixteenths = _mm512_srai_epi32::<4>(_mm512_add_epi32(ints, _mm512_set1_epi32(8)));
        let rest = _mm512_sub_epi32(ints, _mm512_slli_epi32::<4>(sixteenths));
        _mm_storeu_si128(to.cast(), _mm512_cvtepi32_epi8(rest));
        _mm_storeu_si128(to.add(LINE / 2).cast(), _mm512_cvtepi32_epi8(sixteenths));
    }
}
