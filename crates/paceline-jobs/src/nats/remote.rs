//! Workers elsewhere as an [`Executor`]: lines go to the queue, results come back from it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::runtime::{Handle, Runtime};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use super::address::Address;
use super::collect::{self, Desk};
use super::link::{Kind, Link, NatsError, Refused, start_runtime};
use super::model::ModelId;
use super::sender::SenderId;
use super::wire::{key_of, line_text, parse_result};
use crate::line::Fault;
use crate::runner::{Executor, Line, Outcome, Report};

/// Lines on the queue and with workers. Enough for a good many of those; a cancelled batch has at
/// most this many to take back.
const MAX_LINES: usize = 4096;

/// Bytes of those lines; the one that goes beyond is the last.
const MAX_BYTES: usize = 256 << 20;

/// How long a line has no result before somebody looks whether it is still there; the wait
/// doubles with each look.
const LOOK_AFTER: Duration = Duration::from_secs(10);
const MAX_LOOK_AFTER: Duration = Duration::from_secs(160);

/// What cleaning up at the end may take.
const CLEAN_UP_TIME: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct RemoteExecutor {
    inner: Arc<Inner>,
    runtime: Runtime,
    /// Its lines end with the executor.
    is_passing: bool,
}

#[derive(Debug)]
struct Inner {
    link: Link,
    sender: String,
    /// The model that lines are for, once it is known; without one, whichever workers have.
    model: OnceLock<ModelId>,
    desk: Desk,
    n_bytes: AtomicUsize,
    /// The program ends: what is on the queue stays, for the next start to go on with.
    is_closing: AtomicBool,
    handle: Handle,
}

/// A line with the workers; dropping it takes it back.
#[derive(Debug)]
pub struct LineOnQueue(AbortHandle);

impl Drop for LineOnQueue {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl RemoteExecutor {
    /// Fails if the queue cannot be reached now; later it may come and go.
    pub fn connect(address: &Address, sender: &SenderId) -> Result<RemoteExecutor, NatsError> {
        let runtime = start_runtime()?;
        let link = runtime.block_on(Link::connect(address))?;
        let inner = Arc::new(Inner {
            link,
            sender: sender.name.clone(),
            model: OnceLock::new(),
            desk: Desk::default(),
            n_bytes: AtomicUsize::new(0),
            is_closing: AtomicBool::new(false),
            handle: runtime.handle().clone(),
        });
        let results = Arc::clone(&inner);
        runtime.spawn(async move {
            collect::collect(&results.link, &results.sender, &results.desk).await;
        });
        Ok(RemoteExecutor { inner, runtime, is_passing: sender.is_passing })
    }

    /// From now on lines are for this model, and workers that have another refuse them.
    pub fn ask_for(&self, model: ModelId) {
        // One executor serves one model; who says it again says the same.
        let _ = self.inner.model.set(model);
    }
}

impl Executor for RemoteExecutor {
    type Task = LineOnQueue;

    fn room(&self) -> usize {
        match self.inner.n_bytes.load(Ordering::Relaxed) < MAX_BYTES {
            true => MAX_LINES,
            false => 0,
        }
    }

