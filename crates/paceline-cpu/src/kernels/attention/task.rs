//! What attention works on: a layer's arguments, a task of it, a thread's scratch, the tokens a
//! query sees of a block, and fetching the next block ahead.

use std::ops::Range;

use crate::aligned::{Aligned, LINE};
use crate::kernels::attention::codes::CodeScratch;
#[cfg(target_arch = "x86_64")]
use crate::kernels::attention_amx::TileScratch;
use crate::kernels::kv::{Element, FreshKv, KV_BLOCK, Page, store_kv};
use crate::kernels::rows::{rope, softcap_lanes};
use crate::lanes::{Lanes, WIDTH};

/// Queries that walk the blocks together, at most.
pub(crate) const QUERIES: usize = 64;

/// What all tasks of one layer share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionArgs {
    /// `[rows][n_heads * head_dim]`, and the output of the same shape.
    pub(crate) queries: *const f32,
    pub(crate) out: *mut f32,
    pub(crate) positions: *const u32,
    pub(crate) keys: *mut u8,
    pub(crate) values: *mut u8,
    /// `[rows][n_kv_heads * head_dim]` of keys and of values, and where each row's go: for tasks
    /// that store them.
    pub(crate) fresh: [*const f32; 2],
    pub(crate) slots: *const u32,
    pub(crate) late_rope: LateRope,
    pub(crate) n_heads: usize,
    pub(crate) n_kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) scale: f32,
    /// 0: none.
    pub(crate) softcap: f32,
    /// Tokens a query sees, itself included; `u32::MAX`: all.
    pub(crate) window: u32,
}

/// Angles, `[rows][half]`, that rows of tasks that store are yet to be turned by; `half` is 0 where
/// they have been.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LateRope {
    pub(crate) cos: *const f32,
    pub(crate) sin: *const f32,
    pub(crate) half: usize,
}

impl LateRope {
    /// Turns a head of a row on its way from one place to another.
    ///
    /// # Safety
    /// As [`Lanes`]; the angles cover the row, and the head has as many dimensions at least, a
    /// multiple of 16, in both places.
    #[inline(always)]
    unsafe fn turn<V: Lanes>(
        self,
        row: usize,
        (from, to): (*const f32, *mut f32),
        head_dim: usize,
    ) {
        let [cos, sin] = [self.cos, self.sin].map(|angles| angles.wrapping_add(row * self.half));
        // SAFETY: forwarded contract.
        unsafe {
            // What has no angle goes along; the vector it begins in is written once more.
            for d in (2 * self.half / WIDTH * WIDTH..head_dim).step_by(WIDTH) {
                V::load(from.add(d)).store(to.add(d));
            }
            rope::<V>((from, to), cos, sin, self.half);
        }
    }
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
    /// Its only row's keys and values are yet to be stored, and perhaps to be turned.
    pub(crate) stores: bool,
}

/// One thread's working memory.
#[derive(Debug)]
pub(crate) struct AttentionScratch {
    /// The task's queries, rounded to bf16, `[QUERIES][head_dim]`.
    pub(in crate::kernels) queries: Vec<f32>,
    /// The keys of a row that is to be stored, `[n_kv_heads][head_dim]`.
    keys: Vec<f32>,
    /// Weighted sums of values so far, `[QUERIES][head_dim]`.
    pub(in crate::kernels) sums: Aligned<f32>,
    /// Sums of weights so far, by lane.
    pub(in crate::kernels) weights: Vec<[f32; WIDTH]>,
    pub(in crate::kernels) maxima: Vec<f32>,
    /// What the sums so far are multiplied with for the block at hand.
    pub(in crate::kernels) decays: Vec<f32>,
    /// Scores, then weights, of the block at hand.
    pub(in crate::kernels) scores: Vec<[f32; KV_BLOCK]>,
    pub(in crate::kernels) codes: CodeScratch,
    #[cfg(target_arch = "x86_64")]
    pub(in crate::kernels) tiles: TileScratch,
}

