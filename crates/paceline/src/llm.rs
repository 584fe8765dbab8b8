//! A loaded model and its engine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use paceline_cpu::quant::TensorType;
use paceline_cpu::{ActDtype, Isa, KV_BLOCK, KvDtype};
use paceline_engine::{Backend, Batching, Engine, EngineConfig, Stats, Token};
use paceline_model::checkpoint::Checkpoint;
use paceline_model::cpu_backend::{CpuBackend, CpuOptions, ROWS_APART, drafts, kv_block_bytes};
use paceline_model::pull::{self, CacheDirs, Progress, PullOptions, Source};
use paceline_model::sizing;
use paceline_model::spec::ModelSpec;
use paceline_model::template::{ChatInput, ChatTemplate};
use paceline_model::tokenizer::{SpecialTokens, Tokenizer};
use paceline_model::weights::Weights;

use crate::error::Error;
use crate::generation::Generation;
use crate::prompt::{GenerateParams, Input, Prompt};
use crate::session::{Session, Stream};
use crate::timed::Timed;

/// Guesses a sequence may have in a step, if nothing else is asked for.
pub const NUM_SPECULATIVE_TOKENS: u32 = 8;

/// How a model is loaded and run. `None` means: sized from the machine and the model.
#[derive(Clone, Debug)]
pub struct LlmOptions {
    pub threads: Option<usize>,
    /// The best the machine has, or what `PACELINE_ISA` says.
    pub isa: Option<Isa>,
    /// What activations are rounded to where they meet quantised weights; the fastest
    /// ([`ActDtype::fastest_for`]) if `None`. Answers differ between them.
    pub activation_dtype: Option<ActDtype>,
    /// Sequences that may run at once.
    pub max_num_seqs: u32,
    /// Rows a step may have.
    pub max_num_batched_tokens: u32,
    /// Most rows one sequence may have in a step; 0 is no cap.
    pub long_prefill_token_threshold: u32,
    /// KV blocks of 32 tokens.
    pub num_kv_blocks: Option<u32>,
    /// What keys and values are kept as.
    pub kv_cache_dtype: KvDtype,
    /// Positions of a sequence; the model's context if that is less.
    pub max_model_len: Option<u32>,
    pub prefix_cache: bool,
    pub batching: Batching,
    /// Most guesses at a sequence's next tokens that a step computes along; 0 is none. They change
    /// how soon tokens come, and never which.
    pub num_speculative_tokens: u32,
    /// Requests that may wait.
    pub max_waiting_requests: u32,
    /// Where models are kept and fetched from; the usual caches if `None`.
    pub pull: Option<PullOptions>,
}

impl Default for LlmOptions {
    fn default() -> LlmOptions {
        let engine = EngineConfig::default();
        LlmOptions {
            threads: None,
            isa: None,
            activation_dtype: None,
            max_num_seqs: engine.max_num_seqs,
            max_num_batched_tokens: engine.max_num_batched_tokens,
            long_prefill_token_threshold: engine.long_prefill_token_threshold,
            num_kv_blocks: None,
            kv_cache_dtype: KvDtype::default(),
            max_model_len: None,
            prefix_cache: true,
            batching: Batching::Continuous,
            num_speculative_tokens: NUM_SPECULATIVE_TOKENS,
            max_waiting_requests: engine.max_waiting_requests,
            pull: None,
        }
    }
}

/// The memory a model's sequences get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvPlan {
    pub dtype: KvDtype,
    /// Blocks of 32 tokens.
    pub n_blocks: u32,
    /// Bytes of a block, all layers together.
    pub block_bytes: u64,
    pub n_bytes: u64,
    /// Positions one sequence may have.
    pub max_model_len: u32,
}

impl LlmOptions {
    /// The KV pool a model of these figures would get on this machine, now.
    pub fn kv_plan(&self, spec: &ModelSpec) -> Result<KvPlan, Error> {
        let context = u32::try_from(spec.max_context).unwrap_or(u32::MAX);
        let max_model_len = self.max_model_len.unwrap_or(context).min(context);
        let dtype = self.kv_cache_dtype;
        let n_blocks = self.num_kv_blocks.unwrap_or_else(|| {
            sizing::default_kv_blocks(spec, dtype, self.max_num_seqs, max_model_len)
        });
        let block_bytes = kv_block_bytes(spec, dtype) as u64;
        let n_bytes = u64::from(n_blocks).saturating_mul(block_bytes);
        let n_free = sizing::free_bytes();
        if n_bytes > n_free {
            return Err(Error::PoolTooLarge { n_bytes, n_free });
        }
        // A sequence cannot be longer than the whole pool.
        let max_model_len = max_model_len.min(n_blocks.saturating_mul(KV_BLOCK as u32));
        Ok(KvPlan { dtype, n_blocks, block_bytes, n_bytes, max_model_len })
    }
}

