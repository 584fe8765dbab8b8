//! The sublayers, each a few ops over all rows of the step.

use std::ops::Range;

use paceline_cpu::PackedMatrix;
use paceline_cpu::ops::{
    Attention, AttentionSeq, Gate, GatedJob, LateRows, MatmulJob, NextNorm, Rope, RopeStore,
};
use paceline_cpu::quant::dequantize_row;
use paceline_engine::backend::Sampled;
use paceline_engine::batch::{Batch, SampleRow, SampleTask};
use paceline_engine::sampler::{Sampler, is_greedy};

use super::team::{Angles, LOGIT_ROWS, Team};
use crate::spec::Activation;
use crate::weights::forms_of;

impl Team {
    /// Token embeddings into the residual stream.
    pub(super) fn embed(&mut self, batch: &Batch) {
        let (table, spec) = (self.weights.embedding(), self.weights.spec());
        let row_bytes = table.data.len() / table.rows;
        let x = self.buffers.residual.begin(batch.n_rows());
        self.cpu.for_each_row(x, spec.d_model, |row, out| {
            let at = batch.tokens[row] as usize * row_bytes;
            dequantize_row(table.ty, &table.data[at..at + row_bytes], out);
            if spec.embed_scale != 1.0 {
                out.iter_mut().for_each(|x| *x *= spec.embed_scale);
            }
        });
    }

    /// What depends on the rows' places alone: rope angles and block tables.
    pub(super) fn place(&mut self, batch: &Batch) {
        let rope = &self.weights.spec().rope;
        let local = rope.local_inv_freq.as_deref();
        for (angles, inv_freq) in
            self.buffers.angles.iter_mut().zip([Some(&rope.inv_freq[..]), local])
        {
            if let Some(inv_freq) = inv_freq {
                angles.fill(&batch.positions, inv_freq, rope.magnitude);
            }
        }
        let buffers = &mut self.buffers;
        buffers.tables.clear();
        buffers.tables.extend(batch.block_tables.iter().map(|block| block.0));
        buffers.seqs.clear();
        buffers.seqs.extend(batch.seqs.iter().map(|seq| AttentionSeq {
            first_row: seq.rows.start as usize,
            n_rows: seq.rows.len(),
            first_block: seq.blocks.start as usize,
            n_blocks: seq.blocks.len(),
        }));
        let n_heads = self.weights.spec().n_heads;
        self.cpu.find_late_rows(&buffers.seqs, n_heads, &mut buffers.is_late);
    }

    /// The first norm, and the residual stream as the layers will add to it.
    pub(super) fn begin_layers(&mut self, n_rows: usize) {
        let (spec, weights) = (self.weights.spec(), &self.weights.layers[0]);
        let (cpu, buffers) = (&mut self.cpu, &mut self.buffers);
        buffers.normed.shape(n_rows, spec.d_model, forms_of(&weights.qkv));
        let x = buffers.residual.rows_mut();
        cpu.norm_acts(x, &weights.attn_norm, spec.norm_eps, &mut buffers.normed);
        if self.keeps_tiles {
            cpu.keep_in_tiles(&mut buffers.residual);
        }
    }

    pub(super) fn attention_layer(&mut self, layer: usize, batch: &Batch) {
        let (spec, weights) = (self.weights.spec(), &self.weights.layers[layer]);
        let (cpu, buffers, kv) = (&mut self.cpu, &mut self.buffers, &mut self.kv[layer]);
        let n_rows = batch.n_rows();
        let (q_width, kv_width) = (spec.q_dim(), spec.kv_dim());
        let [q, k, v] = &mut buffers.qkv;
        let (q, k, v) =
            (&mut q[..n_rows * q_width], &mut k[..n_rows * kv_width], &mut v[..n_rows * kv_width]);

        let [wq, wk, wv] = &weights.qkv;
        cpu.matmul(&buffers.normed, [into(wq, q), into(wk, k), into(wv, v)]);

        let window = spec.windows[layer];
        let is_local = window.is_some() && spec.rope.local_inv_freq.is_some();
        let angles = &buffers.angles[usize::from(is_local)];
        let angles = Rope { cos: &angles.cos, sin: &angles.sin, dim: spec.rope.dim };
        let rope = RopeStore {
            queries: q,
            keys: k,
            values: v,
            rope: angles,
            biases: weights.qkv_bias.each_ref().map(Vec::as_slice),
            head_norms: weights.head_norms.each_ref().map(Vec::as_slice),
            norm_eps: spec.norm_eps,
            slots: &batch.slots,
            is_late: &buffers.is_late,
        };
        let late_rope = if rope.leaves_late_rows() { angles } else { Rope::default() };
        cpu.rope_store(rope, kv);

        let attended = &mut buffers.attended[..n_rows * q_width];
        let attention = Attention {
            queries: q,
            out: attended,
            positions: &batch.positions,
            seqs: &buffers.seqs,
            tables: &buffers.tables,
            n_heads: spec.n_heads,
            scale: spec.attn_scale,
            softcap: spec.attn_softcap,
            window,
            late: LateRows {
                keys: k,
                values: v,
                slots: &batch.slots,
                is_late: &buffers.is_late,
                rope: late_rope,
            },
        };
        cpu.expect_matmul([&weights.o]);
        cpu.attention(attention, kv);
        buffers.acts.shape(n_rows, q_width, forms_of([&weights.o]));
        cpu.acts_from(attended, &mut buffers.acts);
        self.add_sublayer(n_rows, layer, Sublayer::Attention);
    }

