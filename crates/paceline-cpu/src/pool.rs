//! A fixed set of threads that run one closure together, over and over.
//!
//! An op takes microseconds, so workers spin between jobs; after some idle time they sleep, and
//! the next job wakes them. The caller is thread 0. No queue: a job shares its work out itself.

use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::aligned::LINE;

/// Spins before a waiting thread starts to give up its time slice, and before it sleeps.
const SPINS_BEFORE_YIELD: u32 = 4_000;
const SPINS_BEFORE_SLEEP: u32 = 40_000;

type Job = *const (dyn Fn(usize) -> Coming + Sync);

/// Where what a thread will read in a later job begins. It is asked for while the thread waits:
/// else each job would begin with waiting for memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Coming([Option<Address>; 2]);

type Address = std::num::NonZeroUsize;

impl Coming {
    /// Lines of each page that are asked for: all of them, or a few to begin with.
    const ALL: usize = 64;
    const FEW: usize = 8;
    const PAGE: usize = 4096;

    /// One stream of bytes, or two that will be read side by side.
    pub(crate) fn new(first: *const u8, second: Option<*const u8>) -> Coming {
        let address = |at: *const u8| Address::new(at.addr());
        Coming([address(first), second.and_then(address)])
    }

    /// Asks for `n_lines` of each of the first four pages, until there is something better to do.
    fn ask(self, n_lines: usize, is_over: impl Fn() -> bool) {
        let Coming([Some(first), second]) = self else { return };
        let third = second.map_or(first.get() + 2 * Self::PAGE, Address::get);
        let pages = [first.get(), first.get() + Self::PAGE, third, third + Self::PAGE];
        for line in (0..n_lines).take_while(|_| !is_over()) {
            pages.into_iter().for_each(|page| ask_for(page + line * LINE));
        }
    }
}

/// Fetches a cache line into the second-level cache; any address will do.
fn ask_for(address: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: a prefetch of any address does no harm.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(std::ptr::without_provenance(address)) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// The threads. Dropping the pool ends them.
#[derive(Debug)]
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

struct Shared {
    start: OwnLine<Start>,
    /// Workers that have not finished the current job.
    running: OwnLine<AtomicUsize>,
    /// Workers that sleep, or are about to.
    n_asleep: OwnLine<AtomicUsize>,
    sleep: Mutex<()>,
    wake: Condvar,
    panicked: AtomicBool,
    stop: AtomicBool,
}

/// What workers look at while they wait, in the same cache line.
struct Start {
    /// Counts jobs; a worker that sees a new number runs the job.
    epoch: AtomicU64,
    job: UnsafeCell<Option<Job>>,
}

/// On cache lines of its own: a line goes from core to core in a tenth of a microsecond, each time
/// that one has written what another reads, or something beside it.
#[repr(align(128))]
struct OwnLine<T>(T);

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("epoch", &self.start.0.epoch).finish_non_exhaustive()
    }
}

// SAFETY: `job` is written only by `Pool::run` while no worker runs one (`running` is 0), and read
// by workers only after they saw the epoch that was stored after it.
unsafe impl Sync for Shared {}
// SAFETY: as above; the closure behind the pointer is `Sync`.
unsafe impl Send for Shared {}

