//! Workers on a queue, and the name their results come back under.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use paceline_jobs::nats::{Address, RemoteExecutor, SenderId};

use super::DASH;
use crate::cli::BatchArgs;

pub(super) struct Workers {
    pub(super) executor: RemoteExecutor,
    pub(super) sender: SenderId,
}

impl Workers {
    pub(super) fn reach(address: &Address, args: &BatchArgs) -> Result<Workers> {
        let sender = sender(args)?;
        let executor = RemoteExecutor::connect(address, &sender)?;
        Ok(Workers { executor, sender })
    }
}

/// The name stands beside the output while the job lasts: a run that goes on finds what workers
/// did meanwhile. Into a pipe there is nothing to go on with.
fn sender(args: &BatchArgs) -> Result<SenderId> {
    let is_file = args.output != Path::new(DASH) && args.output.is_file();
    if !is_file {
        return Ok(SenderId::for_once());
    }
    let mut path = args.output.clone().into_os_string();
    path.push(".queue");
    let path = PathBuf::from(path);
    if args.force {
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot replace {}", path.display()));
            }
            _ => {}
        }
    }
    Ok(SenderId::of_job(&path)?)
}
