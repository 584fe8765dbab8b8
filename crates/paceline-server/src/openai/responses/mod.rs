//! `POST /v1/responses`: its stateless core. Nothing is stored, so there is nothing to refer back
//! to.

use std::borrow::Cow;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use paceline_model::template::Message;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::app::App;
use crate::asked::Asked;
use crate::call::Call;
use crate::collect::collect;
use crate::error::ApiError;
use crate::format::Format;
use crate::json::{Fields, Shape, json_response, parse};
use crate::messages::convert;
use crate::model::unix_seconds;
use crate::reply::{Finish, Update};
use crate::sse::{self, Chunks, Events};

const INPUT: &str = "input";

pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    answer(Call::read(app, request).await?).await
}

/// What a request gets, however it came.
pub(crate) async fn answer(call: Call) -> Result<Response, ApiError> {
    let (ready, body) = (Arc::clone(&call.ready), call.body.clone());
    let model = &ready.model;
    let mut fields = Fields::parse(&body)?;
    let name: Option<Cow<'_, str>> = fields.take("model")?;
    model.check_name(name.as_deref())?;
    let asked = read(&mut fields)?;
    let instructions: Option<String> = fields.take("instructions")?;
    let prompt = model.encode_chat(&read_input(&mut fields, instructions.as_deref())?, &[])?;
    let frame = Frame {
        id: call.response_id("resp"),
        created_at: unix_seconds(),
        model: name.map_or_else(|| model.name().to_owned(), Cow::into_owned),
        instructions,
        max_output_tokens: asked.max_tokens,
        temperature: asked.sampling.temperature,
        top_p: asked.sampling.top_p,
        format: asked.format.as_ref().map_or("text", Format::kind),
    };
    let counted = Counted { n_input: prompt.len(), ..Counted::default() };
    let work = asked.job(model, prompt)?;
    let mut running = call.generate(vec![work]).await?;
    if asked.stream {
        let text = String::new();
        let finish = Finish::Stop;
        let chunks = ResponseChunks { frame, counted, text, finish, n_events: 0 };
        return Ok(sse::response(running, chunks));
    }
    let answer = collect(&mut running.reply, &[1]).await?.pop().unwrap_or_default();
    let choice = answer.choices.into_iter().next().unwrap_or_default();
    let counted =
        Counted { n_cached: answer.n_cached as usize, n_output: choice.tokens.len(), ..counted };
    let finish = choice.finish.unwrap_or(Finish::Length);
    Ok(json_response(StatusCode::OK, &frame.finished(&choice.text, finish, counted)))
}

fn read(fields: &mut Fields<'_>) -> Result<Asked, ApiError> {
    if fields.has("previous_response_id") {
        let message = "responses are not stored here; send the whole conversation as input";
        return Err(ApiError::invalid("previous_response_id", message));
    }
    let tools: Option<Vec<&RawValue>> = fields.take("tools")?;
    if tools.is_some_and(|tools| !tools.is_empty()) {
        let message = "tools are not supported here; /v1/chat/completions takes them";
        return Err(ApiError::invalid("tools", message));
    }
    let mut asked = Asked::read(fields)?;
    asked.format = Format::read_response_text(fields)?.or(asked.format);
    asked.max_tokens = fields.take("max_output_tokens")?;
    if asked.max_tokens == Some(0) {
        return Err(ApiError::invalid("max_output_tokens", "max_output_tokens must be at least 1"));
    }
    if asked.sampling.n > 1 {
        return Err(ApiError::invalid("n", "a response has one answer"));
    }
    Ok(asked)
}

/// The conversation: instructions, then a text or a list of messages.
fn read_input(
    fields: &mut Fields<'_>,
    instructions: Option<&str>,
) -> Result<Vec<Message>, ApiError> {
    let missing = || ApiError::invalid(INPUT, "the field input is missing");
    let (shape, raw) = fields.take_raw(INPUT).ok_or_else(missing)?;
    let mut messages: Vec<Message> =
        instructions.map(|text| Message::new("system", text)).into_iter().collect();
    match shape {
        Shape::Text => messages.push(Message::new("user", parse::<String>(INPUT, raw)?)),
        _ => messages.extend(convert(parse(INPUT, raw)?, INPUT)?),
    }
    Ok(messages)
}

/// Tokens so far.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    n_input: usize,
    n_cached: usize,
    n_output: usize,
}

