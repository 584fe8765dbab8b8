//! `POST /v1/chat/completions`.

use std::borrow::Cow;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use paceline_engine::TokenLogprob;
use serde::Serialize;
use serde_json::{Value, json};

use super::logprobs::ChatLogprobs;
use super::{FINGERPRINT, Usage};
use crate::app::{App, Ready};
use crate::asked::Asked;
use crate::call::Call;
use crate::collect::{Answer, Choice, collect};
use crate::error::ApiError;
use crate::json::{Fields, json_response};
use crate::messages::read_messages;
use crate::model::{Model, unix_seconds};
use crate::reply::{Piece, Update};
use crate::sse::{self, Chunks, Events};

/// What every object of one response says.
#[derive(Clone, Debug, Serialize)]
struct Head {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    system_fingerprint: &'static str,
}

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
    let prompt = model.encode_chat(&read_messages(&mut fields)?)?;
    let has_logprobs = asked.sampling.logprobs.is_some();
    let n_prompt = prompt.len();
    let n = asked.sampling.n;
    let work = asked.job(model, prompt)?;
    let head = Head {
        id: call.response_id("chatcmpl"),
        object: if asked.stream { "chat.completion.chunk" } else { "chat.completion" },
        created: unix_seconds(),
        model: name.map_or_else(|| model.name().to_owned(), Cow::into_owned),
        system_fingerprint: FINGERPRINT,
    };
    let mut running = call.generate(vec![work]).await?;
    if asked.stream {
        let usage = Counted { n_prompt, ..Counted::default() };
        let include_usage = asked.include_usage;
        let chunks = ChatChunks { ready, head, n, include_usage, has_logprobs, usage };
        return Ok(sse::response(running, chunks));
    }
    let mut answers = collect(&mut running.reply, &[n]).await?;
    let answer = answers.pop().unwrap_or_default();
    Ok(json_response(StatusCode::OK, &whole(model, head, n_prompt, answer, has_logprobs)))
}

fn read(fields: &mut Fields<'_>) -> Result<Asked, ApiError> {
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

fn whole(model: &Model, head: Head, n_prompt: usize, answer: Answer, has_logprobs: bool) -> Value {
    let n_completion = answer.choices.iter().map(|choice| choice.tokens.len()).sum();
    let usage = Usage::new(n_prompt, n_completion, answer.n_cached as usize);
    let choice = |(index, choice): (usize, &Choice)| {
        let logprobs = has_logprobs.then(|| ChatLogprobs::new(model, &choice.logprobs));
        json!({
            "index": index,
            "message": {"role": "assistant", "content": choice.text, "refusal": null},
            "logprobs": logprobs,
            "finish_reason": choice.finish_name(),
        })
    };
    let choices: Vec<Value> = answer.choices.iter().enumerate().map(choice).collect();
    #[derive(Serialize)]
    struct Response {
        #[serde(flatten)]
        head: Head,
        choices: Vec<Value>,
        usage: Usage,
    }
    json!(Response { head, choices, usage })
}

/// Tokens so far.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    n_prompt: usize,
    n_cached: usize,
    n_completion: usize,
}

struct ChatChunks {
    ready: Arc<Ready>,
    head: Head,
    n: u32,
    include_usage: bool,
    has_logprobs: bool,
    usage: Counted,
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
}

impl ChatChunks {
    fn chunk<'a>(&'a self, choices: Vec<ChunkChoice<'a>>) -> Chunk<'a> {
        Chunk { head: &self.head, choices, usage: self.include_usage.then_some(None) }
    }

    fn logprobs(&self, logprob: Option<&TokenLogprob>) -> Option<ChatLogprobs> {
        let model = &self.ready.model;
        (self.has_logprobs && logprob.is_some()).then(|| ChatLogprobs::new(model, logprob))
    }

    fn piece(&mut self, piece: &Piece, out: &mut Events) {
        self.usage.n_completion += usize::from(piece.token.is_some());
        let logprobs = self.logprobs(piece.logprob.as_deref());
        if !piece.text.is_empty() || logprobs.is_some() {
            let delta = Delta { content: Some(&piece.text), role: None };
            let index = piece.index;
            let choice = ChunkChoice { index, delta, logprobs, finish_reason: None };
            out.data(&self.chunk(vec![choice]));
        }
        if let Some(finish) = piece.finish {
            out.data(&self.chunk(vec![ChunkChoice {
                index: piece.index,
                delta: Delta::default(),
                logprobs: None,
                finish_reason: Some(finish.name()),
            }]));
        }
    }
}

impl Chunks for ChatChunks {
    fn begin(&mut self, out: &mut Events) {
        for index in 0..self.n {
            let delta = Delta { role: Some("assistant"), content: Some("") };
            let choice = ChunkChoice { index, delta, logprobs: None, finish_reason: None };
            out.data(&self.chunk(vec![choice]));
        }
    }

    fn update(&mut self, update: Update, out: &mut Events) {
        match update {
            Update::Started { n_cached, .. } => self.usage.n_cached = n_cached as usize,
            Update::PromptLogprob { .. } => {}
            Update::Piece(piece) => self.piece(&piece, out),
        }
    }

    fn end(&mut self, out: &mut Events) {
        if self.include_usage {
            let Counted { n_prompt, n_cached, n_completion } = self.usage;
            let usage = Usage::new(n_prompt, n_completion, n_cached);
            out.data(&Chunk { usage: Some(Some(usage)), ..self.chunk(Vec::new()) });
        }
        out.done();
    }
}
