//! Attention over paged keys and values.
//!
//! Pages hold keys with the tokens side by side and values with the head's dimensions side by side
//! (see [`crate::kernels::kv`]): scores then need no sum across lanes, and neither does the
//! weighted sum of values. Where tokens have scales, a key's multiplies its score, a value's its
//! weight.
//!
//! Each query walks the blocks from the first it may see to its own, with a running maximum:
//! block borders lie at fixed absolute positions, so a query's chain of operations depends on its
//! position alone, not on how its prompt was cut or who else is in the batch. Up to [`QUERIES`]
//! queries that read the same KV head walk together so that a block is fetched once for all.

use std::ops::Range;

use crate::aligned::LINE;
use crate::kernels::kv::{Element, KV_BLOCK, Page};
use crate::kernels::rows::softcap_lanes;
use crate::lanes::{Lanes, WIDTH, sum_lanes};
use crate::math::exp;

/// Queries that walk the blocks together.
pub(crate) const QUERIES: usize = 32;

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
    /// Weighted sums of values so far, `[QUERIES][head_dim]`.
    sums: Vec<f32>,
    /// Sums of weights so far, by lane.
    weights: Vec<[f32; WIDTH]>,
    maxima: Vec<f32>,
    /// What the sums so far are multiplied with for the block at hand.
    decays: Vec<f32>,
    /// Scores, then weights (times the values' scales), of the block at hand.
    scores: Vec<[f32; KV_BLOCK]>,
}

impl AttentionScratch {
    pub(crate) fn new(head_dim: usize) -> Self {
        Self {
            sums: vec![0.0; QUERIES * head_dim],
            weights: vec![[0.0; WIDTH]; QUERIES],
            maxima: vec![0.0; QUERIES],
            decays: vec![0.0; QUERIES],
            scores: vec![[0.0; KV_BLOCK]; QUERIES],
        }
    }

    fn reset(&mut self, n_queries: usize) {
        let head_dim = self.sums.len() / QUERIES;
        self.sums[..n_queries * head_dim].fill(0.0);
        self.weights[..n_queries].fill([0.0; WIDTH]);
        self.maxima[..n_queries].fill(f32::NEG_INFINITY);
    }
}

/// The tokens of a block that a query sees: `from..to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    from: usize,
    to: usize,
}

