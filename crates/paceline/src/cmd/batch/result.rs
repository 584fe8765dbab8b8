//! Result lines.

use paceline::{Completion, Finish, Logprob};
use paceline_model::tokenizer::Tokenizer;
use serde::Serialize;

/// A prompt that is being answered, and what has come of it so far.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) order: u64,
    pub(super) index: u64,
    pub(super) custom_id: Option<String>,
    pub(super) n_prompt: usize,
    pub(super) completions: Vec<Completion>,
    pub(super) n_running: usize,
    pub(super) prompt_logprobs: Vec<Logprob>,
    pub(super) wants_logprobs: bool,
    pub(super) wants_prompt_logprobs: bool,
}

#[derive(Serialize)]
struct ResultLine<'a> {
    custom_id: Option<&'a str>,
    index: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    choice: Option<usize>,
    /// How many lines this result has, if there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    n: Option<usize>,
    text: &'a str,
    token_ids: &'a [u32],
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Vec<LogprobOut>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<Vec<Option<LogprobOut>>>,
    usage: UsageOut,
}

#[derive(Serialize)]
struct ErrorLine<'a> {
    custom_id: Option<&'a str>,
    index: u64,
    error: &'a str,
}

#[derive(Serialize)]
struct UsageOut {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
}

#[derive(Serialize)]
struct LogprobOut {
    token_id: u32,
    token: String,
    logprob: f32,
    top_logprobs: Vec<TopLogprob>,
}

#[derive(Serialize)]
struct TopLogprob {
    token_id: u32,
    token: String,
    logprob: f32,
}

impl Job {
    /// Whether any completion could not be computed.
    pub(super) fn has_failed(&self) -> bool {
        self.completions.iter().any(|c| error_of(c).is_some())
    }

    /// A line for each completion.
    pub(super) fn lines(&self, tokenizer: &Tokenizer) -> String {
        let lines = self.completions.iter().enumerate();
        lines.map(|(choice, completion)| self.line(choice, completion, tokenizer)).collect()
    }

    fn line(&self, choice: usize, completion: &Completion, tokenizer: &Tokenizer) -> String {
        let logprob = |logprob: &Logprob| LogprobOut::new(logprob, tokenizer);
        // The first token of a prompt has nothing it could follow from.
        let of_prompt =
            || std::iter::once(None).chain(self.prompt_logprobs.iter().map(|l| Some(logprob(l))));
        let completion_tokens = completion.tokens.len();
        let n = self.completions.len();
        to_line(&ResultLine {
            custom_id: self.custom_id.as_deref(),
            index: self.index,
            choice: (n > 1).then_some(choice),
            n: (n > 1).then_some(n),
            text: &completion.text,
            token_ids: &completion.tokens,
            finish_reason: completion.finish.as_ref().map(Finish::name),
            error: error_of(completion),
            logprobs: self
                .wants_logprobs
                .then(|| completion.logprobs.iter().map(logprob).collect()),
            prompt_logprobs: (self.wants_prompt_logprobs && choice == 0)
                .then(|| of_prompt().collect()),
            usage: UsageOut {
                prompt_tokens: self.n_prompt,
                completion_tokens,
                total_tokens: self.n_prompt + completion_tokens,
            },
        })
    }
}

/// The line of a prompt that was not run.
pub(super) fn error_line(custom_id: Option<&str>, index: u64, error: &str) -> String {
    to_line(&ErrorLine { custom_id, index, error })
}

fn error_of(completion: &Completion) -> Option<&str> {
    match &completion.finish {
        Some(Finish::Error(message)) => Some(message),
        _ => None,
    }
}

fn to_line(value: &impl Serialize) -> String {
    let mut line = serde_json::to_string(value).expect("strings and numbers always serialise");
    line.push('\n');
    line
}

impl LogprobOut {
    fn new(logprob: &Logprob, tokenizer: &Tokenizer) -> LogprobOut {
        let text = |id: u32| String::from_utf8_lossy(&tokenizer.token_bytes(id)).into_owned();
        let top = |&(token_id, logprob): &(u32, f32)| TopLogprob {
            token_id,
            token: text(token_id),
            logprob,
        };
        LogprobOut {
            token_id: logprob.token,
            token: text(logprob.token),
            logprob: logprob.logprob,
            top_logprobs: logprob.top.iter().map(top).collect(),
        }
    }
}
