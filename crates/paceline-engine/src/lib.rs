//! Token in, token out.
#![forbid(unsafe_code)]

pub mod backend;
pub mod batch;
pub mod ids;
pub mod request;
