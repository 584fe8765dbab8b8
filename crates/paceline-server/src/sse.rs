//! Server-sent events: the body of a streaming response.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use serde::Serialize;

use crate::call::Running;
use crate::error::ApiError;
use crate::reply::Update;

/// A comment is sent when there has been nothing to say for this long, so that nobody in between
/// takes the connection for dead.
pub(crate) const PING_AFTER: Duration = Duration::from_secs(15);

/// How a route writes its stream.
pub(crate) trait Chunks: Send + 'static {
    /// Before anything has come.
    fn begin(&mut self, _out: &mut Events) {}

    fn update(&mut self, update: Update, out: &mut Events);

    /// After all sequences have ended well.
    fn end(&mut self, out: &mut Events);

    /// After something went wrong in mid-stream.
    fn fail(&mut self, error: &ApiError, out: &mut Events) {
        out.data(&error.body());
        out.done();
    }
}

/// Events that have been written but not sent.
#[derive(Debug, Default)]
pub(crate) struct Events(Vec<u8>);

impl Events {
    pub(crate) fn data(&mut self, value: &impl Serialize) {
        self.0.extend_from_slice(b"data: ");
        // JSON has no raw line breaks, so one event is one line. Our types always serialise.
        let _ = serde_json::to_writer(&mut self.0, value);
        self.0.extend_from_slice(b"\n\n");
    }

    /// An event with a name of its own.
    pub(crate) fn named(&mut self, name: &str, value: &impl Serialize) {
        self.0.extend_from_slice(b"event: ");
        self.0.extend_from_slice(name.as_bytes());
        self.0.push(b'\n');
        self.data(value);
    }

    /// Something that is no event, so that the connection is seen to live.
    pub(crate) fn ping(&mut self) {
        self.0.extend_from_slice(b": ping\n\n");
    }

    pub(crate) fn into_bytes(self) -> Bytes {
        Bytes::from(self.0)
    }

    /// OpenAI's end of a stream.
    pub(crate) fn done(&mut self) {
        self.0.extend_from_slice(b"data: [DONE]\n\n");
    }
}

struct State<C> {
    running: Running,
    chunks: C,
    updates: Vec<Update>,
    has_begun: bool,
    is_over: bool,
}

/// A response that streams a reply. When the client goes, the body is dropped, and with it the
/// reply.
pub(crate) fn response(running: Running, chunks: impl Chunks) -> Response {
    let state = State { running, chunks, updates: Vec::new(), has_begun: false, is_over: false };
    let body = stream::unfold(state, |mut state| async move {
        let bytes = state.next().await?;
        Some((Ok::<_, Infallible>(bytes), state))
    });
    event_stream(Body::from_stream(body))
}

/// A response whose body is events.
pub(crate) fn event_stream(body: Body) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies that buffer would hold tokens back.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

impl<C: Chunks> State<C> {
    /// The next bytes; `None` at the end.
    async fn next(&mut self) -> Option<Bytes> {
        let mut out = Events::default();
        if !self.has_begun {
            self.has_begun = true;
            self.chunks.begin(&mut out);
        }
        while out.0.is_empty() {
            if self.is_over {
                return None;
            }
            let next = self.running.reply.next(&mut self.updates);
            match tokio::time::timeout(PING_AFTER, next).await {
                Err(_) => out.ping(),
                Ok(outcome) => self.write(outcome, &mut out),
            }
        }
        Some(out.into_bytes())
    }

    fn write(&mut self, outcome: Result<bool, ApiError>, out: &mut Events) {
        for update in self.updates.drain(..) {
            self.chunks.update(update, out);
        }
        match outcome {
            Ok(true) => {}
            Ok(false) => {
                self.chunks.end(out);
                self.is_over = true;
            }
            Err(error) => {
                self.chunks.fail(&error, out);
                self.is_over = true;
            }
        }
    }
}
