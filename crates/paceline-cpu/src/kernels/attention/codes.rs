//! Attention over keys and values that are bytes.
//!
//! They are met as the whole numbers they are: a query is rounded to whole numbers with a unit of
//! its own, a block's weights, times the scales of their values, to another, and the sums of their
//! products with bytes are exact. So they may be computed in any order: two bytes at a time here,
//! four where there are instructions for it.
//! ```text
//! score = (sum(k[d] * q[d]) * unit of q) * (scale * scale of k)
//! sum   = fma(sum, decay, sum(v[t] * w[t]) * unit of w)
//! ```

use crate::kernels::attention::NoTiles;
use crate::kernels::attention::task::{AttentionScratch, Fetch, QUERIES};
use crate::kernels::kv::{KEY_EXCESS, KV_BLOCK, QUAD, largest_size};
use crate::lanes::{Lanes, TINY, WIDTH, sum_lanes};
use crate::math::{round_whole, round_within};

/// A query's numbers are cut in two for instructions that take bytes; bits of the second part.
pub(in crate::kernels) const LOW_BITS: u32 = 4;
const HIGH: f32 = (1 << LOW_BITS) as f32;

/// The largest element of a query: of two parts that are signed bytes.
const MAX_QUERY: f32 = 2039.0;

/// The largest weight: a byte, without sign.
const MAX_WEIGHT: f32 = 255.0;

/// How far a score must be above those before it for the weights to be measured by it: a weight may
/// be `e` to this power at most. Where the largest score is hardly ever looked for, nobody waits
/// for it.
pub(super) const RAISE: f32 = 8.0;

/// A thread's working memory besides what all element types need.
#[derive(Debug)]
pub(crate) struct CodeScratch {
    /// The task's queries, `[QUERIES][head_dim]`.
    words: Vec<i16>,
    /// The same in two parts: [`HIGH`] times the first, and the second.
    pub(in crate::kernels) high: Vec<i8>,
    pub(in crate::kernels) low: Vec<i8>,
    /// How much more a product with keys is than one with their codes.
    pub(in crate::kernels) excesses: Vec<i32>,
    /// One, in each query.
    pub(in crate::kernels) units: Vec<f32>,
    /// One, in each query's weights of the block at hand.
    pub(in crate::kernels) weight_units: Vec<f32>,
}

impl CodeScratch {
    pub(super) fn new(head_dim: usize) -> Self {
        Self {
            words: vec![0; QUERIES * head_dim],
            high: vec![0; QUERIES * head_dim],
            low: vec![0; QUERIES * head_dim],
            excesses: vec![0; QUERIES],
            units: vec![0.0; QUERIES],
            weight_units: vec![0.0; QUERIES],
        }
    }

    /// Rounds a query to whole numbers.
    ///
    /// # Safety
    /// As [`Lanes`]; `from` has `head_dim` elements, a multiple of 16.
    #[inline(always)]
    pub(super) unsafe fn put_query<V: Lanes>(
        &mut self,
        query: usize,
        from: *const f32,
        head_dim: usize,
    ) {
        let at = query * head_dim..(query + 1) * head_dim;
        let words = self.words[at.clone()].as_mut_ptr();
        let [high, low] = [&mut self.high, &mut self.low].map(|x| x[at.clone()].as_mut_ptr());
        // SAFETY: `d` plus sixteen stays within the query.
        unsafe {
            let largest = largest_size::<V>(from, head_dim);
            let is_nothing = largest < TINY;
            self.units[query] = if is_nothing { 0.0 } else { largest / MAX_QUERY };
            let inverse = V::splat(if is_nothing { 0.0 } else { MAX_QUERY / largest });
            let mut total = V::splat(0.0);
            for d in (0..head_dim).step_by(WIDTH) {
                let whole = round_within(V::load(from.add(d)).mul(inverse), MAX_QUERY);
                let tall = round_whole(whole.mul(V::splat(1.0 / HIGH)));
                whole.store_i16(words.add(d));
                tall.store_i8(high.add(d));
                tall.mul_add(V::splat(-HIGH), whole).store_i8(low.add(d));
                total = total.add(whole);
            }
            self.excesses[query] = sum_lanes(total) as i32 * i32::from(KEY_EXCESS);
        }
    }
}

/// A block's weights as they will be rounded to whole numbers, and one of those. Not a number if
/// one of the weights is none.
///
/// # Safety
/// As [`Lanes`]; weights are not negative.
#[inline(always)]
pub(super) unsafe fn scale_weights<V: Lanes>([first, second]: [V; 2]) -> ([V; 2], f32) {
    // SAFETY: register operations only.
    unsafe {
        // The larger of two may hide that one is not a number; their sum times zero does not.
        let larger = first.add(second).mul_add(V::splat(0.0), first.max(second));
        let largest = larger.max_magnitude();
        let inverse = V::splat(if largest == 0.0 { 0.0 } else { MAX_WEIGHT / largest });
        ([first.mul(inverse), second.mul(inverse)], largest / MAX_WEIGHT)
    }
}

