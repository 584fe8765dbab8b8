//! OpenTelemetry traces (`--otlp-traces-endpoint`): one span for each prompt, with where its time
//! went, as OTLP over HTTP with JSON.
//!
//! The engine's thread hands spans over and never waits: the queue has a bound, and what finds it
//! full is dropped and counted, as is what a collector that is away does not take. Nothing here
//! knows requests' texts.

mod context;
mod export;
mod otlp;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use paceline_engine::SamplingParams;
use tokio::sync::mpsc;

use crate::client::Origin;
use crate::metrics::{Finished, Metrics};

pub(crate) use context::TraceContext;
pub(crate) use export::Exporter;

/// Spans that may wait to be sent.
const MAX_WAITING: usize = 2048;

/// The server's end: makes tracers, and holds the exporter until there is a runtime for it.
#[derive(Debug)]
pub(crate) struct Traces {
    sender: mpsc::Sender<Span>,
    exporter: Mutex<Option<Exporter>>,
    metrics: Arc<Metrics>,
}

/// The engine's end.
#[derive(Clone, Debug)]
pub(crate) struct Tracer {
    sender: mpsc::Sender<Span>,
    metrics: Arc<Metrics>,
    model: Arc<str>,
}

/// A prompt that has ended.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    model: Arc<str>,
    context: Option<TraceContext>,
    request_id: String,
    params: Arc<SamplingParams>,
    finished: Finished,
    /// Since 1970.
    end: Duration,
}

impl Traces {
    pub(crate) fn new(collector: &Origin, metrics: &Arc<Metrics>) -> Traces {
        let (sender, receiver) = mpsc::channel(MAX_WAITING);
        let exporter = Exporter::new(receiver, collector, Arc::clone(metrics));
        Traces { sender, exporter: Mutex::new(Some(exporter)), metrics: Arc::clone(metrics) }
    }

    /// The exporter, once.
    pub(crate) fn take_exporter(&self) -> Option<Exporter> {
        self.exporter.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn tracer(&self, model: &str) -> Tracer {
        let (sender, metrics) = (self.sender.clone(), Arc::clone(&self.metrics));
        Tracer { sender, metrics, model: model.into() }
    }
}

impl Tracer {
    /// Notes a prompt that ends now. Callers that trace but do not sample this get no span.
    pub(crate) fn ended(
        &self,
        request_id: &str,
        context: Option<TraceContext>,
        params: &Arc<SamplingParams>,
        finished: &Finished,
    ) {
        if context.is_some_and(|context| !context.is_sampled) {
            return;
        }
        let span = Span {
            model: Arc::clone(&self.model),
            context,
            request_id: request_id.to_owned(),
            params: Arc::clone(params),
            finished: *finished,
            end: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
        };
        if self.sender.try_send(span).is_err() {
            self.metrics.spans_dropped(1);
        }
    }
}
