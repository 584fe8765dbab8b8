//! Where results go: written as they come, or held until those before them are there.
//!
//! Results and errors are two files, appended to and never rewritten, so that a run that was cut
//! short goes on where it stopped. Into a pipe both go as one stream.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use paceline_jobs::JobsError;
use paceline_jobs::results::ResultFile;

use super::DASH;
use super::survey::Done;
use crate::cli::BatchArgs;

/// How often files are synced to the disk. A kill loses nothing that was written; a power cut
/// loses at most this much work, which is done again.
const SYNC_EVERY: Duration = Duration::from_secs(1);

/// Lines of one prompt.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) lines: String,
    pub(super) is_error: bool,
}

pub(super) struct Output {
    results: Sink,
    errors: Errors,
    /// Results that wait for an earlier one; `None` when order does not matter.
    held: Option<BTreeMap<u64, Written>>,
    /// The next prompt in order.
    next: u64,
    synced: Instant,
}

/// Where errors go.
enum Errors {
    /// Among the results.
    Inline,
    /// A file that is made with the first of them.
    NotYet(PathBuf),
    File(Sink),
}

/// A file that can be recovered, or a stream that cannot.
enum Sink {
    File { file: ResultFile, pending: String },
    Stream { stream: BufWriter<Box<dyn Write>>, name: String },
}

impl Output {
    /// Opens the outputs; `done` gets the results they have already.
    pub(super) fn open(args: &BatchArgs, done: &mut Done) -> Result<Output> {
        check_paths(args)?;
        let results = Sink::open(&args.output, args.force, done)?;
        // Whoever reads from a pipe reads from the start: errors of earlier runs do not count.
        let mut ignored = Done::default();
        let done = if matches!(results, Sink::Stream { .. }) { &mut ignored } else { done };
        let errors = match args.errors_path() {
            Some(path) if !args.force && path.exists() => {
                Errors::File(Sink::open(&path, false, done)?)
            }
            Some(path) => {
                remove(&path)?;
                Errors::NotYet(path)
            }
            None => Errors::Inline,
        };
        let held = args.ordered.then(BTreeMap::new);
        Ok(Output { results, errors, held, next: 0, synced: Instant::now() })
    }

    /// Takes the lines of the prompt with this place in the order.
    pub(super) fn put(&mut self, order: u64, written: Written) -> Result<()> {
        match &mut self.held {
            None => self.write(&written),
            Some(held) => {
                held.insert(order, written);
                self.write_ready()
            }
        }
    }

    /// Results that wait for an earlier one.
    pub(super) fn n_held(&self) -> usize {
        self.held.as_ref().map_or(0, BTreeMap::len)
    }

    /// Makes what was written visible to others, and now and then safe from power cuts.
    pub(super) fn flush(&mut self) -> Result<()> {
        let is_due = self.synced.elapsed() >= SYNC_EVERY;
        self.results.flush(is_due)?;
        if let Errors::File(errors) = &mut self.errors {
            errors.flush(is_due)?;
        }
        if is_due {
            self.synced = Instant::now();
        }
        Ok(())
    }

    /// Writes what is there although something before it is missing, and syncs.
    pub(super) fn close(&mut self) -> Result<()> {
        let held = self.held.as_mut().map(std::mem::take).unwrap_or_default();
        held.values().try_for_each(|written| self.write(written))?;
        self.results.flush(true)?;
        match &mut self.errors {
            Errors::File(errors) => errors.flush(true),
            _ => Ok(()),
        }
    }

    fn write_ready(&mut self) -> Result<()> {
        while let Some(written) = self.held.as_mut().and_then(|held| held.remove(&self.next)) {
            self.write(&written)?;
            self.next += 1;
        }
        Ok(())
    }

    fn write(&mut self, written: &Written) -> Result<()> {
        if let Errors::NotYet(path) = &self.errors
            && written.is_error
        {
            self.errors = Errors::File(Sink::open(&path.clone(), false, &mut Done::default())?);
        }
        match &mut self.errors {
            Errors::File(errors) if written.is_error => errors.write(&written.lines),
            _ => self.results.write(&written.lines),
        }
    }
}

fn check_paths(args: &BatchArgs) -> Result<()> {
    let is_same = |a: &Path, b: &Path| match (a.canonicalize(), b.canonicalize()) {
        (Ok(a), Ok(b)) => a == b,
        _ => false,
    };
    let errors = args.errors_path();
    let outputs = [Some(&args.output), errors.as_ref()];
    for output in outputs.into_iter().flatten() {
        if args.input != Path::new(DASH) && is_same(output, &args.input) {
            bail!("input and output are the same file, {}", output.display());
        }
    }
    match errors {
        Some(errors) if errors == args.output => bail!("results and errors need two files"),
        _ => Ok(()),
    }
}

fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot replace {}", path.display()))
        }
        _ => Ok(()),
    }
}

impl Sink {
    fn open(path: &Path, force: bool, done: &mut Done) -> Result<Sink> {
        let stream = |name: String, stream: Box<dyn Write>| Sink::Stream {
            stream: BufWriter::new(stream),
            name,
        };
        if path == Path::new(DASH) {
            return Ok(stream("standard output".to_owned(), Box::new(io::stdout())));
        }
        let name = path.display().to_string();
        let context = || format!("cannot create {name}");
        match path.metadata() {
            // A device or a pipe keeps nothing.
            Ok(metadata) if !metadata.is_file() && !metadata.is_dir() => {
                let file = OpenOptions::new().write(true).open(path).with_context(context)?;
                return Ok(stream(name, Box::new(file)));
            }
            Ok(_) if force => {
                let file = OpenOptions::new().write(true).open(path).with_context(context)?;
                file.set_len(0).with_context(context)?;
            }
            _ => {}
        }
        let file =
            ResultFile::recover(path, |head| done.add(head)).map_err(|error| match error {
                JobsError::NoResult { line, .. } => anyhow::anyhow!(
                    "{name} exists already, but its line {line} is no result to go on from; use \
                 --force to replace it"
                ),
                JobsError::Io { source, .. } => anyhow::Error::new(source).context(context()),
                error => error.into(),
            })?;
        Ok(Sink::File { file, pending: String::new() })
    }

    fn write(&mut self, lines: &str) -> Result<()> {
        match self {
            Sink::File { pending, .. } => pending.push_str(lines),
            Sink::Stream { stream, name } => {
                let written = stream.write_all(lines.as_bytes());
                written.with_context(|| format!("cannot write to {name}"))?;
            }
        }
        Ok(())
    }

    fn flush(&mut self, is_sync_due: bool) -> Result<()> {
        match self {
            Sink::File { file, pending } => {
                file.append(pending.as_bytes())?;
                pending.clear();
                if is_sync_due {
                    file.sync()?;
                }
            }
            Sink::Stream { stream, name } => {
                stream.flush().with_context(|| format!("cannot write to {name}"))?;
            }
        }
        Ok(())
    }
}
