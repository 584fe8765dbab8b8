//! Runs token prompts through engine and backend under chosen circumstances.

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use paceline_cpu::quant::TensorType;
use paceline_cpu::{ActDtype, Isa, KvDtype};
use paceline_engine::{
    Drafts, Engine, EngineConfig, Event, EventKind, FinishReason, OutputRatio, Priority, Request,
    RequestId, SamplingParams, Stats, Token, TokenLogprob,
};
use paceline_model::Checkpoint;
use paceline_model::cpu_backend::{CpuBackend, CpuOptions};
use paceline_model::gguf::Gguf;
use paceline_model::pull::{CacheDirs, PullOptions, Silent, Source, resolve};
use paceline_model::synth::{SynthSpec, gguf_bytes};
use paceline_model::weights::Weights;

/// The circumstances of a run. None of them may change an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) isa: Isa,
    pub(crate) n_threads: usize,
    /// Rows for each thread from which on they take sequences of their own.
    pub(crate) rows_apart: u32,
    pub(crate) budget: u32,
    pub(crate) n_blocks: u32,
    /// Changes answers, but the same way in every circumstance.
    pub(crate) kv_dtype: KvDtype,
    pub(crate) prefix_cache: bool,
    /// Admit as if no sequence generated anything, so that memory runs out.
    pub(crate) reckless: bool,
    pub(crate) drafts: Drafts,
}

impl Setup {
    /// One thread, because tests run side by side: threads wait for each other by spinning, and
    /// those of two tests would be in each other's way. `check` has runs with two.
    pub(crate) fn plain() -> Setup {
        Setup {
            isa: Isa::detect(),
            n_threads: 1,
            rows_apart: u32::MAX,
            budget: 512,
            n_blocks: 512,
            kv_dtype: KvDtype::default(),
            prefix_cache: false,
            reckless: false,
            drafts: Drafts::default(),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) prompt: Vec<Token>,
    pub(crate) params: SamplingParams,
}

/// All that a sequence produced, floats as bits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Output {
    pub(crate) tokens: Vec<Token>,
    pub(crate) logprobs: Vec<Bits>,
    pub(crate) prompt_logprobs: Vec<Bits>,
    pub(crate) pooled: Vec<u32>,
    pub(crate) finish: Option<FinishReason>,
}

/// A token, the bits of its log-probability, and those of the likeliest others.
pub(crate) type Bits = (Token, u32, Vec<(Token, u32)>);

pub(crate) struct Run {
    pub(crate) engine: Engine<CpuBackend>,
    outputs: HashMap<(RequestId, u32), Output>,
    events: Vec<Event>,
}

impl Run {
    pub(crate) fn new(weights: &Arc<Weights>, setup: Setup) -> Run {
        let options = CpuOptions {
            n_threads: setup.n_threads,
            n_blocks: setup.n_blocks,
            kv_dtype: setup.kv_dtype,
            max_rows: setup.budget,
            max_model_len: 1024,
            rows_apart: setup.rows_apart,
        };
        let reckless = OutputRatio { initial: 0.0, least: 0.0, n_decay_steps: 1 };
        let config = EngineConfig {
            max_num_batched_tokens: setup.budget,
            prefix_cache: setup.prefix_cache,
            output_ratio: if setup.reckless { reckless } else { OutputRatio::default() },
            watermark_permille: if setup.reckless { 0 } else { 10 },
            drafts: setup.drafts,
            ..EngineConfig::default()
        };
        let backend = CpuBackend::new(packed_for(weights, setup.isa), options).unwrap();
        let engine = Engine::new(backend, config).unwrap();
        Run { engine, outputs: HashMap::new(), events: Vec::new() }
    }

    pub(crate) fn submit(&mut self, job: &Job) -> RequestId {
        let request = Request {
            prompt: job.prompt.clone(),
            params: Arc::new(job.params.clone()),
            priority: Priority::Normal,
            deadline_ns: None,
            tenant: 0,
            constraint: None,
        };
        self.engine.submit(request, 0).unwrap()
    }

