//! The forward pass on the CPU, as a [`Backend`].
//!
//! One step runs every row of the batch through every layer once: all sequences share one pass
//! over the weights. Memory is taken at start; a step allocates nothing.

mod forward;

use std::sync::Arc;

use paceline_cpu::ops::{AttentionSeq, KvLayer, Top};
use paceline_cpu::{ActDtype, Acts, Aligned, Cpu, Isa, KV_BLOCK, KvDtype};
use paceline_engine::Drafts;
use paceline_engine::backend::{Backend, BackendError, BackendLimits, Sampled};
use paceline_engine::batch::Batch;
use paceline_engine::sampler::{RowOps, Sampler};

use crate::error::ModelError;
use crate::spec::ModelSpec;
use crate::weights::Weights;

/// Logit rows computed before they are sampled: bounds the memory logits take.
const LOGIT_ROWS: usize = 64;

/// Memory for keys and values that is taken before it is needed, where there is time for it: at
/// most, and as a share of the pool. What is used beyond that is taken as it is written to.
const BACKED_BYTES: usize = 1 << 30;
const BACKED_SHARE: usize = 4;

/// How the backend is sized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuOptions {
    pub n_threads: usize,
    /// KV blocks of 32 tokens.
    pub n_blocks: u32,
    /// What keys and values are kept as.
    pub kv_dtype: KvDtype,
    /// Rows of a step.
    pub max_rows: u32,
    /// Positions of a sequence; at most the model's context.
    pub max_model_len: u32,
}

/// A model on the CPU.
#[derive(Debug)]
pub struct CpuBackend {
    weights: Arc<Weights>,
    limits: BackendLimits,
    cpu: Cpu,
    row_ops: RowOps,
    kv: Vec<KvLayer>,
    /// Parts of layers' keys and values whose memory was taken ahead.
    n_backed: usize,
    buffers: Buffers,
    samplers: Vec<Sampler>,
    tops: [Top; LOGIT_ROWS],
    results: Vec<Sampled>,
}

/// The step's working memory, for `max_rows` rows.
#[derive(Debug)]
struct Buffers {
    /// The residual stream, `[rows][d_model]`.
    x: Aligned<f32>,
    /// What a sublayer adds to it, where a norm comes in between.
    y: Aligned<f32>,
    qkv: [Aligned<f32>; 3],
    attended: Aligned<f32>,
    gate: Aligned<f32>,
    up: Aligned<f32>,
    acts: Acts,
    /// What the feed-forward's last weight meets.
    gated: Acts,
    /// Cosines and sines of each row's position; the second pair for sliding layers that differ.
    angles: [Angles; 2],
    seqs: Vec<AttentionSeq>,
    is_late: Vec<bool>,
    tables: Vec<u32>,
    /// Final hidden states of the rows that are sampled, and their logits.
    hidden: Aligned<f32>,
    logits: Aligned<f32>,
}

#[derive(Debug)]
struct Angles {
    cos: Vec<f32>,
    sin: Vec<f32>,
}

/// What guesses at next tokens cost, `most` of them for a sequence and step, as measured on the
/// default model. Larger ones have more of a step before its first row on tiles, for which weights
/// are unpacked once; other kernels spend most of their time on each row.
pub fn drafts(isa: Isa, acts: ActDtype, most: u32) -> Drafts {
    let (base_rows, tile_rows) = match (isa, acts) {
        (Isa::Amx, ActDtype::Bf16) => (16, 16),
        (Isa::Amx, ActDtype::Int12) => (3, 1),
        (Isa::Avx512, ActDtype::Int12) | (Isa::Avx2, ActDtype::Bf16) => (2, 1),
        _ => (1, 1),
    };
    Drafts { most, base_rows, tile_rows }
}

impl CpuBackend {
    /// Takes all memory the steps will use.
    pub fn new(weights: Arc<Weights>, options: CpuOptions) -> Result<CpuBackend, ModelError> {
        let spec = weights.spec();
        check_supported(spec)?;
        let cpu = Cpu::new(weights.isa(), options.n_threads, spec.head_dim)
            .map_err(|error| ModelError::Threads { message: error.to_string() })?;
        let n_blocks = options.n_blocks as usize;
        let kv = (0..spec.n_layers)
            .map(|_| KvLayer::new(options.kv_dtype, n_blocks, spec.n_kv_heads, spec.head_dim))
            .collect();
        let limits = BackendLimits {
            n_blocks: options.n_blocks,
            block_size: KV_BLOCK as u32,
            max_rows: options.max_rows,
            max_model_len: options.max_model_len.min(spec.max_context as u32),
            n_vocab: spec.n_vocab as u32,
        };
        let row_ops = RowOps {
            is_sound: cpu.is_sound(),
            argmax: cpu.argmax(),
            max: cpu.max(),
            sum_exp: cpu.sum_exp(),
        };
        let samplers = (0..cpu.n_threads()).map(|_| Sampler::new(spec.n_vocab)).collect();
        let buffers = Buffers::new(spec, options.max_rows as usize, n_blocks);
        Ok(CpuBackend {
            limits,
            cpu,
            row_ops,
            kv,
            n_backed: 0,
            buffers,
            samplers,
            tops: [Top::default(); LOGIT_ROWS],
            results: Vec::with_capacity(options.max_rows as usize),
            weights,
        })
    }

