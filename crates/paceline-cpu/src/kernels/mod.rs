//! The kernels: one generic function each, over [`crate::lanes::Lanes`].
//!
//! They take pointers and sizes that the doors in [`crate::ops`] have checked; they do not
//! allocate, log or fail.

pub(crate) mod attention;
pub(crate) mod matmul_float;
pub(crate) mod matmul_quant;
pub(crate) mod reduce;
pub(crate) mod rows;
