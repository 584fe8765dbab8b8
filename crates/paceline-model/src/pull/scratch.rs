//! A directory that goes away with its owner.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A directory this old belongs to a process that was killed.
const ABANDONED: Duration = Duration::from_secs(24 * 60 * 60);

static COUNT: AtomicU32 = AtomicU32::new(0);

/// A fresh directory, removed with all its contents when dropped.
#[derive(Debug)]
pub(crate) struct ScratchDir(PathBuf);

impl ScratchDir {
    /// Creates one inside `parent`, which is created too where it does not exist, and removes
    /// those that earlier processes could not.
    pub(crate) fn new_in(parent: &Path, purpose: &str) -> io::Result<Self> {
        fs::create_dir_all(parent)?;
        remove_abandoned(parent, &format!(".{purpose}-"));
        loop {
            let number = COUNT.fetch_add(1, Ordering::Relaxed);
            let name = format!(".{purpose}-{}-{number}", std::process::id());
            let path = parent.join(name);
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Self(path)),
                // Left by a process that had the same number.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::warn!(path = %self.0.display(), %error, "cannot remove a temporary directory");
        }
    }
}

fn remove_abandoned(parent: &Path, prefix: &str) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().to_string_lossy().starts_with(prefix);
        let changed = entry.metadata().and_then(|meta| meta.modified());
        let age = changed.ok().and_then(|time| time.elapsed().ok());
        if is_ours && age.is_some_and(|age| age > ABANDONED) {
            // Failing to tidy up is no reason to fail.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
