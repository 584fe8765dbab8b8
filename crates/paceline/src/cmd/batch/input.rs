//! Where prompts come from: a file or standard input, read ahead on a thread of its own so that a
//! slow pipe never holds up the engine.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use anyhow::{Context, Result, bail};
use paceline::{GenerateParams, Message};
use paceline_engine::derive_seed;

use super::DASH;
use super::line::{Parsed, Work, parse};
use super::lines::{Line, MAX_LINE_BYTES, next_line};
use crate::cli::{BatchArgs, LineFormat};

/// Entries read ahead of the engine.
const READ_AHEAD: usize = 16;

/// An opened input.
#[derive(Debug)]
pub(super) struct Input {
    /// `None` is standard input.
    file: Option<(File, PathBuf)>,
    pub(super) format: LineFormat,
}

/// One prompt of the input.
#[derive(Debug)]
pub(super) struct Entry {
    /// Its place among the prompts.
    pub(super) order: u64,
    /// Its line in the input, from 0.
    pub(super) index: u64,
    pub(super) custom_id: Option<String>,
    /// What to do, or why it cannot be done.
    pub(super) work: Result<Work, String>,
}

/// How lines become prompts.
#[derive(Clone, Debug)]
pub(super) struct LineReader {
    pub(super) format: LineFormat,
    /// Put plain prompts into the chat template.
    pub(super) chat: bool,
    pub(super) system: Option<String>,
    pub(super) defaults: GenerateParams,
}

impl Input {
    pub(super) fn open(args: &BatchArgs) -> Result<Input> {
        let path = &args.input;
        let is_stdin = path == Path::new(DASH);
        let has_json_name = matches!(
            path.extension().and_then(|extension| extension.to_str()),
            Some("jsonl" | "ndjson")
        );
        let by_name = if is_stdin || has_json_name { LineFormat::Jsonl } else { LineFormat::Text };
        let format = args.format.unwrap_or(by_name);
        if is_stdin {
            return Ok(Input { file: None, format });
        }
        let context = || format!("cannot read {}", path.display());
        let file = File::open(path).with_context(context)?;
        if file.metadata().with_context(context)?.is_dir() {
            bail!("{} is a directory; give a file with a prompt on each line", path.display());
        }
        Ok(Input { file: Some((file, path.clone())), format })
    }

    /// How many prompts there are; `None` for what can only be read once.
    pub(super) fn count_lines(&self) -> Result<Option<u64>> {
        let Some((file, path)) = &self.file else { return Ok(None) };
        if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
            return Ok(None);
        }
        let count = || -> io::Result<u64> {
            let mut reader = BufReader::new(File::open(path)?);
            let mut n_lines = 0;
            while let Some(line) = next_line(&mut reader, MAX_LINE_BYTES)? {
                n_lines += u64::from(line != Line::Blank);
            }
            Ok(n_lines)
        };
        count().map(Some).with_context(|| format!("cannot read {}", path.display()))
    }

    /// Starts reading. The thread ends with the input, or when nobody listens any more.
    pub(super) fn spawn(self, reader: LineReader) -> Receiver<Result<Entry>> {
        let (sender, receiver) = sync_channel(READ_AHEAD);
        std::thread::spawn(move || match self.file {
            Some((file, path)) => {
                let context = format!("cannot read {}", path.display());
                reader.send_all(BufReader::new(file), &context, &sender);
            }
            None => reader.send_all(io::stdin().lock(), "cannot read standard input", &sender),
        });
        receiver
    }
}

impl LineReader {
    fn send_all(&self, mut input: impl BufRead, context: &str, to: &SyncSender<Result<Entry>>) {
        let (mut index, mut order) = (0, 0);
        loop {
            let entry = match next_line(&mut input, MAX_LINE_BYTES) {
                Ok(None) => return,
                Ok(Some(Line::Blank)) => {
                    index += 1;
                    continue;
                }
                Ok(Some(line)) => Ok(self.entry(line, order, index)),
                Err(error) => Err(anyhow::Error::new(error).context(context.to_owned())),
            };
            let is_last = entry.is_err();
            if to.send(entry).is_err() || is_last {
                return;
            }
            index += 1;
            order += 1;
        }
    }

    fn entry(&self, line: Line, order: u64, index: u64) -> Entry {
        let parsed = match line {
            Line::Text(text) => self.parse(text.strip_prefix('\u{feff}').unwrap_or(&text), index),
            Line::NotUtf8 => Parsed::failed("the line is not valid UTF-8"),
            Line::TooLong => Parsed::failed(format!(
                "the line is longer than {} MiB, the most that is taken",
                MAX_LINE_BYTES >> 20
            )),
            Line::Blank => Parsed::failed("the line is blank"),
        };
        Entry { order, index, custom_id: parsed.custom_id, work: parsed.work }
    }

    fn parse(&self, text: &str, index: u64) -> Parsed {
        let mut defaults = self.defaults.clone();
        defaults.sampling.seed = line_seed(defaults.sampling.seed, index);
        let mut parsed = match self.format {
            LineFormat::Text => Parsed {
                custom_id: None,
                work: Ok(Work { input: paceline::Input::Text(text.to_owned()), params: defaults }),
            },
            LineFormat::Jsonl => parse(text, defaults),
        };
        if self.chat {
            parsed.work = parsed.work.map(|work| self.as_chat(work));
        }
        parsed
    }

    /// Plain text becomes a user's question.
    fn as_chat(&self, work: Work) -> Work {
        let paceline::Input::Text(text) = work.input else { return work };
        let system = self.system.iter().map(|system| Message::new("system", system));
        let messages = system.chain([Message::new("user", text)]).collect();
        Work { input: paceline::Input::Chat(messages), ..work }
    }
}

/// Equal prompts on different lines shall not get equal answers. Two steps, because the engine
/// takes one for each of a prompt's `n` answers.
fn line_seed(seed: u64, index: u64) -> u64 {
    let line = u32::try_from(index).unwrap_or(u32::MAX).saturating_add(1);
    derive_seed(derive_seed(seed, 1), line)
}
