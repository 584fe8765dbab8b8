//! All that comes out of model files.

mod bytes;
pub mod detokenize;
pub mod error;
pub mod gguf;
pub mod pull;
pub mod stop;
pub mod template;
pub mod tensor;
pub mod tokenizer;

pub use error::ModelError;
