//! Flags of `paceline bench`.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum, value_parser};
use paceline::{ActDtype, Isa, Llm, LlmOptions};
use paceline_cpu::quant::TensorType;
use paceline_model::pull::Source;

#[cfg(feature = "serve")]
use super::bench_serve_args::{BenchServeArgs, SERVE_EXAMPLES};
use super::engine_args::{ActivationDtype, KvCacheDtype};
use super::{ByteSize, Console, SourceArgs, Span};

const BENCH_EXAMPLES: &str = r#"Examples:
  paceline bench ceilings                         what this machine can do
  paceline bench throughput --batch 1,8,64        prefill and decode tokens per second
  paceline bench scaling --plot scaling.svg       what a larger batch gives
  paceline bench strategies                       ways of batching on the same arrivals
  paceline bench kernels --types q4_0             each op against its ceiling
  paceline bench serve --concurrency 1,8,32       load on a server

Every measurement but the last takes turns with the others, round by round, because machines
drift; medians are shown. Answers are compared as well: a batch that changed one would end the run
with an error."#;

const THROUGHPUT_EXAMPLES: &str = r#"Examples:
  paceline bench throughput
  paceline bench throughput --batch 1,8,64 --prompt-tokens 128 --new-tokens 64 --threads 2
  paceline bench throughput -m model.gguf --batch 1 --isa avx2 --json
  paceline bench throughput --batch 1,2,4,8,16,32,64 --plot throughput.svg

Prefill lasts until every sequence has its first token; decode is the steps after that, all
sequences in every step. The ceiling of a step is what its bytes (weights, keys and values) take at
this machine's read bandwidth, or its products and sums at the peak of its instruction set,
whichever is more; both are measured beside the rounds."#;

const CEILINGS_EXAMPLES: &str = r#"Examples:
  paceline bench ceilings
  paceline bench ceilings --sizes 2MiB,512MiB --threads 4 --json
  paceline bench ceilings --plot ceilings.svg

Bandwidth is that of reading a buffer of the given size over and over, each thread its own part.
Peaks are products and sums from registers; a multiply-add counts as two operations."#;

const SCALING_EXAMPLES: &str = r#"Examples:
  paceline bench scaling
  paceline bench scaling -m model.gguf --batch 1,2,4,8 --plot scaling.svg
  paceline bench scaling --json

Time, tokens and tok/s are those of decoding. The speedup is against the first batch size; the
efficiency is the speedup over how many times more sequences there are."#;

const STRATEGIES_EXAMPLES: &str = r#"Examples:
  paceline bench strategies
  paceline bench strategies --requests 200 --rate 100 --max-batch 64 --plot strategies.svg
  paceline bench strategies --strategies static,continuous --rounds 3 --json
  paceline bench strategies --prompt-tokens 32 --new-tokens 8..512

  sequential    one request at a time
  interleaved   up to --max-batch requests under way, each step computes one of them, in turn
  static        groups of up to --max-batch that run to their end
  window        the same, but a group waits to fill, up to --window-ms
  continuous    up to --max-batch, each joins and leaves as it comes and ends

Requests arrive at random (Poisson) at --rate, whether or not the engine keeps up; latencies count
from the arrival. Lengths are drawn evenly on a logarithmic scale, so most are short and some are
long. All strategies get the same requests, and must give the same tokens."#;

const KERNELS_EXAMPLES: &str = r#"Examples:
  paceline bench kernels
  paceline bench kernels --types q4_1,q8_0,f16 --rows 1,2,4,16,64 --isa avx512
  paceline bench kernels --outputs 1536 --inputs 576 --json

Products of a number of rows with weights of each type, attention of as many sequences over 256
tokens and of one prompt of 256, the norm and the gate before a product, and the greedy choice of
a token. The ceiling is the bytes an op must read at the read bandwidth of its working set, or its
products and sums at the peak of the instruction set, whichever takes longer."#;

