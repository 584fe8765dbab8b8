//! Attention over paged keys and values.
//!
//! Pages hold keys with the tokens side by side and values with the head's dimensions side by side
//! (see [`crate::kernels::kv`]): scores then need no sum across lanes, and neither does the
//! weighted sum of values. Where tokens have scales, a key's multiplies its score, a value's its
//! weight.
//!
//! Queries, keys, values and weights meet as bf16 values, in the order of a matrix tile (see
//! [`crate::kernels::matmul`]). For every 32 dimensions of a head, and for every block of tokens:
//! ```text
//! score = score + (even + odd)
//! even  = fma(k[2i], q[2i], even),  odd = fma(k[2i+1], q[2i+1], odd)      i = 0..16
//! sum   = fma(sum, decay, first + second)
//! first = fma(v[i], w[i], first),  second = fma(v[i+16], w[i+16], second) i = 0..16
//! ```
//! Tokens that a query does not see weigh nothing and their values count as zeros, whatever their
//! slots hold. Nothing that is added up is ever a negative zero, so a pair of zeros may as well be
//! left out.
//!
//! Each query walks the blocks from the first it may see to its own, with a running maximum:
//! block borders lie at fixed absolute positions, so a query's chain of operations depends on its
//! position alone, not on how its prompt was cut or who else is in the batch. Up to [`QUERIES`]
//! queries that read the same KV head walk together so that a block is fetched once for all.

use std::ops::Range;

use crate::aligned::{Aligned, LINE};
#[cfg(target_arch = "x86_64")]
use crate::kernels::attention_amx::TileScratch;
use crate::kernels::kv::{Element, KV_BLOCK, Page, VALUE_PAIRS};
use crate::kernels::rows::softcap_lanes;
use crate::lanes::{Lanes, WIDTH, sum_lanes, to_array};
use crate::math::exp;

/// Queries that walk the blocks together, at most.
pub(crate) const QUERIES: usize = 64;

/// Pairs of dimensions that meet before their sum is added to a score.
pub(super) const TILE_PAIRS: usize = 16;

/// Matrix tiles, where there are any: a second way to let a task's queries see a block.
pub(crate) trait Tiles {
    /// Queries of a task at most.
    const QUERIES: usize;

    /// Makes ready for a task whose scratch is; false: leave it to the lanes.
    ///
    /// # Safety
    /// As [`attend`].
    unsafe fn begin(
        args: &AttentionArgs,
        task: &AttentionTask,
        scratch: &mut AttentionScratch,
    ) -> bool;

    /// Lets all queries of the task see a block; false: leave it to the lanes.
    ///
    /// # Safety
    /// As [`attend`], after [`begin`](Self::begin) has said yes; the pages are the block's.
    unsafe fn see<E: Element>(
        args: &AttentionArgs,
        task: &AttentionTask,
        block: usize,
        kv: [Page<E>; 2],
        scratch: &mut AttentionScratch,
        fetch: &mut Fetch,
    ) -> bool;

    /// Ends what [`begin`](Self::begin) has begun.
    ///
    /// # Safety
    /// `begin` has said yes.
    unsafe fn end();
}

/// No tiles: lanes do everything.
#[derive(Debug)]
pub(crate) struct NoTiles;

impl Tiles for NoTiles {
    const QUERIES: usize = 32;

    #[inline(always)]
    unsafe fn begin(_: &AttentionArgs, _: &AttentionTask, _: &mut AttentionScratch) -> bool {
        false
    }

    #[inline(always)]
    unsafe fn see<E: Element>(
        _: &AttentionArgs,
        _: &AttentionTask,
        _: usize,
        _: [Page<E>; 2],
        _: &mut AttentionScratch,
        _: &mut Fetch,
    ) -> bool {
        false
    }

    #[inline(always)]
    unsafe fn end() {}
}

/// What all tasks of one layer share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionArgs {
    /// `[rows][n_heads * head_dim]`, and the output of the same shape.
    pub(crate) queries: *const f32,
    pub(crate) out: *mut f32,
    pub(crate) positions: *const u32,
    pub(crate) keys: *const u8,
    pub(crate) values: *const u8,
    pub(crate) n_heads: usize,
    pub(crate) n_kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) scale: f32,
    /// 0: none.
    pub(crate) softcap: f32,
    /// Tokens a query sees, itself included; `u32::MAX`: all.
    pub(crate) window: u32,
}

