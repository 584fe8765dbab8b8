//! The forward pass on the CPU, as a [`Backend`].
//!
//! One step runs every row of the batch through every layer once: all sequences share one pass
//! over the weights. Memory is taken at start; a step allocates nothing.

mod apart;
mod forward;
mod team;

use std::sync::Arc;

use apart::Apart;
use paceline_cpu::ops::KvLayer;
use paceline_cpu::{ActDtype, Isa, KV_BLOCK, KvDtype};
use paceline_engine::Drafts;
use paceline_engine::backend::{Backend, BackendError, BackendLimits, Sampled};
use paceline_engine::batch::Batch;
use team::{LOGIT_ROWS, Team, Threads};

use crate::error::ModelError;
use crate::spec::ModelSpec;
use crate::weights::Weights;

/// Memory for keys and values that is taken before it is needed, where there is time for it: at
/// most, and as a share of the pool. What is used beyond that is taken as it is written to.
const BACKED_BYTES: usize = 1 << 30;
const BACKED_SHARE: usize = 4;

/// Rows for each thread from which on each takes sequences of its own through all layers: from 64
/// on, a product costs a row as much as with any number more, and nobody waits for others in each
/// op. With fewer, weights that all threads unpack cost more than waiting.
pub const ROWS_APART: u32 = 64;

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
    /// Rows for each thread from which on threads take sequences of their own through the model
    /// ([`ROWS_APART`]).
    pub rows_apart: u32,
}

/// A model on the CPU.
#[derive(Debug)]
pub struct CpuBackend {
    limits: BackendLimits,
    /// All threads.
    team: Team,
    apart: Apart,
    /// Parts of layers' keys and values whose memory was taken ahead.
    n_backed: usize,
    n_steps_apart: u64,
}

/// What guesses at next tokens cost, `most` of them for a sequence and step, as measured on the
/// default model. Larger ones have more of a step before its first row on tiles, for which weights
/// are unpacked once; other kernels spend most of their time on each row.
pub fn drafts(isa: Isa, acts: ActDtype, most: u32) -> Drafts {
    let (base_rows, tile_rows) = match (isa, acts) {
        (Isa::Amx, ActDtype::Bf16) => (16, 16),
        (Isa::Amx, ActDtype::Int12 | ActDtype::Int8) => (3, 1),
        (Isa::Vnni, ActDtype::Int8) => (14, 1),
        (Isa::Vnni, ActDtype::Int12) | (Isa::Avx512, ActDtype::Int8) => (5, 1),
        (Isa::Avx2, ActDtype::Int8) => (4, 1),
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
        let (n_blocks, max_rows) = (options.n_blocks as usize, options.max_rows as usize);
        let kv = || KvLayer::new(options.kv_dtype, n_blocks, spec.n_kv_heads, spec.head_dim);
        let limits = BackendLimits {
            n_blocks: options.n_blocks,
            block_size: KV_BLOCK as u32,
            max_rows: options.max_rows,
            max_model_len: options.max_model_len.min(spec.max_context as u32),
            n_vocab: spec.n_vocab as u32,
        };
        let kv: Vec<KvLayer> = (0..spec.n_layers).map(|_| kv()).collect();
        let apart = Apart::new(&weights, &kv, options)?;
        let team = Team::new(weights, kv, Threads::Own(options.n_threads), max_rows)?;
        Ok(CpuBackend { limits, team, apart, n_backed: 0, n_steps_apart: 0 })
    }

    /// Runs a step and hands out each sample row's logits instead of sampling them.
    pub fn logits_of(
        &mut self,
        batch: &Batch,
        mut f: impl FnMut(usize, &[f32]),
    ) -> Result<(), BackendError> {
        self.begin(batch)?;
        let (team, n_vocab) = (&mut self.team, self.limits.n_vocab as usize);
        team.run_layers(batch);
        for first in (0..batch.samples.len()).step_by(LOGIT_ROWS) {
            let last = (first + LOGIT_ROWS).min(batch.samples.len());
            let rows = team.logits(batch, first..last).chunks(n_vocab);
            rows.enumerate().for_each(|(i, logits)| f(first + i, logits));
        }
        Ok(())
    }

    /// What comes before all rows.
    fn begin(&mut self, batch: &Batch) -> Result<(), BackendError> {
        self.check(batch)?;
        for copy in &batch.copies {
            for layer in &mut self.team.kv {
                layer.copy(copy.from.0 as usize, copy.to.0 as usize, copy.n_tokens as usize);
            }
        }
        Ok(())
    }

    /// The engine promises these; a promise broken fails the step, not the process.
    fn check(&self, batch: &Batch) -> Result<(), BackendError> {
        let n_rows = batch.n_rows();
        let n_slots = u64::from(self.limits.n_blocks) * u64::from(self.limits.block_size);
        let fits = n_rows <= self.limits.max_rows as usize
            && batch.positions.len() == n_rows
            && batch.slots.len() == n_rows
            && batch.positions.iter().all(|&p| p < self.limits.max_model_len)
            && batch.tokens.iter().all(|&t| t < self.limits.n_vocab)
            && batch.slots.iter().all(|&slot| u64::from(slot) < n_slots)
            && batch.block_tables.iter().all(|block| block.0 < self.limits.n_blocks)
            && batch.samples.iter().all(|sample| (sample.row as usize) < n_rows);
        match fits {
            true => Ok(()),
            false => Err(BackendError {
                message: "the step does not fit the backend; this is a bug in the engine"
                    .to_owned(),
            }),
        }
    }

    pub fn isa(&self) -> Isa {
        self.team.cpu.isa()
    }

    pub fn n_threads(&self) -> usize {
        self.team.cpu.n_threads()
    }

    /// Steps in which each thread had sequences of its own.
    pub fn n_steps_apart(&self) -> u64 {
        self.n_steps_apart
    }

    pub fn weights(&self) -> &Weights {
        &self.team.weights
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

impl Backend for CpuBackend {
    fn limits(&self) -> BackendLimits {
        self.limits
    }

    fn submit(&mut self, batch: &Batch) -> Result<(), BackendError> {
        self.begin(batch)?;
        match self.apart.step(batch, &mut self.team) {
            true => self.n_steps_apart += 1,
            false => self.team.step(batch),
        }
        Ok(())
    }

    fn collect(&mut self, results: &mut Vec<Sampled>) -> Result<(), BackendError> {
        results.append(&mut self.team.results);
        Ok(())
    }

    /// Takes memory for keys and values, from the start of the pool, where blocks are used first.
    fn prepare(&mut self) -> bool {
        let pool: usize = self.team.kv.iter().map(KvLayer::n_bytes).sum();
        let limit = BACKED_BYTES.min(pool / BACKED_SHARE);
        if (self.n_backed + 1) * KvLayer::PART_BYTES > limit {
            return false;
        }
        let n_layers = self.team.kv.len();
        let has_part = self.team.kv[self.n_backed % n_layers].back(self.n_backed / n_layers);
        self.n_backed += 1;
        has_part
    }
}
