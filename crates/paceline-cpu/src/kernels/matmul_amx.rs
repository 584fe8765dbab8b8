//! The product of [`super::matmul`] on matrix tiles, to the bit.
//!
//! A tile of weights (sixteen outputs, thirty-two columns) times a tile of activations (thirty-two
//! columns, sixteen rows) is one instruction. Up to four tiles of activations meet the same
//! weights while the next weights are turned into bf16, which is done with a table of a group's
//! sixteen possible weights where codes have four bits. Sums stay in tiles for all columns.
//!
//! What is stored as a vector and read back in parts (scales) or as a tile (weights) is stored well
//! ahead: such a read waits until the store has left the processor's queue.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

use crate::acts::{ActView, TILE_ROWS};
use crate::amx::{self, TileShapes, tile_dot_bf16, tile_load, tile_store, tile_zero};
use crate::kernels::format::{Codes, Format, Panel, with_format};
use crate::kernels::matmul::{Output, finish, prefetch};
use crate::lanes::avx512::Avx512Lanes;
use crate::lanes::{Lanes, WIDTH};
use crate::packed::CodedView;

/// Elements of a tile of weights or activations.
const TILE: usize = 32 * 16;

/// Tiles of activations that meet the same weights.
const STRIP: usize = 4;

/// Tiles of rows that meet all panels before the next ones do: so many stay in the second-level
/// cache.
const TOGETHER: usize = 8;

/// Blocks of weights that are kept unpacked when more rows than a strip's meet them.
const READY: usize = 64;

/// Blocks of weights in flight between unpacking and use, and how far apart the two are.
const SLOTS: usize = 4;
const LAG: usize = 2;

/// Blocks whose scales are in flight between conversion and use, and how far apart the two are.
const HEADS: usize = 16;
const HEADS_LAG: usize = 8;

#[repr(align(64))]
struct Scratch {
    weights: MaybeUninit<[u16; READY * TILE]>,
    heads: [Heads; HEADS],
    sums: MaybeUninit<[f32; STRIP * TILE_ROWS * WIDTH]>,
}

/// Computes outputs `panels` of all rows.
///
/// # Safety
/// As [`super::matmul::matmul`], on a machine whose tiles are available, for a weight and
/// activations arranged in tiles.
#[inline(always)]
pub(crate) unsafe fn matmul<V: Lanes>(
    w: CodedView,
    panels: Range<usize>,
    acts: ActView,
    n_rows: usize,
    out: Output,
) {
    // SAFETY: forwarded contract; the layout names the format the weight was packed with.
    unsafe { with_format!(w.layout, all_panels::<V>(w, panels, acts, n_rows, out)) }
}

/// # Safety
/// As [`matmul`].
#[inline(always)]
unsafe fn all_panels<V: Lanes, F: Format>(
    w: CodedView,
    panels: Range<usize>,
    acts: ActView,
    n_rows: usize,
    out: Output,
) {
    let mut scratch = Scratch {
        weights: MaybeUninit::uninit(),
        heads: [Heads::NONE; HEADS],
        sums: MaybeUninit::uninit(),
    };
    // SAFETY: panels and rows stay within what the caller vouches for; the tiles are available.
    unsafe {
        TileShapes::full().configure();
        for first in (0..n_rows).step_by(TOGETHER * TILE_ROWS) {
            let rows = first..n_rows.min(first + TOGETHER * TILE_ROWS);
            for panel in panels.clone() {
                one_panel::<F>(w, panel, acts, rows.clone(), out, &mut scratch);
            }
        }
        amx::release();
    }
}

/// Some rows of one panel.
///
/// # Safety
/// As [`matmul`], with the tiles configured; the rows start with a tile.
#[inline(always)]
unsafe fn one_panel<F: Format>(
    w: CodedView,
    panel: usize,
    acts: ActView,
    rows: Range<usize>,
    out: Output,
    scratch: &mut Scratch,
) {
    let n_blocks = w.panel.n_blocks;
    let unpack_once = rows.len() > STRIP * TILE_ROWS && n_blocks <= READY;
    // SAFETY: blocks and tiles stay within what the caller vouches for.
    unsafe {
        let weights = scratch.weights.as_mut_ptr().cast::<u16>();
        let mut unpacker = Unpacker::new(w.panel(panel), n_blocks, &mut scratch.heads);
        if unpack_once && F::CODES != Codes::Brains {
            unpacker.start::<F>();
            for block in 0..n_blocks {
                unpacker.unpack::<F>(block, weights.add(block * TILE));
            }
        }
        for first in rows.clone().step_by(STRIP * TILE_ROWS) {
            let strip = Strip {
                acts: acts.brains.add(first / TILE_ROWS * n_blocks * TILE),
                n_blocks,
                weights,
                sums: scratch.sums.as_mut_ptr().cast(),
            };
            let rows = first..rows.end.min(first + STRIP * TILE_ROWS);
            strip.multiply::<F>(&mut unpacker, unpack_once, rows.len().div_ceil(TILE_ROWS));
            strip.put(w, panel, rows, out);
        }
    }
}

