//! Decides what each step computes.
//!
//! Owns the queues, the sequences and the block pool. A plain state machine: the same calls give
//! the same batches. It has no clock (time is an argument), no randomness, no threads, and does
//! not know what a backend does with a batch.
//!
//! [`schedule`](Scheduler::schedule) fills a batch, [`apply`](Scheduler::apply) takes its results.
//! Only `schedule` moves sequences between queue and running; only `apply` appends tokens.
//!
//! Running sequences are kept in the order they are served: protected ones (see
//! `max_preemptions`), then by priority, then by age. A step first serves those with one token to
//! compute, from the front, and preempts from the back, so a victim never has rows in the step that
//! evicts it. Prompts come second, in an order of their own that is fair to tenants.

mod admission;
mod apply;
mod check;
mod drafts;
mod error;
mod look;
mod prompts;
mod queue;
mod ratio;
mod rows;
mod running;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, VecDeque};

use crate::backend::BackendLimits;
use crate::batch::Batch;
use crate::blocks::BlockPool;
use crate::config::{Batching, ConfigError, EngineConfig, SharedRows};
use crate::constraint::Guide;
use crate::ids::{BlockId, RequestId, Token};
use crate::request::{Event, EventKind, FinishReason, Request};
use crate::sequence::{
    RequestSlot, RequestState, SeqSlot, Sequence, SequenceState, SequenceView, set_bits,
};
use crate::slab::Slab;
use crate::speculate::{Guess, Said};
use crate::stats::Stats;

pub use error::{Resource, SubmitError, check_request};
pub use look::{RunningSequence, StepMix, StepRows};
pub(crate) use queue::LaneSlot;
use queue::WaitQueue;
use ratio::LearnedRatio;
use rows::Planned;

/// Preemption records kept for a caller that does not collect them.
const MAX_PREEMPTION_RECORDS: usize = 1024;

/// One preemption, for the caller's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preemption {
    pub request: RequestId,
    pub index: u32,
    /// Computed tokens whose KV was given up.
    pub n_tokens_lost: u32,
    /// How often this has now happened to the sequence.
    pub n_preemptions: u32,
}

/// See the module's text.
#[derive(Debug)]
pub struct Scheduler {
    config: EngineConfig,
    limits: BackendLimits,
    /// Rows a step may have.
    budget: usize,
    pool: BlockPool,
    seqs: Slab<Sequence>,
    requests: Slab<RequestState>,
    by_id: HashMap<RequestId, RequestSlot>,
    next_id: u64,
    waiting: WaitQueue,
    running: Vec<SeqSlot>,
    deadlines: BTreeSet<(u64, RequestId)>,
    /// Unfinished requests of the group that runs now (window and static batching).
    n_group_live: u32,
    /// Place in `running` of the next to be served (interleaved batching).
    turn: usize,
    ratio: LearnedRatio,
    batch: Batch,
    /// What the batch's sequences are, in the same order.
    plan: Vec<Planned>,
    /// Whose the batch's rows are.
    mix: StepMix,
    /// Happened since the last step was emitted.
    events: Vec<Event>,
    preemptions: VecDeque<Preemption>,
    /// Until when tenants count as sharing steps, and whether they do in this one.
    shared_until_ns: u64,
    is_shared: bool,
    /// Whether streams sat the last step out for a newcomer.
    sat_out: bool,
    /// Scratch: running sequences with more than one token to compute that have no rows yet.
    prompts: Vec<SeqSlot>,
    /// Whether streams may have drafts at all.
    is_drafting: bool,
    /// Scratch: what the stream at hand may say next.
    draft: Vec<Token>,
    /// What streams may say next, those of each side by side.
    guesses: Vec<Guess>,
    /// Scratch: how likely each of them is to be right, the likeliest first.
    likely: Vec<f32>,
    /// What has been said, for guesses.
    said: Said,
    /// Scratch: cached blocks found for the sequence being admitted.
    hits: Vec<BlockId>,
    stats: Stats,
}

