//! Log-probabilities in the two forms that OpenAI's routes have.

use std::collections::BTreeMap;

use paceline_engine::{Token, TokenLogprob};
use serde::Serialize;

use crate::model::Model;

/// The chat's form: a list of tokens.
#[derive(Debug, Serialize)]
pub(super) struct ChatLogprobs {
    content: Vec<ChatLogprob>,
    refusal: Option<()>,
}

#[derive(Debug, Serialize)]
struct ChatLogprob {
    #[serde(flatten)]
    token: ScoredToken,
    top_logprobs: Vec<ScoredToken>,
}

#[derive(Debug, Serialize)]
struct ScoredToken {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
}

impl ScoredToken {
    fn new(model: &Model, token: Token, logprob: f32) -> ScoredToken {
        let bytes = model.tokenizer().token_bytes(token).into_owned();
        ScoredToken { token: String::from_utf8_lossy(&bytes).into_owned(), logprob, bytes }
    }
}

impl ChatLogprobs {
    pub(super) fn new<'a>(
        model: &Model,
        logprobs: impl IntoIterator<Item = &'a TokenLogprob>,
    ) -> ChatLogprobs {
        let scored = |&(token, logprob): &(Token, f32)| ScoredToken::new(model, token, logprob);
        let content = logprobs.into_iter().map(|logprob| ChatLogprob {
            token: scored(&(logprob.token, logprob.logprob)),
            top_logprobs: logprob.top.iter().map(scored).collect(),
        });
        ChatLogprobs { content: content.collect(), refusal: None }
    }
}

/// The completions' form: parallel lists.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct CompletionLogprobs {
    tokens: Vec<String>,
    /// Null where the model has nothing to go by: the first token of an echoed prompt.
    token_logprobs: Vec<Option<f32>>,
    top_logprobs: Vec<Option<BTreeMap<String, f32>>>,
    /// Where each token's text begins, in characters.
    text_offset: Vec<usize>,
}

impl CompletionLogprobs {
    /// Adds a token that has no log-probability. `offset` is moved past it.
    fn push_unscored(&mut self, model: &Model, token: Token, offset: &mut usize) {
        self.push_text(model, token, offset);
        self.token_logprobs.push(None);
        self.top_logprobs.push(None);
    }

    /// Adds a whole prompt; its first token follows nothing and has no score.
    pub(super) fn push_prompt(
        &mut self,
        model: &Model,
        tokens: &[Token],
        logprobs: &[TokenLogprob],
        offset: &mut usize,
    ) {
        if let Some(&first) = tokens.first() {
            self.push_unscored(model, first, offset);
        }
        for logprob in logprobs {
            self.push(model, logprob, offset);
        }
    }

    /// Adds a token. Among the likeliest is always the token itself.
    pub(super) fn push(&mut self, model: &Model, logprob: &TokenLogprob, offset: &mut usize) {
        self.push_text(model, logprob.token, offset);
        self.token_logprobs.push(Some(logprob.logprob));
        let top = logprob.top.iter().copied().chain([(logprob.token, logprob.logprob)]);
        let top = top.map(|(token, value)| (model.token_text(token), value));
        self.top_logprobs.push(Some(top.collect()));
    }

    fn push_text(&mut self, model: &Model, token: Token, offset: &mut usize) {
        let text = model.token_text(token);
        self.text_offset.push(*offset);
        *offset += text.chars().count();
        self.tokens.push(text);
    }
}
