//! What a conversation is in a response's `input`, as messages.

use std::collections::HashMap;

use paceline_model::template::Message;
use serde::Deserialize;
use serde_json::Value;

use crate::error::ApiError;
use crate::json::{Fields, Shape, parse};
use crate::messages::{Content, WireCall, WireFunction, WireMessage, convert};

const INPUT: &str = "input";

/// A message, a call, or what a call gave.
#[derive(Debug, Deserialize)]
struct WireItem {
    #[serde(default)]
    r#type: Option<String>,
    #[serde(default)]
    role: Option<String>,
    #[serde(default)]
    content: Option<Content>,
    #[serde(default)]
    call_id: Option<String>,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    arguments: Value,
    #[serde(default)]
    output: Option<Content>,
}

/// The conversation: instructions, then a text or a list of items.
pub(super) fn read_input(
    fields: &mut Fields<'_>,
    instructions: Option<&str>,
) -> Result<Vec<Message>, ApiError> {
    let missing = || ApiError::invalid(INPUT, "the field input is missing");
    let (shape, raw) = fields.take_raw(INPUT).ok_or_else(missing)?;
    let mut messages: Vec<Message> =
        instructions.map(|text| Message::new("system", text)).into_iter().collect();
    match shape {
        Shape::Text => messages.push(Message::new("user", parse::<String>(INPUT, raw)?)),
        _ => messages.extend(convert(messages_of(parse(INPUT, raw)?)?, INPUT)?),
    }
    Ok(messages)
}

/// Chats have calls inside the assistant's messages, and results as messages of a role.
fn messages_of(items: Vec<WireItem>) -> Result<Vec<WireMessage>, ApiError> {
    let mut messages: Vec<WireMessage> = Vec::with_capacity(items.len());
    // What the calls so far are of: templates may want the name of a result's function.
    let mut functions: HashMap<String, String> = HashMap::new();
    for item in items {
        match item.r#type.as_deref() {
            None | Some("message") => messages.push(message(item)?),
            Some("function_call") => {
                let call = call(item)?;
                let id = call.id.clone().unwrap_or_default();
                functions.insert(id, call.function.name.clone());
                add_call(&mut messages, call);
            }
            Some("function_call_output") => messages.push(result(item, &functions)?),
            Some(other) => {
                let other: String = other.chars().take(40).collect();
                let message = format!("{INPUT}: items of type {other:?} are not understood");
                return Err(ApiError::invalid(INPUT, message));
            }
        }
    }
    Ok(messages)
}

fn message(item: WireItem) -> Result<WireMessage, ApiError> {
    let role = require(item.role, "a message", "role")?;
    let (content, name) = (item.content, item.name);
    Ok(WireMessage { role, content, tool_calls: None, tool_call_id: None, name })
}

fn call(item: WireItem) -> Result<WireCall, ApiError> {
    let id = Some(require(item.call_id, "a function_call", "call_id")?);
    let name = require(item.name, "a function_call", "name")?;
    Ok(WireCall { id, function: WireFunction { name, arguments: item.arguments } })
}

/// Calls that follow each other, or what the assistant said before them, are one message.
fn add_call(messages: &mut Vec<WireMessage>, call: WireCall) {
    match messages.last_mut() {
        Some(last) if last.role == "assistant" => {
            last.tool_calls.get_or_insert_default().push(call);
        }
        _ => messages.push(WireMessage {
            role: "assistant".to_owned(),
            content: None,
            tool_calls: Some(vec![call]),
            tool_call_id: None,
            name: None,
        }),
    }
}

fn result(item: WireItem, functions: &HashMap<String, String>) -> Result<WireMessage, ApiError> {
    let id = require(item.call_id, "a function_call_output", "call_id")?;
    let Some(name) = functions.get(&id).cloned() else {
        let id: String = id.chars().take(100).collect();
        let message = format!("{INPUT}: the output {id:?} belongs to no function_call before it");
        return Err(ApiError::invalid(INPUT, message));
    };
    let content = Some(require(item.output, "a function_call_output", "output")?);
    Ok(WireMessage {
        role: "tool".to_owned(),
        content,
        tool_calls: None,
        tool_call_id: Some(id),
        name: Some(name),
    })
}

fn require<T>(value: Option<T>, item: &str, field: &str) -> Result<T, ApiError> {
    let missing = || ApiError::invalid(INPUT, format!("{INPUT}: {item} has no {field}"));
    value.ok_or_else(missing)
}
