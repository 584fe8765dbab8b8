//! Who lines belong to: results come back under this name, after a restart too.

use std::fs::OpenOptions;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::error::{JobsError, failed_to};
use crate::results::sync_dir;

const N_DIGITS: usize = 32;

/// The name of one data directory or one output file. Nobody may use one twice at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SenderId {
    pub(super) name: String,
    /// Whether it is gone with the job.
    pub(super) is_passing: bool,
    path: Option<PathBuf>,
}

impl SenderId {
    /// A name for this run alone.
    pub fn for_once() -> SenderId {
        let number = || RandomState::new().hash_one(0u8);
        let name = format!("{:016x}{:016x}", number(), number());
        SenderId { name, is_passing: true, path: None }
    }

    /// The name that stands in a file, which is made if it is not there.
    pub fn kept_in(path: &Path) -> Result<SenderId, JobsError> {
        match std::fs::read_to_string(path) {
            Ok(text) => SenderId::read(text.trim(), path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => SenderId::make(path),
            Err(error) => Err(failed_to("read", path)(error)),
        }
    }

    /// The same, for one job: [`SenderId::forget`] removes the file with it.
    pub fn of_job(path: &Path) -> Result<SenderId, JobsError> {
        Ok(SenderId { is_passing: true, ..SenderId::kept_in(path)? })
    }

    fn read(name: &str, path: &Path) -> Result<SenderId, JobsError> {
        let is_name = name.len() == N_DIGITS && name.bytes().all(|b| b.is_ascii_hexdigit());
        match is_name {
            true => Ok(SenderId {
                name: name.to_owned(),
                is_passing: false,
                path: Some(path.to_owned()),
            }),
            false => Err(JobsError::Inconsistent(format!(
                "{} does not hold the name of a sender; remove it to have a new one made",
                path.display()
            ))),
        }
    }

    fn make(path: &Path) -> Result<SenderId, JobsError> {
        let id = SenderId::for_once();
        // Never half a name, whenever a kill comes.
        let part = path.with_extension("part");
        let write = || {
            let mut file =
                OpenOptions::new().write(true).create(true).truncate(true).open(&part)?;
            file.write_all(id.name.as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&part, path)?;
            let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
            sync_dir(dir.unwrap_or(Path::new(".")))
        };
        write().map_err(failed_to("write", path))?;
        Ok(SenderId { is_passing: false, path: Some(path.to_owned()), ..id })
    }

    /// Removes the file, once nothing is to come back.
    pub fn forget(self) -> Result<(), JobsError> {
        match &self.path {
            Some(path) if self.is_passing => {
                std::fs::remove_file(path).map_err(failed_to("remove", path))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_kept_until_it_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.queue");
        let first = SenderId::of_job(&path).unwrap();
        assert_eq!(SenderId::of_job(&path).unwrap(), first);
        first.clone().forget().unwrap();
        assert_ne!(SenderId::of_job(&path).unwrap(), first);
        std::fs::write(&path, "a.b.*").unwrap();
        assert!(matches!(SenderId::kept_in(&path), Err(JobsError::Inconsistent(_))));
    }
}
