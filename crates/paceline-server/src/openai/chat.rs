//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::Response;
use paceline_engine::TokenLogprob;
use serde::Serialize;
use serde_json::{Value, json};

use super::logprobs::ChatLogprobs;
use super::{Counted, Head, Usage};
use crate::app::Ready;
use crate::asked::Asked;
use crate::call::Call;
use crate::collect::{Choice, collect};
use crate::error::ApiError;
use crate::json::{Fields, json_response};
use crate::messages::read_messages;
use crate::reply::{Finish, Piece, Update};
use crate::sse::{self, Chunks, Events};
use crate::tools::{Said, ToolCall, ToolForm, ToolParser, ToolStyle, Tools};

/// What a request gets, however it came.
pub(crate) async fn answer(call: Call) -> Result<Response, ApiError> {
    let opened = call.open();
    let (mut fields, name) = opened.fields()?;
    let model = &opened.ready.model;
    let (asked, tools) = read(&mut fields, model.tool_style)?;
    let definitions = tools.as_ref().map(Tools::definitions).unwrap_or_default();
    let prompt = model.encode_chat(&read_messages(&mut fields)?, &definitions)?;
    let has_logprobs = asked.sampling.logprobs.is_some();
    let n_prompt = prompt.len();
    let n = asked.sampling.n;
    let work = asked.job(model, prompt)?;
    let object = if asked.stream { "chat.completion.chunk" } else { "chat.completion" };
    let head = Head::new(call.response_id("chatcmpl"), object, name);
    let mut running = call.generate(vec![work]).await?;
    let mut parsers: Vec<ToolParser> = match &tools {
        Some(tools) => (0..n).map(|_| tools.parser(model.tool_style)).collect(),
        None => Vec::new(),
    };
    if asked.stream {
        let usage = Counted { n_prompt, ..Counted::default() };
        let (ready, include_usage) = (Arc::clone(&opened.ready), asked.include_usage);
        let chunks = ChatChunks { ready, head, n, include_usage, has_logprobs, usage, parsers };
        return Ok(sse::response(running, chunks));
    }
    let mut answers = collect(&mut running.reply, &[n]).await?;
    let answer = answers.pop().unwrap_or_default();
    let n_completion = answer.choices.iter().map(|choice| choice.tokens.len()).sum();
    let usage = Usage::new(n_prompt, n_completion, answer.n_cached as usize);
    let choice = |(index, choice): (usize, &Choice)| {
        let logprobs = has_logprobs.then(|| ChatLogprobs::new(model, &choice.logprobs));
        let (message, finish_reason) = whole_message(choice, parsers.get_mut(index));
        json!({"index": index, "message": message, "logprobs": logprobs,
               "finish_reason": finish_reason})
    };
    let choices = answer.choices.iter().enumerate().map(choice).collect();
    Ok(json_response(StatusCode::OK, &Whole { head, choices, usage }))
}

fn read(fields: &mut Fields<'_>, style: ToolStyle) -> Result<(Asked, Option<Tools>), ApiError> {
    let mut asked = read_asked(fields)?;
    let tools = Tools::read(fields, ToolForm::Nested)?;
    let tools = tools.map_or(Ok(None), |tools| tools.ask(&mut asked, style))?;
    Ok((asked, tools))
}

fn read_asked(fields: &mut Fields<'_>) -> Result<Asked, ApiError> {
    let mut asked = Asked::read(fields)?;
    let max_tokens: Option<u32> = fields.take("max_tokens")?;
    asked.max_tokens = fields.take("max_completion_tokens")?.or(max_tokens);
    let wants_logprobs: bool = fields.take("logprobs")?.unwrap_or(false);
    let top_logprobs: Option<u32> = fields.take("top_logprobs")?;
    if top_logprobs.is_some_and(|top| top > 0) && !wants_logprobs {
        return Err(ApiError::invalid("top_logprobs", "top_logprobs needs logprobs to be true"));
    }
    asked.sampling.logprobs = wants_logprobs.then(|| top_logprobs.unwrap_or(0));
    Ok(asked)
}

#[derive(Serialize)]
struct Whole {
    #[serde(flatten)]
    head: Head,
    choices: Vec<Value>,
    usage: Usage,
}

/// A choice's message, and why it ended.
fn whole_message(choice: &Choice, parser: Option<&mut ToolParser>) -> (Value, &'static str) {
    let Some(parser) = parser else {
        let message = json!({"role": "assistant", "content": choice.text, "refusal": null});
        return (message, choice.finish_name());
    };
    let mut said = Vec::new();
    parser.push(&choice.text, &mut said);
    parser.finish(&mut said);
    let (mut content, mut calls) = (String::new(), Vec::new());
    for said in said {
        match said {
            Said::Text(text) => content.push_str(&text),
            Said::Call(call) => calls.push(WireCall::new(call, None)),
        }
    }
    let content = (!content.is_empty() || calls.is_empty()).then_some(content);
    let finish_reason = finish_name(choice.finish.unwrap_or(Finish::Length), Some(parser));
    let mut message = json!({"role": "assistant", "content": content, "refusal": null});
    if !calls.is_empty() {
        message["tool_calls"] = json!(calls);
    }
    (message, finish_reason)
}