impl Scheduler {
    pub fn new(limits: BackendLimits, config: EngineConfig) -> Result<Self, ConfigError> {
        config.validate(&limits)?;
        let budget = config.max_num_batched_tokens.min(limits.max_rows) as usize;
        let n_seqs = config.max_num_seqs as usize;
        let n_drafts = config.drafts.most as usize;
        let mut batch = Batch::default();
        batch.tokens.reserve(budget);
        batch.positions.reserve(budget);
        batch.slots.reserve(budget);
        batch.seqs.reserve(n_seqs);
        batch.copies.reserve(n_seqs);
        batch.samples.reserve((n_seqs * (1 + n_drafts)).min(budget.max(n_seqs)));
        let stats =
            Stats { max_rows: budget as u32, n_blocks: limits.n_blocks, ..Stats::default() };
        Ok(Self {
            budget,
            pool: BlockPool::new(limits.n_blocks, limits.block_size, config.hash_key),
            seqs: Slab::new(),
            requests: Slab::new(),
            by_id: HashMap::new(),
            next_id: 0,
            waiting: WaitQueue::default(),
            running: Vec::with_capacity(n_seqs),
            deadlines: BTreeSet::new(),
            n_group_live: 0,
            turn: 0,
            ratio: LearnedRatio::new(config.output_ratio),
            batch,
            plan: Vec::with_capacity(n_seqs),
            mix: StepMix::default(),
            events: Vec::with_capacity((3 + n_drafts) * n_seqs),
            preemptions: VecDeque::with_capacity(MAX_PREEMPTION_RECORDS),
            shared_until_ns: 0,
            is_shared: false,
            sat_out: false,
            prompts: Vec::with_capacity(n_seqs),
            is_drafting: true,
            draft: Vec::with_capacity(n_drafts),
            guesses: Vec::with_capacity(n_seqs * n_drafts),
            likely: Vec::with_capacity(n_seqs * n_drafts),
            said: Said::new(n_drafts > 0),
            hits: Vec::with_capacity(limits.n_blocks as usize),
            stats,
            limits,
            config,
        })
    }

    /// Puts a request at the end of its class's queue, or says why it will not be served.
    pub fn submit(&mut self, request: Request, now_ns: u64) -> Result<RequestId, SubmitError> {
        let checked = self
            .check_request(&request.prompt, &request.params)
            .and_then(|()| self.check_queue(request.prompt.len() as u64));
        if let Err(error) = checked {
            self.stats.n_rejected += 1;
            return Err(error);
        }
        let id = RequestId(self.next_id);
        self.next_id += 1;
        let Request { prompt, params, priority, deadline_ns, tenant, constraint } = request;
        let max_len = error::max_len(&self.limits, prompt.len(), params.max_tokens);
        let n_prompt = prompt.len();
        let n = params.n;
        let lane = self.waiting.join(priority, tenant);
        let request = self.requests.insert(RequestState {
            id,
            params,
            priority,
            tenant,
            lane,
            deadline_ns,
            arrival_ns: now_ns,
            live: u128::MAX >> (u128::BITS - n),
            slots: Vec::new(),
            is_in_group: false,
        });
        let mut seq = Sequence::new(request, prompt, max_len);
        seq.guide = constraint.map(Guide::new);
        let slot = self.seqs.insert(seq);
        self.requests[request].slots = vec![slot; n as usize];
        self.by_id.insert(id, request);
        if let Some(deadline) = deadline_ns {
            self.deadlines.insert((deadline, id));
        }
        self.waiting.push_new(slot, lane, n_prompt);
        self.stats.n_requests += 1;
        Ok(id)
    }

    /// Changes when waiting requests may start; what runs already goes on.
    pub fn set_batching(&mut self, batching: Batching) -> Result<(), ConfigError> {
        let config = EngineConfig { batching, ..self.config.clone() };
        config.validate(&self.limits)?;
        self.config = config;
        Ok(())
    }

    /// Ends every unfinished sequence of a request. False if it is not live.
    pub fn cancel(&mut self, id: RequestId) -> bool {
        let Some(&request) = self.by_id.get(&id) else {
            return false;
        };
        self.finish_request(request, &FinishReason::Cancelled);
        true
    }

    /// Ends one sequence of a request, for a reason only the caller can see (a stop string, a
    /// client that has left). False if it is not live.
    pub fn finish_sequence(&mut self, id: RequestId, index: u32, reason: FinishReason) -> bool {
        match self.by_id.get(&id) {
            Some(&request) if self.requests[request].is_live(index) => {
                self.finish_index(request, index, reason);
                true
            }
            _ => false,
        }
    }

    /// Whether a step may have something to do or to say.
    pub fn has_work(&self) -> bool {
        !self.running.is_empty() || self.waiting.len() > 0 || !self.events.is_empty()
    }

    pub fn view(&self, id: RequestId, index: u32) -> Option<SequenceView> {
        let request = &self.requests[*self.by_id.get(&id)?];
        request.is_live(index).then(|| self.seqs[request.slots[index as usize]].view())
    }

