//! How a command ends.

use std::io;
use std::process::ExitCode;

/// The end of a command that did not fail as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// Part of the work failed, and the user has been told.
    Failed,
    /// The user stopped it.
    Interrupted,
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> ExitCode {
        ExitCode::from(match outcome {
            Outcome::Done => 0,
            Outcome::Failed => 1,
            // What shells report for a process that SIGINT ended.
            Outcome::Interrupted => 130,
        })
    }
}

/// The command line asks for something impossible.
#[derive(Debug, thiserror::Error)]
#[error("{0}; try --help")]
pub(crate) struct UsageError(pub(crate) String);

/// An error and its causes as one sentence. Many errors already quote their cause; it is not
/// repeated.
pub(crate) fn sentence(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(|cause| cause.to_string()) {
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

/// Whether the reader of our output has gone, as in `paceline run … | head -1`.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let is_broken = |kind| kind == Some(io::ErrorKind::BrokenPipe);
    error.chain().any(|cause| {
        let io = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        // The JSON writer wraps errors of the stream it writes to.
        let json = cause.downcast_ref::<serde_json::Error>().and_then(|json| json.io_error_kind());
        is_broken(io) || is_broken(json)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn causes_are_told_once() {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let plain = Err::<(), _>(missing()).context("cannot read a.txt").unwrap_err();
        assert_eq!(sentence(&plain), "cannot read a.txt: entity not found");
        let quoting = format!("a.txt: {}", missing());
        let quoting = Err::<(), _>(missing()).context(quoting).unwrap_err();
        assert_eq!(sentence(&quoting), "a.txt: entity not found");
    }

    #[test]
    fn a_closed_pipe_is_found_behind_other_words() {
        let closed = Err::<(), _>(io::Error::from(io::ErrorKind::BrokenPipe));
        assert!(is_broken_pipe(&closed.context("cannot write").unwrap_err()));
        assert!(!is_broken_pipe(&anyhow::anyhow!("broken pipe")));
    }
}
