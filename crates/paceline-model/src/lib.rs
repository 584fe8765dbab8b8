//! All that comes out of model files.

mod bytes;
pub mod error;
pub mod gguf;
pub mod tensor;

pub use error::ModelError;