/// How queries and weights meet bytes.
pub(crate) trait Dots<V: Lanes> {
    /// Dot products of `Q` queries, from `query` on, with a block's keys.
    ///
    /// # Safety
    /// As [`Lanes`]; `keys` is a page of heads of `head_dim`.
    unsafe fn score<const Q: usize>(
        head_dim: usize,
        query: usize,
        keys: *const u8,
        codes: &CodeScratch,
        fetch: &mut Fetch,
    ) -> [[V; 2]; Q];

    /// Adds a block's values, by the weights of `Q` queries from the one named on, to their sums.
    /// Weights are rounded to the nearest whole number (ties to even).
    ///
    /// # Safety
    /// As [`score`](Self::score), for a page of values.
    unsafe fn gather<const Q: usize>(
        head_dim: usize,
        weights: (usize, [[V; 2]; Q]),
        values: *const i8,
        scratch: &mut AttentionScratch,
        fetch: &mut Fetch,
    );
}

impl<V: Lanes> Dots<V> for NoTiles {
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
            let mut sums = [[V::splat_words(0); 2]; Q];
            for (sums, excess) in sums.iter_mut().zip(&codes.excesses[query..]) {
                *sums = [V::splat_words(-excess); 2];
            }
            let words = codes.words.as_ptr().add(query * head_dim);
            let mut ahead = fetch.take(head_dim / QUAD);
            for d in (0..head_dim).step_by(QUAD) {
                ahead.ask::<V>();
                let keys = keys.add(d * KV_BLOCK);
                for (half, keys) in [keys, keys.add(QUAD * WIDTH)].into_iter().enumerate() {
                    let keys = V::load_words(keys);
                    let (even, odd) = (V::halves::<0>(keys, 0xff), V::halves::<8>(keys, 0xff));
                    for (q, sums) in sums.iter_mut().enumerate() {
                        let quad =
                            words.add(q * head_dim + d).cast::<[i16; QUAD]>().read_unaligned();
                        sums[half] = V::add_products(sums[half], even, [quad[0], quad[2]]);
                        sums[half] = V::add_products(sums[half], odd, [quad[1], quad[3]]);
                    }
                }
            }
            let mut products = [[V::splat(0.0); 2]; Q];
            for (products, sums) in products.iter_mut().zip(sums) {
                *products = [V::from_words(sums[0]), V::from_words(sums[1])];
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
        // SAFETY: columns stay within the head, fours of tokens within the block.
        unsafe {
            let mut weights = [[0i16; KV_BLOCK]; Q];
            for (weights, [first, second]) in weights.iter_mut().zip(floats) {
                round_whole(first).store_i16(weights.as_mut_ptr());
                round_whole(second).store_i16(weights.as_mut_ptr().add(WIDTH));
            }
            for d in (0..head_dim).step_by(WIDTH) {
                fetch.take(QUAD).ask_all::<V>(QUAD);
                let mut sums = [V::splat_words(0); Q];
                for token in (0..KV_BLOCK).step_by(QUAD) {
                    let values = V::load_words(values.add(token * head_dim + QUAD * d).cast());
                    let (even, odd) =
                        (V::signed_bytes::<false>(values), V::signed_bytes::<true>(values));
                    for (sum, weights) in sums.iter_mut().zip(&weights) {
                        let [first, second] = [[token, token + 2], [token + 1, token + 3]];
                        *sum = V::add_products(*sum, even, first.map(|token| weights[token]));
                        *sum = V::add_products(*sum, odd, second.map(|token| weights[token]));
                    }
                }
                for (q, sum) in (query..).zip(sums) {
                    scratch.add_codes(q, q * head_dim + d, V::from_words(sum));
                }
            }
        }
    }
}

impl AttentionScratch {
    /// Adds sixteen columns of a block's sums of codes to those of a query, which are from `at` on.
    ///
    /// # Safety
    /// As [`Lanes`]; there are sums of the task's queries.
    #[inline(always)]
    pub(in crate::kernels) unsafe fn add_codes<V: Lanes>(&mut self, query: usize, at: usize, x: V) {
        // SAFETY: forwarded contract.
        unsafe {
            let sums = self.sums.as_mut_ptr().add(at);
            let product = x.mul(V::splat(self.codes.weight_units[query]));
            V::load(sums).mul_add(V::splat(self.decays[query]), product).store(sums);
        }
    }
}
