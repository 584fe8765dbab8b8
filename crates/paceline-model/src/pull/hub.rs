//! Models from the Hugging Face hub, kept in its usual cache.
//!
//! The `hf-hub` crate downloads and resumes. Checked here: that names stay inside the cache, and
//! that a file has the sha256 the hub states for it.

use std::cell::Cell;
use std::fs;
use std::path::{Component, Path, PathBuf};

use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, CacheRepo};

use super::choose::{Choice, choose};
use super::error::PullError;
use super::progress::Progress;
use super::save::file_sha256;

/// Where the hub is and where its files are kept.
#[derive(Clone, Debug)]
pub(super) struct Hub<'a> {
    pub(super) dir: &'a Path,
    pub(super) endpoint: Option<&'a str>,
    pub(super) token: Option<&'a str>,
    pub(super) offline: bool,
}

impl Hub<'_> {
    /// The path of a model: a GGUF file, or the directory of a checkpoint.
    pub(super) fn fetch(
        &self,
        repo: &str,
        file: Option<&str>,
        progress: &dyn Progress,
    ) -> Result<PathBuf, PullError> {
        if let Some(path) = self.cached(repo, file) {
            return Ok(path);
        }
        if self.offline {
            return Err(PullError::Offline { what: format!("hf:{repo}") });
        }
        let api = self.api()?;
        let remote = Remote {
            api: &api,
            api_repo: api.model(repo.to_owned()),
            cache: self.cache(repo),
            repo,
        };
        match file {
            Some(file) => remote.download(file, progress),
            None => remote.download_model(progress),
        }
    }

    /// What of it the cache already holds whole.
    pub(super) fn cached(&self, repo: &str, file: Option<&str>) -> Option<PathBuf> {
        let cache = self.cache(repo);
        if let Some(file) = file {
            return cache.get(file);
        }
        let listing = local_files(&self.snapshot(repo)?);
        match choose(repo, &listing).ok()? {
            Choice::Gguf(file) => cache.get(&file),
            Choice::Checkpoint(files) => {
                let whole = ["config.json", "tokenizer.json"]
                    .iter()
                    .all(|name| files.iter().any(|file| file == name));
                let dir = self.snapshot(repo)?;
                (whole && has_all_shards(&dir)).then_some(dir)
            }
        }
    }

    fn cache(&self, repo: &str) -> CacheRepo {
        Cache::new(self.dir.to_path_buf()).model(repo.to_owned())
    }

    /// The directory of the revision that was fetched last.
    fn snapshot(&self, repo: &str) -> Option<PathBuf> {
        let folder = self.dir.join(format!("models--{}", repo.replace('/', "--")));
        let commit = fs::read_to_string(folder.join("refs/main")).ok()?;
        let dir = self.cache(repo).pointer_path(commit.trim());
        dir.is_dir().then_some(dir)
    }

    fn api(&self) -> Result<Api, PullError> {
        let mut builder = ApiBuilder::from_cache(Cache::new(self.dir.to_path_buf()))
            .with_progress(false)
            .with_retries(2);
        if let Some(endpoint) = self.endpoint {
            builder = builder.with_endpoint(endpoint.to_owned());
        }
        if let Some(token) = self.token {
            builder = builder.with_token(Some(token.to_owned()));
        }
        builder.build().map_err(|error| PullError::Network { why: error.to_string() })
    }
}

/// Names of the files in a snapshot, without its subdirectories.
fn local_files(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    // A link whose blob is gone is no file.
    let files = entries.filter(|entry| entry.path().is_file());
    let mut names: Vec<String> =
        files.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// Whether every file that the index names is there; without an index there is only one.
fn has_all_shards(dir: &Path) -> bool {
    let Ok(text) = fs::read(dir.join("model.safetensors.index.json")) else {
        return dir.join("model.safetensors").is_file();
    };
    let index: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
    let Some(map) = index["weight_map"].as_object() else {
        return false;
    };
    map.values().all(|file| file.as_str().is_some_and(|file| dir.join(file).is_file()))
}

/// One repository, reached over the network.
struct Remote<'a> {
    api: &'a Api,
    api_repo: ApiRepo,
    cache: CacheRepo,
    repo: &'a str,
}

