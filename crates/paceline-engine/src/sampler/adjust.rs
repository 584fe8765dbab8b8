//! Changes to single logits before temperature: mask, bias, penalties, `min_tokens`.

use crate::batch::SampleRow;
use crate::ids::Token;
use crate::request::{SamplingParams, TokenMask};

/// Set in a token's count when the prompt holds it.
const IN_PROMPT: u32 = 1 << 31;

/// Counts the tokens of one history at a time.
#[derive(Debug)]
pub(super) struct Adjuster {
    /// Per token of the vocabulary: occurrences in the output, and [`IN_PROMPT`]. All zero between
    /// rows.
    counts: Vec<u32>,
    /// The tokens whose count is not zero.
    seen: Vec<Token>,
}

impl Adjuster {
    pub(super) fn new(n_vocab: usize) -> Self {
        Self { counts: vec![0; n_vocab], seen: Vec::with_capacity(n_vocab) }
    }

    pub(super) fn adjust(&mut self, logits: &mut [f32], row: &SampleRow, history: &[Token]) {
        let params = &*row.params;
        if let Some(mask) = &row.mask {
            apply_mask(logits, mask);
        }
        for &(token, bias) in &params.logit_bias {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit += bias;
            }
        }
        if params.has_penalties() {
            self.count(history, row.n_prompt as usize);
            self.penalise(logits, params);
        }
        if row.n_generated < params.min_tokens {
            for &token in &params.stop_tokens {
                if let Some(logit) = logits.get_mut(token as usize) {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
    }

    fn count(&mut self, history: &[Token], n_prompt: usize) {
        let (prompt, output) = history.split_at(n_prompt.min(history.len()));
        for &token in prompt {
            self.mark(token, |count| count | IN_PROMPT);
        }
        for &token in output {
            self.mark(token, |count| count + 1);
        }
    }

    fn mark(&mut self, token: Token, change: impl Fn(u32) -> u32) {
        let Some(count) = self.counts.get_mut(token as usize) else {
            return;
        };
        if *count == 0 {
            self.seen.push(token);
        }
        *count = change(*count);
    }

    fn penalise(&mut self, logits: &mut [f32], params: &SamplingParams) {
        for token in self.seen.drain(..) {
            let n_output = std::mem::take(&mut self.counts[token as usize]) & !IN_PROMPT;
            let Some(logit) = logits.get_mut(token as usize) else {
                continue;
            };
            if *logit > 0.0 {
                *logit /= params.repetition_penalty;
            } else {
                *logit *= params.repetition_penalty;
            }
            if n_output > 0 {
                *logit -= params.frequency_penalty * n_output as f32 + params.presence_penalty;
            }
        }
    }
}

fn apply_mask(logits: &mut [f32], mask: &TokenMask) {
    for (index, chunk) in logits.chunks_mut(64).enumerate() {
        let word = mask.words.get(index).copied().unwrap_or(0);
        if word == u64::MAX {
            continue;
        }
        for (bit, logit) in chunk.iter_mut().enumerate() {
            if word >> bit & 1 == 0 {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
}
