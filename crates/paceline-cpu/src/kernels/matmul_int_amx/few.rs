//! Rows that meet weights in lanes: a few, or all where weights have two scales for 32 columns.

use std::arch::x86_64::*;
use std::ops::Range;

use crate::acts::{ACT_BLOCK, ActView, IntScale};
use crate::aligned::LINE;
use crate::kernels::format::{Codes, Format, Panel};
use crate::kernels::matmul::{Ahead, Output, finish, unroll_rows};
use crate::kernels::matmul_int::Scales;
use crate::lanes::avx512::Avx512Lanes;
use crate::lanes::{Lanes, WIDTH};
use crate::packed::CodedView;

/// Any rows of a panel, in lanes.
///
/// # Safety
/// As [`super::matmul`].
#[inline(always)]
pub(super) unsafe fn all_rows<F: Format>(
    w: CodedView,
    panel: usize,
    acts: ActView,
    rows: Range<usize>,
    out: Output,
) {
    let mut row = rows.start;
    // SAFETY: forwarded contract.
    unsafe {
        while row < rows.end {
            let n = (rows.end - row).min(acts.tile_rows - row % acts.tile_rows).min(4);
            match n {
                1 => few_rows::<F, 1>(w, panel, acts, row, out),
                2 => few_rows::<F, 2>(w, panel, acts, row, out),
                3 => few_rows::<F, 3>(w, panel, acts, row, out),
                _ => few_rows::<F, 4>(w, panel, acts, row, out),
            }
            row += n;
        }
    }
}

/// Rows `row..row + R` of a panel, of one tile, in lanes.
///
/// # Safety
/// As [`super::matmul`], for these rows, which are all of their tile unless there are two groups.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn few_rows<F: Format, const R: usize>(
    w: CodedView,
    panel: usize,
    acts: ActView,
    row: usize,
    out: Output,
) {
    // SAFETY: the panel's blocks and the rows' activations lie within their buffers, as the caller
    // vouches.
    unsafe {
        let parts = w.panel(panel);
        let (mut sums, mut ahead) = ([Avx512Lanes::splat(0.0); R], Ahead::new(parts));
        let tile_rows = const { R.next_power_of_two() };
        let mut xs_scale = acts.int_scales_of(row, 0);
        for block in 0..w.panel.n_blocks {
            ahead.ask::<Avx512Lanes, F>();
            let xs = acts.ints.add((row * acts.n_blocks + block) * LINE);
            if F::GROUPS == 2 {
                for half in 0..2 {
                    let dots = half_dots_of::<F, R>(parts, (block, half), xs, acts.n_blocks);
                    let scales = Scales::<Avx512Lanes>::load::<F>(parts, 2 * block + half);
                    unroll_rows!(R, r, {
                        let x = acts.half_scale(row + r, block, half);
                        sums[r] = scales.add_dot::<F>(Avx512Lanes::from_words(dots[r]), x, sums[r]);
                    });
                }
                continue;
            }
            let dots = dots_of::<F, R>(parts, block, xs, acts.n_blocks);
            let scales = Scales::<Avx512Lanes>::load::<F>(parts, block);
            unroll_rows!(R, r, {
                let x = IntScale::read(xs_scale.add(r), tile_rows);
                sums[r] = scales.add_dot::<F>(Avx512Lanes::from_words(dots[r]), x, sums[r]);
            });
            xs_scale = xs_scale.add(IntScale::FIELDS * tile_rows);
        }
        let n_outputs = WIDTH.min(w.n_rows - panel * WIDTH);
        unroll_rows!(R, r, {
            let sum = acts.scaled(sums[r], row + r);
            finish(sum, out, (row + r) * out.stride + panel * WIDTH, n_outputs);
        });
    }
}

