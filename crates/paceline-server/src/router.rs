//! Which path leads where, and what every request passes on its way.

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::json;

use crate::app::App;
use crate::call::{Kind, Visit};
use crate::error::ApiError;
use crate::jobs::{batches, files};
use crate::json::json_response;
use crate::openai::{chat, completions, models, responses};
use crate::{native, tokens};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const MAX_REQUEST_ID: usize = 128;

/// What needs no key: probes come without one.
const OPEN_PATHS: [&str; 3] = ["/health", "/ready", "/ping"];

pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/health", get(health))
        .route("/ready", get(health))
        .route("/ping", get(alive))
        .route("/version", get(version))
        .route("/metrics", get(metrics))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*name}", get(models::one))
        .route("/v1/completions", post(completions::handle))
        .route("/v1/chat/completions", post(chat::handle))
        .route("/v1/responses", post(responses::handle))
        .route("/v1/files", get(files::list).post(files::upload))
        .route("/v1/files/{id}", get(files::one).delete(files::delete))
        .route("/v1/files/{id}/content", get(files::content))
        .route("/v1/batches", get(batches::list).post(batches::create))
        .route("/v1/batches/{id}", get(batches::one))
        .route("/v1/batches/{id}/cancel", post(batches::cancel))
        .route("/generate", post(native::single))
        .route("/generate/batch", post(native::batch))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .fallback(not_found)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(Arc::clone(&app), enter))
        .with_state(app)
}

/// Lets a request in: its key, its name, and in the end its place in the figures.
async fn enter(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let arrival = Instant::now();
    let request_id = request_id(request.headers());
    let is_open = OPEN_PATHS.contains(&request.uri().path());
    let mut response = match app.keys.caller(request.headers()) {
        Err(error) if !is_open => error.into_response(),
        Err(_) => next.run(request).await,
        Ok(caller) => {
            let request_id = request_id.clone();
            request.extensions_mut().insert(Visit {
                caller,
                request_id,
                arrival,
                kind: Kind::Interactive,
            });
            next.run(request).await
        }
    };
    app.metrics.responded(response.status().as_u16());
    if let Ok(value) = HeaderValue::from_str(&request_id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    response
}

/// The client's own name for the request if it is a decent one.
fn request_id(headers: &HeaderMap) -> String {
    let given = headers.get(&REQUEST_ID).and_then(|value| value.to_str().ok());
    let is_decent = |id: &&str| {
        (1..=MAX_REQUEST_ID).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic())
    };
    given.filter(is_decent).map_or_else(crate::random::id, str::to_owned)
}

/// 503 while the model is loading and while the server drains.
async fn health(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    app.ready()?;
    Ok(json_response(StatusCode::OK, &json!({"status": "ok"})))
}

/// The process is there, whatever else.
async fn alive() -> Response {
    json_response(StatusCode::OK, &json!({"status": "ok"}))
}

async fn version() -> Response {
    json_response(StatusCode::OK, &json!({"version": env!("CARGO_PKG_VERSION")}))
}

async fn metrics(State(app): State<Arc<App>>) -> Response {
    let mut response = app.metrics_page().into_response();
    let text = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, text);
    response
}

async fn not_found(request: Request) -> ApiError {
    ApiError::UnknownPath { path: shown_path(&request) }
}

async fn wrong_method(request: Request) -> ApiError {
    ApiError::WrongMethod { method: request.method().to_string(), path: shown_path(&request) }
}

fn shown_path(request: &Request) -> String {
    request.uri().path().chars().take(200).collect()
}
