//! Reads calls out of an answer's text as it comes, in whichever of the common forms.
//!
//! A call is told when it is whole. What only looks like one, or names a tool that was not
//! offered, stays text.

use std::borrow::Cow;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::style::{Form, ToolStyle};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const LIST: &str = "[TOOL_CALLS]";
const PYTHON: &str = "<|python_tag|>";
const ARGS: &str = "[ARGS]";
/// What may begin a call in the midst of text.
const MARKS: [&str; 3] = [OPEN, LIST, PYTHON];

/// Something an answer says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Text(String),
    Call(ToolCall),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ToolCall {
    pub(crate) id: String,
    pub(crate) name: String,
    /// JSON, as the model wrote it.
    pub(crate) arguments: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Text,
    /// Between the tags.
    Tagged,
    /// All that comes is the call's, or nothing is.
    Rest,
}

#[derive(Debug)]
pub(crate) struct ToolParser {
    names: Arc<[String]>,
    has_short_ids: bool,
    state: State,
    /// Came, but has not been told; begins with the mark while a call is open.
    held: String,
    has_text: bool,
    n_calls: usize,
}

impl ToolParser {
    pub(super) fn new(names: Arc<[String]>, style: ToolStyle) -> ToolParser {
        ToolParser {
            names,
            // Mistral's templates refuse all others when they come back.
            has_short_ids: matches!(style.form, Form::Listed { .. }),
            state: State::Text,
            held: String::new(),
            has_text: false,
            n_calls: 0,
        }
    }

    /// Calls told so far.
    pub(crate) fn n_calls(&self) -> usize {
        self.n_calls
    }

    /// Takes a piece of the answer; what can be told now is added to `said`.
    pub(crate) fn push(&mut self, text: &str, said: &mut Vec<Said>) {
        self.held.push_str(text);
        while match self.state {
            State::Text => self.take_text(said),
            State::Tagged => self.take_tagged(said),
            State::Rest => false,
        } {}
    }

    /// Takes the end of the answer.
    pub(crate) fn finish(&mut self, said: &mut Vec<Said>) {
        let held = std::mem::take(&mut self.held);
        match self.state {
            State::Text => self.tell(held, said),
            State::Tagged => self.close(held[OPEN.len()..].to_owned(), held, said),
            State::Rest => self.close(held.replace(PYTHON, ""), held, said),
        }
        self.state = State::Text;
    }

    /// True if there may be more to do.
    fn take_text(&mut self, said: &mut Vec<Said>) -> bool {
        if !self.has_text {
            // White space around calls is nobody's words.
            self.held = self.held.trim_start().to_owned();
            if self.held.is_empty() || self.held == "[" {
                return false;
            }
            if self.n_calls == 0 && begins_json(&self.held) {
                self.state = State::Rest;
                return true;
            }
        }
        let marks = MARKS.iter().filter_map(|mark| Some((self.held.find(mark)?, *mark)));
        if let Some((at, mark)) = marks.min() {
            let call = self.held.split_off(at);
            let text = std::mem::replace(&mut self.held, call);
            self.tell(text, said);
            self.state = if mark == OPEN { State::Tagged } else { State::Rest };
            return true;
        }
        let kept = self.held.split_off(self.held.len() - begun_mark(&self.held));
        let text = std::mem::replace(&mut self.held, kept);
        self.tell(text, said);
        false
    }

    fn take_tagged(&mut self, said: &mut Vec<Said>) -> bool {
        let Some(at) = self.held.find(CLOSE) else {
            return false;
        };
        let rest = self.held.split_off(at + CLOSE.len());
        let whole = std::mem::replace(&mut self.held, rest);
        self.close(whole[OPEN.len()..at].to_owned(), whole, said);
        self.state = State::Text;
        true
    }

    fn tell(&mut self, text: String, said: &mut Vec<Said>) {
        if !text.is_empty() {
            self.has_text = true;
            said.push(Said::Text(text));
        }
    }

