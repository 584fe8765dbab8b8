//! `POST /v1/responses`: its stateless core. Nothing is stored, so there is nothing to refer back
//! to.

mod input;
mod output;

use axum::http::StatusCode;
use axum::response::Response;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::Counted;
use crate::asked::Asked;
use crate::call::Call;
use crate::collect::collect;
use crate::error::ApiError;
use crate::format::Format;
use crate::json::{Fields, json_response, parse};
use crate::model::unix_seconds;
use crate::reply::{Finish, Update};
use crate::sse::{self, Chunks, Events};
use crate::tools::{ToolForm, ToolStyle, Tools};
use input::read_input;
use output::{Event, Output};

/// What a request gets, however it came.
pub(crate) async fn answer(call: Call) -> Result<Response, ApiError> {
    let opened = call.open();
    let (mut fields, name) = opened.fields()?;
    let model = &opened.ready.model;
    let sent = Sent::of(&fields);
    let (asked, tools, format) = read(&mut fields, model.tool_style)?;
    let instructions: Option<String> = fields.take("instructions")?;
    let messages = read_input(&mut fields, instructions.as_deref())?;
    let definitions = tools.as_ref().map(Tools::definitions).unwrap_or_default();
    let prompt = model.encode_chat(&messages, &definitions)?;
    let id = call.response_id("resp");
    let parser = tools.map(|tools| tools.parser(model.tool_style));
    let output = Output::new(id.trim_start_matches("resp-").to_owned(), parser);
    let frame = Frame {
        id,
        created_at: unix_seconds(),
        model: name,
        instructions,
        max_output_tokens: asked.max_tokens,
        temperature: asked.sampling.temperature,
        top_p: asked.sampling.top_p,
        format,
        repeated: sent.repeated()?,
    };
    let counted = Counted { n_prompt: prompt.len(), ..Counted::default() };
    let work = asked.job(model, prompt)?;
    let mut running = call.generate(vec![work]).await?;
    if asked.stream {
        let finish = Finish::Stop;
        let chunks = ResponseChunks { frame, counted, output, finish, n_events: 0 };
        return Ok(sse::response(running, chunks));
    }
    let answer = collect(&mut running.reply, &[1]).await?.pop().unwrap_or_default();
    let choice = answer.choices.into_iter().next().unwrap_or_default();
    let n_completion = choice.tokens.len();
    let counted = Counted { n_cached: answer.n_cached as usize, n_completion, ..counted };
    let finish = choice.finish.unwrap_or(Finish::Length);
    let whole = frame.whole(output, &choice.text, finish, counted);
    Ok(json_response(StatusCode::OK, &whole))
}

/// What is asked for, tools that may be called, and the kind of text.
fn read(
    fields: &mut Fields<'_>,
    style: ToolStyle,
) -> Result<(Asked, Option<Tools>, &'static str), ApiError> {
    if fields.has("previous_response_id") {
        let message = "responses are not stored here; send the whole conversation as input";
        return Err(ApiError::invalid("previous_response_id", message));
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
    let kind = asked.format.as_ref().map_or("text", Format::kind);
    let tools = Tools::read(fields, ToolForm::Flat)?;
    let tools = tools.map_or(Ok(None), |tools| tools.ask(&mut asked, style))?;
    Ok((asked, tools, kind))
}

/// What a response repeats of its request, as it was sent.
#[derive(Debug)]
struct Sent<'a> {
    tools: Option<&'a RawValue>,
    tool_choice: Option<&'a RawValue>,
    is_parallel: Option<&'a RawValue>,
}

#[derive(Debug)]
struct Repeated {
    tools: Value,
    tool_choice: Value,
    is_parallel: Value,
}

impl<'a> Sent<'a> {
    fn of(fields: &Fields<'a>) -> Sent<'a> {
        Sent {
            tools: fields.look("tools"),
            tool_choice: fields.look("tool_choice"),
            is_parallel: fields.look("parallel_tool_calls"),
        }
    }

    /// To be called when it is known that all are of a decent size.
    fn repeated(&self) -> Result<Repeated, ApiError> {
        Ok(Repeated {
            tools: value(self.tools, json!([]))?,
            tool_choice: value(self.tool_choice, "auto".into())?,
            is_parallel: value(self.is_parallel, true.into())?,
        })
    }
}

fn value(raw: Option<&RawValue>, default: Value) -> Result<Value, ApiError> {
    let value = raw.map(|raw| parse::<Option<Value>>("tools", raw)).transpose()?;
    Ok(value.flatten().unwrap_or(default))
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
    repeated: Repeated,
}

impl Frame {
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
            "parallel_tool_calls": self.repeated.is_parallel,
            "previous_response_id": null,
            "store": false,
            "temperature": self.temperature,
            "text": {"format": {"type": self.format}},
            "tool_choice": self.repeated.tool_choice,
            "tools": self.repeated.tools,
            "top_p": self.top_p,
            "usage": null,
        })
    }

    /// All of it, from an answer's whole text.
    fn whole(&self, mut output: Output, text: &str, finish: Finish, counted: Counted) -> Value {
        let mut events = Vec::new();
        output.push(text, &mut events);
        output.finish(finish == Finish::Stop, &mut events);
        self.finished(output.items(), finish, counted)
    }

    fn finished(&self, items: &[Value], finish: Finish, counted: Counted) -> Value {
        let is_whole = finish == Finish::Stop;
        let mut object = self.object(if is_whole { "completed" } else { "incomplete" });
        if !is_whole {
            object["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        object["output"] = items.into();
        let Counted { n_prompt, n_cached, n_completion } = counted;
        object["usage"] = json!({
            "input_tokens": n_prompt,
            "input_tokens_details": {"cached_tokens": n_cached},
            "output_tokens": n_completion,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": n_prompt + n_completion,
        });
        object
    }
}

struct ResponseChunks {
    frame: Frame,
    counted: Counted,
    output: Output,
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

    fn events(&mut self, events: Vec<Event>, out: &mut Events) {
        for (kind, fields) in events {
            self.event(kind, fields, out);
        }
    }
}

impl Chunks for ResponseChunks {
    fn begin(&mut self, out: &mut Events) {
        for kind in ["response.created", "response.in_progress"] {
            self.event(kind, json!({"response": self.frame.object("in_progress")}), out);
        }
    }

    fn update(&mut self, update: Update, out: &mut Events) {
        match update {
            Update::Started { n_cached, .. } => self.counted.n_cached = n_cached as usize,
            Update::PromptLogprob { .. } => {}
            Update::Piece(piece) => {
                self.counted.n_completion += usize::from(piece.token.is_some());
                self.finish = piece.finish.unwrap_or(self.finish);
                let mut events = Vec::new();
                self.output.push(&piece.text, &mut events);
                self.events(events, out);
            }
        }
    }

    fn end(&mut self, out: &mut Events) {
        let is_whole = self.finish == Finish::Stop;
        let mut events = Vec::new();
        self.output.finish(is_whole, &mut events);
        self.events(events, out);
        let response = self.frame.finished(self.output.items(), self.finish, self.counted);
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
