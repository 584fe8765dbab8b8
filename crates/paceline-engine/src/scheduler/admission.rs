//! Whether there is room for a waiting sequence to start, and its start.
//!
//! Admission is optimistic: it expects each sequence to use the learned share of its
//! `max_tokens`, leaves a watermark free, and asks that the whole prompt fit at once. Being wrong
//! costs a preemption. When nothing runs, the first in line always starts: by the check at
//! `submit` it fits an empty pool.

use super::Scheduler;
use crate::blocks::Content;
use crate::config::Batching;
use crate::request::{Event, EventKind};
use crate::sequence::SeqSlot;

/// What the running sequences hold a claim to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Claims {
    /// Places of `max_num_seqs`, those of sequences still to be forked included.
    n_places: usize,
    /// Tokens they may still generate.
    n_tokens: usize,
    /// Worst-case blocks of the protected.
    n_protected_blocks: usize,
}

impl Scheduler {
    /// When a step will next have something to do, if it has nothing now: the end of the batching
    /// window, or a deadline.
    pub fn next_wakeup_ns(&self) -> Option<u64> {
        let deadline = self.deadlines.first().map(|&(deadline, _)| deadline);
        match self.config.batching {
            Batching::Window { window_ns, .. } if self.n_group_live == 0 => {
                let window_end = self.oldest_arrival_ns().map(|ns| ns.saturating_add(window_ns));
                deadline.into_iter().chain(window_end).min()
            }
            _ => deadline,
        }
    }

    fn oldest_arrival_ns(&self) -> Option<u64> {
        let arrival = |slot| self.requests[self.seqs[slot].request].arrival_ns;
        self.waiting.fronts().map(arrival).min()
    }

    /// Window and static batching: once the last group is done, marks the next.
    pub(super) fn form_group(&mut self, now_ns: u64) {
        let Some(max_batch_size) = self.config.batching.max_batch_size() else {
            return;
        };
        if self.n_group_live > 0 || !self.is_group_due(now_ns) {
            return;
        }
        let mut waiting: Vec<SeqSlot> = self.waiting.iter().collect();
        waiting.sort_by_key(|&slot| {
            let request = &self.requests[self.seqs[slot].request];
            (request.priority, request.id)
        });
        for slot in waiting.into_iter().take(max_batch_size as usize) {
            self.requests[self.seqs[slot].request].is_in_group = true;
            self.n_group_live += 1;
        }
    }

    fn is_group_due(&self, now_ns: u64) -> bool {
        let Some(oldest_ns) = self.oldest_arrival_ns() else {
            return false;
        };
        match self.config.batching {
            Batching::Window { max_batch_size, window_ns } => {
                self.waiting.len() >= max_batch_size
                    || now_ns >= oldest_ns.saturating_add(window_ns)
            }
            Batching::Continuous | Batching::Interleaved | Batching::Static { .. } => true,
        }
    }

    pub(super) fn next_in_line(&self) -> Option<SeqSlot> {
        self.waiting.next(|slot| {
            self.config.batching.max_batch_size().is_none()
                || self.requests[self.seqs[slot].request].is_in_group
        })
    }

    pub(super) fn claims(&self) -> Claims {
        let mut claims = Claims::default();
        for &slot in &self.running {
            self.add_claim(&mut claims, slot);
        }
        claims
    }

    fn add_claim(&self, claims: &mut Claims, slot: SeqSlot) {
        let seq = &self.seqs[slot];
        let n_places = self.n_places(slot);
        claims.n_places += n_places;
        claims.n_tokens += n_places * (seq.max_len - seq.tokens.len());
        if self.is_protected(slot) {
            claims.n_protected_blocks += seq.max_blocks(self.pool.block_size() as usize);
        }
    }

    fn n_places(&self, slot: SeqSlot) -> usize {
        let seq = &self.seqs[slot];
        match seq.is_fork_pending {
            true => self.requests[seq.request].live.count_ones() as usize,
            false => 1,
        }
    }

    /// Starts a waiting sequence if there is room: takes its cached prefix, and blocks for the
    /// rest of what it knows.
    pub(super) fn try_admit(&mut self, slot: SeqSlot, claims: &mut Claims) -> bool {
        let Some(after) = self.claims_with(slot, claims) else {
            return false;
        };
        *claims = after;
        self.start(slot);
        true
    }

    /// Whether a waiting sequence could start now.
    pub(super) fn could_admit(&mut self, slot: SeqSlot) -> bool {
        let claims = self.claims();
        self.claims_with(slot, &claims).is_some()
    }

