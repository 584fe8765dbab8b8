//! The prompts of a completion, in the forms OpenAI takes: text, texts, tokens, lists of tokens.

use std::borrow::Cow;

use paceline_engine::Token;

use crate::error::ApiError;
use crate::json::{Fields, Shape, parse};
use crate::model::Model;

/// What most routes call it.
pub(crate) const PROMPT: &str = "prompt";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prompt {
    /// As it was written; absent if it came as tokens.
    text: Option<String>,
    pub(crate) tokens: Vec<Token>,
}

impl Prompt {
    pub(crate) fn of_text(model: &Model, text: String) -> Result<Prompt, ApiError> {
        Ok(Prompt { tokens: model.encode(&text)?, text: Some(text) })
    }

    pub(crate) fn of_tokens(tokens: Vec<Token>) -> Prompt {
        Prompt { text: None, tokens }
    }

    pub(crate) fn text(&self, model: &Model) -> Cow<'_, str> {
        match &self.text {
            Some(text) => Cow::Borrowed(text),
            None => Cow::Owned(model.tokenizer().decode(&self.tokens)),
        }
    }
}

/// The prompts in the field of that name.
pub(crate) fn read_prompts(
    fields: &mut Fields<'_>,
    name: &'static str,
    model: &Model,
    max: usize,
) -> Result<Vec<Prompt>, ApiError> {
    let Some((shape, raw)) = fields.take_raw(name) else {
        return Err(ApiError::invalid(name, format!("the field {name} is missing")));
    };
    let text = |text| Prompt::of_text(model, text);
    match shape {
        Shape::Numbers => Ok(vec![Prompt::of_tokens(parse(name, raw)?)]),
        Shape::Texts => {
            let texts: Vec<String> = parse(name, raw)?;
            check_count(name, texts.len(), max)?;
            texts.into_iter().map(text).collect()
        }
        Shape::Lists => {
            let lists: Vec<Vec<Token>> = parse(name, raw)?;
            check_count(name, lists.len(), max)?;
            Ok(lists.into_iter().map(Prompt::of_tokens).collect())
        }
        _ => Ok(vec![text(parse(name, raw)?)?]),
    }
}

pub(crate) fn check_count(name: &'static str, n: usize, max: usize) -> Result<(), ApiError> {
    if n <= max {
        return Ok(());
    }
    let message = format!("there are {n} prompts; this server takes at most {max} at once");
    Err(ApiError::invalid(name, message))
}
