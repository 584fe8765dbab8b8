//! Token in, token out: scheduler, paged block pool, sampler.
//!
//! Knows nothing of text, files, models, HTTP or the clock. Requests go in with
//! [`Engine::submit`]; each [`Engine::step`] runs one batch on a [`Backend`] and hands out
//! [`Event`]s. What the other sequences of a batch are never changes a sequence's tokens.
#![forbid(unsafe_code)]

pub mod backend;
pub mod batch;
pub mod blocks;
pub mod config;
pub mod constraint;
pub mod engine;
pub mod fake;
pub mod ids;
mod list;
pub mod request;
pub mod sampler;
pub mod scheduler;
pub mod sequence;
mod siphash;
mod slab;
mod speculate;
pub mod stats;

pub use backend::{Backend, BackendError, BackendLimits, SampleFailure, Sampled};
pub use batch::{Batch, BatchSeq, BlockCopy, SampleRow, SampleTask};
pub use blocks::BlockUse;
pub use config::{Batching, ConfigError, Drafts, EngineConfig, OutputRatio, SharedRows};
pub use constraint::{Constraint, Progress};
pub use engine::{Engine, StepOutcome};
pub use ids::{BlockId, RequestId, Token};
pub use request::{
    Event, EventKind, FinishReason, Pooling, Priority, Request, SamplingParams, TokenLogprob,
    TokenMask, UnknownPriority,
};
pub use sampler::{ParamError, RowOps, Sampler, derive_seed};
pub use scheduler::{
    Preemption, Resource, RunningSequence, Scheduler, StepMix, StepRows, SubmitError, check_request,
};
pub use sequence::{SequenceState, SequenceView};
pub use stats::Stats;
