//! The first half of a step: the next tokens of what runs already, and who must give way.

use super::{LaneSlot, MAX_PREEMPTION_RECORDS, Preemption, Scheduler, StepMix};
use crate::batch::BlockCopy;
use crate::config::Batching;
use crate::request::{FinishReason, Priority};
use crate::sequence::{SeqSlot, SequenceState};

/// Rows a step has left.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    pub(super) all: usize,
    /// Of these, how many may go to sequences with more than one token to compute.
    pub(super) prefill: usize,
    /// What the first such sequence may have beyond that, if its tenant is behind others.
    pub(super) extra: usize,
    /// Of these, how many may go to the batch class.
    pub(super) batch: usize,
}

impl Scheduler {
    /// Drops what is too late, then fills the batch: running sequences first, waiting ones with
    /// what is left of the budget.
    pub fn schedule(&mut self, now_ns: u64) {
        self.batch.clear();
        self.plan.clear();
        self.mix = StepMix::default();
        self.expire(now_ns);
        self.note_tenants(now_ns);
        match self.config.batching {
            Batching::Interleaved => self.schedule_turn(),
            _ => self.schedule_all(now_ns),
        }
        if !self.batch.is_empty() {
            self.ratio.decay();
        }
    }

    fn schedule_all(&mut self, now_ns: u64) {
        self.make_way();
        let n_preemptions = self.stats.n_preemptions;
        let rows = self.all_rows(self.batch_budget());
        let first = self.goes_first(&rows);
        let left = self.schedule_streams(rows, first);
        // A step that had to evict has nothing to give to newcomers.
        let may_start = self.stats.n_preemptions == n_preemptions;
        if may_start {
            self.form_group(now_ns);
        }
        self.schedule_prompts(left, may_start);
        if self.batch.is_empty() && !self.running.is_empty() {
            // Whoever held others back was preempted itself, or cannot start.
            let left = self.schedule_streams(self.all_rows(self.budget), None);
            self.schedule_prompts(left, false);
        }
    }

    /// Interleaving: one sequence. After the last of the running ones it is a newcomer's turn, if
    /// there is one.
    fn schedule_turn(&mut self) {
        let whole = Rows { all: self.budget, prefill: self.budget, extra: 0, batch: self.budget };
        if self.turn >= self.running.len() {
            self.turn = 0;
            let mut claims = self.claims();
            let next = self.next_in_line();
            if next.is_some_and(|slot| self.start_next(slot, &mut claims, &mut whole.clone())) {
                self.reserve_batch();
                return;
            }
        }
        while !self.running.is_empty() {
            // Those behind may have been preempted.
            let place = if self.turn < self.running.len() { self.turn } else { 0 };
            let slot = self.running[place];
            let n_rows = self.take_rows(slot, &mut whole.clone());
            if self.make_room(slot, n_rows) {
                self.push_rows(slot, n_rows, &[]);
                self.turn = place + 1;
                return;
            }
        }
    }

    fn expire(&mut self, now_ns: u64) {
        while let Some(&(deadline, id)) = self.deadlines.first() {
            if deadline > now_ns {
                return;
            }
            match self.by_id.get(&id) {
                Some(&request) => self.finish_request(request, &FinishReason::Deadline),
                None => _ = self.deadlines.pop_first(),
            }
        }
    }

    /// Serves those that have one token to compute: streams, and prompts that are all but done;
    /// those that have had more than the lane `first` sit out. Returns the rows left.
    fn schedule_streams(&mut self, mut left: Rows, first: Option<LaneSlot>) -> Rows {
        let mut next = 0;
        let mut drafting = self.plan_drafts();
        let mut draft = std::mem::take(&mut self.draft);
        while left.all > 0 && next < self.running.len() {
            let slot = self.running[next];
            let mut after = left;
            let seq = &self.seqs[slot];
            let lane = self.requests[seq.request].lane;
            let sits_out = first.is_some_and(|first| self.waiting.is_behind(first, lane));
            if seq.gap() > 1 || sits_out || self.take_rows(slot, &mut after) == 0 {
                next += 1;
                continue;
            }
            if !self.make_room(slot, 1) {
                continue;
            }
            next += 1;
            left = after;
            let n_others = self.running.len() - next;
            self.draft(slot, &mut drafting, n_others, &mut left, &mut draft);
            self.push_rows(slot, 1, &draft);
        }
        self.draft = draft;
        left
    }