    pub(crate) fn step(&mut self) {
        self.engine.step(0, &mut self.events);
        for event in self.events.drain(..) {
            let output = self.outputs.entry((event.request, event.index)).or_default();
            match event.kind {
                EventKind::Started { .. } => {}
                EventKind::PromptLogprob(logprob) => output.prompt_logprobs.push(bits(&logprob)),
                EventKind::Token { token, logprob } => {
                    output.tokens.push(token);
                    output.logprobs.extend(logprob.iter().map(|logprob| bits(logprob)));
                }
                EventKind::Pooled(pooled) => {
                    output.pooled.extend(pooled.iter().map(|value| value.to_bits()));
                }
                EventKind::Finished(reason) => output.finish = Some(reason),
            }
        }
    }

    /// Steps until nothing is left to do; a step limit keeps a hang from lasting.
    pub(crate) fn finish(&mut self) {
        for _ in 0..100_000 {
            if !self.engine.has_work() {
                return;
            }
            self.step();
        }
        panic!("the engine did not finish");
    }

    pub(crate) fn output(&self, request: RequestId, index: u32) -> Output {
        self.outputs.get(&(request, index)).cloned().unwrap_or_default()
    }
}

fn bits(logprob: &TokenLogprob) -> Bits {
    let top = logprob.top.iter().map(|&(token, value)| (token, value.to_bits())).collect();
    (logprob.token, logprob.logprob.to_bits(), top)
}

/// All jobs together.
pub(crate) fn together(weights: &Arc<Weights>, setup: Setup, jobs: &[Job]) -> (Vec<Output>, Stats) {
    let mut run = Run::new(weights, setup);
    let ids: Vec<RequestId> = jobs.iter().map(|job| run.submit(job)).collect();
    run.finish();
    (ids.into_iter().map(|id| run.output(id, 0)).collect(), run.engine.stats())
}

/// Each job alone in the engine.
pub(crate) fn alone(weights: &Arc<Weights>, setup: Setup, jobs: &[Job]) -> Vec<Output> {
    let mut run = Run::new(weights, setup);
    let solo = |job: &Job| {
        let id = run.submit(job);
        run.finish();
        run.output(id, 0)
    };
    jobs.iter().map(solo).collect()
}

pub(crate) fn load(checkpoint: Checkpoint) -> Arc<Weights> {
    let weights = Weights::load(Arc::new(checkpoint), Isa::detect(), ActDtype::Bf16, 2);
    Arc::new(weights.unwrap())
}

/// The same weights for another instruction set. For more than one run, pack them once before.
pub(crate) fn packed_for(weights: &Arc<Weights>, isa: Isa) -> Arc<Weights> {
    if weights.isa() == isa {
        return Arc::clone(weights);
    }
    let acts = weights.activation_dtype();
    Arc::new(Weights::load(Arc::clone(weights.checkpoint()), isa, acts, 2).unwrap())
}

/// The same weights for activations that are rounded to integers.
pub(crate) fn packed_for_ints(weights: &Weights, acts: ActDtype) -> Arc<Weights> {
    let checkpoint = Arc::clone(weights.checkpoint());
    Arc::new(Weights::load(checkpoint, weights.isa(), acts, 2).unwrap())
}

/// A small model of the architecture with random weights.
pub(crate) fn tiny(arch: &str, ty: TensorType) -> Arc<Weights> {
    let spec = SynthSpec { ty, ..SynthSpec::tiny(arch) };
    let gguf = Gguf::parse(gguf_bytes(&spec).unwrap()).unwrap();
    load(Checkpoint::from_gguf(gguf).unwrap())
}

pub(crate) fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(name)
}

/// The default model's file if this machine has it; says what is skipped if not.
pub(crate) fn default_model(test: &str) -> Option<PathBuf> {
    let dirs = CacheDirs::usual(|name| std::env::var_os(name))?;
    let options = PullOptions { offline: true, ..PullOptions::new(dirs) };
    match resolve(&Source::Default, &Silent, &options) {
        Ok(path) => Some(path),
        Err(_) => {
            // Not `eprintln`, which the test harness swallows.
            let _ = writeln!(
                std::io::stderr(),
                "skipped {test}: the default model is not on this machine; `paceline pull` gets it"
            );
            None
        }
    }
}
