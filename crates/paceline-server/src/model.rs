//! The text side of what is served: names, tokenizer, chat template, limits.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use paceline_engine::{BackendLimits, Pooling, SamplingParams, Token, check_request};
use paceline_model::template::{ChatInput, ChatTemplate, Message, TemplateError};
use paceline_model::tokenizer::{SpecialTokens, Tokenizer};
use serde_json::Value;
use tokio::task::block_in_place;

use crate::error::ApiError;
use crate::tools::{self, ToolStyle};

/// A model as its clients see it.
#[derive(Debug)]
pub struct ServedModel {
    /// What clients may call it; the first is what it calls itself. None: it answers to any name.
    pub names: Vec<String>,
    pub tokenizer: Arc<Tokenizer>,
    pub template: Option<ChatTemplate>,
    pub embedding: Embedding,
    /// What workers of a queue must have to run its lines; `None` leaves that to them.
    #[cfg(feature = "nats")]
    pub id: Option<paceline_jobs::nats::ModelId>,
}

/// What `/v1/embeddings` makes of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Embedding {
    pub pooling: Pooling,
    /// Values of a vector: the width of the model's hidden state.
    pub n_dims: usize,
}

/// A served model with what its engine can hold.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) served: ServedModel,
    pub(crate) limits: BackendLimits,
    /// Sequences that may run at once.
    pub(crate) max_num_seqs: u32,
    /// A text with more bytes than this cannot fit the context.
    max_text_bytes: usize,
    /// Seconds since 1970.
    pub(crate) created: u64,
    pub(crate) tool_style: ToolStyle,
}

impl Model {
    pub(crate) fn new(served: ServedModel, limits: BackendLimits, max_num_seqs: u32) -> Model {
        let tokenizer = &served.tokenizer;
        let n_vocab = u32::try_from(tokenizer.n_vocab()).unwrap_or(u32::MAX);
        let longest = (0..n_vocab).map(|token| tokenizer.token_bytes(token).len()).max();
        // Normalisation can make a text shorter, but not by this much.
        const SLACK: usize = 4;
        let per_token = longest.unwrap_or(1).max(1).saturating_mul(SLACK);
        let max_text_bytes = per_token.saturating_mul(limits.max_model_len as usize);
        let tool_style = ToolStyle::new(tokenizer, served.template.as_ref());
        let created = unix_seconds();
        Model { limits, max_num_seqs, max_text_bytes, created, tool_style, served }
    }

    pub(crate) fn name(&self) -> &str {
        self.served.names.first().map_or("default", String::as_str)
    }

    pub(crate) fn tokenizer(&self) -> &Tokenizer {
        &self.served.tokenizer
    }

    /// A request that names no model gets this one.
    pub(crate) fn check_name(&self, name: Option<&str>) -> Result<(), ApiError> {
        match name {
            Some(name) if !self.is_called(name) => {
                Err(ApiError::UnknownModel { name: name.chars().take(200).collect() })
            }
            _ => Ok(()),
        }
    }

    fn is_called(&self, name: &str) -> bool {
        let names = &self.served.names;
        names.is_empty() || names.iter().any(|known| known == name)
    }

    /// The tokens of a plain prompt. What cannot fit is refused before it is tokenised, which is
    /// the dearest thing a stranger can ask for.
    pub(crate) fn encode(&self, text: &str) -> Result<Vec<Token>, ApiError> {
        if text.len() > self.max_text_bytes {
            let (len, max) = (text.len(), self.max_text_bytes);
            return Err(ApiError::Invalid {
                message: format!(
                    "the prompt has {len} bytes; even the longest tokens leave room for {max} in \
                     a context of {} tokens",
                    self.limits.max_model_len
                ),
                param: Some("prompt"),
                code: Some("context_length_exceeded"),
            });
        }
        let encode = || self.tokenizer().encode_prompt(text, SpecialTokens::Parse);
        // A long text takes milliseconds: the other requests of this thread move to another.
        const LONG: usize = 16 << 10;
        Ok(if text.len() > LONG { block_in_place(encode) } else { encode() }?)
    }

    /// Whether the engine could ever run this.
    pub(crate) fn check(&self, prompt: &[Token], params: &SamplingParams) -> Result<(), ApiError> {
        Ok(check_request(&self.limits, self.max_num_seqs, prompt, params)?)
    }

    /// The tokens of a chat, up to where the assistant answers.
    pub(crate) fn encode_chat(
        &self,
        messages: &[Message],
        tools: &[Value],
    ) -> Result<Vec<Token>, ApiError> {
        let template = self.served.template.as_ref().ok_or_else(|| {
            ApiError::invalid(
                "messages",
                "this model has no chat template; use /v1/completions with a plain prompt",
            )
        })?;
        if self.tool_style.is_in_template {
            return self.encode(&render(template, messages, tools)?);
        }
        let plain = tools::in_plain_words(messages);
        let told = |has_system| {
            let mut messages = plain.clone();
            tools::describe(&mut messages, tools, has_system);
            render(template, &messages, &[])
        };
        // Some templates know no system.
        let text = match told(true) {
            Err(TemplateError::Refused(_)) if !tools.is_empty() => told(false),
            rendered => rendered,
        };
        self.encode(&text?)
    }

    /// How a token is written in a list of log-probabilities. Tokens that are no whole characters
    /// are spelt in bytes, so that no two look alike.
    pub(crate) fn token_text(&self, token: Token) -> String {
        let bytes = self.tokenizer().token_bytes(token);
        match std::str::from_utf8(&bytes) {
            Ok(text) => text.to_owned(),
            Err(_) => bytes.iter().fold("bytes:".to_owned(), |mut text, byte| {
                text.push_str(&format!("\\x{byte:02x}"));
                text
            }),
        }
    }
}

fn render(
    template: &ChatTemplate,
    messages: &[Message],
    tools: &[Value],
) -> Result<String, TemplateError> {
    template.render(&ChatInput {
        messages,
        add_generation_prompt: true,
        tools,
        now: unix_seconds() as i64,
        ..ChatInput::default()
    })
}

pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
