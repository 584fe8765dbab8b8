//! The real binary on a tiny synthetic model: results, messages, exit codes.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod cli {
    mod batch;
    pub(crate) mod bench;
    mod other;
    mod run;
    mod speed;
}
