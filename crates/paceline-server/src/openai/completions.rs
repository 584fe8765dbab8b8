//! `POST /v1/completions`.

use std::borrow::Cow;
use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::Response;
use paceline_engine::TokenLogprob;
use serde::Serialize;

use super::logprobs::CompletionLogprobs;
use super::{Counted, Head, Usage};
use crate::app::Ready;
use crate::asked::Asked;
use crate::call::Call;
use crate::collect::{Answer, Choice, collect, keep_best};
use crate::error::ApiError;
use crate::json::{Fields, json_response};
use crate::model::Model;
use crate::prompts::{PROMPT, Prompt, read_prompts};
use crate::reply::{Finish, Piece, Update};
use crate::sse::{self, Chunks, Events};

/// What OpenAI takes when nothing is said.
const DEFAULT_MAX_TOKENS: u32 = 16;

/// What is asked for beside text.
#[derive(Clone, Copy, Debug)]
struct Extras {
    n: u32,
    echo: bool,
    has_logprobs: bool,
}

fn counted(prompts: &[Prompt]) -> Counted {
    let n_prompt = prompts.iter().map(|prompt| prompt.tokens.len()).sum();
    Counted { n_prompt, ..Counted::default() }
}

#[derive(Serialize)]
struct WireChoice<'a> {
    index: usize,
    text: Cow<'a, str>,
    logprobs: Option<CompletionLogprobs>,
    finish_reason: Option<&'static str>,
}

#[derive(Serialize)]
struct Body<'a> {
    #[serde(flatten)]
    head: &'a Head,
    choices: Vec<WireChoice<'a>>,
    /// In a stream: absent unless asked for, null until the last chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
}

/// What a request gets, however it came.
pub(crate) async fn answer(call: Call) -> Result<Response, ApiError> {
    let opened = call.open();
    let (mut fields, name) = opened.fields()?;
    let model = &opened.ready.model;
    let (asked, extras) = read(&mut fields)?;
    let prompts = read_prompts(&mut fields, PROMPT, model, call.max_prompts())?;
    let works = prompts.iter().map(|prompt| asked.job(model, prompt.tokens.clone()));
    let works = works.collect::<Result<Vec<_>, _>>()?;
    let head = Head::new(call.response_id("cmpl"), "text_completion", name);
    let mut running = call.generate(works).await?;
    if asked.stream {
        let ready = Arc::clone(&opened.ready);
        let chunks = CompletionChunks::new(ready, head, extras, prompts, asked.include_usage);
        return Ok(sse::response(running, chunks));
    }
    let shape = vec![asked.sampling.n; prompts.len()];
    let answers = collect(&mut running.reply, &shape).await?;
    Ok(whole(model, &head, extras, &prompts, answers))
}

fn read(fields: &mut Fields<'_>) -> Result<(Asked, Extras), ApiError> {
    let mut asked = Asked::read(fields)?;
    asked.max_tokens = Some(fields.take("max_tokens")?.unwrap_or(DEFAULT_MAX_TOKENS));
    let echo = fields.take("echo")?.unwrap_or(false);
    if fields.has("suffix") {
        return Err(ApiError::invalid("suffix", "suffix is not supported: no model here infills"));
    }
    let logprobs: Option<u32> = fields.take("logprobs")?;
    let prompt_logprobs: Option<u32> = fields.take("prompt_logprobs")?;
    asked.sampling.logprobs = logprobs;
    asked.sampling.prompt_logprobs = prompt_logprobs.or(logprobs.filter(|_| echo));
    let n = asked.sampling.n;
    if let Some(best_of) = fields.take::<u32>("best_of")? {
        if best_of < n {
            return Err(ApiError::invalid("best_of", format!("best_of is less than n, {n}")));
        }
        if asked.stream && best_of > n {
            return Err(ApiError::invalid("best_of", "a stream cannot choose the best in the end"));
        }
        asked.sampling.n = best_of;
        // Which is best is told by log-probabilities.
        asked.sampling.logprobs.get_or_insert(0);
    }
    let has_logprobs = logprobs.is_some();
    Ok((asked, Extras { n, echo, has_logprobs }))
}

fn whole(
    model: &Model,
    head: &Head,
    extras: Extras,
    prompts: &[Prompt],
    answers: Vec<Answer>,
) -> Response {
    let mut counted = counted(prompts);
    let mut choices = Vec::new();
    for (prompt, mut answer) in prompts.iter().zip(answers) {
        counted.n_completion += answer.choices.iter().map(|c| c.tokens.len()).sum::<usize>();
        counted.n_cached += answer.n_cached as usize;
        keep_best(&mut answer.choices, extras.n as usize);
        let scored = extras.has_logprobs.then(|| {
            let mut logprobs = CompletionLogprobs::default();
            let mut offset = 0;
            if extras.echo {
                logprobs.push_prompt(model, &prompt.tokens, &answer.prompt_logprobs, &mut offset);
            }
            (logprobs, offset)
        });
        for choice in &answer.choices {
            let prompt = if extras.echo { prompt.text(model) } else { Cow::Borrowed("") };
            choices.push(WireChoice {
                index: choices.len(),
                text: Cow::Owned(prompt.into_owned() + &choice.text),
                logprobs: scored.clone().map(|scored| add_logprobs(model, scored, choice)),
                finish_reason: Some(choice.finish_name()),
            });
        }
    }
    let usage = Some(Some(counted.usage()));
    json_response(StatusCode::OK, &Body { head, choices, usage })
}