impl AttentionScratch {
    pub(crate) fn new(head_dim: usize) -> Self {
        Self {
            queries: vec![0.0; QUERIES * head_dim],
            keys: vec![0.0; QUERIES * head_dim],
            sums: Aligned::zeros(QUERIES * head_dim),
            weights: vec![[0.0; WIDTH]; QUERIES],
            maxima: vec![0.0; QUERIES],
            decays: vec![0.0; QUERIES],
            scores: vec![[0.0; KV_BLOCK]; QUERIES],
            codes: CodeScratch::new(head_dim),
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
    /// As [`attend`](super::attend).
    #[inline(always)]
    pub(in crate::kernels) unsafe fn begin<V: Lanes, E: Element>(
        &mut self,
        args: &AttentionArgs,
        task: &AttentionTask,
    ) {
        let n_queries = task.n_rows * task.n_heads;
        self.reset(n_queries);
        for query in 0..n_queries {
            // SAFETY: the query's head lies within its row; the scratch has room for it.
            unsafe {
                let from = args.queries.add(offset(args, task, query));
                let to = self.queries.as_mut_ptr().add(query * args.head_dim);
                let mut from = from;
                if task.stores && args.late_rope.half > 0 {
                    args.late_rope.turn::<V>(task.first_row, (from, to), args.head_dim);
                    from = to;
                }
                if E::SCALED {
                    self.codes.put_query::<V>(query, from, args.head_dim);
                    continue;
                }
                for d in (0..args.head_dim).step_by(WIDTH) {
                    V::load(from.add(d)).round_bf16().store(to.add(d));
                }
            }
        }
    }
}

/// The tokens of a block that a query sees: `from..to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::kernels) struct Span {
    pub(in crate::kernels) from: usize,
    pub(in crate::kernels) to: usize,
}

impl Span {
    pub(in crate::kernels) const ALL: Span = Span { from: 0, to: KV_BLOCK };

    #[inline(always)]
    pub(in crate::kernels) fn has(self, token: usize) -> bool {
        self.from <= token && token < self.to
    }