// SAFETY: ops hold the borrows behind the pointers while tasks run; tasks write disjoint outputs.
unsafe impl Send for AttentionArgs {}
// SAFETY: as above.
unsafe impl Sync for AttentionArgs {}

/// Some rows of one sequence against one KV head, or one row against several: at most [`QUERIES`]
/// (row, head) pairs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionTask {
    pub(crate) first_row: usize,
    pub(crate) n_rows: usize,
    /// Query heads `first_head..first_head + n_heads`: all those that read these KV heads, or some
    /// that read the only one.
    pub(crate) first_head: usize,
    pub(crate) n_heads: usize,
    pub(crate) first_kv_head: usize,
    pub(crate) n_kv_heads: usize,
    /// The sequence's block table, as an offset into the step's tables.
    pub(crate) blocks: usize,
}

/// One thread's working memory.
#[derive(Debug)]
pub(crate) struct AttentionScratch {
    /// The task's queries, rounded to bf16, `[QUERIES][head_dim]`.
    pub(super) queries: Vec<f32>,
    /// Weighted sums of values so far, `[QUERIES][head_dim]`.
    pub(super) sums: Aligned<f32>,
    /// Sums of weights so far, by lane.
    pub(super) weights: Vec<[f32; WIDTH]>,
    pub(super) maxima: Vec<f32>,
    /// What the sums so far are multiplied with for the block at hand.
    pub(super) decays: Vec<f32>,
    /// Scores, then weights (times the values' scales), of the block at hand.
    scores: Vec<[f32; KV_BLOCK]>,
    #[cfg(target_arch = "x86_64")]
    pub(super) tiles: TileScratch,
}

impl AttentionScratch {
    pub(crate) fn new(head_dim: usize) -> Self {
        Self {
            queries: vec![0.0; QUERIES * head_dim],
            sums: Aligned::zeros(QUERIES * head_dim),
            weights: vec![[0.0; WIDTH]; QUERIES],
            maxima: vec![0.0; QUERIES],
            decays: vec![0.0; QUERIES],
            scores: vec![[0.0; KV_BLOCK]; QUERIES],
            #[cfg(target_arch = "x86_64")]
            tiles: TileScratch::new(head_dim),
        }
    }

    fn reset(&mut self, n_queries: usize) {
        let head_dim = self.sums.len() / QUERIES;
        self.sums[..n_queries * head_dim].fill(0.0);
        self.weights[..n_queries].fill([0.0; WIDTH]);
        self.maxima[..n_queries].fill(f32::NEG_INFINITY);
    }

    /// Makes ready for a task: nothing seen yet.
    ///
    /// # Safety
    /// As [`attend`].
    #[inline(always)]
    unsafe fn begin<V: Lanes>(&mut self, args: &AttentionArgs, task: &AttentionTask) {
        let n_queries = task.n_rows * task.n_heads;
        self.reset(n_queries);
        for query in 0..n_queries {
            // SAFETY: the query's head lies within its row; the scratch has room for it.
            unsafe {
                let from = args.queries.add(offset(args, task, query));
                let to = self.queries.as_mut_ptr().add(query * args.head_dim);
                for d in (0..args.head_dim).step_by(WIDTH) {
                    V::load(from.add(d)).round_bf16().store(to.add(d));
                }
            }
        }
    }
}

/// The tokens of a block that a query sees: `from..to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) from: usize,
    pub(super) to: usize,
}

impl Span {
    #[inline(always)]
    pub(super) fn has(self, token: usize) -> bool {
        self.from <= token && token < self.to
    }

    /// A bit for each token, of the two vectors of sixteen.
    #[inline(always)]
    pub(super) fn lanes(self) -> [u16; 2] {
        let below = |n: usize| ((1u64 << n) - 1) as u32;
        let seen = below(self.to) & !below(self.from);
        [seen as u16, (seen >> WIDTH) as u16]
    }
}

