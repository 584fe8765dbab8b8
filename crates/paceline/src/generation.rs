//! What comes back.

use paceline_engine::{Token, TokenLogprob};

/// The answer to one prompt: one completion for each of `n`.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// Place of the prompt among those given.
    pub index: usize,
    pub completions: Vec<Completion>,
    /// Log-probabilities of the prompt's tokens after the first, if asked for.
    pub prompt_logprobs: Vec<Logprob>,
    pub usage: Usage,
}

impl Generation {
    /// The text of the first completion.
    pub fn text(&self) -> &str {
        self.completions.first().map_or("", |completion| &completion.text)
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Completion {
    pub text: String,
    /// All generated tokens, an end token included.
    pub tokens: Vec<Token>,
    /// One for each token, if asked for.
    pub logprobs: Vec<Logprob>,
    /// Set once the completion has ended.
    pub finish: Option<Finish>,
}

/// A token with its log-probability, and the likeliest others.
pub type Logprob = TokenLogprob;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub prompt_tokens: usize,
    pub completion_tokens: usize,
}

/// Why a completion ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finish {
    /// An end token, or the stop string of this number.
    Stop(Option<usize>),
    /// `max_tokens` or the context was reached.
    Length,
    Cancelled,
    /// It took longer than the timeout.
    Timeout,
    /// It could not be computed.
    Error(String),
}

impl Finish {
    /// The name it has in OpenAI-shaped results.
    pub fn name(&self) -> &'static str {
        match self {
            Finish::Stop(_) => "stop",
            Finish::Length => "length",
            Finish::Cancelled => "cancelled",
            Finish::Timeout => "timeout",
            Finish::Error(_) => "error",
        }
    }
}

impl From<paceline_engine::FinishReason> for Finish {
    fn from(reason: paceline_engine::FinishReason) -> Finish {
        use paceline_engine::FinishReason;
        match reason {
            FinishReason::Stop => Finish::Stop(None),
            FinishReason::Length => Finish::Length,
            FinishReason::Cancelled => Finish::Cancelled,
            FinishReason::Deadline => Finish::Timeout,
            FinishReason::Preempted => Finish::Error(
                "the KV pool is too small for what runs at once; enlarge it or lower max_num_seqs"
                    .to_owned(),
            ),
            FinishReason::Failed(failure) => Finish::Error(failure.to_string()),
            FinishReason::Backend(message) => Finish::Error(message),
        }
    }
}
