//! Tools that a chat's model may call: what the request says of them, how the model is told, and
//! how its calls are read.

mod parse;
mod style;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

pub(crate) use parse::{Said, ToolCall, ToolParser};
pub(crate) use style::{ToolStyle, describe, in_plain_words};

use crate::asked::Asked;
use crate::error::ApiError;
use crate::json::{Fields, Shape, Short, parse};

const TOOLS: &str = "tools";
const CHOICE: &str = "tool_choice";
const MAX_TOOLS: usize = 128;
const MAX_NAME: usize = 64;
const MAX_BYTES: usize = 1 << 20;

/// The tools of a request, where the model may use them.
#[derive(Clone, Debug)]
pub(crate) struct Tools {
    list: Vec<Tool>,
    choice: Choice,
    /// Several calls in one answer are wanted.
    is_parallel: bool,
}

#[derive(Clone, Debug)]
struct Tool {
    name: String,
    /// As it was sent, for the chat template.
    definition: Value,
    parameters: Map<String, Value>,
    is_strict: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Choice {
    /// The model decides.
    Auto,
    /// Some call.
    Required,
    /// A call of this one.
    Named(String),
}

/// How a route writes tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ToolForm {
    /// Chat: what a function is stands in an object of its own.
    Nested,
    /// Responses: it stands beside the type.
    Flat,
}

#[derive(Debug, Deserialize)]
struct WireTool {
    function: WireFunction,
}

#[derive(Debug, Deserialize)]
struct WireFunction {
    name: String,
    #[serde(default)]
    parameters: Option<Map<String, Value>>,
    #[serde(default)]
    strict: Option<bool>,
}

impl Tools {
    /// `None` if there are none, or none is to be used.
    pub(crate) fn read(fields: &mut Fields<'_>, form: ToolForm) -> Result<Option<Tools>, ApiError> {
        let list = read_list(fields, form)?;
        let is_parallel = fields.take("parallel_tool_calls")?.unwrap_or(true);
        let choice = match fields.take_raw(CHOICE) {
            None => Some(Choice::Auto),
            Some((Shape::Text, raw)) => choice_of_word(&parse::<String>(CHOICE, raw)?)?,
            Some((_, raw)) => Some(choice_of_object(raw, form)?),
        };
        let Some(choice) = choice else {
            return Ok(None);
        };
        match &choice {
            Choice::Named(name) if !list.iter().any(|tool| tool.name == *name) => {
                let message = format!("{CHOICE}: there is no tool of the name {name:?}");
                return Err(ApiError::invalid(CHOICE, message));
            }
            Choice::Required if list.is_empty() => {
                return Err(ApiError::invalid(CHOICE, format!("{CHOICE} needs {TOOLS}")));
            }
            _ => {}
        }
        Ok((!list.is_empty()).then_some(Tools { list, choice, is_parallel }))
    }

    /// Lets an answer call them, and sees to it that it does where that is asked for. `None` if
    /// it cannot, because it has another form.
    pub(crate) fn ask(
        self,
        asked: &mut Asked,
        style: ToolStyle,
    ) -> Result<Option<Tools>, ApiError> {
        match (&asked.format, self.format(style)?) {
            (Some(format), Some(_)) => {
                let message = format!("{} and a forced tool call exclude each other", format.param);
                Err(ApiError::invalid(format.param, message))
            }
            (Some(_), None) => Ok(None),
            (None, forced) => {
                asked.format = forced;
                asked.show_special();
                Ok(Some(self))
            }
        }
    }

    /// As chat templates want them.
    pub(crate) fn definitions(&self) -> Vec<Value> {
        self.list.iter().map(|tool| tool.definition.clone()).collect()
    }

    pub(crate) fn is_forced(&self) -> bool {
        self.choice != Choice::Auto
    }

    /// Reads one answer's calls.
    pub(crate) fn parser(&self, style: ToolStyle) -> ToolParser {
        let names: Arc<[String]> = self.list.iter().map(|tool| tool.name.clone()).collect();
        ToolParser::new(names, style)
    }

