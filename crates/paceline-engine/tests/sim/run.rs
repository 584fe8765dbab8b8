//! Runs one workload and holds it to what the design promises.

use std::collections::{BTreeMap, BTreeSet};

use paceline_engine::fake::{FakeBackend, FakeModel, Reference};
use paceline_engine::{
    Batching, Engine, Event, EventKind, FinishReason, Priority, Request, RequestId, SharedRows,
    Stats, StepMix, StepOutcome, SubmitError, Token, TokenLogprob,
};

use crate::workload::{Action, ActionKind, Workload};

/// What a run yields.
pub(crate) struct Report {
    pub(crate) events: Vec<Event>,
    stats: Stats,
    n_copies: u64,
    n_held_back: u64,
    n_shared: u64,
}

/// What happened over all runs: a simulation that never preempts proves nothing about preemption.
#[derive(Debug, Default)]
pub(crate) struct Coverage {
    n_runs: u64,
    n_steps: u64,
    n_requests: u64,
    n_rejected: u64,
    n_tokens: u64,
    n_preemptions: u64,
    n_recomputed_tokens: u64,
    n_prefix_hit_tokens: u64,
    n_accepted_tokens: u64,
    n_refused_drafts: u64,
    n_failed_steps: u64,
    n_failed_rows: u64,
    n_cancelled: u64,
    n_deadline: u64,
    n_copies: u64,
    /// Steps in which the batch class had all it may have beside others.
    n_held_back: u64,
    /// Steps in which prompts had all they may have while tenants share.
    n_shared: u64,
}

impl Coverage {
    pub(crate) fn add(&mut self, report: &Report) {
        let stats = &report.stats;
        self.n_runs += 1;
        self.n_steps += stats.n_steps;
        self.n_requests += stats.n_requests;
        self.n_rejected += stats.n_rejected;
        self.n_tokens += stats.n_generated_tokens;
        self.n_preemptions += stats.n_preemptions;
        self.n_recomputed_tokens += stats.n_recomputed_tokens;
        self.n_prefix_hit_tokens += stats.n_prefix_hit_tokens;
        self.n_accepted_tokens += stats.n_accepted_tokens;
        self.n_refused_drafts += stats.n_drafted_tokens - stats.n_accepted_tokens;
        self.n_failed_steps += stats.n_failed_steps;
        self.n_failed_rows += stats.finished.failed;
        self.n_cancelled += stats.finished.cancelled;
        self.n_deadline += stats.finished.deadline;
        self.n_copies += report.n_copies;
        self.n_held_back += report.n_held_back;
        self.n_shared += report.n_shared;
    }

    pub(crate) fn assert_everything_happened(&self) {
        let seen = [
            ("rejections", self.n_rejected),
            ("preemptions", self.n_preemptions),
            ("recomputed tokens", self.n_recomputed_tokens),
            ("prefix hits", self.n_prefix_hit_tokens),
            ("drafts that were right", self.n_accepted_tokens),
            ("drafts that were wrong", self.n_refused_drafts),
            ("failed steps", self.n_failed_steps),
            ("failed rows", self.n_failed_rows),
            ("cancels", self.n_cancelled),
            ("deadlines", self.n_deadline),
            ("copies on write", self.n_copies),
            ("steps that held the batch class back", self.n_held_back),
            ("steps that tenants shared to the last row", self.n_shared),
        ];
        for (what, count) in seen {
            assert!(count > 100, "only {count} {what} in {} runs", self.n_runs);
        }
    }
}

struct Sim<'a> {
    workload: &'a Workload,
    engine: Engine<FakeBackend>,
    model: FakeModel,
    /// Per arrival: its number, or `None` while it has not come or was refused.
    ids: Vec<Option<RequestId>>,
    /// Sequences that were ended from outside.
    touched: BTreeSet<(RequestId, u32)>,
    n_preemptions: BTreeMap<(RequestId, u32), u32>,
    events: Vec<Event>,
    n_held_back: u64,
    n_shared: u64,
}

