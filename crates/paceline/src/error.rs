//! What can go wrong, in sentences for the person who asked.

use paceline_engine::{ConfigError, SubmitError};
use paceline_model::error::ModelError;
use paceline_model::pull::PullError;
use paceline_model::stop::StopError;
use paceline_model::template::TemplateError;
use paceline_model::tokenizer::TokenizerError;

/// Any error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Pull(#[from] PullError),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    #[error(transparent)]
    Template(#[from] TemplateError),
    #[error(transparent)]
    Isa(#[from] paceline_cpu::IsaError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Stop(#[from] StopError),
    #[error(transparent)]
    Submit(#[from] SubmitError),
    #[error("prompt {index}: {source}")]
    Prompt { index: usize, source: Box<Error> },
    #[error("this model has no chat template; give it a plain prompt instead of messages")]
    NoChatTemplate,
    #[error(
        "the KV pool needs {} MiB, but {} MiB of memory are free; lower num_kv_blocks or \
         max_model_len", .n_bytes >> 20, .n_free >> 20
    )]
    PoolTooLarge { n_bytes: u64, n_free: u64 },
    #[error("there is no home directory to keep models in; set PACELINE_CACHE and HF_HOME")]
    NoCacheDir,
}

impl Error {
    /// Whether the engine's queue had no room: not the request's fault, and worth another try.
    pub fn is_queue_full(&self) -> bool {
        matches!(self, Error::Submit(SubmitError::QueueFull { .. }))
    }
}
