//! Flags of `paceline bench`.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Subcommand, value_parser};
use paceline::{Isa, Llm, LlmOptions};
use paceline_model::pull::Source;

use super::{Console, SourceArgs};

const BENCH_EXAMPLES: &str = r#"Examples:
  paceline bench throughput --batch 1,8,64        prefill and decode tokens per second

Every measurement takes turns with the others, round by round, because machines drift; medians are
shown. Answers are compared as well: a batch that changed one would end the run with an error."#;

const THROUGHPUT_EXAMPLES: &str = r#"Examples:
  paceline bench throughput
  paceline bench throughput --batch 1,8,64 --prompt-tokens 128 --new-tokens 64 --threads 2
  paceline bench throughput -m model.gguf --batch 1 --isa avx2 --json
  paceline bench throughput --batch 1,2,4,8,16,32,64 --plot throughput.svg

Prefill lasts until every sequence has its first token; decode is the steps after that, all
sequences in every step. The ceiling of a step is what its bytes (weights, keys and values) take at
this machine's read bandwidth, or its products and sums at the peak of its instruction set,
whichever is more; both are measured beside the rounds."#;

#[derive(Args, Debug)]
#[command(after_help = BENCH_EXAMPLES)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) command: BenchCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum BenchCommand {
    /// Prefill and decode tokens per second by batch size, beside the machine's ceilings
    #[command(after_help = THROUGHPUT_EXAMPLES)]
    Throughput(ThroughputArgs),
}

/// How results are shown.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Results")]
pub(crate) struct ReportArgs {
    /// Print a JSON list with an object for each row
    #[arg(long)]
    pub(crate) json: bool,

    /// Draw a plot
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,
}

/// The model to measure.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Model")]
pub(crate) struct BenchModelArgs {
    /// `default`, a path (.gguf, .safetensors or a directory), or hf:ORG/REPO[:FILE]
    #[arg(short, long, value_name = "MODEL", default_value = "default")]
    model: String,

    #[command(flatten)]
    source: SourceArgs,

    /// Threads of the forward pass [default: one for each core]
    #[arg(long, value_name = "N", value_parser = value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,

    /// Instruction set: scalar, avx2 or avx512 [default: the best there is]
    #[arg(long)]
    isa: Option<Isa>,
}

impl BenchModelArgs {
    /// Loads the model for requests of known sizes. Every run shall do all its work, so there is
    /// no prefix cache.
    pub(crate) fn load(&self, console: &Console, sizes: LlmOptions) -> Result<Llm> {
        let source = Source::parse(&self.model)?;
        let options = LlmOptions {
            threads: self.threads.map(usize::from),
            isa: self.isa,
            prefix_cache: false,
            pull: Some(self.source.pull_options(&source)?),
            ..sizes
        };
        Ok(Llm::load_with_progress(&self.model, options, &console.download())?)
    }
}

/// What each sequence of a batch does.
#[derive(Args, Clone, Copy, Debug)]
#[command(next_help_heading = "Work")]
pub(crate) struct ShapeArgs {
    /// Tokens of each prompt
    #[arg(long, value_name = "N", default_value_t = 128,
          value_parser = value_parser!(u32).range(1..=1 << 20))]
    pub(crate) prompt_tokens: u32,

    /// Tokens of each answer
    #[arg(long, value_name = "N", default_value_t = 64,
          value_parser = value_parser!(u32).range(2..=1 << 20))]
    pub(crate) new_tokens: u32,

    /// How often everything is measured
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,

    /// Rows (tokens) one step may compute
    #[arg(long, value_name = "TOKENS", default_value_t = 512,
          value_parser = value_parser!(u32).range(1..=32_768))]
    pub(crate) max_num_batched_tokens: u32,
}

#[derive(Args, Debug)]
pub(crate) struct ThroughputArgs {
    /// Batch sizes
    #[arg(long, value_name = "N,N,…", value_delimiter = ',', default_values_t = [1, 8, 64],
          value_parser = value_parser!(u32).range(1..=4096), help_heading = "Work")]
    pub(crate) batch: Vec<u32>,

    #[command(flatten)]
    pub(crate) shape: ShapeArgs,

    #[command(flatten)]
    pub(crate) model: BenchModelArgs,

    #[command(flatten)]
    pub(crate) report: ReportArgs,
}
