//! One backend, one scheduler, and the step that joins them.

use crate::backend::{Backend, BackendError, Sampled};
use crate::blocks::BlockUse;
use crate::config::{Batching, ConfigError, EngineConfig, SharedRows};
use crate::ids::{RequestId, Token};
use crate::request::{Event, FinishReason, Request, SamplingParams};

use crate::scheduler::{Preemption, RunningSequence, Scheduler, StepMix, StepRows, SubmitError};
use crate::sequence::SequenceView;
use crate::stats::Stats;

/// Runs requests on a backend, one step at a time.
#[derive(Debug)]
pub struct Engine<B> {
    backend: B,
    scheduler: Scheduler,
    results: Vec<Sampled>,
    /// Who had rows in the last step, if somebody wants to know.
    trace: Option<Vec<StepRows>>,
}

/// What a step did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepOutcome {
    /// Nothing to compute now.
    Idle,
    /// One pass over `n_rows` rows of `n_seqs` sequences.
    Ran { n_rows: u32, n_seqs: u32 },
    /// The backend failed; the sequences of the step have ended, all others go on.
    Failed(BackendError),
}

impl<B: Backend> Engine<B> {
    pub fn new(backend: B, config: EngineConfig) -> Result<Self, ConfigError> {
        let n_results = config.max_num_seqs as usize * (1 + config.drafts.most as usize);
        let results = Vec::with_capacity(n_results);
        let scheduler = Scheduler::new(backend.limits(), config)?;
        Ok(Self { backend, scheduler, results, trace: None })
    }

    /// Whether such a request could ever run; says nothing about the queue.
    pub fn check_request(
        &self,
        prompt: &[Token],
        params: &SamplingParams,
    ) -> Result<(), SubmitError> {
        self.scheduler.check_request(prompt, params)
    }

    /// Queues a request. `now_ns` is engine time: any clock that does not run backwards.
    pub fn submit(&mut self, request: Request, now_ns: u64) -> Result<RequestId, SubmitError> {
        self.scheduler.submit(request, now_ns)
    }

    /// Changes when waiting requests may start; what runs already goes on.
    pub fn set_batching(&mut self, batching: Batching) -> Result<(), ConfigError> {
        self.scheduler.set_batching(batching)
    }

    /// Makes use of a moment without work; false if there is nothing to make ready any more.
    pub fn prepare(&mut self) -> bool {
        self.backend.prepare()
    }

    /// One step. What happened, and what was cancelled since the last one, is added to `events`.
    pub fn step(&mut self, now_ns: u64, events: &mut Vec<Event>) -> StepOutcome {
        self.scheduler.schedule(now_ns);
        let batch = self.scheduler.batch();
        if batch.is_empty() {
            self.scheduler.emit(events);
            return StepOutcome::Idle;
        }
        let (n_rows, n_seqs) = (batch.n_rows() as u32, batch.seqs.len() as u32);
        if let Some(trace) = &mut self.trace {
            trace.clear();
            trace.extend(self.scheduler.planned_rows());
        }
        self.results.clear();
        let collected = match self.backend.submit(batch) {
            Ok(()) => self.backend.collect(&mut self.results),
            Err(error) => Err(error),
        };
        let outcome = self.scheduler.apply(collected.map(|()| &mut self.results));
        self.scheduler.emit(events);
        match outcome {
            Ok(()) => StepOutcome::Ran { n_rows, n_seqs },
            Err(error) => StepOutcome::Failed(error),
        }
    }

    /// Adds the duration of a step, which the caller has timed, to the statistics.
    pub fn record_step_ns(&mut self, elapsed_ns: u64) {
        self.scheduler.record_step_ns(elapsed_ns);
    }

    /// Sets [`EngineConfig::max_prefill_rows`] from the next step on.
    pub fn set_max_prefill_rows(&mut self, max_rows: Option<u32>) {
        self.scheduler.set_max_prefill_rows(max_rows);
    }

