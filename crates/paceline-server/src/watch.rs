//! `GET /live`: snapshots of the engine for whoever watches, as server-sent events.
//!
//! A spectator gets the newest snapshot a few times a second; what it had no time for is lost. One
//! that does not read at all is let go. Sizes and times are for everybody with a key; whose request
//! a sequence is, for its own key alone.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio::time::{sleep, timeout};

use crate::app::App;
use crate::call::Visit;
use crate::engine::{Cell, PERIOD, Quantiles, SequenceShown, Snapshot, StepShown};
use crate::error::ApiError;
use crate::sse::{self, Events, PING_AFTER};

/// A spectator that has not read an event for this long has gone, whatever its socket says.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let place = app.watch_place()?;
    let snapshots = app.ready()?.engine.watch();
    let visit = request.extensions().get::<Visit>();
    let tenant = visit.map(|visit| visit.caller.tenant);
    // One event waits in the channel and one in the socket; the rest of the past is dropped.
    let (events, body) = mpsc::channel(1);
    let max_requests = app.options.max_queued_requests;
    let spectator = Spectator { snapshots, tenant, last_step: 0, max_requests, _place: place };
    tokio::spawn(async move {
        tokio::select! {
            () = app.drained() => {}
            () = events.closed() => {}
            () = feed(spectator, &events) => {}
        }
    });
    let body = stream::unfold(body, |mut body| async move {
        let bytes: Bytes = body.recv().await?;
        Some((Ok::<_, Infallible>(bytes), body))
    });
    Ok(sse::event_stream(Body::from_stream(body)))
}

struct Spectator {
    snapshots: watch::Receiver<Arc<Snapshot>>,
    tenant: Option<u64>,
    /// Steps up to this one have been told of.
    last_step: u64,
    max_requests: u32,
    _place: OwnedSemaphorePermit,
}

/// Sends events for as long as they are read.
async fn feed(mut spectator: Spectator, events: &mpsc::Sender<Bytes>) {
    while let Some(bytes) = spectator.next().await {
        match timeout(PATIENCE, events.send(bytes)).await {
            Ok(Ok(())) => sleep(PERIOD).await,
            _ => return,
        }
    }
}

impl Spectator {
    /// The next event; `None` when the engine has ended.
    async fn next(&mut self) -> Option<Bytes> {
        let mut out = Events::default();
        match timeout(PING_AFTER, self.snapshots.changed()).await {
            Err(_) => out.ping(),
            Ok(changed) => {
                changed.ok()?;
                let snapshot = Arc::clone(&self.snapshots.borrow_and_update());
                out.data(&self.event(&snapshot));
            }
        }
        Some(out.into_bytes())
    }

    fn event(&mut self, snapshot: &Snapshot) -> Value {
        let stats = &snapshot.stats;
        let last_step = std::mem::replace(&mut self.last_step, stats.n_steps);
        let steps = snapshot.steps.iter().filter(|step| step.number > last_step);
        json!({
            "step": stats.n_steps,
            "at_ms": ms(snapshot.at),
            "max_rows": stats.max_rows,
            "max_seqs": snapshot.max_num_seqs,
            "queue": {
                "requests": stats.n_waiting,
                "tokens": stats.n_waiting_tokens,
                "max_requests": self.max_requests,
            },
            "totals": {
                "prompt_tokens": stats.n_prompt_tokens,
                "cached_tokens": stats.n_cached_tokens,
                "generated_tokens": stats.n_generated_tokens,
                "finished": stats.finished.total(),
                "preemptions": stats.n_preemptions,
            },
            "ttft_ms": quantiles(snapshot.first_token),
            "itl_ms": quantiles(snapshot.between_tokens),
            "kv": {
                "blocks": stats.n_blocks,
                "block_size": snapshot.block_size,
                "used": stats.n_used_blocks,
                "cached": snapshot.n_cached_idle,
                "blocks_per_cell": snapshot.blocks_per_cell,
                "map": run_lengths(&snapshot.map),
            },
            "seqs": snapshot.sequences.iter().map(|seq| self.sequence(seq)).collect::<Vec<_>>(),
            "steps": steps.map(step).collect::<Vec<_>>(),
        })
    }

    fn sequence(&self, seq: &SequenceShown) -> WireSequence {
        let own = seq.owner.as_ref().filter(|owner| Some(owner.tenant) == self.tenant);
        WireSequence {
            id: seq.request.0,
            index: seq.index,
            phase: if seq.n_computed < seq.n_prompt { "prefill" } else { "decode" },
            prompt_done: seq.n_computed.min(seq.n_prompt),
            prompt_total: seq.n_prompt,
            new_tokens: seq.n_generated,
            max_tokens: seq.max_tokens,
            blocks: seq.n_blocks,
            request_id: own.map(|owner| owner.label.request_id.clone()),
            prompt: own.map(|owner| owner.place),
        }
    }
}

#[derive(Debug, Serialize)]
struct WireSequence {
    id: u64,
    index: u32,
    phase: &'static str,
    prompt_done: u32,
    prompt_total: u32,
    new_tokens: u32,
    max_tokens: u32,
    blocks: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt: Option<u32>,
}

/// Its number, its milliseconds, and for each sequence `[id, index, rows, is it decoding]`.
fn step(step: &StepShown) -> Value {
    let rows = step
        .rows
        .iter()
        .map(|rows| [rows.request.0, rows.index.into(), rows.n_rows.into(), rows.is_decode.into()]);
    json!([step.number, ms(step.elapsed), rows.collect::<Vec<_>>()])
}

/// Values and how often they come, in turn: 0 is free, 1 cached, 2 shared, 3 and up the sequences
/// as they are listed.
fn run_lengths(map: &[Cell]) -> Vec<u32> {
    let mut runs = Vec::new();
    for run in map.chunk_by(|a, b| a == b) {
        let value = match run.first() {
            None | Some(Cell::Free) => 0,
            Some(Cell::Cached) => 1,
            Some(Cell::Shared) => 2,
            Some(Cell::Of(place)) => place.saturating_add(3),
        };
        runs.extend([value, run.len() as u32]);
    }
    runs
}

fn quantiles(quantiles: Quantiles) -> Value {
    json!({"p50": ms(quantiles.p50), "p95": ms(quantiles.p95)})
}

/// To a hundredth.
fn ms(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e5).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_are_told_in_runs() {
        let map = [Cell::Of(0), Cell::Of(0), Cell::Shared, Cell::Cached, Cell::Free, Cell::Free];
        assert_eq!(run_lengths(&map), [3, 2, 2, 1, 1, 1, 0, 2]);
        assert_eq!(run_lengths(&[]), [] as [u32; 0]);
    }
}
