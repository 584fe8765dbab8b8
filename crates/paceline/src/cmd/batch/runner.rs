//! Moves prompts from the input through the engine to the output.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::Result;
use indicatif::ProgressBar;
use paceline::{Completion, Error, GenerateParams, Piece, Prompt, RequestId, Session, Token};

use super::counts::Counts;
use super::output::{Output, Written};
use super::plain::Entry;
use super::result::{Job, error_line};
use crate::cli::Interrupt;

/// How often a wait for input looks whether it should end.
const IDLE_WAIT: Duration = Duration::from_millis(100);

/// How long the engine's next step waits for a line: enough for the reading thread to follow up,
/// little beside a step.
const BUSY_WAIT: Duration = Duration::from_millis(1);

/// Results held for order's sake, as a multiple of the prompts under way.
const MAX_HELD: usize = 4;

pub(super) struct Runner<'a> {
    session: Session<'a>,
    output: Output,
    input: Receiver<Result<Entry>>,
    is_input_open: bool,
    /// Prompts handed to the engine at once: enough to keep it busy.
    max_live: usize,
    /// The one the engine's queue had no room for.
    pending: Option<Pending>,
    jobs: HashMap<RequestId, Job>,
    counts: Counts,
}

struct Pending {
    job: Job,
    tokens: Vec<Token>,
    params: GenerateParams,
}

impl<'a> Runner<'a> {
    pub(super) fn new(
        session: Session<'a>,
        output: Output,
        input: Receiver<Result<Entry>>,
        max_live: usize,
        counts: Counts,
    ) -> Runner<'a> {
        Runner {
            session,
            output,
            input,
            is_input_open: true,
            max_live,
            pending: None,
            jobs: HashMap::new(),
            counts,
        }
    }

    /// Runs to the end of the input, or until the user stops it.
    pub(super) fn run(mut self, bar: &ProgressBar, interrupt: &Interrupt) -> Result<Counts> {
        let start = Instant::now();
        let mut pieces = Vec::new();
        while self.has_work() && !interrupt.is_set() {
            self.feed()?;
            self.session.step(&mut pieces);
            for piece in pieces.drain(..) {
                self.take(piece)?;
            }
            self.output.flush()?;
            self.counts.show(bar, start);
        }
        self.output.close()?;
        self.counts.n_abandoned = self.jobs.len() as u64 + u64::from(self.pending.is_some());
        Ok(self.counts)
    }

    fn has_work(&self) -> bool {
        self.is_input_open || self.pending.is_some() || !self.jobs.is_empty()
    }

    fn has_room(&self) -> bool {
        self.jobs.len() < self.max_live && self.output.n_held() < MAX_HELD * self.max_live
    }

    /// Hands the engine prompts as long as there are some and it has room.
    fn feed(&mut self) -> Result<()> {
        while self.has_room() {
            let pending = match self.pending.take() {
                Some(pending) => pending,
                None => match self.next_entry()? {
                    Some(entry) => match self.prepare(entry)? {
                        Some(pending) => pending,
                        None => continue,
                    },
                    None => return Ok(()),
                },
            };
            self.submit(pending)?;
            if self.pending.is_some() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The next prompt, if one is there. Waits long only when there is nothing else to do.
    fn next_entry(&mut self) -> Result<Option<Entry>> {
        let wait = if self.jobs.is_empty() { IDLE_WAIT } else { BUSY_WAIT };
        match self.input.recv_timeout(wait) {
            Ok(entry) => entry.map(Some),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => {
                self.is_input_open = false;
                Ok(None)
            }
        }
    }

    /// Tokenises a prompt; `None` if it failed, which is then written.
    fn prepare(&mut self, entry: Entry) -> Result<Option<Pending>> {
        let Entry { order, index, custom_id, work } = entry;
        let tokenized = work.and_then(|work| {
            let tokens = self.session.llm().tokenize(&work.input);
            Ok((tokens.map_err(|error| error.to_string())?, work.params))
        });
        let (tokens, params) = match tokenized {
            Ok(ready) => ready,
            Err(error) => {
                self.fail(order, &error_line(custom_id.as_deref(), index, &error))?;
                return Ok(None);
            }
        };
        let n = params.sampling.n as usize;
        let job = Job {
            order,
            index,
            custom_id,
            n_prompt: tokens.len(),
            completions: Vec::new(),
            n_running: n,
            prompt_logprobs: Vec::new(),
            wants_logprobs: params.sampling.logprobs.is_some(),
            wants_prompt_logprobs: params.sampling.prompt_logprobs.is_some(),
        };
        Ok(Some(Pending { job, tokens, params }))
    }

    fn submit(&mut self, mut pending: Pending) -> Result<()> {
        let prompt = Prompt::from(pending.tokens.clone());
        match self.session.add(prompt, &pending.params) {
            Ok(id) => {
                // Only now is `n` known to be within its bounds.
                pending.job.completions = vec![Completion::default(); pending.job.n_running];
                self.jobs.insert(id, pending.job);
                Ok(())
            }
            Err(error) if error.is_queue_full() => {
                self.pending = Some(pending);
                Ok(())
            }
            Err(error) => self.refuse(&pending.job, &error),
        }
    }

    fn refuse(&mut self, job: &Job, error: &Error) -> Result<()> {
        let line = error_line(job.custom_id.as_deref(), job.index, &error.to_string());
        self.fail(job.order, &line)
    }

    fn fail(&mut self, order: u64, line: &str) -> Result<()> {
        self.counts.n_done += 1;
        self.counts.n_failed += 1;
        self.output.put(order, Written { lines: line.to_owned(), is_error: true })
    }

    /// Adds a piece to its prompt's result, which is written with the last one.
    fn take(&mut self, piece: Piece) -> Result<()> {
        let Some(job) = self.jobs.get_mut(&piece.request) else { return Ok(()) };
        self.counts.n_generated += u64::from(piece.token.is_some());
        let (request, is_last) = (piece.request, piece.finish.is_some());
        job.take(piece);
        if !is_last || job.n_running > 0 {
            return Ok(());
        }
        let Some(job) = self.jobs.remove(&request) else { return Ok(()) };
        self.counts.n_done += 1;
        let is_error = job.has_failed();
        self.counts.n_failed += u64::from(is_error);
        let lines = job.lines(self.session.llm().tokenizer());
        self.output.put(job.order, Written { lines, is_error })
    }
}

impl Job {
    fn take(&mut self, piece: Piece) {
        self.prompt_logprobs.extend(piece.prompt_logprob.map(|logprob| *logprob));
        let Some(completion) = self.completions.get_mut(piece.index as usize) else { return };
        completion.text.push_str(&piece.text);
        completion.tokens.extend(piece.token);
        completion.logprobs.extend(piece.logprob.map(|logprob| *logprob));
        if piece.finish.is_some() {
            completion.finish = piece.finish;
            self.n_running -= 1;
        }
    }
}
