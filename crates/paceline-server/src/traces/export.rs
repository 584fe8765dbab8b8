//! Sends spans to the collector, many at a time.

use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderMap;
use tokio::sync::{mpsc, oneshot};

use super::{Span, otlp};
use crate::client::{Client, ClientError, Origin};
use crate::metrics::Metrics;

/// Spans of one export request.
const BATCH: usize = 512;
/// How long the first span of a batch waits for others.
const GATHER: Duration = Duration::from_millis(200);
/// What the collector gets to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Where collectors take traces, if the address does not say.
const USUAL_PATH: &str = "/v1/traces";
const MAX_ANSWER: usize = 1 << 20;

#[derive(Debug)]
pub(crate) struct Exporter {
    spans: mpsc::Receiver<Span>,
    client: Client,
    path: &'static str,
    metrics: Arc<Metrics>,
    /// The last attempt failed; the log has been told.
    is_away: bool,
}

/// Why spans were not taken.
#[derive(Debug, thiserror::Error)]
enum ExportError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("it answers with status {0}")]
    Status(u16),
    #[error("it does not answer")]
    Timeout,
}

impl Exporter {
    pub(super) fn new(
        spans: mpsc::Receiver<Span>,
        collector: &Origin,
        metrics: Arc<Metrics>,
    ) -> Exporter {
        let path = if collector.prefix().is_empty() { USUAL_PATH } else { "" };
        let client = Client::new(collector.clone(), HeaderMap::new());
        Exporter { spans, client, path, metrics, is_away: false }
    }

    /// Sends spans as they come, until told to stop; then what is left.
    pub(crate) async fn run(mut self, mut stop: oneshot::Receiver<()>) {
        let mut batch = Vec::new();
        loop {
            tokio::select! {
                n = self.spans.recv_many(&mut batch, BATCH) => if n == 0 { return },
                _ = &mut stop => return self.flush().await,
            }
            let is_stopped = self.gather(&mut batch, &mut stop).await;
            self.send(&mut batch).await;
            if is_stopped {
                return self.flush().await;
            }
        }
    }

    /// Lets a batch grow for a moment. True if there is no time for that any more.
    async fn gather(&mut self, batch: &mut Vec<Span>, stop: &mut oneshot::Receiver<()>) -> bool {
        let until = tokio::time::sleep(GATHER);
        tokio::pin!(until);
        while batch.len() < BATCH {
            let room = BATCH - batch.len();
            tokio::select! {
                n = self.spans.recv_many(batch, room) => if n == 0 { return true },
                () = &mut until => return false,
                _ = &mut *stop => return true,
            }
        }
        false
    }

    async fn flush(mut self) {
        let mut batch = Vec::new();
        while let Ok(span) = self.spans.try_recv() {
            batch.push(span);
            if batch.len() == BATCH {
                self.send(&mut batch).await;
            }
        }
        self.send(&mut batch).await;
    }

    /// Sends a batch and empties it, whether or not it was taken.
    async fn send(&mut self, batch: &mut Vec<Span>) {
        if batch.is_empty() {
            return;
        }
        match self.post(batch).await {
            Ok(()) => {
                self.metrics.spans_exported(batch.len() as u64);
                self.is_away = false;
            }
            Err(error) => {
                self.metrics.spans_dropped(batch.len() as u64);
                if !std::mem::replace(&mut self.is_away, true) {
                    tracing::warn!(%error, "the trace collector is away; spans are dropped");
                }
            }
        }
        batch.clear();
    }

    async fn post(&self, batch: &[Span]) -> Result<(), ExportError> {
        let body = otlp::body(batch).to_string().into();
        let exchange = async {
            let response = self.client.post(self.path, body).await?;
            let status = response.status();
            // Read to its end, so that the connection can be used again.
            response.bytes(MAX_ANSWER).await?;
            Ok::<u16, ClientError>(status)
        };
        match tokio::time::timeout(PATIENCE, exchange).await.map_err(|_| ExportError::Timeout)?? {
            200..300 => Ok(()),
            status => Err(ExportError::Status(status)),
        }
    }
}
