//! [`super::attention`] on matrix tiles, to the bit, for tasks with many queries of one KV head.
//!
//! Sixteen queries meet a block's keys in tiles, their scores become weights in lanes, and the
//! weights meet the block's values in tiles again. A block's pages in bf16 are tiles as they lie;
//! others are turned into tiles once for all queries of a task. All groups of sixteen queries pass
//! one stage before the next begins: the block's tiles stay in their registers meanwhile, and what
//! is stored as a vector and read as a tile (or the other way) is stored well ahead, since such a
//! read waits until the store has left the processor's queue.

use std::arch::x86_64::*;
use std::ops::Range;

use crate::aligned::{Aligned, LINE};
use crate::amx::{self, TileShapes, tile_dot_bf16, tile_load, tile_store, tile_zero};
use crate::kernels::attention::{
    AttentionArgs, AttentionScratch, AttentionTask, Fetch, QUERIES, Span, TILE_PAIRS, Tiles,
    weights_of,
};
use crate::kernels::kv::{Element, KV_BLOCK, Page, VALUE_PAIRS};
use crate::lanes::avx512::Avx512Lanes as V;
use crate::lanes::{Lanes, WIDTH, sum_lanes};
use crate::math::exp;

/// Queries from which on tiles are faster than lanes.
const TILED_FROM: usize = 4;

/// Queries of a tile.
const GROUP: usize = 16;

/// Dimensions of a tile of keys.
const TILE_DIMS: usize = 2 * TILE_PAIRS;

/// Dimensions whose tiles of keys or values are held in registers together.
const HELD_DIMS: usize = 64;

/// Groups from the one whose products are written to the one whose are read, and those kept.
const LAG: usize = 2;
const IN_FLIGHT: usize = LAG + 1;

/// Bytes from one pair of dimensions to the next in a tile of keys.
const KEY_STRIDE: usize = 2 * KV_BLOCK * size_of::<u16>();

/// What a thread needs besides the scratch of lanes.
#[derive(Debug)]
pub(crate) struct TileScratch {
    /// The task's queries, `[QUERIES][dimensions]`, filled up with zeros to whole tiles.
    queries: Aligned<u16>,
    /// Scores of the block at hand, `[QUERIES][32]`.
    scores: Aligned<f32>,
    /// Weights of the block at hand, `[QUERIES][16][2]`.
    weights: Aligned<u16>,
    /// Weighted values of the block at hand, `[IN_FLIGHT][GROUP][HELD_DIMS]`.
    products: Aligned<f32>,
    /// A block's page of keys and of values, where the pool's are not what tiles read.
    keys: Aligned<u16>,
    values: Aligned<u16>,
    /// The tokens of the block at hand that each query sees.
    seen: [[u16; 2]; QUERIES],
    /// Each query's largest score of the block at hand.
    tops: [f32; QUERIES],
}

impl TileScratch {
    pub(crate) fn new(head_dim: usize) -> Self {
        let whole = head_dim.next_multiple_of(TILE_DIMS);
        Self {
            queries: Aligned::zeros(QUERIES * whole),
            scores: Aligned::zeros(QUERIES * KV_BLOCK),
            weights: Aligned::zeros(QUERIES * KV_BLOCK),
            products: Aligned::zeros(IN_FLIGHT * GROUP * HELD_DIMS),
            keys: Aligned::zeros(KV_BLOCK * whole),
            values: Aligned::zeros(KV_BLOCK * head_dim),
            seen: [[0; 2]; QUERIES],
            tops: [f32::NEG_INFINITY; QUERIES],
        }
    }

