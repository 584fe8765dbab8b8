//! How a server is set up.

use std::path::PathBuf;
use std::time::Duration;

use crate::client::Origin;
use crate::keys::KeyRule;

/// Settings of a server. The defaults suit one machine behind no proxy.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Requests that may wait for their first step.
    pub max_queued_requests: u32,
    /// Prompt tokens that may wait. One prompt may always wait.
    pub max_queued_tokens: u64,
    /// A request that has not started after this long is turned away.
    pub queue_timeout: Option<Duration>,
    /// A request that has not ended after this long is given up.
    pub request_timeout: Option<Duration>,
    /// The time between two tokens of a stream that prompts should not lengthen; without it, as
    /// many prompt rows as fit a step.
    pub target_itl: Option<Duration>,
    /// How many times as long lines of batches may make steps while other requests run; without
    /// it, they get all the rows that fit a step.
    pub batch_itl_factor: Option<f64>,
    /// What requests under way get to finish once the server is told to stop.
    pub shutdown_timeout: Duration,
    /// Bytes a body may have.
    pub max_body_bytes: usize,
    /// How long a body may take to arrive.
    pub body_timeout: Duration,
    /// Bytes the head of a request may have.
    pub max_header_bytes: usize,
    /// How long the head of a request may take to arrive.
    pub header_timeout: Duration,
    /// Connections that may be open; more wait to be accepted. Fits 32 bits.
    pub max_connections: usize,
    /// Prompts one request may have.
    pub max_prompts: usize,
    /// How long compiling a grammar may take.
    pub grammar_timeout: Duration,
    /// Who may use the server; empty lets everybody.
    pub keys: Vec<KeyRule>,
    /// Where files and batches are kept; without it there are none.
    pub jobs: Option<JobOptions>,
    /// Where spans of requests are sent: an OTLP collector that takes JSON over HTTP.
    pub traces: Option<Origin>,
    /// Threads that speak HTTP.
    pub n_threads: usize,
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions {
            max_queued_requests: 2048,
            max_queued_tokens: 1 << 22,
            queue_timeout: None,
            request_timeout: None,
            target_itl: None,
            batch_itl_factor: Some(1.2),
            shutdown_timeout: Duration::from_secs(30),
            max_body_bytes: 16 << 20,
            body_timeout: Duration::from_secs(30),
            max_header_bytes: 64 << 10,
            header_timeout: Duration::from_secs(10),
            max_connections: 4096,
            max_prompts: 1024,
            grammar_timeout: Duration::from_secs(2),
            keys: Vec::new(),
            jobs: None,
            traces: None,
            n_threads: 2,
        }
    }
}

/// Settings of files and batches.
#[derive(Clone, Debug)]
pub struct JobOptions {
    /// The directory they are kept in; one server at a time.
    pub data_dir: PathBuf,
    /// Bytes an uploaded file may have.
    pub max_file_bytes: u64,
    /// Requests one batch may have.
    pub max_lines: usize,
    /// Requests of one batch that may be under way at once.
    pub max_concurrency: usize,
    /// How long files, and batches that have ended, are kept.
    pub retention: Duration,
    /// The queue whose workers run lines; without it, the server's own engine does.
    #[cfg(feature = "nats")]
    pub queue: Option<paceline_jobs::nats::Address>,
}

impl JobOptions {
    pub fn new(data_dir: PathBuf) -> JobOptions {
        JobOptions {
            data_dir,
            max_file_bytes: 200 << 20,
            max_lines: 50_000,
            max_concurrency: usize::MAX,
            retention: Duration::from_secs(30 * 86_400),
            #[cfg(feature = "nats")]
            queue: None,
        }
    }
}
