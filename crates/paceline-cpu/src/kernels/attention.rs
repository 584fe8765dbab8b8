//! Attention over paged keys and values.
//!
//! Pages hold keys with the tokens side by side and values with the head's dimensions side by side
//! (see [`crate::kernels::kv`]): scores then need no sum across lanes, and neither does the
//! weighted sum of values. Where tokens have scales, a key's multiplies its score, a value's its
//! weight; keys and values are then whole numbers and met as such, see [`codes`].
//!
//! Otherwise queries, keys, values and weights meet as bf16 values, in the order of a matrix tile
//! (see [`crate::kernels::matmul`]). For every 32 dimensions of a head, and for every block of
//! tokens:
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

pub(super) mod codes;
mod task;

use std::ops::Range;

use crate::kernels::kv::{Element, KV_BLOCK, Page, VALUE_PAIRS};
use crate::lanes::{Lanes, WIDTH, sum_lanes, to_array};
use crate::math::{exp, exp_weight};

use codes::Dots;
pub(super) use task::Span;
use task::offset;
pub(crate) use task::{
    AttentionArgs, AttentionScratch, AttentionTask, FETCHED, Fetch, LateRope, QUERIES,
};

/// Pairs of dimensions that meet before their sum is added to a score.
pub(super) const TILE_PAIRS: usize = 16;

/// Matrix tiles, where there are any: a second way to let a task's queries see a block. Without
/// them lanes do everything.
pub(crate) trait Tiles {
    /// Queries of a task at most.
    const QUERIES: usize = 32;

    /// Makes ready for a task whose scratch is; false: leave it to the lanes.
    ///
    /// # Safety
    /// As [`attend`].
    #[inline(always)]
    unsafe fn begin<E: Element>(
        _args: &AttentionArgs,
        _task: &AttentionTask,
        _scratch: &mut AttentionScratch,
    ) -> bool {
        false
    }

    /// Lets all queries of the task see a block; false: leave it to the lanes.
    ///
    /// # Safety
    /// As [`attend`], after [`begin`](Self::begin) has said yes; the pages are the block's.
    #[inline(always)]
    unsafe fn see<E: Element>(
        _args: &AttentionArgs,
        _task: &AttentionTask,
        _block: usize,
        _kv: [Page<E>; 2],
        _scratch: &mut AttentionScratch,
        _fetch: &mut Fetch,
    ) -> bool {
        false
    }

    /// Ends what [`begin`](Self::begin) has begun.
    ///
    /// # Safety
    /// `begin` has said yes.
    #[inline(always)]
    unsafe fn end() {}
}

/// No tiles.
#[derive(Debug)]
pub(crate) struct NoTiles;

impl Tiles for NoTiles {}

