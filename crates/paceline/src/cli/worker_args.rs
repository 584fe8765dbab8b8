//! Flags of `paceline worker`.

use std::time::Duration;

use clap::{Args, value_parser};
use paceline_jobs::nats::{Address, WorkerOptions};

use super::{EngineArgs, LogFormat};

pub(super) const EXAMPLES: &str = r#"Examples:
  nats-server -js                                                          a queue
  paceline worker --queue nats://queue:4222 model.gguf                     on each machine
  paceline batch --queue nats://queue:4222 -i in.jsonl -o out.jsonl        lines for them
  paceline serve --queue nats://queue:4222 --data-dir data model.gguf      or over HTTP

A worker takes lines at the pace of its engine. SIGTERM or Ctrl-C lets lines that run finish and
gives the others back; a second one ends at once, and the lines go to another worker. All workers
of a queue should run the same model: put another behind a name, nats://HOST:PORT/NAME."#;

#[derive(Args, Debug)]
pub(crate) struct WorkerArgs {
    /// `default`, a path (.gguf, .safetensors or a directory), or hf:ORG/REPO[:FILE]; the same
    /// as --model
    #[arg(value_name = "MODEL", id = "served", conflicts_with = "model")]
    pub(crate) model: Option<String>,

    /// Where lines come from: nats://[USER:PASSWORD@]HOST[:PORT][/NAME], or tls://…
    #[arg(long, value_name = "URL")]
    pub(crate) queue: Address,

    /// A line whose worker says nothing for so long goes to another; counts for the first worker
    /// that a queue ever has
    #[arg(long, value_name = "SECONDS", default_value_t = 30,
          value_parser = value_parser!(u32).range(1..=3600))]
    redeliver_after: u32,

    /// A line that so many workers took without answering has failed
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = value_parser!(u32).range(1..))]
    max_deliveries: u32,

    /// How log lines look
    #[arg(long, value_enum, default_value = "text")]
    pub(crate) log_format: LogFormat,

    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

impl WorkerArgs {
    pub(crate) fn options(&self) -> WorkerOptions {
        WorkerOptions {
            redeliver_after: Duration::from_secs(self.redeliver_after.into()),
            max_deliveries: self.max_deliveries,
        }
    }
}