    /// Whether a waiting sequence could start now, and there would be places for the others that
    /// are not of the batch class.
    pub(super) fn has_room_for(&mut self, slot: SeqSlot) -> bool {
        let claims = self.claims();
        let n_waiting = match self.config.batching.max_batch_size() {
            // Who else may start is decided when groups form.
            Some(_) => 1,
            None => self.waiting.n_above_batch() as usize,
        };
        let n_places = (self.config.max_num_seqs as usize).saturating_sub(claims.n_places);
        n_waiting <= n_places && self.claims_with(slot, &claims).is_some()
    }

    /// What is claimed once a waiting sequence has started, if there is room for it. Leaves its
    /// cached prefix in `hits`.
    fn claims_with(&mut self, slot: SeqSlot, claims: &Claims) -> Option<Claims> {
        let mut after = *claims;
        self.add_claim(&mut after, slot);
        if after.n_places > self.config.max_num_seqs as usize
            || after.n_protected_blocks > self.pool.n_blocks() as usize
        {
            return None;
        }
        self.find_prefix(slot);
        self.has_blocks_for(slot, &after).then_some(after)
    }

    fn has_blocks_for(&self, slot: SeqSlot, after: &Claims) -> bool {
        let seq = &self.seqs[slot];
        let n_idle_hits =
            self.hits.iter().filter(|&&block| self.pool.ref_count(block) == 0).count();
        let n_prompt = self.pool.blocks_for(seq.tokens.len()) - self.hits.len() + n_idle_hits;
        let n_free = self.pool.n_free() as usize;
        if self.running.is_empty() {
            return n_prompt <= n_free;
        }
        let n_expected = self.pool.blocks_for(self.ratio.expected(after.n_tokens));
        let n_blocks = self.pool.n_blocks() as usize;
        let watermark = n_blocks * self.config.watermark_permille as usize / 1000;
        n_prompt + n_expected + watermark <= n_free
    }

    /// Leaves in `hits` the cached blocks a sequence can start from. The last known token is
    /// always computed, because its logits are needed; so is each prompt row still to be read.
    fn find_prefix(&mut self, slot: SeqSlot) {
        self.hits.clear();
        if !self.config.prefix_cache {
            return;
        }
        let block_size = self.pool.block_size() as usize;
        let seq = &mut self.seqs[slot];
        let request = &self.requests[seq.request];
        let mut n_usable = seq.tokens.len() - 1;
        if seq.n_scored < request.params.n_read_rows(seq.n_prompt) {
            n_usable = n_usable.min(seq.n_scored);
        }
        let n_blocks = n_usable / block_size;
        super::apply::extend_hashes(&self.pool, seq, request.tenant, n_blocks);
        for (index, tokens) in seq.tokens.chunks_exact(block_size).take(n_blocks).enumerate() {
            let parent = self.hits.last().copied();
            let content =
                Content { hash: seq.hashes[index], tenant: request.tenant, parent, tokens };
            let Some(block) = self.pool.find(&content) else {
                break;
            };
            self.hits.push(block);
        }
    }

    fn start(&mut self, slot: SeqSlot) {
        let block_size = self.pool.block_size() as usize;
        let seq = &mut self.seqs[slot];
        let lane = self.requests[seq.request].lane;
        let n_new_tokens = (!seq.was_admitted).then_some(seq.n_prompt);
        self.waiting.remove(slot, lane, n_new_tokens);
        seq.reserve(block_size);
        for &block in &self.hits {
            self.pool.retain(block);
            seq.blocks.push(block);
        }
        seq.n_registered = self.hits.len();
        seq.n_computed = self.hits.len() * block_size;
        if self.config.prefix_cache {
            self.stats.n_prefix_query_tokens += seq.tokens.len() as u64;
            self.stats.n_prefix_hit_tokens += seq.n_computed as u64;
            self.stats.n_cached_tokens += seq.n_computed.min(seq.n_prompt) as u64;
        }
        while seq.blocks.len() < self.pool.blocks_for(seq.tokens.len()) {
            let Some(block) = self.pool.take() else { break };
            seq.blocks.push(block);
        }
        if !std::mem::replace(&mut seq.was_admitted, true) {
            let kind = EventKind::Started { n_cached: seq.n_computed as u32 };
            let request = self.requests[seq.request].id;
            self.events.push(Event { request, index: seq.index, kind });
        }
        self.insert_running(slot);
    }

    /// Gives the batch's arrays room for all that the running sequences can put there, so that
    /// later steps need not allocate.
    pub(super) fn reserve_batch(&mut self) {
        let block_size = self.pool.block_size() as usize;
        let (mut n_table, mut n_history) = (0, 0);
        for &slot in &self.running {
            let seq = &self.seqs[slot];
            n_table += seq.max_blocks(block_size);
            if self.requests[seq.request].params.has_penalties() {
                n_history += seq.max_len;
            }
        }
        let Self { batch, .. } = self;
        batch.block_tables.reserve(n_table.saturating_sub(batch.block_tables.len()));
        batch.history.reserve(n_history.saturating_sub(batch.history.len()));
    }
}