    /// Lays a page of keys out in tiles.
    ///
    /// # Safety
    /// As [`Lanes`]; `keys` is a page of heads of `head_dim`.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn put_keys<E: Element>(&mut self, keys: Page<E>, head_dim: usize) {
        // SAFETY: pairs stay within the head; the tiles have room for all of it.
        unsafe {
            let zero = V::splat(0.0);
            for pair in 0..head_dim.next_multiple_of(TILE_DIMS) / 2 {
                let to = self.keys.as_mut_ptr().add(pair * 2 * KV_BLOCK);
                for token in [0, WIDTH] {
                    let is_there = pair < head_dim / 2;
                    let both = if is_there { keys.key_pair(pair, token) } else { (zero, zero) };
                    put_words(both, to.add(2 * token));
                }
            }
        }
    }

    /// Lays a page of values out in tiles, zeros for tokens that are not `seen`. Says whether all
    /// others are finite, if asked to `check`.
    ///
    /// # Safety
    /// As [`Lanes`]; `values` is a page of heads of `head_dim`.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn put_values<E: Element>(
        &mut self,
        values: Page<E>,
        head_dim: usize,
        seen: Span,
        check: bool,
    ) -> bool {
        // SAFETY: tokens stay within the block, dimensions within the head.
        unsafe {
            let zero = V::splat(0.0);
            let mut nothing = [zero; 2];
            for pair in 0..VALUE_PAIRS {
                let seen = [seen.has(pair), seen.has(pair + VALUE_PAIRS)];
                for d in (0..head_dim).step_by(WIDTH) {
                    let (first, second) = values.value_pair::<V>(pair, d, head_dim);
                    let first = if seen[0] { first } else { zero };
                    let second = if seen[1] { second } else { zero };
                    if check {
                        nothing[0] = first.mul_add(zero, nothing[0]);
                        nothing[1] = second.mul_add(zero, nothing[1]);
                    }
                    let to = self.values.as_mut_ptr().add(2 * (pair * head_dim + d));
                    put_words((first, second), to);
                }
            }
            // Zero times what is not finite is not a number.
            sum_lanes(nothing[0].add(nothing[1])) == 0.0
        }
    }
}

/// Stores pairs of bf16 values.
///
/// # Safety
/// As [`Lanes`]; there is room for sixteen pairs.
#[inline(always)]
unsafe fn put_words((first, second): (V, V), to: *mut u16) {
    // SAFETY: forwarded contract. The low half of a bf16 value's bits is zero.
    unsafe {
        let low = _mm512_srli_epi32::<16>(_mm512_castps_si512(first.0));
        _mm512_storeu_si512(to.cast(), _mm512_or_si512(low, _mm512_castps_si512(second.0)));
    }
}

/// The tiles of a machine whose tiles are available.
#[derive(Debug)]
pub(crate) struct AmxTiles;

impl Tiles for AmxTiles {
    const QUERIES: usize = QUERIES;

    #[inline(always)]
    unsafe fn begin<E: Element>(
        args: &AttentionArgs,
        task: &AttentionTask,
        scratch: &mut AttentionScratch,
    ) -> bool {
        let n_queries = task.n_rows * task.n_heads;
        // Instructions for bytes are as fast as tiles, which would have to be made of them.
        if E::SCALED || task.n_kv_heads > 1 || n_queries < TILED_FROM {
            return false;
        }
        let whole = args.head_dim.next_multiple_of(TILE_DIMS);
        // SAFETY: queries and dimensions stay within the scratch's; the table that names this type
        // is for machines whose tiles are available.
        unsafe {
            for query in 0..n_queries {
                let from = scratch.queries.as_ptr().add(query * args.head_dim);
                let to = scratch.tiles.queries.as_mut_ptr().add(query * whole);
                for d in (0..args.head_dim).step_by(WIDTH) {
                    V::load(from.add(d)).store_bf16(to.add(d));
                }
                if args.head_dim < whole {
                    V::splat(0.0).store_bf16(to.add(args.head_dim));
                }
            }
            TileShapes::of_rows(n_queries.min(GROUP)).configure();
        }
        true
    }

    #[inline(always)]
    unsafe fn see<E: Element>(
        args: &AttentionArgs,
        task: &AttentionTask,
        block: usize,
        [keys, values]: [Page<E>; 2],
        scratch: &mut AttentionScratch,
        fetch: &mut Fetch,
    ) -> bool {
        let n_queries = task.n_rows * task.n_heads;
        // SAFETY: forwarded contract.
        unsafe {
            let first = args.span_of(task, 0, block);
            let last = args.span_of(task, n_queries - 1, block);
            let all_see_all = first.to == KV_BLOCK && last.from == 0;
            let tiles = &mut scratch.tiles;
            let key_tiles = if E::IS_TILES && args.head_dim.is_multiple_of(TILE_DIMS) {
                keys.codes.cast()
            } else {
                tiles.put_keys(keys, args.head_dim);
                tiles.keys.as_ptr()
            };
            let value_tiles = if E::IS_TILES && all_see_all {
                values.codes.cast()
            } else {
                let some_see = Span { from: first.from, to: last.to };
                // A query that does not see a token would multiply its value with zero all the
                // same, which is harmless only for finite values.
                if !tiles.put_values(values, args.head_dim, some_see, !all_see_all) {
                    return false;
                }
                tiles.values.as_ptr()
            };
            let lines = Lines::of(E::page_bytes(args.head_dim) / LINE, n_queries);
            let meeting = Meeting { args, keys, values, key_tiles, value_tiles, n_queries, lines };
            if all_see_all {
                meeting.run::<true>(0..n_queries, scratch, fetch);
            } else {
                let queries = note_seen(args, task, block, scratch);
                meeting.run::<false>(queries, scratch, fetch);
            }
        }
        true
    }

