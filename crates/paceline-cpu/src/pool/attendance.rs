//! Which workers are worth waiting for.
//!
//! A core that the system (or the host of a virtual machine) gives to others for a while stops in
//! the middle of its part of a job, and all threads wait for it. Where that costs more than the
//! worker brings, the others go on without it, and try it again later.

use std::time::{Duration, Instant};

/// How long a worker is left out, as a multiple of what was last waited for it, and at most.
const REST: u32 = 8;
const LONGEST_REST: Duration = Duration::from_secs(10);

/// What one worker has brought and cost lately.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attendance {
    /// Since when it has worked without a stall.
    since: Instant,
    /// Until when it is left out.
    out_until: Option<Instant>,
}

impl Attendance {
    pub(super) fn new(now: Instant) -> Attendance {
        Attendance { since: now, out_until: None }
    }

    pub(super) fn is_out(&self) -> bool {
        self.out_until.is_some()
    }

    /// `n_others` threads have waited for the worker since `begin`. In that time they could have
    /// done as much as the worker did in `n_others` times as long: is that more than it has done?
    pub(super) fn note_stall(&mut self, begin: Instant, now: Instant, n_others: u32) {
        let (brought, stall) = (begin - self.since, now - begin);
        self.since = now;
        if brought < stall * n_others {
            self.out_until = Some(now + (stall * REST).min(LONGEST_REST));
        }
    }

    /// Whether the worker is to be tried again.
    pub(super) fn comes_back(&self, now: Instant) -> bool {
        self.out_until.is_some_and(|until| until <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_worker_that_costs_more_than_it_brings_rests() {
        let start = Instant::now();
        let mut worker = Attendance::new(start);
        // 30 ms of work for a wait of 20 ms are worth it for two threads, not for four.
        worker.note_stall(start + 30 * MS, start + 50 * MS, 1);
        assert!(!worker.is_out());
        worker.note_stall(start + 80 * MS, start + 100 * MS, 3);
        assert!(worker.is_out());
        assert!(!worker.comes_back(start + 259 * MS));
        assert!(worker.comes_back(start + 260 * MS));
    }

    #[test]
    fn a_rest_is_bounded() {
        let start = Instant::now();
        let mut worker = Attendance::new(start);
        let hour = Duration::from_secs(3600);
        worker.note_stall(start, start + hour, 1);
        assert!(worker.is_out() && worker.comes_back(start + hour + LONGEST_REST));
    }
}
