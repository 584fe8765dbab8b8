//! Files and batches over HTTP: the routes, and the thread that runs lines.
//!
//! What is kept, and in what order lines run, is `paceline-jobs`' business; this knows OpenAI's
//! JSON and hands each line to the route it names, so that a line means what the request means.

pub(crate) mod batches;
mod execute;
pub(crate) mod files;
#[cfg(feature = "nats")]
mod keyed;
mod query;
mod upload;

use std::io;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use paceline_jobs::line::{BodyHead, Fault};
#[cfg(feature = "nats")]
use paceline_jobs::nats::{RemoteExecutor, SenderId};
use paceline_jobs::queue::{CheckBody, JobQueue, QueueOptions};
use paceline_jobs::store::Store;
use paceline_jobs::{Executor, JobsError, News, Runner};

use crate::options::JobOptions;
pub use execute::LineEngine;
pub(crate) use execute::LineExecutor;
#[cfg(feature = "nats")]
use keyed::Keyed;

#[derive(Debug)]
pub(crate) struct Jobs {
    pub(crate) store: Arc<Store>,
    pub(crate) options: JobOptions,
    /// Workers elsewhere, until lines are handed to them.
    #[cfg(feature = "nats")]
    workers: Mutex<Option<RemoteExecutor>>,
    /// There once there is a model.
    runner: Mutex<Option<RunnerThread>>,
}

#[derive(Debug)]
struct RunnerThread {
    news: Sender<News>,
    thread: JoinHandle<()>,
}

impl Jobs {
    pub(crate) fn open(options: JobOptions) -> Result<Jobs, JobsError> {
        let store = Arc::new(Store::open(&options.data_dir)?);
        Ok(Jobs {
            store,
            #[cfg(feature = "nats")]
            workers: Mutex::new(workers_of(&options)?),
            options,
            runner: Mutex::new(None),
        })
    }

    /// Begins to run batches, those first that an earlier server left behind.
    pub(crate) fn start(&self, executor: LineExecutor) -> io::Result<()> {
        let options = QueueOptions {
            max_lines: self.options.max_lines,
            max_concurrency: self.options.max_concurrency,
            retention: self.options.retention.as_secs(),
        };
        let check = check_with(&executor);
        let (news, inbox) = channel();
        let queue = JobQueue::new(Arc::clone(&self.store), check, options, news.clone())?;
        #[cfg(feature = "nats")]
        if let Some(workers) = self.workers.lock().unwrap_or_else(PoisonError::into_inner).take() {
            if let Some(id) = executor.model_id() {
                workers.ask_for(id);
            }
            let keyed = Keyed::new(Arc::clone(executor.app()), workers);
            return self.run(Runner::listening(queue, keyed, (news, inbox)));
        }
        self.run(Runner::listening(queue, executor, (news, inbox)))
    }

    fn run<E>(&self, runner: Runner<JobQueue, E>) -> io::Result<()>
    where
        E: Executor<Task: Send> + Send + 'static,
    {
        let news = runner.sender();
        let run = move || drop(runner.run());
        let thread = std::thread::Builder::new().name("jobs".to_owned()).spawn(run)?;
        *self.lock() = Some(RunnerThread { news, thread });
        Ok(())
    }

    /// Tells the runner that the store has changed.
    pub(crate) fn wake(&self) {
        if let Some(runner) = &*self.lock() {
            // A runner that has stopped has no use for news.
            let _ = runner.news.send(News::Look);
        }
    }

    /// Returns when the results that are there have been taken in.
    pub(crate) fn stop(&self) {
        if let Some(RunnerThread { news, thread }) = self.lock().take() {
            let _ = news.send(News::Stop);
            if thread.join().is_err() {
                tracing::error!("the thread that runs batches has panicked");
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<RunnerThread>> {
        self.runner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The name that results come back under is kept with the batches they belong to.
#[cfg(feature = "nats")]
fn workers_of(options: &JobOptions) -> Result<Option<RemoteExecutor>, JobsError> {
    let Some(address) = &options.queue else { return Ok(None) };
    let sender = SenderId::kept_in(&options.data_dir.join("queue-sender"))?;
    tracing::info!(%address, "workers on a queue run the lines of batches");
    Ok(Some(RemoteExecutor::connect(address, &sender)?))
}

/// A line for a model that is not here keeps its batch from running.
fn check_with(executor: &LineExecutor) -> Arc<CheckBody> {
    let app = Arc::clone(executor.app());
    Arc::new(move |head: &BodyHead<'_>| {
        let Ok(ready) = app.ready() else { return Ok(()) };
        let named = ready.model.check_name(head.model.as_deref());
        named.map_err(|error| Fault::of_param("model", "model_not_found", error.to_string()))
    })
}