    #[inline(always)]
    unsafe fn end() {
        // SAFETY: as for `begin`.
        unsafe { amx::release() }
    }
}

/// Notes which tokens each query sees; returns the queries that see any.
///
/// # Safety
/// As [`Tiles::see`].
#[inline(always)]
unsafe fn note_seen(
    args: &AttentionArgs,
    task: &AttentionTask,
    block: usize,
    scratch: &mut AttentionScratch,
) -> Range<usize> {
    let n_queries = task.n_rows * task.n_heads;
    let (mut first, mut end) = (n_queries, 0);
    for (query, seen) in scratch.tiles.seen[..n_queries].iter_mut().enumerate() {
        // SAFETY: forwarded contract.
        *seen = unsafe { args.span_of(task, query, block) }.lanes();
        if *seen != [0; 2] {
            first = first.min(query);
            end = query + 1;
        }
    }
    first.min(end)..end
}

/// Lines of the coming pages to ask for with each query, in the stages that pass through lanes.
#[derive(Clone, Copy)]
struct Lines {
    tops: usize,
    weights: usize,
    sums: usize,
}

impl Lines {
    /// Queries from which on one stage is enough.
    const MANY: usize = 25;

    /// Lines that are asked for at once wait for each other, so few queries, which have many to
    /// ask for each, do so in all stages.
    fn of(n_lines: usize, n_queries: usize) -> Lines {
        let in_stages = |n: usize| n_lines.div_ceil(n * n_queries);
        match n_queries {
            Self::MANY.. => Lines { tops: 0, weights: in_stages(1), sums: 0 },
            _ => Lines { tops: in_stages(3), weights: in_stages(3), sums: in_stages(3) },
        }
    }
}

/// A task's queries and a block of tokens.
struct Meeting<'a, E: Element> {
    args: &'a AttentionArgs,
    keys: Page<E>,
    values: Page<E>,
    key_tiles: *const u16,
    value_tiles: *const u16,
    n_queries: usize,
    lines: Lines,
}

