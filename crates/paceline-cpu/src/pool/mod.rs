//! A fixed set of threads that work on one job together, over and over.
//!
//! An op takes microseconds, so workers spin between jobs; after some idle time they sleep, and
//! the next job wakes them. The caller is thread 0. No queue: a job shares its work out itself, so
//! that any of the threads can do all of it. Those who come late find it closed and wait for the
//! next; nobody waits for them, only for those who have begun a part.
//!
//! A pool may have room for guests instead: threads that come when they have nothing else to do
//! ([`guests`]).

mod attendance;
mod guests;

use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use attendance::Attendance;
use guests::Guests;
pub use guests::{Door, Welcome};

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
    attendance: Vec<Attendance>,
}

struct Shared {
    start: OwnLine<Start>,
    workers: Box<[OwnLine<Worker>]>,
    /// Workers that sleep and wait for a job, or are about to.
    n_asleep: OwnLine<AtomicUsize>,
    guests: OwnLine<Guests>,
    sleep: Mutex<()>,
    wake: Condvar,
    panicked: AtomicBool,
    stop: AtomicBool,
}

/// What workers look at while they wait, in the same cache line.
struct Start {
    /// Counts jobs by twos: odd while a job is open to those who have not been in it, even once
    /// it is closed.
    epoch: AtomicU64,
    job: UnsafeCell<Option<Job>>,
}

/// A worker, as the others see it.
#[derive(Default)]
struct Worker {
    /// Whether it may be working on the job that is open, or was last.
    is_in: AtomicBool,
    /// The last job it has done.
    done: AtomicU64,
    /// Whether it is left out.
    is_out: AtomicBool,
    /// Whether a guest has this place.
    is_taken: AtomicBool,
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

// SAFETY: `job` is written only by `Pool::run` while no worker is in, and read by workers only once
// they are in: after they saw the epoch that was stored after it, and before `run` returns.
unsafe impl Sync for Shared {}
// SAFETY: as above; the closure behind the pointer is `Sync`.
unsafe impl Send for Shared {}

/// Whom a job needs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Needs {
    Anyone,
    Everyone,
}

impl Pool {
    /// A pool of `n_threads`, the caller's own included.
    pub(crate) fn new(n_threads: usize) -> std::io::Result<Pool> {
        let n_workers = n_threads.max(1) - 1;
        // Built first, so that its drop ends the threads already started if a later one fails.
        let mut pool = Pool::empty(n_workers);
        for thread in 1..=n_workers {
            let shared = Arc::clone(&pool.shared);
            let name = format!("paceline-cpu-{thread}");
            let body = move || work(&shared, thread);
            pool.workers.push(std::thread::Builder::new().name(name).spawn(body)?);
        }
        // Nobody waits for a thread that is late, but the first job should not find it unborn.
        pool.run_on_all(&|_| ());
        Ok(pool)
    }