impl AttentionArgs {
    /// What dot products with a block's keys are multiplied with.
    ///
    /// # Safety
    /// As [`Lanes`]; `keys` is a page.
    #[inline(always)]
    pub(super) unsafe fn factors<V: Lanes, E: Element>(&self, keys: Page<E>) -> [V; 2] {
        // SAFETY: a block's scales are two vectors.
        unsafe {
            let mut factors = [V::splat(self.scale); 2];
            if E::SCALED {
                for (half, factor) in factors.iter_mut().enumerate() {
                    *factor = factor.mul(V::load(keys.scales.add(half * WIDTH)));
                }
            }
            factors
        }
    }

    /// Scores from dot products.
    ///
    /// # Safety
    /// As [`Lanes`].
    #[inline(always)]
    pub(super) unsafe fn finish_score<V: Lanes>(&self, sums: V, factors: V) -> V {
        // SAFETY: register operations only.
        unsafe {
            let scores = sums.mul(factors);
            if self.softcap > 0.0 { softcap_lanes(scores, self.softcap) } else { scores }
        }
    }

    fn span(&self, position: u32, block: usize) -> Span {
        let start = (block * KV_BLOCK) as u64;
        let end = u64::from(position) + 1;
        let first = end.saturating_sub(u64::from(self.window));
        let within = |x: u64| x.saturating_sub(start).min(KV_BLOCK as u64) as usize;
        Span { from: within(first), to: within(end) }
    }

    /// The tokens of a block that a task's query sees.
    ///
    /// # Safety
    /// The positions cover the task's rows.
    #[inline(always)]
    pub(super) unsafe fn span_of(&self, task: &AttentionTask, query: usize, block: usize) -> Span {
        // SAFETY: the query's row lies within the task.
        let position = unsafe { *self.positions.add(task.first_row + query / task.n_heads) };
        self.span(position, block)
    }

    /// The blocks that a task's rows see.
    ///
    /// # Safety
    /// The positions cover the task's rows.
    #[inline(always)]
    unsafe fn blocks(&self, task: &AttentionTask) -> Range<usize> {
        // SAFETY: forwarded contract.
        let (first, last) = unsafe {
            let first = self.positions.add(task.first_row);
            (*first, *first.add(task.n_rows - 1))
        };
        let oldest = (u64::from(first) + 1).saturating_sub(u64::from(self.window)) as usize;
        oldest / KV_BLOCK..last as usize / KV_BLOCK + 1
    }
}

/// Asks for a block's pages a few lines at a time, while the block before it is worked on.
///
/// Pages lie anywhere, and the processor looks ahead only within a page that is being read; so the
/// pages of all heads are asked for side by side, as that many streams.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fetch {
    keys: *const u8,
    values: *const u8,
    page_bytes: usize,
    n_pages: usize,
    page: usize,
    at: usize,
}

impl Fetch {
    /// The pages of a task's block.
    ///
    /// # Safety
    /// The pools have that block.
    #[inline(always)]
    unsafe fn new<E: Element>(args: &AttentionArgs, task: &AttentionTask, id: u32) -> Fetch {
        let page_bytes = E::page_bytes(args.head_dim);
        let at = (id as usize * args.n_kv_heads + task.first_kv_head) * page_bytes;
        // SAFETY: the caller vouches for the block.
        let (keys, values) = unsafe { (args.keys.add(at), args.values.add(at)) };
        Fetch { keys, values, page_bytes, n_pages: task.n_kv_heads, page: 0, at: 0 }
    }

    /// Nothing to fetch.
    fn none() -> Fetch {
        let nowhere = std::ptr::null();
        Fetch { keys: nowhere, values: nowhere, page_bytes: 0, n_pages: 0, page: 0, at: 0 }
    }

    /// Asks for the next line of keys and of values.
    ///
    /// # Safety
    /// As [`Lanes`].
    #[inline(always)]
    pub(super) unsafe fn step<V: Lanes>(&mut self) {
        if self.at < self.page_bytes {
            let at = self.page * self.page_bytes + self.at;
            // SAFETY: a prefetch of any address does no harm.
            unsafe {
                V::prefetch(self.keys.wrapping_add(at));
                V::prefetch(self.values.wrapping_add(at));
            }
            self.page += 1;
            if self.page == self.n_pages {
                self.page = 0;
                self.at += LINE;
            }
        }
    }
}

