//! Where results meet the lines that wait for them.
//!
//! A result is acknowledged, and so removed from the queue, a while after it was handed on: by
//! then it is in a file. If the process dies before, it comes again; if it comes for a line that
//! nobody has asked for yet, it is held in case somebody will.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::PullConsumer;
use async_nats::jetstream::consumer::pull::Config;
use async_nats::jetstream::message::Acker;
use futures_util::StreamExt;
use tokio::sync::oneshot;

use super::link::{Kind, Link, NatsError};
use super::wire::parse_result;
use crate::runner::Outcome;

/// From handing a result on to removing it from the queue; files are synced more often.
const KEEP_SETTLED: Duration = Duration::from_secs(5);

/// How long a result waits for somebody to ask for its line.
const KEEP_EARLY: Duration = Duration::from_secs(120);

/// When a result that got lost on its way comes again.
const ACK_WAIT: Duration = Duration::from_secs(15);

/// A sender that was not there for so long is forgotten.
const FORGET_AFTER: Duration = Duration::from_secs(86_400);

const MAX_UNACKED: i64 = 1 << 16;
const AT_ONCE: usize = 256;
const PULL_FOR: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct Desk(Mutex<State>);

impl std::fmt::Debug for Desk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Desk").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct State {
    waiting: HashMap<String, oneshot::Sender<Outcome>>,
    early: HashMap<String, Early>,
    /// Results that were handed on, oldest first.
    settled: VecDeque<(Instant, Acker)>,
}

struct Early {
    outcome: Outcome,
    acker: Acker,
    since: Instant,
}

impl Desk {
    /// Waits for the result of a line; it may be there already.
    pub(super) fn expect(&self, key: &str) -> oneshot::Receiver<Outcome> {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.lock();
        match state.early.remove(key) {
            Some(Early { outcome, acker, .. }) => {
                // The receiver is in our hands.
                let _ = sender.send(outcome);
                state.settled.push_back((Instant::now(), acker));
            }
            None => _ = state.waiting.insert(key.to_owned(), sender),
        }
        receiver
    }

    pub(super) fn give_up(&self, key: &str) {
        self.lock().waiting.remove(key);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.lock().waiting.is_empty()
    }

    fn hand_on(&self, key: &str, outcome: Outcome, acker: Acker) {
        let mut state = self.lock();
        let since = Instant::now();
        let sent = match state.waiting.remove(key) {
            Some(sender) => sender.send(outcome),
            None => Err(outcome),
        };
        match sent {
            Ok(()) => state.settled.push_back((since, acker)),
            Err(outcome) => {
                state.early.insert(key.to_owned(), Early { outcome, acker, since });
            }
        }
    }

    /// What need not be kept on the queue any longer.
    fn take_due(&self) -> Vec<Acker> {
        let mut state = self.lock();
        let is_due = |(since, _): &(Instant, Acker)| since.elapsed() >= KEEP_SETTLED;
        let n = state.settled.iter().take_while(|settled| is_due(settled)).count();
        let mut due: Vec<Acker> = state.settled.drain(..n).map(|(_, acker)| acker).collect();
        let early = state.early.extract_if(|_, early| early.since.elapsed() >= KEEP_EARLY);
        due.extend(early.map(|(_, early)| early.acker));
        due
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes results in for as long as the program runs.
pub(super) async fn collect(link: &Link, sender: &str, desk: &Desk) {
    let mut is_first = true;
    loop {
        match open(link, sender, is_first).await {
            Ok(consumer) => {
                is_first = false;
                pull_until_failure(&consumer, desk).await;
            }
            Err(error) => tracing::debug!(%error, "results cannot be taken in"),
        }
        link.recover().await;
    }
}

/// What an earlier process had not acknowledged shall come now, not when its time is over: that
/// takes a consumer made anew.
async fn open(link: &Link, sender: &str, anew: bool) -> Result<PullConsumer, NatsError> {
    let stream = link.stream(Kind::Results).await?;
    if anew {
        // There may be none.
        let _ = stream.delete_consumer(sender).await;
    }
    let config = Config {
        durable_name: Some(sender.to_owned()),
        filter_subject: link.subject(Kind::Results, &format!("{sender}.*")),
        ack_wait: ACK_WAIT,
        max_ack_pending: MAX_UNACKED,
        inactive_threshold: FORGET_AFTER,
        ..Config::default()
    };
    let consumer = stream.get_or_create_consumer(sender, config).await;
    consumer.map_err(|error| link.failed(&error))
}

async fn pull_until_failure(consumer: &PullConsumer, desk: &Desk) {
    loop {
        let batch = consumer.batch().max_messages(AT_ONCE).expires(PULL_FOR).messages().await;
        let Ok(mut batch) = batch else { return };
        let end = tokio::time::Instant::now() + PULL_FOR * 2;
        while let Ok(Some(message)) = tokio::time::timeout_at(end, batch.next()).await {
            let Ok(message) = message else { return };
            let (message, acker) = message.split();
            let key = message.subject.rsplit('.').next().unwrap_or_default();
            desk.hand_on(key, parse_result(&message.payload), acker);
        }
        for acker in desk.take_due() {
            // What stays unacknowledged comes again.
            let _ = acker.ack().await;
        }
    }
}

/// Removes what a sender has left on the queue.
pub(super) async fn forget(link: &Link, sender: &str) -> Result<(), NatsError> {
    for kind in [Kind::Lines, Kind::Results] {
        let filter = link.subject(kind, &format!("{sender}.*"));
        let purged = link.stream(kind).await?.purge().filter(filter).await;
        purged.map_err(|error| link.failed(&error))?;
    }
    let deleted = link.stream(Kind::Results).await?.delete_consumer(sender).await;
    deleted.map(|_| ()).map_err(|error| link.failed(&error))
}