    /// A bit for each token, of the two vectors of sixteen.
    #[inline(always)]
    pub(in crate::kernels) fn lanes(self) -> [u16; 2] {
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
    pub(in crate::kernels) unsafe fn factors<V: Lanes, E: Element>(&self, keys: Page<E>) -> [V; 2] {
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
    pub(in crate::kernels) unsafe fn finish_score<V: Lanes>(&self, sums: V, factors: V) -> V {
        // SAFETY: register operations only.
        unsafe {
            let scores = sums.mul(factors);
            if self.softcap > 0.0 { softcap_lanes(scores, self.softcap) } else { scores }
        }
    }

    /// Turns the keys of a task's only row, if that is left to do, and stores them and its values.
    ///
    /// # Safety
    /// As [`Lanes`]; the task is one that stores.
    #[inline(always)]
    pub(in crate::kernels) unsafe fn store_row<V: Lanes, E: Element>(
        &self,
        task: &AttentionTask,
        scratch: &mut AttentionScratch,
    ) {
        let width = self.n_kv_heads * self.head_dim;
        // SAFETY: the row has keys, values and a slot; the scratch has room for its keys, of which
        // there are no more than queries.
        unsafe {
            let [mut key, value] = self.fresh.map(|rows| rows.add(task.first_row * width));
            if self.late_rope.half > 0 {
                let turned = scratch.keys.as_mut_ptr();
                for head in (0..width).step_by(self.head_dim) {
                    let both = (key.add(head), turned.add(head));
                    self.late_rope.turn::<V>(task.first_row, both, self.head_dim);
                }
                key = turned;
            }
            let fresh = FreshKv { key, value, keys: self.keys, values: self.values };
            let slot = *self.slots.add(task.first_row) as usize;
            store_kv::<V, E>(fresh, slot, self.n_kv_heads, self.head_dim);
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
    pub(in crate::kernels) unsafe fn span_of(
        &self,
        task: &AttentionTask,
        query: usize,
        block: usize,
    ) -> Span {
        // SAFETY: the query's row lies within the task.
        let position = unsafe { *self.positions.add(task.first_row + query / task.n_heads) };
        self.span(position, block)
    }

    /// The blocks that a task's rows see.
    ///
    /// # Safety
    /// The positions cover the task's rows.
    #[inline(always)]
    pub(in crate::kernels) unsafe fn blocks(&self, task: &AttentionTask) -> Range<usize> {
        // SAFETY: forwarded contract.
        let (first, last) = unsafe {
            let first = self.positions.add(task.first_row);
            (*first, *first.add(task.n_rows - 1))
        };
        let oldest = (u64::from(first) + 1).saturating_sub(u64::from(self.window)) as usize;
        oldest / KV_BLOCK..last as usize / KV_BLOCK + 1
    }
}

/// Blocks that are asked for together.
pub(crate) const FETCHED: usize = 2;

/// Asks for some blocks' pages a few lines at a time, while the blocks before them are worked on.
///
/// Pages lie anywhere, and the processor looks ahead only within a page that is being read; so the
/// pages of all heads, or of two blocks where there is one head, are asked for side by side, as
/// that many streams. Pages of bytes are short, and asked for one after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fetch {
    /// What is asked for next of the keys, and how far from there it is to the values.
    keys: *const u8,
    to_values: usize,
    /// From one page to the next, and from the last one's line to the first one's next.
    to_next: usize,
    to_first: usize,
    n_pages: usize,
    /// Pages of this line, and lines with this one, that are left.
    pages_left: usize,
    lines_left: usize,
}

impl Fetch {
    /// Nothing to fetch.
    pub(in crate::kernels) fn none() -> Fetch {
        Fetch {
            keys: std::ptr::null(),
            to_values: 0,
            to_next: 0,
            to_first: 0,
            n_pages: 0,
            pages_left: 0,
            lines_left: 0,
        }
    }

    /// The pages of `n` blocks of a task from `block` on, or as many as there are; where there are
    /// none, those that the next task begins with.
    ///
    /// # Safety
    /// As [`attend`](super::attend), for both tasks.
    #[inline(always)]
    pub(in crate::kernels) unsafe fn coming<E: Element>(
        args: &AttentionArgs,
        (task, next): (&AttentionTask, Option<&AttentionTask>),
        (tables, block, n): (*const u32, usize, usize),
    ) -> Fetch {
        // SAFETY: forwarded contract; blocks stay within those that the tasks' rows see.
        unsafe {
            let of = |task: &AttentionTask, first: usize, end: usize| {
                let ids = tables.add(task.blocks + first);
                let ids = std::slice::from_raw_parts(ids, end.min(first + n) - first);
                Fetch::new::<E>(args, task, ids)
            };
            let end = args.blocks(task).end;
            match next {
                _ if block < end => of(task, block, end),
                Some(next) => {
                    let blocks = args.blocks(next);
                    of(next, blocks.start, blocks.end)
                }
                None => Fetch::none(),
            }
        }
    }

    /// The pages of a task's blocks: of its KV heads, or of one for each of up to [`FETCHED`]
    /// blocks.
    fn new<E: Element>(args: &AttentionArgs, task: &AttentionTask, ids: &[u32]) -> Fetch {
        let page_bytes = E::page_bytes(args.head_dim);
        let page_of = |id: u32| (id as usize * args.n_kv_heads + task.first_kv_head) * page_bytes;
        // The heads' pages of a block follow one another: one stream where they are short.
        let n_heads_together = if E::SCALED { task.n_kv_heads } else { 1 };
        let (to_next, n_pages) = match *ids {
            [first, second, ..] => (page_of(second).wrapping_sub(page_of(first)), FETCHED),
            _ => (page_bytes, task.n_kv_heads / n_heads_together),
        };
        let Some(&first) = ids.first() else { return Fetch::none() };
        Fetch {
            keys: args.keys.cast_const().wrapping_add(page_of(first)),
            to_values: args.values.addr().wrapping_sub(args.keys.addr()),
            to_next,
            to_first: LINE.wrapping_sub((n_pages - 1).wrapping_mul(to_next)),
            n_pages,
            pages_left: n_pages,
            lines_left: (n_heads_together * page_bytes).div_ceil(LINE),
        }
    }

    /// The next `n` lines of keys and of values, of pages that are one stream.
    #[inline(always)]
    pub(in crate::kernels) fn take(&mut self, n: usize) -> Ahead {
        debug_assert!(self.n_pages <= 1);
        if self.lines_left == 0 {
            // Something that is there anyway.
            return Ahead { keys: std::ptr::from_ref(self).cast(), to_values: 0, step: 0 };
        }
        let ahead = Ahead { keys: self.keys, to_values: self.to_values, step: LINE };
        self.keys = self.keys.wrapping_add(n * LINE);
        self.lines_left = self.lines_left.saturating_sub(n);
        ahead
    }

    /// Asks for the next lines.
    ///
    /// # Safety
    /// As [`Lanes`].
    #[inline(always)]
    pub(in crate::kernels) unsafe fn steps<V: Lanes>(&mut self, n: usize) {
        for _ in 0..n {
            // SAFETY: forwarded contract.
            unsafe { self.step::<V>() };
        }
    }

    /// Asks for the next line of keys and of values.
    ///
    /// # Safety
    /// As [`Lanes`].
    #[inline(always)]
    pub(in crate::kernels) unsafe fn step<V: Lanes>(&mut self) {
        if self.lines_left > 0 {
            // SAFETY: a prefetch of any address does no harm.
            unsafe {
                V::prefetch_near(self.keys);
                V::prefetch_near(self.keys.wrapping_add(self.to_values));
            }
            self.pages_left -= 1;
            let is_last = self.pages_left == 0;
            self.keys = self.keys.wrapping_add(if is_last { self.to_first } else { self.to_next });
            if is_last {
                self.pages_left = self.n_pages;
                self.lines_left -= 1;
            }
        }
    }
}

/// Lines that a loop asks for one by one.
#[derive(Clone, Copy, Debug)]
pub(in crate::kernels) struct Ahead {
    keys: *const u8,
    to_values: usize,
    step: usize,
}

impl Ahead {
    /// Asks for the next line of keys and of values.
    ///
    /// # Safety
    /// As [`Lanes`].
    #[inline(always)]
    pub(in crate::kernels) unsafe fn ask<V: Lanes>(&mut self) {
        // SAFETY: a prefetch of any address does no harm.
        unsafe {
            V::prefetch_near(self.keys);
            V::prefetch_near(self.keys.wrapping_add(self.to_values));
        }
        self.keys = self.keys.wrapping_add(self.step);
    }

    /// Asks for `n` lines at once.
    ///
    /// # Safety
    /// As [`Lanes`].
    #[inline(always)]
    pub(in crate::kernels) unsafe fn ask_all<V: Lanes>(mut self, n: usize) {
        for _ in 0..n {
            // SAFETY: forwarded contract.
            unsafe { self.ask::<V>() };
        }
    }
}

/// Where a query's head begins in the query and output rows.
#[inline(always)]
pub(in crate::kernels) fn offset(
    args: &AttentionArgs,
    task: &AttentionTask,
    query: usize,
) -> usize {
    let row = task.first_row + query / task.n_heads;
    let head = task.first_head + query % task.n_heads;
    (row * args.n_heads + head) * args.head_dim
}
