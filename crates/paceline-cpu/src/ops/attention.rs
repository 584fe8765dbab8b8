//! Rope, writing keys and values, and attention over the pages.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::kernels::attention::{AttentionArgs, AttentionTask, LateRope, QUERIES};
use crate::kernels::kv::{FreshKv, KV_BLOCK};
use crate::ops::{Cpu, KvLayer, Shared};

/// What happens to fresh queries, keys and values before attention.
#[derive(Debug)]
pub struct RopeStore<'a> {
    /// `[rows][heads * head_dim]`.
    pub queries: &'a mut [f32],
    pub keys: &'a mut [f32],
    pub values: &'a mut [f32],
    pub rope: Rope<'a>,
    /// Added first, where a model has them (empty: none).
    pub biases: [&'a [f32]; 3],
    /// Per-head norms of queries and keys, where a model has them (empty: none).
    pub head_norms: [&'a [f32]; 2],
    pub norm_eps: f32,
    /// Where each row's keys and values go.
    pub slots: &'a [u32],
    /// Rows whose keys and values [`Cpu::attention`] will store ([`Cpu::find_late_rows`]); empty:
    /// none.
    pub is_late: &'a [bool],
}

/// The angles that queries and keys are turned by.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rope<'a> {
    /// `[rows][dim / 2]`.
    pub cos: &'a [f32],
    pub sin: &'a [f32],
    /// Dimensions of a head that are turned; 0: none.
    pub dim: usize,
}

impl RopeStore<'_> {
    /// Whether late rows are left as they are, to be turned by attention: unless something comes
    /// before that.
    pub fn leaves_late_rows(&self) -> bool {
        let mut before = self.biases.iter().chain(&self.head_norms);
        before.all(|weights| weights.is_empty())
    }

    /// Whether there is nothing to do for a row.
    fn leaves(&self, row: usize) -> bool {
        self.is_late.get(row) == Some(&true) && self.leaves_late_rows()
    }
}

/// Keys and values that attention stores itself: those of late rows. All empty: there are none.
#[derive(Clone, Copy, Debug, Default)]
pub struct LateRows<'a> {
    /// As [`Cpu::rope_store`] has left them.
    pub keys: &'a [f32],
    pub values: &'a [f32],
    pub slots: &'a [u32],
    pub is_late: &'a [bool],
    /// If it has left that to do ([`RopeStore::leaves_late_rows`]).
    pub rope: Rope<'a>,
}

/// One sequence of the step.
#[derive(Clone, Copy, Debug)]
pub struct AttentionSeq {
    pub first_row: usize,
    pub n_rows: usize,
    /// Its block table: an offset into `Attention::tables`, and its length.
    pub first_block: usize,
    pub n_blocks: usize,
}

/// The step's queries and where to look.
#[derive(Debug)]
pub struct Attention<'a> {
    pub queries: &'a [f32],
    pub out: &'a mut [f32],
    pub positions: &'a [u32],
    pub seqs: &'a [AttentionSeq],
    pub tables: &'a [u32],
    pub n_heads: usize,
    pub scale: f32,
    pub softcap: Option<f32>,
    pub window: Option<u32>,
    pub late: LateRows<'a>,
}

impl Cpu {
    /// Finds the rows whose keys and values attention stores: those of sequences that have a single
    /// row and a task of their own. Attention reads the lines that they are written to anyway; no
    /// other sequence may read the block of a late row.
    pub fn find_late_rows(&self, seqs: &[AttentionSeq], n_heads: usize, is_late: &mut Vec<bool>) {
        let n_rows = seqs.iter().map(|seq| seq.first_row + seq.n_rows).max().unwrap_or(0);
        is_late.clear();
        is_late.resize(n_rows, false);
        for seq in seqs.iter().filter(|seq| self.is_one_task(seq, seqs.len(), n_heads)) {
            is_late[seq.first_row] = true;
        }
    }

    /// Whether all heads of a sequence are one task: it has one row, and there are sequences enough
    /// for the threads.
    fn is_one_task(&self, seq: &AttentionSeq, n_seqs: usize, n_heads: usize) -> bool {
        let are_many = n_seqs >= TASKS_PER_THREAD * self.n_threads();
        seq.n_rows == 1 && n_heads <= QUERIES && are_many
    }

