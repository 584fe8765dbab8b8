//! The safe doors of the kernels: each method checks shapes, then splits the work over threads.
//!
//! How rows or panels are split never changes a result: every output is computed whole, by one
//! thread, by the same chain of operations.

mod attention;
mod expected;
mod kv_layer;
mod matmul;
mod residual;
mod rows;
mod tops;

pub use attention::{Attention, AttentionSeq, LateRows, Rope, RopeStore};
pub use kv_layer::KvLayer;
pub use matmul::{GatedJob, MatmulJob};
pub use residual::{NextNorm, Residual};
pub use rows::Gate;
pub use tops::{Top, Tops};

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use expected::Expected;

use crate::isa::Isa;
use crate::kernels::attention::{AttentionScratch, AttentionTask};
use crate::pool::Pool;
pub use crate::pool::{Door, Welcome};
use crate::table::Kernels;

/// Elements below which waking the other threads costs more than it gives.
const ALONE_BELOW: usize = 4096;

/// Where a thread's share of the work is cut into ranges, in sixteenths. The last ones are short,
/// so that threads are done at about the same time; each range costs some time to begin.
const CUTS: [usize; 5] = [0, 8, 12, 14, 16];
const RANGES: usize = CUTS.len() - 1;

/// The kernels of one instruction set and the threads that run them.
#[derive(Debug)]
pub struct Cpu {
    isa: Isa,
    kernels: &'static Kernels,
    pool: Pool,
    attention: Vec<AttentionScratch>,
    tasks: Vec<AttentionTask>,
    taken: Vec<Taken>,
    /// Each thread's, while the largest outputs of rows are found.
    tops: Vec<[Top; tops::ROWS]>,
    /// What those are at least.
    floors: Vec<[f32; tops::ROWS]>,
    expected: Expected,
}

impl Cpu {
    /// Starts the threads; an error if the machine lacks `isa` or threads. `max_head_dim` is the
    /// largest head size that attention will see.
    pub fn new(isa: Isa, n_threads: usize, max_head_dim: usize) -> std::io::Result<Cpu> {
        Cpu::of_pool(isa, Pool::new(n_threads)?, max_head_dim)
    }

    /// The same without threads but the caller's, and with room for up to `n_guests` others that
    /// come through its [`door`](Self::door).
    pub fn for_guests(isa: Isa, n_guests: usize, max_head_dim: usize) -> std::io::Result<Cpu> {
        Cpu::of_pool(isa, Pool::for_guests(n_guests), max_head_dim)
    }

    fn of_pool(isa: Isa, pool: Pool, max_head_dim: usize) -> std::io::Result<Cpu> {
        let isa = isa.require().map_err(std::io::Error::other)?;
        let n_threads = pool.n_threads();
        let attention = (0..n_threads).map(|_| AttentionScratch::new(max_head_dim)).collect();
        let taken = (0..n_threads).map(|_| Taken::default()).collect();
        Ok(Cpu {
            isa,
            kernels: Kernels::of(isa),
            pool,
            attention,
            tasks: Vec::new(),
            taken,
            tops: vec![[Top::NONE; tops::ROWS]; n_threads],
            floors: vec![[f32::NEG_INFINITY; tops::ROWS]; n_threads],
            expected: Expected::default(),
        })
    }

    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Threads, those for whom there is room included.
    pub fn n_threads(&self) -> usize {
        self.pool.n_threads()
    }

    /// Where others come in to help.
    pub fn door(&self) -> Door {
        self.pool.door()
    }

    /// Lets them, until the result is dropped.
    pub fn welcome(&self) -> Welcome {
        self.pool.welcome()
    }

    /// Largest element; elements must be numbers.
    pub fn max(&self) -> fn(&[f32]) -> f32 {
        self.kernels.max
    }

    /// Position of the first largest element.
    pub fn argmax(&self) -> fn(&[f32]) -> usize {
        self.kernels.argmax
    }