    /// The tools that may be called.
    fn allowed(&self) -> impl Iterator<Item = &Tool> {
        self.list.iter().filter(|tool| match &self.choice {
            Choice::Named(name) => tool.name == *name,
            _ => true,
        })
    }
}

fn read_list(fields: &mut Fields<'_>, form: ToolForm) -> Result<Vec<Tool>, ApiError> {
    let Some((_, raw)) = fields.take_raw(TOOLS) else {
        return Ok(Vec::new());
    };
    if raw.get().len() > MAX_BYTES {
        let message = format!("{TOOLS} has more than the {MAX_BYTES} bytes that are taken");
        return Err(ApiError::invalid(TOOLS, message));
    }
    let Short(definitions) = parse::<Short<Value, MAX_TOOLS>>(TOOLS, raw)?;
    let read = |definition| match form {
        ToolForm::Nested => read_tool(definition),
        ToolForm::Flat => read_tool(nested(definition)),
    };
    let list = definitions.into_iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let names: HashSet<&str> = list.iter().map(|tool| tool.name.as_str()).collect();
    if names.len() < list.len() {
        return Err(ApiError::invalid(TOOLS, format!("{TOOLS}: two have the same name")));
    }
    Ok(list)
}

/// A flat definition as chat templates know it.
fn nested(definition: Value) -> Value {
    let Value::Object(mut function) = definition else {
        return definition;
    };
    let kind = function.remove("type");
    json!({"type": kind, "function": function})
}

fn read_tool(definition: Value) -> Result<Tool, ApiError> {
    let refuse = |what: String| Err(ApiError::invalid(TOOLS, format!("{TOOLS}: {what}")));
    if definition.get("type").and_then(Value::as_str) != Some("function") {
        return refuse("only tools of the type function are known".to_owned());
    }
    let wire = match WireTool::deserialize(&definition) {
        Ok(wire) => wire,
        Err(error) => return refuse(error.to_string()),
    };
    let WireFunction { name, parameters, strict } = wire.function;
    let is_decent = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(is_decent) {
        let name: String = name.chars().take(MAX_NAME).collect();
        return refuse(format!(
            "{name:?} is no name; it must have 1 to {MAX_NAME} letters, digits or any of _-."
        ));
    }
    let parameters = object_schema(parameters.unwrap_or_default());
    Ok(Tool { name, definition, parameters, is_strict: strict.unwrap_or(false) })
}

/// Arguments are an object, even if their schema forgets to say so.
fn object_schema(mut schema: Map<String, Value>) -> Map<String, Value> {
    let says_it = ["type", "$ref", "anyOf", "oneOf", "allOf", "const", "enum"];
    if schema.is_empty() {
        schema.insert("additionalProperties".to_owned(), false.into());
    }
    if !says_it.iter().any(|&name| schema.contains_key(name)) {
        schema.insert("type".to_owned(), "object".into());
    }
    schema
}

/// `None` where no tool is to be used.
fn choice_of_word(word: &str) -> Result<Option<Choice>, ApiError> {
    match word {
        "none" => Ok(None),
        "auto" => Ok(Some(Choice::Auto)),
        "required" => Ok(Some(Choice::Required)),
        other => {
            let other: String = other.chars().take(40).collect();
            let message = format!(
                "{CHOICE} is {other:?}, but must be none, auto, required, or name a function"
            );
            Err(ApiError::invalid(CHOICE, message))
        }
    }
}

fn choice_of_object(raw: &RawValue, form: ToolForm) -> Result<Choice, ApiError> {
    #[derive(Deserialize)]
    struct Wire {
        function: Name,
    }
    #[derive(Deserialize)]
    struct Name {
        name: String,
    }
    let Name { name } = match form {
        ToolForm::Nested => parse::<Wire>(CHOICE, raw)?.function,
        ToolForm::Flat => parse(CHOICE, raw)?,
    };
    Ok(Choice::Named(name))
}
