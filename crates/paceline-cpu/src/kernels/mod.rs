//! The kernels: one generic function each, over [`crate::lanes::Lanes`], and the matrix product
//! and attention once more on tiles.
//!
//! They take pointers and sizes that the doors in [`crate::ops`] have checked; they do not
//! allocate, log or fail.

pub(crate) mod attention;
#[cfg(target_arch = "x86_64")]
pub(crate) mod attention_amx;
#[cfg(target_arch = "x86_64")]
pub(crate) mod attention_bytes;
pub(crate) mod format;
pub(crate) mod kv;
pub(crate) mod matmul;
#[cfg(target_arch = "x86_64")]
pub(crate) mod matmul_amx;
pub(crate) mod matmul_exact;
pub(crate) mod matmul_int;
#[cfg(target_arch = "x86_64")]
pub(crate) mod matmul_int_amx;
#[cfg(target_arch = "x86_64")]
pub(crate) mod matmul_int_blocks;
pub(crate) mod reduce;
pub(crate) mod rows;
#[cfg(target_arch = "x86_64")]
pub(crate) mod together;
