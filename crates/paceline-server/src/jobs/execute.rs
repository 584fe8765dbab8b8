//! Runs lines of batches on the engine, each through the route it names.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use paceline_engine::{Backend, Engine};
use paceline_jobs::runner::Report;
use paceline_jobs::{Endpoint, Executor, Line, Outcome};
use serde_json::value::{RawValue, to_raw_value};
use tokio::runtime::Runtime;
use tokio::task::AbortHandle;

use crate::app::App;
use crate::call::Call;
use crate::error::ApiError;
use crate::model::ServedModel;
use crate::openai::{chat, completions, embeddings, responses};
use crate::options::ServerOptions;

/// How long a job waits whose key is not there.
pub(super) const NO_KEY_WAIT: Duration = Duration::from_secs(10);

/// The longest wait for room: there may be some before the advice to an HTTP client says so.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// For a key that has as much under way as it may.
const CONCURRENCY_WAIT: Duration = Duration::from_millis(50);

/// Hands lines to the engine of a server.
#[derive(Debug)]
pub(crate) struct LineExecutor {
    app: Arc<App>,
}

/// A line under way; dropping it cancels it.
#[derive(Debug)]
pub struct LineTask(AbortHandle);

impl Drop for LineTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl LineExecutor {
    pub(crate) fn new(app: Arc<App>) -> LineExecutor {
        LineExecutor { app }
    }

    #[cfg(feature = "nats")]
    pub(super) fn model_id(&self) -> Option<paceline_jobs::nats::ModelId> {
        self.app.ready().ok().and_then(|ready| ready.model.served.id.clone())
    }

    pub(crate) fn app(&self) -> &Arc<App> {
        &self.app
    }
}

impl Executor for LineExecutor {
    type Task = LineTask;

    /// As many as run at once, and some that are ready to follow. What they get beside streams
    /// is decided step by step, by the engine.
    fn room(&self) -> usize {
        let max_num_seqs = self.app.ready().map_or(0, |ready| ready.model.max_num_seqs as usize);
        max_num_seqs + max_num_seqs.div_ceil(8)
    }

    fn start(&self, line: Line, report: Report) -> LineTask {
        let app = Arc::clone(&self.app);
        let task = self.app.runtime().spawn(async move { report.send(run(app, line).await) });
        LineTask(task.abort_handle())
    }
}

async fn run(app: Arc<App>, line: Line) -> Outcome {
    let Some(caller) = app.keys.holder(&line.owner) else {
        return Outcome::Later(NO_KEY_WAIT);
    };
    let request_id = crate::random::id();
    let body = Bytes::from(line.body);
    let answer = match Call::of_line(app, caller, request_id.clone(), body) {
        Ok(call) => answer(line.endpoint, call).await,
        Err(error) => Err(error),
    };
    match answer {
        Ok(body) => Outcome::Answered { status: 200, request_id, body },
        Err(error) => outcome_of(&error, request_id),
    }
}

/// What has no room now may have some later; other errors are answers.
pub(super) fn outcome_of(error: &ApiError, request_id: String) -> Outcome {
    match error {
        ApiError::Overloaded { code: "concurrency_limit", .. } => Outcome::Later(CONCURRENCY_WAIT),
        ApiError::Overloaded { retry_after, .. } => {
            Outcome::Later((*retry_after).min(LONGEST_WAIT))
        }
        ApiError::Unavailable { .. } => Outcome::Later(LONGEST_WAIT),
        _ => Outcome::Answered {
            status: error.status().as_u16(),
            request_id,
            body: to_raw_value(&error.body()).unwrap_or_default(),
        },
    }
}

/// The body of a good answer.
async fn answer(endpoint: Endpoint, call: Call) -> Result<Box<RawValue>, ApiError> {
    let response = match endpoint {
        Endpoint::ChatCompletions => chat::answer(call).await?,
        Endpoint::Completions => completions::answer(call).await?,
        Endpoint::Responses => responses::answer(call).await?,
        Endpoint::Embeddings => embeddings::answer(call).await?,
    };
    let broken =
        |error: String| ApiError::internal(format!("the answer could not be read: {error}"));
    let body = response.into_body().collect().await.map_err(|error| broken(error.to_string()))?;
    serde_json::from_slice(&body.to_bytes()).map_err(|error| broken(error.to_string()))
}

/// An engine for lines alone: what `paceline batch` and workers run them on, without a port.
#[derive(Debug)]
pub struct LineEngine {
    executor: LineExecutor,
    /// Its threads end with it.
    _runtime: Runtime,
}

impl LineEngine {
    pub fn start<B: Backend + Send + 'static>(
        engine: Engine<B>,
        model: ServedModel,
    ) -> io::Result<LineEngine> {
        let options = ServerOptions { max_queued_requests: 1 << 17, ..ServerOptions::default() };
        let runtime = crate::start_runtime(options.n_threads)?;
        let app = App::new(options, None, runtime.handle().clone());
        app.serve(engine, model)?;
        Ok(LineEngine { executor: LineExecutor::new(app), _runtime: runtime })
    }
}

impl Executor for LineEngine {
    type Task = LineTask;

    fn room(&self) -> usize {
        self.executor.room()
    }

    fn start(&self, line: Line, report: Report) -> LineTask {
        self.executor.start(line, report)
    }
}
