//! Threads that take rows through the model together.

use std::sync::Arc;

use paceline_cpu::ops::{AttentionSeq, KvLayer, Residual, Tops};
use paceline_cpu::{ActForms, Acts, Aligned, Cpu, KV_BLOCK};
use paceline_engine::backend::Sampled;
use paceline_engine::batch::Batch;
use paceline_engine::sampler::{RowOps, Sampler};

use crate::error::ModelError;
use crate::spec::ModelSpec;
use crate::weights::{LayerWeights, Weights, forms_of};

/// Logit rows computed before they are sampled: bounds the memory logits take.
pub(super) const LOGIT_ROWS: usize = 64;

/// Threads, their working memory, and what they work on.
#[derive(Debug)]
pub(super) struct Team {
    pub(super) weights: Arc<Weights>,
    pub(super) cpu: Cpu,
    pub(super) row_ops: RowOps,
    pub(super) kv: Vec<KvLayer>,
    /// The residual stream of steps with rows enough is kept in tiles.
    pub(super) keeps_tiles: bool,
    pub(super) buffers: Buffers,
    pub(super) samplers: Vec<Sampler>,
    pub(super) tops: Tops,
    /// What was read off the rows of the last step, in the order of its samples.
    pub(super) results: Vec<Sampled>,
}

/// Who takes part: a team's own threads, the caller's included, or the caller's and guests.
#[derive(Clone, Copy, Debug)]
pub(super) enum Threads {
    Own(usize),
    Guests(usize),
}

/// The step's working memory, for `max_rows` rows.
#[derive(Debug)]
pub(super) struct Buffers {
    pub(super) residual: Residual,
    /// What a sublayer adds to it, where a norm comes in between.
    pub(super) y: Aligned<f32>,
    pub(super) qkv: [Aligned<f32>; 3],
    pub(super) attended: Aligned<f32>,
    pub(super) gate: Aligned<f32>,
    pub(super) up: Aligned<f32>,
    pub(super) acts: Acts,
    /// The residual stream after a sublayer's norm.
    pub(super) normed: Acts,
    /// What the feed-forward's last weight meets.
    pub(super) gated: Acts,
    /// Cosines and sines of each row's position; the second pair for sliding layers that differ.
    pub(super) angles: [Angles; 2],
    pub(super) seqs: Vec<AttentionSeq>,
    pub(super) is_late: Vec<bool>,
    pub(super) tables: Vec<u32>,
    /// Final hidden states of the rows that are sampled, and their logits.
    pub(super) hidden: Aligned<f32>,
    pub(super) logits: Aligned<f32>,
}

#[derive(Debug)]
pub(super) struct Angles {
    pub(super) cos: Vec<f32>,
    pub(super) sin: Vec<f32>,
}

impl Team {
    /// Takes all memory that steps of up to `max_rows` will use.
    pub(super) fn new(
        weights: Arc<Weights>,
        kv: Vec<KvLayer>,
        threads: Threads,
        max_rows: usize,
    ) -> Result<Team, ModelError> {
        let (spec, isa) = (weights.spec(), weights.isa());
        let cpu = match threads {
            Threads::Own(n) => Cpu::new(isa, n, spec.head_dim),
            Threads::Guests(n) => Cpu::for_guests(isa, n, spec.head_dim),
        };
        let cpu = cpu.map_err(|error| ModelError::Threads { message: error.to_string() })?;
        let row_ops = RowOps {
            is_sound: cpu.is_sound(),
            argmax: cpu.argmax(),
            max: cpu.max(),
            sum_exp: cpu.sum_exp(),
        };
        let n_blocks = kv.first().map_or(0, KvLayer::n_slots) / KV_BLOCK;
        Ok(Team {
            keeps_tiles: keeps_tiles(&weights, &cpu),
            samplers: (0..cpu.n_threads()).map(|_| Sampler::new(spec.n_vocab)).collect(),
            buffers: Buffers::new(spec, max_rows, n_blocks),
            tops: Tops::new(spec.d_model, spec.n_vocab),
            results: Vec::with_capacity(max_rows),
            cpu,
            row_ops,
            kv,
            weights,
        })
    }

    /// Runs a step, and reads off its rows what is asked for.
    pub(super) fn step(&mut self, batch: &Batch) {
        self.run_layers(batch);
        self.sample(batch);
    }

    pub(super) fn run_layers(&mut self, batch: &Batch) {
        self.embed(batch);
        self.place(batch);
        self.begin_layers(batch.n_rows());
        for layer in 0..self.weights.layers.len() {
            self.attention_layer(layer, batch);
            self.feed_forward(layer, batch.n_rows());
        }
    }
}

/// Whether every sublayer can add to a residual stream in tiles.
fn keeps_tiles(weights: &Weights, cpu: &Cpu) -> bool {
    let layers = &weights.layers;
    let next = layers.iter().skip(1).map(|layer| forms_of(&layer.qkv));
    let plain = |layer: &LayerWeights| {
        layer.o_bias.is_empty() && layer.post_attn_norm.is_empty() && layer.post_ffn_norm.is_empty()
    };
    layers.iter().zip(next.chain([ActForms::TILES])).all(|(layer, next)| {
        plain(layer)
            && cpu.adds_to_tiles(&layer.o, forms_of([&layer.gate, &layer.up]))
            && cpu.adds_to_tiles(&layer.down, next)
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
            residual: Residual::new(max_rows, spec.d_model),
            y: zeros(spec.d_model),
            qkv: [zeros(spec.q_dim()), zeros(spec.kv_dim()), zeros(spec.kv_dim())],
            attended: zeros(spec.q_dim()),
            gate: zeros(spec.d_ff),
            up: zeros(spec.d_ff),
            acts: Acts::new(max_rows.max(LOGIT_ROWS), widest),
            normed: Acts::new(max_rows, spec.d_model),
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