/// Some tiles of activations and where their products with a panel go.
#[derive(Clone, Copy)]
struct Strip {
    acts: *const u16,
    n_blocks: usize,
    weights: *mut u16,
    sums: *mut f32,
}

impl Strip {
    /// # Safety
    /// As [`matmul`]; `n_tiles` tiles of activations follow; the scratch holds the panel's weights
    /// if they are `ready`.
    #[inline(always)]
    unsafe fn multiply<F: Format>(self, from: &mut Unpacker<'_>, ready: bool, n_tiles: usize) {
        // SAFETY: forwarded contract.
        unsafe {
            match n_tiles {
                1 => self.multiply_tiles::<F, 1>(from, ready),
                2 => self.multiply_tiles::<F, 2>(from, ready),
                3 => self.multiply_tiles::<F, 3>(from, ready),
                _ => self.multiply_tiles::<F, 4>(from, ready),
            }
        }
    }

    /// # Safety
    /// As [`multiply`](Self::multiply), with `T` tiles.
    #[inline(always)]
    unsafe fn multiply_tiles<F: Format, const T: usize>(
        self,
        from: &mut Unpacker<'_>,
        ready: bool,
    ) {
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
            } else if ready {
                for block in 0..self.n_blocks {
                    self.add_block::<T>(self.weights.add(block * TILE), block);
                }
            } else {
                self.unpack_and_add::<F, T>(from);
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
            tile_load!(5, acts, 64usize);
            tile_dot_bf16!(0, 4, 5);
            if T > 1 {
                tile_load!(6, acts.add(next), 64usize);
                tile_dot_bf16!(1, 4, 6);
            }
            if T > 2 {
                tile_load!(5, acts.add(2 * next), 64usize);
                tile_dot_bf16!(2, 4, 5);
            }
            if T > 3 {
                tile_load!(6, acts.add(3 * next), 64usize);
                tile_dot_bf16!(3, 4, 6);
            }
        }
    }

    /// # Safety
    /// The scratch's sums have room for `T` tiles.
    #[inline(always)]
    unsafe fn store<const T: usize>(self) {
        const SUMS: usize = TILE_ROWS * WIDTH;
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

    /// Writes the sums of `rows` to the output; in the scratch, outputs are rows.
    ///
    /// # Safety
    /// As [`matmul`]; the sums are those of `rows`, at most a strip.
    #[inline(always)]
    unsafe fn put(self, w: CodedView, panel: usize, rows: Range<usize>, out: Output) {
        let n_outputs = WIDTH.min(w.n_rows - panel * WIDTH);
        for (tile, first) in rows.clone().step_by(TILE_ROWS).enumerate() {
            let count = TILE_ROWS.min(rows.end - first);
            // SAFETY: the caller vouches for the sums and the output's rows.
            unsafe {
                let sums = self.sums.add(tile * TILE_ROWS * WIDTH);
                let at = first * out.stride + panel * WIDTH;
                if count < 4 {
                    for row in 0..count {
                        let sum = Avx512Lanes(column(sums, row));
                        finish(sum, out, at + row * out.stride, n_outputs);
                    }
                } else {
                    let columns = transposed(sums);
                    for (row, sum) in columns.into_iter().enumerate().take(count) {
                        finish(Avx512Lanes(sum), out, at + row * out.stride, n_outputs);
                    }
                }
            }
        }
    }
}

/// One column of sixteen rows of sixteen.
///
/// # Safety
/// `sums` holds them; the machine has AVX-512.
#[inline(always)]
unsafe fn column(sums: *const f32, column: usize) -> __m512 {
    // SAFETY: the indices stay within the sixteen rows.
    unsafe {
        let rows = _mm512_setr_epi32(
            0, 16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240,
        );
        _mm512_i32gather_ps::<4>(rows, sums.add(column))
    }
}

