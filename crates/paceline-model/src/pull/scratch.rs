//! A directory that goes away with its owner.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

static COUNT: AtomicU32 = AtomicU32::new(0);

/// A fresh directory, removed with all its contents when dropped.
#[derive(Debug)]
pub(crate) struct ScratchDir(PathBuf);

impl ScratchDir {
    /// Creates one inside `parent`, which is created too where it does not exist.
    pub(crate) fn new_in(parent: &Path, purpose: &str) -> io::Result<Self> {
        std::fs::create_dir_all(parent)?;
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!(".{purpose}-{}-{number}", std::process::id());
        let path = parent.join(name);
        std::fs::create_dir(&path)?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(path = %self.0.display(), %error, "cannot remove a temporary directory");
        }
    }
}