    /// Tells the calls in `inner`, or the whole text if there are none.
    fn close(&mut self, inner: String, whole: String, said: &mut Vec<Said>) {
        let calls = parse_calls(&inner);
        let is_known = |(name, _): &(String, String)| self.names.contains(name);
        match calls.filter(|calls| !calls.is_empty() && calls.iter().all(is_known)) {
            None => self.tell(whole, said),
            Some(calls) => {
                self.n_calls += calls.len();
                // Space before the next call is not told.
                self.has_text = false;
                let call = |(name, arguments)| ToolCall { id: self.new_id(), name, arguments };
                said.extend(calls.into_iter().map(call).map(Said::Call));
            }
        }
    }

    fn new_id(&self) -> String {
        let id = crate::random::id();
        if self.has_short_ids { id[..9].to_owned() } else { format!("call_{}", &id[..24]) }
    }
}

fn begins_json(text: &str) -> bool {
    let list = text.strip_prefix('[').map(str::trim_start);
    text.starts_with('{') || list.is_some_and(|rest| rest.starts_with('{'))
}

/// Bytes at the end of a text that may be the beginning of a mark.
fn begun_mark(text: &str) -> usize {
    let longest = |mark: &&str| (1..mark.len()).rev().find(|&n| text.ends_with(&mark[..n]));
    MARKS.iter().filter_map(longest).max().unwrap_or(0)
}

/// Names with arguments; `None` where anything is amiss.
fn parse_calls(text: &str) -> Option<Vec<(String, String)>> {
    let mut calls = Vec::new();
    for part in text.split(LIST).map(str::trim).filter(|part| !part.is_empty()) {
        match part.starts_with(['{', '[']) {
            true => parse_values(part, &mut calls)?,
            false => calls.push(parse_named(part)?),
        }
    }
    Some(calls)
}

#[derive(Deserialize)]
struct WireCall<'a> {
    #[serde(borrow, default)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    function: Option<&'a RawValue>,
    #[serde(borrow, default)]
    arguments: Option<&'a RawValue>,
    #[serde(borrow, default)]
    parameters: Option<&'a RawValue>,
}

/// JSON values one after the other, with or without `;` between them.
fn parse_values(text: &str, calls: &mut Vec<(String, String)>) -> Option<()> {
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches(|c: char| c.is_whitespace() || c == ';' || c == ',');
        if rest.is_empty() {
            return Some(());
        }
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<&RawValue>();
        let value = values.next()?.ok()?;
        rest = &rest[values.byte_offset()..];
        if value.get().starts_with('[') {
            let list: Vec<WireCall<'_>> = serde_json::from_str(value.get()).ok()?;
            for call in list {
                calls.push(convert(call)?);
            }
        } else {
            calls.push(convert(serde_json::from_str(value.get()).ok()?)?);
        }
    }
}

fn convert(call: WireCall<'_>) -> Option<(String, String)> {
    let arguments = call.arguments.or(call.parameters);
    if let (None, Some(function)) = (&call.name, call.function) {
        // Either the name itself, or an object with name and arguments.
        if let Ok(name) = serde_json::from_str::<String>(function.get()) {
            return Some((name, arguments_text(arguments)?));
        }
        let inner: WireCall<'_> = serde_json::from_str(function.get()).ok()?;
        let arguments = inner.arguments.or(inner.parameters).or(arguments);
        return Some((inner.name?.into_owned(), arguments_text(arguments)?));
    }
    Some((call.name?.into_owned(), arguments_text(arguments)?))
}

fn arguments_text(arguments: Option<&RawValue>) -> Option<String> {
    let Some(raw) = arguments.map(RawValue::get) else {
        return Some("{}".to_owned());
    };
    match raw.as_bytes().first()? {
        b'{' => Some(raw.to_owned()),
        b'"' => serde_json::from_str(raw).ok(),
        b'n' => Some("{}".to_owned()),
        _ => None,
    }
}

/// Newer Mistrals write `name[ARGS]{...}`.
fn parse_named(text: &str) -> Option<(String, String)> {
    let (name, arguments) = text.split_at(text.find('{')?);
    let name = name.trim_end().trim_end_matches(ARGS).trim();
    serde_json::from_str::<&RawValue>(arguments).ok()?;
    Some((name.to_owned(), arguments.to_owned()))
}
