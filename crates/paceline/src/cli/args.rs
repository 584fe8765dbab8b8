//! The command line as a whole: commands, their own flags, and their help.

use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum, value_parser};

#[cfg(feature = "nats")]
use super::WorkerArgs;
use super::{
    BenchArgs, EngineArgs, LogFormat, MemoryArgs, SamplingArgs, SourceArgs, SynthArgs, Verbosity,
};
#[cfg(feature = "serve")]
use super::{HealthArgs, ServeArgs};

const EXAMPLES: &str = r#"Examples:
  paceline run "What is gravity?"                 answer one question
  paceline run                                    chat
  paceline batch -i prompts.txt -o out.jsonl      many prompts from a file
  paceline inspect hf:ORG/REPO                    what a model is, and what fits
  paceline bench throughput --batch 1,8,64        tokens per second by batch size

A model is `default`, a path (.gguf, .safetensors or a directory), or hf:ORG/REPO[:FILE].
Exit codes: 0 all went well, 1 something failed, 2 wrong usage, 130 stopped with Ctrl-C."#;

const RUN_EXAMPLES: &str = r#"Examples:
  paceline run "What is gravity?"
  paceline run --system "Answer in one sentence." "Why is the sky blue?"
  paceline run --raw --max-tokens 40 "Once upon a time"
  paceline run -t 0.8 --top-p 0.9 --seed 7 "Write a haiku about rain."
  paceline run -m model.gguf - < question.txt
  printf 'Hello\nWhat did I say?\n' | paceline run

The answer goes to standard output, everything else to standard error. In a chat, /clear forgets
the conversation, /help lists the commands, /exit or Ctrl-D leaves, Ctrl-C cuts an answer short."#;

const BATCH_EXAMPLES: &str = r#"Examples:
  paceline batch -i prompts.txt -o out.jsonl              one prompt on each line
  paceline batch -i prompts.txt -o out.jsonl --chat       each a question to the assistant
  paceline batch -i in.jsonl -o - -t 0.8 --seed 1         JSONL to standard output
  paceline batch -i in.jsonl -o out.jsonl                 again after a kill: goes on

A line of a JSONL file is an object:
  {"custom_id": "a", "prompt": "Once upon", "max_tokens": 32}
  {"custom_id": "b", "messages": [{"role": "user", "content": "Hi"}], "top_p": 0.7}
  {"custom_id": "c", "prompt_token_ids": [1, 2, 3], "logprobs": 5}
with one of prompt, prompt_token_ids, messages, and any of: n, temperature, top_k, top_p, min_p,
typical_p, repetition_penalty, presence_penalty, frequency_penalty, logit_bias, stop,
stop_token_ids, ignore_eos, min_tokens, max_tokens, seed, logprobs, prompt_logprobs,
priority (high, normal, low, batch), include_stop_str_in_output, skip_special_tokens.
What a line leaves out is taken from the flags. A line without a seed has one made from --seed
and its index.

