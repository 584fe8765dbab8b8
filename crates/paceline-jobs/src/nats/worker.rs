//! The queue as a [`Source`] of lines, for a machine with an engine.
//!
//! Lines are pulled when the runner asks for more, so that a machine takes what it can run and no
//! more. Each line is held (its time to answer extended again and again) until its result is on
//! the queue's disk; a machine that dies holds nothing, and its lines go to others.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use async_nats::jetstream::Message;
use async_nats::jetstream::consumer::pull::Config;
use async_nats::jetstream::consumer::{Info, PullConsumer};
use async_nats::jetstream::message::{AckKind, Acker};
use futures_util::StreamExt;
use tokio::runtime::Runtime;
use tokio::sync::Notify;

use super::address::Address;
use super::link::{Kind, Link, NatsError, Refused, start_runtime};
use super::model::ModelId;
use super::wire::{parse_line, result_text};
use crate::line::Fault;
use crate::runner::{Finished, Line, News, Outcome, Source};

/// The consumer that all workers share.
const CONSUMER: &str = "workers";

/// Lines with all workers together.
const MAX_UNACKED: i64 = 1 << 20;

/// How long one request for lines stands.
const PULL_FOR: Duration = Duration::from_secs(2);

/// Most lines asked for at once.
const MAX_PULL: usize = 64;

/// Whether workers with another model are about is looked at so often, this far apart: those that
/// are idle ask for lines without a pause.
const N_LOOKS: usize = 5;
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// A server that went away since it was connected to is waited for so long.
const CLAIM_TIME: Duration = Duration::from_secs(60);

/// What telling the server at the end may take.
const FLUSH_TIME: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug)]
pub struct WorkerOptions {
    /// A line whose worker has said nothing for this long goes to another. Counts for the worker
    /// that comes to a queue first.
    pub redeliver_after: Duration,
    /// A line that was given to so many workers, none of which answered, has failed.
    pub max_deliveries: u32,
}

impl Default for WorkerOptions {
    fn default() -> WorkerOptions {
        WorkerOptions { redeliver_after: Duration::from_secs(30), max_deliveries: 5 }
    }
}

/// Ends a worker in good order: it takes no more lines and answers those it runs.
#[derive(Clone, Debug, Default)]
pub struct StopWorker(Arc<AtomicBool>);

impl StopWorker {
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
pub struct WorkerSource {
    inner: Arc<Inner>,
    runtime: Runtime,
}

#[derive(Debug)]
struct Inner {
    link: Link,
    options: WorkerOptions,
    hands: Mutex<Hands>,
    /// The runner could run more.
    wanted: Notify,
    /// Wakes the runner.
    news: Mutex<Option<Sender<News>>>,
    stop: StopWorker,
    /// What its engine has.
    model: OnceLock<ModelId>,
}

/// Lines that are this worker's for now.
#[derive(Default)]
struct Hands {
    /// By their place on the queue.
    held: HashMap<u64, Held>,
    /// Those that have not begun.
    ready: VecDeque<u64>,
    /// Those the engine had no room for, and when to try them again.
    later: Vec<(Instant, u64)>,
}

impl std::fmt::Debug for Hands {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hands").field("n_held", &self.held.len()).finish_non_exhaustive()
    }
}

#[derive(Clone)]
struct Held {
    acker: Arc<Acker>,
    /// Whose line it is: the end of its subject, and of its result's.
    of: String,
    line: Line,
}

impl WorkerSource {
    /// Fails if the queue cannot be reached now; later it may come and go.
    pub fn connect(
        address: &Address,
        options: WorkerOptions,
        stop: StopWorker,
    ) -> Result<WorkerSource, NatsError> {
        let runtime = start_runtime()?;
        let link = runtime.block_on(Link::connect(address))?;
        let inner = Arc::new(Inner {
            link,
            options,
            hands: Mutex::default(),
            wanted: Notify::new(),
            news: Mutex::new(None),
            stop,
            model: OnceLock::new(),
        });
        Ok(WorkerSource { inner, runtime })
    }

