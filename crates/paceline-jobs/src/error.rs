//! What can go wrong with files and the store.

use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum JobsError {
    #[error("cannot {what} {}: {source}", .path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "{} is in use by another server; give each server a data directory of its own",
        .path.display()
    )]
    Locked { path: PathBuf },
    #[error("{} is being written by another run", .path.display())]
    Busy { path: PathBuf },
    #[error("line {line} of {} is no result of a batch", .path.display())]
    NoResult { path: PathBuf, line: u64 },
    #[cfg(feature = "store")]
    #[error("the job database: {0}")]
    Database(#[from] rusqlite::Error),
    #[cfg(feature = "store")]
    #[error("the job database was made by a newer version of this program")]
    NewerVersion,
    #[cfg(feature = "nats")]
    #[error(transparent)]
    Nats(#[from] crate::nats::NatsError),
    #[error("{0}")]
    Inconsistent(String),
}

/// Says what was being done to which file.
pub fn failed_to(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> JobsError {
    let path = path.to_owned();
    move |source| JobsError::Io { what, path, source }
}
