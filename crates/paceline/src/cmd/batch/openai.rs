//! OpenAI's lines: each is run by the server's own route, so that it means here what it means
//! there, and answered with what the route would have said.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::Result;
use indicatif::ProgressBar;
use paceline_jobs::line::{self, BodyHead, Fault, Response, ResultLine};
use paceline_jobs::{Endpoint, Finished, Line, Outcome, Source, Ticket};
use serde::Deserialize;

use super::counts::Counts;
use super::input::{Raw, Unreadable};
use super::output::{Output, Written};
use crate::cli::Interrupt;

/// How long to wait for a line when nothing else is to do, and when something is.
const IDLE_WAIT: Duration = Duration::from_millis(100);
const BUSY_WAIT: Duration = Duration::from_millis(1);

/// Results held for order's sake.
const MAX_HELD: usize = 4096;

/// A line as it was read.
#[derive(Debug)]
pub(super) struct Entry {
    order: u64,
    index: u64,
    custom_id: Option<String>,
    request: Result<(Endpoint, String), Fault>,
}

impl Entry {
    pub(super) fn of(raw: Raw) -> Entry {
        let Raw { order, index, text } = raw;
        let (custom_id, request) = match text {
            Err(Unreadable { custom_id, why }) => {
                (custom_id, Err(Fault::new("invalid_json_line", why)))
            }
            Ok(text) => {
                let parsed = line::parse(&text);
                let request = parsed.request.and_then(|request| {
                    BodyHead::parse(request.body.get())?;
                    Ok((request.endpoint, request.body.get().to_owned()))
                });
                (parsed.custom_id, request)
            }
        };
        Entry { order, index, custom_id, request }
    }
}

/// A file of lines, and the files their results go to.
pub(super) struct Lines<'a> {
    input: Receiver<Result<Entry>>,
    is_input_open: bool,
    output: Output,
    /// Lines under way, by their place in the order.
    running: HashMap<u64, Running>,
    /// Lines the engine had no room for.
    again: VecDeque<(u64, Running)>,
    max_running: usize,
    counts: Counts,
    bar: &'a ProgressBar,
    interrupt: &'a Interrupt,
    start: Instant,
    /// What ended the run before its time.
    error: Option<anyhow::Error>,
}

struct Running {
    index: u64,
    line: Line,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Usage {
    prompt_tokens: u64,
    completion_tokens: u64,
    prompt_tokens_details: Details,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Details {
    cached_tokens: u64,
}

impl<'a> Lines<'a> {
    pub(super) fn new(
        input: Receiver<Result<Entry>>,
        output: Output,
        max_running: usize,
        counts: Counts,
        bar: &'a ProgressBar,
        interrupt: &'a Interrupt,
    ) -> Lines<'a> {
        Lines {
            input,
            is_input_open: true,
            output,
            running: HashMap::new(),
            again: VecDeque::new(),
            max_running,
            counts,
            bar,
            interrupt,
            start: Instant::now(),
            error: None,
        }
    }

    /// What was done, once the lines have run.
    pub(super) fn finish(mut self) -> Result<Counts> {
        if let Some(error) = self.error {
            return Err(error);
        }
        self.output.close()?;
        self.counts.n_abandoned = (self.running.len() + self.again.len()) as u64;
        Ok(self.counts)
    }

    /// Remembers the first thing that went wrong with the files.
    fn heed(&mut self, outcome: Result<()>) {
        if let Err(error) = outcome {
            self.error.get_or_insert(error);
        }
    }

    fn next_entry(&mut self) -> Option<Entry> {
        let wait = if self.running.is_empty() { IDLE_WAIT } else { BUSY_WAIT };
        match self.input.recv_timeout(wait) {
            Ok(Ok(entry)) => Some(entry),
            Ok(Err(error)) => {
                self.heed(Err(error));
                None
            }
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                self.is_input_open = false;
                None
            }
        }
    }

    fn begin(&mut self, order: u64, running: Running) -> Line {
        let line = running.line.clone();
        self.running.insert(order, running);
        line
    }

    fn write(&mut self, order: u64, result: &ResultLine<'_>, is_error: bool) {
        self.counts.n_done += 1;
        self.counts.n_failed += u64::from(is_error);
        let put = self.output.put(order, Written { lines: result.to_text(), is_error });
        self.heed(put);
    }

    fn take_in(&mut self, ended: Finished) {
        let order = ended.ticket.line;
        let Some(running) = self.running.remove(&order) else { return };
        let custom_id = Some(ended.custom_id.as_str());
        let (response, error) = match &ended.outcome {
            Outcome::Later(_) => {
                self.again.push_back((order, running));
                return;
            }
            Outcome::Broken(fault) => (None, Some(fault)),
            Outcome::Answered { status, request_id, body } => {
                self.count(body.get());
                (Some(Response { status_code: *status, request_id, body }), None)
            }
        };
        let is_error = !matches!(ended.outcome, Outcome::Answered { status: 200, .. });
        let index = Some(running.index);
        let id = format!("batch_req_{}", running.index);
        self.write(order, &ResultLine { id, custom_id, response, error, index }, is_error);
    }

    fn count(&mut self, body: &str) {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Body {
            usage: Usage,
        }
        let usage = serde_json::from_str::<Body>(body).unwrap_or_default().usage;
        self.counts.n_prompt += usage.prompt_tokens;
        self.counts.n_cached += usage.prompt_tokens_details.cached_tokens;
        self.counts.n_generated += usage.completion_tokens;
    }
}

impl Source for Lines<'_> {
    fn tend(&mut self) -> Vec<u64> {
        self.counts.show(self.bar, self.start);
        Vec::new()
    }

    fn take(&mut self) -> Option<Line> {
        if self.running.len() >= self.max_running || self.output.n_held() >= MAX_HELD {
            return None;
        }
        if let Some((order, running)) = self.again.pop_front() {
            return Some(self.begin(order, running));
        }
        while self.is_input_open && !self.is_over() {
            let Entry { order, index, custom_id, request } = self.next_entry()?;
            let (endpoint, body) = match request {
                Ok(request) => request,
                Err(fault) => {
                    let id = format!("batch_req_{index}");
                    let (custom_id, error) = (custom_id.as_deref(), Some(&fault));
                    let index = Some(index);
                    let line = ResultLine { id, custom_id, response: None, error, index };
                    self.write(order, &line, true);
                    continue;
                }
            };
            let line = Line {
                ticket: Ticket { job: 0, line: order },
                owner: Arc::from(""),
                endpoint,
                custom_id: custom_id.unwrap_or_default(),
                body,
            };
            return Some(self.begin(order, Running { index, line }));
        }
        None
    }

    fn give(&mut self, finished: Vec<Finished>) {
        for ended in finished {
            self.take_in(ended);
        }
        let flushed = self.output.flush();
        self.heed(flushed);
    }

    fn is_over(&self) -> bool {
        let is_done = !self.is_input_open && self.running.is_empty() && self.again.is_empty();
        is_done || self.interrupt.is_set() || self.error.is_some()
    }
}
