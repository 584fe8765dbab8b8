//! Sequences of text over the engine's tokens.
//!
//! A [`Session`] turns prompts into requests, steps the engine, and turns its events into pieces of
//! text: detokenised as they come, cut at stop strings. [`Stream`] is a session with a list of
//! prompts to feed it from.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use paceline_engine::{
    Event, EventKind, FinishReason, Request, RequestId, SequenceView, StepOutcome, Token,
};
use paceline_model::detokenize::{DetokenizeOptions, Detokenizer};
use paceline_model::stop::StopMatcher;

use crate::error::Error;
use crate::generation::{Completion, Finish, Generation, Logprob, Usage};
use crate::llm::Llm;
use crate::prompt::{GenerateParams, Prompt};

/// Something that happened to one sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    pub request: RequestId,
    /// Which of the request's `n` sequences.
    pub index: u32,
    /// Text that became complete; may be empty.
    pub text: String,
    /// The token behind it; `None` when a finish flushes held-back text, and for prompt logprobs.
    pub token: Option<Token>,
    pub logprob: Option<Box<Logprob>>,
    /// A prompt token's log-probability, if asked for.
    pub prompt_logprob: Option<Box<Logprob>>,
    /// Set on the last piece of a sequence.
    pub finish: Option<Finish>,
}

/// A batch under manual control. Dropping it cancels what still runs.
#[derive(Debug)]
pub struct Session<'a> {
    llm: &'a mut Llm,
    live: HashMap<RequestId, LiveRequest>,
    events: Vec<Event>,
}

/// The text side of a request.
#[derive(Debug)]
struct LiveRequest {
    sequences: Vec<LiveSequence>,
    n_running: usize,
}

#[derive(Debug)]
struct LiveSequence {
    detokenizer: Detokenizer,
    stop: StopMatcher,
    end_tokens: Arc<[Token]>,
    is_done: bool,
}