    /// Whether every element is a number, and none is positive infinity.
    pub fn is_sound(&self) -> fn(&[f32]) -> bool {
        self.kernels.is_sound
    }

    /// `Σ exp(x - max)`.
    pub fn sum_exp(&self) -> fn(&[f32], f32) -> f32 {
        self.kernels.sum_exp
    }

    /// Calls `f(row, slice of out)` for each row, the rows split over the threads.
    pub fn for_each_row<T: Send>(
        &mut self,
        out: &mut [T],
        width: usize,
        f: impl Fn(usize, &mut [T]) + Sync,
    ) {
        let n_rows = out.len() / width.max(1);
        assert_eq!(out.len(), n_rows * width, "rows of {width} do not fill the slice");
        let base = Shared(out.as_mut_ptr());
        self.split(n_rows, width, &|_, rows| {
            for row in rows {
                // SAFETY: rows are disjoint and within `out`, whose borrow outlives the call.
                let slice = unsafe { std::slice::from_raw_parts_mut(base.at(row * width), width) };
                f(row, slice);
            }
        });
    }

    /// Calls `f` for each item, each on one of the threads, for work that is long enough; then
    /// `then` on each thread that finds none left.
    pub fn for_each<T: Send>(
        &mut self,
        items: &mut [T],
        f: impl Fn(&mut T) + Sync,
        then: impl Fn() + Sync,
    ) {
        let base = Shared(items.as_mut_ptr());
        let f = |_, range: Range<usize>, _| {
            // SAFETY: items are within the slice, and each is in one range.
            range.for_each(|item| f(unsafe { &mut *base.at(item) }));
        };
        self.split_and_then(items.len(), ALONE_BELOW, &f, &then);
    }

    /// Calls `f(row, its slice, its result, the thread's state)` for each row of `rows`. `states`
    /// has one entry for each thread.
    pub fn for_each_row_with<T: Send, R: Send, S: Send>(
        &mut self,
        rows: &mut [T],
        results: &mut [R],
        states: &mut [S],
        f: impl Fn(usize, &mut [T], &mut R, &mut S) + Sync,
    ) {
        let n_rows = results.len();
        let width = rows.len() / n_rows.max(1);
        assert_eq!(rows.len(), n_rows * width, "the slice is not {n_rows} rows");
        assert!(states.len() >= self.n_threads(), "a state for each thread");
        let (base, results) = (Shared(rows.as_mut_ptr()), Shared(results.as_mut_ptr()));
        let states = Shared(states.as_mut_ptr());
        self.split(n_rows, width, &|thread, range| {
            // SAFETY: one state per thread.
            let state = unsafe { &mut *states.at(thread) };
            for row in range {
                // SAFETY: rows and results are disjoint and within their slices.
                let (slice, result) = unsafe {
                    let slice = std::slice::from_raw_parts_mut(base.at(row * width), width);
                    (slice, &mut *results.at(row))
                };
                f(row, slice, result, state);
            }
        });
    }

    /// Cuts `0..n` into ranges and runs `f(thread, range)` for each; alone when there is little to
    /// do.
    fn split(&mut self, n: usize, cost: usize, f: &(dyn Fn(usize, Range<usize>) + Sync)) {
        self.split_in_order(n, cost, &|thread, range, _| f(thread, range));
    }

    /// The same with `f(thread, range, end)`: the thread's next ranges follow up to `end`.
    ///
    /// Each thread has a share of neighbouring ranges and takes them in order. Whoever is done
    /// takes from the back of what others have left: cores that other programs use as well are
    /// slower at times, and fixed shares would wait for the slowest.
    fn split_in_order(
        &mut self,
        n: usize,
        cost: usize,
        f: &(dyn Fn(usize, Range<usize>, usize) + Sync),
    ) {
        self.split_and_then(n, cost, f, &|| ());
    }

