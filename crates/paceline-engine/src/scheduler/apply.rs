//! Takes a step's results: the only place where tokens are appended.

use super::Scheduler;
use super::rows::Planned;
use crate::backend::{BackendError, SampleFailure, Sampled};
use crate::blocks::{BlockPool, Content, Registered};
use crate::constraint::Progress;
use crate::request::{Event, EventKind, FinishReason, TokenLogprob};
use crate::sequence::{RequestSlot, SeqSlot, Sequence, set_bits};
use crate::speculate::Tail;

/// Adds the chain hashes of a sequence's first `n_blocks` blocks of known tokens.
pub(super) fn extend_hashes(pool: &BlockPool, seq: &mut Sequence, tenant: u64, n_blocks: usize) {
    let block_size = pool.block_size() as usize;
    while seq.hashes.len() < n_blocks {
        let start = seq.hashes.len() * block_size;
        let tokens = &seq.tokens[start..start + block_size];
        seq.hashes.push(pool.hash(tenant, seq.hashes.last().copied(), tokens));
    }
}

impl Scheduler {
    /// Applies the outcome of the batch that was scheduled last. A backend that broke its contract
    /// has failed too.
    pub fn apply(
        &mut self,
        outcome: Result<&mut Vec<Sampled>, BackendError>,
    ) -> Result<(), BackendError> {
        let plan = std::mem::take(&mut self.plan);
        let outcome = outcome.and_then(|results| match results.len() == self.batch.samples.len() {
            true => Ok(results),
            false => Err(miscounted(results.len(), self.batch.samples.len())),
        });
        let outcome = match outcome {
            Ok(results) => {
                self.count_step(&plan);
                for planned in &plan {
                    self.apply_one(planned, results);
                }
                Ok(())
            }
            Err(error) => {
                self.fail_step(&plan, &error);
                Err(error)
            }
        };
        self.plan = plan;
        outcome
    }

    fn count_step(&mut self, plan: &[Planned]) {
        self.stats.n_steps += 1;
        self.stats.step_rows.record(self.batch.n_rows() as u64);
        self.stats.step_seqs.record(plan.len() as u64);
    }

    /// Fails what was in the step, and nothing else. What the step wrote is in no cache yet.
    fn fail_step(&mut self, plan: &[Planned], error: &BackendError) {
        self.stats.n_failed_steps += 1;
        for planned in plan {
            self.finish_slot(planned.slot, &FinishReason::Backend(error.message.clone()));
        }
    }

    fn apply_one(&mut self, planned: &Planned, results: &mut [Sampled]) {
        let slot = planned.slot;
        self.advance(slot, planned.n_rows);
        self.register_blocks(slot);
        let results = &mut results[planned.samples.clone()];
        let (scores, choices) = results.split_at_mut(planned.n_scores);
        let request = self.seqs[slot].request;
        if let Some(failure) = scores.iter().find_map(|score| score.failure) {
            return self.finish_request(request, &FinishReason::Failed(failure));
        }
        if self.requests[request].params.pooling.is_some() {
            return self.pool_rows(slot, scores);
        }
        self.report_scores(slot, scores);
        if planned.choosing == 0 {
            return;
        }
        if self.seqs[slot].is_fork_pending {
            self.fork(slot);
        }
        if planned.n_drafts > 0 {
            return self.append_drafted(planned, request, choices);
        }
        for (index, result) in set_bits(planned.choosing).zip(choices) {
            self.append(request, index, result);
        }
    }

    /// The token of the sequence's own row, and on as long as it is the one that was guessed: its
    /// row is computed then, and the choice made there holds.
    fn append_drafted(&mut self, plan: &Planned, request: RequestSlot, choices: &mut [Sampled]) {
        let slot = plan.slot;
        let index = self.seqs[slot].index;
        let drafts = plan.first_draft..plan.first_draft + plan.n_drafts;
        self.stats.n_drafted_tokens += plan.n_drafts as u64;
        for (row, choice) in drafts.map(Some).chain([None]).zip(choices) {
            let token = choice.token;
            let goes_on = self.append(request, index, choice);
            if !goes_on || row.is_none_or(|row| self.batch.tokens[row] != token) {
                return;
            }
            self.stats.n_accepted_tokens += 1;
            self.advance(slot, 1);
            self.register_blocks(slot);
        }
    }

    fn advance(&mut self, slot: SeqSlot, n_rows: usize) {
        let seq = &mut self.seqs[slot];
        let n_prompt_rows = seq.n_prompt.saturating_sub(seq.n_computed).min(n_rows);
        // Of the rest all but the newest token were computed before a preemption.
        let n_known_rows = seq.gap().min(n_rows) - n_prompt_rows;
        let is_last = n_rows == seq.gap() && seq.n_generated() > 0;
        self.stats.n_prompt_tokens += n_prompt_rows as u64;
        self.stats.n_recomputed_tokens += (n_known_rows - usize::from(is_last)) as u64;
        seq.n_computed += n_rows;
    }

