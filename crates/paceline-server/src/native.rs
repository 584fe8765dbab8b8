//! `POST /generate` and `POST /generate/batch`: prompts in, texts and times out.
//!
//! The plain pair for scripts. The batch takes what the single one takes for all its prompts, and
//! a prompt may be an object with fields of its own that come before those.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use paceline_engine::Token;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::app::App;
use crate::asked::{Asked, Work};
use crate::call::Call;
use crate::collect::{Answer, collect};
use crate::error::ApiError;
use crate::json::{Fields, Shape, json_response, parse};
use crate::model::Model;
use crate::prompts::{PROMPT, Prompt, check_count, read_prompts};
use crate::reply::{Finish, Piece, Update};
use crate::sse::{self, Chunks, Events};

const DEFAULT_MAX_TOKENS: u32 = 100;
const PROMPTS: &str = "prompts";

/// One result.
#[derive(Debug, Serialize)]
struct Outcome<'a> {
    index: usize,
    text: &'a str,
    tokens: &'a [Token],
    tokens_generated: usize,
    prompt_tokens: usize,
    finish_reason: &'static str,
    /// From the request's arrival to the end of this prompt.
    time_seconds: f64,
    tokens_per_second: f64,
}

pub(crate) async fn single(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let call = Call::read(app, request).await?;
    let opened = call.open();
    let (mut fields, _) = opened.fields()?;
    let model = &opened.ready.model;
    let asked = read(&mut fields)?;
    let mut prompts = read_prompts(&mut fields, PROMPT, model, 1)?;
    let prompt = prompts.pop().ok_or_else(|| ApiError::invalid("prompt", "there is no prompt"))?;
    let work = asked.job(model, prompt.tokens)?;
    answer(call, vec![work], asked.stream, Form::Single).await
}

pub(crate) async fn batch(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let call = Call::read(app, request).await?;
    let opened = call.open();
    let (mut fields, _) = opened.fields()?;
    let model = &opened.ready.model;
    let asked = read(&mut fields)?;
    let prompts: Vec<&RawValue> = fields.require(PROMPTS)?;
    if prompts.is_empty() {
        return Err(ApiError::invalid(PROMPTS, "prompts is empty"));
    }
    check_count(PROMPTS, prompts.len(), call.max_prompts())?;
    let works = prompts.iter().map(|raw| read_work(raw, &asked, model));
    let works = works.collect::<Result<Vec<_>, _>>()?;
    answer(call, works, asked.stream, Form::Batch).await
}

fn read(fields: &mut Fields<'_>) -> Result<Asked, ApiError> {
    let mut asked = Asked::read(fields)?;
    asked.max_tokens = Some(fields.take("max_tokens")?.unwrap_or(DEFAULT_MAX_TOKENS));
    if asked.sampling.n > 1 {
        return Err(ApiError::invalid("n", "n must be 1 here; repeat the prompt instead"));
    }
    Ok(asked)
}

/// A prompt of a batch: text, tokens, or an object with a prompt and fields of its own.
fn read_work(raw: &RawValue, shared: &Asked, model: &Model) -> Result<Work, ApiError> {
    match Shape::of(raw) {
        Some(Shape::Text) => {
            shared.job(model, Prompt::of_text(model, parse(PROMPTS, raw)?)?.tokens)
        }
        Some(Shape::Numbers) => shared.job(model, parse(PROMPTS, raw)?),
        Some(Shape::Object) => {
            let mut fields = Fields::parse(raw.get().as_bytes())?;
            let mut asked = shared.overridden(&mut fields)?;
            asked.max_tokens = fields.take("max_tokens")?.or(asked.max_tokens);
            let mut prompts = read_prompts(&mut fields, PROMPT, model, 1)?;
            let prompt = prompts.pop().map(|prompt| prompt.tokens).unwrap_or_default();
            asked.job(model, prompt)
        }
        _ => Err(ApiError::invalid(PROMPTS, "a prompt must be text, tokens, or an object")),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Single,
    Batch,
}

async fn answer(
    call: Call,
    works: Vec<Work>,
    stream: bool,
    form: Form,
) -> Result<Response, ApiError> {
    let start = Instant::now();
    let prompts: Vec<Progress> =
        works.iter().map(|work| Progress::new(work.prompt.len())).collect();
    let mut running = call.generate(works).await?;
    if stream {
        return Ok(sse::response(running, NativeChunks { start, prompts }));
    }
    let answers = collect(&mut running.reply, &vec![1; prompts.len()]).await?;
    let outcome =
        |(index, answer): (usize, &Answer)| outcome(index, answer, &prompts[index], start);
    let results: Vec<Value> = answers.iter().enumerate().map(outcome).collect();
    if form == Form::Single {
        return Ok(json_response(StatusCode::OK, &results.first()));
    }
    Ok(json_response(StatusCode::OK, &totals(&results, start)))
}

fn totals(results: &[Value], start: Instant) -> Value {
    let seconds = start.elapsed().as_secs_f64();
    json!({
        "results": results,
        "total_prompts": results.len(),
        "total_time_seconds": seconds,
        "avg_time_per_prompt": seconds / results.len().max(1) as f64,
    })
}

fn outcome(index: usize, answer: &Answer, progress: &Progress, start: Instant) -> Value {
    let Some(choice) = answer.choices.first() else {
        return Value::Null;
    };
    let seconds = answer.finished.unwrap_or_else(Instant::now).duration_since(start).as_secs_f64();
    json!(Outcome {
        index,
        text: &choice.text,
        tokens: &choice.tokens,
        tokens_generated: choice.tokens.len(),
        prompt_tokens: progress.n_prompt,
        finish_reason: choice.finish_name(),
        time_seconds: seconds,
        tokens_per_second: choice.tokens.len() as f64 / seconds.max(1e-9),
    })
}

/// What has been streamed of one prompt.
#[derive(Debug)]
struct Progress {
    n_prompt: usize,
    n_generated: usize,
}

impl Progress {
    fn new(n_prompt: usize) -> Progress {
        Progress { n_prompt, n_generated: 0 }
    }
}

/// Events tagged with the prompt they belong to.
struct NativeChunks {
    start: Instant,
    prompts: Vec<Progress>,
}

impl NativeChunks {
    fn piece(&mut self, piece: Piece, out: &mut Events) {
        let progress = &mut self.prompts[piece.prompt as usize];
        progress.n_generated += usize::from(piece.token.is_some());
        let seconds = self.start.elapsed().as_secs_f64();
        let mut event = json!({"index": piece.prompt, "text": piece.text, "token": piece.token});
        if let Some(finish) = piece.finish {
            event["finish_reason"] = Finish::name(finish).into();
            event["tokens_generated"] = progress.n_generated.into();
            event["prompt_tokens"] = progress.n_prompt.into();
            event["time_seconds"] = seconds.into();
        }
        out.data(&event);
    }
}

impl Chunks for NativeChunks {
    fn update(&mut self, update: Update, out: &mut Events) {
        if let Update::Piece(piece) = update {
            self.piece(piece, out);
        }
    }

    fn end(&mut self, out: &mut Events) {
        let seconds = self.start.elapsed().as_secs_f64();
        let n_prompts = self.prompts.len();
        out.data(&json!({
            "total_prompts": n_prompts,
            "total_time_seconds": seconds,
            "avg_time_per_prompt": seconds / n_prompts.max(1) as f64,
        }));
        out.done();
    }
}