    /// Biases, head norms and rope on queries and keys, then keys and values into their slots.
    pub fn rope_store(&mut self, args: RopeStore<'_>, kv: &mut KvLayer) {
        let (n_rows, d) = (args.slots.len(), kv.head_dim);
        let (q_width, kv_width) = (args.queries.len() / n_rows, kv.n_kv_heads * d);
        let half = args.rope.dim / 2;
        assert!(args.queries.len() == n_rows * q_width && q_width.is_multiple_of(d));
        assert!(args.keys.len() == n_rows * kv_width && args.values.len() == n_rows * kv_width);
        assert!(args.rope.cos.len() >= n_rows * half && args.rope.sin.len() >= n_rows * half);
        assert!(args.rope.dim <= d);
        let widths = [q_width, kv_width, kv_width];
        assert!(args.biases.iter().zip(widths).all(|(b, w)| b.is_empty() || b.len() == w));
        assert!(args.head_norms.iter().all(|w| w.is_empty() || w.len() == d));
        let n_slots = kv.n_slots();
        assert!(args.slots.iter().all(|&slot| (slot as usize) < n_slots), "slot outside the pool");
        assert!(args.is_late.is_empty() || args.is_late.len() == n_rows);
        if (0..n_rows).all(|row| args.leaves(row)) {
            return;
        }
        let (kernels, store_kv) = (self.kernels, self.kernels.store_kv.of(kv.dtype));
        let rows = [Shared(args.queries.as_mut_ptr()), Shared(args.keys.as_mut_ptr())];
        let values = Shared(args.values.as_mut_ptr());
        let pools = (Shared(kv.keys), Shared(kv.values));
        self.split(n_rows, q_width + 2 * kv_width, &|_, range| {
            for row in range.filter(|&row| !args.leaves(row)) {
                // SAFETY: sizes checked above. Each row is written by one thread, and slots of a
                // step are distinct, so pool writes are disjoint too.
                unsafe {
                    let [cos, sin] =
                        [args.rope.cos, args.rope.sin].map(|x| x.as_ptr().add(row * half));
                    let all = [rows[0], rows[1], values];
                    for ((bias, width), x) in args.biases.iter().zip(widths).zip(all) {
                        if !bias.is_empty() {
                            (kernels.add)(x.at(row * width), bias.as_ptr(), width);
                        }
                    }
                    for ((x, width), norm) in rows.iter().zip(widths).zip(args.head_norms) {
                        for head in 0..width / d {
                            let head = x.at(row * width + head * d);
                            if !norm.is_empty() {
                                (kernels.rms_norm)(head, norm.as_ptr(), args.norm_eps, d, head);
                            }
                            (kernels.rope)(head, cos, sin, half);
                        }
                    }
                    if args.is_late.get(row) == Some(&true) {
                        continue;
                    }
                    let fresh = FreshKv {
                        key: rows[1].at(row * kv_width),
                        value: values.at(row * kv_width),
                        keys: pools.0.at(0),
                        values: pools.1.at(0),
                    };
                    store_kv(fresh, args.slots[row] as usize, kv_width / d, d);
                }
            }
        });
    }

