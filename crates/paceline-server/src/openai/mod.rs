//! OpenAI's routes: their JSON, and nothing else's.

pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod embeddings;
mod logprobs;
pub(crate) mod models;
pub(crate) mod responses;

use serde::Serialize;

/// Names this build in responses, as OpenAI's do.
const FINGERPRINT: &str = concat!("paceline-", env!("CARGO_PKG_VERSION"));

/// Tokens that a request has cost.
#[derive(Clone, Copy, Debug, Default, Serialize, PartialEq, Eq)]
pub(crate) struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptDetails,
}

#[derive(Clone, Copy, Debug, Default, Serialize, PartialEq, Eq)]
struct PromptDetails {
    cached_tokens: usize,
}

impl Usage {
    pub(crate) fn new(n_prompt: usize, n_completion: usize, n_cached: usize) -> Usage {
        Usage {
            prompt_tokens: n_prompt,
            completion_tokens: n_completion,
            total_tokens: n_prompt + n_completion,
            prompt_tokens_details: PromptDetails { cached_tokens: n_cached },
        }
    }
}
