//! The connection to a NATS server, and the two streams of a queue on it.

use std::io;
use std::time::{Duration, Instant};

use async_nats::jetstream::context::PublishErrorKind;
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::publish::PublishAck;
use async_nats::jetstream::stream::{
    Config, DiscardPolicy, LastRawMessageErrorKind, RetentionPolicy, StorageType, Stream,
};
use async_nats::jetstream::{self, Context};
use async_nats::{Client, ConnectOptions, Event};
use tokio::runtime::Runtime;
use tokio::sync::Mutex;

use super::address::Address;
use super::model::ModelId;

/// What nobody took in for this long is dropped.
const MAX_AGE: Duration = Duration::from_secs(7 * 86_400);

/// How long the server knows ids of messages again. Nothing depends on it but work done twice.
const DUPLICATE_WINDOW: Duration = Duration::from_secs(600);

/// How long to wait after something failed; also how often the streams are looked for then.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(1);

/// How long a server that went away is left alone between attempts to reach it.
const RECONNECT_EVERY: Duration = Duration::from_millis(250);

#[derive(Debug, thiserror::Error)]
pub enum NatsError {
    #[error("cannot reach the queue at {address}: {why}")]
    Connect { address: String, why: String },
    #[error("cannot set up the queue at {address}: {why}; JetStream must be on (nats-server -js)")]
    Streams { address: String, why: String },
    #[error(
        "the workers of the queue {address} have the model {theirs}, but this one has {ours}; give \
         it the same files, --activation-dtype and --kv-cache-dtype, or another queue \
         (nats://HOST:PORT/NAME), or stop them first"
    )]
    OtherModel { address: String, theirs: Box<ModelId>, ours: Box<ModelId> },
    #[error("cannot start threads: {0}")]
    Threads(io::Error),
}

/// Which of a queue's streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Lines,
    Results,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Lines => "lines",
            Kind::Results => "results",
        }
    }
}

/// What keeps a message from being published.
#[derive(Debug)]
pub(super) enum Refused {
    TooLarge,
    /// It may work later.
    Now(String),
}

#[derive(Debug)]
pub(super) struct Link {
    address: Address,
    context: Context,
    ensured: Mutex<Option<Instant>>,
}

impl Link {
    /// Connects and makes sure that the streams are there. From then on it connects again
    /// whenever the server was away.
    pub(super) async fn connect(address: &Address) -> Result<Link, NatsError> {
        let mut options = ConnectOptions::new()
            .name("paceline")
            .max_reconnects(None)
            .reconnect_delay_callback(|_| RECONNECT_EVERY)
            .event_callback(|event| async move { log(&event) });
        if let Some(user) = address.server.username() {
            let password = address.server.password().unwrap_or_default();
            options = options.user_and_password(user.to_owned(), password.to_owned());
        }
        let client = options.connect(address.server.clone()).await.map_err(|error| {
            NatsError::Connect { address: address.to_string(), why: error.to_string() }
        })?;
        let context = jetstream::new(client);
        let link = Link { address: address.clone(), context, ensured: Mutex::new(None) };
        link.ensure_streams().await?;
        Ok(link)
    }

    pub(super) fn client(&self) -> Client {
        self.context.client()
    }

    /// The subject of a message: a sender's name, or a sender's name and a key, go into `of`.
    pub(super) fn subject(&self, kind: Kind, of: &str) -> String {
        format!("{}.{}.{of}", self.address.name, kind.name())
    }

    fn config(&self, kind: Kind) -> Config {
        Config {
            name: format!("{}-{}", self.address.name, kind.name()),
            subjects: vec![self.subject(kind, ">")],
            retention: RetentionPolicy::WorkQueue,
            storage: StorageType::File,
            // A full disk shall refuse new lines, not forget old ones.
            discard: DiscardPolicy::New,
            max_age: MAX_AGE,
            duplicate_window: DUPLICATE_WINDOW,
            ..Config::default()
        }
    }

    pub(super) async fn stream(&self, kind: Kind) -> Result<Stream, NatsError> {
        let stream = self.context.get_or_create_stream(self.config(kind)).await;
        stream.map_err(|error| self.failed(&error))
    }

    pub(super) fn other_model(&self, theirs: ModelId, ours: &ModelId) -> NatsError {
        let (theirs, ours) = (Box::new(theirs), Box::new(ours.clone()));
        NatsError::OtherModel { address: self.address.to_string(), theirs, ours }
    }

    pub(super) fn failed(&self, error: &dyn std::error::Error) -> NatsError {
        NatsError::Streams { address: self.address.to_string(), why: error.to_string() }
    }

    /// Makes what is missing of the streams: a server may come back with an empty disk.
    async fn ensure_streams(&self) -> Result<(), NatsError> {
        let mut ensured = self.ensured.lock().await;
        if ensured.is_none_or(|at| at.elapsed() >= RETRY_AFTER) {
            self.stream(Kind::Lines).await?;
            self.stream(Kind::Results).await?;
            *ensured = Some(Instant::now());
        }
        Ok(())
    }

    /// Waits a little after something failed, and makes sure of the streams.
    pub(super) async fn recover(&self) {
        tokio::time::sleep(RETRY_AFTER).await;
        if let Err(error) = self.ensure_streams().await {
            tracing::debug!(%error, "the queue is not there");
        }
    }

    /// Returns when the server has the message on its disk.
    pub(super) async fn publish(
        &self,
        subject: &str,
        id: &str,
        payload: &str,
    ) -> Result<PublishAck, Refused> {
        let message = PublishMessage::build().message_id(id).payload(payload.to_owned().into());
        let sent = self.context.send_publish(subject.to_owned(), message).await;
        let acked = match sent {
            Ok(acked) => acked.await,
            Err(error) => Err(error),
        };
        acked.map_err(|error| match error.kind() {
            PublishErrorKind::MaxPayloadExceeded => Refused::TooLarge,
            _ => Refused::Now(error.to_string()),
        })
    }

    /// The message of a subject, if there is one.
    pub(super) async fn find(&self, kind: Kind, of: &str) -> Result<Option<Vec<u8>>, NatsError> {
        let found =
            self.stream(kind).await?.get_last_raw_message_by_subject(&self.subject(kind, of)).await;
        match found {
            Ok(message) => Ok(Some(message.payload.to_vec())),
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
            Err(error) => Err(self.failed(&error)),
        }
    }
}

fn log(event: &Event) {
    match event {
        Event::Connected => tracing::info!("connected to the queue"),
        Event::Disconnected => tracing::warn!("the queue is away; trying again"),
        event => tracing::debug!(%event, "the queue"),
    }
}

/// One thread for all that is to be waited for.
pub(super) fn start_runtime() -> Result<Runtime, NatsError> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("queue")
        .enable_all()
        .build()
        .map_err(NatsError::Threads)
}