impl Remote<'_> {
    fn download_model(&self, progress: &dyn Progress) -> Result<PathBuf, PullError> {
        let info =
            self.api_repo.info().map_err(|error| self.error(error, None, self.cache_path()))?;
        let names = info.siblings.into_iter().map(|sibling| sibling.rfilename);
        let files: Vec<String> = names.filter(|name| is_safe_name(name)).collect();
        match choose(self.repo, &files)? {
            Choice::Gguf(file) => self.download(&file, progress),
            Choice::Checkpoint(files) => {
                let mut dir = PathBuf::new();
                for file in &files {
                    let path = self.download(file, progress)?;
                    dir = path.parent().unwrap_or(Path::new("")).to_path_buf();
                }
                Ok(dir)
            }
        }
    }

    /// Downloads one file, or finishes a download that was cut off.
    fn download(&self, file: &str, progress: &dyn Progress) -> Result<PathBuf, PullError> {
        if let Some(path) = self.cache.get(file) {
            return Ok(path);
        }
        let url = self.api_repo.url(file);
        let failed = |error| self.error(error, Some(file), self.cache_path());
        let metadata = self.api.metadata(&url).map_err(failed)?;
        let etag = metadata.etag();
        if !is_safe_name(etag) || etag.contains('/') {
            return Err(PullError::Network {
                why: format!("the hub named {file} in a way that is not a name"),
            });
        }
        let blob = self.cache.blob_path(etag);
        let part = blob.with_extension("part");
        drop_useless_part(&part, metadata.size() as u64);
        let result = self.api_repo.download_with_progress(file, HubProgress::new(progress));
        progress.finish();
        let path = result.map_err(|error| {
            let error = self.error(error, Some(file), &blob);
            if matches!(error, PullError::DiskFull { .. }) {
                // The space is needed more than the start of a file that does not fit.
                let _ = fs::remove_file(&part);
            }
            error
        })?;
        self.verify(file, etag, &path)?;
        Ok(path)
    }

    /// Large files are named by their sha256 on the hub; what does not match is removed.
    fn verify(&self, file: &str, etag: &str, path: &Path) -> Result<(), PullError> {
        let is_sha256 = etag.len() == 64 && etag.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_sha256 {
            return Ok(());
        }
        let found = file_sha256(path)?;
        if found.eq_ignore_ascii_case(etag) {
            return Ok(());
        }
        for damaged in [path, &self.cache.blob_path(etag)] {
            if let Err(error) = fs::remove_file(damaged) {
                tracing::warn!(path = %damaged.display(), %error, "cannot remove a damaged file");
            }
        }
        Err(PullError::Checksum { name: file.to_owned(), expected: etag.to_owned(), found })
    }

    fn cache_path(&self) -> PathBuf {
        self.cache.pointer_path("main")
    }

    fn error(&self, error: ApiError, file: Option<&str>, path: impl AsRef<Path>) -> PullError {
        let repo = self.repo.to_owned();
        match error {
            ApiError::TooManyRetries(inner) => self.error(*inner, file, path),
            ApiError::RequestError(request) => match (*request, file) {
                (ureq::Error::StatusCode(404), Some(file)) => {
                    PullError::UnknownFile { repo, file: file.to_owned() }
                }
                // The hub answers 401 for a repository that does not exist.
                (ureq::Error::StatusCode(401 | 404), _) => PullError::UnknownRepo { repo },
                (ureq::Error::StatusCode(403), _) => PullError::Forbidden { repo },
                (other, _) => PullError::Network { why: other.to_string() },
            },
            ApiError::IoError(source) => match PullError::writing(path.as_ref(), source) {
                PullError::Io { source, .. } => PullError::Network { why: source.to_string() },
                written => written,
            },
            other => PullError::Network { why: other.to_string() },
        }
    }
}

/// A download that was cut off after its last byte, or that is longer than the file, cannot be
/// resumed: the server would refuse the range. It starts anew.
fn drop_useless_part(part: &Path, size: u64) {
    let length = fs::metadata(part).map(|meta| meta.len());
    if length.is_ok_and(|length| length >= size) {
        let _ = fs::remove_file(part);
    }
}

/// Whether a name is a plain relative path: it then stays inside the directory it is joined to.
pub(super) fn is_safe_name(name: &str) -> bool {
    let plain = |component: Component<'_>| matches!(component, Component::Normal(_));
    !name.is_empty() && !name.contains('\\') && Path::new(name).components().all(plain)
}

/// Hands `hf-hub`'s reports on, which come as differences.
struct HubProgress<'a> {
    progress: &'a dyn Progress,
    bytes: Cell<u64>,
}

impl<'a> HubProgress<'a> {
    fn new(progress: &'a dyn Progress) -> Self {
        Self { progress, bytes: Cell::new(0) }
    }
}

impl hf_hub::api::Progress for HubProgress<'_> {
    fn init(&mut self, size: usize, filename: &str) {
        self.bytes.set(0);
        self.progress.start(filename, Some(size as u64));
    }

    fn update(&mut self, size: usize) {
        let bytes = self.bytes.get() + size as u64;
        self.bytes.set(bytes);
        self.progress.at(bytes);
    }

    fn finish(&mut self) {}
}
