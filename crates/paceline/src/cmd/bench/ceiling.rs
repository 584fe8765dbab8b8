//! What a step could take at best on this machine.

use std::time::Duration;

use anyhow::Result;
use paceline::{ActDtype, Isa, Llm};
use paceline_cpu::peak::{Meter, Unit};
use paceline_model::sizing;
use paceline_model::spec::ModelSpec;

use super::figures::median;

/// Reading more than this is no slower.
const MAX_READ_BYTES: u64 = 2 << 30;
/// Share of the free memory that is taken for reading.
const READ_SHARE: u64 = 4;
const READ_BUDGET: Duration = Duration::from_millis(60);
const PEAK_BUDGET: Duration = Duration::from_millis(20);

/// The work of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Work {
    pub(super) n_bytes: f64,
    pub(super) n_ops: f64,
}

/// What a model's rows cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Costs {
    weight_bytes: f64,
    /// Multiply-adds of a row in the layers' matrices, in the head, and for each token it looks
    /// back at.
    layer_macs: f64,
    head_macs: f64,
    attention_macs: f64,
    kv_bytes_per_token: f64,
}

impl Costs {
    pub(super) fn of(llm: &Llm) -> Costs {
        let (facts, spec) = (llm.facts(), llm.spec());
        let n_tokens = facts.n_kv_blocks as usize * paceline_cpu::KV_BLOCK;
        Costs {
            kv_bytes_per_token: facts.kv_bytes as f64 / n_tokens.max(1) as f64,
            ..Costs::new(spec, facts.weight_bytes)
        }
    }

    fn new(spec: &ModelSpec, weight_bytes: usize) -> Costs {
        let (d, q, kv) = (spec.d_model as f64, spec.q_dim() as f64, spec.kv_dim() as f64);
        let n_layers = spec.n_layers as f64;
        Costs {
            weight_bytes: weight_bytes as f64,
            layer_macs: n_layers * d * (2.0 * q + 2.0 * kv + 3.0 * spec.d_ff as f64),
            head_macs: d * spec.n_vocab as f64,
            attention_macs: n_layers * 2.0 * q,
            kv_bytes_per_token: 0.0,
        }
    }

    /// One step of `batch` sequences, one token each, that have `len` tokens.
    pub(super) fn decode(&self, batch: f64, len: f64) -> Work {
        let macs = self.layer_macs + self.head_macs + len * self.attention_macs;
        Work {
            n_bytes: self.weight_bytes + batch * len * self.kv_bytes_per_token,
            n_ops: 2.0 * batch * macs,
        }
    }

    /// The prompts of `batch` sequences, `n_tokens` each, in steps of `max_rows` rows.
    pub(super) fn prefill(&self, batch: f64, n_tokens: f64, max_rows: f64) -> Work {
        let rows = batch * n_tokens;
        let n_steps = (rows / max_rows).ceil();
        // Each token looks back at half of them, on the average.
        let look_back = rows * n_tokens / 2.0 * self.attention_macs;
        Work {
            n_bytes: n_steps * self.weight_bytes + rows * self.kv_bytes_per_token,
            n_ops: 2.0 * (rows * self.layer_macs + batch * self.head_macs + look_back),
        }
    }

    pub(super) fn kv_bytes_per_token(&self) -> f64 {
        self.kv_bytes_per_token
    }
}

/// The machine at its best: bandwidth by working set, and the peak of the kernels' instructions.
/// Samples are taken beside the rounds, because the machine drifts; the medians count.
#[derive(Debug)]
pub(super) struct Ceilings {
    meter: Meter,
    pub(super) unit: Unit,
    data: Vec<u64>,
    /// Working sets in bytes, and the rates seen.
    reads: Vec<(f64, Vec<f64>)>,
    peaks: Vec<f64>,
}

impl Ceilings {
    /// For steps that read so many bytes.
    pub(super) fn new(
        (isa, acts): (Isa, ActDtype),
        n_threads: usize,
        working_sets: impl IntoIterator<Item = f64>,
    ) -> Result<Ceilings> {
        let reads: Vec<_> = working_sets.into_iter().map(|bytes| (bytes, Vec::new())).collect();
        let largest = reads.iter().map(|&(bytes, _)| bytes as u64).max().unwrap_or(0);
        let n_bytes = largest.min(MAX_READ_BYTES).min(sizing::free_bytes() / READ_SHARE);
        Ok(Ceilings {
            meter: Meter::new(n_threads)?,
            unit: Unit::of(isa, acts),
            // Not zero, so that every page is memory of its own.
            data: vec![1; n_bytes as usize / size_of::<u64>()],
            reads,
            peaks: Vec::new(),
        })
    }

    /// Takes one sample of everything.
    pub(super) fn sample(&mut self) {
        for (n_bytes, rates) in &mut self.reads {
            let n_words = (*n_bytes as usize / size_of::<u64>()).clamp(1, self.data.len().max(1));
            let words = self.data.get(..n_words).unwrap_or_default();
            rates.push(self.meter.read_bytes_per_s(words, READ_BUDGET));
        }
        self.peaks.extend(self.meter.ops_per_s(self.unit, PEAK_BUDGET));
    }

    /// Bytes a second at a working set.
    pub(super) fn read_bytes_per_s(&self, set: usize) -> f64 {
        median(self.reads[set].1.iter().copied())
    }

    pub(super) fn ops_per_s(&self) -> f64 {
        median(self.peaks.iter().copied())
    }

    /// The least time for some work whose bytes come at working set `set`'s rate.
    pub(super) fn bound(&self, work: Work, set: usize) -> Bound {
        let read_s = work.n_bytes / self.read_bytes_per_s(set);
        let compute_s = work.n_ops / self.ops_per_s();
        Bound { seconds: read_s.max(compute_s), is_reading: read_s >= compute_s }
    }
}

/// A least time, and what sets it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bound {
    pub(super) seconds: f64,
    is_reading: bool,
}

impl Bound {
    pub(super) fn by(self) -> &'static str {
        if self.is_reading { "bytes" } else { "operations" }
    }
}

/// Memory of this process; 0 where the system does not say.
pub(super) fn resident_bytes() -> i64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kilobytes = status.lines().find_map(|line| {
        line.strip_prefix("VmRSS:")?.trim().strip_suffix("kB")?.trim().parse::<i64>().ok()
    });
    kilobytes.unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs() -> Costs {
        Costs {
            weight_bytes: 1000.0,
            layer_macs: 500.0,
            head_macs: 100.0,
            attention_macs: 2.0,
            kv_bytes_per_token: 8.0,
        }
    }

    #[test]
    fn a_decode_step_reads_the_weights_once_and_every_sequence_its_own_past() {
        let work = costs().decode(4.0, 10.0);
        assert_eq!(work, Work { n_bytes: 1000.0 + 4.0 * 80.0, n_ops: 8.0 * (600.0 + 20.0) });
    }

    #[test]
    fn prompts_need_the_head_once_each() {
        let work = costs().prefill(4.0, 10.0, 16.0);
        let n_ops = 2.0 * (40.0 * 500.0 + 4.0 * 100.0 + 40.0 * 5.0 * 2.0);
        assert_eq!(work, Work { n_bytes: 3.0 * 1000.0 + 40.0 * 8.0, n_ops });
    }
}
