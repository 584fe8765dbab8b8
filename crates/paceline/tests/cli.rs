//! The real binary on a tiny synthetic model: results, messages, exit codes.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod cli {
    mod batch;
    pub(crate) mod bench;
    #[cfg(feature = "serve")]
    mod bench_serve;
    #[cfg(feature = "serve")]
    mod health;
    #[cfg(feature = "serve")]
    mod jobs;
    #[cfg(feature = "serve")]
    mod load;
    #[cfg(feature = "nats")]
    mod nats;
    #[cfg(feature = "nats")]
    #[path = "../../../paceline-jobs/tests/nats_server/mod.rs"]
    mod nats_server;
    mod other;
    #[cfg(feature = "serve")]
    mod resume;
    mod run;
    #[cfg(feature = "serve")]
    mod serve;
    #[cfg(feature = "serve")]
    pub(crate) mod served;
    mod speed;
}
