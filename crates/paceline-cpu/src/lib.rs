//! CPU kernels: slices in, slices out.
//!
//! [`Cpu`] is the door: it owns the threads and the table of kernels of one instruction set, and
//! its
//! methods (in [`ops`]) check shapes once before they hand pointers to the kernels. The crate knows
//! nothing of models, files or requests.
//!
//! Every kernel computes **the same bits** on every instruction set, for any number of rows and
//! any number of threads; see `lanes` for why.
#![allow(unsafe_code, reason = "kernels; every block says why it is sound")]

mod acts;
mod aligned;
#[cfg(target_arch = "x86_64")]
mod amx;
mod isa;
mod kernels;
mod lanes;
mod math;
pub mod ops;
mod packed;
pub mod peak;
mod pool;
pub mod quant;
mod table;

pub use acts::{ACT_BLOCK, ActDtype, ActForms, Acts};
pub use aligned::{Aligned, Plain};
pub use isa::{ISA_VARIABLE, Isa, IsaError};
pub use kernels::kv::{KV_BLOCK, KvDtype};
pub use ops::Cpu;
pub use packed::{PackError, PackedMatrix, RawMatrix};
