//! What a caller asks for, and what it hears back.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::backend::SampleFailure;
use crate::constraint::Constraint;
use crate::ids::{RequestId, Token};

/// One generation request. Parameters must have passed [`SamplingParams::validate`].
#[derive(Clone, Debug)]
pub struct Request {
    pub prompt: Vec<Token>,
    pub params: Arc<SamplingParams>,
    pub priority: Priority,
    /// Engine time after which the request is dropped, wherever it is.
    pub deadline_ns: Option<u64>,
    /// Whose request it is: tenants share a class's rows fairly, and share neither cached blocks
    /// nor guesses.
    pub tenant: u64,
    /// Rules that the output must keep; each sequence gets a copy.
    pub constraint: Option<Box<dyn Constraint>>,
}

/// Served in this order. Inside a class the tenant that has had least is next; inside a tenant,
/// first come, first served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    High,
    #[default]
    Normal,
    Low,
    /// Fills what the others leave; first to be preempted.
    Batch,
}

/// A name that is no priority's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPriority(String);

impl fmt::Display for UnknownPriority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is no priority; there are high, normal, low and batch", self.0)
    }
}

impl std::error::Error for UnknownPriority {}

impl FromStr for Priority {
    type Err = UnknownPriority;

    fn from_str(name: &str) -> Result<Priority, UnknownPriority> {
        Ok(match name {
            "high" => Priority::High,
            "normal" => Priority::Normal,
            "low" => Priority::Low,
            "batch" => Priority::Batch,
            _ => return Err(UnknownPriority(name.chars().take(40).collect())),
        })
    }
}

/// How tokens are chosen and when to stop.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Sequences to generate from the one prompt.
    pub n: u32,
    /// 0 is greedy.
    pub temperature: f32,
    /// 0 is off.
    pub top_k: u32,
    /// 1 is off.
    pub top_p: f32,
    /// 0 is off.
    pub min_p: f32,
    /// 1 is off.
    pub typical_p: f32,
    /// 1 is off; divides positive and multiplies negative logits of tokens seen in prompt or
    /// output.
    pub repetition_penalty: f32,
    /// Subtracted once from tokens seen in the output.
    pub presence_penalty: f32,
    /// Subtracted once per occurrence in the output.
    pub frequency_penalty: f32,
    /// Added to the logits of these tokens.
    pub logit_bias: Vec<(Token, f32)>,
    /// Tokens that end the sequence (the model's own ends, plus the caller's).
    pub stop_tokens: Vec<Token>,
    /// Do not stop on `stop_tokens`.
    pub ignore_eos: bool,
    /// No stop token is chosen before this many tokens.
    pub min_tokens: u32,
    /// Tokens to generate at most.
    pub max_tokens: u32,
    /// Key of the random numbers.
    pub seed: u64,
    /// `Some(k)`: report the chosen token's logprob and the `k` best.
    pub logprobs: Option<u32>,
    /// `Some(k)`: likewise for each prompt token after the first.
    pub prompt_logprobs: Option<u32>,
    /// `Some`: generate nothing; report the prompt's hidden state, made one vector in this way.
    /// Whatever says how tokens are chosen is then without meaning, and `n` must be 1.
    pub pooling: Option<Pooling>,
}

/// How the hidden states of a prompt (after the model's last norm) become one vector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pooling {
    /// That of the last token.
    #[default]
    Last,
    /// The mean over all tokens, summed in their order, so that chunks change no bit of it.
    Mean,
}

/// Bit set of allowed tokens, filled by a grammar.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenMask {
    pub words: Vec<u64>,
}

impl TokenMask {
    /// Tokens beyond the mask's end are not allowed.
    pub fn allows(&self, token: Token) -> bool {
        let word = self.words.get(token as usize / 64).copied().unwrap_or(0);
        word >> (token % 64) & 1 == 1
    }
}

/// Something that happened to one sequence of a request (`index` of its `n`).
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub request: RequestId,
    pub index: u32,
    pub kind: EventKind,
}

#[derive(Clone, Debug, PartialEq)]
pub enum EventKind {
    /// The request takes part in its first step, which its queue time ends with. Once for all its
    /// sequences; a restart after a preemption is not told.
    Started {
        /// Prompt tokens taken from the prefix cache.
        n_cached: u32,
    },
    /// A prompt token's log-probability (only when asked for; in order, index 0 only).
    PromptLogprob(TokenLogprob),
    /// A generated token.
    Token { token: Token, logprob: Option<Box<TokenLogprob>> },
    /// The prompt's pooled hidden state (only when asked for).
    Pooled(Vec<f32>),
    /// The last event of this sequence.
    Finished(FinishReason),
}

#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    pub token: Token,
    pub logprob: f32,
    pub top: Vec<(Token, f32)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token was generated (it is the last token of the sequence), the sequence's
    /// constraint is complete, or all was reported of a request that generates nothing.
    Stop,
    /// `max_tokens` or the model's context was reached.
    Length,
    /// The caller cancelled.
    Cancelled,
    /// The deadline passed.
    Deadline,
    /// Preempted more often than the configuration allows.
    Preempted,
    /// This row could not be sampled.
    Failed(SampleFailure),
    /// The backend failed the whole step.
    Backend(String),
}
