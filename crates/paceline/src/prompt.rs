//! What a caller asks for, in text.

use std::time::Duration;

use paceline_engine::{Priority, SamplingParams, Token};
use paceline_model::template::Message;

/// A prompt, with parameters of its own if it has any.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    pub input: Input,
    /// Instead of the batch's parameters.
    pub params: Option<GenerateParams>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// Text to continue, as it is; strings of special tokens in it become those tokens.
    Text(String),
    /// Token ids to continue.
    Tokens(Vec<Token>),
    /// A conversation, put into the model's chat template.
    Chat(Vec<Message>),
}

impl Prompt {
    /// One question of a user, in the model's chat template.
    pub fn user(content: impl Into<String>) -> Prompt {
        Input::Chat(vec![Message::new("user", content)]).into()
    }

    pub fn with_params(self, params: GenerateParams) -> Prompt {
        Prompt { params: Some(params), ..self }
    }
}

impl From<Input> for Prompt {
    fn from(input: Input) -> Prompt {
        Prompt { input, params: None }
    }
}

impl From<&str> for Prompt {
    fn from(text: &str) -> Prompt {
        Input::Text(text.to_owned()).into()
    }
}

impl From<String> for Prompt {
    fn from(text: String) -> Prompt {
        Input::Text(text).into()
    }
}

impl From<Vec<Token>> for Prompt {
    fn from(tokens: Vec<Token>) -> Prompt {
        Input::Tokens(tokens).into()
    }
}

impl From<Vec<Message>> for Prompt {
    fn from(messages: Vec<Message>) -> Prompt {
        Input::Chat(messages).into()
    }
}

/// How to generate: the engine's sampling parameters and what concerns text and service.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerateParams {
    /// `stop_tokens` here come on top of the model's own end tokens.
    pub sampling: SamplingParams,
    /// Strings that end the text; they are not part of it.
    pub stop: Vec<String>,
    /// Keep the stop string in the text.
    pub include_stop: bool,
    /// Show special tokens in the text.
    pub show_special: bool,
    pub priority: Priority,
    /// Give up after this long.
    pub timeout: Option<Duration>,
    /// Requests of different tenants share neither cached prefixes nor guesses at next tokens.
    pub tenant: u64,
}

impl GenerateParams {
    /// The most likely token each time.
    pub fn greedy(max_tokens: u32) -> GenerateParams {
        let sampling = SamplingParams { max_tokens, ..SamplingParams::greedy() };
        GenerateParams { sampling, ..GenerateParams::default() }
    }

    /// Random sampling that gives the same text for the same seed, whatever else is running.
    pub fn seeded(max_tokens: u32, temperature: f32, seed: u64) -> GenerateParams {
        let sampling =
            SamplingParams { max_tokens, temperature, seed, ..SamplingParams::default() };
        GenerateParams { sampling, ..GenerateParams::default() }
    }
}
