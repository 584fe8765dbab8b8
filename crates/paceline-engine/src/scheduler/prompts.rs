//! The second half of a step: prompts (and what a preemption lost of sequences), of those that run
//! already and of those that start with it.
//!
//! Of a class, the tenant that has had the fewest rows comes first, started or not; inside a
//! tenant, what runs, then first come, first served. While tenants share steps, prompts have a
//! bounded part of each, so that nobody waits for long until the step of somebody else's prompts is
//! over.
//!
//! Nothing is preempted here: whoever runs has blocks for all the tokens it knows.

use super::admission::Claims;
use super::queue::Served;
use super::running::Rows;
use super::{LaneSlot, Scheduler};
use crate::config::SharedRows;
use crate::request::Priority;
use crate::sequence::SeqSlot;

/// How long tenants count as sharing after they last did: between two requests of one of them the
/// others' steps must not become long again.
const SHARED_NS: u64 = 10_000_000_000;

impl Scheduler {
    /// Notes whether tenants share the steps of this time.
    pub(super) fn note_tenants(&mut self, now_ns: u64) {
        if self.waiting.has_many_tenants() {
            self.shared_until_ns = now_ns.saturating_add(SHARED_NS);
        }
        self.is_shared = now_ns < self.shared_until_ns;
    }

    /// Rows of a step before anything is given out; the batch class may have `batch` of them.
    pub(super) fn all_rows(&self, batch: usize) -> Rows {
        let paced = self.paced_budget();
        let (prefill, behind) = match self.config.max_shared_rows.filter(|_| self.is_shared) {
            None => (paced, paced),
            // One row at least: prompts never stop.
            Some(SharedRows { usual, behind }) => {
                let usual = usual.max(1) as usize;
                let most = usual.max(behind as usize);
                // Who is alone has nobody to be behind of, but is cut no shorter for that.
                let is_alone = self.running.len() + self.waiting.len() as usize == 1;
                (paced.min(if is_alone { most } else { usual }), paced.min(most))
            }
        };
        Rows { all: self.budget, prefill, extra: behind - prefill, batch }
    }

    /// Rows of this step that prompts may have beside streams. The cap protects streams; where
    /// there are none, it would only cost time.
    fn paced_budget(&self) -> usize {
        let is_stream = |slot: &SeqSlot| {
            let seq = &self.seqs[*slot];
            seq.gap() == 1 && seq.n_generated() > 0
        };
        match self.config.max_prefill_rows {
            Some(max_rows) if self.running.iter().any(is_stream) => max_rows as usize,
            _ => self.budget,
        }
    }

    /// The lane of a newcomer whose whole prompt fits the step, while tenants share: streams of
    /// those that have had more sit it out, so that it waits for little but its own rows. Never two
    /// steps on end: they go on, whoever comes.
    pub(super) fn goes_first(&mut self, rows: &Rows) -> Option<LaneSlot> {
        let may = self.config.max_shared_rows.is_some() && self.is_shared;
        if std::mem::take(&mut self.sat_out) || !may {
            return None;
        }
        let slot = self.next_in_line()?;
        let seq = &self.seqs[slot];
        let lane = self.requests[seq.request].lane;
        let fits = seq.gap() <= rows.all.min(rows.prefill + rows.extra);
        self.sat_out = fits && self.waiting.is_behind_any(lane) && self.could_admit(slot);
        self.sat_out.then_some(lane)
    }

    /// Gives out what the streams have left.
    pub(super) fn schedule_prompts(&mut self, mut left: Rows, may_start: bool) {
        let mut running = std::mem::take(&mut self.prompts);
        running.extend(self.running.iter().filter(|&&slot| self.seqs[slot].gap() > 1));
        let mut start = (may_start && self.waiting.len() > 0).then(|| self.claims());
        let mut has_started = false;
        while left.all > 0 && left.prefill > 0 {
            let next = (0..running.len()).min_by_key(|&i| self.prompt_key(running[i]));
            let waiting = start.as_ref().and_then(|_| self.next_in_line());
            match (next, waiting, &mut start) {
                (next, Some(slot), Some(claims))
                    if next.is_none_or(|i| self.goes_before(slot, running[i])) =>
                {
                    match self.start_next(slot, claims, &mut left) {
                        true => has_started = true,
                        false => start = None,
                    }
                }
                (Some(i), ..) => self.go_on(running.swap_remove(i), &mut left),
                (None, ..) => break,
            }
        }
        if has_started {
            self.reserve_batch();
        }
        running.clear();
        self.prompts = running;
    }

    /// Starts a waiting sequence with its first rows. False if there is no room for it.
    pub(super) fn start_next(
        &mut self,
        slot: SeqSlot,
        claims: &mut Claims,
        left: &mut Rows,
    ) -> bool {
        // The batch class is the last in line.
        if (self.is_batch(slot) && left.batch == 0) || !self.try_admit(slot, claims) {
            return false;
        }
        let n_rows = self.take_rows(slot, left);
        self.push_rows(slot, n_rows, &[]);
        true
    }

    /// The next rows of a prompt that has started.
    fn go_on(&mut self, slot: SeqSlot, left: &mut Rows) {
        let n_rows = self.take_rows(slot, left);
        if n_rows > 0 && self.grow_table(slot, n_rows) {
            self.push_rows(slot, n_rows, &[]);
        }
    }

    /// Lower is served earlier.
    fn prompt_key(&self, slot: SeqSlot) -> (bool, Priority, Served, u64, u32) {
        let (is_open, priority, id, index) = self.running_key(slot);
        (is_open, priority, self.served(slot), id, index)
    }

    /// Whether a waiting sequence is served before a running one.
    fn goes_before(&self, waiting: SeqSlot, running: SeqSlot) -> bool {
        let key = |slot: SeqSlot| (self.priority(slot), self.served(slot));
        !self.is_protected(running) && key(waiting) < key(running)
    }

    fn served(&self, slot: SeqSlot) -> Served {
        self.waiting.served(self.requests[self.seqs[slot].request].lane)
    }
}