    /// Sets [`EngineConfig::max_batch_rows`] from the next step on.
    pub fn set_max_batch_rows(&mut self, max_rows: Option<u32>) {
        self.scheduler.set_max_batch_rows(max_rows);
    }

    /// Sets [`EngineConfig::max_shared_rows`] from the next step on.
    pub fn set_max_shared_rows(&mut self, max_rows: Option<SharedRows>) {
        self.scheduler.set_max_shared_rows(max_rows);
    }

    /// Whether steps may have [drafts](EngineConfig::drafts) from the next one on.
    pub fn set_drafting(&mut self, is_on: bool) {
        self.scheduler.set_drafting(is_on);
    }

    /// Whether tenants share steps, as of the last one.
    pub fn is_shared(&self) -> bool {
        self.scheduler.is_shared()
    }

    /// Whose rows the last step had.
    pub fn last_mix(&self) -> StepMix {
        self.scheduler.mix()
    }

    /// Ends a request wherever it is; its last events come with the next step. False if it is not
    /// live.
    pub fn cancel(&mut self, id: RequestId) -> bool {
        self.scheduler.cancel(id)
    }

    /// Ends one of a request's sequences for a reason only the caller can see, such as a stop
    /// string. False if it is not live.
    pub fn finish_sequence(&mut self, id: RequestId, index: u32, reason: FinishReason) -> bool {
        self.scheduler.finish_sequence(id, index, reason)
    }

    /// Cancels one of a request's sequences. False if it is not live.
    pub fn cancel_sequence(&mut self, id: RequestId, index: u32) -> bool {
        self.finish_sequence(id, index, FinishReason::Cancelled)
    }

    /// Whether a step may have something to do or to say.
    pub fn has_work(&self) -> bool {
        self.scheduler.has_work()
    }

    /// After an idle step: the engine time at which the next one is due, if time alone will make
    /// it so (end of a batching window, a deadline).
    pub fn next_wakeup_ns(&self) -> Option<u64> {
        self.scheduler.next_wakeup_ns()
    }

    pub fn stats(&self) -> Stats {
        self.scheduler.stats()
    }

    /// A live sequence's state. Until the prompt of a request with `n > 1` is computed, all its
    /// sequences show the same.
    pub fn view(&self, id: RequestId, index: u32) -> Option<SequenceView> {
        self.scheduler.view(id, index)
    }

    /// Every unfinished sequence: request, index, state.
    pub fn live(&self) -> impl Iterator<Item = (RequestId, u32, SequenceView)> {
        self.scheduler.live()
    }

    /// Every sequence that takes part in steps, in the order they are served.
    pub fn running(&self) -> impl Iterator<Item = RunningSequence<'_>> {
        self.scheduler.running()
    }

    /// What each KV block is used for, by number.
    pub fn block_uses(&self) -> impl Iterator<Item = BlockUse> {
        self.scheduler.block_uses()
    }

    /// Whether steps note who had rows in them, for [`last_rows`](Self::last_rows).
    pub fn set_trace(&mut self, is_on: bool) {
        if is_on != self.trace.is_some() {
            self.trace = is_on.then(|| Vec::with_capacity(self.max_num_seqs() as usize));
        }
    }

    /// Who had rows in the last step that ran while the trace was on.
    pub fn last_rows(&self) -> &[StepRows] {
        self.trace.as_deref().unwrap_or_default()
    }

    /// Preemptions since the last call, for the caller's log.
    pub fn take_preemptions(&mut self) -> impl Iterator<Item = Preemption> {
        self.scheduler.take_preemptions()
    }

    /// Sequences that may run at once.
    pub fn max_num_seqs(&self) -> u32 {
        self.scheduler.config().max_num_seqs
    }

    pub fn backend(&self) -> &B {
        &self.backend
    }

    pub fn backend_mut(&mut self) -> &mut B {
        &mut self.backend
    }

    /// Verifies every invariant of the engine's books; for tests.
    pub fn check(&self) -> Result<(), String> {
        self.scheduler.check()
    }
}
