//! All that comes out of model files.

pub mod detokenize;
pub mod tokenizer;