    /// Attention of every row over its sequence's pages.
    pub fn attention(&mut self, args: Attention<'_>, kv: &mut KvLayer) {
        let n_rows = args.positions.len();
        let width = args.n_heads * kv.head_dim;
        assert!(args.queries.len() == n_rows * width && args.out.len() == n_rows * width);
        assert!(args.n_heads.is_multiple_of(kv.n_kv_heads) && kv.head_dim.is_multiple_of(16));
        let n_kv_blocks = kv.n_slots() / KV_BLOCK;
        assert!(args.tables.iter().all(|&b| (b as usize) < n_kv_blocks), "block outside the pool");
        let (late, kv_width) = (args.late, kv.n_kv_heads * kv.head_dim);
        if !late.is_late.is_empty() {
            assert!(late.is_late.len() == n_rows && late.slots.len() == n_rows);
            assert!(late.keys.len() == n_rows * kv_width && late.values.len() == n_rows * kv_width);
        }
        let half = late.rope.dim / 2;
        assert!(late.rope.cos.len() >= n_rows * half && late.rope.sin.len() >= n_rows * half);
        assert!(late.rope.dim <= kv.head_dim);
        self.plan(&args, kv.n_kv_heads);
        let shared = AttentionArgs {
            queries: args.queries.as_ptr(),
            out: args.out.as_mut_ptr(),
            positions: args.positions.as_ptr(),
            keys: kv.keys,
            values: kv.values,
            fresh: [late.keys.as_ptr(), late.values.as_ptr()],
            slots: late.slots.as_ptr(),
            late_rope: LateRope { cos: late.rope.cos.as_ptr(), sin: late.rope.sin.as_ptr(), half },
            n_heads: args.n_heads,
            n_kv_heads: kv.n_kv_heads,
            head_dim: kv.head_dim,
            scale: args.scale,
            softcap: args.softcap.unwrap_or(0.0),
            window: args.window.unwrap_or(u32::MAX),
        };
        let (kernel, tasks) = (self.kernels.attend.of(kv.dtype), &self.tasks);
        let scratch = Shared(self.attention.as_mut_ptr());
        let (next, n_threads) = (AtomicUsize::new(0), self.n_threads());
        let n_here = self.pool.n_here();
        let expected = std::mem::take(&mut self.expected);
        self.pool.share(&|thread| {
            // SAFETY: one scratch per thread.
            let scratch = unsafe { &mut *scratch.at(thread) };
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(task) = tasks.get(index) else {
                    return expected.share_of(thread, n_threads);
                };
                let coming = tasks.get(index + n_here);
                // SAFETY: `plan` checked rows and tables against the slices above; each task
                // writes its own rows and heads.
                unsafe { kernel(&shared, task, coming, args.tables.as_ptr(), scratch) };
            }
        });
    }

    /// Cuts the step into tasks of at most [`QUERIES`] queries of one sequence and one KV head; of
    /// all KV heads where a sequence has one row and there are sequences enough for the threads.
    fn plan(&mut self, args: &Attention<'_>, n_kv_heads: usize) {
        let group = args.n_heads / n_kv_heads;
        let n_tasks = TASKS_PER_THREAD * self.n_threads();
        let all_queries = args.positions.len() * args.n_heads;
        let n_queries = (all_queries / n_tasks).clamp(QUERIES_MIN, self.kernels.queries);
        self.tasks.clear();
        for seq in args.seqs {
            let rows = seq.first_row..seq.first_row + seq.n_rows;
            let last = args.positions[rows.clone()].iter().max().map_or(0, |&p| p as usize);
            assert!(last / KV_BLOCK < seq.n_blocks, "position beyond the block table");
            assert!(seq.first_block + seq.n_blocks <= args.tables.len());
            let is_whole = self.is_one_task(seq, args.seqs.len(), args.n_heads);
            let stores = is_whole && args.late.is_late.get(rows.start) == Some(&true);
            // Its place is where its position is looked for.
            let block = || args.tables[seq.first_block + last / KV_BLOCK] as usize;
            let slot = || args.late.slots[rows.start] as usize;
            assert!(!stores || slot() == block() * KV_BLOCK + last % KV_BLOCK);
            let all = AttentionTask {
                first_row: rows.start,
                n_rows: rows.len(),
                first_head: 0,
                n_heads: args.n_heads,
                first_kv_head: 0,
                n_kv_heads,
                blocks: seq.first_block,
                stores,
            };
            if is_whole {
                self.tasks.push(all);
            } else {
                cut(all, group, n_queries, &mut self.tasks);
            }
        }
        // The longest first: a thread that began one last would keep the others waiting.
        let positions = args.positions;
        let n_seen = |task: &AttentionTask| positions[task.first_row] as usize + task.n_rows;
        let n_pairs = |task: &AttentionTask| n_seen(task) * task.n_rows * task.n_heads;
        self.tasks.sort_unstable_by_key(|task| std::cmp::Reverse(n_pairs(task)));
    }
}

/// Sequences for each thread from which on a sequence is a single task, and tasks that a thread
/// should have at least.
const TASKS_PER_THREAD: usize = 4;

/// Queries of a task that are worth having together: a matrix tile's.
const QUERIES_MIN: usize = 16;

/// Cuts a sequence into tasks of one KV head, which `group` heads read, and up to `n_queries`.
fn cut(all: AttentionTask, group: usize, n_queries: usize, tasks: &mut Vec<AttentionTask>) {
    let n_heads = group.min(n_queries);
    let n_parts = all.n_rows.div_ceil(n_queries / n_heads);
    let rows_per_task = all.n_rows.div_ceil(n_parts);
    let rows = all.first_row..all.first_row + all.n_rows;
    for first_row in rows.clone().step_by(rows_per_task) {
        let n_rows = rows_per_task.min(rows.end - first_row);
        for kv_head in 0..all.n_kv_heads {
            let heads = kv_head * group..(kv_head + 1) * group;
            for first_head in heads.clone().step_by(n_heads) {
                let n_heads = n_heads.min(heads.end - first_head);
                let (first_kv_head, n_kv_heads) = (kv_head, 1);
                tasks.push(AttentionTask {
                    first_row,
                    n_rows,
                    first_head,
                    n_heads,
                    first_kv_head,
                    n_kv_heads,
                    ..all
                });
            }
        }
    }
}