    /// Rows of this step that the batch class may have, while others run or are about to. What it
    /// does not get stays where it is, with its memory, for a later step.
    fn batch_budget(&self) -> usize {
        let Some(max_rows) = self.config.max_batch_rows else {
            return self.budget;
        };
        let mut present = self.running.iter().copied().chain(self.next_in_line());
        match present.all(|slot| self.is_batch(slot)) {
            true => self.budget,
            false => self.budget.min(max_rows as usize),
        }
    }

    pub(super) fn is_batch(&self, slot: SeqSlot) -> bool {
        self.priority(slot) == Priority::Batch
    }

    pub(super) fn priority(&self, slot: SeqSlot) -> Priority {
        self.requests[self.seqs[slot].request].priority
    }

    /// Rows a sequence gets of `left`, and takes from it.
    pub(super) fn take_rows(&self, slot: SeqSlot, left: &mut Rows) -> usize {
        let cap = match self.config.long_prefill_token_threshold as usize {
            0 => usize::MAX,
            threshold => threshold,
        };
        let is_batch = self.is_batch(slot);
        let most = if is_batch { left.all.min(left.batch) } else { left.all };
        let seq = &self.seqs[slot];
        if seq.gap() == 1 {
            let n_rows = most.min(1);
            left.all -= n_rows;
            left.batch -= if is_batch { n_rows } else { 0 };
            return n_rows;
        }
        let is_behind = self.waiting.is_behind_any(self.requests[seq.request].lane);
        let extra = if is_behind { left.extra } else { 0 };
        let n_rows = seq.gap().min(cap).min(most).min(left.prefill + extra);
        left.all -= n_rows;
        left.prefill = left.prefill.saturating_sub(n_rows);
        left.extra = 0;
        left.batch -= if is_batch { n_rows } else { 0 };
        n_rows
    }

    /// Whoever waits in another class does not wait for the batch class: its youngest give up
    /// places for all of them, and memory for the next, before anything of the step is planned.
    fn make_way(&mut self) {
        while let Some(&victim) = self.running.last() {
            if !self.is_batch(victim) || self.is_protected(victim) {
                return;
            }
            match self.next_in_line() {
                Some(slot) if !self.is_batch(slot) && !self.has_room_for(slot) => {
                    self.evict(victim);
                }
                _ => return,
            }
        }
    }

    /// Gives a sequence the blocks its next rows need, preempting from the back of the running
    /// order. False if it had to go itself.
    fn make_room(&mut self, slot: SeqSlot, n_rows: usize) -> bool {
        while (self.pool.n_free() as usize) < self.blocks_needed(slot, n_rows) {
            let Some(&victim) = self.running.last() else {
                return false;
            };
            self.preempt(victim);
            if victim == slot {
                return false;
            }
        }
        if self.writes_to_shared(slot) {
            self.copy_on_write(slot);
        }
        self.grow_table(slot, n_rows)
    }

    /// Changes as others go: a block may no longer be shared.
    fn blocks_needed(&self, slot: SeqSlot, n_rows: usize) -> usize {
        let seq = &self.seqs[slot];
        let n_covered = self.pool.blocks_for(seq.n_computed + n_rows);
        let n_copies = usize::from(self.writes_to_shared(slot));
        n_covered.saturating_sub(seq.blocks.len()) + n_copies
    }

    /// Whether the next row would go into a block that others refer to.
    fn writes_to_shared(&self, slot: SeqSlot) -> bool {
        let seq = &self.seqs[slot];
        let block = seq.blocks.get(seq.n_computed / self.pool.block_size() as usize);
        block.is_some_and(|&block| self.pool.ref_count(block) > 1)
    }