/// What was chosen at start; for logs.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelFacts {
    pub path: PathBuf,
    pub isa: Isa,
    pub n_threads: usize,
    /// How the matrices of each type are multiplied.
    pub kernels: BTreeMap<TensorType, &'static str>,
    pub weight_bytes: usize,
    pub activation_dtype: ActDtype,
    pub kv_dtype: KvDtype,
    pub n_kv_blocks: u32,
    pub kv_bytes: usize,
    pub max_model_len: u32,
}

/// Raised whenever a change of the program changes the bits of answers, so that machines with
/// different versions of it do not share a queue.
pub const ARITHMETIC: u32 = 2;

impl ModelFacts {
    /// What, of the program and all its options, changes bits. The instruction set and the batch
    /// do not.
    pub fn arithmetic(&self) -> String {
        let ModelFacts { activation_dtype, kv_dtype, .. } = self;
        format!("{ARITHMETIC}, activations {activation_dtype}, keys and values {kv_dtype}")
    }
}

/// An engine, and what turns text into its tokens.
#[derive(Debug)]
pub struct LlmParts<B> {
    pub engine: Engine<B>,
    pub tokenizer: Arc<Tokenizer>,
    pub template: Option<ChatTemplate>,
}

/// A model, ready to generate.
#[derive(Debug)]
pub struct Llm {
    pub(crate) engine: Engine<Timed<CpuBackend>>,
    pub(crate) tokenizer: Arc<Tokenizer>,
    template: Option<ChatTemplate>,
    weights: Arc<Weights>,
    facts: ModelFacts,
    started: Instant,
}

impl Llm {
    /// Loads a model: `default`, a path (`.gguf`, `.safetensors` or a directory), or
    /// `hf:org/repo[:file]`. What is not on this machine is fetched.
    pub fn load(source: &str, options: LlmOptions) -> Result<Llm, Error> {
        Llm::load_with_progress(source, options, &pull::Silent)
    }

    /// [`Llm::load`], reporting downloads to `progress`.
    pub fn load_with_progress(
        source: &str,
        options: LlmOptions,
        progress: &dyn Progress,
    ) -> Result<Llm, Error> {
        let pull = options.pull.clone().map_or_else(default_pull, Ok)?;
        let path = pull::resolve(&Source::parse(source)?, progress, &pull)?;
        let checkpoint = Arc::new(Checkpoint::open(&path)?);
        let tokenizer = Arc::new(read_tokenizer(&checkpoint)?);
        let template = ChatTemplate::of_tokenizer(&tokenizer)?;
        let n_threads = options.threads.unwrap_or_else(sizing::default_threads).max(1);
        let isa = options.isa.map_or_else(Isa::from_env, Isa::require)?;
        let fastest = ActDtype::fastest_for(isa, checkpoint.usual_type());
        let acts = options.activation_dtype.unwrap_or(fastest);
        let weights = Arc::new(Weights::load(checkpoint, isa, acts, n_threads)?);
        let cpu = cpu_options(&options, weights.spec(), n_threads)?;
        let backend = CpuBackend::new(Arc::clone(&weights), cpu)?;
        let facts = ModelFacts {
            path,
            isa: backend.isa(),
            n_threads: backend.n_threads(),
            kernels: weights.kernels(),
            weight_bytes: weights.n_bytes(),
            activation_dtype: weights.activation_dtype(),
            kv_dtype: cpu.kv_dtype,
            n_kv_blocks: cpu.n_blocks,
            kv_bytes: cpu.n_blocks as usize * kv_block_bytes(weights.spec(), cpu.kv_dtype),
            max_model_len: cpu.max_model_len,
        };
        let engine = Engine::new(Timed::new(backend), engine_config(&options, (isa, acts)))?;
        let started = Instant::now();
        Ok(Llm { engine, tokenizer, template, weights, facts, started })
    }

    /// Generates for all prompts at once; the answers are in the prompts' order. A prompt that
    /// cannot be run fails the call before anything runs.
    pub fn generate_batch<P: Clone + Into<Prompt>>(
        &mut self,
        prompts: &[P],
        params: &GenerateParams,
    ) -> Result<Vec<Generation>, Error> {
        self.stream(prompts, params)?.into_generations()
    }

    /// Generates for one prompt.
    pub fn generate(
        &mut self,
        prompt: impl Into<Prompt>,
        params: &GenerateParams,
    ) -> Result<Generation, Error> {
        let mut generations = self.generate_batch(&[prompt.into()], params)?;
        Ok(generations.remove(0))
    }