impl AttentionArgs {
    fn span(&self, position: u32, block: usize) -> Span {
        let start = (block * KV_BLOCK) as u64;
        let end = u64::from(position) + 1;
        let first = end.saturating_sub(u64::from(self.window));
        let within = |x: u64| x.saturating_sub(start).min(KV_BLOCK as u64) as usize;
        Span { from: within(first), to: within(end) }
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
#[derive(Clone, Copy)]
struct Fetch {
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
    unsafe fn step<V: Lanes>(&mut self) {
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
pub(crate) unsafe fn attend<V: Lanes, E: Element>(
    args: &AttentionArgs,
    task: &AttentionTask,
    next: Option<&AttentionTask>,
    tables: *const u32,
    scratch: &mut AttentionScratch,
) {
    scratch.reset(task.n_rows * task.n_heads);
    // SAFETY: forwarded contract; rows and blocks stay within the task's.
    unsafe {
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
                let all = task.n_rows * task.n_heads;
                let queries = head * all / task.n_kv_heads..(head + 1) * all / task.n_kv_heads;
                walk_block::<V, E>(args, task, (block, queries), kv, scratch, &mut fetch);
            }
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
    let span_of = |query: usize| {
        // SAFETY: the query's row lies within the task.
        let position = unsafe { *args.positions.add(task.first_row + query / task.n_heads) };
        args.span(position, block)
    };
    let mut query = queries.start;
    while query < queries.end {
        let span = span_of(query);
        let run = (query..queries.end).take_while(|&q| q < query + 4 && span_of(q) == span).count();
        if span.from < span.to {
            // SAFETY: forwarded contract, for queries of the task.
            unsafe {
                match run {
                    4 => see::<V, E, 4>(args, task, (query, span), kv, scratch, fetch),
                    3 => see::<V, E, 3>(args, task, (query, span), kv, scratch, fetch),
                    2 => see::<V, E, 2>(args, task, (query, span), kv, scratch, fetch),
                    _ => see::<V, E, 1>(args, task, (query, span), kv, scratch, fetch),
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
    task: &AttentionTask,
    (query, span): (usize, Span),
    [keys, values]: [Page<E>; 2],
    scratch: &mut AttentionScratch,
    fetch: &mut Fetch,
) {
    // SAFETY: forwarded contract.
    unsafe {
        let mut queries = [args.queries; Q];
        for (i, pointer) in queries.iter_mut().enumerate() {
            *pointer = args.queries.add(offset(args, task, query + i));
        }
        score::<V, E, Q>(args, queries, keys, &mut scratch.scores[query..query + Q], fetch);
        for q in query..query + Q {
            weigh::<V, E>(span, q, values, scratch);
        }
        gather::<V, E, Q>(args.head_dim, (query, span), values.codes, scratch, fetch);
    }
}

/// Where a query's head begins in the query and output rows.
#[inline(always)]
fn offset(args: &AttentionArgs, task: &AttentionTask, query: usize) -> usize {
    let row = task.first_row + query / task.n_heads;
    let head = task.first_head + query % task.n_heads;
    (row * args.n_heads + head) * args.head_dim
}

/// Dot products of `Q` queries with a block's 32 keys.
///
/// # Safety
/// As [`Lanes`]; each query has `head_dim` elements, `keys` a block of them.
#[inline(always)]
unsafe fn score<V: Lanes, E: Element, const Q: usize>(
    args: &AttentionArgs,
    queries: [*const f32; Q],
    keys: Page<E>,
    scores: &mut [[f32; KV_BLOCK]],
    fetch: &mut Fetch,
) {
    // SAFETY: `d` stays below the head size.
    unsafe {
        let mut sums = [[V::splat(0.0); 2]; Q];
        for d in 0..args.head_dim {
            if d % 2 == 0 {
                fetch.step::<V>();
            }
            let low = E::load::<V>(keys.codes.add(d * KV_BLOCK));
            let high = E::load::<V>(keys.codes.add(d * KV_BLOCK + WIDTH));
            for q in 0..Q {
                let x = V::splat(*queries[q].add(d));
                sums[q][0] = low.mul_add(x, sums[q][0]);
                sums[q][1] = high.mul_add(x, sums[q][1]);
            }
        }
        let mut factors = [V::splat(args.scale); 2];
        if E::SCALED {
            for (half, factor) in factors.iter_mut().enumerate() {
                *factor = factor.mul(V::load(keys.scales.add(half * WIDTH)));
            }
        }
        for q in 0..Q {
            for (half, sum) in sums[q].into_iter().enumerate() {
                let mut s = sum.mul(factors[half]);
                if args.softcap > 0.0 {
                    s = softcap_lanes(s, args.softcap);
                }
                s.store(scores[q].as_mut_ptr().add(half * WIDTH));
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
    let scores = &mut scratch.scores[query];
    scores[..span.from].fill(f32::NEG_INFINITY);
    scores[span.to..].fill(f32::NEG_INFINITY);
    // SAFETY: a block's scores are two vectors.
    unsafe {
        let (low, high) = (V::load(scores.as_ptr()), V::load(scores.as_ptr().add(WIDTH)));
        let before = scratch.maxima[query];
        let now = low.max(high).max_lane().max(before);
        scratch.maxima[query] = now;
        let decay = exp(V::splat(before - now));
        let mut decays = [0.0; WIDTH];
        decay.store(decays.as_mut_ptr());
        scratch.decays[query] = decays[0];
        exp(low.sub(V::splat(now))).store(scores.as_mut_ptr());
        exp(high.sub(V::splat(now))).store(scores.as_mut_ptr().add(WIDTH));
        // `exp` never gives zero; what is not seen must weigh nothing.
        scores[..span.from].fill(0.0);
        scores[span.to..].fill(0.0);
        let (low, high) = (V::load(scores.as_ptr()), V::load(scores.as_ptr().add(WIDTH)));
        let weights = &mut scratch.weights[query];
        V::load(weights.as_ptr()).mul_add(decay, low.add(high)).store(weights.as_mut_ptr());
        if E::SCALED {
            low.mul(V::load(values.scales)).store(scores.as_mut_ptr());
            let scales = V::load(values.scales.add(WIDTH));
            high.mul(scales).store(scores.as_mut_ptr().add(WIDTH));
        }
    }
}

/// Adds the weighted values of tokens `span` to the sums of `Q` queries.
///
/// # Safety
/// As [`Lanes`]; `values` is a block of them.
#[inline(always)]
unsafe fn gather<V: Lanes, E: Element, const Q: usize>(
    head_dim: usize,
    (query, span): (usize, Span),
    values: *const E::Code,
    scratch: &mut AttentionScratch,
    fetch: &mut Fetch,
) {
    let mut d = 0;
    // SAFETY: `d` plus the vectors taken stays within the head size.
    unsafe {
        while d + 4 * WIDTH <= head_dim {
            gather_columns::<V, E, Q, 4>(head_dim, (query, span), values, d, scratch, fetch);
            d += 4 * WIDTH;
        }
        while d < head_dim {
            gather_columns::<V, E, Q, 1>(head_dim, (query, span), values, d, scratch, fetch);
            d += WIDTH;
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
    values: *const E::Code,
    d: usize,
    scratch: &mut AttentionScratch,
    fetch: &mut Fetch,
) {
    // SAFETY: tokens stay within the block, columns within the head.
    unsafe {
        let sums = scratch.sums.as_mut_ptr().add(query * head_dim + d);
        let mut acc = [[V::splat(0.0); N]; Q];
        for (q, acc) in acc.iter_mut().enumerate() {
            let decay = V::splat(scratch.decays[query + q]);
            for (n, acc) in acc.iter_mut().enumerate() {
                *acc = V::load(sums.add(q * head_dim + n * WIDTH)).mul(decay);
            }
        }
        for token in span.from..span.to {
            fetch.step::<V>();
            let row = values.add(token * head_dim + d);
            let mut v = [V::splat(0.0); N];
            for (n, v) in v.iter_mut().enumerate() {
                *v = E::load::<V>(row.add(n * WIDTH));
            }
            for (acc, scores) in acc.iter_mut().zip(&scratch.scores[query..query + Q]) {
                let weight = V::splat(scores[token]);
                for n in 0..N {
                    acc[n] = v[n].mul_add(weight, acc[n]);
                }
            }
        }
        for (q, acc) in acc.into_iter().enumerate() {
            for (n, v) in acc.into_iter().enumerate() {
                v.store(sums.add(q * head_dim + n * WIDTH));
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
