//! Where lines come from: a file or standard input, read ahead on a thread of its own so that a
//! slow pipe never holds up the engine.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Stdin};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, sync_channel};

use anyhow::{Context, Result, bail};
use paceline_jobs::line::is_envelope;
use paceline_jobs::lines::{Line, Lines, MAX_LINE_BYTES};

use super::DASH;
use super::survey::{Done, Glance, Survey, Todo, survey};
use crate::cli::{BatchArgs, LineFormat};

/// Entries read ahead of the engine.
const READ_AHEAD: usize = 16;

/// An opened input.
#[derive(Debug)]
pub(super) struct Input {
    stream: Stream,
    pub(super) format: LineFormat,
}

#[derive(Debug)]
enum Stream {
    /// Can be read twice.
    File(PathBuf),
    /// Can be read once.
    Pipe(Pipe),
}

/// Lines that come once, after those that were looked at to see what they are.
#[derive(Debug)]
struct Pipe {
    name: String,
    seen: Vec<Line>,
    rest: Lines<BufReader<Source>>,
}

#[derive(Debug)]
enum Source {
    Stdin(Stdin),
    File(File),
}

impl io::Read for Source {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Source::Stdin(stdin) => stdin.read(buffer),
            Source::File(file) => file.read(buffer),
        }
    }
}

/// A line on its way to be run.
#[derive(Debug)]
pub(super) struct Raw {
    /// Its place among those that run.
    pub(super) order: u64,
    /// Its line in the input, from 0.
    pub(super) index: u64,
    pub(super) text: Result<String, Unreadable>,
}

/// A line that is no text, or whose id another line has.
#[derive(Debug)]
pub(super) struct Unreadable {
    pub(super) custom_id: Option<String>,
    pub(super) why: String,
}

/// Lines that are ready to be read.
#[derive(Debug)]
pub(super) struct Feed {
    stream: Stream,
    format: LineFormat,
    todo: Vec<Todo>,
    done: Done,
    /// Lines of the input and how many of them have run; `None` for what can only be read once.
    pub(super) n_lines: Option<u64>,
    pub(super) n_done: u64,
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
        let mut stream = open(path, is_stdin)?;
        let format = match args.format {
            Some(format) => format,
            None if by_name == LineFormat::Jsonl && stream.begins_with_envelope()? => {
                LineFormat::Openai
            }
            None => by_name,
        };
        Ok(Input { stream, format })
    }

    /// Finds out what is to do.
    pub(super) fn survey(self, done: Done, shuffle_by_prefix: bool) -> Result<Feed> {
        let Input { stream, format } = self;
        let mut feed = Feed { stream, format, todo: Vec::new(), done, n_lines: None, n_done: 0 };
        if let Stream::File(path) = &feed.stream {
            let Survey { todo, n_lines } = survey(path, format, &feed.done, shuffle_by_prefix)?;
            feed.n_done = n_lines - todo.len() as u64;
            feed.n_lines = Some(n_lines);
            feed.todo = todo;
        }
        Ok(feed)
    }
}

fn open(path: &Path, is_stdin: bool) -> Result<Stream> {
    let pipe = |name: String, source| {
        Stream::Pipe(Pipe { name, seen: Vec::new(), rest: Lines::new(BufReader::new(source)) })
    };
    if is_stdin {
        return Ok(pipe("standard input".to_owned(), Source::Stdin(io::stdin())));
    }
    let context = || format!("cannot read {}", path.display());
    let file = File::open(path).with_context(context)?;
    let metadata = file.metadata().with_context(context)?;
    if metadata.is_dir() {
        bail!("{} is a directory; give a file with a prompt on each line", path.display());
    }
    Ok(match metadata.is_file() {
        true => Stream::File(path.to_owned()),
        false => pipe(path.display().to_string(), Source::File(file)),
    })
}