    fn start(&self, line: Line, report: Report) -> LineOnQueue {
        let task = self.runtime.spawn(carry(Arc::clone(&self.inner), line, report));
        LineOnQueue(task.abort_handle())
    }
}

impl Drop for RemoteExecutor {
    fn drop(&mut self) {
        self.inner.is_closing.store(true, Ordering::Relaxed);
        if !(self.is_passing && self.inner.desk.is_idle()) {
            return;
        }
        let clean_up = collect::forget(&self.inner.link, &self.inner.sender);
        let cleaned =
            self.runtime.block_on(async { tokio::time::timeout(CLEAN_UP_TIME, clean_up).await });
        if !matches!(cleaned, Ok(Ok(()))) {
            tracing::debug!("the queue keeps some messages until they are too old");
        }
    }
}

async fn carry(inner: Arc<Inner>, line: Line, report: Report) {
    let model = inner.model.get();
    let key = key_of(&line, model);
    let answer = inner.desk.expect(&key);
    let text = line_text(&line, model);
    inner.n_bytes.fetch_add(text.len(), Ordering::Relaxed);
    let mut posted = Posted { inner, key, text, sequence: None };
    let outcome = posted.until_answered(answer).await;
    posted.sequence = None;
    drop(posted);
    report.send(outcome);
}

/// A line that waits for its result.
struct Posted {
    inner: Arc<Inner>,
    key: String,
    text: String,
    /// Its place on the queue, once it is there.
    sequence: Option<u64>,
}

/// What has become of a line.
enum State {
    Answered(Outcome),
    OnItsWay,
    Lost,
}

impl Posted {
    async fn until_answered(&mut self, mut answer: oneshot::Receiver<Outcome>) -> Outcome {
        if let Ok(outcome) = answer.try_recv() {
            return outcome;
        }
        let mut id = self.message_id();
        loop {
            let mut wait = match self.post(&id).await {
                // It was there before, and may have been answered since.
                Ok(true) => Duration::ZERO,
                Ok(false) => LOOK_AFTER,
                Err(fault) => return Outcome::Broken(fault),
            };
            loop {
                match tokio::time::timeout(wait, &mut answer).await {
                    Ok(Ok(outcome)) => return outcome,
                    Ok(Err(_)) => return Outcome::Broken(two_lines()),
                    Err(_) => {}
                }
                match self.look().await {
                    State::Answered(outcome) => return outcome,
                    State::OnItsWay => wait = (wait * 2).clamp(LOOK_AFTER, MAX_LOOK_AFTER),
                    State::Lost => break,
                }
            }
            // Both the line and its result are gone, unless the result has come just now.
            if let Ok(outcome) = answer.try_recv() {
                return outcome;
            }
            tracing::debug!(key = self.key, "a line is sent again");
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            id = format!("{}/{}", self.message_id(), now.as_nanos());
        }
    }

    /// The same after a restart, so that the server knows a line that it has already.
    fn message_id(&self) -> String {
        format!("{}/{}", self.inner.sender, self.key)
    }

    /// Puts the line on the queue, however long that takes. True if it was there.
    async fn post(&mut self, id: &str) -> Result<bool, Fault> {
        let link = &self.inner.link;
        let subject = link.subject(Kind::Lines, &self.address());
        loop {
            match link.publish(&subject, id, &self.text).await {
                Ok(ack) => {
                    self.sequence = Some(ack.sequence);
                    return Ok(ack.duplicate);
                }
                Err(Refused::TooLarge) => return Err(too_large()),
                Err(Refused::Now(why)) => {
                    tracing::debug!(why, "a line cannot be sent now");
                    link.recover().await;
                }
            }
        }
    }

    async fn look(&self) -> State {
        let link = &self.inner.link;
        // In this order: a worker keeps the result before it removes the line.
        match link.find(Kind::Lines, &self.address()).await {
            Ok(None) => {}
            Ok(Some(_)) | Err(_) => return State::OnItsWay,
        }
        match link.find(Kind::Results, &self.address()).await {
            Ok(Some(payload)) => State::Answered(parse_result(&payload)),
            Ok(None) => State::Lost,
            Err(_) => State::OnItsWay,
        }
    }

    fn address(&self) -> String {
        format!("{}.{}", self.inner.sender, self.key)
    }
}

impl Drop for Posted {
    fn drop(&mut self) {
        self.inner.desk.give_up(&self.key);
        self.inner.n_bytes.fetch_sub(self.text.len(), Ordering::Relaxed);
        let is_closing = self.inner.is_closing.load(Ordering::Relaxed);
        if let Some(sequence) = self.sequence.filter(|_| !is_closing) {
            let inner = Arc::clone(&self.inner);
            self.inner.handle.spawn(async move {
                // A worker that has it already answers to nobody.
                if let Ok(stream) = inner.link.stream(Kind::Lines).await {
                    let _ = stream.delete_message(sequence).await;
                }
            });
        }
    }
}

fn too_large() -> Fault {
    let why = "the line is larger than the queue takes; raise max_payload of the NATS server";
    Fault::new("line_too_large", why)
}

fn two_lines() -> Fault {
    Fault::new("duplicate_line", "another line of the batch says exactly the same")
}
