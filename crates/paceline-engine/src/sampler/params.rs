//! Defaults and limits of [`SamplingParams`].

#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::RangeInclusive;

use crate::ids::Token;
use crate::request::{Pooling, SamplingParams};

const MAX_N: u32 = 128;
const MAX_LOGIT_BIAS: usize = 1024;
const MAX_LOGPROBS: u32 = 20;
const MAX_STOP_TOKENS: usize = 64;

/// A sampling parameter the engine will not take.
#[derive(Clone, Debug, PartialEq)]
pub enum ParamError {
    /// The value is outside its range, or not a number.
    OutOfRange { name: &'static str, value: f64, allowed: &'static str },
    /// The list is too long.
    TooMany { name: &'static str, len: usize, max: usize },
    /// The token is not in the model's vocabulary.
    UnknownToken { name: &'static str, token: Token, n_vocab: u32 },
    /// More tokens are demanded than allowed.
    MinAboveMax { min_tokens: u32, max_tokens: u32 },
}

impl fmt::Display for ParamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfRange { name, value, allowed } => {
                write!(f, "{name} is {value}, but must be {allowed}")
            }
            Self::TooMany { name, len, max } => {
                write!(f, "{name} has {len} entries, but may have at most {max}")
            }
            Self::UnknownToken { name, token, n_vocab } => write!(
                f,
                "{name} names token {token}, but the model's vocabulary ends at {}",
                n_vocab.saturating_sub(1)
            ),
            Self::MinAboveMax { min_tokens, max_tokens } => {
                write!(f, "min_tokens is {min_tokens}, which is more than max_tokens, {max_tokens}")
            }
        }
    }
}

impl std::error::Error for ParamError {}

impl ParamError {
    /// The parameter it is about.
    pub fn name(&self) -> &'static str {
        match self {
            Self::OutOfRange { name, .. }
            | Self::TooMany { name, .. }
            | Self::UnknownToken { name, .. } => name,
            Self::MinAboveMax { .. } => "min_tokens",
        }
    }
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            n: 1,
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            stop_tokens: Vec::new(),
            ignore_eos: false,
            min_tokens: 0,
            max_tokens: 256,
            seed: 0,
            logprobs: None,
            prompt_logprobs: None,
            pooling: None,
        }
    }
}

impl SamplingParams {
    /// The likeliest token, always.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// Whether sampling must look at the tokens so far.
    pub fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
    }

    /// The tokens that end a sequence.
    pub(crate) fn ends(&self) -> &[Token] {
        if self.ignore_eos { &[] } else { &self.stop_tokens }
    }

    /// How many rows of a prompt, from the first on, must be computed because something is read
    /// off each of them.
    pub(crate) fn n_read_rows(&self, n_prompt: usize) -> usize {
        match (self.pooling, self.prompt_logprobs) {
            (Some(Pooling::Mean), _) => n_prompt,
            (None, Some(_)) => n_prompt - 1,
            (Some(Pooling::Last), _) | (None, None) => 0,
        }
    }

    /// Checks every value against its range and the vocabulary.
    pub fn validate(&self, n_vocab: u32) -> Result<(), ParamError> {
        self.validate_counts()?;
        self.validate_ranges()?;
        check_len("logit_bias", self.logit_bias.len(), MAX_LOGIT_BIAS)?;
        check_len("stop_tokens", self.stop_tokens.len(), MAX_STOP_TOKENS)?;
        for &(token, bias) in &self.logit_bias {
            check_token("logit_bias", token, n_vocab)?;
            check("logit_bias", bias, -100.0..=100.0, "from -100 to 100")?;
        }
        self.stop_tokens.iter().try_for_each(|&token| check_token("stop_tokens", token, n_vocab))
    }

    fn validate_counts(&self) -> Result<(), ParamError> {
        let count = |name, value, range: RangeInclusive<u32>, allowed| {
            if range.contains(&value) {
                return Ok(());
            }
            Err(ParamError::OutOfRange { name, value: f64::from(value), allowed })
        };
        count("n", self.n, 1..=MAX_N, "from 1 to 128")?;
        if self.pooling.is_some() {
            count("n", self.n, 1..=1, "1 where nothing is generated")?;
        }
        count("max_tokens", self.max_tokens, 1..=u32::MAX, "at least 1")?;
        count("logprobs", self.logprobs.unwrap_or(0), 0..=MAX_LOGPROBS, "at most 20")?;
        let prompt_logprobs = self.prompt_logprobs.unwrap_or(0);
        count("prompt_logprobs", prompt_logprobs, 0..=MAX_LOGPROBS, "at most 20")?;
        if self.min_tokens > self.max_tokens {
            let (min_tokens, max_tokens) = (self.min_tokens, self.max_tokens);
            return Err(ParamError::MinAboveMax { min_tokens, max_tokens });
        }
        Ok(())
    }

    fn validate_ranges(&self) -> Result<(), ParamError> {
        const ABOVE_ZERO: f32 = f32::from_bits(1);
        check("temperature", self.temperature, 0.0..=100.0, "from 0 to 100")?;
        check("top_p", self.top_p, ABOVE_ZERO..=1.0, "above 0 and at most 1")?;
        check("min_p", self.min_p, 0.0..=1.0, "from 0 to 1")?;
        check("typical_p", self.typical_p, ABOVE_ZERO..=1.0, "above 0 and at most 1")?;
        let repetition = ABOVE_ZERO..=10.0;
        check("repetition_penalty", self.repetition_penalty, repetition, "above 0, at most 10")?;
        check("presence_penalty", self.presence_penalty, -2.0..=2.0, "from -2 to 2")?;
        check("frequency_penalty", self.frequency_penalty, -2.0..=2.0, "from -2 to 2")
    }
}

/// NaN is in no range.
fn check(
    name: &'static str,
    value: f32,
    range: RangeInclusive<f32>,
    allowed: &'static str,
) -> Result<(), ParamError> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(ParamError::OutOfRange { name, value: f64::from(value), allowed })
}

fn check_len(name: &'static str, len: usize, max: usize) -> Result<(), ParamError> {
    if len <= max { Ok(()) } else { Err(ParamError::TooMany { name, len, max }) }
}

fn check_token(name: &'static str, token: Token, n_vocab: u32) -> Result<(), ParamError> {
    if token < n_vocab { Ok(()) } else { Err(ParamError::UnknownToken { name, token, n_vocab }) }
}
