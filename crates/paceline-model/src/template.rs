//! Chat templates: from messages to the prompt a model was trained on.
//!
//! Owns the Jinja dialect of Hugging Face's `apply_chat_template` (whitespace rules, the helper
//! functions, Python's JSON) and the limits under which a file's template may run. Refuses to know
//! token ids, the clock, and what to do for a model without a template.

mod json;
mod time;

#[cfg(test)]
mod tests;

use std::fmt;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{Environment, Error, ErrorKind, State, context};
use serde::{Deserialize, Serialize};

use crate::tokenizer::Tokenizer;

/// Instructions a rendering may take: some hundred times what the longest chats need.
const FUEL: u64 = 20_000_000;
/// How deep macros and includes may call each other.
const MAX_DEPTH: usize = 64;
/// The largest templates have some 30 kB.
const MAX_SOURCE_BYTES: usize = 1 << 20;
const NAME: &str = "chat";
/// The variable `strftime_now` reads the time from.
const NOW: &str = "paceline_now";

/// One turn of a chat.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    pub role: String,
    pub content: String,
    /// Calls that an assistant made, as OpenAI writes them but with arguments as objects. Templates
    /// ask whether the field is there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<serde_json::Value>,
    /// The call that a tool's message answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// Who speaks, among those of one role; the tool's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl Message {
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into(), ..Self::default() }
    }
}

/// What a template is rendered with.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChatInput<'a> {
    pub messages: &'a [Message],
    /// End the prompt with the start of the assistant's turn.
    pub add_generation_prompt: bool,
    /// Descriptions of tools the model may call; none is the same as an absent argument.
    pub tools: &'a [serde_json::Value],
    /// Further variables, such as the switches some models' templates have.
    pub extra: Option<&'a serde_json::Map<String, serde_json::Value>>,
    /// Seconds since 1970 in UTC, for templates that state the date.
    pub now: i64,
}

/// Why a template could not be read or rendered.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    #[error("the chat template has {len} bytes; at most {MAX_SOURCE_BYTES} are accepted")]
    TooLarge { len: usize },
    #[error("the chat template is not valid: {0}")]
    Syntax(String),
    /// The template's own check of the messages said no.
    #[error("the model's chat template refuses these messages: {0}")]
    Refused(String),
    #[error("the chat template ran for too long and was stopped")]
    OutOfFuel,
    #[error("the chat template failed: {0}")]
    Render(String),
}

/// A compiled chat template.
pub struct ChatTemplate {
    source: String,
    environment: Environment<'static>,
    bos_token: String,
    eos_token: String,
}

impl ChatTemplate {
    /// Compiles a template. The two token texts are what it sees as `bos_token` and `eos_token`.
    pub fn new(source: &str, bos_token: &str, eos_token: &str) -> Result<Self, TemplateError> {
        if source.len() > MAX_SOURCE_BYTES {
            return Err(TemplateError::TooLarge { len: source.len() });
        }
        let mut environment = environment().map_err(|error| syntax_error(&error))?;
        environment
            .add_template_owned(NAME, without_generation_tags(source))
            .map_err(|error| syntax_error(&error))?;
        let (bos_token, eos_token) = (bos_token.to_owned(), eos_token.to_owned());
        Ok(Self { source: source.to_owned(), environment, bos_token, eos_token })
    }

    /// The template a model's files carry, if they carry one.
    pub fn of_tokenizer(tokenizer: &Tokenizer) -> Result<Option<Self>, TemplateError> {
        let Some(source) = tokenizer.chat_template() else {
            return Ok(None);
        };
        let text = |id: Option<u32>| {
            let bytes = id.map(|id| tokenizer.token_bytes(id)).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let (bos, eos) = (text(tokenizer.bos()), text(tokenizer.eos()));
        Self::new(source, &bos, &eos).map(Some)
    }

    /// The template's own text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The prompt for a chat.
    pub fn render(&self, input: &ChatInput<'_>) -> Result<String, TemplateError> {
        let tools = (!input.tools.is_empty()).then(|| Value::from(Serde(input.tools)));
        let fixed = context! {
            messages => Serde(input.messages),
            add_generation_prompt => input.add_generation_prompt,
            tools => tools.unwrap_or_else(|| Value::from(())),
            documents => Value::from(()),
            bos_token => self.bos_token.as_str(),
            eos_token => self.eos_token.as_str(),
            paceline_now => input.now,
        };
        // What is named first wins, so extra variables cannot replace the messages.
        let variables = match input.extra {
            Some(extra) => context! { ..fixed, ..Value::from(Serde(extra)) },
            None => fixed,
        };
        let template = self.environment.get_template(NAME).map_err(render_error)?;
        template.render(variables).map_err(render_error)
    }
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate").finish_non_exhaustive()
    }
}

fn environment() -> Result<Environment<'static>, Error> {
    let mut syntax = SyntaxConfig::builder();
    syntax.trim_blocks(true).lstrip_blocks(true);
    let mut environment = Environment::new();
    environment.set_syntax(syntax.build()?);
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(MAX_DEPTH);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment.add_filter("tojson", json::to_json);
    Ok(environment)
}

/// Marks an error that the template itself asked for.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

fn raise_exception(message: String) -> Result<Value, Error> {
    let raised = Raised(message.clone());
    Err(Error::new(ErrorKind::InvalidOperation, message).with_source(raised))
}

fn strftime_now(state: &mut State<'_, '_>, format: String) -> Result<String, Error> {
    let now = state.lookup(NOW).and_then(|now| i64::try_from(now).ok());
    Ok(time::format_utc(now.unwrap_or(0), &format))
}

fn render_error(error: Error) -> TemplateError {
    if error.kind() == ErrorKind::OutOfFuel {
        return TemplateError::OutOfFuel;
    }
    let mut cause = std::error::Error::source(&error);
    while let Some(current) = cause {
        if let Some(raised) = current.downcast_ref::<Raised>() {
            return TemplateError::Refused(raised.0.clone());
        }
        if let Some(inner) = current.downcast_ref::<Error>()
            && inner.kind() == ErrorKind::OutOfFuel
        {
            return TemplateError::OutOfFuel;
        }
        cause = current.source();
    }
    TemplateError::Render(describe(&error))
}

fn syntax_error(error: &Error) -> TemplateError {
    TemplateError::Syntax(describe(error))
}

/// The message with its place in the template.
fn describe(error: &Error) -> String {
    let what = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    match error.line() {
        Some(line) => format!("{what} (line {line} of the template)"),
        None => what,
    }
}

/// `{% generation %}` marks the assistant's words for training; to a prompt it means nothing. It is
/// no tag that `minijinja` knows, so it becomes a condition that always holds.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let Some(end) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let inner = &tag[2..end];
        match inner.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+') {
            "generation" => {
                out.push_str("{%");
                out.push_str(&inner.replace("generation", "if true"));
            }
            "endgeneration" => {
                out.push_str("{%");
                out.push_str(&inner.replace("endgeneration", "endif"));
            }
            _ => out.push_str(&tag[..end]),
        }
        rest = &tag[end..];
    }
    out.push_str(rest);
    out
}
