//! The page at `/`: files that are part of the binary, and headers that let it use nothing else.

use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};

use crate::error::ApiError;

/// Where the page's files are.
pub(crate) const FILES: &str = "/page/";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

const INDEX: &str = include_str!("page/index.html");

/// Name, type and text of each file.
const TABLE: [(&str, &str, &str); 9] = [
    ("style.css", CSS, include_str!("page/style.css")),
    ("app.js", JS, include_str!("page/app.js")),
    ("api.js", JS, include_str!("page/api.js")),
    ("playground.js", JS, include_str!("page/playground.js")),
    ("lanes.js", JS, include_str!("page/lanes.js")),
    ("blocks.js", JS, include_str!("page/blocks.js")),
    ("figures.js", JS, include_str!("page/figures.js")),
    ("dom.js", JS, include_str!("page/dom.js")),
    ("icon.svg", SVG, include_str!("page/icon.svg")),
];

/// Its own files and its own server, and nothing inline.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

const HEADERS: [(HeaderName, &str); 5] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    // A new binary may bring a new page.
    (header::CACHE_CONTROL, "no-cache"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
];

pub(crate) async fn index() -> Response {
    respond(HTML, INDEX)
}

pub(crate) async fn file(name: Result<Path<String>, PathRejection>) -> Result<Response, ApiError> {
    let name = name.map_or_else(|_| "?".to_owned(), |Path(name)| name);
    let found = TABLE.iter().find(|(known, ..)| *known == name);
    let (_, kind, text) = found.ok_or_else(|| {
        let name: String = name.chars().take(100).collect();
        ApiError::UnknownPath { path: format!("{FILES}{name}") }
    })?;
    Ok(respond(kind, text))
}

fn respond(kind: &'static str, text: &'static str) -> Response {
    let mut response = text.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}