    /// Begins to take lines for an engine with this model. Fails if workers with another are about.
    pub fn serve(&self, model: ModelId) -> Result<(), NatsError> {
        let model = self.inner.model.get_or_init(|| model);
        let consumer = self.runtime.block_on(self.inner.claim_in_time(model))?;
        self.runtime.spawn(pull(Arc::clone(&self.inner), consumer));
        Ok(())
    }

    /// Tells the source how to wake the runner. Without it lines wait for the next tick.
    pub fn wakes(&self) -> impl FnOnce(Sender<News>) + use<> {
        let inner = Arc::clone(&self.inner);
        move |news| *inner.news.lock().unwrap_or_else(PoisonError::into_inner) = Some(news)
    }
}

impl Source for WorkerSource {
    fn tend(&mut self) -> Vec<u64> {
        if self.inner.stop.is_set() {
            for held in self.inner.hands().take_unbegun() {
                let nak = async move { held.acker.ack_with(AckKind::Nak(None)).await };
                self.runtime.spawn(nak);
            }
        }
        Vec::new()
    }

    fn take(&mut self) -> Option<Line> {
        if self.inner.stop.is_set() {
            return None;
        }
        let line = self.inner.hands().next();
        if line.is_none() {
            self.inner.wanted.notify_one();
        }
        line
    }

    fn give(&mut self, finished: Vec<Finished>) {
        for ended in finished {
            let sequence = ended.ticket.line;
            match ended.outcome {
                Outcome::Later(wait) => {
                    self.inner.hands().later.push((Instant::now() + wait, sequence));
                }
                outcome => {
                    self.runtime.spawn(settle(Arc::clone(&self.inner), sequence, outcome));
                }
            }
        }
    }

    fn is_over(&self) -> bool {
        self.inner.stop.is_set() && self.inner.hands().held.is_empty()
    }
}

impl Drop for WorkerSource {
    /// An orderly end leaves nobody waiting for what was said last.
    fn drop(&mut self) {
        let client = self.inner.link.client();
        let flush = async { tokio::time::timeout(FLUSH_TIME, client.flush()).await };
        // Lines that seem unanswered are run again, that is all.
        let _ = self.runtime.block_on(flush);
    }
}

impl Inner {
    async fn consumer(&self) -> Result<PullConsumer, NatsError> {
        let config = Config {
            durable_name: Some(CONSUMER.to_owned()),
            description: self.model.get().map(ModelId::tag),
            ack_wait: self.options.redeliver_after,
            max_ack_pending: MAX_UNACKED,
            ..Config::default()
        };
        let stream = self.link.stream(Kind::Lines).await?;
        let consumer = stream.get_or_create_consumer(CONSUMER, config).await;
        consumer.map_err(|error| self.link.failed(&error))
    }

    /// [`Inner::claim`], again while the server is away: it may be restarted while a model loads.
    async fn claim_in_time(&self, model: &ModelId) -> Result<PullConsumer, NatsError> {
        let start = Instant::now();
        loop {
            match self.claim(model).await {
                Err(error @ NatsError::Streams { .. })
                    if start.elapsed() < CLAIM_TIME && !self.stop.is_set() =>
                {
                    tracing::warn!(%error, "trying again");
                    self.link.recover().await;
                }
                claimed => return claimed,
            }
        }
    }

    /// The workers' consumer, marked as this model's. One that is another model's, and that nobody
    /// uses any more, is taken over.
    async fn claim(&self, model: &ModelId) -> Result<PullConsumer, NatsError> {
        let mut consumer = self.consumer().await?;
        for _ in 0..N_LOOKS {
            let info = consumer.info().await.map_err(|error| self.link.failed(&error))?;
            match model_of(info) {
                Some(theirs) if theirs.fingerprint == model.fingerprint => return Ok(consumer),
                Some(theirs) if info.num_waiting > 0 || info.num_ack_pending > 0 => {
                    return Err(self.link.other_model(theirs, model));
                }
                Some(_) => tokio::time::sleep(LOOK_EVERY).await,
                None => break,
            }
        }
        let known = &consumer.cached_info().config;
        let config = Config {
            durable_name: Some(CONSUMER.to_owned()),
            description: Some(model.tag()),
            ack_wait: known.ack_wait,
            max_ack_pending: known.max_ack_pending,
            ..Config::default()
        };
        // Of a consumer that is there, this changes what differs.
        let updated = self.link.stream(Kind::Lines).await?.create_consumer(config).await;
        updated.map_err(|error| self.link.failed(&error))
    }