    /// The caller's own thread, and places for others.
    fn empty(n_workers: usize) -> Pool {
        let shared = Arc::new(Shared {
            start: OwnLine(Start { epoch: AtomicU64::new(0), job: UnsafeCell::new(None) }),
            workers: (0..n_workers).map(|_| OwnLine(Worker::default())).collect(),
            n_asleep: OwnLine(AtomicUsize::new(0)),
            guests: OwnLine(Guests::default()),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        let attendance = vec![Attendance::new(Instant::now()); n_workers];
        Pool { shared, workers: Vec::new(), attendance }
    }

    /// Threads at most; jobs are called with numbers below.
    pub(crate) fn n_threads(&self) -> usize {
        self.shared.workers.len() + 1
    }

    /// Threads that are there to share a job now.
    pub(crate) fn n_here(&self) -> usize {
        1 + self.workers.len() + self.shared.guests.0.n_here()
    }

    /// Runs `job(thread)` on every thread and returns when all are done.
    ///
    /// # Panics
    /// If the job panics on any thread, or the pool is one for guests. Takes `&mut self`: jobs do
    /// not nest.
    pub(crate) fn run_on_all(&mut self, job: &(dyn Fn(usize) + Sync)) {
        assert_eq!(self.workers.len() + 1, self.n_threads(), "guests are not always there");
        self.end_rests(|_| true, Instant::now());
        let job = |thread| {
            job(thread);
            Coming::default()
        };
        self.run(&job, Needs::Everyone);
    }

    /// Runs `job(thread)` on the threads that are there, the caller at least, and returns when
    /// those are done: each call must go on until no part of the work is left to begin. What the
    /// job returns is asked for meanwhile, and by workers until the next job.
    ///
    /// # Panics
    /// If the job panics on any thread. Takes `&mut self`: jobs do not nest.
    pub(crate) fn share(&mut self, job: &(dyn Fn(usize) -> Coming + Sync)) {
        if self.attendance.iter().any(Attendance::is_out) {
            let now = Instant::now();
            self.end_rests(|attendance| attendance.comes_back(now), now);
        }
        self.run(job, Needs::Anyone);
    }

    fn run(&mut self, job: &(dyn Fn(usize) -> Coming + Sync), needs: Needs) {
        if self.n_here() == 1 || self.attendance.iter().all(Attendance::is_out) {
            job(0);
            return;
        }
        let begin = Instant::now();
        let shared = &*self.shared;
        let erased = std::ptr::from_ref(job);
        // SAFETY: no worker is in (`&mut self`, and the last `run` waited for all). The transmute
        // only erases the lifetime: this function does not return or unwind before every worker
        // that is in is out again, and the closed epoch lets no more in.
        unsafe {
            *shared.start.0.job.get() = Some(std::mem::transmute::<
                *const (dyn Fn(usize) -> Coming + Sync + '_),
                Job,
            >(erased));
        }
        let epoch = shared.open();
        let mine = catch_unwind(AssertUnwindSafe(|| job(0)));
        if let Ok(coming) = mine {
            coming.ask(Coming::FEW, || false);
        }
        if needs == Needs::Everyone {
            wait_until(|| shared.workers.iter().all(|worker| worker.0.has_done(epoch)));
        }
        if shared.workers.iter().any(|worker| worker.0.is_late_for(epoch)) {
            shared.close();
        }
        self.wait_for_workers(begin);
        if let Err(panic) = mine {
            std::panic::resume_unwind(panic);
        }
        let panicked = self.shared.panicked.swap(false, Ordering::Relaxed);
        assert!(!panicked, "a kernel thread panicked");
    }

    /// Waits for those who are in, and leaves out whom it is better to do without. `begin`: when
    /// the job began.
    fn wait_for_workers(&mut self, begin: Instant) {
        for (worker, attendance) in self.shared.workers.iter().zip(&mut self.attendance) {
            let has_left = || !worker.0.is_in.load(Ordering::Acquire);
            if spin_until(has_left) {
                continue;
            }
            let stalled = Instant::now();
            wait_until(has_left);
            let now = Instant::now();
            // It may have more to do than the others, but not by that much.
            if now - stalled > stalled - begin {
                attendance.note_stall(stalled, now, self.shared.workers.len() as u32);
                worker.0.is_out.store(attendance.is_out(), Ordering::Relaxed);
            }
        }
    }

    /// Lets workers that are left out take part again, where `f` says so.
    fn end_rests(&mut self, f: impl Fn(&Attendance) -> bool, now: Instant) {
        let mut some = false;
        for (worker, attendance) in self.shared.workers.iter().zip(&mut self.attendance) {
            if attendance.is_out() && f(attendance) {
                *attendance = Attendance::new(now);
                worker.0.is_out.store(false, Ordering::Relaxed);
                some = true;
            }
        }
        if some {
            self.shared.wake();
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.open();
        self.shared.wake();
        for worker in self.workers.drain(..) {
            // A worker's panic was reported by the `run` it happened in.
            let _ = worker.join();
        }
    }
}

impl Worker {
    fn has_done(&self, epoch: u64) -> bool {
        self.done.load(Ordering::Acquire) == epoch
    }

    /// Whether it has not begun what the others have finished.
    fn is_late_for(&self, epoch: u64) -> bool {
        !self.is_in.load(Ordering::SeqCst) && !self.has_done(epoch)
    }
}

impl Shared {
    /// Begins a job, and wakes those who sleep.
    ///
    /// A worker counts itself asleep before it looks at the epoch for the last time, and here it
    /// is the other way round: one of the two sees the other.
    fn open(&self) -> u64 {
        let epoch = (self.start.0.epoch.load(Ordering::Relaxed) + 1) | 1;
        self.start.0.epoch.store(epoch, Ordering::SeqCst);
        if self.n_asleep.0.load(Ordering::SeqCst) > 0 {
            self.wake();
        }
        epoch
    }

    /// The job that is open, unless it is that one.
    fn job_after(&self, seen: u64) -> Option<u64> {
        let epoch = self.start.0.epoch.load(Ordering::SeqCst);
        let is_new = epoch != seen && !epoch.is_multiple_of(2);
        is_new.then_some(epoch)
    }

    /// Lets nobody join any more. A worker says that it is in before it looks whether the job is
    /// still open, and here it is closed before anyone looks who is in.
    fn close(&self) {
        self.start.0.epoch.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether the worker is in, in time for this job.
    fn join(&self, worker: &Worker, epoch: u64) -> bool {
        worker.is_in.store(true, Ordering::SeqCst);
        let is_open = self.start.0.epoch.load(Ordering::SeqCst) == epoch;
        if !is_open {
            worker.is_in.store(false, Ordering::Release);
        }
        is_open
    }

    fn wake(&self) {
        drop(self.lock());
        self.wake.notify_all();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, ()> {
        self.sleep.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether it is done within a short time.
fn spin_until(done: impl Fn() -> bool) -> bool {
    (0..SPINS_BEFORE_YIELD).any(|_| {
        let is_done = done();
        if !is_done {
            std::hint::spin_loop();
        }
        is_done
    })
}

fn wait_until(done: impl Fn() -> bool) {
    if !spin_until(&done) {
        while !done() {
            std::thread::yield_now();
        }
    }
}

fn work(shared: &Shared, thread: usize) {
    let worker = &shared.workers[thread - 1].0;
    let mut seen = 0;
    loop {
        seen = next_job(shared, worker, seen);
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        take_part(shared, thread, seen);
    }
}

/// Does a part of the job, unless it is closed by now, and asks for what comes after it.
fn take_part(shared: &Shared, thread: usize, epoch: u64) {
    let worker = &shared.workers[thread - 1].0;
    if !shared.join(worker, epoch) {
        return;
    }
    // SAFETY: the job was stored before the epoch we saw and stays while we are in.
    let done = catch_unwind(AssertUnwindSafe(|| unsafe {
        (*shared.start.0.job.get()).map(|job| (*job)(thread))
    }));
    if done.is_err() {
        shared.panicked.store(true, Ordering::Relaxed);
    }
    worker.done.store(epoch, Ordering::Release);
    worker.is_in.store(false, Ordering::Release);
    if let Ok(Some(coming)) = done {
        let has_begun = || shared.start.0.epoch.load(Ordering::Relaxed) > epoch + 1;
        coming.ask(Coming::ALL, has_begun);
    }
}

/// Waits for an open job after `seen`, or the end: spins, then yields, then sleeps.
fn next_job(shared: &Shared, worker: &Worker, seen: u64) -> u64 {
    let next = || shared.job_after(seen);
    let is_out = || worker.is_out.load(Ordering::Relaxed) && !shared.stop.load(Ordering::SeqCst);
    for spin in 0..SPINS_BEFORE_SLEEP {
        if is_out() {
            break;
        }
        if let Some(epoch) = next() {
            return epoch;
        }
        if spin < SPINS_BEFORE_YIELD {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
    let mut guard = shared.lock();
    loop {
        // Jobs do not wake those who are left out.
        let n_asleep = usize::from(!is_out());
        shared.n_asleep.0.fetch_add(n_asleep, Ordering::SeqCst);
        let epoch = next().filter(|_| !is_out());
        if epoch.is_none() {
            guard = shared.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        shared.n_asleep.0.fetch_sub(n_asleep, Ordering::SeqCst);
        if let Some(epoch) = epoch {
            return epoch;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn every_thread_runs_every_job_once() {
        let mut pool = Pool::new(3).unwrap();
        let counts: Vec<AtomicUsize> = (0..3).map(|_| AtomicUsize::new(0)).collect();
        for _ in 0..200 {
            pool.run_on_all(&|thread| {
                counts[thread].fetch_add(1, Ordering::Relaxed);
            });
        }
        assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 200));
    }

    #[test]
    fn shared_work_is_done_once_whoever_is_there() {
        let mut pool = Pool::new(4).unwrap();
        for n_parts in 0..2000 {
            let (next, sum) = (AtomicUsize::new(0), AtomicUsize::new(0));
            pool.share(&|_| {
                loop {
                    let part = next.fetch_add(1, Ordering::Relaxed);
                    if part >= n_parts {
                        return Coming::default();
                    }
                    sum.fetch_add(part, Ordering::Relaxed);
                }
            });
            assert_eq!(sum.into_inner(), n_parts * n_parts.saturating_sub(1) / 2);
        }
    }

    #[test]
    fn a_worker_that_stalls_is_left_out_until_all_are_needed() {
        let mut pool = Pool::new(2).unwrap();
        // The first stall may follow a long start; from then on nothing is brought between stalls.
        let is_out = (0..8).any(|attempt| {
            let is_in = AtomicBool::new(false);
            pool.share(&|thread| {
                match thread {
                    0 => wait_until(|| is_in.load(Ordering::Relaxed)),
                    _ => {
                        is_in.store(true, Ordering::Relaxed);
                        std::thread::sleep(Duration::from_millis(20 << attempt));
                    }
                }
                Coming::default()
            });
            pool.attendance[0].is_out()
        });
        assert!(is_out);

        let ran = AtomicUsize::new(0);
        pool.run_on_all(&|_| {
            ran.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(ran.into_inner(), 2);
        // It may have stalled again since: only the end of a rest is not a matter of the clock.
        pool.end_rests(|_| true, Instant::now());
        assert!(!pool.attendance[0].is_out());
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
            pool.run_on_all(&|_| {
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
                pool.run_on_all(&|thread| assert_ne!(thread, culprit));
            }));
            assert!(result.is_err());
        }
        pool.run_on_all(&|_| ());
    }
}