/// Runs one task; `next` is probably this thread's next.
///
/// # Safety
/// As [`Lanes`]; the pointers of `args` cover the rows of `task` and every slot its positions
/// reach through the block table `tables[task.blocks..]`; so they do for `next`. A task that stores
/// has a single row, whose slot is that of its position, and is the only one of its sequence.
/// `scratch` was made for this head size, which is a multiple of 16.
#[inline(always)]
pub(crate) unsafe fn attend<V: Lanes, E: Element, T: Tiles + Dots<V>>(
    args: &AttentionArgs,
    task: &AttentionTask,
    next: Option<&AttentionTask>,
    tables: *const u32,
    scratch: &mut AttentionScratch,
) {
    // SAFETY: forwarded contract; rows and blocks stay within the task's.
    unsafe {
        scratch.begin::<V, E>(args, task);
        let tiled = T::begin::<E>(args, task, scratch);
        let blocks = args.blocks(task);
        // Several heads' pages are streams enough, and short ones are one stream.
        let n_fetched = if task.n_kv_heads > 1 || E::SCALED { 1 } else { FETCHED };
        let mut fetch = Fetch::none();
        for block in blocks.clone() {
            if (block - blocks.start).is_multiple_of(n_fetched) {
                let tables = (tables, block + n_fetched, n_fetched);
                fetch = Fetch::coming::<E>(args, (task, next), tables);
            }
            // The last block is the row's own, and has just been fetched.
            if task.stores && block + 1 == blocks.end {
                args.store_row::<V, E>(task, scratch);
            }
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
                walk_block::<V, E, T>(args, task, (block, queries), kv, scratch, &mut fetch);
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
unsafe fn walk_block<V: Lanes, E: Element, T: Tiles + Dots<V>>(
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
        let most = (queries.end - query).min(4);
        // All queries of a row see the same.
        let run = match task.n_rows {
            1 => most,
            _ => (query..query + most).take_while(|&q| span_of(q) == span).count(),
        };
        if span.from < span.to {
            // SAFETY: forwarded contract, for queries of the task.
            unsafe {
                match run {
                    4 => see::<V, E, T, 4>(args, (query, span), kv, scratch, fetch),
                    3 => see::<V, E, T, 3>(args, (query, span), kv, scratch, fetch),
                    2 => see::<V, E, T, 2>(args, (query, span), kv, scratch, fetch),
                    _ => see::<V, E, T, 1>(args, (query, span), kv, scratch, fetch),
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
unsafe fn see<V: Lanes, E: Element, T: Tiles + Dots<V>, const Q: usize>(
    args: &AttentionArgs,
    (query, span): (usize, Span),
    [keys, values]: [Page<E>; 2],
    scratch: &mut AttentionScratch,
    fetch: &mut Fetch,
) {
    // SAFETY: forwarded contract.
    unsafe {
        if E::SCALED {
            return see_codes::<V, E, T, Q>(args, (query, span), [keys, values], scratch, fetch);
        }
        let queries = scratch.queries.as_ptr().add(query * args.head_dim);
        let scores = &mut scratch.scores[query..query + Q];
        let tops = score::<V, E, Q>(args, (queries, span), keys, scores, fetch);
        follow_tops::<V, Q>(query, tops, scratch);
        for q in query..query + Q {
            weigh::<V, E>(span, q, values, scratch);
        }
        if span == Span::ALL {
            gather::<V, E, Q, true>(args.head_dim, (query, span), values, scratch, fetch);
        } else {
            gather::<V, E, Q, false>(args.head_dim, (query, span), values, scratch, fetch);
        }
    }
}

/// [`see`] of whole numbers.
///
/// # Safety
/// As [`see`].
#[inline(always)]
unsafe fn see_codes<V: Lanes, E: Element, T: Tiles + Dots<V>, const Q: usize>(
    args: &AttentionArgs,
    (query, span): (usize, Span),
    [keys, values]: [Page<E>; 2],
    scratch: &mut AttentionScratch,
    fetch: &mut Fetch,
) {
    // SAFETY: forwarded contract.
    unsafe {
        let codes = &scratch.codes;
        let mut scores: [_; Q] = T::score(args.head_dim, query, keys.codes.cast(), codes, fetch);
        for (q, [first, second]) in scores.iter_mut().enumerate() {
            let unit = V::splat(codes.units[query + q]);
            (*first, *second) = (first.mul(unit), second.mul(unit));
        }
        finish_scores::<V, E, Q>(args, span, keys, &mut scores);
        raise_maxima(query, &scores, scratch);
        // A page has two more lines than its codes.
        fetch.take(2).ask_all::<V>(2);
        let mut weights = scores;
        for (q, weights) in (query..).zip(&mut weights) {
            let sums = (scratch.weights[q].as_mut_ptr(), V::splat(scratch.decays[q]));
            let now = scratch.maxima[q];
            let floats = weights_of::<V, E>(*weights, span.lanes(), now, values, sums);
            (*weights, scratch.codes.weight_units[q]) = codes::scale_weights(floats);
        }
        let values = values.codes.cast();
        T::gather(args.head_dim, (query, weights), values, scratch, fetch);
    }
}

/// Raises the maxima of `Q` queries where a score is much larger, and finds the decays.
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
unsafe fn raise_maxima<V: Lanes, const Q: usize>(
    query: usize,
    scores: &[[V; 2]; Q],
    scratch: &mut AttentionScratch,
) {
    // SAFETY: register operations only.
    unsafe {
        let mut are_above = false;
        for (scores, &before) in scores.iter().zip(&scratch.maxima[query..]) {
            are_above |= scores[0].max(scores[1]).is_any_above(before + codes::RAISE);
        }
        // Mostly they are not, and nothing waits for the largest.
        if !are_above {
            scratch.decays[query..query + Q].fill(1.0);
            return;
        }
        let mut tops = [0.0; Q];
        for ((top, scores), &before) in tops.iter_mut().zip(scores).zip(&scratch.maxima[query..]) {
            let largest = scores[0].max(scores[1]).max_lane();
            *top = if largest > before + codes::RAISE { largest } else { before };
        }
        follow_tops::<V, Q>(query, tops, scratch);
    }
}

/// Raises the maxima of `Q` queries to their largest scores and finds the decays.
///
/// # Safety
/// As [`Lanes`].
#[inline(always)]
unsafe fn follow_tops<V: Lanes, const Q: usize>(
    query: usize,
    tops: [f32; Q],
    scratch: &mut AttentionScratch,
) {
    let mut changes = [0.0; WIDTH];
    for q in 0..Q {
        let before = scratch.maxima[query + q];
        let now = tops[q].max(before);
        scratch.maxima[query + q] = now;
        changes[q] = before - now;
    }
    // SAFETY: the changes are a vector.
    let decays = to_array(unsafe { exp(V::load(changes.as_ptr())) });
    scratch.decays[query..query + Q].copy_from_slice(&decays[..Q]);
}

/// Scores of a block's 32 tokens for `Q` queries, `head_dim` apart: minus infinity for those that
/// are not seen. Returns the largest.
///
/// # Safety
/// As [`Lanes`]; each query has `head_dim` elements, `keys` a block of them.
#[inline(always)]
unsafe fn score<V: Lanes, E: Element, const Q: usize>(
    args: &AttentionArgs,
    (queries, span): (*const f32, Span),
    keys: Page<E>,
    scores: &mut [[f32; KV_BLOCK]],
    fetch: &mut Fetch,
) -> [f32; Q] {
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
                for (q, [of_low, of_high]) in chains.iter_mut().enumerate() {
                    let x = queries.add(q * args.head_dim + 2 * pair);
                    let (even, odd) = (V::splat(*x), V::splat(*x.add(1)));
                    of_low[0] = low.0.mul_add(even, of_low[0]);
                    of_low[1] = low.1.mul_add(odd, of_low[1]);
                    of_high[0] = high.0.mul_add(even, of_high[0]);
                    of_high[1] = high.1.mul_add(odd, of_high[1]);
                }
            }
            for q in 0..Q {
                for half in 0..2 {
                    let [even, odd] = chains[q][half];
                    sums[q][half] = sums[q][half].add(even.add(odd));
                }
            }
        }
        finish_scores::<V, E, Q>(args, span, keys, &mut sums);
        let mut tops = [0.0; Q];
        for ((scores, sums), top) in scores.iter_mut().zip(sums).zip(&mut tops) {
            sums[0].store(scores.as_mut_ptr());
            sums[1].store(scores.as_mut_ptr().add(WIDTH));
            *top = sums[0].max(sums[1]).max_lane();
        }
        tops
    }
}

/// Turns dot products into scores: minus infinity for tokens that are not seen.
///
/// # Safety
/// As [`score`].
#[inline(always)]
unsafe fn finish_scores<V: Lanes, E: Element, const Q: usize>(
    args: &AttentionArgs,
    span: Span,
    keys: Page<E>,
    sums: &mut [[V; 2]; Q],
) {
    // SAFETY: forwarded contract.
    unsafe {
        let factors = args.factors::<V, E>(keys);
        let seen = span.lanes();
        for sums in sums {
            for half in 0..2 {
                let score = args.finish_score(sums[half], factors[half]);
                sums[half] = score.keep(seen[half], f32::NEG_INFINITY);
            }
        }
    }
}

/// Turns a query's scores into weights and brings its sum of weights up to date.
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
    let (seen, now) = (span.lanes(), scratch.maxima[query]);
    // SAFETY: a block's scores are two vectors.
    unsafe {
        let both = [V::load(scores), V::load(scores.add(WIDTH))];
        let sums = (scratch.weights[query].as_mut_ptr(), V::splat(scratch.decays[query]));
        let weights = weights_of::<V, E>(both, seen, now, values, sums);
        weights[0].store(scores);
        weights[1].store(scores.add(WIDTH));
    }
}

/// The weights of a block's tokens for one query, as bf16 values, or times the values' scales if
/// there are any; adds them to its sums by lane.
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
            // What is seen weighs more than what counts as zero; what is not seen weighs nothing.
            let weight = exp_weight(scores[half].sub(V::splat(now))).keep(seen[half], 0.0);
            weights[half] = if E::SCALED { weight } else { weight.round_weight() };
        }
        let sum = weights[0].add(weights[1]);
        V::load(sums).mul_add(decay, sum).store(sums);
        if E::SCALED {
            for half in 0..2 {
                // The scale of what is not seen may be anything.
                let weight = weights[half].mul(V::load(values.scales.add(half * WIDTH)));
                weights[half] = weight.keep(seen[half], 0.0);
            }
        }
    }
    weights
}