impl Pool {
    /// A pool of `n_threads`, the caller's own included.
    pub(crate) fn new(n_threads: usize) -> std::io::Result<Pool> {
        let shared = Arc::new(Shared {
            start: OwnLine(Start { epoch: AtomicU64::new(0), job: UnsafeCell::new(None) }),
            running: OwnLine(AtomicUsize::new(0)),
            n_asleep: OwnLine(AtomicUsize::new(0)),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        // Built first, so that its drop ends the threads already started if a later one fails.
        let mut pool = Pool { shared, workers: Vec::new() };
        for thread in 1..n_threads.max(1) {
            let shared = Arc::clone(&pool.shared);
            let name = format!("paceline-cpu-{thread}");
            let body = move || work(&shared, thread);
            pool.workers.push(std::thread::Builder::new().name(name).spawn(body)?);
        }
        Ok(pool)
    }

    pub(crate) fn n_threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `job(thread)` on every thread and returns when all are done.
    ///
    /// # Panics
    /// If the job panics on any thread. Takes `&mut self`: jobs do not nest.
    pub(crate) fn run(&mut self, job: &(dyn Fn(usize) + Sync)) {
        self.run_and_ask(&|thread| {
            job(thread);
            Coming::default()
        });
    }

    /// The same; what the job returns is asked for meanwhile, and by workers until the next job.
    ///
    /// # Panics
    /// If the job panics on any thread. Takes `&mut self`: jobs do not nest.
    pub(crate) fn run_and_ask(&mut self, job: &(dyn Fn(usize) -> Coming + Sync)) {
        if self.workers.is_empty() {
            job(0);
            return;
        }
        let shared = &*self.shared;
        let erased = std::ptr::from_ref(job);
        // SAFETY: no worker runs (`&mut self`, and the last `run` waited for all). The transmute
        // only erases the lifetime: this function does not return or unwind before every worker
        // is done with the job.
        unsafe {
            *shared.start.0.job.get() = Some(std::mem::transmute::<
                *const (dyn Fn(usize) -> Coming + Sync + '_),
                Job,
            >(erased));
        }
        shared.running.0.store(self.workers.len(), Ordering::Relaxed);
        shared.announce();
        let mine = catch_unwind(AssertUnwindSafe(|| job(0)));
        if let Ok(coming) = mine {
            coming.ask(Coming::FEW, || false);
        }
        wait_until(|| shared.running.0.load(Ordering::Acquire) == 0);
        if let Err(panic) = mine {
            std::panic::resume_unwind(panic);
        }
        assert!(!shared.panicked.swap(false, Ordering::Relaxed), "a kernel thread panicked");
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.announce();
        for worker in self.workers.drain(..) {
            // A worker's panic was reported by the `run` it happened in.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// Begins a new epoch, and wakes those who sleep.
    ///
    /// A worker counts itself asleep before it looks at the epoch for the last time, and here it
    /// is the other way round: one of the two sees the other.
    fn announce(&self) {
        self.start.0.epoch.fetch_add(1, Ordering::SeqCst);
        if self.n_asleep.0.load(Ordering::SeqCst) > 0 {
            drop(self.lock());
            self.wake.notify_all();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, ()> {
        self.sleep.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn wait_until(done: impl Fn() -> bool) {
    let mut spins = 0;
    while !done() {
        spins += 1;
        if spins < SPINS_BEFORE_YIELD {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
}

fn work(shared: &Shared, thread: usize) {
    let mut seen = 0;
    loop {
        seen = next_epoch(shared, seen);
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        // SAFETY: the job was stored before the epoch we saw and stays until `running` is 0.
        let done = catch_unwind(AssertUnwindSafe(|| unsafe {
            (*shared.start.0.job.get()).map(|job| (*job)(thread))
        }));
        if done.is_err() {
            shared.panicked.store(true, Ordering::Relaxed);
        }
        shared.running.0.fetch_sub(1, Ordering::Release);
        if let Ok(Some(coming)) = done {
            let has_begun = || shared.start.0.epoch.load(Ordering::Relaxed) != seen;
            coming.ask(Coming::ALL, has_begun);
        }
    }
}

/// Waits for an epoch other than `seen`: spins, then yields, then sleeps.
fn next_epoch(shared: &Shared, seen: u64) -> u64 {
    let current = || shared.start.0.epoch.load(Ordering::SeqCst);
    for spin in 0..SPINS_BEFORE_SLEEP {
        if current() != seen {
            return current();
        }
        if spin < SPINS_BEFORE_YIELD {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
    let mut guard = shared.lock();
    shared.n_asleep.0.fetch_add(1, Ordering::SeqCst);
    while current() == seen {
        guard = shared.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
    }
    shared.n_asleep.0.fetch_sub(1, Ordering::SeqCst);
    drop(guard);
    current()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_runs_every_job_once() {
        let mut pool = Pool::new(3).unwrap();
        let counts: Vec<AtomicUsize> = (0..3).map(|_| AtomicUsize::new(0)).collect();
        for _ in 0..200 {
            pool.run(&|thread| {
                counts[thread].fetch_add(1, Ordering::Relaxed);
            });
        }
        assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 200));
    }

    #[test]
    fn sleeping_workers_wake() {
        let mut pool = Pool::new(2).unwrap();
        for _ in 0..3 {
            // Wait until the worker really sleeps; it does after a bounded number of spins.
            while pool.shared.n_asleep.0.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            let ran = AtomicUsize::new(0);
            pool.run(&|_| {
                ran.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(ran.into_inner(), 2);
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let mut pool = Pool::new(2).unwrap();
        for culprit in 0..2 {
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.run(&|thread| assert_ne!(thread, culprit));
            }));
            assert!(result.is_err());
        }
        pool.run(&|_| ());
    }
}
