//! The HTTP server: OpenAI's routes and a few of its own, over one engine.
//!
//! ```text
//! socket ─► connections ─► router ─► a route: fields ─► Asked ─► tokens        tokio's threads
//!                                     │ EngineHandle::submit (bounded; full → 429)
//! ────────────────────────────────────▼──────────────────────────────────────  the engine's thread
//!                          Worker: submit · step · events to each request's channel
//! ────────────────────────────────────│──────────────────────────────────────  the request's task
//!                          Reply: detokenise, stop strings ─► JSON or SSE ─► client
//! ```
//!
//! Knows HTTP, JSON and text. Refuses to know how tokens are computed (any [`Backend`] will do),
//! model files, flags and terminals. Prints nothing; logs with `tracing`.

mod app;
mod asked;
mod call;
pub mod client;
mod collect;
mod connections;
mod engine;
mod error;
mod format;
mod grammars;
mod jobs;
mod json;
mod keys;
mod messages;
mod metrics;
mod model;
mod native;
mod openai;
mod openapi;
mod options;
mod page;
mod pooled;
mod prompts;
mod random;
mod reply;
mod router;
mod sse;
mod tokens;
mod tools;
mod traces;
mod watch;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use paceline_engine::{Backend, Engine};
use paceline_jobs::JobsError;
use tokio::runtime::Runtime;
use tokio::sync::{Notify, oneshot};

pub use jobs::LineEngine;
pub use keys::{KeyFileError, KeyRule};
pub use model::{Embedding, ServedModel};
pub use options::{JobOptions, ServerOptions};

use app::App;
use jobs::Jobs;
use traces::Traces;

/// How long the end of the server may be put off for traces.
const LAST_SPANS: Duration = Duration::from_secs(2);

/// A server that has its port. It answers as soon as it [runs](Server::run), with 503 until it is
/// [given a model](ServerHandle::serve).
#[derive(Debug)]
pub struct Server {
    listener: std::net::TcpListener,
    runtime: Runtime,
    app: Arc<App>,
    stop: Arc<Notify>,
}

/// Why a server could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("cannot listen on {address}: {source}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("cannot start threads: {0}")]
    Threads(io::Error),
    #[error(transparent)]
    Jobs(#[from] JobsError),
}

/// Steers a server from other threads.
#[derive(Clone, Debug)]
pub struct ServerHandle {
    app: Arc<App>,
    stop: Arc<Notify>,
}

impl Server {
    /// Takes the port and, if there is to be one, the data directory.
    pub fn bind(address: SocketAddr, options: ServerOptions) -> Result<Server, ServerError> {
        let listener = connections::bind(address);
        let listener = listener.map_err(|source| ServerError::Listen { address, source })?;
        let jobs = options.jobs.clone().map(Jobs::open).transpose()?;
        let runtime = start_runtime(options.n_threads).map_err(ServerError::Threads)?;
        let app = App::new(options, jobs, runtime.handle().clone());
        Ok(Server { listener, runtime, app, stop: Arc::default() })
    }

    /// Where it listens; tells the port if it was bound to port 0.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    pub fn handle(&self) -> ServerHandle {
        ServerHandle { app: Arc::clone(&self.app), stop: Arc::clone(&self.stop) }
    }

    /// Serves until [`ServerHandle::shut_down`], and until what was under way then has finished or
    /// run out of time.
    pub fn run(self) -> io::Result<()> {
        let Server { listener, runtime, app, stop } = self;
        let served = runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            let router = router::router(Arc::clone(&app));
            let exporter = app.traces.as_ref().and_then(Traces::take_exporter);
            let (stop_exporter, stopped) = oneshot::channel();
            let exporter = exporter.map(|exporter| tokio::spawn(exporter.run(stopped)));
            let served = connections::serve(listener, Arc::clone(&app), router, stop).await;
            if let Some(exporter) = exporter {
                // The last spans get their chance, and no more.
                let _ = stop_exporter.send(());
                let _ = tokio::time::timeout(LAST_SPANS, exporter).await;
            }
            served
        });
        app.stop_jobs();
        // What is still open has had its time.
        runtime.shutdown_background();
        served
    }
}

fn start_runtime(n_threads: usize) -> io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(n_threads.max(1))
        .thread_name("http")
        .enable_all()
        .build()
}

impl ServerHandle {
    /// Takes an engine over and serves its model. False if there is one already.
    pub fn serve<B: Backend + Send + 'static>(
        &self,
        engine: Engine<B>,
        model: ServedModel,
    ) -> io::Result<bool> {
        self.app.serve(engine, model)
    }

    /// Lets what runs finish, within the shutdown timeout, and ends the server.
    pub fn shut_down(&self) {
        self.app.drain();
        self.stop.notify_one();
    }
}
