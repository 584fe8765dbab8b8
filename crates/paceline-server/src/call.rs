//! One HTTP request to a generating route, from its body to a running reply.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::Request;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use paceline_engine::{Priority, SamplingParams, Token};

use crate::app::{App, InFlight, Ready};
use crate::asked::Work;
use crate::engine::{Inbox, Job, Label};
use crate::error::ApiError;
use crate::json::Fields;
use crate::keys::{Caller, Share};
use crate::pooled;
use crate::reply::Reply;
use crate::traces::TraceContext;

/// What the outermost layer notes about every request.
#[derive(Clone, Debug)]
pub(crate) struct Visit {
    pub(crate) caller: Arc<Caller>,
    pub(crate) request_id: String,
    pub(crate) arrival: Instant,
    pub(crate) trace: Option<TraceContext>,
    pub(crate) kind: Kind,
}

/// How a request came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Over HTTP; somebody waits.
    Interactive,
    /// As a line of a batch: it fills what the others leave, and has all the time there is.
    BatchLine,
}

/// A request whose body has been read.
#[derive(Debug)]
pub(crate) struct Call {
    app: Arc<App>,
    ready: Arc<Ready>,
    visit: Visit,
    body: Bytes,
    in_flight: InFlight,
}

/// What a route reads of a call, kept beside it: the call itself goes to the engine.
#[derive(Clone, Debug)]
pub(crate) struct Opened {
    pub(crate) ready: Arc<Ready>,
    body: Bytes,
}

impl Opened {
    /// The body's fields without the model, and what the client calls the model, which is served.
    pub(crate) fn fields(&self) -> Result<(Fields<'_>, String), ApiError> {
        let mut fields = Fields::parse(&self.body)?;
        let name: Option<String> = fields.take("model")?;
        let model = &self.ready.model;
        model.check_name(name.as_deref())?;
        Ok((fields, name.unwrap_or_else(|| model.name().to_owned())))
    }
}

impl Call {
    /// Turns away at the door what has no chance, before its body costs anything.
    pub(crate) async fn read(app: Arc<App>, request: Request) -> Result<Call, ApiError> {
        app.ready()?;
        app.queue().check_room()?;
        if let Some(visit) = request.extensions().get::<Visit>() {
            visit.caller.check()?;
        }
        Call::read_light(app, request).await
    }

    /// For routes that need no place in the queue.
    pub(crate) async fn read_light(app: Arc<App>, request: Request) -> Result<Call, ApiError> {
        let ready = Arc::clone(app.ready()?);
        let in_flight = app.enter();
        let visit = request.extensions().get::<Visit>().cloned();
        let visit = visit.ok_or_else(|| ApiError::internal("the request was not let in"))?;
        let body = read_body(&app, request.into_body()).await?;
        Ok(Call { app, ready, visit, body, in_flight })
    }

    /// A line of a batch, as if it had come over HTTP.
    pub(crate) fn of_line(
        app: Arc<App>,
        caller: Arc<Caller>,
        request_id: String,
        body: Bytes,
    ) -> Result<Call, ApiError> {
        let ready = Arc::clone(app.ready()?);
        let in_flight = app.enter();
        let (arrival, kind) = (Instant::now(), Kind::BatchLine);
        let visit = Visit { caller, request_id, arrival, trace: None, kind };
        Ok(Call { app, ready, visit, body, in_flight })
    }

    pub(crate) fn open(&self) -> Opened {
        Opened { ready: Arc::clone(&self.ready), body: self.body.clone() }
    }

    pub(crate) fn max_prompts(&self) -> usize {
        self.app.options.max_prompts.min(self.app.options.max_queued_requests as usize)
    }

    /// A name for the response.
    pub(crate) fn response_id(&self, prefix: &str) -> String {
        format!("{prefix}-{}", self.visit.request_id)
    }

    /// Hands everything to the engine and waits for it to begin.
    pub(crate) async fn generate(self, works: Vec<Work>) -> Result<Running, ApiError> {
        let texts: Vec<_> = works.iter().map(|work| work.text.clone()).collect();
        let tenant = self.visit.caller.tenant;
        let (highest, timeout) = self.terms();
        let mut jobs = Vec::with_capacity(works.len());
        for mut work in works {
            let format = work.format.take();
            let mut job = work.into_job(tenant, highest, timeout);
            if let Some(format) = format {
                job.constraint = Some(self.ready.grammars.constraint(&format).await?);
            }
            jobs.push(job);
        }
        let (inbox, share) = self.submit(jobs)?;
        let mut reply = Reply::new(inbox, self.ready.model.tokenizer(), &texts, share);
        reply.begin().await?;
        Ok(Running { reply, _in_flight: self.in_flight })
    }

    /// Hands prompts to the engine of which only vectors are wanted, and waits for these.
    pub(crate) async fn pool(
        self,
        prompts: Vec<Vec<Token>>,
        priority: Priority,
    ) -> Result<Vec<Vec<f32>>, ApiError> {
        let model = &self.ready.model;
        let params = Arc::new(SamplingParams {
            pooling: Some(model.served.embedding.pooling),
            max_tokens: 1,
            ..SamplingParams::greedy()
        });
        let tenant = self.visit.caller.tenant;
        let (highest, timeout) = self.terms();
        let job = |prompt: Vec<Token>| {
            model.check(&prompt, &params)?;
            Ok(Job {
                prompt,
                params: Arc::clone(&params),
                priority: priority.max(highest),
                tenant,
                timeout,
                constraint: None,
                is_whole: true,
            })
        };
        let jobs = prompts.into_iter().map(job).collect::<Result<Vec<_>, ApiError>>()?;
        let n_jobs = jobs.len();
        let (inbox, _share) = self.submit(jobs)?;
        pooled::read(inbox, n_jobs).await
    }

    /// The highest class the request may have, and how long it may take.
    fn terms(&self) -> (Priority, Option<Duration>) {
        match self.visit.kind {
            Kind::Interactive => {
                (self.visit.caller.highest_priority, self.app.options.request_timeout)
            }
            Kind::BatchLine => (Priority::Batch, None),
        }
    }

    /// Queues jobs within the limits of their key.
    fn submit(&self, jobs: Vec<Job>) -> Result<(Inbox, Share), ApiError> {
        let Visit { caller, request_id, arrival, trace, .. } = &self.visit;
        let n_prompts = u32::try_from(jobs.len()).unwrap_or(u32::MAX);
        let n_tokens = jobs.iter().map(|job| job.prompt.len() as u64).sum();
        let share = caller.enter(n_prompts, n_tokens)?;
        let label =
            Label { request_id: request_id.clone(), key_name: caller.name.clone(), trace: *trace };
        Ok((self.ready.engine.submit(jobs, *arrival, label)?, share))
    }
}

/// A reply that has begun. The server waits for it when it drains.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) reply: Reply,
    _in_flight: InFlight,
}

/// The whole body, within the limits on its size and time.
pub(crate) async fn read_body(app: &App, body: Body) -> Result<Bytes, ApiError> {
    let limit = app.options.body_timeout;
    let read = tokio::time::timeout(limit, read_all(body, app.options.max_body_bytes));
    read.await.map_err(|_| ApiError::BodyTimeout { limit })?
}

async fn read_all(mut body: Body, limit: usize) -> Result<Bytes, ApiError> {
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| ApiError::Invalid {
            message: format!("the body could not be read: {error}"),
            param: None,
            code: None,
        })?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if bytes.len() + data.len() > limit {
            return Err(ApiError::BodyTooLarge { limit });
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes.freeze())
}
