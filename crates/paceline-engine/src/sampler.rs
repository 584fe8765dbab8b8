//! From one row of logits to one token.
//!
//! Owns the arithmetic of sampling and its scratch memory; one [`Sampler`] per worker thread.
//! Knows nothing of batches, sequences or the model: a row in, a token out. The result depends on
//! the row, its parameters, its history, and (seed, position), and on nothing else.
//!
//! Order: log-probabilities are read off the model's own distribution; then mask and logit bias,
//! penalties, `min_tokens`, temperature; then top_k, top_p, min_p, typical_p, each over what the
//! one before left; then one random number picks.

mod adjust;
mod filters;
mod ops;
mod params;
mod rng;
#[cfg(test)]
mod tests;

use crate::backend::{SampleFailure, Sampled};
use crate::batch::{SampleRow, SampleTask};
use crate::ids::Token;
use crate::request::SamplingParams;

use adjust::Adjuster;
use filters::Candidates;

pub use ops::RowOps;
pub use params::ParamError;
pub use rng::{derive_seed, uniform};

/// Temperatures below this are greedy: dividing by them says nothing more and overflows.
const MIN_TEMPERATURE: f32 = 1e-5;

/// Elements whose weights are summed at once when the whole vocabulary is sampled from.
const CHUNK: usize = 256;

/// Scratch memory for sampling rows of one vocabulary.
#[derive(Debug)]
pub struct Sampler {
    adjuster: Adjuster,
    candidates: Candidates,
    /// The model's own logits, kept while `logits` is changed in place.
    raw: Vec<f32>,
    chunk_sums: Vec<f64>,
}

impl Sampler {
    pub fn new(n_vocab: usize) -> Self {
        Self {
            adjuster: Adjuster::new(n_vocab),
            candidates: Candidates::new(n_vocab),
            raw: Vec::with_capacity(n_vocab),
            chunk_sums: Vec::with_capacity(n_vocab.div_ceil(CHUNK)),
        }
    }

    /// Fills `out` with the result of one sample row. `logits` is used as working memory;
    /// `history` is the row's own part of the batch's.
    pub fn sample(
        &mut self,
        logits: &mut [f32],
        row: &SampleRow,
        history: &[Token],
        ops: &RowOps,
        out: &mut Sampled,
    ) {
        out.token = 0;
        out.logprob = f32::NAN;
        out.top.clear();
        out.hidden.clear();
        out.failure = None;
        let result = match row.task {
            SampleTask::Next => self.next(logits, row, history, ops, out),
            SampleTask::Score(token) => self.score(logits, row, token, ops, out),
            // A backend that can do it does not ask for logits first.
            SampleTask::Hidden => Err(SampleFailure::NoHiddenStates),
        };
        if let Err(failure) = result {
            *out = Sampled { logprob: f32::NAN, failure: Some(failure), ..Sampled::default() };
        }
    }

    /// The result of a row that [`is_greedy`]: the place of its largest logit, or none where its
    /// logits are not sound.
    pub fn greedy(place: Option<Token>) -> Sampled {
        let failure = place.is_none().then_some(SampleFailure::NotFinite);
        let token = place.unwrap_or_default();
        Sampled { token, logprob: f32::NAN, failure, ..Sampled::default() }
    }

    fn next(
        &mut self,
        logits: &mut [f32],
        row: &SampleRow,
        history: &[Token],
        ops: &RowOps,
        out: &mut Sampled,
    ) -> Result<(), SampleFailure> {
        check(logits, ops)?;
        let Some(n_top) = row.params.logprobs else {
            out.token = self.choose(logits, row, history, ops)?;
            return Ok(());
        };
        let log_sum = self.read_top(logits, n_top, ops, out)?;
        self.raw.clear();
        self.raw.extend_from_slice(logits);
        out.token = self.choose(logits, row, history, ops)?;
        out.logprob = self.raw[out.token as usize] - log_sum;
        Ok(())
    }

    fn score(
        &mut self,
        logits: &[f32],
        row: &SampleRow,
        token: Token,
        ops: &RowOps,
        out: &mut Sampled,
    ) -> Result<(), SampleFailure> {
        check(logits, ops)?;
        let n_top = row.params.prompt_logprobs.unwrap_or(0);
        let log_sum = self.read_top(logits, n_top, ops, out)?;
        out.token = token;
        out.logprob = logits.get(token as usize).copied().unwrap_or(f32::NEG_INFINITY) - log_sum;
        Ok(())
    }