A line may also be one of OpenAI's batch API; then all are, flags about sampling do not count, and
results are what the route would have answered, whatever the line calls the model:
  {"custom_id": "d", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": []}}

A result is a line {"custom_id", "index", "text", "token_ids", "finish_reason", "usage"}, with
"logprobs" and "prompt_logprobs" if asked for; with n > 1 there is a line for each completion, with
its number as "choice" out of "n". "index" is the line of the input, counted from 0; blank lines
are skipped.
A line that fails goes to the file of errors with its reason in "error" and does not stop the
others; the exit code is then 1. Results are written as they finish. A run that ended before its
time, by Ctrl-C or worse, goes on when the same command is given again: lines with a result, known
by custom_id or else by index, are not run again; remove the file of errors to retry those in it."#;

#[cfg(feature = "serve")]
const SERVE_EXAMPLES: &str = r#"Examples:
  paceline serve                                         the default model on port 8000
  paceline serve model.gguf --host 0.0.0.0 --api-key-file keys.txt
  paceline serve --max-queued-requests 256 --queue-timeout 20
  curl localhost:8000/v1/chat/completions -d '{"messages": [{"role": "user", "content": "Hi"}]}'

SIGTERM or Ctrl-C lets running requests finish (--shutdown-timeout); a second one ends at once.
docs/server.md lists the routes and fields."#;

const PULL_EXAMPLES: &str = r#"Examples:
  paceline pull                              the default model
  paceline pull hf:ORG/REPO:FILE.gguf        a file of a repository on the hub

Prints where the model is. Models are kept in $PACELINE_CACHE and in the hub's own cache
($HF_HOME, $HF_HUB_CACHE); $HF_TOKEN opens private repositories."#;

const INSPECT_EXAMPLES: &str = r#"Examples:
  paceline inspect
  paceline inspect model.gguf --max-model-len 2048
  paceline inspect model.gguf --json | jq .memory"#;

const SYNTH_EXAMPLES: &str = r#"Examples:
  paceline synth --like tinyllama-1.1b --type q4_0
  paceline synth --like llama-3-8b --type q8_0 --layers 4 -o four-layers.gguf
  paceline synth --like qwen3-0.6b --type bf16 --seed 7

Shapes: smollm2-135m, smollm2-360m, smollm2-1.7b, tinyllama-1.1b, llama-3.2-1b, llama-3-8b,
mistral-7b, qwen2.5-0.5b, qwen2.5-1.5b, qwen2.5-7b, qwen3-0.6b, qwen3-8b, gemma-2-2b, gemma-3-1b;
every figure can be set by hand. The file is written as it is made and needs no memory to speak
of. Its weights are random numbers of a sensible size: the model runs, and talks nonsense."#;

/// Batch inference for language models: the batch never changes an answer.
#[derive(Parser, Debug)]
#[command(name = "paceline", version, after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,

    /// Say more; twice for even more
    #[arg(short, long, global = true, display_order = 900,
          action = ArgAction::Count, conflicts_with = "quiet")]
    verbose: u8,

    /// Say nothing but results and errors
    #[arg(short, long, global = true, display_order = 901)]
    quiet: bool,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Answer a prompt, or chat
    #[command(after_help = RUN_EXAMPLES)]
    Run(RunArgs),
    /// Answer many prompts from a file
    #[command(after_help = BATCH_EXAMPLES)]
    Batch(BatchArgs),
    /// Measure speed: this machine's ceilings, batch sizes, ways of batching
    Bench(BenchArgs),
    /// Serve a model over HTTP, with OpenAI's routes
    #[cfg(feature = "serve")]
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(ServeArgs),
    /// Ask a server on this machine whether it is ready; exit code 0 if it is, 1 if not
    #[cfg(feature = "serve")]
    Health(HealthArgs),
    /// Run lines of batches from a queue that machines share
    #[cfg(feature = "nats")]
    #[command(after_help = super::worker_args::EXAMPLES)]
    Worker(WorkerArgs),
    /// Fetch a model
    #[command(after_help = PULL_EXAMPLES)]
    Pull(PullArgs),
    /// Show what a model is made of, and how many sequences fit
    #[command(after_help = INSPECT_EXAMPLES)]
    Inspect(InspectArgs),
    /// Write a model file with random weights, to measure true sizes without a download
    #[command(after_help = SYNTH_EXAMPLES)]
    Synth(SynthArgs),
}

impl Cli {
    pub(crate) fn verbosity(&self) -> Verbosity {
        let is_long = match self.command {
            Command::Batch(_) => true,
            #[cfg(feature = "serve")]
            Command::Serve(_) => true,
            #[cfg(feature = "nats")]
            Command::Worker(_) => true,
            _ => false,
        };
        match (self.quiet, self.verbose) {
            (true, _) => Verbosity::Quiet,
            (false, 0) if !is_long => Verbosity::Normal,
            (false, 0 | 1) => Verbosity::Info,
            (false, _) => Verbosity::Debug,
        }
    }
}

impl Cli {
    pub(crate) fn log_format(&self) -> LogFormat {
        match &self.command {
            #[cfg(feature = "serve")]
            Command::Serve(args) => args.log_format,
            #[cfg(feature = "nats")]
            Command::Worker(args) => args.log_format,
            _ => LogFormat::Text,
        }
    }
}

#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// What to answer; `-` reads it from standard input; without it, a chat
    pub(crate) prompt: Option<String>,

    /// Continue the text as it is, instead of putting it into the model's chat template
    #[arg(long)]
    pub(crate) raw: bool,

    /// What the assistant is told before the conversation
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    pub(crate) system: Option<String>,

    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,

    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

