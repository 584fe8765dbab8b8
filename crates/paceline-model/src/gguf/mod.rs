//! GGUF model files (versions 2 and 3, little-endian): a reader and a writer.
//!
//! Owns the file format: header, metadata values, tensor table, data ranges. Every number in a
//! file is taken for hostile until checked against the bytes that are there. Does not know what
//! any key or tensor means.

mod header;
mod metadata;
mod reader;
mod tensor_type;
mod writer;

#[cfg(test)]
mod tests;

pub use metadata::{Array, FromValue, Metadata, Value};
pub use reader::{Gguf, TensorInfo};
pub use writer::{GgufWriter, TensorHead};