impl Stream {
    /// Whether the first line that is not blank is one of OpenAI's.
    fn begins_with_envelope(&mut self) -> Result<bool> {
        let first = match self {
            Stream::File(path) => {
                let context = || format!("cannot read {}", path.display());
                let file = BufReader::new(File::open(&*path).with_context(context)?);
                first_line(&mut Lines::new(file), &mut Vec::new()).with_context(context)?
            }
            Stream::Pipe(pipe) => {
                let context = || format!("cannot read {}", pipe.name);
                first_line(&mut pipe.rest, &mut pipe.seen).with_context(context)?
            }
        };
        Ok(first.is_some_and(|text| is_envelope(text.trim_start_matches('\u{feff}'))))
    }
}

/// The first line with something on it; all that is read goes to `seen`.
fn first_line(lines: &mut Lines<impl BufRead>, seen: &mut Vec<Line>) -> io::Result<Option<String>> {
    while let Some((_, line)) = lines.next_line()? {
        let text = if let Line::Text(text) = &line { Some(text.clone()) } else { None };
        let is_blank = line == Line::Blank;
        seen.push(line);
        if !is_blank {
            return Ok(text);
        }
    }
    Ok(None)
}

impl Feed {
    /// Starts reading, and making entries of lines. The thread ends with the input, or when nobody
    /// listens any more.
    pub(super) fn spawn<T: Send + 'static>(
        self,
        make: impl Fn(Raw) -> T + Send + 'static,
    ) -> Receiver<Result<T>> {
        let (sender, receiver) = sync_channel(READ_AHEAD);
        std::thread::spawn(move || {
            let send = |raw: Raw| sender.send(Ok(make(raw))).is_ok();
            let read = match self.stream {
                Stream::File(path) => read_file(&path, &self.todo, send),
                Stream::Pipe(pipe) => read_pipe(pipe, self.format, &self.done, send),
            };
            if let Err(error) = read {
                // Nobody listens when the command has ended for another reason.
                let _ = sender.send(Err(error));
            }
        });
        receiver
    }
}

fn read_file(path: &Path, todo: &[Todo], send: impl Fn(Raw) -> bool) -> Result<()> {
    let context = || format!("cannot read {}", path.display());
    let mut file = File::open(path).with_context(context)?;
    for (order, todo) in (0..).zip(todo) {
        let line = todo.span.read(&mut file).with_context(context)?;
        if !send(Raw { order, index: todo.index, text: text_of(line) }) {
            break;
        }
    }
    Ok(())
}

fn read_pipe(
    pipe: Pipe,
    format: LineFormat,
    done: &Done,
    send: impl Fn(Raw) -> bool,
) -> Result<()> {
    let Pipe { name, seen, mut rest } = pipe;
    let mut seen = seen.into_iter();
    let mut ids = HashSet::new();
    let (mut order, mut index) = (0, 0);
    loop {
        let line = match seen.next() {
            Some(line) => line,
            None => match rest.next_line().with_context(|| format!("cannot read {name}"))? {
                Some((_, line)) => line,
                None => return Ok(()),
            },
        };
        if line != Line::Blank {
            let mut text = text_of(line);
            let custom_id = text.as_ref().ok().and_then(|t| Glance::at(t, format).custom_id);
            let is_done = done.has(custom_id.as_deref(), index);
            if let Some(id) = custom_id.filter(|id| !ids.insert(id.clone())) {
                let why = "an earlier line has the same custom_id".to_owned();
                text = Err(Unreadable { custom_id: Some(id), why });
            }
            if !is_done {
                if !send(Raw { order, index, text }) {
                    return Ok(());
                }
                order += 1;
            }
        }
        index += 1;
    }
}

fn text_of(line: Line) -> Result<String, Unreadable> {
    let why = match line {
        Line::Text(text) => {
            return Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text));
        }
        Line::NotUtf8 => "the line is not valid UTF-8".to_owned(),
        Line::TooLong => {
            format!("the line is longer than {} MiB, the most that is taken", MAX_LINE_BYTES >> 20)
        }
        Line::Blank => "the line is blank".to_owned(),
    };
    Err(Unreadable { custom_id: None, why })
}