#[derive(Args, Debug)]
pub(crate) struct BatchArgs {
    /// Prompts: a text file with one on each line, or JSONL; `-` is standard input
    #[arg(short, long, value_name = "FILE")]
    pub(crate) input: PathBuf,

    /// Results as JSONL; `-` is standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,

    /// Where lines that fail go [default: OUTPUT with .errors before its ending; among the results
    /// if those go to standard output]
    #[arg(long, value_name = "FILE")]
    pub(crate) errors: Option<PathBuf>,

    /// Go on where an earlier run stopped: the default if the output exists
    #[arg(long, conflicts_with = "force")]
    resume: bool,

    /// Replace the output if it exists, and begin anew
    #[arg(long)]
    pub(crate) force: bool,

    /// What the lines are [default: text, but for .jsonl, .ndjson and standard input JSONL, or
    /// OpenAI's if the first line is]
    #[arg(long, value_enum)]
    pub(crate) format: Option<LineFormat>,

    /// Put plain prompts into the model's chat template
    #[arg(long)]
    pub(crate) chat: bool,

    /// What the assistant is told before each prompt
    #[arg(long, value_name = "TEXT", requires = "chat")]
    pub(crate) system: Option<String>,

    /// Write results in the order of the input
    #[arg(long)]
    pub(crate) ordered: bool,

    /// Run lines that begin alike one after another, so that the prefix cache serves them
    #[arg(long, value_name = "BOOL", default_value_t = true, num_args = 0..=1,
          default_missing_value = "true", action = ArgAction::Set)]
    pub(crate) shuffle_by_prefix: bool,

    /// Lines under way at once [default: enough to keep the engine busy]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    concurrency: Option<u32>,

    /// Let workers on this queue run the lines: nats://HOST:PORT[/NAME]
    #[cfg(feature = "nats")]
    #[arg(long, value_name = "URL")]
    pub(crate) queue: Option<paceline_jobs::nats::Address>,

    /// Answers to each prompt
    #[arg(short, value_name = "N", default_value_t = 1, help_heading = "Sampling",
          value_parser = value_parser!(u32).range(1..=128))]
    pub(crate) n: u32,

    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,

    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

impl BatchArgs {
    /// The file that errors go to, if they have one of their own.
    pub(crate) fn errors_path(&self) -> Option<PathBuf> {
        let of_output = || {
            let is_file = self.output.as_os_str() != "-"
                && self.output.metadata().is_ok_and(|metadata| metadata.is_file());
            let is_new = self.output.as_os_str() != "-" && !self.output.exists();
            (is_file || is_new).then(|| {
                let ending = self.output.extension().unwrap_or("jsonl".as_ref());
                let mut name = std::ffi::OsString::from("errors.");
                name.push(ending);
                self.output.with_extension(name)
            })
        };
        self.errors.clone().or_else(of_output)
    }

    /// Lines handed to workers at once.
    #[cfg(feature = "nats")]
    pub(crate) fn max_on_queue(&self) -> usize {
        self.concurrency.map_or(usize::MAX, |n| n as usize)
    }

    /// Lines handed to the engine at once.
    pub(crate) fn max_live(&self) -> usize {
        let busy = self.engine.max_group().saturating_mul(2);
        self.concurrency.unwrap_or(busy) as usize
    }
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineFormat {
    /// A prompt on each line
    Text,
    /// Objects with a prompt and parameters
    Jsonl,
    /// OpenAI's batch lines
    Openai,
}

#[derive(Args, Debug)]
pub(crate) struct PullArgs {
    /// `default`, or hf:ORG/REPO[:FILE]
    #[arg(default_value = "default")]
    pub(crate) model: String,

    #[command(flatten)]
    pub(crate) source: SourceArgs,
}

#[derive(Args, Debug)]
pub(crate) struct InspectArgs {
    /// `default`, a path (.gguf, .safetensors or a directory), or hf:ORG/REPO[:FILE]
    #[arg(default_value = "default")]
    pub(crate) model: String,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) source: SourceArgs,

    #[command(flatten)]
    pub(crate) memory: MemoryArgs,
}