fn finish_name(finish: Finish, parser: Option<&ToolParser>) -> &'static str {
    match finish {
        Finish::Stop if parser.is_some_and(|parser| parser.n_calls() > 0) => "tool_calls",
        _ => finish.name(),
    }
}

/// A call on the wire.
#[derive(Serialize)]
struct WireCall {
    /// Streams count them.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    id: String,
    r#type: &'static str,
    function: WireFunction,
}

#[derive(Serialize)]
struct WireFunction {
    name: String,
    arguments: String,
}

impl WireCall {
    fn new(call: ToolCall, index: Option<usize>) -> WireCall {
        let ToolCall { id, name, arguments } = call;
        WireCall { index, id, r#type: "function", function: WireFunction { name, arguments } }
    }
}

struct ChatChunks {
    ready: Arc<Ready>,
    head: Head,
    n: u32,
    include_usage: bool,
    has_logprobs: bool,
    usage: Counted,
    /// One for each choice where there are tools.
    parsers: Vec<ToolParser>,
}

#[derive(Serialize)]
struct Chunk<'a> {
    #[serde(flatten)]
    head: &'a Head,
    choices: Vec<ChunkChoice<'a>>,
    /// Absent unless asked for; null until the last chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
}

#[derive(Serialize)]
struct ChunkChoice<'a> {
    index: u32,
    delta: Delta<'a>,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<&'static str>,
}

#[derive(Default, Serialize)]
struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<[WireCall; 1]>,
}

impl ChatChunks {
    fn chunk<'a>(&'a self, choices: Vec<ChunkChoice<'a>>) -> Chunk<'a> {
        Chunk { head: &self.head, choices, usage: self.include_usage.then_some(None) }
    }

    fn logprobs(&self, logprob: Option<&TokenLogprob>) -> Option<ChatLogprobs> {
        let model = &self.ready.model;
        (self.has_logprobs && logprob.is_some()).then(|| ChatLogprobs::new(model, logprob))
    }

    fn piece(&mut self, piece: Piece, out: &mut Events) {
        let index = piece.index;
        self.usage.n_completion += usize::from(piece.token.is_some());
        let mut logprobs = self.logprobs(piece.logprob.as_deref());
        let (said, finish_reason) = self.said(piece);
        for delta in said.iter().map(delta) {
            let logprobs = logprobs.take();
            let choice = ChunkChoice { index, delta, logprobs, finish_reason: None };
            out.data(&self.chunk(vec![choice]));
        }
        // What is held back, or is no text, may have them all the same.
        if logprobs.is_some() {
            let delta = Delta { content: Some(""), ..Delta::default() };
            let choice = ChunkChoice { index, delta, logprobs, finish_reason: None };
            out.data(&self.chunk(vec![choice]));
        }
        if finish_reason.is_some() {
            let delta = Delta::default();
            let choice = ChunkChoice { index, delta, logprobs: None, finish_reason };
            out.data(&self.chunk(vec![choice]));
        }
    }

    /// What a piece lets a choice say, and why it ends if it does.
    fn said(&mut self, piece: Piece) -> (Vec<Numbered>, Option<&'static str>) {
        let Some(parser) = self.parsers.get_mut(piece.index as usize) else {
            let text = Some(piece.text).filter(|text| !text.is_empty());
            let said = text.map(|text| (Said::Text(text), 0)).into_iter().collect();
            return (said, piece.finish.map(Finish::name));
        };
        let mut n_calls = parser.n_calls();
        let mut said = Vec::new();
        parser.push(&piece.text, &mut said);
        if piece.finish.is_some() {
            parser.finish(&mut said);
        }
        let numbered = said.into_iter().map(|said| {
            let number = n_calls;
            n_calls += usize::from(matches!(said, Said::Call(_)));
            (said, number)
        });
        let numbered = numbered.collect();
        (numbered, piece.finish.map(|finish| finish_name(finish, Some(parser))))
    }
}

/// What a choice says, with the number of calls before it.
type Numbered = (Said, usize);

fn delta((said, n_calls): &Numbered) -> Delta<'_> {
    match said {
        Said::Text(text) => Delta { content: Some(text), ..Delta::default() },
        Said::Call(call) => {
            let call = WireCall::new(call.clone(), Some(*n_calls));
            Delta { tool_calls: Some([call]), ..Delta::default() }
        }
    }
}

impl Chunks for ChatChunks {
    fn begin(&mut self, out: &mut Events) {
        for index in 0..self.n {
            let content = Some("");
            let delta = Delta { role: Some("assistant"), content, ..Delta::default() };
            let choice = ChunkChoice { index, delta, logprobs: None, finish_reason: None };
            out.data(&self.chunk(vec![choice]));
        }
    }

    fn update(&mut self, update: Update, out: &mut Events) {
        match update {
            Update::Started { n_cached, .. } => self.usage.n_cached = n_cached as usize,
            Update::PromptLogprob { .. } => {}
            Update::Piece(piece) => self.piece(piece, out),
        }
    }

    fn end(&mut self, out: &mut Events) {
        if self.include_usage {
            let usage = Some(Some(self.usage.usage()));
            out.data(&Chunk { usage, ..self.chunk(Vec::new()) });
        }
        out.done();
    }
}