    /// Reports the `n_top` likeliest tokens; returns the log of the distribution's normaliser.
    fn read_top(
        &mut self,
        logits: &[f32],
        n_top: u32,
        ops: &RowOps,
        out: &mut Sampled,
    ) -> Result<f32, SampleFailure> {
        let max = (ops.max)(logits);
        if max == f32::NEG_INFINITY {
            return Err(SampleFailure::NotFinite);
        }
        let log_sum = max + (ops.sum_exp)(logits, max).ln();
        if n_top > 0 {
            self.candidates.top_k(logits, n_top as usize, ops);
            let top = self.candidates.iter();
            out.top.extend(top.map(|candidate| (candidate.id, candidate.logit - log_sum)));
        }
        Ok(log_sum)
    }

    fn choose(
        &mut self,
        logits: &mut [f32],
        row: &SampleRow,
        history: &[Token],
        ops: &RowOps,
    ) -> Result<Token, SampleFailure> {
        self.adjuster.adjust(logits, row, history);
        let best = (ops.argmax)(logits);
        let max = logits[best];
        let params = &*row.params;
        let is_restricted = row.mask.is_some() || row.n_generated < params.min_tokens;
        if max == f32::NEG_INFINITY && is_restricted {
            return Err(SampleFailure::NothingAllowed);
        }
        if !max.is_finite() {
            return Err(SampleFailure::NotFinite);
        }
        if params.temperature < MIN_TEMPERATURE {
            return Ok(best as Token);
        }
        let scale = params.temperature.recip();
        for logit in &mut *logits {
            *logit = (*logit - max) * scale;
        }
        let point = uniform(row.seed, row.position);
        if is_filtered(params) {
            self.candidates.filter(logits, params, ops);
            Ok(self.candidates.pick(point))
        } else {
            Ok(self.pick_from_all(logits, point, ops))
        }
    }

    /// Inverse of the cumulative distribution over the whole row, whose maximum is 0. Chunk sums
    /// come from the backend's vectorised function; only the chunk that is hit is walked.
    fn pick_from_all(&mut self, logits: &[f32], point: f64, ops: &RowOps) -> Token {
        self.chunk_sums.clear();
        let chunks = logits.chunks(CHUNK);
        self.chunk_sums.extend(chunks.map(|chunk| f64::from((ops.sum_exp)(chunk, 0.0))));
        let mut left = point * self.chunk_sums.iter().sum::<f64>();
        let mut hit = 0;
        for (index, &sum) in self.chunk_sums.iter().enumerate() {
            if sum > 0.0 {
                hit = index;
                if left < sum {
                    break;
                }
                left -= sum;
            }
        }
        let start = hit * CHUNK;
        let chunk = &logits[start..logits.len().min(start + CHUNK)];
        (start + pick_in_chunk(chunk, left / self.chunk_sums[hit])) as Token
    }
}

/// Whether all that is asked for is the place of the largest logit, as the model has it.
pub fn is_greedy(row: &SampleRow) -> bool {
    let params = &*row.params;
    let is_as_it_is = row.mask.is_none()
        && params.logit_bias.is_empty()
        && !params.has_penalties()
        && row.n_generated >= params.min_tokens;
    let is_place = params.temperature < MIN_TEMPERATURE && params.logprobs.is_none();
    row.task == SampleTask::Next && is_as_it_is && is_place
}

/// Rounding may leave `point` a hair beyond the end: the last token that can be chosen is then it.
fn pick_in_chunk(chunk: &[f32], point: f64) -> usize {
    let total: f64 = chunk.iter().map(|x| f64::from(x.exp())).sum();
    let mut left = point * total;
    let mut last = 0;
    for (index, x) in chunk.iter().enumerate() {
        let weight = f64::from(x.exp());
        if weight > 0.0 {
            last = index;
            if left < weight {
                break;
            }
            left -= weight;
        }
    }
    last
}

fn is_filtered(params: &SamplingParams) -> bool {
    params.top_k > 0 || params.top_p < 1.0 || params.min_p > 0.0 || params.typical_p < 1.0
}

/// A failure where any logit is NaN or +inf.
fn check(logits: &[f32], ops: &RowOps) -> Result<(), SampleFailure> {
    let is_sound = !logits.is_empty() && (ops.is_sound)(logits);
    is_sound.then_some(()).ok_or(SampleFailure::NotFinite)
}
