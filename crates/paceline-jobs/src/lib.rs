//! Batch jobs: files of requests in, files of results out, through any kill.
//!
//! ```text
//!            Source                        Runner                      Executor
//!  store, or a file, or a queue   take ──► keeps just enough    ──►  an engine behind
//!  that machines share            give ◄── lines under way      ◄──  OpenAI's routes
//! ```
//!
//! Owns the lines' formats (`line`), the order they run in (`order`), result files that survive a
//! kill (`results`), the `runner`, with the feature `store` files and batches in a data directory
//! (`store`, `queue`), and with the feature `nats` both ends of a queue that machines share
//! (`nats`). Refuses to know HTTP, models, engines and what a request's body means: an
//! [`Executor`] does. Prints nothing; logs with `tracing`.

mod endpoint;
mod error;
pub mod line;
pub mod lines;
#[cfg(feature = "nats")]
pub mod nats;
pub mod order;
#[cfg(feature = "store")]
mod prepare;
#[cfg(feature = "store")]
pub mod queue;
pub mod results;
pub mod runner;
#[cfg(feature = "store")]
pub mod store;
mod window;

pub use endpoint::Endpoint;
pub use error::{JobsError, failed_to};
pub use runner::{Executor, Finished, Line, News, Outcome, Runner, Source, Ticket};
pub use window::{Window, WindowError};