/// The columns of sixteen rows of sixteen.
///
/// # Safety
/// `sums` holds them; the machine has AVX-512.
#[inline(always)]
unsafe fn transposed(sums: *const f32) -> [__m512; 16] {
    // SAFETY: loads stay within the sixteen rows.
    unsafe {
        let mut quads = [[_mm512_setzero_ps(); 4]; 4];
        for (q, quad) in quads.iter_mut().enumerate() {
            // Of four rows, the quarter register `i` of quad `c` holds column `4 i + c`.
            let row = sums.add(q * 4 * WIDTH);
            let (a, b) = (_mm512_load_ps(row), _mm512_load_ps(row.add(WIDTH)));
            let (c, d) = (_mm512_load_ps(row.add(2 * WIDTH)), _mm512_load_ps(row.add(3 * WIDTH)));
            let (ab, cd) = (_mm512_unpacklo_ps(a, b), _mm512_unpacklo_ps(c, d));
            let (ab_high, cd_high) = (_mm512_unpackhi_ps(a, b), _mm512_unpackhi_ps(c, d));
            *quad = [
                _mm512_shuffle_ps::<0x44>(ab, cd),
                _mm512_shuffle_ps::<0xee>(ab, cd),
                _mm512_shuffle_ps::<0x44>(ab_high, cd_high),
                _mm512_shuffle_ps::<0xee>(ab_high, cd_high),
            ];
        }
        let mut columns = [_mm512_setzero_ps(); 16];
        for c in 0..4 {
            let low_top = _mm512_shuffle_f32x4::<0x44>(quads[0][c], quads[1][c]);
            let high_top = _mm512_shuffle_f32x4::<0xee>(quads[0][c], quads[1][c]);
            let low_end = _mm512_shuffle_f32x4::<0x44>(quads[2][c], quads[3][c]);
            let high_end = _mm512_shuffle_f32x4::<0xee>(quads[2][c], quads[3][c]);
            columns[c] = _mm512_shuffle_f32x4::<0x88>(low_top, low_end);
            columns[4 + c] = _mm512_shuffle_f32x4::<0xdd>(low_top, low_end);
            columns[8 + c] = _mm512_shuffle_f32x4::<0x88>(high_top, high_end);
            columns[12 + c] = _mm512_shuffle_f32x4::<0xdd>(high_top, high_end);
        }
        columns
    }
}

/// The scales and offsets of a block's sixteen outputs, for each of its groups.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Heads {
    scales: [[f32; WIDTH]; 2],
    offsets: [[f32; WIDTH]; 2],
}

impl Heads {
    const NONE: Heads = Heads { scales: [[0.0; WIDTH]; 2], offsets: [[0.0; WIDTH]; 2] };

    /// # Safety
    /// `block` lies within the panel; the machine has AVX-512.
    #[inline(always)]
    unsafe fn fill<F: Format>(&mut self, parts: Panel, block: usize) {
        for g in 0..F::GROUPS {
            // SAFETY: forwarded contract.
            unsafe {
                let group = block * F::GROUPS + g;
                let (scale, offset) = parts.scale_and_offset::<Avx512Lanes, F>(group);
                scale.store(self.scales[g].as_mut_ptr());
                offset.store(self.offsets[g].as_mut_ptr());
            }
        }
    }
}

/// Turns a panel's codes into bf16 weights, block after block.
struct Unpacker<'a> {
    parts: Panel,
    n_blocks: usize,
    heads: &'a mut [Heads; HEADS],
}

impl<'a> Unpacker<'a> {
    fn new(parts: Panel, n_blocks: usize, heads: &'a mut [Heads; HEADS]) -> Self {
        Unpacker { parts, n_blocks, heads }
    }

    /// Before the first block.
    ///
    /// # Safety
    /// The panel has the format; the machine has AVX-512.
    #[inline(always)]
    unsafe fn start<F: Format>(&mut self) {
        for block in 0..HEADS_LAG.min(self.n_blocks) {
            // SAFETY: the block lies within the panel.
            unsafe { self.heads[block].fill::<F>(self.parts, block) };
        }
    }

    /// A block's sixteen outputs of thirty-two columns.
    ///
    /// # Safety
    /// As [`start`](Self::start), which was called before the first block; blocks come in order
    /// and lie within the panel; `to` has room for a tile.
    #[inline(always)]
    unsafe fn unpack<F: Format>(&mut self, block: usize, to: *mut u16) {
        // SAFETY: forwarded contract.
        unsafe {
            let ahead = block + HEADS_LAG;
            if ahead < self.n_blocks {
                self.heads[ahead % HEADS].fill::<F>(self.parts, ahead);
            }
            let codes = self.parts.codes.add(block * F::CODE_BYTES);
            prefetch::<Avx512Lanes, F>(self.parts, block);
            let heads = &self.heads[block % HEADS];
            match F::CODES {
                Codes::Nibbles => unpack_nibbles::<F>(codes, heads, to),
                _ => unpack_bytes::<F>(codes, heads, to),
            }
        }
    }
}

/// # Safety
/// As [`Unpacker::unpack`].
#[inline(always)]
unsafe fn unpack_nibbles<F: Format>(codes: *const u8, heads: &Heads, to: *mut u16) {
    // SAFETY: a block has four vectors of codes, each with those of four outputs.
    unsafe {
        for quarter in 0..4 {
            let halves = _mm512_load_si512(codes.add(64 * quarter).cast());
            for j in 0..4 {
                let output = 4 * quarter + j;
                let shifts = _mm512_load_si512(SHIFTS.0[j].as_ptr().cast());
                put_nibbles::<F>(halves, shifts, heads, output, to.add(output * 32));
            }
        }
    }
}

