//! The real server on a loopback port, with a model that costs nothing.
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "serve/client.rs"]
mod client;
#[path = "serve/embeddings.rs"]
mod embeddings;
#[path = "serve/fields.rs"]
mod fields;
#[path = "serve/fuzz.rs"]
mod fuzz;
#[path = "serve/harness.rs"]
mod harness;
#[path = "serve/hostile.rs"]
mod hostile;
#[path = "serve/jobs.rs"]
mod jobs;
#[path = "serve/load.rs"]
mod load;
#[path = "serve/responses.rs"]
mod responses;
#[path = "serve/routes.rs"]
mod routes;
#[path = "serve/schemas.rs"]
mod schemas;
#[path = "serve/steps.rs"]
mod steps;
#[path = "serve/structured.rs"]
mod structured;
#[path = "serve/tools.rs"]
mod tools;
#[path = "serve/traces.rs"]
mod traces;
#[path = "serve/watch.rs"]
mod watch;