/// Adds the weighted values of tokens `span` to the sums of `Q` queries; `ALL`: it is the whole
/// block.
///
/// # Safety
/// As [`Lanes`]; `values` is a block of them.
#[inline(always)]
unsafe fn gather<V: Lanes, E: Element, const Q: usize, const ALL: bool>(
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
            gather_columns::<V, E, Q, 4, ALL>(head_dim, (query, span), values, d, scratch, fetch);
            d += 4 * WIDTH;
        }
        while d + 2 * WIDTH <= head_dim {
            gather_columns::<V, E, Q, 2, ALL>(head_dim, (query, span), values, d, scratch, fetch);
            d += 2 * WIDTH;
        }
        if d < head_dim {
            gather_columns::<V, E, Q, 1, ALL>(head_dim, (query, span), values, d, scratch, fetch);
        }
    }
}

/// [`gather`] for columns `d..d + 16 * N`.
///
/// # Safety
/// As [`gather`].
#[inline(always)]
unsafe fn gather_columns<V: Lanes, E: Element, const Q: usize, const N: usize, const ALL: bool>(
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
        let mut chains = [[[zero; 2]; Q]; N];
        let weights = scratch.scores.as_ptr().add(query).cast::<f32>();
        for pair in 0..VALUE_PAIRS {
            let seen = [ALL || span.has(pair), ALL || span.has(pair + VALUE_PAIRS)];
            if !seen[0] && !seen[1] {
                continue;
            }
            fetch.steps::<V>(N.div_ceil(2));
            for (n, chains) in chains.iter_mut().enumerate() {
                let (first, second) = values.value_pair(pair, d + n * WIDTH, head_dim);
                let first = if seen[0] { first } else { zero };
                let second = if seen[1] { second } else { zero };
                for (q, chain) in chains.iter_mut().enumerate() {
                    let weights = weights.add(q * KV_BLOCK + pair);
                    chain[0] = first.mul_add(V::splat(*weights), chain[0]);
                    chain[1] = second.mul_add(V::splat(*weights.add(VALUE_PAIRS)), chain[1]);
                }
            }
        }
        for (n, chains) in chains.into_iter().enumerate() {
            for (q, [first, second]) in (query..).zip(chains) {
                let sums = scratch.sums.as_mut_ptr().add(q * head_dim + d + n * WIDTH);
                let decay = V::splat(scratch.decays[q]);
                V::load(sums).mul_add(decay, first.add(second)).store(sums);
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
