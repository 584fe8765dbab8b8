//! [`super::attention::codes`] by instructions that multiply four bytes at once, to the bit.
//!
//! Queries have more bits than a byte: each number is sixteen times one byte plus another, so every
//! byte of keys is met twice.

use std::arch::x86_64::*;

use crate::kernels::attention::codes::{CodeScratch, Dots, LOW_BITS};
use crate::kernels::attention::{AttentionScratch, Fetch, Tiles};
use crate::kernels::attention_amx::AmxTiles;
use crate::kernels::kv::{KV_BLOCK, QUAD};
use crate::lanes::WIDTH;
use crate::lanes::avx512::Avx512Lanes as V;

/// A block's weights, those of four tokens together.
type Weights = [i32; KV_BLOCK / QUAD];

/// Such instructions, and no tiles.
#[derive(Debug)]
pub(crate) struct Bytes;

impl Tiles for Bytes {}

/// Where there are such instructions.
trait HasBytes {}
impl HasBytes for Bytes {}
impl HasBytes for AmxTiles {}

impl<T: HasBytes> Dots<V> for T {
    #[inline(always)]
    unsafe fn score<const Q: usize>(
        head_dim: usize,
        query: usize,
        keys: *const u8,
        codes: &CodeScratch,
        fetch: &mut Fetch,
    ) -> [[V; 2]; Q] {
        // SAFETY: fours of dimensions stay within the head.
        unsafe {
            let mut sums = [[[_mm512_setzero_si512(); 2]; 2]; Q];
            for (sums, excess) in sums.iter_mut().zip(&codes.excesses[query..]) {
                sums[1] = [_mm512_set1_epi32(-excess); 2];
            }
            let [high, low] = [&codes.high, &codes.low].map(|x| x.as_ptr().add(query * head_dim));
            let mut ahead = fetch.take(head_dim / QUAD);
            for d in (0..head_dim).step_by(QUAD) {
                ahead.ask::<V>();
                let keys = keys.add(d * KV_BLOCK);
                let first = _mm512_loadu_si512(keys.cast());
                let second = _mm512_loadu_si512(keys.add(QUAD * WIDTH).cast());
                for (q, sums) in sums.iter_mut().enumerate() {
                    for (sums, part) in sums.iter_mut().zip([high, low]) {
                        let quad = part.add(q * head_dim + d).cast::<i32>().read_unaligned();
                        let quad = _mm512_set1_epi32(quad);
                        sums[0] = _mm512_dpbusd_epi32(sums[0], first, quad);
                        sums[1] = _mm512_dpbusd_epi32(sums[1], second, quad);
                    }
                }
            }
            let mut products = [[V(_mm512_setzero_ps()); 2]; Q];
            for (products, [high, low]) in products.iter_mut().zip(sums) {
                *products = [V(whole(high[0], low[0])), V(whole(high[1], low[1]))];
            }
            products
        }
    }

    #[inline(always)]
    unsafe fn gather<const Q: usize>(
        head_dim: usize,
        (query, floats): (usize, [[V; 2]; Q]),
        values: *const i8,
        scratch: &mut AttentionScratch,
        fetch: &mut Fetch,
    ) {
        let mut weights = [[0; KV_BLOCK / QUAD]; Q];
        // SAFETY: columns stay within the head.
        unsafe {
            for (weights, floats) in weights.iter_mut().zip(floats) {
                pack_weights(floats, weights);
            }
            let mut d = 0;
            while d + 4 * WIDTH <= head_dim {
                gather_columns::<Q, 4>((head_dim, d), (query, &weights), values, scratch, fetch);
                d += 4 * WIDTH;
            }
            if d + 2 * WIDTH <= head_dim {
                gather_columns::<Q, 2>((head_dim, d), (query, &weights), values, scratch, fetch);
                d += 2 * WIDTH;
            }
            if d < head_dim {
                gather_columns::<Q, 1>((head_dim, d), (query, &weights), values, scratch, fetch);
            }
        }
    }
}

/// [`Dots::gather`] for columns `d..d + 16 * N`.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn gather_columns<const Q: usize, const N: usize>(
    (head_dim, d): (usize, usize),
    (query, weights): (usize, &[Weights; Q]),
    values: *const i8,
    scratch: &mut AttentionScratch,
    fetch: &mut Fetch,
) {
    // SAFETY: columns stay within the head, fours of tokens within the block.
    unsafe {
        let mut sums = [[_mm512_setzero_si512(); N]; Q];
        let n_asked = N.div_ceil(2);
        let mut ahead = fetch.take(n_asked * KV_BLOCK / QUAD);
        // By where a line of values begins: the number of lines is not to be known when this is
        // compiled, or the loop is unrolled and does without registers.
        let (mut at, end) = (values.add(QUAD * d), values.add(KV_BLOCK * head_dim));
        let mut quad = 0;
        while at < end {
            for _ in 0..n_asked {
                ahead.ask::<V>();
            }
            let mut columns = [_mm512_setzero_si512(); N];
            for (n, column) in columns.iter_mut().enumerate() {
                *column = _mm512_loadu_si512(at.add(n * QUAD * WIDTH).cast());
            }
            for (sums, weights) in sums.iter_mut().zip(weights) {
                let weights = _mm512_set1_epi32(*weights.get_unchecked(quad));
                for (sum, column) in sums.iter_mut().zip(columns) {
                    *sum = _mm512_dpbusd_epi32(*sum, weights, column);
                }
            }
            at = at.add(QUAD * head_dim);
            quad += 1;
        }
        for (q, sums) in (query..).zip(sums) {
            for (n, sum) in sums.into_iter().enumerate() {
                let at = q * head_dim + d + n * WIDTH;
                scratch.add_codes(q, at, V(_mm512_cvtepi32_ps(sum)));
            }
        }
    }
}

/// Sums of both parts together, as floats.
///
/// # Safety
/// As [`Dots`].
#[inline(always)]
unsafe fn whole(high: __m512i, low: __m512i) -> __m512 {
    // SAFETY: register operations only.
    unsafe { _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32::<LOW_BITS>(high), low)) }
}

/// A block's weights as bytes.
///
/// # Safety
/// As [`Dots`].
#[inline(always)]
unsafe fn pack_weights([first, second]: [V; 2], to: &mut Weights) {
    // SAFETY: there is room for half a vector.
    unsafe {
        let (first, second) = (_mm512_cvtps_epi32(first.0), _mm512_cvtps_epi32(second.0));
        let halves = _mm512_packus_epi32(first, second);
        let bytes = _mm512_packus_epi16(halves, halves);
        // Packing takes four of each in turn, and here all of them twice.
        let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 0, 0, 0, 0, 0, 0, 0, 0);
        let bytes = _mm512_castsi512_si256(_mm512_permutexvar_epi32(order, bytes));
        _mm256_storeu_si256(to.as_mut_ptr().cast(), bytes);
    }
}