    /// Every unfinished sequence: request, index, state.
    pub fn live(&self) -> impl Iterator<Item = (RequestId, u32, SequenceView)> {
        self.requests.iter().flat_map(|(_, request)| {
            set_bits(request.live)
                .map(|index| (request.id, index, self.seqs[request.slots[index as usize]].view()))
        })
    }

    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// The batch that [`schedule`](Self::schedule) filled last.
    pub fn batch(&self) -> &Batch {
        &self.batch
    }

    /// Moves what has happened since the last call to the end of `events`.
    pub fn emit(&mut self, events: &mut Vec<Event>) {
        events.append(&mut self.events);
    }

    /// Preemptions since the last call, oldest first; only the latest are kept.
    pub fn take_preemptions(&mut self) -> impl Iterator<Item = Preemption> {
        self.preemptions.drain(..)
    }

    pub fn stats(&self) -> Stats {
        Stats {
            n_active: self.running.len() as u32,
            n_waiting: self.waiting.len(),
            n_waiting_tokens: self.waiting.n_new_tokens(),
            n_free_blocks: self.pool.n_free(),
            n_used_blocks: self.pool.n_used(),
            n_cached_blocks: self.pool.n_cached(),
            ..self.stats.clone()
        }
    }

    /// Sets [`EngineConfig::max_prefill_rows`] from the next step on.
    pub fn set_max_prefill_rows(&mut self, max_rows: Option<u32>) {
        self.config.max_prefill_rows = max_rows;
    }

    /// Sets [`EngineConfig::max_batch_rows`] from the next step on.
    pub fn set_max_batch_rows(&mut self, max_rows: Option<u32>) {
        self.config.max_batch_rows = max_rows;
    }

    /// Sets [`EngineConfig::max_shared_rows`] from the next step on.
    pub fn set_max_shared_rows(&mut self, max_rows: Option<SharedRows>) {
        self.config.max_shared_rows = max_rows;
    }

    /// Whether steps may have [drafts](EngineConfig::drafts) from the next one on.
    pub fn set_drafting(&mut self, is_on: bool) {
        self.is_drafting = is_on;
    }

    /// Whether tenants share steps, as of the last one.
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Adds a step's duration to the statistics.
    pub fn record_step_ns(&mut self, elapsed_ns: u64) {
        self.stats.step_ns.record(elapsed_ns);
    }

    fn finish_request(&mut self, request: RequestSlot, reason: &FinishReason) {
        for index in set_bits(self.requests[request].live) {
            self.finish_index(request, index, reason.clone());
        }
    }

    /// The one way a sequence ends. Its blocks are free when this returns.
    fn finish_index(&mut self, request: RequestSlot, index: u32, reason: FinishReason) {
        self.stats.finished.count(&reason);
        let state = &mut self.requests[request];
        state.live &= !(1 << index);
        let (id, live) = (state.id, state.live);
        self.events.push(Event { request: id, index, kind: EventKind::Finished(reason) });
        let slot = state.slots[index as usize];
        let seq = &mut self.seqs[slot];
        if seq.is_fork_pending && live != 0 {
            // The others still need the prompt.
            seq.index = live.trailing_zeros();
        } else {
            self.drop_sequence(slot);
        }
        if live == 0 {
            self.drop_request(request);
        }
    }

    fn drop_sequence(&mut self, slot: SeqSlot) {
        let Some(mut seq) = self.seqs.remove(slot) else {
            return;
        };
        match seq.state {
            SequenceState::Running => self.remove_running(slot),
            SequenceState::Waiting => {
                let lane = self.requests[seq.request].lane;
                let n_new_tokens = (!seq.was_admitted).then_some(seq.n_prompt);
                self.waiting.remove(slot, lane, n_new_tokens);
            }
        }
        self.pool.release_table(&mut seq.blocks);
    }

    fn drop_request(&mut self, request: RequestSlot) {
        let Some(state) = self.requests.remove(request) else {
            return;
        };
        self.by_id.remove(&state.id);
        self.waiting.leave(state.lane);
        if let Some(deadline) = state.deadline_ns {
            self.deadlines.remove(&(deadline, state.id));
        }
        self.n_group_live -= u32::from(state.is_in_group);
    }

    /// An invariant is broken: its request pays, and nobody else.
    fn fault(&mut self, slot: SeqSlot, what: &str) {
        self.stats.n_faults += 1;
        self.finish_slot(slot, &FinishReason::Backend(format!("internal error: {what}")));
    }

    /// Ends all that a sequence stands for, and leaves its siblings alone.
    fn finish_slot(&mut self, slot: SeqSlot, reason: &FinishReason) {
        let seq = &self.seqs[slot];
        match seq.is_fork_pending {
            true => self.finish_request(seq.request, reason),
            false => self.finish_index(seq.request, seq.index, reason.clone()),
        }
    }
}
