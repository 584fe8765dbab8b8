//! Whole answers, for those who do not stream.

use std::time::Instant;

use paceline_engine::{Token, TokenLogprob};

use crate::error::ApiError;
use crate::reply::{Finish, Piece, Reply, Update};

/// What came of one prompt.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) n_cached: u32,
    /// Of the prompt's tokens after the first.
    pub(crate) prompt_logprobs: Vec<TokenLogprob>,
    pub(crate) choices: Vec<Choice>,
    /// When the last choice ended.
    pub(crate) finished: Option<Instant>,
}

#[derive(Debug, Default)]
pub(crate) struct Choice {
    pub(crate) text: String,
    pub(crate) tokens: Vec<Token>,
    pub(crate) logprobs: Vec<TokenLogprob>,
    pub(crate) finish: Option<Finish>,
}

impl Choice {
    fn add(&mut self, piece: Piece) {
        self.text.push_str(&piece.text);
        self.tokens.extend(piece.token);
        self.logprobs.extend(piece.logprob.map(|logprob| *logprob));
        self.finish = piece.finish.or(self.finish);
    }

    pub(crate) fn finish_name(&self) -> &'static str {
        self.finish.map_or("length", Finish::name)
    }

    /// How likely the model found it, per token.
    fn mean_logprob(&self) -> f64 {
        let sum: f64 = self.logprobs.iter().map(|logprob| f64::from(logprob.logprob)).sum();
        sum / self.logprobs.len().max(1) as f64
    }
}

/// Reads a reply to its end. `shape` has the number of sequences of each prompt.
pub(crate) async fn collect(reply: &mut Reply, shape: &[u32]) -> Result<Vec<Answer>, ApiError> {
    let mut answers: Vec<Answer> = shape
        .iter()
        .map(|&n| Answer {
            choices: (0..n).map(|_| Choice::default()).collect(),
            ..Answer::default()
        })
        .collect();
    let mut updates = Vec::new();
    while reply.next(&mut updates).await? {
        for update in updates.drain(..) {
            add(&mut answers, update);
        }
    }
    Ok(answers)
}

/// Places come from the reply, which has as many prompts and sequences as the shape.
fn add(answers: &mut [Answer], update: Update) {
    match update {
        Update::Started { prompt, n_cached } => answers[prompt as usize].n_cached = n_cached,
        Update::PromptLogprob { prompt, logprob } => {
            answers[prompt as usize].prompt_logprobs.push(logprob);
        }
        Update::Piece(piece) => {
            let answer = &mut answers[piece.prompt as usize];
            if piece.finish.is_some() {
                answer.finished = Some(Instant::now());
            }
            answer.choices[piece.index as usize].add(piece);
        }
    }
}

/// Keeps the `n` choices that the model found likeliest, best first.
pub(crate) fn keep_best(choices: &mut Vec<Choice>, n: usize) {
    if choices.len() > n {
        choices.sort_by(|a, b| b.mean_logprob().total_cmp(&a.mean_logprob()));
        choices.truncate(n);
    }
}
