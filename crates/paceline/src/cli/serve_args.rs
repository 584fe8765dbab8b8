//! Flags of `paceline serve`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum, value_parser};
use paceline_engine::Pooling;
use paceline_jobs::Window;
use paceline_server::client::Origin;
use paceline_server::{JobOptions, KeyRule, ServerOptions};

use super::health_args::socket_address;
use super::{ByteSize, EngineArgs, LogFormat, UsageError};

/// Where `--api-key` may come from instead.
const KEY_VARIABLE: &str = "PACELINE_API_KEY";

#[derive(Args, Debug)]
pub(crate) struct ServeArgs {
    /// `default`, a path (.gguf, .safetensors or a directory), or hf:ORG/REPO[:FILE]; the same
    /// as --model
    #[arg(value_name = "MODEL", id = "served", conflicts_with = "model")]
    pub(crate) model: Option<String>,

    /// Where to listen; 0.0.0.0 is everywhere
    #[arg(long, default_value = "127.0.0.1", help_heading = "Server")]
    host: String,

    /// The port; 0 takes a free one
    #[arg(long, default_value_t = 8000, help_heading = "Server")]
    port: u16,

    /// What clients call the model (may be repeated) [default: its file's name for itself]
    #[arg(long, value_name = "NAME", help_heading = "Server")]
    pub(crate) served_model_name: Vec<String>,

    /// What an embedding is: the hidden state of the last token, or the mean over all
    #[arg(long, value_enum, default_value = "last", help_heading = "Server")]
    pub(crate) pooling: PoolingName,

    /// Only serve who sends this key (may be repeated; also $PACELINE_API_KEY)
    #[arg(long, value_name = "KEY", help_heading = "Access")]
    api_key: Vec<String>,

    /// Keys with their holders' names and limits, one on each line
    #[arg(long, value_name = "FILE", help_heading = "Access")]
    api_key_file: Option<PathBuf>,

    /// Requests that may wait; more get 429
    #[arg(long, value_name = "N", default_value_t = 2048, help_heading = "Load",
          value_parser = value_parser!(u32).range(1..=1 << 20))]
    max_queued_requests: u32,

    /// Prompt tokens that may wait; one prompt always may
    #[arg(long, value_name = "TOKENS", default_value_t = 1 << 22, help_heading = "Load")]
    max_queued_tokens: u64,

    /// Turn away what has not started after so many seconds; 0 is never
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0, help_heading = "Load",
          value_parser = seconds)]
    queue_timeout: f64,

    /// Give up what has not ended after so many seconds; 0 is never
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0, help_heading = "Load",
          value_parser = seconds)]
    request_timeout: f64,

    /// Compute prompts at a pace that leaves running streams a token every so many milliseconds;
    /// 0 is off: prompts get all that streams leave
    #[arg(long, value_name = "MS", default_value_t = 0.0, help_heading = "Load",
          value_parser = milliseconds)]
    target_itl_ms: f64,

    /// While other requests run, let lines of batches make steps at most so many times as long;
    /// 0 is off: lines get all that the others leave
    #[arg(long, value_name = "FACTOR", default_value_t = 1.2, help_heading = "Load",
          value_parser = batch_itl_factor)]
    batch_itl_factor: f64,

    /// What running requests get to finish when the server is stopped
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0, help_heading = "Load",
          value_parser = seconds)]
    shutdown_timeout: f64,

    /// Prompts one request may have
    #[arg(long, value_name = "N", default_value_t = 1024, help_heading = "Load")]
    max_prompts: usize,

    /// Connections that may be open at once
    #[arg(long, value_name = "N", default_value_t = 4096, help_heading = "Load",
          value_parser = value_parser!(u32).range(1..=1 << 20))]
    max_connections: u32,

    /// Keep files and batches here, and serve /v1/files and /v1/batches; one server at a time
    #[arg(long, value_name = "DIR", help_heading = "Batches")]
    data_dir: Option<PathBuf>,

    /// Let workers on this queue run the lines of batches: nats://HOST:PORT[/NAME]
    #[cfg(feature = "nats")]
    #[arg(long, value_name = "URL", help_heading = "Batches", requires = "data_dir")]
    queue: Option<paceline_jobs::nats::Address>,

    /// Largest file that may be uploaded
    #[arg(long, value_name = "SIZE", default_value = "200MiB", help_heading = "Batches")]
    max_file_size: ByteSize,

    /// Requests one batch may have
    #[arg(long, value_name = "N", default_value_t = 50_000, help_heading = "Batches",
          value_parser = value_parser!(u32).range(1..=10_000_000))]
    max_batch_requests: u32,

    /// Requests of one batch that may be under way at once [default: as many as the engine takes]
    #[arg(long, value_name = "N", help_heading = "Batches",
          value_parser = value_parser!(u32).range(1..))]
    max_batch_concurrency: Option<u32>,

    /// How long files, and batches that have ended, are kept
    #[arg(long, value_name = "TIME", default_value = "30d", help_heading = "Batches")]
    batch_retention: Window,

    /// Send a span for each prompt to this OpenTelemetry collector (OTLP, JSON over http); to
    /// /v1/traces there, unless it has a path
    #[arg(long, value_name = "URL", help_heading = "Server")]
    otlp_traces_endpoint: Option<String>,

    /// How log lines look
    #[arg(long, value_enum, default_value = "text", help_heading = "Server")]
    pub(crate) log_format: LogFormat,

    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PoolingName {
    Last,
    Mean,
}

