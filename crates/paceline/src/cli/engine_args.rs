//! Flags that say which model to load, and how to run it.

use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum, value_parser};
use paceline::{ActDtype, Batching, Error, KvDtype, Llm, LlmOptions, NUM_SPECULATIVE_TOKENS};
use paceline_model::pull::{CacheDirs, PullOptions, Source};

use super::Console;

/// Where models come from.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Model")]
pub(crate) struct SourceArgs {
    /// Use only what is on this machine already
    #[arg(long)]
    offline: bool,
}

impl SourceArgs {
    /// How to fetch a model. `HF_ENDPOINT`, `HF_TOKEN` and `HF_HUB_OFFLINE` mean what they mean to
    /// the hub's own tools.
    pub(crate) fn pull_options(&self, source: &Source) -> Result<PullOptions> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let dirs = match CacheDirs::usual(|name| std::env::var_os(name)) {
            Some(dirs) => dirs,
            // A model on this machine needs no cache.
            None if matches!(source, Source::Path(_)) => {
                CacheDirs { models: ".".into(), hub: ".".into() }
            }
            None => return Err(Error::NoCacheDir.into()),
        };
        let is_on = |value: String| !matches!(value.to_ascii_lowercase().as_str(), "0" | "false");
        Ok(PullOptions {
            hub_endpoint: variable("HF_ENDPOINT"),
            hub_token: variable("HF_TOKEN"),
            offline: self.offline || variable("HF_HUB_OFFLINE").is_some_and(is_on),
            ..PullOptions::new(dirs)
        })
    }
}

/// What decides about memory.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Engine")]
pub(crate) struct MemoryArgs {
    /// Sequences that may run at once
    #[arg(long, value_name = "N", default_value_t = 256,
          value_parser = value_parser!(u32).range(1..=65_536))]
    pub(crate) max_num_seqs: u32,

    /// KV blocks of 32 tokens [default: sized from free memory]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=1 << 26))]
    num_kv_blocks: Option<u32>,

    /// What keys and values are kept as; auto is bf16, int8 halves their memory for a small cost in
    /// quality, which adds to that of activations in int8
    #[arg(long, value_name = "TYPE", value_enum, default_value_t = KvCacheDtype::Auto)]
    kv_cache_dtype: KvCacheDtype,

    /// Longest sequence, prompt and answer together [default: the model's context]
    #[arg(long, value_name = "TOKENS", value_parser = value_parser!(u32).range(2..))]
    max_model_len: Option<u32>,
}

/// `--kv-cache-dtype`.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KvCacheDtype {
    Auto,
    #[value(alias = "float16")]
    F16,
    #[value(alias = "bfloat16")]
    Bf16,
    Int8,
}

impl From<KvCacheDtype> for KvDtype {
    fn from(dtype: KvCacheDtype) -> KvDtype {
        match dtype {
            KvCacheDtype::Auto => KvDtype::default(),
            KvCacheDtype::F16 => KvDtype::F16,
            KvCacheDtype::Bf16 => KvDtype::Bf16,
            KvCacheDtype::Int8 => KvDtype::Int8,
        }
    }
}

/// `--activation-dtype`.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ActivationDtype {
    Auto,
    #[value(alias = "bfloat16")]
    Bf16,
    Int12,
    Int8,
}

impl ActivationDtype {
    /// `None` is auto.
    pub(crate) fn chosen(self) -> Option<ActDtype> {
        match self {
            ActivationDtype::Auto => None,
            ActivationDtype::Bf16 => Some(ActDtype::Bf16),
            ActivationDtype::Int12 => Some(ActDtype::Int12),
            ActivationDtype::Int8 => Some(ActDtype::Int8),
        }
    }
}

impl MemoryArgs {
    pub(crate) fn options(&self) -> LlmOptions {
        LlmOptions {
            max_num_seqs: self.max_num_seqs,
            num_kv_blocks: self.num_kv_blocks,
            kv_cache_dtype: self.kv_cache_dtype.into(),
            max_model_len: self.max_model_len,
            ..LlmOptions::default()
        }
    }
}

/// A model and how it is run.
#[derive(Args, Clone, Debug)]
pub(crate) struct EngineArgs {
    /// `default`, a path (.gguf, .safetensors or a directory), or hf:ORG/REPO[:FILE]
    #[arg(short, long, value_name = "MODEL", default_value = "default", help_heading = "Model")]
    model: String,

    #[command(flatten)]
    source: SourceArgs,

    #[command(flatten)]
    memory: MemoryArgs,

