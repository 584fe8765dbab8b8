//! Which path leads where, and what every request passes on its way.

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::{Request, State};
use axum::handler::Handler;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{self, MethodRouter};
use serde_json::json;

use crate::app::App;
use crate::call::{Call, Kind, Visit};
use crate::error::ApiError;
use crate::jobs::{batches, files};
use crate::json::json_response;
use crate::openai::{chat, completions, embeddings, models, responses};
use crate::traces::TraceContext;
use crate::{native, openapi, page, tokens, watch};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const MAX_REQUEST_ID: usize = 128;

/// What needs no key: probes come without one, and the page is where a person types it.
fn is_open(path: &str) -> bool {
    ["/health", "/ready", "/ping", "/"].contains(&path) || path.starts_with(page::FILES)
}

/// A path, and who answers there.
pub(crate) struct Route {
    #[cfg_attr(not(test), expect(dead_code, reason = "a test compares it with the document"))]
    pub(crate) method: Method,
    pub(crate) path: &'static str,
    handler: MethodRouter<Arc<App>>,
}

/// All there are. `openapi.json` describes each of them.
pub(crate) fn routes() -> Vec<Route> {
    vec![
        get("/health", health),
        get("/ready", health),
        get("/ping", alive),
        get("/", page::index),
        get("/page/{name}", page::file),
        get("/live", watch::handle),
        get("/version", version),
        get("/metrics", metrics),
        get("/openapi.json", openapi::handle),
        get("/v1/models", models::list),
        get("/v1/models/{*name}", models::one),
        answered("/v1/completions", completions::answer),
        answered("/v1/chat/completions", chat::answer),
        answered("/v1/responses", responses::answer),
        answered("/v1/embeddings", embeddings::answer),
        get("/v1/files", files::list),
        post("/v1/files", files::upload),
        get("/v1/files/{id}", files::one),
        delete("/v1/files/{id}", files::delete),
        get("/v1/files/{id}/content", files::content),
        get("/v1/batches", batches::list),
        post("/v1/batches", batches::create),
        get("/v1/batches/{id}", batches::one),
        post("/v1/batches/{id}/cancel", batches::cancel),
        post("/generate", native::single),
        post("/generate/batch", native::batch),
        post("/tokenize", tokens::tokenize),
        post("/detokenize", tokens::detokenize),
    ]
}

fn get<T: 'static>(path: &'static str, handler: impl Handler<T, Arc<App>>) -> Route {
    Route { method: Method::GET, path, handler: routing::get(handler) }
}

fn post<T: 'static>(path: &'static str, handler: impl Handler<T, Arc<App>>) -> Route {
    Route { method: Method::POST, path, handler: routing::post(handler) }
}

/// A route whose requests may also come as lines of batches.
fn answered<F, A>(path: &'static str, answer: F) -> Route
where
    F: Fn(Call) -> A + Copy + Send + Sync + 'static,
    A: Future<Output = Result<Response, ApiError>> + Send,
{
    post(path, move |State(app): State<Arc<App>>, request: Request| async move {
        answer(Call::read(app, request).await?).await
    })
}

fn delete<T: 'static>(path: &'static str, handler: impl Handler<T, Arc<App>>) -> Route {
    Route { method: Method::DELETE, path, handler: routing::delete(handler) }
}

pub(crate) fn router(app: Arc<App>) -> Router {
    let add = |router: Router<Arc<App>>, route: Route| router.route(route.path, route.handler);
    routes()
        .into_iter()
        .fold(Router::new(), add)
        .fallback(not_found)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(Arc::clone(&app), enter))
        .with_state(app)
}

/// Lets a request in: its key, its name, and in the end its place in the figures.
async fn enter(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let arrival = Instant::now();
    let request_id = request_id(request.headers());
    let is_open = is_open(request.uri().path());
    let mut response = match app.keys.caller(request.headers()) {
        Err(error) if !is_open => error.into_response(),
        Err(_) => next.run(request).await,
        Ok(caller) => {
            let request_id = request_id.clone();
            let trace = TraceContext::of(request.headers());
            let kind = Kind::Interactive;
            request.extensions_mut().insert(Visit { caller, request_id, arrival, trace, kind });
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
