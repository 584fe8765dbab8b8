//! Workers on a queue, and the name their results come back under.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use paceline_jobs::nats::{Address, RemoteExecutor, SenderId};

use super::DASH;
use crate::cli::{BatchArgs, LineFormat, UsageError};

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

pub(super) fn check_format(args: &BatchArgs, format: LineFormat) -> Result<()> {
    if args.queue.is_some() && format != LineFormat::Openai {
        let why = "--queue takes OpenAI's batch lines; prompts with flags run on one machine alone";
        return Err(UsageError(why.to_owned()).into());
    }
    Ok(())
}

/// Into a pipe there is nothing to go on with.
fn sender(args: &BatchArgs) -> Result<SenderId> {
    let is_file = args.output != Path::new(DASH) && args.output.is_file();
    if !is_file {
        return Ok(SenderId::for_once());
    }
    if args.force {
        remove_name(args)?;
    }
    Ok(SenderId::of_job(&name_path(args))?)
}

/// The name stands beside the output while the job lasts: a run that goes on finds what workers
/// did meanwhile.
fn name_path(args: &BatchArgs) -> PathBuf {
    let mut path = args.output.clone().into_os_string();
    path.push(".queue");
    PathBuf::from(path)
}

/// Forgets the name of an earlier run.
pub(super) fn remove_name(args: &BatchArgs) -> Result<()> {
    let path = name_path(args);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}
