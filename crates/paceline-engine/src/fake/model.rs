//! Logits out of thin air: a function of the token history, and what a request must give by it.

use std::sync::Arc;

use crate::backend::{SampleFailure, Sampled};
use crate::batch::{SampleRow, SampleTask};
use crate::constraint::{Guide, Progress};
use crate::ids::Token;
use crate::request::{FinishReason, Pooling, Request, SamplingParams, TokenLogprob};
use crate::sampler::{RowOps, Sampler, derive_seed};

/// A model whose logits are a hash of the history, unless it has habits.
#[derive(Clone, Copy, Debug)]
pub struct FakeModel {
    n_vocab: u32,
    /// About one history in this many gives a row with a NaN in it; 0 is never.
    pub nan_one_in: u64,
    /// Mostly, though not always, the same token follows a token, as in a text that repeats itself.
    pub has_habits: bool,
}

/// What one sequence of a request must yield.
#[derive(Clone, Debug, PartialEq)]
pub struct Reference {
    pub prompt_logprobs: Vec<TokenLogprob>,
    pub tokens: Vec<(Token, Option<TokenLogprob>)>,
    pub pooled: Option<Vec<f32>>,
    pub finish: FinishReason,
}

impl FakeModel {
    /// State before the first token.
    pub const START: u64 = 0x51_7c_c1_b7_27_22_0a_95;

    pub fn new(n_vocab: u32) -> Self {
        Self { n_vocab, nan_one_in: 0, has_habits: false }
    }

    /// The state after one more token.
    pub fn advance(state: u64, token: Token) -> u64 {
        let x = (state ^ u64::from(token)).wrapping_mul(0x9fb2_1c65_1e98_df25);
        x ^ x >> 29
    }

    /// Fills `logits` from the state after token `last`, with values from -4 to 4 and some ties.
    pub fn logits(&self, state: u64, last: Token, logits: &mut Vec<f32>) {
        logits.clear();
        let mut x = state;
        logits.extend((0..self.n_vocab).map(|_| {
            x = x.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(0x1405_7b7e_f767_814f);
            ((x >> 56) as f32 - 128.0) / 32.0
        }));
        if self.has_habits && !(state >> 23).is_multiple_of(8) {
            logits[(5 * last as usize + 1) % self.n_vocab as usize] += 16.0;
        }
        if self.is_broken(state) {
            logits[0] = f32::NAN;
        }
    }

    /// A hidden state, of four values from -2 to 2.
    pub fn hidden(&self, state: u64) -> Vec<f32> {
        let value = |i: u32| ((state >> (16 * i)) as u16 as f32 - 32_768.0) / 16_384.0;
        let mut hidden: Vec<f32> = (0..4).map(value).collect();
        if self.is_broken(state) {
            hidden[0] = f32::NAN;
        }
        hidden
    }

    fn is_broken(&self, state: u64) -> bool {
        self.nan_one_in > 0 && (state >> 17).is_multiple_of(self.nan_one_in)
    }

    /// What a request that pools must give: states are read one by one, in the plain order.
    fn pooled(&self, prompt: &[Token], pooling: Pooling) -> Reference {
        let mut state = Self::START;
        let mut sums = [0.0; 4];
        let n = match pooling {
            Pooling::Mean => prompt.len(),
            Pooling::Last => 1,
        };
        for (i, &token) in prompt.iter().enumerate() {
            state = Self::advance(state, token);
            if i + n >= prompt.len() {
                let hidden = self.hidden(state);
                sums.iter_mut().zip(hidden).for_each(|(sum, x)| *sum += f64::from(x));
            }
        }
        let mean: Vec<f32> = sums.iter().map(|sum| (sum / n as f64) as f32).collect();
        let (pooled, finish) = match mean.iter().all(|x| x.is_finite()) {
            true => (Some(mean), FinishReason::Stop),
            false => (None, FinishReason::Failed(SampleFailure::NotFinite)),
        };
        Reference { prompt_logprobs: Vec::new(), tokens: Vec::new(), pooled, finish }
    }

