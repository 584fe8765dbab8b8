//! How a model is told of tools, and how it calls them.
//!
//! Templates that know tools say so themselves. For the others a description joins the system's
//! words, and calls and results become text: any model can then be asked, whatever it makes of it.

use paceline_grammar::Source;
use paceline_model::template::{ChatInput, ChatTemplate, Message};
use paceline_model::tokenizer::Tokenizer;
use serde_json::{Value, json};

use super::{Choice, TOOLS, Tools};
use crate::error::ApiError;
use crate::format::Format;

/// Calls that an answer may be made to have; a small model would go on for ever.
const MAX_FORCED_CALLS: usize = 8;

/// What one model does with tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ToolStyle {
    pub(super) form: Form,
    /// The chat template shows tools to the model.
    pub(crate) is_in_template: bool,
}

/// How calls are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// `<tool_call>\n{"name": ..., "arguments": ...}\n</tool_call>`: Hermes, Qwen, SmolLM.
    Tagged,
    /// `{"name": ..., "parameters": ...}`: Llama 3.
    Bare,
    /// `[TOOL_CALLS][{"name": ..., "arguments": ...}]`: Mistral. The mark is a token of its own
    /// where the vocabulary has it.
    Listed { mark: Option<u32> },
}

impl ToolStyle {
    pub(crate) fn new(tokenizer: &Tokenizer, template: Option<&ChatTemplate>) -> ToolStyle {
        let is_in_template = template.is_some_and(shows_tools);
        let source = template.map(ChatTemplate::source).unwrap_or_default();
        let form = if !is_in_template || source.contains("<tool_call>") {
            Form::Tagged
        } else if source.contains("[TOOL_CALLS]") {
            let mark = tokenizer.token_id("[TOOL_CALLS]");
            Form::Listed { mark: mark.filter(|&id| tokenizer.is_special(id)) }
        } else if source.contains("\"parameters\"") {
            Form::Bare
        } else {
            Form::Tagged
        };
        ToolStyle { form, is_in_template }
    }
}

/// Whether a tool's name gets into the prompt.
fn shows_tools(template: &ChatTemplate) -> bool {
    const NAME: &str = "paceline_probe";
    let parameters = json!({"type": "object", "properties": {}});
    let function = json!({"name": NAME, "description": "A probe.", "parameters": parameters});
    let chat = ChatInput {
        messages: &[Message::new("user", "Hello")],
        add_generation_prompt: true,
        tools: &[json!({"type": "function", "function": function})],
        ..ChatInput::default()
    };
    template.render(&chat).is_ok_and(|prompt| prompt.contains(NAME))
}

impl Tools {
    /// The form of an answer that must be a call; `None` if the model decides.
    pub(crate) fn format(&self, style: ToolStyle) -> Result<Option<Format>, ApiError> {
        if !self.is_forced() {
            return Ok(None);
        }
        let mut rules = String::new();
        let mut names = Vec::new();
        for (place, tool) in self.allowed().enumerate() {
            let schema = Source::embedded_schema(tool.parameters.clone(), tool.is_strict)
                .map_err(|error| ApiError::invalid(TOOLS, format!("{TOOLS}: {error}")))?;
            let (before, after) = style.form.around(&tool.name);
            let (before, after) = (Value::from(before), Value::from(after));
            rules += &format!("call_{place}: {before} args_{place} {after}\n");
            rules += &format!("args_{place}: %json {schema}\n");
            names.push(format!("call_{place}"));
        }
        let is_one = matches!(self.choice, Choice::Named(_)) || !self.is_parallel;
        let n_more = if is_one { 0 } else { MAX_FORCED_CALLS - 1 };
        let start = style.form.start(n_more);
        let grammar = format!("{start}\ncall: {}\n{rules}", names.join(" | "));
        Ok(Some(Format { param: TOOLS, source: Source::Composed(grammar) }))
    }
}

impl Form {
    /// What comes before and after the arguments of a call.
    fn around(self, name: &str) -> (String, &'static str) {
        let name = Value::from(name);
        match self {
            Form::Tagged => {
                let before = format!("<tool_call>\n{{\"name\": {name}, \"arguments\": ");
                (before, "}\n</tool_call>")
            }
            Form::Bare => (format!("{{\"name\": {name}, \"parameters\": "), "}"),
            Form::Listed { .. } => (format!("{{\"name\": {name}, \"arguments\": "), "}"),
        }
    }

    /// The first rule: a call and up to `n_more` of them.
    fn start(self, n_more: usize) -> String {
        let more = |separator: &str| match n_more {
            0 => "call".to_owned(),
            _ => format!("call ({} call){{0,{n_more}}}", Value::from(separator)),
        };
        match self {
            Form::Tagged => format!("start: {}", more("\n")),
            Form::Bare => "start: call".to_owned(),
            Form::Listed { mark: Some(id) } => {
                format!("start: <[{id}]> \"[\" {} \"]\"", more(", "))
            }
            Form::Listed { mark: None } => {
                format!("start: \"[TOOL_CALLS][\" {} \"]\"", more(", "))
            }
        }
    }
}

/// The same chat without anything that only a template with tools understands.
pub(crate) fn in_plain_words(messages: &[Message]) -> Vec<Message> {
    let mut plain: Vec<Message> = Vec::with_capacity(messages.len());
    let mut was_tool = false;
    for message in messages {
        let is_tool = message.role == "tool";
        if is_tool {
            let result = format!("<tool_response>\n{}\n</tool_response>", message.content);
            match plain.last_mut() {
                // Many templates want user and assistant to take turns.
                Some(last) if was_tool => last.content = format!("{}\n{result}", last.content),
                _ => plain.push(Message::new("user", result)),
            }
        } else {
            let calls = message.tool_calls.iter().map(|call| {
                let call = json!({"name": call["function"]["name"],
                                  "arguments": call["function"]["arguments"]});
                format!("<tool_call>\n{call}\n</tool_call>")
            });
            let said = Some(message.content.clone()).filter(|content| !content.is_empty());
            let content: Vec<String> = said.into_iter().chain(calls).collect();
            plain.push(Message::new(message.role.clone(), content.join("\n")));
        }
        was_tool = is_tool;
    }
    plain
}

/// Adds words about the tools to the chat. `has_system`: the template takes a system's words.
pub(crate) fn describe(messages: &mut Vec<Message>, tools: &[Value], has_system: bool) {
    if tools.is_empty() {
        return;
    }
    let functions: Vec<String> = tools.iter().map(|tool| tool["function"].to_string()).collect();
    let words = format!(
        "These functions can be called:\n{}\n\nTo call one, answer with its name and arguments \
         in this form:\n<tool_call>\n{{\"name\": \"NAME\", \"arguments\": {{...}}}}\n</tool_call>",
        functions.join("\n")
    );
    match messages.first_mut() {
        Some(first) if first.role == "system" || !has_system => {
            first.content = format!("{}\n\n{words}", first.content);
        }
        _ => messages.insert(0, Message::new("system", words)),
    }
}
