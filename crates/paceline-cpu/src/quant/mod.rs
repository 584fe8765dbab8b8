//! Tensor types of model files: how their blocks are laid out, and how to read and write rows.
//!
//! Owns the bit layouts. Every quantised type is one formula over unsigned codes,
//! `value = scale[group] * (code - zero_point) + min[group]`, so kernels that repack weights read
//! [`unpack_row`] and never a file's layout. Knows nothing of files, names or shapes beyond a row.

mod decode;
mod encode;
mod k;
mod legacy;
mod random;
mod types;

#[cfg(test)]
mod tests;

pub use decode::{dequantize_row, unpack_row};
pub use encode::{can_quantize, quantize_row};
pub use random::{Rng, random_row};
pub use types::TensorType;