    /// Ends the worker if the queue has become another model's, as it may when its disk was lost.
    async fn check_claim(&self, consumer: &mut PullConsumer) {
        let Ok(info) = consumer.info().await else { return };
        let (Some(theirs), Some(ours)) = (model_of(info), self.model.get()) else { return };
        if theirs.fingerprint != ours.fingerprint {
            let error = self.link.other_model(theirs, ours);
            tracing::error!(%error, "this worker takes no more lines");
            self.stop.stop();
        }
    }

    fn hands(&self) -> MutexGuard<'_, Hands> {
        self.hands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_runner(&self) {
        if let Some(news) = &*self.news.lock().unwrap_or_else(PoisonError::into_inner) {
            // A runner that has ended needs no lines.
            let _ = news.send(News::Look);
        }
    }

    /// Takes a line over, or answers it at once if it shall not run.
    fn receive(self: &Arc<Inner>, message: Message) {
        let Ok(info) = message.info() else { return };
        let (sequence, delivered) = (info.stream_sequence, info.delivered);
        let prefix = self.link.subject(Kind::Lines, "");
        let of = message.subject.strip_prefix(&prefix).unwrap_or_default().to_owned();
        let (message, acker) = message.split();
        let acker = Arc::new(acker);
        let mut hands = self.hands();
        if let Some(held) = hands.held.get_mut(&sequence) {
            // It was away for too long and the line came again: one run is enough.
            held.acker = acker;
            return;
        }
        let parsed = parse_line(&message.payload, sequence);
        let failed = match &parsed {
            Err(fault) => Some(fault.clone()),
            Ok((_, model)) => {
                self.fault_of_model(model.as_ref()).or_else(|| self.fault_of_deliveries(delivered))
            }
        };
        let line = parsed.map_or_else(|_| no_line(sequence), |(line, _)| line);
        hands.held.insert(sequence, Held { acker, of, line });
        match failed {
            None => hands.ready.push_back(sequence),
            Some(fault) => {
                let failed = settle(Arc::clone(self), sequence, Outcome::Broken(fault));
                drop(tokio::spawn(failed));
            }
        }
    }

    /// All workers of the queue have the same model, so a line for another has nobody to wait for.
    fn fault_of_model(&self, asked: Option<&ModelId>) -> Option<Fault> {
        let (asked, own) = (asked?, self.model.get()?);
        (asked.fingerprint != own.fingerprint).then(|| {
            let why = format!("the line is for the model {asked}, but the workers have {own}");
            Fault::new("wrong_model", why)
        })
    }

    fn fault_of_deliveries(&self, delivered: i64) -> Option<Fault> {
        let max = self.options.max_deliveries;
        (delivered > i64::from(max)).then(|| {
            let why = format!("the line was given to {max} workers and none of them answered");
            Fault::new("workers_lost", why)
        })
    }
}

impl Hands {
    fn next(&mut self) -> Option<Line> {
        let now = Instant::now();
        let due = self.later.iter().position(|&(at, _)| at <= now);
        let due = due.map(|place| self.later.swap_remove(place).1);
        let sequence = due.or_else(|| self.ready.pop_front())?;
        self.held.get(&sequence).map(|held| held.line.clone())
    }

    fn take_unbegun(&mut self) -> Vec<Held> {
        let later = self.later.drain(..).map(|(_, sequence)| sequence);
        let unbegun: Vec<u64> = self.ready.drain(..).chain(later).collect();
        unbegun.into_iter().filter_map(|sequence| self.held.remove(&sequence)).collect()
    }

