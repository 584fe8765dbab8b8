//! The promises of the whole engine, on real weights: one binary, one file for each promise.
#![allow(clippy::unwrap_used, reason = "tests")]

mod arithmetic;
mod formats;
mod golden;
mod harness;
mod invariance;
mod library;
mod pooling;
mod tidy;
