//! A chat's messages as clients write them.

use std::fmt;

use paceline_model::template::Message;
use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::json::Fields;

const MAX_MESSAGES: usize = 10_000;

#[derive(Debug, Deserialize)]
pub(crate) struct WireMessage {
    pub(crate) role: String,
    /// Null for an assistant that only called tools.
    #[serde(default)]
    pub(crate) content: Option<Content>,
    #[serde(default)]
    pub(crate) tool_calls: Option<Vec<WireCall>>,
    #[serde(default)]
    pub(crate) tool_call_id: Option<String>,
    #[serde(default)]
    pub(crate) name: Option<String>,
}

/// A call that the assistant made earlier.
#[derive(Debug, Deserialize)]
pub(crate) struct WireCall {
    #[serde(default)]
    pub(crate) id: Option<String>,
    pub(crate) function: WireFunction,
}

#[derive(Debug, Deserialize)]
pub(crate) struct WireFunction {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) arguments: Value,
}

#[derive(Debug)]
pub(crate) enum Content {
    Text(String),
    Parts(Vec<Part>),
}

/// By hand, because an untagged enum would first build a tree of everything.
impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Content, D::Error> {
        deserializer.deserialize_any(ContentVisitor)
    }
}

struct ContentVisitor;

impl<'de> Visitor<'de> for ContentVisitor {
    type Value = Content;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string or a list of parts")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Content, E> {
        Ok(Content::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Content, A::Error> {
        let mut parts = Vec::new();
        while let Some(part) = seq.next_element()? {
            parts.push(part);
        }
        Ok(Content::Parts(parts))
    }
}

#[derive(Debug, Deserialize)]
pub(crate) struct Part {
    r#type: String,
    #[serde(default)]
    text: Option<String>,
}

/// The messages of a request.
pub(crate) fn read_messages(fields: &mut Fields<'_>) -> Result<Vec<Message>, ApiError> {
    convert(fields.require("messages")?, "messages")
}

pub(crate) fn convert(
    wire: Vec<WireMessage>,
    param: &'static str,
) -> Result<Vec<Message>, ApiError> {
    if wire.is_empty() {
        return Err(ApiError::invalid(param, format!("{param} is empty")));
    }
    if wire.len() > MAX_MESSAGES {
        let n = wire.len();
        let message = format!("{param} has {n} entries; at most {MAX_MESSAGES} are taken");
        return Err(ApiError::invalid(param, message));
    }
    wire.into_iter().map(|message| convert_one(message, param)).collect()
}

fn convert_one(message: WireMessage, param: &'static str) -> Result<Message, ApiError> {
    // OpenAI renamed the system's role; templates know the old name.
    let role = if message.role == "developer" { "system".to_owned() } else { message.role };
    let content = match message.content {
        None => String::new(),
        Some(Content::Text(text)) => text,
        Some(Content::Parts(parts)) => join(parts, param)?,
    };
    let tool_calls = message.tool_calls.unwrap_or_default().into_iter().map(convert_call).collect();
    let (tool_call_id, name) = (message.tool_call_id, message.name);
    Ok(Message { role, content, tool_calls, tool_call_id, name })
}

/// Arguments come as text; templates want the object in it.
fn convert_call(call: WireCall) -> Value {
    let WireFunction { name, arguments } = call.function;
    let arguments = match &arguments {
        Value::String(text) => serde_json::from_str(text).unwrap_or(arguments),
        Value::Null => json!({}),
        _ => arguments,
    };
    json!({"id": call.id, "type": "function", "function": {"name": name, "arguments": arguments}})
}

/// Text parts, one after the other.
fn join(parts: Vec<Part>, param: &'static str) -> Result<String, ApiError> {
    let mut text = String::new();
    for part in parts {
        match (part.r#type.as_str(), part.text) {
            ("text" | "input_text" | "output_text", Some(part)) => text.push_str(&part),
            (kind, _) => {
                let kind: String = kind.chars().take(40).collect();
                let message = format!("{param}: parts of type {kind:?} are not understood");
                return Err(ApiError::invalid(param, message));
            }
        }
    }
    Ok(text)
}
