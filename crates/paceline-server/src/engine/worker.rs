//! The engine's thread: takes requests, steps, hands out tokens.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use paceline_engine::{
    Backend, Engine, Event, EventKind, FinishReason, Request, RequestId, RunningSequence, Stats,
    StepOutcome,
};

use super::board::Board;
use super::live::{Live, reason_name};
use super::pace::Pace;
use super::share::{BatchShare, Goals};
use super::times::{Prompts, StepTimes};
use super::{Command, News, Submission, WorkerOptions};
use crate::metrics::{Budgets, Finished, Metrics};

/// How long an engine that waits for time to pass does so before it looks for clients that left.
const LONGEST_WAIT: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(super) struct Worker<B> {
    engine: Engine<B>,
    commands: Receiver<Command>,
    metrics: Arc<Metrics>,
    options: WorkerOptions,
    clock: Instant,
    live: HashMap<RequestId, Live>,
    /// When each request must have started, oldest first: they all wait equally long.
    start_by: VecDeque<(Instant, RequestId)>,
    events: Vec<Event>,
    gone: Vec<RequestId>,
    times: StepTimes,
    pace: Option<Pace>,
    batch_share: Option<BatchShare>,
    /// Nothing is to be finished any more.
    is_over: Arc<AtomicBool>,
    board: Board,
}

impl<B: Backend> Worker<B> {
    pub(super) fn new(
        mut engine: Engine<B>,
        commands: Receiver<Command>,
        metrics: Arc<Metrics>,
        options: WorkerOptions,
        is_over: Arc<AtomicBool>,
        board: Board,
    ) -> Worker<B> {
        let stats = engine.stats();
        metrics.publish(&stats, Budgets::of(&stats));
        let goals = Goals { factor: options.batch_itl_factor, target: options.target_itl };
        let batch_share = BatchShare::new(goals, stats.max_rows);
        engine.set_max_batch_rows(batch_share.as_ref().map(BatchShare::rows));
        let times = StepTimes::default();
        engine.set_max_shared_rows(Some(times.shared_rows()));
        let pace = options.target_itl.map(|target| Pace::new(target, stats.max_rows));
        Worker {
            times,
            pace,
            batch_share,
            engine,
            commands,
            metrics,
            options,
            clock: Instant::now(),
            live: HashMap::new(),
            start_by: VecDeque::new(),
            events: Vec::new(),
            gone: Vec::new(),
            is_over,
            board,
        }
    }

    /// Until the last handle is gone and nothing is left to do.
    pub(super) fn run(mut self) {
        while self.receive() {
            self.heed_readers();
            self.expire(Instant::now());
            self.step();
        }
    }

    /// Takes what has come in; waits for something if there is nothing to do. False at the end.
    fn receive(&mut self) -> bool {
        if !self.engine.has_work() {
            let Some(command) = self.next_command() else {
                return false;
            };
            self.obey(command);
        }
        while let Ok(command) = self.commands.try_recv() {
            self.obey(command);
        }
        true
    }