    /// Generates for all prompts at once and hands out each piece of text as it comes.
    pub fn stream<P: Clone + Into<Prompt>>(
        &mut self,
        prompts: &[P],
        params: &GenerateParams,
    ) -> Result<Stream<'_>, Error> {
        Stream::new(self, prompts.iter().cloned().map(Into::into), params)
    }

    /// Manual control: an empty batch to add to and step.
    pub fn session(&mut self) -> Session<'_> {
        Session::new(self)
    }

    /// The tokens of a prompt, as they would be fed to the model.
    pub fn tokenize(&self, input: &Input) -> Result<Vec<Token>, Error> {
        match input {
            Input::Tokens(tokens) => Ok(tokens.clone()),
            Input::Text(text) => Ok(self.tokenizer.encode_prompt(text, SpecialTokens::Parse)?),
            Input::Chat(messages) => {
                let template = self.template.as_ref().ok_or(Error::NoChatTemplate)?;
                let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
                let chat = ChatInput {
                    messages,
                    add_generation_prompt: true,
                    now: now.map_or(0, |since| since.as_secs() as i64),
                    ..ChatInput::default()
                };
                let text = template.render(&chat)?;
                Ok(self.tokenizer.encode_prompt(&text, SpecialTokens::Parse)?)
            }
        }
    }

    /// Changes when waiting requests may start; what runs already goes on.
    pub fn set_batching(&mut self, batching: Batching) -> Result<(), Error> {
        Ok(self.engine.set_batching(batching)?)
    }

    /// Takes a model apart for those who drive its engine themselves, such as a server.
    pub fn into_parts(self) -> LlmParts<impl Backend + Send + 'static> {
        let Llm { engine, tokenizer, template, .. } = self;
        LlmParts { engine, tokenizer, template }
    }

    pub fn has_chat_template(&self) -> bool {
        self.template.is_some()
    }

    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    pub fn spec(&self) -> &ModelSpec {
        self.weights.spec()
    }

    pub fn facts(&self) -> &ModelFacts {
        &self.facts
    }

    /// The engine's counters.
    pub fn stats(&self) -> Stats {
        self.engine.stats()
    }

    /// Time spent in the forward pass (sampling included) since the model was loaded.
    pub fn forward_time(&self) -> Duration {
        self.engine.backend().elapsed()
    }

    /// Engine time.
    pub(crate) fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }
}

fn default_pull() -> Result<PullOptions, Error> {
    let dirs = CacheDirs::usual(|name| std::env::var_os(name)).ok_or(Error::NoCacheDir)?;
    Ok(PullOptions::new(dirs))
}

/// The tokenizer that comes with a model's files.
pub fn read_tokenizer(checkpoint: &Checkpoint) -> Result<Tokenizer, Error> {
    Ok(match (checkpoint.gguf(), checkpoint.dir()) {
        (Some(gguf), _) => Tokenizer::from_metadata(gguf.metadata())?,
        (None, dir) => Tokenizer::from_dir(dir.unwrap_or(Path::new(".")))?,
    })
}

fn cpu_options(
    options: &LlmOptions,
    spec: &ModelSpec,
    n_threads: usize,
) -> Result<CpuOptions, Error> {
    let KvPlan { dtype: kv_dtype, n_blocks, max_model_len, .. } = options.kv_plan(spec)?;
    let max_rows = options.max_num_batched_tokens;
    let rows_apart = ROWS_APART;
    Ok(CpuOptions { n_threads, n_blocks, kv_dtype, max_rows, max_model_len, rows_apart })
}

fn engine_config(options: &LlmOptions, (isa, acts): (Isa, ActDtype)) -> EngineConfig {
    EngineConfig {
        max_num_seqs: options.max_num_seqs,
        max_num_batched_tokens: options.max_num_batched_tokens,
        long_prefill_token_threshold: options.long_prefill_token_threshold,
        prefix_cache: options.prefix_cache,
        batching: options.batching,
        drafts: drafts(isa, acts, options.num_speculative_tokens),
        max_waiting_requests: options.max_waiting_requests,
        hash_key: random_key(),
        ..EngineConfig::default()
    }
}

/// A key nobody can guess: the standard library seeds its hash maps from the system's randomness.
fn random_key() -> [u8; 16] {
    use std::hash::{BuildHasher, RandomState};
    let word = || RandomState::new().hash_one(0u8).to_le_bytes();
    let mut key = [0; 16];
    key[..8].copy_from_slice(&word());
    key[8..].copy_from_slice(&word());
    key
}