#[derive(Args, Debug)]
#[command(after_help = BENCH_EXAMPLES)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) command: BenchCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum BenchCommand {
    /// What this machine can do: read bandwidth by working set, peaks by instruction set
    #[command(after_help = CEILINGS_EXAMPLES)]
    Ceilings(CeilingsArgs),
    /// Prefill and decode tokens per second by batch size, beside the machine's ceilings
    #[command(after_help = THROUGHPUT_EXAMPLES)]
    Throughput(ThroughputArgs),
    /// What a larger batch gives: speedup, efficiency and memory, from 1 to 128 sequences
    #[command(after_help = SCALING_EXAMPLES)]
    Scaling(ScalingArgs),
    /// Ways of batching on the same arrivals: sequential, interleaved, static, window, continuous
    #[command(after_help = STRATEGIES_EXAMPLES)]
    Strategies(StrategiesArgs),
    /// Each op of the forward pass against its ceiling
    #[command(after_help = KERNELS_EXAMPLES)]
    Kernels(KernelsArgs),
    /// Load a server, and see what its clients feel of it
    #[cfg(feature = "serve")]
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(Box<BenchServeArgs>),
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

    /// Instruction set: scalar, avx2, avx512, avx512_vnni or amx [default: the best there is]
    #[arg(long)]
    isa: Option<Isa>,

    /// What activations are rounded to where they meet quantised weights; auto is bf16 with AMX,
    /// int8 without (int12 for Q8_0 if there is no VNNI either)
    #[arg(long, value_name = "TYPE", value_enum, default_value_t = ActivationDtype::Auto)]
    activation_dtype: ActivationDtype,

    /// What keys and values are kept as; auto is bf16
    #[arg(long, value_name = "TYPE", value_enum, default_value_t = KvCacheDtype::Auto)]
    kv_cache_dtype: KvCacheDtype,
}

impl BenchModelArgs {
    /// Loads the model for requests of known sizes. Every run shall do all its work, so there is
    /// no prefix cache.
    pub(crate) fn load(&self, console: &Console, sizes: LlmOptions) -> Result<Llm> {
        let source = Source::parse(&self.model)?;
        let options = LlmOptions {
            threads: self.threads.map(usize::from),
            isa: self.isa,
            activation_dtype: self.activation_dtype.chosen(),
            kv_cache_dtype: self.kv_cache_dtype.into(),
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

    /// Guesses at each sequence's next tokens that a step may compute along; how many are right
    /// depends on the text
    #[arg(long, value_name = "N", default_value_t = 0,
          value_parser = value_parser!(u32).range(0..=16))]
    pub(crate) num_speculative_tokens: u32,
}

/// What measurements over batch sizes share.
#[derive(Args, Clone, Debug)]
pub(crate) struct CurveArgs {
    #[command(flatten)]
    pub(crate) shape: ShapeArgs,

    #[command(flatten)]
    pub(crate) model: BenchModelArgs,

    #[command(flatten)]
    pub(crate) report: ReportArgs,
}

#[derive(Args, Debug)]
pub(crate) struct ThroughputArgs {
    /// Batch sizes
    #[arg(long, value_name = "N,N,…", value_delimiter = ',', default_values_t = [1, 8, 64],
          value_parser = value_parser!(u32).range(1..=4096), help_heading = "Work")]
    pub(crate) batch: Vec<u32>,

    #[command(flatten)]
    pub(crate) curve: CurveArgs,
}

#[derive(Args, Debug)]
pub(crate) struct ScalingArgs {
    /// Batch sizes; the first is what the others are compared with
    #[arg(long, value_name = "N,N,…", value_delimiter = ',', help_heading = "Work",
          default_values_t = [1, 2, 4, 8, 16, 32, 64, 128],
          value_parser = value_parser!(u32).range(1..=4096))]
    pub(crate) batch: Vec<u32>,

    #[command(flatten)]
    pub(crate) curve: CurveArgs,
}

#[derive(Args, Debug)]
pub(crate) struct CeilingsArgs {
    /// Sizes to read [default: 1 MiB, 64 MiB, 96 MiB and 1 GiB, as far as there is memory]
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',')]
    pub(crate) sizes: Vec<ByteSize>,

    /// Threads to measure beside one [default: one for each core]
    #[arg(long, value_name = "N", value_parser = value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,

    /// How often everything is measured
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,

    /// Time for each measurement
    #[arg(long, value_name = "MS", default_value_t = 50,
          value_parser = value_parser!(u64).range(1..=60_000))]
    pub(crate) budget_ms: u64,

    #[command(flatten)]
    pub(crate) report: ReportArgs,
}

