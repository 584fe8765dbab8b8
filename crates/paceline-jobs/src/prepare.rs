//! What happens before a batch runs: every line is looked at, and what has run already is found.
//!
//! The same pass serves a new batch and one that a kill interrupted. It keeps places of lines and
//! hashes of their beginnings, never their contents; ids are kept while it lasts.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::File;
use std::io::{BufReader, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use crate::error::{JobsError, failed_to};
use crate::line::{self, BodyHead, Fault};
use crate::lines::{Line, Lines, MAX_LINE_BYTES, Span};
use crate::order::{PrefixKey, by_prefix};
use crate::results::ResultFile;
use crate::runner::News;
use crate::store::{BadLine, Batch, Counts, Status, Store};

/// Bad lines that are told of; a file of nonsense has enough of them.
const MAX_TOLD: usize = 100;

/// Whether a request could be run here at all.
pub type CheckBody = dyn Fn(&BodyHead<'_>) -> Result<(), Fault> + Send + Sync;

/// A batch that can run.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) input: File,
    pub(crate) lines: Vec<Span>,
    /// Lines that have no result yet, in the order they should run in.
    pub(crate) todo: VecDeque<u32>,
    pub(crate) output: ResultFile,
    pub(crate) errors: ResultFile,
    pub(crate) counts: Counts,
}

/// A thread that prepares batches one by one. Dropping it waits for the one at hand.
#[derive(Debug)]
pub(crate) struct Preparer {
    batches: Option<Sender<Batch>>,
    prepared: Receiver<Prepared>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// What came of a batch. The inner error is the client's to mend.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) batch: Batch,
    pub(crate) plan: Result<Result<Plan, Vec<BadLine>>, JobsError>,
}

impl Preparer {
    pub(crate) fn start(
        store: Arc<Store>,
        check: Arc<CheckBody>,
        max_lines: usize,
        news: Sender<News>,
    ) -> std::io::Result<Preparer> {
        let (batches, inbox) = channel::<Batch>();
        let (outbox, prepared) = channel();
        let is_over = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&is_over);
        let run = move || {
            for batch in inbox {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let plan = prepare(&store, &batch, &*check, max_lines);
                // Whoever asked may be gone.
                let _ = outbox.send(Prepared { batch, plan });
                let _ = news.send(News::Look);
            }
        };
        let thread = std::thread::Builder::new().name("jobs-prepare".to_owned()).spawn(run)?;
        Ok(Preparer { batches: Some(batches), prepared, is_over, thread: Some(thread) })
    }

    pub(crate) fn begin(&self, batch: Batch) {
        if let Some(batches) = &self.batches {
            // The thread listens until we are dropped.
            let _ = batches.send(batch);
        }
    }

    /// The next batch that is prepared, if there is one.
    pub(crate) fn next(&self) -> Option<Prepared> {
        self.prepared.try_recv().ok()
    }
}

impl Drop for Preparer {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.batches = None;
        if let Some(thread) = self.thread.take() {
            // A panic there has been told of where it happened.
            let _ = thread.join();
        }
    }
}

/// Reads a batch's input and results. The inner error is the client's to mend.
fn prepare(
    store: &Store,
    batch: &Batch,
    check: &CheckBody,
    max_lines: usize,
) -> Result<Result<Plan, Vec<BadLine>>, JobsError> {
    let mut done = HashSet::new();
    let (mut completed, mut failed) = (0, 0);
    let output = ResultFile::recover(&store.path_of(&batch.output_name), |head| {
        completed += 1;
        done.extend(head.custom_id);
    })?;
    let errors = ResultFile::recover(&store.path_of(&batch.errors_name), |head| {
        failed += 1;
        done.extend(head.custom_id);
    })?;
    let path = store.path_of(&batch.input_file_id);
    let input = match File::open(&path) {
        // Deleted between the request for the batch and now.
        Err(error) if error.kind() == ErrorKind::NotFound && batch.status == Status::Validating => {
            let fault = Fault::of_param("input_file_id", "file_not_found", "the file is gone");
            return Ok(Err(vec![BadLine { line: None, fault }]));
        }
        opened => opened.map_err(failed_to("read", &path))?,
    };
    let mut survey = Survey::new(batch, check, &done, max_lines);
    let mut lines = Lines::new(BufReader::new(&input));
    while let Some((span, line)) = lines.next_line().map_err(failed_to("read", &path))? {
        survey.look_at(span, &line);
    }
    let (lines, todo) = match survey.finish() {
        Ok(found) => found,
        Err(bad) if batch.status == Status::Validating => return Ok(Err(bad)),
        Err(bad) => return Err(no_longer(batch, &bad)),
    };
    let counts = Counts { total: lines.len() as u64, completed, failed };
    Ok(Ok(Plan { input, lines, todo, output, errors, counts }))
}

