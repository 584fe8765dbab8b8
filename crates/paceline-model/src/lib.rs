//! All that comes out of model files.

mod arch;
mod bytes;
pub mod checkpoint;
pub mod error;
pub mod gguf;
pub mod safetensors;
pub mod spec;
pub mod synth;
pub mod tensor;

pub use checkpoint::Checkpoint;
pub use error::ModelError;