    /// The same, and then `then` on each thread that finds no more.
    fn split_and_then(
        &mut self,
        n: usize,
        cost: usize,
        f: &(dyn Fn(usize, Range<usize>, usize) + Sync),
        then: &(dyn Fn() + Sync),
    ) {
        let n_threads = self.pool.n_threads();
        if n * cost < ALONE_BELOW || n == 1 || self.pool.n_here() == 1 {
            f(0, 0..n, n);
            return then();
        }
        let share =
            |of: usize| first_of_share(n, of, n_threads)..first_of_share(n, of + 1, n_threads);
        let (taken, expected) = (&self.taken, std::mem::take(&mut self.expected));
        taken.iter().for_each(Taken::reset);
        self.pool.share(&|thread| {
            let own = share(thread);
            while let Some(range) = taken[thread].first_of(&own) {
                f(thread, range, own.end);
            }
            for other in (thread + 1..n_threads).chain(0..thread) {
                while let Some(range) = taken[other].last_of(&share(other)) {
                    f(thread, range.clone(), range.end);
                }
            }
            then();
            expected.share_of(thread, n_threads)
        });
    }
}

/// How many ranges of a thread's share were taken: from the front by the thread itself, from the
/// back by others. Both counts are in one number, so that no range is taken twice.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Taken(AtomicUsize);

impl Taken {
    const FROM_BACK: usize = 1 << 16;

    fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    fn first_of(&self, share: &Range<usize>) -> Option<Range<usize>> {
        self.next_of(share, 1, |[front, _]| front)
    }

    fn last_of(&self, share: &Range<usize>) -> Option<Range<usize>> {
        self.next_of(share, Taken::FROM_BACK, |[_, back]| RANGES - 1 - back)
    }

    /// Ranges of a small share may be empty; those are passed over.
    fn next_of(
        &self,
        share: &Range<usize>,
        one: usize,
        nth: impl Fn([usize; 2]) -> usize,
    ) -> Option<Range<usize>> {
        loop {
            let taken = self.take(one);
            if taken[0] + taken[1] >= RANGES {
                return None;
            }
            let range = nth_range(share, nth(taken));
            if !range.is_empty() {
                return Some(range);
            }
        }
    }

    /// What was taken before.
    fn take(&self, one: usize) -> [usize; 2] {
        let taken = self.0.fetch_add(one, Ordering::Relaxed);
        [taken % Taken::FROM_BACK, taken / Taken::FROM_BACK]
    }
}

/// Where a thread's share of `n` begins.
fn first_of_share(n: usize, thread: usize, n_threads: usize) -> usize {
    n * thread / n_threads
}

fn nth_range(share: &Range<usize>, nth: usize) -> Range<usize> {
    let cut = |nth: usize| share.start + share.len() * CUTS[nth] / CUTS[RANGES];
    cut(nth)..cut(nth + 1)
}

/// A pointer that threads may share because they touch disjoint parts of what it points to.
#[derive(Debug)]
struct Shared<T>(*mut T);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Shared<T> {}

impl<T> Shared<T> {
    /// # Safety
    /// `offset` must lie within the allocation.
    unsafe fn at(self, offset: usize) -> *mut T {
        // SAFETY: forwarded contract.
        unsafe { self.0.add(offset) }
    }
}

// SAFETY: users touch disjoint parts (each use says which), and hold the borrow meanwhile.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<T> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_the_work_is_done_once() {
        let mut cpu = Cpu::new(Isa::Scalar, 3, 64).unwrap();
        for n in (1..60).cycle().take(600) {
            let done: Vec<AtomicUsize> = (0..n).map(|_| AtomicUsize::new(0)).collect();
            cpu.split_in_order(n, ALONE_BELOW, &|thread, range, end| {
                assert!(range.end <= end && end <= n);
                // The first thread is slow, so that others take from its share.
                (0..1000 * usize::from(thread == 0)).for_each(|_| std::hint::spin_loop());
                for part in &done[range] {
                    part.fetch_add(1, Ordering::Relaxed);
                }
            });
            assert!(done.iter().all(|part| part.load(Ordering::Relaxed) == 1));
        }
    }
}