impl<'a> Session<'a> {
    pub(crate) fn new(llm: &'a mut Llm) -> Session<'a> {
        Session { llm, live: HashMap::new(), events: Vec::new() }
    }

    /// Adds a prompt; it joins the batch with the next step.
    pub fn add(
        &mut self,
        prompt: impl Into<Prompt>,
        params: &GenerateParams,
    ) -> Result<RequestId, Error> {
        let prompt = prompt.into();
        let params = prompt.params.as_ref().unwrap_or(params);
        let tokens = self.llm.tokenize(&prompt.input)?;
        self.add_tokens(tokens, params)
    }

    fn add_tokens(
        &mut self,
        prompt: Vec<Token>,
        params: &GenerateParams,
    ) -> Result<RequestId, Error> {
        let stop = StopMatcher::new(&params.stop, params.include_stop)?;
        let mut sampling = params.sampling.clone();
        let ends = self.llm.tokenizer.eos_tokens();
        sampling
            .stop_tokens
            .extend(ends.iter().filter(|t| !params.sampling.stop_tokens.contains(t)));
        let end_tokens: Arc<[Token]> =
            if sampling.ignore_eos { Arc::new([]) } else { sampling.stop_tokens.as_slice().into() };
        let n = sampling.n as usize;
        let now_ns = self.llm.now_ns();
        let deadline = |timeout: Duration| now_ns.saturating_add(timeout.as_nanos() as u64);
        let request = Request {
            prompt,
            params: Arc::new(sampling),
            priority: params.priority,
            deadline_ns: params.timeout.map(deadline),
            tenant: params.tenant,
            constraint: None,
        };
        let id = self.llm.engine.submit(request, now_ns)?;
        let options = DetokenizeOptions { skip_special: !params.show_special, continuation: true };
        let sequence = |_| LiveSequence {
            detokenizer: Detokenizer::new(&self.llm.tokenizer, options),
            stop: stop.clone(),
            end_tokens: Arc::clone(&end_tokens),
            is_done: false,
        };
        let sequences = (0..n).map(sequence).collect();
        self.live.insert(id, LiveRequest { sequences, n_running: n });
        Ok(id)
    }

    /// Advances every running sequence by one step and hands over what came out, in `pieces`.
    /// False when there is nothing left to do.
    pub fn step(&mut self, pieces: &mut Vec<Piece>) -> bool {
        if !self.llm.engine.has_work() {
            return false;
        }
        let start_ns = self.llm.now_ns();
        let outcome = self.llm.engine.step(start_ns, &mut self.events);
        let elapsed_ns = self.llm.now_ns() - start_ns;
        for preemption in self.llm.engine.take_preemptions() {
            tracing::warn!(
                request = preemption.request.0,
                tokens_lost = preemption.n_tokens_lost,
                "preempted: the KV pool is full; the request will be computed again"
            );
        }
        match outcome {
            StepOutcome::Ran { .. } => self.llm.engine.record_step_ns(elapsed_ns),
            StepOutcome::Idle => self.wait_for_window(),
            StepOutcome::Failed(error) => tracing::error!(%error, "a step failed"),
        }
        let mut events = std::mem::take(&mut self.events);
        pieces.extend(events.drain(..).filter_map(|event| self.translate(event)));
        self.events = events;
        true
    }

    /// After an idle step in window mode, time alone makes the next one due.
    fn wait_for_window(&self) {
        let wakeup = self.llm.engine.next_wakeup_ns().unwrap_or(0);
        std::thread::sleep(Duration::from_nanos(wakeup.saturating_sub(self.llm.now_ns())));
    }

    /// Removes a request in mid-flight. False if it had already ended.
    pub fn remove(&mut self, request: RequestId) -> bool {
        self.live.remove(&request);
        self.llm.engine.cancel(request)
    }

    /// Where a sequence is: position, generated, waiting or running. `None` once it has ended.
    pub fn state(&self, request: RequestId, index: u32) -> Option<SequenceView> {
        let sequence = self.live.get(&request)?.sequences.get(index as usize)?;
        if sequence.is_done { None } else { self.llm.engine.view(request, index) }
    }

    /// Requests that have not ended.
    pub fn n_live(&self) -> usize {
        self.live.len()
    }

    pub fn llm(&self) -> &Llm {
        self.llm
    }

    fn translate(&mut self, event: Event) -> Option<Piece> {
        let Event { request, index, kind } = event;
        let live = self.live.get_mut(&request)?;
        let sequence = live.sequences.get_mut(index as usize)?;
        if sequence.is_done {
            return None;
        }
        let mut piece = Piece {
            request,
            index,
            text: String::new(),
            token: None,
            logprob: None,
            prompt_logprob: None,
            finish: None,
        };
        match kind {
            // A generation is text; a pooled state has no place in one.
            EventKind::Started { .. } | EventKind::Pooled(_) => return None,
            EventKind::PromptLogprob(logprob) => piece.prompt_logprob = Some(Box::new(logprob)),
            EventKind::Token { token, logprob } => {
                piece.token = Some(token);
                piece.logprob = logprob;
                piece.finish = sequence.push(token, &mut piece.text);
                if piece.finish.is_some() {
                    self.llm.engine.finish_sequence(request, index, FinishReason::Stop);
                }
            }
            EventKind::Finished(reason) => {
                piece.finish = Some(sequence.finish(&mut piece.text).unwrap_or(reason.into()));
            }
        }
        if piece.finish.is_some() {
            sequence.is_done = true;
            live.n_running -= 1;
            if live.n_running == 0 {
                self.live.remove(&request);
            }
        }
        Some(piece)
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        for (request, _) in self.live.drain() {
            self.llm.engine.cancel(request);
        }
        // Their last events belong to nobody: let them pass, so that the next session starts clean.
        if self.llm.engine.has_work() {
            self.llm.engine.step(self.llm.now_ns(), &mut self.events);
        }
    }
}

impl LiveSequence {
    /// Adds a token's text; `Some` when a stop string has come.
    fn push(&mut self, token: Token, text: &mut String) -> Option<Finish> {
        // An end token ends the text and is not part of it; the engine's finish comes next.
        if self.end_tokens.contains(&token) {
            return None;
        }
        let output = self.stop.push(self.detokenizer.push(token));
        text.push_str(&output.text);
        output.stopped.map(|stop| Finish::Stop(Some(stop)))
    }

