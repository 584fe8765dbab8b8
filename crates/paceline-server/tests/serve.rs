//! The real server on a loopback port, with a model that costs nothing.
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "serve/client.rs"]
mod client;
#[path = "serve/fields.rs"]
mod fields;
#[path = "serve/harness.rs"]
mod harness;
#[path = "serve/hostile.rs"]
mod hostile;
#[path = "serve/jobs.rs"]
mod jobs;
#[path = "serve/load.rs"]
mod load;
#[path = "serve/routes.rs"]
mod routes;
