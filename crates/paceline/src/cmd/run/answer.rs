//! One answer, written to standard output as it comes.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use paceline::{Finish, GenerateParams, Input, Llm};

use crate::cli::Interrupt;

/// What came out, and how long it took.
#[derive(Clone, Debug, Default)]
pub(super) struct Answer {
    pub(super) text: String,
    pub(super) n_prompt: usize,
    pub(super) n_generated: usize,
    /// From the question to the first token.
    pub(super) first: Duration,
    /// From the first token to the last.
    pub(super) rest: Duration,
    pub(super) is_interrupted: bool,
    /// It ended at the limit, not of itself.
    is_cut: bool,
}

/// Generates one answer. It ends with a newline on the terminal, which is no part of it.
pub(super) fn answer(
    llm: &mut Llm,
    input: &Input,
    params: &GenerateParams,
    interrupt: &Interrupt,
) -> Result<Answer> {
    let start = Instant::now();
    let tokens = llm.tokenize(input)?;
    let mut answer = Answer { n_prompt: tokens.len(), ..Answer::default() };
    let mut session = llm.session();
    session.add(tokens, params)?;
    let mut out = io::stdout().lock();
    let mut pieces = Vec::new();
    let mut failure = None;
    while !interrupt.is_set() && session.step(&mut pieces) {
        for piece in pieces.drain(..) {
            answer.text.push_str(&piece.text);
            out.write_all(piece.text.as_bytes())?;
            answer.n_generated += usize::from(piece.token.is_some());
            match piece.finish {
                Some(Finish::Error(message)) => failure = Some(message),
                finish => answer.is_cut |= finish == Some(Finish::Length),
            }
        }
        out.flush()?;
        answer.clock(start.elapsed());
    }
    answer.is_interrupted = session.n_live() > 0;
    if !answer.text.is_empty() && !answer.text.ends_with('\n') || answer.is_interrupted {
        writeln!(out)?;
    }
    failure.map_or(Ok(answer), |message| Err(anyhow!("the answer broke off: {message}")))
}

impl Answer {
    fn clock(&mut self, elapsed: Duration) {
        match self.n_generated {
            0 | 1 => self.first = elapsed,
            _ => self.rest = elapsed - self.first,
        }
    }

    /// Adds up a conversation.
    pub(super) fn add(&mut self, other: &Answer) {
        self.n_prompt += other.n_prompt;
        self.n_generated += other.n_generated;
        self.first += other.first;
        self.rest += other.rest;
    }

    /// One line for the user. The rate leaves out the first token, whose time is the prompt's.
    pub(super) fn statistics(&self, params: &GenerateParams) -> String {
        let mut text = format!(
            "[{} prompt tokens, {} generated, first token after {:.2} s",
            self.n_prompt,
            self.n_generated,
            self.first.as_secs_f64(),
        );
        if self.n_generated > 1 && !self.rest.is_zero() {
            let rate = (self.n_generated - 1) as f64 / self.rest.as_secs_f64();
            text.push_str(&format!(", then {rate:.1} tokens/s"));
        }
        if self.is_cut {
            text.push_str(", cut at the limit (--max-tokens)");
        }
        if params.sampling.temperature > 0.0 {
            text.push_str(&format!(", seed {}", params.sampling.seed));
        }
        text + "]"
    }
}
