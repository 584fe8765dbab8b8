//! All that comes out of model files.

mod arch;
mod bytes;
pub mod checkpoint;
pub mod detokenize;
pub mod error;
pub mod gguf;
pub mod pull;
pub mod safetensors;
pub mod spec;
pub mod stop;
pub mod synth;
pub mod template;
pub mod tensor;
pub mod tokenizer;
pub mod weights;

pub use checkpoint::Checkpoint;
pub use error::ModelError;