/// A batch that could run when it was checked: the server has another model now.
fn no_longer(batch: &Batch, bad: &[BadLine]) -> JobsError {
    let why = bad.first().map_or("", |bad| &bad.fault.message);
    JobsError::Inconsistent(format!("the batch {} has begun, but cannot go on: {why}", batch.id))
}

struct Survey<'a> {
    batch: &'a Batch,
    check: &'a CheckBody,
    done: &'a HashSet<String>,
    max_lines: usize,
    /// Of the file, from 1.
    line_number: u64,
    line_of_id: HashMap<String, u64>,
    spans: Vec<Span>,
    /// What is to do: the place among the spans, and how the prompt begins.
    todo: Vec<(u32, PrefixKey)>,
    bad: Vec<BadLine>,
    n_requests: usize,
}

impl<'a> Survey<'a> {
    fn new(
        batch: &'a Batch,
        check: &'a CheckBody,
        done: &'a HashSet<String>,
        max_lines: usize,
    ) -> Survey<'a> {
        Survey {
            batch,
            check,
            done,
            max_lines,
            line_number: 0,
            line_of_id: HashMap::new(),
            spans: Vec::new(),
            todo: Vec::new(),
            bad: Vec::new(),
            n_requests: 0,
        }
    }

    fn look_at(&mut self, span: Span, line: &Line) {
        self.line_number += 1;
        if *line == Line::Blank {
            return;
        }
        self.n_requests += 1;
        if self.n_requests > self.max_lines || self.bad.len() >= MAX_TOLD {
            return;
        }
        if let Err(fault) = self.request(span, line) {
            self.bad.push(BadLine { line: Some(self.line_number), fault });
        }
    }

    fn request(&mut self, span: Span, line: &Line) -> Result<(), Fault> {
        let text = match line {
            Line::Text(text) => text.strip_prefix('\u{feff}').unwrap_or(text),
            Line::TooLong => {
                let message = format!("the line is longer than {} MiB", MAX_LINE_BYTES >> 20);
                return Err(Fault::new("line_too_long", message));
            }
            _ => return Err(Fault::new("invalid_json_line", "the line is not valid UTF-8")),
        };
        let parsed = line::parse(text);
        let request = parsed.request?;
        let id = parsed.custom_id.unwrap_or_default();
        if let Some(first) = self.line_of_id.insert(id.clone(), self.line_number) {
            let message = format!("line {first} has the same custom_id, {id:?}");
            return Err(Fault::of_param("custom_id", "duplicate_custom_id", message));
        }
        if request.endpoint != self.batch.endpoint {
            let (asked, given) = (self.batch.endpoint, request.endpoint);
            let message = format!("the batch is for {asked}, but the line's url is {given}");
            return Err(Fault::of_param("url", "mismatched_endpoint", message));
        }
        let head = BodyHead::parse(request.body.get())?;
        (self.check)(&head)?;
        if !self.done.contains(&id) {
            let place = u32::try_from(self.spans.len()).unwrap_or(u32::MAX);
            self.todo.push((place, PrefixKey::of(head.prompt_text())));
        }
        self.spans.push(span);
        Ok(())
    }

    /// The places of all lines, and those that are to do.
    fn finish(mut self) -> Result<(Vec<Span>, VecDeque<u32>), Vec<BadLine>> {
        let whole =
            |code, message: String| BadLine { line: None, fault: Fault::new(code, message) };
        if self.n_requests == 0 {
            self.bad.push(whole("empty_file", "the input file has no requests".to_owned()));
        }
        if self.n_requests > self.max_lines {
            let (n, max) = (self.n_requests, self.max_lines);
            let message = format!("the input file has {n} requests; a batch takes at most {max}");
            self.bad.push(whole("too_many_requests", message));
        }
        if !self.bad.is_empty() {
            return Err(self.bad);
        }
        let keys: Vec<PrefixKey> = self.todo.iter().map(|&(_, key)| key).collect();
        let order = by_prefix(&keys);
        let todo = order.into_iter().map(|place| self.todo[place as usize].0).collect();
        Ok((self.spans, todo))
    }
}