    fn copy_on_write(&mut self, slot: SeqSlot) {
        let Some(to) = self.pool.take() else { return };
        let seq = &mut self.seqs[slot];
        let block_size = self.pool.block_size() as usize;
        let from = std::mem::replace(&mut seq.blocks[seq.n_computed / block_size], to);
        self.pool.release(from);
        let n_tokens = (seq.n_computed % block_size) as u32;
        if n_tokens > 0 {
            self.batch.copies.push(BlockCopy { from, to, n_tokens });
        }
    }

    pub(super) fn grow_table(&mut self, slot: SeqSlot, n_rows: usize) -> bool {
        let seq = &mut self.seqs[slot];
        let n_blocks = self.pool.blocks_for(seq.n_computed + n_rows);
        while seq.blocks.len() < n_blocks {
            let Some(block) = self.pool.take() else {
                self.fault(slot, "the pool ran out after room had been made");
                return false;
            };
            seq.blocks.push(block);
        }
        true
    }

    /// Memory was promised that is not there: the sequence gives up its own.
    fn preempt(&mut self, slot: SeqSlot) {
        self.raise_ratio();
        if self.is_protected(slot) {
            // Worst cases of protected sequences are set aside, so this is not reached while the
            // books are right; if they are wrong, going on would thrash.
            self.finish_slot(slot, &FinishReason::Preempted);
            return;
        }
        self.evict(slot);
    }

    /// Takes a sequence's blocks away and puts it at the front of its class: as if it had never
    /// started, but with its tokens.
    fn evict(&mut self, slot: SeqSlot) {
        self.remove_running(slot);
        let seq = &mut self.seqs[slot];
        let request = &self.requests[seq.request];
        self.stats.n_preemptions += 1;
        seq.n_preemptions += 1;
        if self.preemptions.len() == MAX_PREEMPTION_RECORDS {
            self.preemptions.pop_front();
        }
        self.preemptions.push_back(Preemption {
            request: request.id,
            index: seq.index,
            n_tokens_lost: seq.n_computed as u32,
            n_preemptions: seq.n_preemptions,
        });
        self.pool.release_table(&mut seq.blocks);
        seq.n_computed = 0;
        seq.n_registered = 0;
        seq.found = None;
        seq.is_cacheable = true;
        seq.state = SequenceState::Waiting;
        self.waiting.push_preempted(slot, request.priority);
    }

    fn raise_ratio(&mut self) {
        let (mut n_generated, mut n_allowed) = (0, 0);
        for &slot in &self.running {
            let seq = &self.seqs[slot];
            n_generated += seq.n_generated();
            n_allowed += seq.max_len - seq.n_prompt;
        }
        self.ratio.raise(n_generated as f64 / n_allowed.max(1) as f64);
    }

    /// Not to be preempted again.
    pub(super) fn is_protected(&self, slot: SeqSlot) -> bool {
        self.seqs[slot].n_preemptions >= self.config.max_preemptions
    }

    /// Adds a sequence to the running ones, at its place.
    pub(super) fn insert_running(&mut self, slot: SeqSlot) {
        let key = self.running_key(slot);
        let place = self.running.partition_point(|&other| self.running_key(other) < key);
        self.running.insert(place, slot);
        self.seqs[slot].state = SequenceState::Running;
    }

    pub(super) fn remove_running(&mut self, slot: SeqSlot) {
        if let Some(place) = self.running.iter().position(|&other| other == slot) {
            self.running.remove(place);
            // Whose turn it is does not change.
            self.turn -= usize::from(place < self.turn);
        }
    }

    /// Lower is served earlier and preempted later.
    pub(super) fn running_key(&self, slot: SeqSlot) -> (bool, Priority, u64, u32) {
        let seq = &self.seqs[slot];
        let request = &self.requests[seq.request];
        (!self.is_protected(slot), request.priority, request.id.0, seq.index)
    }
}
