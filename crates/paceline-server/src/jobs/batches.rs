//! `/v1/batches`.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Extension;
use axum::extract::{Path, RawQuery, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use paceline_jobs::queue::unix_seconds;
use paceline_jobs::store::{BadLine, Batch, Counts, NewBatch, Status};
use paceline_jobs::{Endpoint, Window};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::task::block_in_place;

use super::files;
use super::query::{Query, list_response};
use crate::app::App;
use crate::call::{Visit, read_body};
use crate::error::ApiError;
use crate::json::{Fields, ShortMap, json_response};

const MAX_LIST: usize = 100;
const DEFAULT_LIST: usize = 20;

/// As OpenAI has it.
const MAX_METADATA: usize = 16;
const MAX_KEY_CHARS: usize = 64;
const MAX_VALUE_CHARS: usize = 512;

/// The entry of `metadata` that says how many lines may be under way at once.
const MAX_CONCURRENCY: &str = "max_concurrency";

#[derive(Debug, Serialize)]
struct BatchObject<'a> {
    id: &'a str,
    object: &'static str,
    endpoint: &'static str,
    errors: Option<Value>,
    input_file_id: &'a str,
    completion_window: &'a str,
    status: Status,
    output_file_id: Option<&'a str>,
    error_file_id: Option<&'a str>,
    created_at: u64,
    in_progress_at: Option<u64>,
    expires_at: u64,
    finalizing_at: Option<u64>,
    completed_at: Option<u64>,
    failed_at: Option<u64>,
    expired_at: Option<u64>,
    cancelling_at: Option<u64>,
    cancelled_at: Option<u64>,
    request_counts: Counts,
    metadata: Option<&'a BTreeMap<String, String>>,
}

impl<'a> From<&'a Batch> for BatchObject<'a> {
    fn from(batch: &'a Batch) -> BatchObject<'a> {
        let error = |bad: &BadLine| {
            let fault = &bad.fault;
            json!({"code": fault.code, "line": bad.line, "message": fault.message,
                   "param": fault.param})
        };
        let errors: Vec<Value> = batch.errors.iter().map(error).collect();
        BatchObject {
            id: &batch.id,
            object: "batch",
            endpoint: batch.endpoint.path(),
            errors: (!errors.is_empty()).then(|| json!({"object": "list", "data": errors})),
            input_file_id: &batch.input_file_id,
            completion_window: &batch.completion_window,
            status: batch.status,
            output_file_id: batch.output_file_id.as_deref(),
            error_file_id: batch.error_file_id.as_deref(),
            created_at: batch.created_at,
            in_progress_at: batch.in_progress_at,
            expires_at: batch.expires_at,
            finalizing_at: batch.finalizing_at,
            completed_at: batch.completed_at,
            failed_at: batch.failed_at,
            expired_at: batch.expired_at,
            cancelling_at: batch.cancelling_at,
            cancelled_at: batch.cancelled_at,
            request_counts: batch.counts,
            metadata: (!batch.metadata.is_empty()).then_some(&batch.metadata),
        }
    }
}

pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Extension(visit): Extension<Visit>,
    request: Request,
) -> Result<Response, ApiError> {
    let jobs = app.jobs()?;
    let _in_flight = app.enter();
    let body = read_body(&app, request.into_body()).await?;
    let new = read(&app, &visit, &body)?;
    let scope = app.keys.scope(&visit.caller);
    let batch = block_in_place(|| {
        let file = jobs.store.file(scope, &new.input_file_id)?;
        file.ok_or_else(|| files::unknown(&new.input_file_id))?;
        Ok::<_, ApiError>(jobs.store.create_batch(&new)?)
    })?;
    jobs.wake();
    Ok(json_response(StatusCode::OK, &BatchObject::from(&batch)))
}

