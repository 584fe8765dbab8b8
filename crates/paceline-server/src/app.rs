//! What all requests share: the model once it is there, the queue, the keys, the counters.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use paceline_engine::{Backend, Engine};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::engine::{self, EngineHandle, Queue, QueueLimits, WorkerOptions};
use crate::error::ApiError;
use crate::grammars::Grammars;
use crate::jobs::{Jobs, LineExecutor};
use crate::keys::Keys;
use crate::metrics::{EngineFacts, Metrics};
use crate::model::{Model, ServedModel};
use crate::options::ServerOptions;
use crate::traces::Traces;

/// Each costs a few snapshots a second; the engine's thread makes them once for all.
const MAX_WATCHERS: usize = 16;
const RETRY_WATCHING: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct App {
    pub(crate) options: ServerOptions,
    pub(crate) keys: Keys,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) traces: Option<Traces>,
    queue: Arc<Queue>,
    ready: OnceLock<Arc<Ready>>,
    /// Files and batches, on a server that keeps them.
    jobs: Option<Jobs>,
    /// Where tasks that no connection waits for run.
    runtime: Handle,
    is_draining: watch::Sender<bool>,
    /// One for each spectator there may be.
    watch_places: Arc<Semaphore>,
    /// Requests being answered, and a way to wait for there to be none.
    n_in_flight: watch::Sender<usize>,
}

/// A model that can be asked.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) model: Model,
    pub(crate) engine: EngineHandle,
    pub(crate) grammars: Grammars,
}

/// One request being answered; dropping it says that it is done.
#[derive(Debug)]
pub(crate) struct InFlight {
    app: Arc<App>,
}

impl App {
    pub(crate) fn new(options: ServerOptions, jobs: Option<Jobs>, runtime: Handle) -> Arc<App> {
        let queue = Queue::new(QueueLimits {
            max_requests: options.max_queued_requests.max(1),
            max_tokens: options.max_queued_tokens,
        });
        let metrics = Arc::default();
        let traces = options.traces.as_ref().map(|collector| Traces::new(collector, &metrics));
        Arc::new(App {
            keys: Keys::new(&options.keys),
            metrics,
            traces,
            queue,
            ready: OnceLock::new(),
            jobs,
            runtime,
            is_draining: watch::Sender::new(false),
            watch_places: Arc::new(Semaphore::new(MAX_WATCHERS)),
            n_in_flight: watch::Sender::new(0),
            options,
        })
    }

    /// Takes the engine over and begins to serve. False if there is one already.
    pub(crate) fn serve<B: Backend + Send + 'static>(
        self: &Arc<App>,
        engine: Engine<B>,
        served: ServedModel,
    ) -> std::io::Result<bool> {
        let model = Model::new(served, engine.backend().limits(), engine.max_num_seqs());
        let tokenizer = Arc::clone(&model.served.tokenizer);
        let grammars = Grammars::new(tokenizer, self.options.grammar_timeout);
        let ServerOptions { queue_timeout, target_itl, batch_itl_factor, .. } = self.options;
        let tracer = self.traces.as_ref().map(|traces| traces.tracer(model.name()));
        let options = WorkerOptions { queue_timeout, target_itl, batch_itl_factor, tracer };
        let (queue, metrics) = (Arc::clone(&self.queue), Arc::clone(&self.metrics));
        let engine = engine::start(engine, queue, metrics, options)?;
        let is_first = self.ready.set(Arc::new(Ready { model, engine, grammars })).is_ok();
        if let Some(jobs) = self.jobs.as_ref().filter(|_| is_first) {
            jobs.start(LineExecutor::new(Arc::clone(self)))?;
        }
        Ok(is_first)
    }

    /// The model, if requests are taken now.
    pub(crate) fn ready(&self) -> Result<&Arc<Ready>, ApiError> {
        if self.is_draining() {
            return Err(ApiError::unavailable("the server is shutting down"));
        }
        self.ready.get().ok_or_else(|| ApiError::unavailable("the model is loading"))
    }

    /// Files and batches, unless the server is about to end.
    pub(crate) fn jobs(&self) -> Result<&Jobs, ApiError> {
        match &self.jobs {
            None => Err(ApiError::NoDataDir),
            Some(_) if self.is_draining() => {
                Err(ApiError::unavailable("the server is shutting down"))
            }
            Some(jobs) => Ok(jobs),
        }
    }

    /// Takes in the results that are there and runs no more lines.
    pub(crate) fn stop_jobs(&self) {
        if let Some(jobs) = &self.jobs {
            jobs.stop();
        }
    }

    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    pub(crate) fn queue(&self) -> &Queue {
        &self.queue
    }

    pub(crate) fn is_draining(&self) -> bool {
        *self.is_draining.borrow()
    }

    /// From now on no request is taken.
    pub(crate) fn drain(&self) {
        self.is_draining.send_replace(true);
    }

    /// Returns when the server has begun to drain.
    pub(crate) async fn drained(&self) {
        // The sender lives as long as `self`.
        let _ = self.is_draining.subscribe().wait_for(|&is_draining| is_draining).await;
    }

    /// A spectator's place, while it is kept.
    pub(crate) fn watch_place(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        Arc::clone(&self.watch_places).try_acquire_owned().map_err(|_| ApiError::Overloaded {
            message: format!("{MAX_WATCHERS} clients watch already; try again later"),
            code: "too_many_watchers",
            retry_after: RETRY_WATCHING,
        })
    }

    /// Gives up what is under way.
    pub(crate) fn cancel_all(&self) {
        if let Some(ready) = self.ready.get() {
            ready.engine.cancel_all();
        }
    }

    pub(crate) fn enter(self: &Arc<App>) -> InFlight {
        self.n_in_flight.send_modify(|n| *n += 1);
        InFlight { app: Arc::clone(self) }
    }

    /// Returns when no request is being answered.
    pub(crate) async fn wait_until_idle(&self) {
        let mut n_in_flight = self.n_in_flight.subscribe();
        // The sender lives as long as `self`.
        let _ = n_in_flight.wait_for(|&n| n == 0).await;
    }

    pub(crate) fn metrics_page(&self) -> String {
        let model = self.ready.get().map(|ready| &ready.model);
        self.metrics
            .text(model.map(|model| EngineFacts { model: model.name(), limits: model.limits }))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.app.n_in_flight.send_modify(|n| *n = n.saturating_sub(1));
    }
}
