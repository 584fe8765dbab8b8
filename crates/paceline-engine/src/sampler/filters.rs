//! top_k, top_p, min_p, typical_p over a row, without sorting the vocabulary.
//!
//! Each filter first finds a bound below which no survivor can lie; chunk maxima let most of the
//! row be skipped; only what is left is selected from and sorted. Everything is ordered by
//! (logit descending, id ascending), so equal logits are never a matter of chance.

use std::cmp::Ordering;

use crate::ids::Token;
use crate::request::SamplingParams;
use crate::sampler::ops::RowOps;

/// Elements that share one maximum.
const CHUNK: usize = 64;
/// First guess of how many candidates a cumulative filter keeps; grows until it is enough.
const FIRST_SELECTION: usize = 64;

#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) logit: f32,
    pub(super) id: Token,
}

impl Candidate {
    fn weight(self) -> f64 {
        f64::from(self.logit).exp()
    }
}

fn by_logit(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal).then(a.id.cmp(&b.id))
}

/// The tokens still in the running for one row.
#[derive(Debug)]
pub(super) struct Candidates {
    list: Vec<Candidate>,
    chunk_max: Vec<f32>,
    /// Copy of `chunk_max` that selection may reorder.
    ranked_max: Vec<f32>,
}

impl Candidates {
    pub(super) fn new(n_vocab: usize) -> Self {
        let n_chunks = n_vocab.div_ceil(CHUNK);
        Self {
            list: Vec::with_capacity(n_vocab),
            chunk_max: Vec::with_capacity(n_chunks),
            ranked_max: Vec::with_capacity(n_chunks),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Candidate> {
        self.list.iter()
    }

    /// Runs the filters over scaled logits whose maximum is 0; leaves the survivors in order.
    pub(super) fn filter(&mut self, logits: &[f32], params: &SamplingParams, ops: &RowOps) {
        self.read_chunks(logits, ops);
        let has_list = params.top_k > 0 || params.top_p < 1.0;
        if params.top_k > 0 {
            self.gather_top(logits, params.top_k as usize);
        }
        if params.top_p < 1.0 {
            let total = match params.top_k {
                0 => self.gather_nucleus(logits, params.top_p, ops),
                _ => self.total(),
            };
            self.keep_prefix(f64::from(params.top_p) * total, by_logit);
        }
        if !has_list {
            self.gather(logits, lowest_kept(params.min_p));
        }
        if params.min_p > 0.0 {
            let least = f64::from(params.min_p);
            // The maximum is 0, so the best candidate weighs 1.
            self.list.retain(|candidate| candidate.weight() >= least);
        }
        if params.typical_p < 1.0 {
            self.keep_typical(f64::from(params.typical_p));
        }
        self.list.sort_unstable_by(by_logit);
    }

    /// The `k` best, in order.
    pub(super) fn top_k(&mut self, logits: &[f32], k: usize, ops: &RowOps) {
        self.read_chunks(logits, ops);
        self.gather_top(logits, k);
        self.list.sort_unstable_by(by_logit);
    }

    /// The candidate at `point` of the cumulative distribution.
    pub(super) fn pick(&self, point: f64) -> Token {
        let mut left = point * self.total();
        let mut last = 0;
        for candidate in &self.list {
            let weight = candidate.weight();
            if weight > 0.0 {
                last = candidate.id;
                if left < weight {
                    break;
                }
                left -= weight;
            }
        }
        last
    }

    fn total(&self) -> f64 {
        self.list.iter().map(|candidate| candidate.weight()).sum()
    }

    fn read_chunks(&mut self, logits: &[f32], ops: &RowOps) {
        self.chunk_max.clear();
        self.chunk_max.extend(logits.chunks(CHUNK).map(ops.max));
    }

    /// Collects what is at least `bound`, and never -inf.
    fn gather(&mut self, logits: &[f32], bound: f32) {
        let bound = bound.max(f32::MIN);
        self.list.clear();
        for (index, chunk) in logits.chunks(CHUNK).enumerate() {
            if self.chunk_max[index] < bound {
                continue;
            }
            let first = (index * CHUNK) as Token;
            let kept = (first..).zip(chunk).filter(|(_, logit)| **logit >= bound);
            self.list.extend(kept.map(|(id, &logit)| Candidate { logit, id }));
        }
    }

    /// The `k` best, unordered. At least `k` elements reach the k-th largest chunk maximum, so
    /// nothing below it can be among the `k` best.
    fn gather_top(&mut self, logits: &[f32], k: usize) {
        let bound = if k <= self.chunk_max.len() {
            self.ranked_max.clear();
            self.ranked_max.extend_from_slice(&self.chunk_max);
            let descending = |a: &f32, b: &f32| b.total_cmp(a);
            *self.ranked_max.select_nth_unstable_by(k - 1, descending).1
        } else {
            f32::NEG_INFINITY
        };
        self.gather(logits, bound);
        if k < self.list.len() {
            self.list.select_nth_unstable_by(k - 1, by_logit);
            self.list.truncate(k);
        }
    }

    /// Collects everything the nucleus can hold and returns the weight of the whole row: elements
    /// lighter than (1 - top_p) / n of the total add up to less than what the nucleus leaves out.
    fn gather_nucleus(&mut self, logits: &[f32], top_p: f32, ops: &RowOps) -> f64 {
        let chunk_sums = logits.chunks(CHUNK).map(|chunk| f64::from((ops.sum_exp)(chunk, 0.0)));
        let total: f64 = chunk_sums.sum();
        let share = (1.0 - f64::from(top_p)) * total / logits.len() as f64;
        // Half of it, against rounding.
        self.gather(logits, (0.5 * share).ln() as f32);
        total
    }

    /// Keeps the shortest prefix in the given order whose weight reaches `target`.
    fn keep_prefix(&mut self, target: f64, order: impl Fn(&Candidate, &Candidate) -> Ordering) {
        let mut n_sorted = 0;
        let mut weight = 0.0;
        while n_sorted < self.list.len() {
            let n_next = (n_sorted * 8).max(FIRST_SELECTION).min(self.list.len());
            let rest = &mut self.list[n_sorted..];
            if n_next - n_sorted < rest.len() {
                rest.select_nth_unstable_by(n_next - n_sorted, &order);
            }
            self.list[n_sorted..n_next].sort_unstable_by(&order);
            for index in n_sorted..n_next {
                weight += self.list[index].weight();
                if weight >= target {
                    self.list.truncate(index + 1);
                    return;
                }
            }
            n_sorted = n_next;
        }
    }

    /// Keeps the tokens whose surprise is nearest the distribution's entropy.
    fn keep_typical(&mut self, typical_p: f64) {
        let total = self.total();
        let log_total = total.ln();
        let log_p = |candidate: &Candidate| f64::from(candidate.logit) - log_total;
        let entropy: f64 = self.list.iter().map(|c| -log_p(c) * c.weight() / total).sum();
        let distance = |candidate: &Candidate| (-log_p(candidate) - entropy).abs();
        self.keep_prefix(typical_p * total, |a, b| {
            distance(a).total_cmp(&distance(b)).then_with(|| by_logit(a, b))
        });
    }
}

/// A bound a little below the logit of weight `min_p`; the exact test follows.
fn lowest_kept(min_p: f32) -> f32 {
    if min_p > 0.0 { min_p.ln() - 1e-3 } else { f32::NEG_INFINITY }
}
