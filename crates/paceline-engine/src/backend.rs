//! The seam between the engine and whatever computes.

use std::fmt;

use crate::batch::Batch;
use crate::ids::Token;

/// Runs steps. `submit` starts one and may return before it is done; `collect` waits for it.
/// The two alternate strictly.
pub trait Backend {
    /// The memory and row limits the backend was built with. Constant over its life.
    fn limits(&self) -> BackendLimits;

    /// Starts one step.
    fn submit(&mut self, batch: &Batch) -> Result<(), BackendError>;

    /// Finishes the step: pushes exactly one result per `batch.samples`, in that order.
    fn collect(&mut self, results: &mut Vec<Sampled>) -> Result<(), BackendError>;

    /// Does a little (milliseconds) of what steps would otherwise have to wait for. Called while
    /// there is nothing to compute; false if nothing is left to do.
    fn prepare(&mut self) -> bool {
        false
    }
}

impl<B: Backend + ?Sized> Backend for Box<B> {
    fn limits(&self) -> BackendLimits {
        (**self).limits()
    }

    fn submit(&mut self, batch: &Batch) -> Result<(), BackendError> {
        (**self).submit(batch)
    }

    fn collect(&mut self, results: &mut Vec<Sampled>) -> Result<(), BackendError> {
        (**self).collect(results)
    }

    fn prepare(&mut self) -> bool {
        (**self).prepare()
    }
}

/// What a backend can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackendLimits {
    /// KV blocks in the pool.
    pub n_blocks: u32,
    /// Token slots a block has.
    pub block_size: u32,
    /// Rows one step may have.
    pub max_rows: u32,
    /// Positions a sequence may have.
    pub max_model_len: u32,
    /// Tokens the vocabulary has.
    pub n_vocab: u32,
}

/// What came out of one sample row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sampled {
    /// The chosen token, or the scored one.
    pub token: Token,
    /// Its log-probability under the model (before temperature and filters); `NaN` when the row
    /// did not ask for logprobs.
    pub logprob: f32,
    /// The most likely tokens with their log-probabilities, best first; as many as asked for.
    pub top: Vec<(Token, f32)>,
    /// The row's hidden state, for [`SampleTask::Hidden`](crate::SampleTask::Hidden); else empty.
    pub hidden: Vec<f32>,
    /// Set when this row could not be sampled (logits not finite, mask allows nothing). Fails its
    /// own request only.
    pub failure: Option<SampleFailure>,
}

/// Why a row has no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleFailure {
    /// The model produced a logit, or a hidden state, that is not a number.
    NotFinite,
    /// The grammar's mask left no token.
    NothingAllowed,
    /// The backend does not hand out hidden states.
    NoHiddenStates,
}

impl fmt::Display for SampleFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotFinite => "the model produced values that are not finite numbers",
            Self::NothingAllowed => "the grammar allows no token here",
            Self::NoHiddenStates => "this backend does not hand out hidden states",
        })
    }
}

/// A step failed as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendError {
    pub message: String,
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for BackendError {}
