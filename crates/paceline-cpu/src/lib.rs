//! CPU kernels: slices in, slices out.
pub mod quant;
