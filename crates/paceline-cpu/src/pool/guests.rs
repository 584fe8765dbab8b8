//! Threads of others that help a pool out.
//!
//! Where each thread has work of its own, some are done before others: cores that other programs
//! use as well are slower at times. Such a thread comes to a pool whose owner is still at work,
//! takes part in its jobs from the next one on, and leaves when the owner is done. Nobody waits for
//! a guest that has not begun.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::{Pool, SPINS_BEFORE_YIELD, Shared, Worker, take_part};

/// Who may come, and who is there.
#[derive(Debug, Default)]
pub(super) struct Guests {
    is_welcome: AtomicBool,
    n_here: AtomicUsize,
}

impl Guests {
    pub(super) fn n_here(&self) -> usize {
        self.n_here.load(Ordering::Relaxed)
    }
}

/// Where guests come in.
#[derive(Clone, Debug)]
pub struct Door(Arc<Shared>);

/// Guests may come, and stay, until this is dropped.
#[derive(Debug)]
pub struct Welcome(Arc<Shared>);

impl Drop for Welcome {
    fn drop(&mut self) {
        self.0.guests.0.is_welcome.store(false, Ordering::Release);
    }
}

impl Pool {
    /// A pool of the caller's own thread and up to `n` guests.
    pub(crate) fn for_guests(n: usize) -> Pool {
        Pool::empty(n)
    }

    pub(crate) fn door(&self) -> Door {
        Door(Arc::clone(&self.shared))
    }

    /// Lets guests in. A pool with threads of its own has no place for any.
    pub(crate) fn welcome(&self) -> Welcome {
        let has_room = self.workers.is_empty();
        self.shared.guests.0.is_welcome.store(has_room, Ordering::Release);
        Welcome(Arc::clone(&self.shared))
    }
}

impl Door {
    /// Takes part in the pool's jobs for as long as its owner is at work; at once over where no
    /// guest is welcome, or there is no place left.
    pub fn help(&self) {
        let shared = &*self.0;
        let Some(place) = shared.workers.iter().position(|worker| worker.0.take_place()) else {
            return;
        };
        let worker = &shared.workers[place].0;
        shared.guests.0.n_here.fetch_add(1, Ordering::Relaxed);
        // A job that the place's last guest had part in may still look open.
        let mut seen = worker.done.load(Ordering::Acquire);
        while let Some(job) = self.next_job(worker, seen) {
            seen = job;
            take_part(shared, place + 1, job);
        }
        shared.guests.0.n_here.fetch_sub(1, Ordering::Relaxed);
        worker.is_taken.store(false, Ordering::Release);
    }

    /// Waits for an open job after `seen`; none once it is time to leave.
    fn next_job(&self, worker: &Worker, seen: u64) -> Option<u64> {
        let may_stay = || {
            let is_welcome = self.0.guests.0.is_welcome.load(Ordering::Acquire);
            is_welcome && !worker.is_out.load(Ordering::Relaxed)
        };
        let mut n_spins = 0;
        while may_stay() {
            if let Some(job) = self.0.job_after(seen) {
                return Some(job);
            }
            if n_spins < SPINS_BEFORE_YIELD {
                n_spins += 1;
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
        None
    }
}

impl Worker {
    /// Whether the place was free, and one that stalled lately has not just left it.
    fn take_place(&self) -> bool {
        !self.is_out.load(Ordering::Relaxed) && !self.is_taken.swap(true, Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Coming;

    /// Every part of every job is done once, whoever comes and goes, and guests do some.
    #[test]
    fn guests_share_jobs_while_the_owner_is_at_work() {
        let mut pool = Pool::for_guests(2);
        let doors = [pool.door(), pool.door(), pool.door()];
        let is_over = AtomicBool::new(false);
        let by_guests = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for door in &doors {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        door.help();
                        std::thread::yield_now();
                    }
                });
            }
            let mut n_jobs = 0;
            while n_jobs < 2_000 || (by_guests.load(Ordering::Relaxed) == 0 && n_jobs < 2_000_000) {
                let _welcome = pool.welcome();
                for n_parts in 0..20 {
                    let (next, sum) = (AtomicUsize::new(0), AtomicUsize::new(0));
                    pool.share(&|thread| {
                        loop {
                            let part = next.fetch_add(1, Ordering::Relaxed);
                            if part >= n_parts {
                                return Coming::default();
                            }
                            sum.fetch_add(part, Ordering::Relaxed);
                            by_guests.fetch_add(usize::from(thread > 0), Ordering::Relaxed);
                        }
                    });
                    assert_eq!(sum.into_inner(), n_parts * n_parts.saturating_sub(1) / 2);
                    n_jobs += 1;
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
        assert!(by_guests.into_inner() > 0, "nobody came");
        assert_eq!(pool.n_here(), 1, "all have left");
    }

    #[test]
    fn nobody_comes_uninvited() {
        let pool = Pool::for_guests(1);
        pool.door().help();
        drop(pool.welcome());
        pool.door().help();
        let own = Pool::new(2).unwrap();
        let _welcome = own.welcome();
        own.door().help();
    }
}
