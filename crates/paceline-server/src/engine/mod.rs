//! The door between the async side and the engine's own thread.
//!
//! Requests go in through one bounded queue; tokens come back through one channel per HTTP request.
//! Nothing here knows text or HTTP.
//!
//! **The engine never waits for a client.** A channel has room for everything its request can
//! produce (`max_tokens` and the prompt's log-probabilities bound that), so a send cannot block and
//! a slow reader costs memory that its own request paid for, at some tens of bytes per token. The
//! other choice, cutting off whoever reads slowly, would let the network decide about answers.
//! Whoever goes away drops the receiver, and the engine's thread sees that before its next step.
//!
//! **Nobody is woken for nothing.** The cores are the engine's, and whoever wakes for a token stops
//! one of its threads, and with it all that wait for that thread. So a reader that wants the whole
//! answer gets the news of a prompt together, when the last of it has come.

mod board;
mod live;
mod pace;
mod queue;
mod share;
#[cfg(test)]
mod tests;
mod times;
mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc as blocking;
use std::time::{Duration, Instant};

use paceline_engine::{
    Backend, Constraint, Engine, FinishReason, Priority, SamplingParams, SubmitError, Token,
    TokenLogprob,
};
use tokio::sync::{mpsc, watch};

use crate::error::ApiError;
use crate::metrics::Metrics;
use crate::traces::{TraceContext, Tracer};

use board::Board;
pub(crate) use board::{Cell, PERIOD, Quantiles, SequenceShown, Snapshot, Stage, StepShown};
pub(crate) use queue::{Permit, Queue, QueueLimits};
use worker::Worker;

/// More than any request can produce, and far below what a channel may be asked for.
const MAX_MESSAGES: usize = 1 << 32;

/// Strangers' grammars are walked on the engine's thread. What is not used is not allocated.
const STACK_BYTES: usize = 64 << 20;

/// What one prompt of an HTTP request asks of the engine.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) prompt: Vec<Token>,
    pub(crate) params: Arc<SamplingParams>,
    pub(crate) priority: Priority,
    pub(crate) tenant: u64,
    /// How long it may take in all.
    pub(crate) timeout: Option<Duration>,
    /// What its output must keep to.
    pub(crate) constraint: Option<Box<dyn Constraint>>,
    /// Its reader can do nothing before the end: all news come together then.
    pub(crate) is_whole: bool,
}

/// News of one prompt's sequences.
#[derive(Debug)]
pub(crate) struct Message {
    /// Which prompt of the HTTP request.
    pub(crate) prompt: u32,
    pub(crate) news: News,
}

#[derive(Debug)]
pub(crate) enum News {
    Started {
        n_cached: u32,
    },
    PromptLogprob(TokenLogprob),
    Token {
        index: u32,
        token: Token,
        logprob: Option<Box<TokenLogprob>>,
    },
    /// A prompt's pooled hidden state.
    Pooled(Vec<f32>),
    Finished {
        index: u32,
        reason: FinishReason,
    },
    Refused(SubmitError),
    /// It waited for longer than requests may.
    QueueTimeout,
}

/// What goes to a reader at once.
#[derive(Debug)]
enum Parcel {
    One(Message),
    /// All there is to say about a prompt.
    Whole {
        prompt: u32,
        news: Vec<News>,
    },
}

impl Parcel {
    fn unpack(self, messages: &mut Vec<Message>) {
        match self {
            Parcel::One(message) => messages.push(message),
            Parcel::Whole { prompt, news } => {
                messages.extend(news.into_iter().map(|news| Message { prompt, news }));
            }
        }
    }
}

/// Sequences of one prompt that the reader has seen enough of (a stop string).
#[derive(Debug, Default)]
pub(crate) struct Ended([AtomicU64; 2]);

impl Ended {
    pub(crate) fn end(&self, index: u32) {
        if let Some(word) = self.0.get(index as usize / 64) {
            word.fetch_or(1 << (index % 64), Ordering::Relaxed);
        }
    }

    /// The indices that ended since the last call.
    fn take(&self) -> u128 {
        let word = |i: usize| match self.0[i].load(Ordering::Relaxed) {
            0 => 0,
            _ => u128::from(self.0[i].swap(0, Ordering::Relaxed)),
        };
        word(0) | word(1) << 64
    }
}

/// Everything that is heard of one HTTP request. Dropping it cancels what still runs.
#[derive(Debug)]
pub(crate) struct Inbox {
    parcels: mpsc::Receiver<Parcel>,
    arrived: Vec<Parcel>,
    /// One for each prompt.
    pub(crate) ended: Vec<Arc<Ended>>,
}

impl Inbox {
    /// Waits for news and adds all that is there to `messages`. False when nothing more will come.
    pub(crate) async fn receive(&mut self, messages: &mut Vec<Message>) -> bool {
        const AT_ONCE: usize = 256;
        let n_arrived = self.parcels.recv_many(&mut self.arrived, AT_ONCE).await;
        self.arrived.drain(..).for_each(|parcel| parcel.unpack(messages));
        n_arrived > 0
    }
}