impl<E: Element> Meeting<'_, E> {
    /// Lets the groups of `queries` see the block; `ALL`: all of it.
    ///
    /// # Safety
    /// As [`Tiles::see`], with the tiles configured and, unless `ALL`, what is seen noted.
    #[inline(always)]
    unsafe fn run<const ALL: bool>(
        &self,
        queries: Range<usize>,
        scratch: &mut AttentionScratch,
        fetch: &mut Fetch,
    ) {
        let groups = queries.start / GROUP..queries.end.div_ceil(GROUP);
        let head_dim = self.args.head_dim;
        // SAFETY: groups stay within the task's queries, dimensions within the head.
        unsafe {
            for d in (0..head_dim).step_by(HELD_DIMS) {
                if d + TILE_DIMS < head_dim {
                    self.score::<2>(groups.clone(), d, &mut scratch.tiles);
                } else {
                    self.score::<1>(groups.clone(), d, &mut scratch.tiles);
                }
            }
            // The first tiles of values are under way while the lanes work.
            self.load_values(0);
            for group in groups.clone() {
                self.find_tops::<ALL>(group, scratch, fetch);
            }
            for group in groups.clone() {
                self.weigh::<ALL>(group, scratch, fetch);
            }
            for d in (0..head_dim).step_by(HELD_DIMS) {
                if d > 0 {
                    self.load_values(d);
                }
                match (head_dim - d) / WIDTH {
                    1 => self.gather::<1, ALL>(groups.clone(), d, scratch, fetch),
                    2 => self.gather::<2, ALL>(groups.clone(), d, scratch, fetch),
                    3 => self.gather::<3, ALL>(groups.clone(), d, scratch, fetch),
                    _ => self.gather::<4, ALL>(groups.clone(), d, scratch, fetch),
                }
            }
        }
    }

    fn queries_of(&self, group: usize) -> Range<usize> {
        group * GROUP..self.n_queries.min((group + 1) * GROUP)
    }

    /// Dot products of the groups' queries with the keys, of `N` tiles of dimensions from `d` on,
    /// added to those of the dimensions before.
    ///
    /// # Safety
    /// As [`Self::run`].
    #[inline(always)]
    unsafe fn score<const N: usize>(
        &self,
        groups: Range<usize>,
        d: usize,
        tiles: &mut TileScratch,
    ) {
        let whole = self.args.head_dim.next_multiple_of(TILE_DIMS);
        let (query_stride, score_stride) = (whole * size_of::<u16>(), KV_BLOCK * size_of::<f32>());
        // SAFETY: the groups' queries and scores lie within the scratch, the keys within the page.
        unsafe {
            let keys = self.key_tiles.add(d * KV_BLOCK);
            tile_load!(4, keys, KEY_STRIDE);
            tile_load!(5, keys.add(2 * WIDTH), KEY_STRIDE);
            if N > 1 {
                tile_load!(6, keys.add(TILE_DIMS * KV_BLOCK), KEY_STRIDE);
                tile_load!(7, keys.add(TILE_DIMS * KV_BLOCK + 2 * WIDTH), KEY_STRIDE);
            }
            for group in groups {
                let queries = tiles.queries.as_ptr().add(group * GROUP * whole + d);
                let scores = tiles.scores.as_mut_ptr().add(group * GROUP * KV_BLOCK);
                if d == 0 {
                    tile_zero!(0);
                    tile_zero!(1);
                } else {
                    tile_load!(0, scores, score_stride);
                    tile_load!(1, scores.add(WIDTH), score_stride);
                }
                tile_load!(2, queries, query_stride);
                tile_dot_bf16!(0, 2, 4);
                tile_dot_bf16!(1, 2, 5);
                if N > 1 {
                    tile_load!(3, queries.add(TILE_DIMS), query_stride);
                    tile_dot_bf16!(0, 3, 6);
                    tile_dot_bf16!(1, 3, 7);
                }
                tile_store!(0, scores, score_stride);
                tile_store!(1, scores.add(WIDTH), score_stride);
            }
        }
    }

    /// Turns a group's scores into weights and brings maxima and sums of weights up to date.
    ///
    /// # Safety
    /// As [`Self::run`].
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn weigh<const ALL: bool>(
        &self,
        group: usize,
        scratch: &mut AttentionScratch,
        fetch: &mut Fetch,
    ) {
        let queries = self.queries_of(group);
        let at = group * GROUP * KV_BLOCK;
        // SAFETY: the group's scores and weights lie within the scratch.
        unsafe {
            self.follow_tops(group, scratch);
            for (i, query) in queries.enumerate() {
                fetch.steps::<V>(self.lines.weights);
                let seen = if ALL { [u16::MAX; 2] } else { scratch.tiles.seen[query] };
                if seen == [0; 2] {
                    continue;
                }
                let scores = scratch.tiles.scores.as_ptr().add(at + i * KV_BLOCK);
                let scores = [V::load(scores), V::load(scores.add(WIDTH))];
                let decay = V::splat(scratch.decays[query]);
                let sums = scratch.weights[query].as_mut_ptr();
                let now = scratch.maxima[query];
                let [low, high] = weights_of::<V, E>(scores, seen, now, self.values, (sums, decay));
                let to = scratch.tiles.weights.as_mut_ptr().add(at + i * KV_BLOCK);
                put_words((low, high), to);
            }
        }
    }

    /// Finishes a group's scores and finds the largest of each query.
    ///
    /// # Safety
    /// As [`Self::run`].
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn find_tops<const ALL: bool>(
        &self,
        group: usize,
        scratch: &mut AttentionScratch,
        fetch: &mut Fetch,
    ) {
        let queries = self.queries_of(group);
        // SAFETY: the group's scores lie within the scratch.
        unsafe {
            let scores = scratch.tiles.scores.as_mut_ptr();
            let scores = scores.add(group * GROUP * KV_BLOCK);
            let factors = self.args.factors::<V, E>(self.keys);
            for (i, query) in queries.enumerate() {
                fetch.steps::<V>(self.lines.tops);
                let seen = if ALL { [u16::MAX; 2] } else { scratch.tiles.seen[query] };
                let low = scores.add(i * KV_BLOCK);
                let high = low.add(WIDTH);
                let [mut top, mut other] = [V::splat(0.0); 2];
                for (v, (half, at)) in [&mut top, &mut other].into_iter().zip([(0, low), (1, high)])
                {
                    let score = self.args.finish_score(V::load(at), factors[half]);
                    *v = score.keep(seen[half], f32::NEG_INFINITY);
                    v.store(at);
                }
                scratch.tiles.tops[query] = top.max(other).max_lane();
            }
        }
    }

    /// Raises a group's maxima to its largest scores and finds the decays.
    ///
    /// # Safety
    /// As [`Self::run`].
    #[inline(always)]
    unsafe fn follow_tops(&self, group: usize, scratch: &mut AttentionScratch) {
        let first = group * GROUP;
        // SAFETY: a group's maxima and decays are a vector each.
        unsafe {
            let maxima = scratch.maxima.as_mut_ptr().add(first);
            let before = V::load(maxima);
            let now = V::load(scratch.tiles.tops.as_ptr().add(first)).max(before);
            now.store(maxima);
            exp(before.sub(now)).store(scratch.decays.as_mut_ptr().add(first));
        }
    }

    /// Loads the tiles of values of up to [`HELD_DIMS`] dimensions from `d` on.
    ///
    /// # Safety
    /// As [`Self::run`].
    #[inline(always)]
    unsafe fn load_values(&self, d: usize) {
        let stride = self.args.head_dim * 2 * size_of::<u16>();
        let n = (self.args.head_dim - d) / WIDTH;
        // SAFETY: the values lie within the page.
        unsafe {
            let values = self.value_tiles.add(2 * d);
            tile_load!(4, values, stride);
            if n > 1 {
                tile_load!(5, values.add(2 * WIDTH), stride);
            }
            if n > 2 {
                tile_load!(6, values.add(4 * WIDTH), stride);
            }
            if n > 3 {
                tile_load!(7, values.add(6 * WIDTH), stride);
            }
        }
    }

    /// Adds the weighted values, of `N` tiles of dimensions from `d` on, to the groups' sums.
    ///
    /// # Safety
    /// As [`Self::run`].
    #[inline(always)]
    unsafe fn gather<const N: usize, const ALL: bool>(
        &self,
        groups: Range<usize>,
        d: usize,
        scratch: &mut AttentionScratch,
        fetch: &mut Fetch,
    ) {
        // SAFETY: forwarded contract.
        unsafe {
            // Products are added when those of the next groups are under way.
            for step in groups.start..groups.end + LAG {
                if step < groups.end {
                    self.multiply::<N>(step, &mut scratch.tiles);
                }
                if step >= groups.start + LAG {
                    self.add::<N, ALL>(step - LAG, d, scratch, fetch);
                }
            }
        }
    }

    /// Products of a group's weights with the values that are loaded.
    ///
    /// # Safety
    /// As [`Self::run`].
    #[inline(always)]
    unsafe fn multiply<const N: usize>(&self, group: usize, tiles: &mut TileScratch) {
        const STRIDE: usize = HELD_DIMS * size_of::<f32>();
        // SAFETY: the group's weights and products lie within the scratch.
        unsafe {
            let weights = tiles.weights.as_ptr().add(group * GROUP * KV_BLOCK);
            let to = tiles.products.as_mut_ptr().add(group % IN_FLIGHT * GROUP * HELD_DIMS);
            tile_load!(3, weights, KV_BLOCK * size_of::<u16>());
            tile_zero!(0);
            tile_dot_bf16!(0, 3, 4);
            if N > 1 {
                tile_zero!(1);
                tile_dot_bf16!(1, 3, 5);
            }
            if N > 2 {
                tile_zero!(2);
                tile_dot_bf16!(2, 3, 6);
            }
            tile_store!(0, to, STRIDE);
            if N > 3 {
                tile_zero!(0);
                tile_dot_bf16!(0, 3, 7);
            }
            if N > 1 {
                tile_store!(1, to.add(WIDTH), STRIDE);
            }
            if N > 2 {
                tile_store!(2, to.add(2 * WIDTH), STRIDE);
            }
            if N > 3 {
                tile_store!(0, to.add(3 * WIDTH), STRIDE);
            }
        }
    }

    /// Adds a group's products to its sums.
    ///
    /// # Safety
    /// As [`Self::run`].
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    unsafe fn add<const N: usize, const ALL: bool>(
        &self,
        group: usize,
        d: usize,
        scratch: &mut AttentionScratch,
        fetch: &mut Fetch,
    ) {
        let head_dim = self.args.head_dim;
        for (i, query) in self.queries_of(group).enumerate() {
            if !ALL && scratch.tiles.seen[query] == [0; 2] {
                continue;
            }
            // SAFETY: the query's sums and products lie within the scratch.
            unsafe {
                fetch.steps::<V>(self.lines.sums);
                let decay = V::splat(scratch.decays[query]);
                let row = group % IN_FLIGHT * GROUP + i;
                let products = scratch.tiles.products.as_ptr().add(row * HELD_DIMS);
                let sums = scratch.sums.as_mut_ptr().add(query * head_dim + d);
                for n in 0..N {
                    let (sum, product) = (sums.add(n * WIDTH), products.add(n * WIDTH));
                    V::load(sum).mul_add(decay, V::load(product)).store(sum);
                }
            }
        }
    }
}
