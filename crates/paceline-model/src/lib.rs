//! All that comes out of model files: what a model is, its weights, its text, and its forward pass.
//!
//! From the name of a model to tokens out: [`pull`] finds or fetches the files, [`checkpoint`]
//! opens
//! them ([`gguf`], [`safetensors`]) and says what they hold ([`spec`]), [`weights`] packs them for
//! the kernels, [`cpu_backend`] is the forward pass behind the engine's `Backend`. For text:
//! [`tokenizer`], [`template`], [`detokenize`], [`stop`].
//!
//! Knows nothing of HTTP, flags or terminals; prints nothing.

mod arch;
mod bytes;
pub mod checkpoint;
pub mod cpu_backend;
pub mod detokenize;
pub mod error;
pub mod gguf;
pub mod pull;
pub mod safetensors;
pub mod sizing;
pub mod spec;
pub mod stop;
pub mod synth;
pub mod template;
pub mod tensor;
pub mod tokenizer;
pub mod weights;

pub use checkpoint::Checkpoint;
pub use error::ModelError;