pub(crate) fn run(workload: &Workload) -> Result<Report, String> {
    let mut model = FakeModel::new(workload.limits.n_vocab);
    model.nan_one_in = workload.nan_one_in;
    model.has_habits = workload.has_habits;
    let backend = FakeBackend::with_model(workload.limits, model, workload.failures.clone());
    let mut engine = Engine::new(backend, workload.config.clone()).map_err(|e| e.to_string())?;
    engine.set_trace(true);
    let ids = vec![None; workload.arrivals.len()];
    let mut sim = Sim {
        workload,
        engine,
        model,
        ids,
        touched: BTreeSet::new(),
        n_preemptions: BTreeMap::new(),
        events: Vec::new(),
        n_held_back: 0,
        n_shared: 0,
    };
    sim.run_steps()?;
    sim.check_end()?;
    sim.check_answers()
}

impl Sim<'_> {
    fn run_steps(&mut self) -> Result<(), String> {
        let mut now_ns = 0;
        let last_arrival = self.workload.arrivals.last().map_or(0, |arrival| arrival.step);
        for step in 0.. {
            self.submit_arrivals(step, now_ns)?;
            self.act(step);
            if step > last_arrival && !self.engine.has_work() {
                return Ok(());
            }
            if step > last_arrival + self.most_steps() {
                return Err(format!("unfinished after {step} steps: starvation"));
            }
            let batch_rows = self.batch_rows(step);
            self.engine.set_max_batch_rows(batch_rows);
            let shared_rows = self.shared_rows(step);
            self.engine.set_max_shared_rows(shared_rows);
            let before = self.running_above_batch();
            let outcome = self.engine.step(now_ns, &mut self.events);
            self.check_shares(batch_rows, &before)
                .map_err(|what| format!("step {step}: {what}"))?;
            self.check_tenants(shared_rows).map_err(|what| format!("step {step}: {what}"))?;
            self.check_step(&outcome).map_err(|what| format!("step {step}: {what}"))?;
            now_ns += self.workload.step_ns;
            if outcome == StepOutcome::Idle && step > last_arrival && self.engine.has_work() {
                // Time alone must bring more work, or the engine hangs.
                let wakeup = self.engine.next_wakeup_ns();
                now_ns = now_ns.max(wakeup.ok_or("idle with work and no wake-up")?);
            }
        }
        unreachable!("the loop above ends")
    }

    /// No step is without a row, and each token is computed at most once per time it is started.
    fn most_steps(&self) -> u64 {
        let tokens = |request: &Request| {
            let len = request.prompt.len() + request.params.max_tokens as usize;
            u64::from(request.params.n) * len as u64
        };
        let total: u64 = self.workload.arrivals.iter().map(|a| tokens(&a.request)).sum();
        let n_requests = self.workload.arrivals.len() as u64;
        (total + n_requests) * u64::from(self.workload.config.max_preemptions + 2)
    }

    fn submit_arrivals(&mut self, step: u64, now_ns: u64) -> Result<(), String> {
        for (index, arrival) in self.workload.arrivals.iter().enumerate() {
            if arrival.step != step {
                continue;
            }
            match self.engine.submit(arrival.request.clone(), now_ns) {
                Ok(id) => self.ids[index] = Some(id),
                Err(error) => self.check_refusal(&arrival.request, &error)?,
            }
        }
        Ok(())
    }

    fn check_refusal(&self, request: &Request, error: &SubmitError) -> Result<(), String> {
        let limits = &self.workload.limits;
        let max_len = request.prompt.len() + request.params.max_tokens as usize;
        let max_len = max_len.min(limits.max_model_len as usize);
        let is_right = match error {
            SubmitError::PromptTooLong { .. } => {
                request.prompt.len() >= limits.max_model_len as usize
            }
            SubmitError::NeverFits { .. } => {
                max_len - 1 > (limits.n_blocks * limits.block_size) as usize
            }
            SubmitError::QueueFull { waiting_requests, waiting_tokens, .. } => {
                *waiting_requests >= self.workload.config.max_waiting_requests
                    || waiting_tokens + request.prompt.len() as u64
                        > self.workload.config.max_waiting_tokens
            }
            _ => false,
        };
        if is_right { Ok(()) } else { Err(format!("wrongly refused: {error}")) }
    }

    fn act(&mut self, step: u64) {
        for Action { step: at, arrival, kind } in &self.workload.actions {
            let Some(id) = self.ids[*arrival].filter(|_| *at == step) else {
                continue;
            };
            let n = self.workload.arrivals[*arrival].request.params.n;
            let indices: Vec<u32> =
                (0..n).filter(|&index| self.engine.view(id, index).is_some()).collect();
            match *kind {
                ActionKind::Cancel => {
                    assert_eq!(self.engine.cancel(id), !indices.is_empty());
                    self.touched.extend(indices.iter().map(|&index| (id, index)));
                }
                ActionKind::CancelIndex(index) => {
                    let is_live = indices.contains(&index);
                    assert_eq!(self.engine.cancel_sequence(id, index), is_live);
                    self.touched.extend(is_live.then_some((id, index)));
                }
                ActionKind::StopIndex(index) => {
                    let is_live = indices.contains(&index);
                    let finished = self.engine.finish_sequence(id, index, FinishReason::Stop);
                    assert_eq!(finished, is_live);
                    self.touched.extend(is_live.then_some((id, index)));
                }
            }
        }
    }

    /// Nobody is preempted more often than the configuration allows.
    fn check_preemptions(&mut self) -> Result<(), String> {
        for preemption in self.engine.take_preemptions() {
            let count = self.n_preemptions.entry((preemption.request, preemption.index));
            let count = count.and_modify(|count| *count += 1).or_insert(1);
            if *count > self.workload.config.max_preemptions {
                return Err(format!("{count} times: {preemption:?}"));
            }
        }
        Ok(())
    }

    fn check_step(&mut self, outcome: &StepOutcome) -> Result<(), String> {
        self.engine.check()?;
        self.check_preemptions()?;
        if let Some(violation) = self.engine.backend().violations().first() {
            return Err(violation.clone());
        }
        let stats = self.engine.stats();
        if stats.n_free_blocks + stats.n_used_blocks != stats.n_blocks {
            return Err("free + used is not the whole pool".to_owned());
        }
        if stats.n_faults > 0 || stats.n_padding_rows > 0 {
            return Err(format!("{} internal errors", stats.n_faults));
        }
        let budget = self.workload.config.max_num_batched_tokens.min(self.workload.limits.max_rows);
        match outcome {
            StepOutcome::Ran { n_rows, .. } if *n_rows > budget => {
                Err(format!("{n_rows} rows, {budget} allowed"))
            }
            _ => Ok(()),
        }
    }

    fn batch_rows(&self, step: u64) -> Option<u32> {
        let batch_rows = &self.workload.batch_rows;
        batch_rows[step as usize % batch_rows.len()]
    }

    fn shared_rows(&self, step: u64) -> Option<SharedRows> {
        let shared_rows = &self.workload.shared_rows;
        shared_rows[step as usize % shared_rows.len()]
    }

    fn request(&self, id: RequestId) -> Option<&Request> {
        let place = self.ids.iter().position(|known| *known == Some(id))?;
        Some(&self.workload.arrivals[place].request)
    }

    fn is_batch(&self, id: RequestId) -> bool {
        self.request(id).is_some_and(|request| request.priority == Priority::Batch)
    }

    fn running_above_batch(&self) -> BTreeSet<(RequestId, u32)> {
        let running = self.engine.running().filter(|seq| !self.is_batch(seq.request));
        running.map(|seq| (seq.request, seq.index)).collect()
    }

    /// Beside others that ran `before` the step and have rows in it, the batch class keeps to its
    /// share.
    fn check_shares(
        &mut self,
        batch_rows: Option<u32>,
        before: &BTreeSet<(RequestId, u32)>,
    ) -> Result<(), String> {
        let mix = self.engine.last_mix();
        let mut rows = self.engine.last_rows().iter();
        let is_shared = rows.any(|rows| before.contains(&(rows.request, rows.index)));
        match batch_rows {
            Some(most) if is_shared && mix.n_batch > most => {
                Err(format!("{most} rows for the batch class, but {mix:?}"))
            }
            Some(most) => {
                self.n_held_back += u64::from(is_shared && mix.n_batch == most && most > 0);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Whoever has rows beside another tenant shares steps with it; prompts then keep to their
    /// part, and one alone may have more.
    fn check_tenants(&mut self, shared_rows: Option<SharedRows>) -> Result<(), String> {
        if self.engine.last_mix() == StepMix::default() {
            return Ok(());
        }
        let rows = self.engine.last_rows();
        let others = rows.iter().filter(|rows| !self.is_batch(rows.request));
        let tenants: BTreeSet<_> =
            others.filter_map(|rows| Some(self.request(rows.request)?.tenant)).collect();
        if tenants.len() > 1 && !self.engine.is_shared() {
            return Err(format!("{tenants:?} do not share"));
        }
        let Some(SharedRows { usual, behind }) = shared_rows else { return Ok(()) };
        if !self.engine.is_shared() || self.workload.config.batching == Batching::Interleaved {
            return Ok(());
        }
        let prompts = rows.iter().filter(|rows| !rows.is_decode && rows.n_rows > 1);
        let prompts: Vec<u32> = prompts.map(|rows| rows.n_rows).collect();
        let (sum, usual) = (prompts.iter().sum::<u32>(), usual.max(1));
        self.n_shared += u64::from(sum >= usual);
        match sum <= usual || (sum <= behind && prompts.len() == 1) {
            true => Ok(()),
            false => Err(format!("{shared_rows:?} are shared, but prompts have {prompts:?}")),
        }
    }

    fn check_end(&self) -> Result<(), String> {
        let stats = self.engine.stats();
        if stats.n_used_blocks > 0 || stats.n_active > 0 || stats.n_waiting > 0 {
            return Err(format!("something is left behind: {stats:?}"));
        }
        if self.engine.live().next().is_some() {
            return Err("a sequence lives on".to_owned());
        }
        Ok(())
    }

    fn check_answers(self) -> Result<Report, String> {
        let mut answers: BTreeMap<(RequestId, u32), Answer> = BTreeMap::new();
        for event in &self.events {
            let answer = answers.entry((event.request, event.index)).or_default();
            answer.add(event).map_err(|what| format!("{event:?}: {what}"))?;
        }
        check_starts(&answers)?;
        for (arrival, id) in self.workload.arrivals.iter().zip(&self.ids) {
            let Some(id) = *id else { continue };
            for index in 0..arrival.request.params.n {
                let answer = answers.remove(&(id, index));
                let answer = answer.ok_or_else(|| format!("{id:?}/{index} was never heard of"))?;
                self.check_answer(&arrival.request, (id, index), &answer)
                    .map_err(|what| format!("{id:?}/{index}: {what}\n{answer:?}"))?;
            }
        }
        if let Some(key) = answers.keys().next() {
            return Err(format!("events of {key:?}, which nobody asked for"));
        }
        let stats = self.engine.stats();
        let n_copies = self.engine.backend().n_copies();
        let Self { events, n_held_back, n_shared, .. } = self;
        Ok(Report { events, stats, n_copies, n_held_back, n_shared })
    }

    fn check_answer(
        &self,
        request: &Request,
        key: (RequestId, u32),
        answer: &Answer,
    ) -> Result<(), String> {
        let max_model_len = self.workload.limits.max_model_len as usize;
        let mut expected = self.model.reference(request, key.1, max_model_len);
        if key.1 > 0 {
            expected.prompt_logprobs.clear();
        }
        let finish = answer.finish.as_ref().ok_or("never finished")?;
        let is_cut = match finish {
            FinishReason::Preempted => return Err("gave up on a preempted sequence".to_owned()),
            FinishReason::Deadline => request.deadline_ns.is_some(),
            FinishReason::Backend(_) => {
                let failures = &self.workload.failures;
                !(failures.submit_at.is_empty()
                    && failures.collect_at.is_empty()
                    && failures.short_at.is_empty())
            }
            _ => self.touched.contains(&key),
        };
        if is_cut { answer.begins(&expected) } else { answer.equals(&expected) }
    }
}

/// A request starts once, and before any of its sequences says anything.
fn check_starts(answers: &BTreeMap<(RequestId, u32), Answer>) -> Result<(), String> {
    let mut n_starts: BTreeMap<RequestId, (u32, bool)> = BTreeMap::new();
    for ((id, _), answer) in answers {
        let (starts, has_spoken) = n_starts.entry(*id).or_default();
        *starts += u32::from(answer.was_started);
        *has_spoken |= !answer.tokens.is_empty();
    }
    match n_starts.iter().find(|(_, (starts, has_spoken))| *starts != 1 && *has_spoken) {
        Some((id, (starts, _))) => Err(format!("{id:?} started {starts} times")),
        None => Ok(()),
    }
}

/// What was heard of one sequence.
#[derive(Debug, Default)]
struct Answer {
    was_started: bool,
    prompt_logprobs: Vec<TokenLogprob>,
    tokens: Vec<(Token, Option<TokenLogprob>)>,
    pooled: Option<Vec<f32>>,
    finish: Option<FinishReason>,
}

impl Answer {
    fn add(&mut self, event: &Event) -> Result<(), String> {
        if self.finish.is_some() {
            return Err("comes after the last event".to_owned());
        }
        match &event.kind {
            EventKind::Started { .. } => {
                let is_first = self.prompt_logprobs.is_empty() && self.tokens.is_empty();
                if std::mem::replace(&mut self.was_started, true) || !is_first {
                    return Err("not the first event, or twice".to_owned());
                }
            }
            EventKind::PromptLogprob(logprob) if self.tokens.is_empty() && event.index == 0 => {
                self.prompt_logprobs.push(logprob.clone());
            }
            EventKind::PromptLogprob(_) => return Err("out of place".to_owned()),
            EventKind::Token { token, logprob } => {
                self.tokens.push((*token, logprob.as_deref().cloned()));
            }
            EventKind::Pooled(_) if self.pooled.is_some() => return Err("twice".to_owned()),
            EventKind::Pooled(pooled) => self.pooled = Some(pooled.clone()),
            EventKind::Finished(reason) => self.finish = Some(reason.clone()),
        }
        Ok(())
    }

    fn equals(&self, expected: &Reference) -> Result<(), String> {
        self.begins(expected)?;
        // A failed prompt row fails its step: scores of the same step are not reported.
        let is_whole = self.tokens.len() == expected.tokens.len()
            && self.pooled == expected.pooled
            && (self.prompt_logprobs.len() == expected.prompt_logprobs.len()
                || matches!(expected.finish, FinishReason::Failed(_)));
        if is_whole && self.finish.as_ref() == Some(&expected.finish) {
            return Ok(());
        }
        Err(format!("is not {expected:?}"))
    }

    fn begins(&self, expected: &Reference) -> Result<(), String> {
        if expected.tokens.starts_with(&self.tokens)
            && expected.prompt_logprobs.starts_with(&self.prompt_logprobs)
            && (self.pooled.is_none() || self.pooled == expected.pooled)
        {
            return Ok(());
        }
        Err(format!("does not begin {expected:?}"))
    }
}