/// Runs one task; `next` is probably this thread's next.
///
/// # Safety
/// As [`Lanes`]; the pointers of `args` cover the rows of `task` and every slot its positions
/// reach through the block table `tables[task.blocks..]`; so they do for `next`; `scratch` was
/// made for this head size, which is a multiple of 16.
#[inline(always)]
pub(crate) unsafe fn attend<V: Lanes, E: Element, T: Tiles>(
    args: &AttentionArgs,
    task: &AttentionTask,
    next: Option<&AttentionTask>,
    tables: *const u32,
    scratch: &mut AttentionScratch,
) {
    // SAFETY: forwarded contract; rows and blocks stay within the task's.
    unsafe {
        scratch.begin::<V>(args, task);
        let tiled = T::begin(args, task, scratch);
        let blocks = args.blocks(task);
        for block in blocks.clone() {
            let mut fetch = match next {
                _ if block + 1 < blocks.end => {
                    Fetch::new::<E>(args, task, *tables.add(task.blocks + block + 1))
                }
                Some(next) => {
                    let first = args.blocks(next).start;
                    Fetch::new::<E>(args, next, *tables.add(next.blocks + first))
                }
                None => Fetch::none(),
            };
            let id = *tables.add(task.blocks + block) as usize;
            for head in 0..task.n_kv_heads {
                let page = id * args.n_kv_heads + task.first_kv_head + head;
                let kv =
                    [args.keys, args.values].map(|pool| Page::<E>::at(pool, page, args.head_dim));
                if tiled && T::see::<E>(args, task, block, kv, scratch, &mut fetch) {
                    continue;
                }
                let all = task.n_rows * task.n_heads;
                let queries = head * all / task.n_kv_heads..(head + 1) * all / task.n_kv_heads;
                walk_block::<V, E>(args, task, (block, queries), kv, scratch, &mut fetch);
            }
        }
        if tiled {
            T::end();
        }
        for query in 0..task.n_rows * task.n_heads {
            finish::<V>(args, task, query, scratch);
        }
    }
}

/// Lets some queries of the task see one block, four at a time where they see the same tokens.
///
/// # Safety
/// As [`attend`].
#[inline(always)]
unsafe fn walk_block<V: Lanes, E: Element>(
    args: &AttentionArgs,
    task: &AttentionTask,
    (block, queries): (usize, Range<usize>),
    kv: [Page<E>; 2],
    scratch: &mut AttentionScratch,
    fetch: &mut Fetch,
) {
    // SAFETY: the queries are the task's.
    let span_of = |query: usize| unsafe { args.span_of(task, query, block) };
    let mut query = queries.start;
    while query < queries.end {
        let span = span_of(query);
        let run = (query..queries.end).take_while(|&q| q < query + 4 && span_of(q) == span).count();
        if span.from < span.to {
            // SAFETY: forwarded contract, for queries of the task.
            unsafe {
                match run {
                    4 => see::<V, E, 4>(args, (query, span), kv, scratch, fetch),
                    3 => see::<V, E, 3>(args, (query, span), kv, scratch, fetch),
                    2 => see::<V, E, 2>(args, (query, span), kv, scratch, fetch),
                    _ => see::<V, E, 1>(args, (query, span), kv, scratch, fetch),
                }
            }
        }
        query += run;
    }
}

/// `Q` queries see the tokens `span` of one block.
///
/// # Safety
/// As [`attend`], for queries `query..query + Q`.
#[inline(always)]
unsafe fn see<V: Lanes, E: Element, const Q: usize>(
    args: &AttentionArgs,
    (query, span): (usize, Span),
    [keys, values]: [Page<E>; 2],
    scratch: &mut AttentionScratch,
    fetch: &mut Fetch,
) {
    // SAFETY: forwarded contract.
    unsafe {
        let queries = scratch.queries.as_ptr().add(query * args.head_dim);
        score::<V, E, Q>(args, queries, keys, &mut scratch.scores[query..query + Q], fetch);
        for q in query..query + Q {
            weigh::<V, E>(span, q, values, scratch);
        }
        gather::<V, E, Q>(args.head_dim, (query, span), values, scratch, fetch);
    }
}

/// Where a query's head begins in the query and output rows.
#[inline(always)]
fn offset(args: &AttentionArgs, task: &AttentionTask, query: usize) -> usize {
    let row = task.first_row + query / task.n_heads;
    let head = task.first_head + query % task.n_heads;
    (row * args.n_heads + head) * args.head_dim
}