/// For each nibble of a half word, where the bits begin whose third to sixth are the nibble: the
/// same place for both bytes of the half word, counted within eight bytes.
static SHIFTS: Shifts = Shifts({
    let mut shifts = [[0; 64]; 4];
    let mut i = 0;
    while i < 256 {
        let (nibble, byte) = (i / 64, i % 64);
        shifts[nibble][byte] = ((byte % 8 / 2 * 16 + 4 * nibble + 62) % 64) as u8;
        i += 1;
    }
    shifts
});

#[repr(align(64))]
struct Shifts([[u8; 64]; 4]);

/// One output's weights, looked up in the table of what each code stands for.
///
/// # Safety
/// As [`Unpacker::unpack`]; `to` has room for thirty-two.
#[inline(always)]
unsafe fn put_nibbles<F: Format>(
    halves: __m512i,
    shifts: __m512i,
    heads: &Heads,
    output: usize,
    to: *mut u16,
) {
    // SAFETY: forwarded contract.
    unsafe {
        // A float's upper half is its bf16: bytes 2 and 3 of each four of the table.
        let bits = _mm512_multishift_epi64_epi8(shifts, halves);
        let (code, upper) = (_mm512_set1_epi16(0x3c3c), _mm512_set1_epi16(0x0302));
        const AND_OR: i32 = 0xea;
        let index = _mm512_ternarylogic_epi32::<AND_OR>(bits, code, upper);
        let mut weights = _mm512_permutexvar_epi8(index, table(heads, 0, output));
        if F::GROUPS == 2 {
            let table = table(heads, 1, output);
            const LAST_HALF: u64 = 0xffff_ffff_0000_0000;
            weights = _mm512_mask_permutexvar_epi8(weights, LAST_HALF, index, table);
        }
        _mm512_store_si512(to.cast(), weights);
    }
}

/// What the sixteen codes of an output stand for, rounded but not cut to bf16.
///
/// # Safety
/// As [`Unpacker::unpack`].
#[inline(always)]
unsafe fn table(heads: &Heads, group: usize, output: usize) -> __m512i {
    // SAFETY: register operations, and reads within `heads`.
    unsafe {
        let codes = _mm512_setr_ps(
            -8.0, -7.0, -6.0, -5.0, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0,
        );
        let scale = _mm512_set1_ps(heads.scales[group][output]);
        let offset = _mm512_set1_ps(heads.offsets[group][output]);
        round_up(_mm512_fmadd_ps(codes, scale, offset))
    }
}

/// Adds half of what bf16's last digit is worth.
///
/// # Safety
/// The machine has AVX-512.
#[inline(always)]
unsafe fn round_up(x: __m512) -> __m512i {
    // SAFETY: register operations.
    unsafe { _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000)) }
}

/// # Safety
/// As [`Unpacker::unpack`].
#[inline(always)]
unsafe fn unpack_bytes<F: Format>(codes: *const u8, heads: &Heads, to: *mut u16) {
    for output in 0..WIDTH {
        // SAFETY: a block has thirty-two bytes for each output.
        unsafe {
            let from = codes.add(32 * output);
            let scale = spread::<F>(&heads.scales, output);
            let offset = spread::<F>(&heads.offsets, output);
            let even = byte_weights(from, scale, offset);
            let odd = byte_weights(from.add(16), scale, offset);
            let both = _mm512_mask_blend_epi16(0xaaaa_aaaa, _mm512_srli_epi32::<16>(even), odd);
            _mm512_store_si512(to.add(32 * output).cast(), both);
        }
    }
}

/// An output's scale (or offset) for each of its sixteen even (or odd) columns.
///
/// # Safety
/// As [`Unpacker::unpack`].
#[inline(always)]
unsafe fn spread<F: Format>(heads: &[[f32; WIDTH]; 2], output: usize) -> __m512 {
    // SAFETY: register operations.
    unsafe {
        let first = _mm512_set1_ps(heads[0][output]);
        match F::GROUPS {
            2 => _mm512_mask_blend_ps(0xff00, first, _mm512_set1_ps(heads[1][output])),
            _ => first,
        }
    }
}

/// Sixteen bytes' weights, rounded but not cut to bf16.
///
/// # Safety
/// `from` holds sixteen bytes; the machine has AVX-512.
#[inline(always)]
unsafe fn byte_weights(from: *const u8, scale: __m512, offset: __m512) -> __m512i {
    // SAFETY: forwarded contract.
    unsafe {
        let codes = _mm512_cvtepi8_epi32(_mm_load_si128(from.cast()));
        round_up(_mm512_fmadd_ps(_mm512_cvtepi32_ps(codes), scale, offset))
    }
}