    /// Rows (tokens) one step may compute
    #[arg(long, value_name = "TOKENS", default_value_t = 512,
          value_parser = value_parser!(u32).range(1..=32_768))]
    max_num_batched_tokens: u32,

    /// Most tokens of one prompt computed in a step; 0 is no cap
    #[arg(long, value_name = "TOKENS", default_value_t = 0)]
    long_prefill_token_threshold: u32,

    /// Compute every prompt from its start, even if it begins like an earlier one
    #[arg(long)]
    no_prefix_cache: bool,

    /// Most guesses at a sequence's next tokens, taken from its own text and other answers, that a
    /// step computes along where that pays; answers stay the same, to the bit. 0 is none
    #[arg(long, value_name = "N", default_value_t = NUM_SPECULATIVE_TOKENS,
          value_parser = value_parser!(u32).range(0..=16))]
    num_speculative_tokens: u32,

    /// What activations are rounded to where they meet quantised weights. With AMX, auto is bf16,
    /// and int12 is faster for up to 4 sequences at once. Without, auto is int8 (int12 for Q8_0 if
    /// there is no VNNI either), and int12 is more exact and slower from 4 sequences on. Answers
    /// differ between them, and never with what runs beside them
    #[arg(long, value_name = "TYPE", value_enum, default_value_t = ActivationDtype::Auto)]
    activation_dtype: ActivationDtype,

    /// Threads of the forward pass [default: one for each core]
    #[arg(long, value_name = "N", value_parser = value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,

    /// Run prompts in closed groups of this many, as classic static batching does
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=65_536))]
    max_batch_size: Option<u32>,

    /// Wait this many milliseconds for a group to fill; 0 is continuous batching, or static if
    /// --max-batch-size is given
    #[arg(long, value_name = "MS", default_value_t = 0,
          value_parser = value_parser!(u64).range(0..=3_600_000))]
    batch_window: u64,
}

impl EngineArgs {
    /// Loads the model, with a progress bar if it must be fetched, and logs what was chosen.
    pub(crate) fn load(&self, console: &Console) -> Result<Llm> {
        let source = Source::parse(&self.model)?;
        let options = LlmOptions {
            threads: self.threads.map(usize::from),
            activation_dtype: self.activation_dtype.chosen(),
            max_num_batched_tokens: self.max_num_batched_tokens,
            long_prefill_token_threshold: self.long_prefill_token_threshold,
            prefix_cache: !self.no_prefix_cache,
            batching: self.batching(),
            num_speculative_tokens: self.num_speculative_tokens,
            pull: Some(self.source.pull_options(&source)?),
            ..self.memory.options()
        };
        let llm = Llm::load_with_progress(&self.model, options, &console.download())?;
        self.log(&llm);
        Ok(llm)
    }

    /// The same with another model, if one is named.
    #[cfg(feature = "serve")]
    pub(crate) fn with_model(&self, model: Option<&str>) -> EngineArgs {
        let mut args = self.clone();
        args.model = model.map_or(args.model, str::to_owned);
        args
    }

    /// What the model was called on the command line.
    #[cfg(feature = "serve")]
    pub(crate) fn model(&self) -> &str {
        &self.model
    }

    /// The most prompts that can run at once.
    pub(crate) fn max_group(&self) -> u32 {
        self.memory.max_num_seqs.max(self.max_batch_size.unwrap_or(0))
    }

    fn batching(&self) -> Batching {
        let window = Duration::from_millis(self.batch_window);
        match (self.max_batch_size, window.as_nanos() as u64) {
            (None, 0) => Batching::Continuous,
            (Some(max_batch_size), 0) => Batching::Static { max_batch_size },
            (size, window_ns) => {
                let max_batch_size = size.unwrap_or(self.memory.max_num_seqs);
                Batching::Window { max_batch_size, window_ns }
            }
        }
    }

    fn log(&self, llm: &Llm) {
        let (facts, spec) = (llm.facts(), llm.spec());
        let name = spec.name.as_deref().unwrap_or("unnamed model");
        let n_tokens = u64::from(facts.n_kv_blocks) * paceline_cpu::KV_BLOCK as u64;
        let kernel = |(ty, kernel): (_, _)| format!("{ty} as {kernel}");
        let kernels: Vec<String> = facts.kernels.iter().map(kernel).collect();
        tracing::info!(
            "{name} ({arch}): {isa} on {threads} threads, weights {weights} MiB ({kernels}), \
             {dtype} KV pool {kv} MiB for {n_tokens} tokens, at most {seqs} sequences at once, \
             context {context}",
            kernels = kernels.join(", "),
            arch = spec.arch,
            isa = facts.isa,
            threads = facts.n_threads,
            weights = facts.weight_bytes >> 20,
            dtype = facts.kv_dtype,
            kv = facts.kv_bytes >> 20,
            seqs = self.memory.max_num_seqs,
            context = facts.max_model_len,
        );
    }
}