impl From<PoolingName> for Pooling {
    fn from(name: PoolingName) -> Pooling {
        match name {
            PoolingName::Last => Pooling::Last,
            PoolingName::Mean => Pooling::Mean,
        }
    }
}

impl ServeArgs {
    pub(crate) fn address(&self) -> Result<SocketAddr> {
        socket_address(&self.host, self.port)
    }

    pub(crate) fn options(&self) -> Result<ServerOptions> {
        Ok(ServerOptions {
            max_queued_requests: self.max_queued_requests,
            max_queued_tokens: self.max_queued_tokens,
            queue_timeout: timeout(self.queue_timeout),
            request_timeout: timeout(self.request_timeout),
            target_itl: timeout(self.target_itl_ms / 1e3),
            batch_itl_factor: (self.batch_itl_factor > 0.0).then_some(self.batch_itl_factor),
            shutdown_timeout: Duration::from_secs_f64(self.shutdown_timeout),
            max_prompts: self.max_prompts,
            max_connections: self.max_connections as usize,
            keys: self.keys()?,
            jobs: self.jobs(),
            traces: self.traces()?,
            ..ServerOptions::default()
        })
    }

    fn jobs(&self) -> Option<JobOptions> {
        let data_dir = self.data_dir.clone()?;
        let unlimited = usize::MAX;
        Some(JobOptions {
            max_file_bytes: self.max_file_size.0,
            max_lines: self.max_batch_requests as usize,
            max_concurrency: self.max_batch_concurrency.map_or(unlimited, |n| n as usize),
            retention: Duration::from_secs(self.batch_retention.seconds),
            #[cfg(feature = "nats")]
            queue: self.queue.clone(),
            ..JobOptions::new(data_dir)
        })
    }

    fn traces(&self) -> Result<Option<Origin>> {
        let Some(url) = &self.otlp_traces_endpoint else {
            return Ok(None);
        };
        let origin = Origin::parse(url);
        Ok(Some(origin.map_err(|error| UsageError(format!("--otlp-traces-endpoint: {error}")))?))
    }

    fn keys(&self) -> Result<Vec<KeyRule>> {
        let variable = std::env::var(KEY_VARIABLE).ok().filter(|key| !key.is_empty());
        let given = self.api_key.iter().cloned().chain(variable);
        let mut rules: Vec<KeyRule> =
            given.map(|secret| KeyRule::new(name_of_key(&secret), secret)).collect();
        if let Some(path) = &self.api_key_file {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            let read = KeyRule::parse_file(&text)
                .map_err(|error| UsageError(format!("{}: {error}", path.display())))?;
            rules.extend(read);
        }
        Ok(rules)
    }
}

/// A name for a key without one. Jobs belong to names, so it must not depend on the order of flags;
/// it tells too little of the key to be of use (FNV-1a, three bytes of it).
fn name_of_key(secret: &str) -> String {
    let hash = secret.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("key-{:06x}", hash >> 40)
}

fn timeout(seconds: f64) -> Option<Duration> {
    (seconds > 0.0).then(|| Duration::from_secs_f64(seconds))
}

fn batch_itl_factor(text: &str) -> Result<f64, String> {
    let factor: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    match factor == 0.0 || (factor > 1.0 && factor <= 100.0) {
        true => Ok(factor),
        false => Err("must be 0, or above 1 and at most 100".to_owned()),
    }
}

/// A time of at most a minute.
fn milliseconds(text: &str) -> Result<f64, String> {
    let milliseconds: f64 = text.parse().map_err(|_| "not a number of milliseconds".to_owned())?;
    match (0.0..=60_000.0).contains(&milliseconds) {
        true => Ok(milliseconds),
        false => Err("must be from 0 to 60000".to_owned()),
    }
}

/// A time of at most a year.
fn seconds(text: &str) -> Result<f64, String> {
    const YEAR: f64 = 365.0 * 24.0 * 3600.0;
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    match (0.0..=YEAR).contains(&seconds) {
        true => Ok(seconds),
        false => Err("must be from 0 to a year".to_owned()),
    }
}