/// The products of a block's codes with `R` rows' integers, which lie `n_blocks` lines apart.
///
/// # Safety
/// As [`few_rows`].
#[inline(always)]
unsafe fn dots_of<F: Format, const R: usize>(
    parts: Panel,
    block: usize,
    xs: *const u8,
    n_blocks: usize,
) -> [__m512i; R] {
    const HALF: usize = LINE / 2;
    // SAFETY: a block has as many vectors of codes as its format says, and 32 columns.
    unsafe {
        let codes = parts.codes.add(block * F::CODE_BYTES);
        let mut dots = [_mm512_setzero_si512(); R];
        // What counts sixteenfold, and what was counted so and must not be.
        let (mut sixteens, mut sixteenths) = (dots, dots);
        for vector in 0..F::CODE_BYTES / LINE {
            let words = _mm512_loadu_si512(codes.add(vector * LINE).cast());
            let low = match F::CODES {
                Codes::Nibbles => _mm512_and_si512(words, _mm512_set1_epi8(0x0f)),
                _ => words,
            };
            unroll_rows!(R, r, {
                let x = xs.add(r * n_blocks * LINE + 4 * vector);
                dots[r] = _mm512_dpbusd_epi32(dots[r], low, four_of(x));
                sixteens[r] = _mm512_dpbusd_epi32(sixteens[r], low, four_of(x.add(HALF)));
            });
            if matches!(F::CODES, Codes::Nibbles) {
                let high = _mm512_and_si512(words, _mm512_set1_epi8(0xf0_u8 as i8));
                unroll_rows!(R, r, {
                    let x = xs.add(r * n_blocks * LINE + 4 * vector + HALF / 2);
                    sixteenths[r] = _mm512_dpbusd_epi32(sixteenths[r], high, four_of(x));
                    dots[r] = _mm512_dpbusd_epi32(dots[r], high, four_of(x.add(HALF)));
                });
            }
        }
        unroll_rows!(R, r, {
            let whole = _mm512_add_epi32(dots[r], _mm512_slli_epi32::<4>(sixteens[r]));
            dots[r] = match F::CODES {
                Codes::Nibbles => _mm512_add_epi32(whole, _mm512_srai_epi32::<4>(sixteenths[r])),
                _ => whole,
            };
        });
        dots
    }
}

/// The same for half a block, which has scales of its own.
///
/// # Safety
/// As [`dots_of`].
#[inline(always)]
unsafe fn half_dots_of<F: Format, const R: usize>(
    parts: Panel,
    (block, half): (usize, usize),
    xs: *const u8,
    n_blocks: usize,
) -> [__m512i; R] {
    const VECTORS: usize = 4;
    // SAFETY: as there.
    unsafe {
        let codes = parts.codes.add(block * F::CODE_BYTES);
        let (mut dots, mut sixteens) = ([_mm512_setzero_si512(); R], [_mm512_setzero_si512(); R]);
        for vector in 0..VECTORS {
            // Where codes have four bits, the high ones belong to the second half.
            let codes = match (F::CODES, half) {
                (Codes::Nibbles, _) => codes.add(vector * LINE),
                _ => codes.add((half * VECTORS + vector) * LINE),
            };
            let mut codes = _mm512_loadu_si512(codes.cast());
            if matches!(F::CODES, Codes::Nibbles) {
                let shifted = if half == 1 { _mm512_srli_epi32::<4>(codes) } else { codes };
                codes = _mm512_and_si512(shifted, _mm512_set1_epi8(0x0f));
            }
            unroll_rows!(R, r, {
                let x = xs.add(r * n_blocks * LINE + half * ACT_BLOCK / 2 + 4 * vector);
                dots[r] = _mm512_dpbusd_epi32(dots[r], codes, four_of(x));
                sixteens[r] = _mm512_dpbusd_epi32(sixteens[r], codes, four_of(x.add(LINE / 2)));
            });
        }
        unroll_rows!(R, r, {
            dots[r] = _mm512_add_epi32(dots[r], _mm512_slli_epi32::<4>(sixteens[r]));
        });
        dots
    }
}

/// Four bytes in every lane.
///
/// # Safety
/// `x` holds four bytes; the machine has AVX-512.
#[inline(always)]
unsafe fn four_of(x: *const u8) -> __m512i {
    // SAFETY: the caller vouches for the bytes.
    unsafe { _mm512_set1_epi32(x.cast::<i32>().read_unaligned()) }
}