fn read(app: &App, visit: &Visit, body: &[u8]) -> Result<NewBatch, ApiError> {
    let mut fields = Fields::parse(body)?;
    let input_file_id = fields.require("input_file_id")?;
    let endpoint: Endpoint = fields
        .require::<String>("endpoint")?
        .parse()
        .map_err(|error| ApiError::invalid("endpoint", format!("{error}")))?;
    let window: Window = fields
        .require::<String>("completion_window")?
        .parse()
        .map_err(|error| ApiError::invalid("completion_window", format!("{error}")))?;
    let metadata = read_metadata(&mut fields)?;
    let asked = metadata.get(MAX_CONCURRENCY).map(|text| read_concurrency(text)).transpose()?;
    // A key that may have few prompts under way would only be told so, again and again.
    let max_concurrency = asked.into_iter().chain(visit.caller.max_concurrent()).min();
    let file_id = || format!("file-{}", crate::random::id());
    app.jobs()?;
    Ok(NewBatch {
        id: format!("batch_{}", crate::random::id()),
        owner: visit.caller.name.clone(),
        endpoint,
        input_file_id,
        window,
        metadata,
        max_concurrency,
        output_name: file_id(),
        errors_name: file_id(),
        created_at: unix_seconds(),
    })
}

fn read_metadata(fields: &mut Fields<'_>) -> Result<BTreeMap<String, String>, ApiError> {
    const NAME: &str = "metadata";
    let Some(ShortMap(pairs)) = fields.take::<ShortMap<String, MAX_METADATA>>(NAME)? else {
        return Ok(BTreeMap::new());
    };
    let is_long = |(key, value): &(String, String)| {
        key.chars().count() > MAX_KEY_CHARS || value.chars().count() > MAX_VALUE_CHARS
    };
    if pairs.iter().any(is_long) {
        let message = format!(
            "metadata has keys of at most {MAX_KEY_CHARS} characters and values of at most \
             {MAX_VALUE_CHARS}"
        );
        return Err(ApiError::invalid(NAME, message));
    }
    Ok(pairs.into_iter().collect())
}

fn read_concurrency(text: &str) -> Result<u32, ApiError> {
    let count = text.parse().ok().filter(|&count: &u32| count > 0);
    count.ok_or_else(|| {
        ApiError::invalid("metadata", "metadata.max_concurrency must be a count from 1 on")
    })
}

pub(crate) async fn list(
    State(app): State<Arc<App>>,
    Extension(visit): Extension<Visit>,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let jobs = app.jobs()?;
    let page = Query::new(query.as_deref()).page(DEFAULT_LIST, MAX_LIST)?;
    let scope = app.keys.scope(&visit.caller);
    let found = block_in_place(|| jobs.store.batches(scope, &page))?;
    Ok(list_response::<_, BatchObject<'_>>(&found, |batch| &batch.id))
}

pub(crate) async fn one(
    State(app): State<Arc<App>>,
    Extension(visit): Extension<Visit>,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let batch = find(&app, &visit, &id)?;
    Ok(json_response(StatusCode::OK, &BatchObject::from(&batch)))
}

pub(crate) async fn cancel(
    State(app): State<Arc<App>>,
    Extension(visit): Extension<Visit>,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let jobs = app.jobs()?;
    let batch = find(&app, &visit, &id)?;
    let is_cancelled = block_in_place(|| jobs.store.cancel(&batch.id, unix_seconds()))?;
    jobs.wake();
    let batch = find(&app, &visit, &id)?;
    let is_cancelled =
        is_cancelled || matches!(batch.status, Status::Cancelling | Status::Cancelled);
    if !is_cancelled {
        let status = batch.status.name();
        let message = format!("the batch is {status} and cannot be cancelled any more");
        return Err(ApiError::invalid("batch_id", message));
    }
    Ok(json_response(StatusCode::OK, &BatchObject::from(&batch)))
}

fn find(app: &App, visit: &Visit, id: &str) -> Result<Batch, ApiError> {
    let scope = app.keys.scope(&visit.caller);
    let found = block_in_place(|| app.jobs()?.store.batch(scope, id).map_err(ApiError::from))?;
    let unknown = || ApiError::Unknown { what: "batch", id: id.chars().take(100).collect() };
    found.ok_or_else(unknown)
}