    /// How many lines to ask for: a few of what runs, so that no machine sits on lines that
    /// another could run.
    fn n_to_pull(&self) -> usize {
        (self.held.len() / 4).clamp(1, MAX_PULL)
    }
}

/// Whose a queue's workers are.
fn model_of(info: &Info) -> Option<ModelId> {
    info.config.description.as_deref().and_then(ModelId::of_tag)
}

/// Stands in for a line that could not be read and never runs.
fn no_line(sequence: u64) -> Line {
    Line {
        ticket: crate::runner::Ticket { job: 0, line: sequence },
        owner: Arc::from(""),
        endpoint: crate::Endpoint::Completions,
        custom_id: String::new(),
        body: String::new(),
    }
}

/// Pulls lines when they are wanted, and holds those that are here.
async fn pull(inner: Arc<Inner>, mut consumer: PullConsumer) {
    let beat = consumer.cached_info().config.ack_wait / 3;
    tokio::spawn(hold(Arc::clone(&inner), consumer.clone(), beat));
    loop {
        inner.wanted.notified().await;
        if inner.stop.is_set() {
            continue;
        }
        if let Err(error) = pull_once(&inner, &consumer).await {
            tracing::debug!(%error, "lines cannot be taken now");
            inner.link.recover().await;
            match inner.consumer().await {
                Ok(again) => consumer = again,
                Err(error) => tracing::debug!(%error, "the queue is not there"),
            }
        }
    }
}

async fn pull_once(inner: &Arc<Inner>, consumer: &PullConsumer) -> Result<(), async_nats::Error> {
    let n = inner.hands().n_to_pull();
    let mut batch = consumer.batch().max_messages(n).expires(PULL_FOR).messages().await?;
    let end = tokio::time::Instant::now() + PULL_FOR * 2;
    while let Ok(Some(message)) = tokio::time::timeout_at(end, batch.next()).await {
        inner.receive(message?);
        inner.wake_runner();
    }
    Ok(())
}

/// Tells the server again and again that lines are being worked on.
async fn hold(inner: Arc<Inner>, mut consumer: PullConsumer, beat: Duration) {
    loop {
        tokio::time::sleep(beat.max(Duration::from_millis(100))).await;
        inner.check_claim(&mut consumer).await;
        let held: Vec<Arc<Acker>> =
            inner.hands().held.values().map(|held| Arc::clone(&held.acker)).collect();
        for acker in held {
            // If it is not heard, the line comes again and is known.
            let _ = acker.ack_with(AckKind::Progress).await;
        }
    }
}

/// Keeps a result on the queue, however long that takes, and lets go of its line then.
async fn settle(inner: Arc<Inner>, sequence: u64, mut outcome: Outcome) {
    let Some(held) = inner.hands().held.get(&sequence).cloned() else { return };
    let subject = inner.link.subject(Kind::Results, &held.of);
    // Of one line on the queue one result is kept, however often it was run.
    let id = format!("{}/{sequence}", held.of);
    let custom_id = Some(held.line.custom_id.as_str()).filter(|id| !id.is_empty());
    while let Some(text) = result_text(custom_id, &outcome) {
        match inner.link.publish(&subject, &id, &text).await {
            Ok(_) => break,
            Err(Refused::TooLarge) => outcome = Outcome::Broken(too_large()),
            Err(Refused::Now(why)) => {
                tracing::debug!(why, "a result cannot be kept now");
                inner.link.recover().await;
            }
        }
    }
    // The line may have come again meanwhile: its last delivery counts.
    let acker = inner.hands().held.get(&sequence).map(|held| Arc::clone(&held.acker));
    if let Some(acker) = acker {
        // Unheard, the line is run again, and its second result is known for what it is.
        let _ = acker.ack().await;
    }
    inner.hands().held.remove(&sequence);
}

fn too_large() -> Fault {
    let why = "the result is larger than the queue takes; raise max_payload of the NATS server";
    Fault::new("result_too_large", why)
}