    /// Waits for a command, and uses the time as long as there is something to make ready. `None`
    /// when there will be no more.
    fn next_command(&mut self) -> Option<Command> {
        loop {
            match self.commands.try_recv() {
                Ok(command) => return Some(command),
                Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) if self.engine.prepare() => (),
                Err(TryRecvError::Empty) => return self.commands.recv().ok(),
            }
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Submit(submission) => self.submit(submission),
            Command::Look => self.board.ask(),
        }
    }

    fn now_ns(&self) -> u64 {
        self.clock.elapsed().as_nanos() as u64
    }

    fn submit(&mut self, submission: Submission) {
        let Submission { job, place, sink, ended, permit, arrival, label } = submission;
        let now_ns = self.now_ns();
        let deadline = |timeout: Duration| now_ns.saturating_add(timeout.as_nanos() as u64);
        let n = job.params.n;
        let mut live = Live {
            place,
            tenant: job.tenant,
            sink,
            held: job.is_whole.then(Vec::new),
            ended,
            permit: Some(permit),
            label,
            arrival,
            started: None,
            first_token: None,
            last_token: vec![None; n as usize],
            n_running: n,
            n_prompt: job.prompt.len() as u32,
            n_cached: 0,
            n_generated: 0,
            params: Arc::clone(&job.params),
        };
        let request = Request {
            prompt: job.prompt,
            params: job.params,
            priority: job.priority,
            deadline_ns: job.timeout.map(deadline),
            tenant: job.tenant,
            constraint: job.constraint,
        };
        match self.engine.submit(request, now_ns) {
            Ok(id) => {
                let timeout = self.options.queue_timeout;
                self.start_by.extend(timeout.map(|timeout| (arrival + timeout, id)));
                self.live.insert(id, live);
            }
            Err(error) => {
                live.permit = None;
                live.tell_last(News::Refused(error));
            }
        }
    }

    /// Ends what nobody reads any more.
    fn heed_readers(&mut self) {
        for (&id, live) in &self.live {
            if live.sink.is_closed() {
                self.gone.push(id);
                continue;
            }
            let mut bits = live.ended.take();
            while bits != 0 {
                self.engine.finish_sequence(id, bits.trailing_zeros(), FinishReason::Stop);
                bits &= bits - 1;
            }
        }
        if self.is_over.load(Ordering::Relaxed) {
            self.cancel_all();
        }
        let mut gone = std::mem::take(&mut self.gone);
        for id in gone.drain(..) {
            self.end(id, &FinishReason::Cancelled, None);
        }
        self.gone = gone;
    }

    /// Every reader hears of it with the events of the next step.
    fn cancel_all(&mut self) {
        for &id in self.live.keys() {
            self.engine.cancel(id);
        }
    }

    /// Turns away what has waited too long for its first step.
    fn expire(&mut self, now: Instant) {
        while let Some(&(start_by, id)) = self.start_by.front() {
            let has_started = self.live.get(&id).is_none_or(|live| live.started.is_some());
            if !has_started && start_by > now {
                return;
            }
            self.start_by.pop_front();
            if !has_started {
                self.end(id, &FinishReason::Deadline, Some(News::QueueTimeout));
            }
        }
    }

    /// Ends a request from outside the engine.
    fn end(&mut self, id: RequestId, reason: &FinishReason, news: Option<News>) {
        self.engine.cancel(id);
        if let Some(live) = self.live.remove(&id) {
            self.report(&live, reason, Instant::now());
            if let Some(news) = news {
                live.tell_last(news);
            }
        }
    }

    fn step(&mut self) {
        self.board.look_around(&mut self.engine);
        let start = Instant::now();
        let before = n_prompt_rows(&self.engine);
        let outcome = self.engine.step(self.now_ns(), &mut self.events);
        let n_prompt_rows = n_prompt_rows(&self.engine) - before;
        let now = Instant::now();
        for preemption in self.engine.take_preemptions() {
            tracing::warn!(
                tokens_lost = preemption.n_tokens_lost,
                "preempted: others need its memory or place; the request will be computed again"
            );
        }
        match outcome {
            StepOutcome::Ran { .. } => {
                let elapsed = now.duration_since(start);
                self.engine.record_step_ns(elapsed.as_nanos() as u64);
                self.board.note(&self.engine, elapsed);
                self.keep_pace(n_prompt_rows, elapsed);
            }
            StepOutcome::Idle => {}
            StepOutcome::Failed(ref error) => tracing::error!(%error, "a step failed"),
        }
        // Before anybody hears of the step: whoever does finds the memory of what ended free.
        let stats = self.engine.stats();
        self.metrics.publish(&stats, self.budgets(&stats));
        let mut events = std::mem::take(&mut self.events);
        for event in events.drain(..) {
            // A request starts with its step, not after it.
            let at = if matches!(event.kind, EventKind::Started { .. }) { start } else { now };
            self.hear(event, at);
        }
        self.events = events;
        self.board.show(&self.engine, &self.live, now);
        if outcome == StepOutcome::Idle && self.engine.has_work() {
            self.wait();
        }
    }

    fn keep_pace(&mut self, n_prompt_rows: u64, elapsed: Duration) {
        let mix = self.engine.last_mix();
        let prompts = Prompts {
            n_rows: u32::try_from(n_prompt_rows).unwrap_or(u32::MAX),
            depth: mix.n_before.checked_div(n_prompt_rows).unwrap_or(0),
        };
        self.times.observe(prompts, elapsed);
        self.times.expect(prompt_depth(&self.engine));
        self.engine.set_max_shared_rows(Some(self.times.shared_rows()));
        if let Some(pace) = &mut self.pace {
            pace.observe(prompts.n_rows, elapsed, &self.times);
            self.engine.set_max_prefill_rows(Some(pace.rows()));
            self.engine.set_drafting(pace.has_time_for_drafts(&self.times));
        }
        if let Some(share) = &mut self.batch_share {
            share.observe(mix, elapsed);
            self.engine.set_max_batch_rows(Some(share.rows()));
        }
    }

    fn budgets(&self, stats: &Stats) -> Budgets {
        let free = Budgets::of(stats);
        let paced = self.pace.as_ref().map_or(free.prompt_rows, Pace::rows);
        let shared = self.engine.is_shared().then(|| self.times.shared_rows().usual);
        Budgets {
            prompt_rows: shared.map_or(paced, |shared| paced.min(shared)),
            batch_rows: self.batch_share.as_ref().map_or(free.batch_rows, BatchShare::usual_rows),
        }
    }

    /// Time alone makes the next step due (window batching); a request may cut the wait short.
    fn wait(&mut self) {
        let due_ns = self.engine.next_wakeup_ns().unwrap_or(0);
        let wait = Duration::from_nanos(due_ns.saturating_sub(self.now_ns())).min(LONGEST_WAIT);
        match self.commands.recv_timeout(wait) {
            Ok(command) => self.obey(command),
            Err(RecvTimeoutError::Timeout) => {}
            // Nobody will send any more; what is under way goes on.
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(wait),
        }
    }

    fn hear(&mut self, event: Event, now: Instant) {
        let Event { request, index, kind } = event;
        let Some(live) = self.live.get_mut(&request) else {
            return;
        };
        match kind {
            EventKind::Started { n_cached } => {
                live.start(now, n_cached);
                live.tell(News::Started { n_cached });
            }
            EventKind::PromptLogprob(logprob) => live.tell(News::PromptLogprob(logprob)),
            EventKind::Token { token, logprob } => {
                match live.token(index, now) {
                    Some(gap) => {
                        self.metrics.token_after(gap);
                        self.board.gap(gap);
                    }
                    None if live.n_generated == 1 => {
                        let since_arrival = now.duration_since(live.arrival);
                        self.metrics.first_token_after(since_arrival);
                        self.board.first_token(since_arrival);
                    }
                    None => {}
                }
                live.tell(News::Token { index, token, logprob });
            }
            EventKind::Pooled(vector) => live.tell(News::Pooled(vector)),
            EventKind::Finished(reason) => {
                live.n_running = live.n_running.saturating_sub(1);
                if live.n_running > 0 {
                    live.tell(News::Finished { index, reason });
                } else if let Some(live) = self.live.remove(&request) {
                    // Whoever hears of the end finds it counted and logged.
                    self.report(&live, &reason, now);
                    live.tell_last(News::Finished { index, reason });
                }
            }
        }
    }

    fn report(&self, live: &Live, reason: &FinishReason, now: Instant) {
        let finished = live.finished(reason, now);
        self.metrics.finished(&finished);
        if let Some(tracer) = &self.options.tracer {
            tracer.ended(&live.label.request_id, live.label.trace, &live.params, &finished);
        }
        log(live, reason, &finished);
    }
}

/// Rows so far that were no stream's next token.
fn n_prompt_rows<B: Backend>(engine: &Engine<B>) -> u64 {
    let stats = engine.stats();
    stats.n_prompt_tokens + stats.n_recomputed_tokens
}

/// Tokens before the rows of prompts that are under way, the deepest: what starts has none, unless
/// the cache knows some.
fn prompt_depth<B: Backend>(engine: &Engine<B>) -> u64 {
    let is_prompt = |seq: &RunningSequence<'_>| seq.n_prompt + seq.n_generated > seq.n_computed + 1;
    let depths = engine.running().filter(is_prompt).map(|seq| u64::from(seq.n_computed));
    depths.max().unwrap_or(0)
}

/// One line for each request, with where its time went.
fn log(live: &Live, reason: &FinishReason, finished: &Finished) {
    let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
    tracing::info!(
        request_id = live.label.request_id,
        key = live.label.key_name,
        finish = reason_name(reason),
        prompt_tokens = finished.n_prompt,
        cached_tokens = finished.n_cached,
        generated_tokens = finished.n_generated,
        queue_ms = ms(finished.times.queue),
        prefill_ms = ms(finished.times.prefill),
        decode_ms = ms(finished.times.decode),
        "request"
    );
}