fn add_logprobs(
    model: &Model,
    (mut logprobs, mut offset): (CompletionLogprobs, usize),
    choice: &Choice,
) -> CompletionLogprobs {
    for logprob in &choice.logprobs {
        logprobs.push(model, logprob, &mut offset);
    }
    logprobs
}

struct CompletionChunks {
    ready: Arc<Ready>,
    head: Head,
    extras: Extras,
    include_usage: bool,
    prompts: Vec<StreamedPrompt>,
    counted: Counted,
}

/// Where a prompt's choices are.
struct StreamedPrompt {
    prompt: Prompt,
    /// Collected until the prompt is echoed.
    logprobs: Vec<TokenLogprob>,
    /// Nothing has been said yet, and the prompt is to come first.
    is_echo_due: bool,
    /// Characters shown so far, by choice.
    offsets: Vec<usize>,
}

impl CompletionChunks {
    fn new(
        ready: Arc<Ready>,
        head: Head,
        extras: Extras,
        prompts: Vec<Prompt>,
        include_usage: bool,
    ) -> CompletionChunks {
        let counted = counted(&prompts);
        let streamed = |prompt| StreamedPrompt {
            prompt,
            logprobs: Vec::new(),
            is_echo_due: extras.echo,
            offsets: vec![0; extras.n as usize],
        };
        let prompts = prompts.into_iter().map(streamed).collect();
        CompletionChunks { ready, head, extras, include_usage, prompts, counted }
    }

    fn write(&self, choices: Vec<WireChoice<'_>>, usage: Option<Usage>, out: &mut Events) {
        let usage = self.include_usage.then_some(usage);
        out.data(&Body { head: &self.head, choices, usage });
    }

    /// The prompt itself, once, before each of its choices.
    fn echo(&mut self, place: usize, out: &mut Events) {
        let model = &self.ready.model;
        let streamed = &mut self.prompts[place];
        if !std::mem::replace(&mut streamed.is_echo_due, false) {
            return;
        }
        let mut scored = CompletionLogprobs::default();
        let mut offset = 0;
        let StreamedPrompt { prompt, logprobs, .. } = streamed;
        scored.push_prompt(model, &prompt.tokens, logprobs, &mut offset);
        streamed.offsets.fill(offset);
        let streamed = &self.prompts[place];
        for index in 0..streamed.offsets.len() {
            let choice = WireChoice {
                index: place * streamed.offsets.len() + index,
                text: streamed.prompt.text(model),
                logprobs: self.extras.has_logprobs.then(|| scored.clone()),
                finish_reason: None,
            };
            self.write(vec![choice], None, out);
        }
    }

    fn piece(&mut self, piece: Piece, out: &mut Events) {
        let place = piece.prompt as usize;
        self.echo(place, out);
        self.counted.n_completion += usize::from(piece.token.is_some());
        let logprob = piece.logprob.filter(|_| self.extras.has_logprobs);
        if piece.text.is_empty() && logprob.is_none() && piece.finish.is_none() {
            return;
        }
        let streamed = &mut self.prompts[place];
        let n = streamed.offsets.len();
        let offset = &mut streamed.offsets[piece.index as usize];
        let logprobs = logprob.map(|logprob| {
            let mut logprobs = CompletionLogprobs::default();
            logprobs.push(&self.ready.model, &logprob, offset);
            logprobs
        });
        let choice = WireChoice {
            index: place * n + piece.index as usize,
            text: Cow::Owned(piece.text),
            logprobs,
            finish_reason: piece.finish.map(Finish::name),
        };
        self.write(vec![choice], None, out);
    }
}

impl Chunks for CompletionChunks {
    fn update(&mut self, update: Update, out: &mut Events) {
        match update {
            Update::Started { n_cached, .. } => self.counted.n_cached += n_cached as usize,
            Update::PromptLogprob { prompt, logprob } => {
                self.prompts[prompt as usize].logprobs.push(logprob);
            }
            Update::Piece(piece) => self.piece(piece, out),
        }
    }

    fn end(&mut self, out: &mut Events) {
        if self.include_usage {
            self.write(Vec::new(), Some(self.counted.usage()), out);
        }
        out.done();
    }
}