#[derive(Debug)]
struct Submission {
    job: Job,
    place: u32,
    sink: mpsc::Sender<Parcel>,
    ended: Arc<Ended>,
    permit: Permit,
    arrival: Instant,
    label: Arc<Label>,
}

/// What the engine's thread is told.
#[derive(Debug)]
enum Command {
    Submit(Submission),
    /// Somebody watches and wants a first snapshot.
    Look,
}

/// What the log and traces call a request.
#[derive(Debug, Default)]
pub(crate) struct Label {
    pub(crate) request_id: String,
    pub(crate) key_name: String,
    /// The caller's trace.
    pub(crate) trace: Option<TraceContext>,
}

/// The async side's end.
#[derive(Clone, Debug)]
pub(crate) struct EngineHandle {
    commands: blocking::SyncSender<Command>,
    queue: Arc<Queue>,
    is_over: Arc<AtomicBool>,
    stage: Arc<Stage>,
}

/// How the engine's thread treats requests.
#[derive(Clone, Debug)]
pub(crate) struct WorkerOptions {
    pub(crate) queue_timeout: Option<Duration>,
    /// The pace that prompts should leave to streams.
    pub(crate) target_itl: Option<Duration>,
    /// How many times as long lines of batches may make steps beside streams.
    pub(crate) batch_itl_factor: Option<f64>,
    pub(crate) tracer: Option<Tracer>,
}

/// Moves the engine to a thread of its own.
pub(crate) fn start<B: Backend + Send + 'static>(
    engine: Engine<B>,
    queue: Arc<Queue>,
    metrics: Arc<Metrics>,
    options: WorkerOptions,
) -> std::io::Result<EngineHandle> {
    // What is under way holds a permit, so there is room for every permit there is, and for one
    // spectator's wish.
    let (commands, receiver) = blocking::sync_channel(queue.limits().max_requests as usize + 1);
    let is_over = Arc::new(AtomicBool::new(false));
    let stage = Arc::new(Stage::default());
    let board = Board::new(Arc::clone(&stage));
    let worker = Worker::new(engine, receiver, metrics, options, Arc::clone(&is_over), board);
    let builder = std::thread::Builder::new().name("engine".to_owned()).stack_size(STACK_BYTES);
    builder.spawn(move || worker.run())?;
    Ok(EngineHandle { commands, queue, is_over, stage })
}

impl EngineHandle {
    /// Cancels everything with the next step; its readers are told.
    pub(crate) fn cancel_all(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Snapshots of the engine from now on, as long as the receiver is kept.
    pub(crate) fn watch(&self) -> watch::Receiver<Arc<Snapshot>> {
        let snapshots = self.stage.subscribe();
        // An engine at rest must be woken for the first one.
        self.stage.wish(|| self.commands.try_send(Command::Look).is_ok());
        snapshots
    }

    /// Queues all jobs of an HTTP request, or none.
    pub(crate) fn submit(
        &self,
        jobs: Vec<Job>,
        arrival: Instant,
        label: Label,
    ) -> Result<Inbox, ApiError> {
        let permits = self.queue.enter(jobs.iter().map(|job| job.prompt.len() as u64))?;
        let (sink, parcels) = mpsc::channel(jobs.iter().map(most_messages).sum::<usize>().max(1));
        let label = Arc::new(label);
        let mut ended = Vec::with_capacity(jobs.len());
        for (place, (job, permit)) in (0..).zip(jobs.into_iter().zip(permits)) {
            let end = Arc::new(Ended::default());
            ended.push(Arc::clone(&end));
            let submission = Submission {
                job,
                place,
                sink: sink.clone(),
                ended: end,
                permit,
                arrival,
                label: Arc::clone(&label),
            };
            self.send(submission)?;
        }
        Ok(Inbox { parcels, arrived: Vec::new(), ended })
    }

    fn send(&self, submission: Submission) -> Result<(), ApiError> {
        self.commands.try_send(Command::Submit(submission)).map_err(|error| match error {
            blocking::TrySendError::Full(_) => self.queue.full(),
            blocking::TrySendError::Disconnected(_) => ApiError::internal("the engine has stopped"),
        })
    }
}

/// The most that can ever be said about a job.
fn most_messages(job: &Job) -> usize {
    let n_scores = job.params.prompt_logprobs.map_or(0, |_| job.prompt.len());
    let per_sequence = (job.params.max_tokens as usize).saturating_add(1);
    let n_tokens = per_sequence.saturating_mul(job.params.n as usize);
    // A start, and one refusal.
    n_scores.saturating_add(n_tokens).saturating_add(2).min(MAX_MESSAGES)
}