    /// Runs one sequence of a request the plain way, without any engine.
    pub fn reference(&self, request: &Request, index: u32, max_model_len: usize) -> Reference {
        let Request { prompt, params, constraint, .. } = request;
        if let Some(pooling) = params.pooling {
            return self.pooled(prompt, pooling);
        }
        let mut run = Run {
            model: self,
            params,
            index,
            sampler: Sampler::new(self.n_vocab as usize),
            logits: Vec::new(),
            history: Vec::new(),
            n_prompt: prompt.len(),
            guide: constraint.clone().map(Guide::new),
        };
        let mut reference = Reference {
            prompt_logprobs: Vec::new(),
            tokens: Vec::new(),
            pooled: None,
            finish: FinishReason::Stop,
        };
        reference.finish = match run.score_prompt(prompt, &mut reference.prompt_logprobs) {
            Err(failure) => FinishReason::Failed(failure),
            Ok(()) => run.generate(max_model_len, &mut reference.tokens),
        };
        reference
    }
}

struct Run<'a> {
    model: &'a FakeModel,
    params: &'a Arc<SamplingParams>,
    index: u32,
    sampler: Sampler,
    logits: Vec<f32>,
    history: Vec<Token>,
    n_prompt: usize,
    guide: Option<Guide>,
}

impl Run<'_> {
    fn score_prompt(
        &mut self,
        prompt: &[Token],
        scores: &mut Vec<TokenLogprob>,
    ) -> Result<(), SampleFailure> {
        for (position, &token) in prompt.iter().enumerate() {
            if position > 0 && self.params.prompt_logprobs.is_some() {
                let result = self.sample(SampleTask::Score(token));
                if let Some(failure) = result.failure {
                    return Err(failure);
                }
                scores.push(logprob_of(result));
            }
            self.history.push(token);
        }
        Ok(())
    }

    fn generate(
        &mut self,
        max_model_len: usize,
        tokens: &mut Vec<(Token, Option<TokenLogprob>)>,
    ) -> FinishReason {
        loop {
            let result = self.sample(SampleTask::Next);
            if let Some(failure) = result.failure {
                return FinishReason::Failed(failure);
            }
            let token = result.token;
            let logprob = self.params.logprobs.map(|_| logprob_of(result));
            tokens.push((token, logprob));
            self.history.push(token);
            let progress = self.guide.as_mut().map(|guide| guide.accept(token));
            let is_end = !self.params.ignore_eos && self.params.stop_tokens.contains(&token);
            if is_end || progress == Some(Progress::Complete) {
                return FinishReason::Stop;
            }
            if tokens.len() >= self.params.max_tokens as usize
                || self.history.len() >= max_model_len
            {
                return FinishReason::Length;
            }
        }
    }

    fn sample(&mut self, task: SampleTask) -> Sampled {
        let state = self.history.iter().fold(FakeModel::START, |s, &t| FakeModel::advance(s, t));
        let last = self.history.last().copied().unwrap_or(0);
        self.model.logits(state, last, &mut self.logits);
        let row = SampleRow {
            row: 0,
            task,
            params: Arc::clone(self.params),
            seed: derive_seed(self.params.seed, self.index),
            position: self.history.len() as u32,
            history: 0..self.history.len() as u32,
            n_prompt: self.n_prompt as u32,
            n_generated: self.history.len().saturating_sub(self.n_prompt) as u32,
            mask: match task {
                SampleTask::Next => self.guide.as_mut().map(|guide| {
                    guide.look(&[]);
                    guide.mask(0)
                }),
                SampleTask::Score(_) | SampleTask::Hidden => None,
            },
        };
        let mut result = Sampled::default();
        let ops = RowOps::scalar();
        self.sampler.sample(&mut self.logits, &row, &self.history, &ops, &mut result);
        result
    }
}

fn logprob_of(result: Sampled) -> TokenLogprob {
    TokenLogprob { token: result.token, logprob: result.logprob, top: result.top }
}
