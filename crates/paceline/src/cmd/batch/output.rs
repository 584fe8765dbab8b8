//! Where results go: written as they come, or held until those before them are there.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::DASH;
use crate::cli::BatchArgs;

/// A stream of result lines.
pub(super) struct Output {
    stream: BufWriter<Box<dyn Write>>,
    /// For error messages.
    name: String,
    /// Results that wait for an earlier one; `None` when order does not matter.
    held: Option<BTreeMap<u64, String>>,
    /// The next prompt in order.
    next: u64,
}

impl Output {
    /// Whether the output could be created, as far as can be told without doing it.
    pub(super) fn check(args: &BatchArgs) -> Result<()> {
        let path = &args.output;
        if path == Path::new(DASH) || !path.exists() {
            return Ok(());
        }
        if !args.force {
            bail!("{} exists already; use --force to replace it", path.display());
        }
        let is_same = |a: &Path, b: &Path| a.canonicalize().ok() == b.canonicalize().ok();
        if args.input != Path::new(DASH) && is_same(path, &args.input) {
            bail!("input and output are the same file, {}", path.display());
        }
        Ok(())
    }

    pub(super) fn create(args: &BatchArgs) -> Result<Output> {
        let held = args.ordered.then(BTreeMap::new);
        let (name, stream): (String, Box<dyn Write>) = if args.output == Path::new(DASH) {
            ("standard output".to_owned(), Box::new(io::stdout()))
        } else {
            let name = args.output.display().to_string();
            let file = open(args).with_context(|| format!("cannot create {name}"))?;
            (name, Box::new(file))
        };
        Ok(Output { stream: BufWriter::new(stream), name, held, next: 0 })
    }

    /// Takes the lines of the prompt with this place in the order.
    pub(super) fn put(&mut self, order: u64, lines: String) -> Result<()> {
        match &mut self.held {
            None => self.write(&lines),
            Some(held) => {
                held.insert(order, lines);
                self.write_ready()
            }
        }
    }

    /// Results that wait for an earlier one.
    pub(super) fn n_held(&self) -> usize {
        self.held.as_ref().map_or(0, BTreeMap::len)
    }

    /// Makes what was written visible to others.
    pub(super) fn flush(&mut self) -> Result<()> {
        self.stream.flush().with_context(|| format!("cannot write to {}", self.name))
    }

    /// Writes what is there although something before it is missing.
    pub(super) fn write_held(&mut self) -> Result<()> {
        let held = self.held.as_mut().map(std::mem::take).unwrap_or_default();
        held.values().try_for_each(|lines| self.write(lines))?;
        self.flush()
    }

    fn write_ready(&mut self) -> Result<()> {
        while let Some(lines) = self.held.as_mut().and_then(|held| held.remove(&self.next)) {
            self.write(&lines)?;
            self.next += 1;
        }
        Ok(())
    }

    fn write(&mut self, lines: &str) -> Result<()> {
        let written = self.stream.write_all(lines.as_bytes());
        written.with_context(|| format!("cannot write to {}", self.name))
    }
}

fn open(args: &BatchArgs) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true);
    if args.force {
        options.create(true).truncate(true);
    } else {
        options.create_new(true);
    }
    options.open(&args.output)
}