    pub(super) fn feed_forward(&mut self, layer: usize, n_rows: usize) {
        let (spec, weights) = (self.weights.spec(), &self.weights.layers[layer]);
        let (cpu, buffers) = (&mut self.cpu, &mut self.buffers);
        let kind = match spec.activation {
            Activation::Silu => Gate::Silu,
            Activation::GeluTanh => Gate::GeluTanh,
        };
        buffers.gated.shape(n_rows, spec.d_ff, forms_of([&weights.down]));
        let job = GatedJob {
            weights: [&weights.gate, &weights.up],
            kind,
            products: [&mut buffers.gate, &mut buffers.up],
            out: &mut buffers.gated,
        };
        cpu.expect_matmul([&weights.down]);
        cpu.gated_matmul(&buffers.normed, job);
        self.add_sublayer(n_rows, layer, Sublayer::FeedForward);
    }

    /// Multiplies the sublayer's last weight with its activations and adds the result to the
    /// residual stream, through a norm where the model has one there; then applies the norm of the
    /// sublayer that follows.
    fn add_sublayer(&mut self, n_rows: usize, layer: usize, sublayer: Sublayer) {
        let (spec, weights) = (self.weights.spec(), &self.weights.layers[layer]);
        let (cpu, buffers) = (&mut self.cpu, &mut self.buffers);
        let after = self.weights.layers.get(layer + 1);
        let (acts, weight, bias, norm, next) = match sublayer {
            Sublayer::Attention => {
                cpu.expect_gated_matmul([&weights.gate, &weights.up]);
                let next = (&weights.ffn_norm, forms_of([&weights.gate, &weights.up]));
                let norm = &weights.post_attn_norm;
                (&buffers.acts, &weights.o, &weights.o_bias[..], norm, Some(next))
            }
            Sublayer::FeedForward => {
                match after {
                    Some(next) => cpu.expect_matmul(next.qkv.each_ref()),
                    None => cpu.expect_matmul([&self.weights.head]),
                }
                let next = after.map(|next| (&next.attn_norm, forms_of(&next.qkv)));
                (&buffers.gated, &weights.down, &[][..], &weights.post_ffn_norm, next)
            }
        };
        let next = next.map(|(weight, forms)| {
            buffers.normed.shape(n_rows, spec.d_model, forms);
            NextNorm { weight, eps: spec.norm_eps, out: &mut buffers.normed }
        });
        if bias.is_empty() && norm.is_empty() {
            return cpu.add_to_residual(acts, weight, &mut buffers.residual, next);
        }
        let (x, y) = (buffers.residual.rows_mut(), &mut buffers.y[..n_rows * spec.d_model]);
        if norm.is_empty() {
            cpu.matmul(acts, [MatmulJob { weight, out: x, add: true }]);
            cpu.add_bias(x, bias);
        } else {
            cpu.matmul(acts, [into(weight, y)]);
            if !bias.is_empty() {
                cpu.add_bias(y, bias);
            }
            cpu.add_normed(x, y, norm, spec.norm_eps);
        }
        if let Some(next) = next {
            cpu.norm_acts(x, next.weight, next.eps, next.out);
        }
    }

    /// What is read off the rows: tokens off their logits, or their hidden states.
    pub(super) fn sample(&mut self, batch: &Batch) {
        self.results.clear();
        self.results.resize(batch.samples.len(), Sampled::default());
        let mut first = 0;
        while first < batch.samples.len() {
            let range = first..first + n_alike(&batch.samples[first..]);
            first = range.end;
            match batch.samples[range.start].task {
                SampleTask::Hidden => self.read_hidden(batch, range),
                SampleTask::Next | SampleTask::Score(_) => self.read_logits(batch, range),
            }
        }
    }

    fn read_logits(&mut self, batch: &Batch, range: Range<usize>) {
        self.see_head(batch, range.clone());
        if self.read_tops(batch, range.clone()) {
            return;
        }
        self.multiply_head(range.len());
        let n_vocab = self.weights.spec().n_vocab;
        let logits = &mut self.buffers.logits[..range.len() * n_vocab];
        let (results, row_ops) = (&mut self.results[range.clone()], &self.row_ops);
        self.cpu.for_each_row_with(
            logits,
            results,
            &mut self.samplers,
            |i, logits, out, sampler| {
                let sample = &batch.samples[range.start + i];
                sampler.sample(logits, sample, batch.history_of(sample), row_ops, out);
            },
        );
    }