/// Dot products of `Q` queries, `head_dim` apart, with a block's 32 keys.
///
/// # Safety
/// As [`Lanes`]; each query has `head_dim` elements, `keys` a block of them.
#[inline(always)]
unsafe fn score<V: Lanes, E: Element, const Q: usize>(
    args: &AttentionArgs,
    queries: *const f32,
    keys: Page<E>,
    scores: &mut [[f32; KV_BLOCK]],
    fetch: &mut Fetch,
) {
    let n_pairs = args.head_dim / 2;
    // SAFETY: pairs stay within the head, scores within the queries'.
    unsafe {
        let zero = V::splat(0.0);
        let mut sums = [[zero; 2]; Q];
        for first in (0..n_pairs).step_by(TILE_PAIRS) {
            let mut chains = [[[zero; 2]; 2]; Q];
            for pair in first..n_pairs.min(first + TILE_PAIRS) {
                fetch.step::<V>();
                let low = keys.key_pair::<V>(pair, 0);
                let high = keys.key_pair::<V>(pair, WIDTH);
                for q in 0..Q {
                    let x = queries.add(q * args.head_dim + 2 * pair);
                    let (even, odd) = (V::splat(*x), V::splat(*x.add(1)));
                    chains[q][0][0] = low.0.mul_add(even, chains[q][0][0]);
                    chains[q][0][1] = low.1.mul_add(odd, chains[q][0][1]);
                    chains[q][1][0] = high.0.mul_add(even, chains[q][1][0]);
                    chains[q][1][1] = high.1.mul_add(odd, chains[q][1][1]);
                }
            }
            for q in 0..Q {
                for half in 0..2 {
                    let [even, odd] = chains[q][half];
                    sums[q][half] = sums[q][half].add(even.add(odd));
                }
            }
        }
        let factors = args.factors::<V, E>(keys);
        for q in 0..Q {
            let to = scores[q].as_mut_ptr();
            for half in 0..2 {
                args.finish_score(sums[q][half], factors[half]).store(to.add(half * WIDTH));
            }
        }
    }
}

/// Turns a query's scores into weights and brings its maximum and its sum of weights up to date.
///
/// # Safety
/// As [`Lanes`]; `values` is a page.
#[inline(always)]
unsafe fn weigh<V: Lanes, E: Element>(
    span: Span,
    query: usize,
    values: Page<E>,
    scratch: &mut AttentionScratch,
) {
    let scores = scratch.scores[query].as_mut_ptr();
    let seen = span.lanes();
    // SAFETY: a block's scores are two vectors.
    unsafe {
        let low = V::load(scores).keep(seen[0], f32::NEG_INFINITY);
        let high = V::load(scores.add(WIDTH)).keep(seen[1], f32::NEG_INFINITY);
        let before = scratch.maxima[query];
        let now = low.max(high).max_lane().max(before);
        scratch.maxima[query] = now;
        let decay = exp(V::splat(before - now));
        scratch.decays[query] = to_array(decay)[0];
        let sums = scratch.weights[query].as_mut_ptr();
        let weights = weights_of::<V, E>([low, high], seen, now, values, (sums, decay));
        weights[0].store(scores);
        weights[1].store(scores.add(WIDTH));
    }
}

/// The weights of a block's tokens for one query, as bf16 values; adds them to its sums by lane.
///
/// Without scales, what is added up is what the values are multiplied with, rounded alike.
///
/// # Safety
/// As [`Lanes`]; `values` is a page, and there are sixteen sums.
#[inline(always)]
pub(super) unsafe fn weights_of<V: Lanes, E: Element>(
    scores: [V; 2],
    seen: [u16; 2],
    now: f32,
    values: Page<E>,
    (sums, decay): (*mut f32, V),
) -> [V; 2] {
    let mut weights = scores;
    // SAFETY: a block's scales are two vectors.
    unsafe {
        for half in 0..2 {
            // `exp` never gives zero; what is not seen must weigh nothing.
            let weight = exp(scores[half].sub(V::splat(now))).keep(seen[half], 0.0);
            weights[half] = if E::SCALED { weight } else { weight.round_bf16() };
        }
        let sum = weights[0].add(weights[1]);
        V::load(sums).mul_add(decay, sum).store(sums);
        if E::SCALED {
            for half in 0..2 {
                // The scale of what is not seen may be anything.
                let weight = weights[half].mul(V::load(values.scales.add(half * WIDTH)));
                weights[half] = weight.keep(seen[half], 0.0).round_bf16();
            }
        }
    }
    weights
}

