//! One batch that runs.

use std::collections::{BTreeSet, VecDeque};
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{JobsError, failed_to};
use crate::line::{self, Fault, Response, ResultLine};
use crate::lines::{self, Span};
use crate::prepare::Plan;
use crate::results::ResultFile;
use crate::runner::{Finished, Line, Outcome, Ticket};
use crate::store::{Batch, Counts};

/// Lines that are told at once that their time is over.
const EXPIRE_AT_ONCE: usize = 1000;

#[derive(Debug)]
pub(super) struct ActiveJob {
    pub(super) batch: Batch,
    pub(super) counts: Counts,
    owner: Arc<str>,
    input: File,
    lines: Vec<Span>,
    todo: VecDeque<u32>,
    running: BTreeSet<u32>,
    max_running: usize,
    output: ResultFile,
    errors: ResultFile,
    /// Leave it alone until then.
    paused_until: Option<Instant>,
    has_new_counts: bool,
}

/// Results on their way to one file.
#[derive(Default)]
struct Share {
    text: String,
    lines: Vec<u32>,
}

impl ActiveJob {
    pub(super) fn new(batch: Batch, plan: Plan, max_concurrency: usize) -> ActiveJob {
        let own = batch.max_concurrency.map_or(usize::MAX, |own| own as usize);
        let Plan { input, lines, todo, output, errors, counts } = plan;
        ActiveJob {
            owner: batch.owner.as_str().into(),
            counts,
            input,
            lines,
            todo,
            running: BTreeSet::new(),
            max_running: own.min(max_concurrency).max(1),
            output,
            errors,
            paused_until: None,
            has_new_counts: true,
            batch,
        }
    }

    /// Whether every line has its result.
    pub(super) fn is_done(&self) -> bool {
        self.todo.is_empty() && self.running.is_empty()
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused_until.is_some_and(|until| until > Instant::now())
    }

    pub(super) fn pause(&mut self, error: &JobsError, pause: Duration) {
        tracing::error!(batch = self.batch.id, %error, "a batch pauses");
        self.paused_until = Some(Instant::now() + pause);
    }

    /// The next line, if one may run now.
    pub(super) fn take(&mut self) -> Result<Option<Line>, JobsError> {
        if self.running.len() >= self.max_running || self.is_paused() {
            return Ok(None);
        }
        let Some(&place) = self.todo.front() else { return Ok(None) };
        let (custom_id, body) = self.read(place)?;
        self.todo.pop_front();
        self.running.insert(place);
        Ok(Some(Line {
            ticket: Ticket { job: self.batch.seq, line: place.into() },
            owner: Arc::clone(&self.owner),
            endpoint: self.batch.endpoint,
            custom_id,
            body,
        }))
    }

    /// Reads a line again that was in order when the batch began.
    fn read(&mut self, place: u32) -> Result<(String, String), JobsError> {
        let changed = || {
            let what = format!("the input of the batch {} has changed", self.batch.id);
            JobsError::Inconsistent(what)
        };
        let span = self.lines.get(place as usize).copied().ok_or_else(changed)?;
        let read = span.read(&mut self.input);
        let line = read.map_err(failed_to("read", "the input of a batch".as_ref()))?;
        let lines::Line::Text(text) = line else { return Err(changed()) };
        let parsed = line::parse(text.strip_prefix('\u{feff}').unwrap_or(&text));
        match (parsed.custom_id, parsed.request) {
            (Some(id), Ok(request)) => Ok((id, request.body.get().to_owned())),
            _ => Err(changed()),
        }
    }

    /// Writes results. Lines whose results cannot be written will run again.
    pub(super) fn give(&mut self, finished: Vec<Finished>) -> Result<(), JobsError> {
        let (mut good, mut bad) = (Share::default(), Share::default());
        for ended in finished {
            let place = u32::try_from(ended.ticket.line).unwrap_or(u32::MAX);
            if !self.running.remove(&place) {
                continue;
            }
            if let Outcome::Later(wait) = ended.outcome {
                self.todo.push_front(place);
                self.paused_until = Some(Instant::now() + wait);
                continue;
            }
            let is_good = matches!(ended.outcome, Outcome::Answered { status: 200, .. });
            let share = if is_good { &mut good } else { &mut bad };
            share.text.push_str(&self.result_line(&ended, place));
            share.lines.push(place);
        }
        self.has_new_counts |= !(good.lines.is_empty() && bad.lines.is_empty());
        let written = append(&mut self.output, good, &mut self.todo);
        let failed = append(&mut self.errors, bad, &mut self.todo);
        self.counts.completed += *written.as_ref().unwrap_or(&0);
        self.counts.failed += *failed.as_ref().unwrap_or(&0);
        written.and(failed).map(|_| ())
    }

    fn result_line(&self, ended: &Finished, place: u32) -> String {
        let (response, error) = match &ended.outcome {
            Outcome::Answered { status, request_id, body } => {
                (Some(Response { status_code: *status, request_id, body }), None)
            }
            Outcome::Broken(fault) => (None, Some(fault)),
            Outcome::Later(_) => (None, None),
        };
        self.line_text(&ended.custom_id, place, response, error)
    }

    fn line_text(
        &self,
        custom_id: &str,
        place: u32,
        response: Option<Response<'_>>,
        error: Option<&Fault>,
    ) -> String {
        let batch = self.batch.id.trim_start_matches("batch_");
        let id = format!("batch_req_{batch}_{place}");
        ResultLine { id, custom_id: Some(custom_id), response, error, index: None }.to_text()
    }

    /// Every line without a result is told that its time is over.
    pub(super) fn expire_rest(&mut self) -> Result<(), JobsError> {
        self.todo.extend(std::mem::take(&mut self.running));
        let fault = Fault::new(
            "batch_expired",
            "the request could not be run before the completion window was over",
        );
        while !self.todo.is_empty() {
            let mut share = Share::default();
            for _ in 0..self.todo.len().min(EXPIRE_AT_ONCE) {
                let Some(&place) = self.todo.front() else { break };
                let (custom_id, _) = self.read(place)?;
                self.todo.pop_front();
                share.text.push_str(&self.line_text(&custom_id, place, None, Some(&fault)));
                share.lines.push(place);
            }
            self.counts.failed += append(&mut self.errors, share, &mut self.todo)?;
        }
        Ok(())
    }

    pub(super) fn sync(&mut self) -> Result<(), JobsError> {
        self.output.sync()?;
        self.errors.sync()
    }

    /// Of output and errors.
    pub(super) fn bytes(&self) -> (u64, u64) {
        (self.output.len(), self.errors.len())
    }

    /// Counts that the database does not have yet.
    pub(super) fn take_new_counts(&mut self) -> Option<Counts> {
        std::mem::take(&mut self.has_new_counts).then_some(self.counts)
    }

    /// A file of results with none in it is not shown to anybody.
    pub(super) fn remove_empty_files(&self) {
        for file in [&self.output, &self.errors] {
            if file.is_empty() {
                // The next start would sweep it away too.
                let _ = std::fs::remove_file(file.path());
            }
        }
    }
}

/// Appends results, or puts their lines back. Returns how many were written.
fn append(file: &mut ResultFile, share: Share, todo: &mut VecDeque<u32>) -> Result<u64, JobsError> {
    match file.append(share.text.as_bytes()) {
        Ok(()) => Ok(share.lines.len() as u64),
        Err(error) => {
            for place in share.lines.into_iter().rev() {
                todo.push_front(place);
            }
            Err(error)
        }
    }
}