    /// Tokens of rows that the head sees and that are all greedy, without their logits; false if it
    /// must be with them.
    fn read_tops(&mut self, batch: &Batch, range: Range<usize>) -> bool {
        // Logits that differ may be the same after a cap.
        let is_capped = self.weights.spec().final_softcap.is_some();
        if is_capped || !batch.samples[range.clone()].iter().all(is_greedy) {
            return false;
        }
        let head = &self.weights.head;
        if !self.cpu.find_tops(&self.buffers.acts, head, &mut self.tops) {
            return false;
        }
        for (result, top) in self.results[range].iter_mut().zip(self.tops.found()) {
            let place = (top.is_sound && top.value.is_finite()).then_some(top.place);
            *result = Sampler::greedy(place);
        }
        true
    }

    /// Hidden states after the last norm, which the head would see.
    fn read_hidden(&mut self, batch: &Batch, range: Range<usize>) {
        let n = self.gather_hidden(batch, range.clone());
        let (spec, weights) = (self.weights.spec(), &self.weights);
        let (cpu, buffers) = (&mut self.cpu, &mut self.buffers);
        // The residual stream has been read; what is added to it is free.
        let normed = &mut buffers.y[..n];
        normed.fill(0.0);
        cpu.add_normed(normed, &mut buffers.hidden[..n], &weights.output_norm, spec.norm_eps);
        for (result, row) in self.results[range].iter_mut().zip(normed.chunks(spec.d_model)) {
            result.hidden.extend_from_slice(row);
        }
    }

    /// Copies the residual stream of the sampled rows side by side; returns how many values.
    fn gather_hidden(&mut self, batch: &Batch, range: Range<usize>) -> usize {
        let (d, buffers) = (self.weights.spec().d_model, &mut self.buffers);
        let (n, samples) = (range.len() * d, &batch.samples[range]);
        let (hidden, residual) = (&mut buffers.hidden[..n], &buffers.residual);
        self.cpu.for_each_row(hidden, d, |i, row| residual.copy_row(samples[i].row as usize, row));
        n
    }

    /// Makes what the head sees of samples `range` of the batch.
    fn see_head(&mut self, batch: &Batch, range: Range<usize>) {
        let n = range.len();
        let n_hidden = self.gather_hidden(batch, range);
        let (spec, buffers) = (self.weights.spec(), &mut self.buffers);
        buffers.acts.shape(n, spec.d_model, self.weights.head.act_forms());
        let (hidden, norm) = (&buffers.hidden[..n_hidden], &self.weights.output_norm);
        self.cpu.norm_acts(hidden, norm, spec.norm_eps, &mut buffers.acts);
    }

    /// Logits of samples `range` of the batch.
    pub(super) fn logits(&mut self, batch: &Batch, range: Range<usize>) -> &[f32] {
        let n = range.len();
        self.see_head(batch, range);
        self.multiply_head(n)
    }

    /// Logits of the `n` rows that the head sees.
    fn multiply_head(&mut self, n: usize) -> &[f32] {
        let (spec, head) = (self.weights.spec(), &self.weights.head);
        let (cpu, buffers) = (&mut self.cpu, &mut self.buffers);
        let logits = &mut buffers.logits[..n * spec.n_vocab];
        cpu.matmul(&buffers.acts, [into(head, logits)]);
        if let Some(cap) = spec.final_softcap {
            cpu.softcap(logits, cap);
        }
        logits
    }
}

/// How many of the first samples read the same kind of thing, and fit the buffers. A sequence's
/// samples are side by side, so that prompts to be pooled split the others once or twice at most.
fn n_alike(samples: &[SampleRow]) -> usize {
    let is_hidden = |sample: &SampleRow| sample.task == SampleTask::Hidden;
    let first = samples.first().is_some_and(is_hidden);
    samples.iter().take(LOGIT_ROWS).take_while(|sample| is_hidden(sample) == first).count()
}

#[derive(Clone, Copy)]
enum Sublayer {
    Attention,
    FeedForward,
}

fn into<'a>(weight: &'a PackedMatrix, out: &'a mut [f32]) -> MatmulJob<'a> {
    MatmulJob { weight, out, add: false }
}

impl Angles {
    fn fill(&mut self, positions: &[u32], inv_freq: &[f32], magnitude: f32) {
        let n = inv_freq.len();
        for (row, &position) in positions.iter().enumerate() {
            for (i, &frequency) in inv_freq.iter().enumerate() {
                // In f64, so that far positions keep their angle.
                let (sin, cos) = (f64::from(position) * f64::from(frequency)).sin_cos();
                self.cos[row * n + i] = cos as f32 * magnitude;
                self.sin[row * n + i] = sin as f32 * magnitude;
            }
        }
    }
}