/// Adds the weighted values of tokens `span` to the sums of `Q` queries.
///
/// # Safety
/// As [`Lanes`]; `values` is a block of them.
#[inline(always)]
unsafe fn gather<V: Lanes, E: Element, const Q: usize>(
    head_dim: usize,
    (query, span): (usize, Span),
    values: Page<E>,
    scratch: &mut AttentionScratch,
    fetch: &mut Fetch,
) {
    let mut d = 0;
    // SAFETY: `d` plus the vectors taken stays within the head size.
    unsafe {
        // Two chains for each query and vector: as many as there are registers for.
        while Q <= 2 && d + 4 * WIDTH <= head_dim {
            gather_columns::<V, E, Q, 4>(head_dim, (query, span), values, d, scratch, fetch);
            d += 4 * WIDTH;
        }
        while d + 2 * WIDTH <= head_dim {
            gather_columns::<V, E, Q, 2>(head_dim, (query, span), values, d, scratch, fetch);
            d += 2 * WIDTH;
        }
        if d < head_dim {
            gather_columns::<V, E, Q, 1>(head_dim, (query, span), values, d, scratch, fetch);
        }
    }
}

/// [`gather`] for columns `d..d + 16 * N`.
///
/// # Safety
/// As [`gather`].
#[inline(always)]
unsafe fn gather_columns<V: Lanes, E: Element, const Q: usize, const N: usize>(
    head_dim: usize,
    (query, span): (usize, Span),
    values: Page<E>,
    d: usize,
    scratch: &mut AttentionScratch,
    fetch: &mut Fetch,
) {
    // SAFETY: tokens stay within the block, columns within the head.
    unsafe {
        let zero = V::splat(0.0);
        let mut chains = [[[zero; 2]; N]; Q];
        for pair in 0..VALUE_PAIRS {
            let seen = [span.has(pair), span.has(pair + VALUE_PAIRS)];
            if !seen[0] && !seen[1] {
                continue;
            }
            fetch.step::<V>();
            fetch.step::<V>();
            let mut v = [[zero; 2]; N];
            for (n, v) in v.iter_mut().enumerate() {
                let (first, second) = values.value_pair(pair, d + n * WIDTH, head_dim);
                *v = [if seen[0] { first } else { zero }, if seen[1] { second } else { zero }];
            }
            for (chains, weights) in chains.iter_mut().zip(&scratch.scores[query..query + Q]) {
                let first = V::splat(weights[pair]);
                let second = V::splat(weights[pair + VALUE_PAIRS]);
                for n in 0..N {
                    chains[n][0] = v[n][0].mul_add(first, chains[n][0]);
                    chains[n][1] = v[n][1].mul_add(second, chains[n][1]);
                }
            }
        }
        for (q, chains) in chains.into_iter().enumerate() {
            let sums = scratch.sums.as_mut_ptr().add((query + q) * head_dim + d);
            let decay = V::splat(scratch.decays[query + q]);
            for (n, [first, second]) in chains.into_iter().enumerate() {
                let at = sums.add(n * WIDTH);
                V::load(at).mul_add(decay, first.add(second)).store(at);
            }
        }
    }
}

/// Divides a query's sum by its weights and writes it out.
///
/// # Safety
/// As [`attend`].
#[inline(always)]
unsafe fn finish<V: Lanes>(
    args: &AttentionArgs,
    task: &AttentionTask,
    query: usize,
    scratch: &AttentionScratch,
) {
    // SAFETY: the head's output lies within the row.
    unsafe {
        let total = sum_lanes(V::load(scratch.weights[query].as_ptr()));
        let inverse = V::splat(1.0 / total);
        let out = args.out.add(offset(args, task, query));
        let sums = scratch.sums.as_ptr().add(query * args.head_dim);
        for d in (0..args.head_dim).step_by(WIDTH) {
            V::load(sums.add(d)).mul(inverse).store(out.add(d));
        }
    }
}
