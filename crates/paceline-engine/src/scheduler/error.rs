//! What a request must satisfy to be queued.

use std::fmt;

use super::Scheduler;
use crate::backend::BackendLimits;
use crate::ids::Token;
use crate::request::SamplingParams;
use crate::sampler::ParamError;

/// Why a request was not taken.
#[derive(Clone, Debug, PartialEq)]
pub enum SubmitError {
    /// The prompt has no tokens.
    EmptyPrompt,
    /// The prompt leaves no room for a token in the model's context.
    PromptTooLong {
        len: usize,
        max: usize,
    },
    /// The prompt holds a token the model does not have.
    UnknownToken {
        token: u32,
        n_vocab: u32,
    },
    /// Even alone, the request could not be finished.
    NeverFits {
        needed: usize,
        available: usize,
        what: Resource,
    },
    /// Too much is waiting already; try later.
    QueueFull {
        waiting_requests: u32,
        max_requests: u32,
        waiting_tokens: u64,
        max_tokens: u64,
    },
    InvalidParams(ParamError),
}

/// What a request needs more of than there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    KvBlocks,
    Sequences,
}

impl fmt::Display for SubmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EmptyPrompt => f.write_str("the prompt is empty; it needs at least one token"),
            Self::PromptTooLong { len, max } => write!(
                f,
                "the prompt has {len} tokens, but the model's context leaves room for {max}"
            ),
            Self::UnknownToken { token, n_vocab } => write!(
                f,
                "the prompt holds token {token}, but the model's vocabulary has {n_vocab} tokens"
            ),
            Self::NeverFits { needed, available, what: Resource::KvBlocks } => write!(
                f,
                "prompt and max_tokens need {needed} KV blocks, but the pool has {available}; \
                 lower max_tokens or enlarge the pool"
            ),
            Self::NeverFits { needed, available, what: Resource::Sequences } => {
                write!(f, "n asks for {needed} sequences, but only {available} may run at once")
            }
            Self::QueueFull { waiting_requests, max_requests, waiting_tokens, max_tokens } => {
                write!(
                    f,
                    "the queue is full: {waiting_requests} of {max_requests} requests and \
                 {waiting_tokens} of {max_tokens} prompt tokens are waiting; try again later"
                )
            }
            Self::InvalidParams(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for SubmitError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::InvalidParams(error) => Some(error),
            _ => None,
        }
    }
}

/// Whether a request could ever run on such a backend with so many sequences at once; says nothing
/// about the queue. What [`Scheduler::submit`] asks first, for those who want to know before.
pub fn check_request(
    limits: &BackendLimits,
    max_num_seqs: u32,
    prompt: &[Token],
    params: &SamplingParams,
) -> Result<(), SubmitError> {
    let n_vocab = limits.n_vocab;
    params.validate(n_vocab).map_err(SubmitError::InvalidParams)?;
    if prompt.is_empty() {
        return Err(SubmitError::EmptyPrompt);
    }
    let max = limits.max_model_len as usize - 1;
    if prompt.len() > max {
        return Err(SubmitError::PromptTooLong { len: prompt.len(), max });
    }
    if let Some(&token) = prompt.iter().find(|&&token| token >= n_vocab) {
        return Err(SubmitError::UnknownToken { token, n_vocab });
    }
    let never = |needed, available, what| {
        if needed <= available {
            return Ok(());
        }
        Err(SubmitError::NeverFits { needed, available, what })
    };
    let max_len = max_len(limits, prompt.len(), params.max_tokens);
    let n_blocks = (max_len - 1).div_ceil(limits.block_size as usize);
    never(n_blocks, limits.n_blocks as usize, Resource::KvBlocks)?;
    never(params.n as usize, max_num_seqs as usize, Resource::Sequences)
}

/// Tokens a sequence may come to know.
pub(super) fn max_len(limits: &BackendLimits, n_prompt: usize, max_tokens: u32) -> usize {
    n_prompt.saturating_add(max_tokens as usize).min(limits.max_model_len as usize)
}

impl Scheduler {
    /// Whether such a request could ever run; says nothing about the queue.
    pub fn check_request(
        &self,
        prompt: &[Token],
        params: &SamplingParams,
    ) -> Result<(), SubmitError> {
        check_request(&self.limits, self.config.max_num_seqs, prompt, params)
    }

    /// Whether a prompt of this length may wait.
    pub(super) fn check_queue(&self, n_prompt: u64) -> Result<(), SubmitError> {
        let waiting_requests = self.waiting.n_new();
        let waiting_tokens = self.waiting.n_new_tokens();
        let max_requests = self.config.max_waiting_requests;
        let max_tokens = self.config.max_waiting_tokens;
        let fits = waiting_tokens + n_prompt <= max_tokens || waiting_requests == 0;
        if fits && waiting_requests < max_requests {
            return Ok(());
        }
        Err(SubmitError::QueueFull { waiting_requests, max_requests, waiting_tokens, max_tokens })
    }
}