#[derive(Args, Debug)]
pub(crate) struct StrategiesArgs {
    /// Which to compare
    #[arg(long, value_enum, value_delimiter = ',', help_heading = "Work",
          default_values_t = Strategy::ALL)]
    pub(crate) strategies: Vec<Strategy>,

    /// How many requests
    #[arg(long, value_name = "N", default_value_t = 64, help_heading = "Work",
          value_parser = value_parser!(u32).range(1..=4096))]
    pub(crate) requests: u32,

    /// Requests that arrive in a second, on the average
    #[arg(long, value_name = "N", default_value_t = 50.0, help_heading = "Work")]
    pub(crate) rate: f64,

    /// Tokens of the prompts
    #[arg(long, value_name = "MIN..MAX", default_value = "16..128", help_heading = "Work")]
    pub(crate) prompt_tokens: Span,

    /// Tokens of the answers
    #[arg(long, value_name = "MIN..MAX", default_value = "4..384", help_heading = "Work")]
    pub(crate) new_tokens: Span,

    /// Requests that run at once, or are in a group
    #[arg(long, value_name = "N", default_value_t = 16, help_heading = "Work",
          value_parser = value_parser!(u32).range(1..=4096))]
    pub(crate) max_batch: u32,

    /// How long a group waits to fill
    #[arg(long, value_name = "MS", default_value_t = 50, help_heading = "Work",
          value_parser = value_parser!(u64).range(0..=60_000))]
    pub(crate) window_ms: u64,

    /// Of arrivals, lengths and prompts
    #[arg(long, default_value_t = 1, help_heading = "Work")]
    pub(crate) seed: u64,

    /// How often everything is measured
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Work",
          value_parser = value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,

    #[command(flatten)]
    pub(crate) model: BenchModelArgs,

    #[command(flatten)]
    pub(crate) report: ReportArgs,
}

/// When waiting requests start.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strategy {
    Sequential,
    Interleaved,
    Static,
    Window,
    Continuous,
}

impl Strategy {
    pub(crate) const ALL: [Strategy; 5] = [
        Strategy::Sequential,
        Strategy::Interleaved,
        Strategy::Static,
        Strategy::Window,
        Strategy::Continuous,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Strategy::Sequential => "sequential",
            Strategy::Interleaved => "interleaved",
            Strategy::Static => "static",
            Strategy::Window => "window",
            Strategy::Continuous => "continuous",
        }
    }
}

impl std::fmt::Display for Strategy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[derive(Args, Debug)]
pub(crate) struct KernelsArgs {
    /// Types of weights, as in q4_0,q6_k,bf16 [default: all]
    #[arg(long, value_name = "TYPE,…", value_delimiter = ',')]
    pub(crate) types: Vec<String>,

    /// Numbers of rows
    #[arg(long, value_name = "N,N,…", value_delimiter = ',', default_values_t = [1, 8, 64, 512],
          value_parser = value_parser!(u32).range(1..=4096))]
    pub(crate) rows: Vec<u32>,

    /// Outputs of the weights
    #[arg(long, value_name = "N", default_value_t = 2048,
          value_parser = value_parser!(u32).range(16..=1 << 17))]
    pub(crate) outputs: u32,

    /// Inputs of the weights, and the width of rows
    #[arg(long, value_name = "N", default_value_t = 2048,
          value_parser = value_parser!(u32).range(16..=1 << 17))]
    pub(crate) inputs: u32,

    /// Weights that take turns, so that they do not stay in the nearest cache
    #[arg(long, value_name = "SIZE", default_value = "32MiB")]
    pub(crate) working_set: ByteSize,

    /// Threads [default: one for each core]
    #[arg(long, value_name = "N", value_parser = value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,

    /// Instruction set: scalar, avx2, avx512, avx512_vnni or amx [default: the best there is]
    #[arg(long)]
    pub(crate) isa: Option<Isa>,

    /// What activations are rounded to where they meet quantised weights; auto is bf16 with AMX,
    /// int8 without (int12 for Q8_0 if there is no VNNI either)
    #[arg(long, value_name = "TYPE", value_enum, default_value_t = ActivationDtype::Auto)]
    pub(crate) activation_dtype: ActivationDtype,

    /// How often everything is measured
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,

    /// Time for each measurement
    #[arg(long, value_name = "MS", default_value_t = 20,
          value_parser = value_parser!(u64).range(1..=60_000))]
    pub(crate) budget_ms: u64,

    #[command(flatten)]
    pub(crate) report: ReportArgs,
}

impl KernelsArgs {
    /// For weights of type `ty`.
    pub(crate) fn act_dtype(&self, isa: Isa, ty: TensorType) -> ActDtype {
        self.activation_dtype.chosen().unwrap_or_else(|| ActDtype::fastest_for(isa, ty))
    }
}