    /// Runs a step and hands out each sample row's logits instead of sampling them.
    pub fn logits_of(
        &mut self,
        batch: &Batch,
        mut f: impl FnMut(usize, &[f32]),
    ) -> Result<(), BackendError> {
        self.run_layers(batch)?;
        let n_vocab = self.limits.n_vocab as usize;
        for first in (0..batch.samples.len()).step_by(LOGIT_ROWS) {
            let last = (first + LOGIT_ROWS).min(batch.samples.len());
            let rows = self.logits(batch, first..last).chunks(n_vocab);
            rows.enumerate().for_each(|(i, logits)| f(first + i, logits));
        }
        Ok(())
    }

    fn run_layers(&mut self, batch: &Batch) -> Result<(), BackendError> {
        self.check(batch)?;
        self.copy_blocks(batch);
        self.embed(batch);
        self.place(batch);
        for layer in 0..self.weights.layers.len() {
            self.attention_layer(layer, batch);
            self.feed_forward(layer, batch.n_rows());
        }
        Ok(())
    }

    pub fn isa(&self) -> Isa {
        self.cpu.isa()
    }

    pub fn n_threads(&self) -> usize {
        self.cpu.n_threads()
    }

    pub fn weights(&self) -> &Weights {
        &self.weights
    }
}

/// Bytes of keys and values (and their scales) one block of 32 tokens takes in all layers.
pub fn kv_block_bytes(spec: &ModelSpec, dtype: KvDtype) -> usize {
    spec.n_layers * spec.n_kv_heads * 2 * dtype.page_bytes(spec.head_dim)
}

fn check_supported(spec: &ModelSpec) -> Result<(), ModelError> {
    if spec.head_dim.is_multiple_of(16) {
        return Ok(());
    }
    Err(ModelError::BadFigure {
        what: "the head size",
        found: spec.head_dim.to_string(),
        expected: "a multiple of 16 (the CPU backend's kernels need it)".to_owned(),
    })
}

impl Buffers {
    fn new(spec: &ModelSpec, max_rows: usize, n_blocks: usize) -> Buffers {
        let zeros = |width: usize| Aligned::zeros(max_rows * width);
        let widest = spec.d_model.max(spec.q_dim());
        let angles = || {
            let n = max_rows * spec.rope.dim / 2;
            Angles { cos: vec![0.0; n], sin: vec![0.0; n] }
        };
        Buffers {
            x: zeros(spec.d_model),
            y: zeros(spec.d_model),
            qkv: [zeros(spec.q_dim()), zeros(spec.kv_dim()), zeros(spec.kv_dim())],
            attended: zeros(spec.q_dim()),
            gate: zeros(spec.d_ff),
            up: zeros(spec.d_ff),
            acts: Acts::new(max_rows.max(LOGIT_ROWS), widest),
            gated: Acts::new(max_rows, spec.d_ff),
            angles: [angles(), angles()],
            seqs: Vec::with_capacity(max_rows),
            is_late: Vec::with_capacity(max_rows),
            tables: Vec::with_capacity(n_blocks),
            hidden: Aligned::zeros(LOGIT_ROWS * spec.d_model),
            logits: Aligned::zeros(LOGIT_ROWS * spec.n_vocab),
        }
    }
}

impl Backend for CpuBackend {
    fn limits(&self) -> BackendLimits {
        self.limits
    }

    fn submit(&mut self, batch: &Batch) -> Result<(), BackendError> {
        self.run_layers(batch)?;
        self.sample(batch);
        Ok(())
    }

    fn collect(&mut self, results: &mut Vec<Sampled>) -> Result<(), BackendError> {
        results.append(&mut self.results);
        Ok(())
    }

    /// Takes memory for keys and values, from the start of the pool, where blocks are used first.
    fn prepare(&mut self) -> bool {
        let pool: usize = self.kv.iter().map(KvLayer::n_bytes).sum();
        let limit = BACKED_BYTES.min(pool / BACKED_SHARE);
        if (self.n_backed + 1) * KvLayer::PART_BYTES > limit {
            return false;
        }
        let n_layers = self.kv.len();
        let has_part = self.kv[self.n_backed % n_layers].back(self.n_backed / n_layers);
        self.n_backed += 1;
        has_part
    }
}
