//! Batches over many machines: a queue of lines and a queue of results on NATS JetStream.
//!
//! ```text
//!  any Source ─► Runner ─► RemoteExecutor ─► lines ─► WorkerSource ─► Runner ─► an engine
//!  (file, store)                ▲                          │ result kept, then line acknowledged
//!                               └────────── results ◄──────┘
//! ```
//!
//! Both ends are the seam that one machine uses too: who has a batch sees an [`Executor`], who has
//! an engine sees a [`Source`]. Every line is delivered at least once, its result is kept before
//! the line is acknowledged, and the [`Source`] of the batch writes one result for each line: so
//! each has exactly one, whoever dies. What is on the queue is OpenAI's line (with the model it is
//! for, if its sender knows one) and OpenAI's result. All workers of a queue have the same model.
//!
//! [`Executor`]: crate::Executor
//! [`Source`]: crate::Source

mod address;
mod collect;
mod link;
mod model;
mod remote;
mod sender;
mod wire;
mod worker;

pub use address::{Address, AddressError};
pub use link::NatsError;
pub use model::ModelId;
pub use remote::{LineOnQueue, RemoteExecutor};
pub use sender::SenderId;
pub use worker::{StopWorker, WorkerOptions, WorkerSource};
