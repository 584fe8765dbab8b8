//! Batch inference for language models. The batch never changes an answer.
//!
//! ```no_run
//! use paceline::{GenerateParams, Llm, LlmOptions};
//!
//! let mut llm = Llm::load("default", LlmOptions::default())?;
//! let prompts = ["The sun is", "Water boils at", "A paceline is"];
//! for generation in llm.generate_batch(&prompts, &GenerateParams::greedy(32))? {
//!     println!("{}", generation.text());
//! }
//! # Ok::<(), paceline::Error>(())
//! ```
//!
//! * [`Llm::generate_batch`]: many prompts in, all answers out.
//! * [`Llm::stream`]: the same, piece by piece, all sequences side by side.
//! * [`Llm::session`]: manual control. Add sequences, go step by step, look at each one's
//!   state, remove it in mid-flight.
//!
//! All three are one path: a [`Session`] over the engine. This crate knows text; tokens and blocks
//! are `paceline-engine`'s, files and the forward pass `paceline-model`'s.

mod error;
mod generation;
mod llm;
mod prompt;
mod session;
mod timed;

pub use error::Error;
pub use generation::{Completion, Finish, Generation, Logprob, Usage};
pub use llm::read_tokenizer;
pub use llm::{ARITHMETIC, KvPlan, Llm, LlmOptions, LlmParts, ModelFacts, NUM_SPECULATIVE_TOKENS};
pub use prompt::{GenerateParams, Input, Prompt};
pub use session::{Piece, Session, Stream};

pub use paceline_cpu::{ActDtype, Isa, KvDtype};
pub use paceline_engine::{Batching, Priority, RequestId, SamplingParams, SequenceState};
pub use paceline_engine::{SequenceView, Stats, Token};
pub use paceline_model::template::Message;