    /// Offers the blocks that are now full to the prefix cache. Where the same content is there
    /// already, the sequence moves over to that copy and frees its own.
    fn register_blocks(&mut self, slot: SeqSlot) {
        let seq = &mut self.seqs[slot];
        let block_size = self.pool.block_size() as usize;
        let n_full = seq.n_computed / block_size;
        if !self.config.prefix_cache || !seq.is_cacheable || seq.n_registered == n_full {
            return;
        }
        let tenant = self.requests[seq.request].tenant;
        extend_hashes(&self.pool, seq, tenant, n_full);
        for index in seq.n_registered..n_full {
            let block = seq.blocks[index];
            let content = Content {
                hash: seq.hashes[index],
                tenant,
                parent: index.checked_sub(1).map(|before| seq.blocks[before]),
                tokens: &seq.tokens[index * block_size..(index + 1) * block_size],
            };
            match self.pool.register(block, &content) {
                Registered::Stored => {}
                Registered::Duplicate(cached) => {
                    self.pool.retain(cached);
                    self.pool.release(block);
                    seq.blocks[index] = cached;
                }
                Registered::Collision => {
                    seq.is_cacheable = false;
                    return;
                }
            }
            seq.n_registered = index + 1;
        }
    }

    fn report_scores(&mut self, slot: SeqSlot, scores: &mut [Sampled]) {
        let seq = &mut self.seqs[slot];
        seq.n_scored += scores.len();
        let request = &self.requests[seq.request];
        if !request.is_live(0) {
            return;
        }
        for score in scores {
            let kind = EventKind::PromptLogprob(token_logprob(score));
            self.events.push(Event { request: request.id, index: 0, kind });
        }
    }

    /// Adds hidden states to the sum; with the last row of the prompt, the request is done.
    fn pool_rows(&mut self, slot: SeqSlot, rows: &[Sampled]) {
        let seq = &mut self.seqs[slot];
        let is_right = |row: &Sampled| {
            !row.hidden.is_empty()
                && (seq.pooled.is_empty() || seq.pooled.len() == row.hidden.len())
        };
        if !rows.iter().all(is_right) {
            return self.fault(slot, "the backend gave a hidden state of the wrong size");
        }
        rows.iter().for_each(|row| seq.pool(&row.hidden));
        if seq.gap() > 0 {
            return;
        }
        let (request, pooled) = (seq.request, seq.pooled_mean());
        if !pooled.iter().all(|value| value.is_finite()) {
            let failure = FinishReason::Failed(SampleFailure::NotFinite);
            return self.finish_request(request, &failure);
        }
        let kind = EventKind::Pooled(pooled);
        self.events.push(Event { request: self.requests[request].id, index: 0, kind });
        self.finish_request(request, &FinishReason::Stop);
    }

    /// The prompt is computed: each live index becomes a sequence of its own, sharing its blocks.
    fn fork(&mut self, slot: SeqSlot) {
        let lead = &mut self.seqs[slot];
        lead.is_fork_pending = false;
        let (request, lead_index) = (lead.request, lead.index);
        for index in set_bits(self.requests[request].live & !(1 << lead_index)) {
            let sibling = self.seqs[slot].fork(index);
            for &block in &sibling.blocks {
                self.pool.retain(block);
            }
            let sibling = self.seqs.insert(sibling);
            self.requests[request].slots[index as usize] = sibling;
            self.insert_running(sibling);
        }
        if self.requests[request].live.count_ones() > 1 {
            self.reserve_batch();
        }
    }

    /// Adds a token. False if the sequence has ended.
    fn append(&mut self, request: RequestSlot, index: u32, result: &mut Sampled) -> bool {
        if let Some(failure) = result.failure {
            self.finish_index(request, index, FinishReason::Failed(failure));
            return false;
        }
        if result.token >= self.limits.n_vocab {
            self.stats.n_faults += 1;
            let message = format!("the backend chose token {}, which does not exist", result.token);
            self.finish_index(request, index, FinishReason::Backend(message));
            return false;
        }
        let token = result.token;
        let state = &self.requests[request];
        let params = &*state.params;
        let logprob = params.logprobs.map(|_| Box::new(token_logprob(result)));
        let kind = EventKind::Token { token, logprob };
        self.events.push(Event { request: state.id, index, kind });
        self.stats.n_generated_tokens += 1;
        let seq = &mut self.seqs[state.slots[index as usize]];
        self.said.learn(&Tail::of(state.tenant, &seq.tokens), token);
        seq.push(token);
        let progress = seq.guide.as_mut().map(|guide| guide.accept(token));
        let is_end = params.ends().contains(&token);
        let is_complete = is_end || progress == Some(Progress::Complete);
        let is_full = seq.tokens.len() >= seq.max_len;
        if is_complete || is_full {
            let reason = if is_complete { FinishReason::Stop } else { FinishReason::Length };
            self.finish_index(request, index, reason);
        }
        !is_complete && !is_full
    }
}

fn token_logprob(result: &mut Sampled) -> TokenLogprob {
    let Sampled { token, logprob, top, .. } = result;
    TokenLogprob { token: *token, logprob: *logprob, top: std::mem::take(top) }
}

fn miscounted(n_results: usize, n_samples: usize) -> BackendError {
    let message = format!("the backend returned {n_results} results for {n_samples} sample rows");
    BackendError { message }
}