    /// Flushes held-back text; `Some` when that completes a stop string.
    fn finish(&mut self, text: &mut String) -> Option<Finish> {
        let output = self.stop.push(self.detokenizer.finish());
        text.push_str(&output.text);
        if let Some(stop) = output.stopped {
            return Some(Finish::Stop(Some(stop)));
        }
        text.push_str(&self.stop.finish());
        None
    }
}

/// Many prompts generating side by side; yields pieces as they come.
#[derive(Debug)]
pub struct Stream<'a> {
    session: Session<'a>,
    waiting: VecDeque<(usize, Vec<Token>, GenerateParams)>,
    prompt_of: HashMap<RequestId, usize>,
    generations: Vec<Generation>,
    pieces: VecDeque<Piece>,
    scratch: Vec<Piece>,
}

impl<'a> Stream<'a> {
    pub(crate) fn new(
        llm: &'a mut Llm,
        prompts: impl Iterator<Item = Prompt>,
        params: &GenerateParams,
    ) -> Result<Stream<'a>, Error> {
        let mut waiting = VecDeque::new();
        let mut generations = Vec::new();
        for (index, prompt) in prompts.enumerate() {
            let params = prompt.params.unwrap_or_else(|| params.clone());
            let of_prompt = |source| Error::Prompt { index, source: Box::new(source) };
            let tokens = llm.tokenize(&prompt.input).map_err(of_prompt)?;
            llm.check(&tokens, &params).map_err(of_prompt)?;
            generations.push(Generation {
                index,
                completions: vec![Completion::default(); params.sampling.n as usize],
                prompt_logprobs: Vec::new(),
                usage: Usage { prompt_tokens: tokens.len(), completion_tokens: 0 },
            });
            waiting.push_back((index, tokens, params));
        }
        Ok(Stream {
            session: llm.session(),
            waiting,
            prompt_of: HashMap::new(),
            generations,
            pieces: VecDeque::new(),
            scratch: Vec::new(),
        })
    }

    /// The place of a piece's prompt among those given.
    pub fn prompt_index(&self, request: RequestId) -> Option<usize> {
        self.prompt_of.get(&request).copied()
    }

    /// The session behind it: states, statistics.
    pub fn session(&self) -> &Session<'a> {
        &self.session
    }

    /// Runs to the end and returns everything.
    pub fn into_generations(mut self) -> Result<Vec<Generation>, Error> {
        for piece in self.by_ref() {
            piece?;
        }
        Ok(std::mem::take(&mut self.generations))
    }

    /// What has come so far.
    pub fn generations(&self) -> &[Generation] {
        &self.generations
    }

    /// Hands the engine prompts until its queue is full.
    fn feed(&mut self) -> Result<(), Error> {
        while let Some((index, tokens, params)) = self.waiting.pop_front() {
            match self.session.add_tokens(tokens.clone(), &params) {
                Ok(id) => {
                    self.prompt_of.insert(id, index);
                }
                Err(error) if error.is_queue_full() => {
                    self.waiting.push_front((index, tokens, params));
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn record(&mut self, piece: &Piece) {
        let Some(&prompt) = self.prompt_of.get(&piece.request) else { return };
        let generation = &mut self.generations[prompt];
        generation.prompt_logprobs.extend(piece.prompt_logprob.iter().map(|l| (**l).clone()));
        let completion = &mut generation.completions[piece.index as usize];
        completion.text.push_str(&piece.text);
        completion.logprobs.extend(piece.logprob.iter().map(|l| (**l).clone()));
        completion.finish.clone_from(&piece.finish);
        if let Some(token) = piece.token {
            completion.tokens.push(token);
            generation.usage.completion_tokens += 1;
        }
    }
}

impl Iterator for Stream<'_> {
    type Item = Result<Piece, Error>;

    fn next(&mut self) -> Option<Result<Piece, Error>> {
        while self.pieces.is_empty() {
            if let Err(error) = self.feed() {
                return Some(Err(error));
            }
            if !self.session.step(&mut self.scratch) {
                return None;
            }
            self.pieces.extend(self.scratch.drain(..));
        }
        let piece = self.pieces.pop_front()?;
        self.record(&piece);
        Some(Ok(piece))
    }
}

impl Llm {
    /// Whether a request could ever run, without queueing it.
    fn check(&self, tokens: &[Token], params: &GenerateParams) -> Result<(), Error> {
        StopMatcher::new(&params.stop, params.include_stop)?;
        Ok(self.engine.check_request(tokens, &params.sampling)?)
    }
}
