//! OpenAI's routes: their JSON, and nothing else's.

pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod embeddings;
mod logprobs;
pub(crate) mod models;
pub(crate) mod responses;

use serde::Serialize;

use crate::model::unix_seconds;

/// Names this build in responses, as OpenAI's do.
const FINGERPRINT: &str = concat!("paceline-", env!("CARGO_PKG_VERSION"));

/// What every object of one completion, or chat, says.
#[derive(Clone, Debug, Serialize)]
struct Head {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    system_fingerprint: &'static str,
}

impl Head {
    fn new(id: String, object: &'static str, model: String) -> Head {
        Head { id, object, created: unix_seconds(), model, system_fingerprint: FINGERPRINT }
    }
}

/// Tokens of a request so far.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    n_prompt: usize,
    n_cached: usize,
    n_completion: usize,
}

impl Counted {
    fn usage(self) -> Usage {
        Usage::new(self.n_prompt, self.n_completion, self.n_cached)
    }
}

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