/// What a response says from its start to its end.
#[derive(Debug)]
struct Frame {
    id: String,
    created_at: u64,
    model: String,
    instructions: Option<String>,
    max_output_tokens: Option<u32>,
    temperature: f32,
    top_p: f32,
    /// The kind of text.
    format: &'static str,
}

impl Frame {
    fn message_id(&self) -> String {
        self.id.replacen("resp", "msg", 1)
    }

    /// The object as it is at `status`.
    fn object(&self, status: &str) -> Value {
        json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "status": status,
            "error": null,
            "incomplete_details": null,
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "metadata": {},
            "model": self.model,
            "output": [],
            "parallel_tool_calls": false,
            "previous_response_id": null,
            "store": false,
            "temperature": self.temperature,
            "text": {"format": {"type": self.format}},
            "tool_choice": "auto",
            "tools": [],
            "top_p": self.top_p,
            "usage": null,
        })
    }

    fn finished(&self, text: &str, finish: Finish, counted: Counted) -> Value {
        let is_whole = finish == Finish::Stop;
        let mut object = self.object(if is_whole { "completed" } else { "incomplete" });
        if !is_whole {
            object["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        object["output"] = json!([self.item(Some(text), is_whole)]);
        let Counted { n_input, n_cached, n_output } = counted;
        object["usage"] = json!({
            "input_tokens": n_input,
            "input_tokens_details": {"cached_tokens": n_cached},
            "output_tokens": n_output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": n_input + n_output,
        });
        object
    }

    /// The message; without a text it has only begun.
    fn item(&self, text: Option<&str>, is_whole: bool) -> Value {
        let status = match (text, is_whole) {
            (None, _) => "in_progress",
            (Some(_), true) => "completed",
            (Some(_), false) => "incomplete",
        };
        let content: Vec<Value> = text.map(part).into_iter().collect();
        json!({"id": self.message_id(), "type": "message", "status": status,
               "role": "assistant", "content": content})
    }
}

fn part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

struct ResponseChunks {
    frame: Frame,
    counted: Counted,
    text: String,
    finish: Finish,
    n_events: u64,
}

impl ResponseChunks {
    /// Writes one event; `fields` get its type and number.
    fn event(&mut self, kind: &str, mut fields: Value, out: &mut Events) {
        fields["type"] = kind.into();
        fields["sequence_number"] = self.n_events.into();
        self.n_events += 1;
        out.named(kind, &fields);
    }

    /// An event about the message's one part.
    fn part_event(&mut self, kind: &str, name: &str, value: Value, out: &mut Events) {
        let mut fields = json!({"item_id": self.frame.message_id(), "output_index": 0,
                                "content_index": 0});
        fields[name] = value;
        self.event(kind, fields, out);
    }
}

impl Chunks for ResponseChunks {
    fn begin(&mut self, out: &mut Events) {
        for kind in ["response.created", "response.in_progress"] {
            self.event(kind, json!({"response": self.frame.object("in_progress")}), out);
        }
        let item = self.frame.item(None, false);
        self.event("response.output_item.added", json!({"output_index": 0, "item": item}), out);
        self.part_event("response.content_part.added", "part", part(""), out);
    }

    fn update(&mut self, update: Update, out: &mut Events) {
        match update {
            Update::Started { n_cached, .. } => self.counted.n_cached = n_cached as usize,
            Update::PromptLogprob { .. } => {}
            Update::Piece(piece) => {
                self.counted.n_output += usize::from(piece.token.is_some());
                self.finish = piece.finish.unwrap_or(self.finish);
                if !piece.text.is_empty() {
                    self.text.push_str(&piece.text);
                    let delta = piece.text.into();
                    self.part_event("response.output_text.delta", "delta", delta, out);
                }
            }
        }
    }

    fn end(&mut self, out: &mut Events) {
        let text = std::mem::take(&mut self.text);
        let is_whole = self.finish == Finish::Stop;
        self.part_event("response.output_text.done", "text", text.as_str().into(), out);
        self.part_event("response.content_part.done", "part", part(&text), out);
        let item = self.frame.item(Some(&text), is_whole);
        self.event("response.output_item.done", json!({"output_index": 0, "item": item}), out);
        let response = self.frame.finished(&text, self.finish, self.counted);
        let kind = if is_whole { "response.completed" } else { "response.incomplete" };
        self.event(kind, json!({"response": response}), out);
    }

    fn fail(&mut self, error: &ApiError, out: &mut Events) {
        let body = error.body();
        let fields = json!({"message": body["error"]["message"], "code": body["error"]["code"],
                            "param": body["error"]["param"]});
        self.event("error", fields, out);
    }
}
