//! `/v1/files`.

use std::fs::File;
use std::io::Read;
use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, RawQuery, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use futures_util::stream;
use paceline_jobs::failed_to;
use paceline_jobs::store::{Deleted, FileMeta};
use serde::Serialize;
use serde_json::json;
use tokio::task::block_in_place;

use super::query::{Query, list_response};
use super::upload;
use crate::app::App;
use crate::call::Visit;
use crate::error::ApiError;
use crate::json::json_response;

/// As OpenAI has it.
const MAX_LIST: usize = 10_000;

/// Bytes that are read of a file at once.
const CHUNK: usize = 64 << 10;

#[derive(Debug, Serialize)]
struct FileObject<'a> {
    id: &'a str,
    object: &'static str,
    bytes: u64,
    created_at: u64,
    expires_at: Option<u64>,
    filename: &'a str,
    purpose: &'a str,
    /// Deprecated, and expected by clients all the same.
    status: &'static str,
}

impl<'a> From<&'a FileMeta> for FileObject<'a> {
    fn from(meta: &'a FileMeta) -> FileObject<'a> {
        FileObject {
            id: &meta.id,
            object: "file",
            bytes: meta.bytes,
            created_at: meta.created_at,
            expires_at: meta.expires_at,
            filename: &meta.filename,
            purpose: &meta.purpose,
            status: "processed",
        }
    }
}

pub(super) fn unknown(id: &str) -> ApiError {
    ApiError::Unknown { what: "file", id: id.chars().take(100).collect() }
}

pub(crate) async fn upload(
    State(app): State<Arc<App>>,
    Extension(visit): Extension<Visit>,
    request: Request,
) -> Result<Response, ApiError> {
    let jobs = app.jobs()?;
    let _in_flight = app.enter();
    let meta = upload::take_in(&app, jobs, &visit.caller.name, request).await?;
    Ok(json_response(StatusCode::OK, &FileObject::from(&meta)))
}

pub(crate) async fn list(
    State(app): State<Arc<App>>,
    Extension(visit): Extension<Visit>,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let jobs = app.jobs()?;
    let query = Query::new(query.as_deref());
    let page = query.page(MAX_LIST, MAX_LIST)?;
    let scope = app.keys.scope(&visit.caller);
    let found = block_in_place(|| jobs.store.files(scope, query.get("purpose"), &page))?;
    Ok(list_response::<_, FileObject<'_>>(&found, |file| &file.id))
}

pub(crate) async fn one(
    State(app): State<Arc<App>>,
    Extension(visit): Extension<Visit>,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let meta = find(&app, &visit, &id)?;
    Ok(json_response(StatusCode::OK, &FileObject::from(&meta)))
}

pub(crate) async fn delete(
    State(app): State<Arc<App>>,
    Extension(visit): Extension<Visit>,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let jobs = app.jobs()?;
    let scope = app.keys.scope(&visit.caller);
    match block_in_place(|| jobs.store.delete_file(scope, &id))? {
        Deleted::Yes => {
            let deleted = json!({"id": id, "object": "file", "deleted": true});
            Ok(json_response(StatusCode::OK, &deleted))
        }
        Deleted::Unknown => Err(unknown(&id)),
        Deleted::InUse { batch_id } => {
            let message = format!("the batch {batch_id} still needs this file; cancel it first");
            Err(ApiError::invalid("file_id", message))
        }
    }
}

pub(crate) async fn content(
    State(app): State<Arc<App>>,
    Extension(visit): Extension<Visit>,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let meta = find(&app, &visit, &id)?;
    let path = app.jobs()?.store.path_of(&meta.id);
    let file = block_in_place(|| File::open(&path)).map_err(failed_to("read", &path))?;
    let chunks = stream::unfold(file.take(meta.bytes), |mut file| async move {
        let mut chunk = BytesMut::zeroed(CHUNK);
        match block_in_place(|| file.read(&mut chunk)) {
            Ok(0) => None,
            Ok(n) => {
                chunk.truncate(n);
                Some((Ok::<Bytes, std::io::Error>(chunk.freeze()), file))
            }
            Err(error) => Some((Err(error), file)),
        }
    });
    let mut response = Response::new(Body::from_stream(chunks));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(meta.bytes));
    let bytes = HeaderValue::from_static("application/octet-stream");
    headers.insert(header::CONTENT_TYPE, bytes);
    Ok(response)
}

fn find(app: &App, visit: &Visit, id: &str) -> Result<FileMeta, ApiError> {
    let scope = app.keys.scope(&visit.caller);
    let found = block_in_place(|| app.jobs()?.store.file(scope, id).map_err(ApiError::from))?;
    found.ok_or_else(|| unknown(id))
}
