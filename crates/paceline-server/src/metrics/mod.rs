//! What is counted, and how it is shown to Prometheus.
//!
//! The engine's thread reports; `/metrics` reads. Both hold one lock for microseconds.

mod histogram;
mod text;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use paceline_engine::{BackendLimits, Stats};

use histogram::{Histogram, SECONDS, SMALL_COUNTS, TOKEN_COUNTS, TOKEN_SECONDS};

/// All counters of a server.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    engine: Stats,
    requests: Requests,
    /// Responses by status.
    responses: BTreeMap<u16, u64>,
    /// Spans that the collector took, and that it did not.
    n_spans_exported: u64,
    n_spans_dropped: u64,
    /// Requests by why they ended.
    finished: BTreeMap<&'static str, u64>,
    budgets: Budgets,
}

/// Rows of the next step beside streams.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Budgets {
    /// For prompts.
    pub(crate) prompt_rows: u32,
    /// For the batch class.
    pub(crate) batch_rows: u32,
}

impl Budgets {
    /// Without any goal.
    pub(crate) fn of(stats: &Stats) -> Budgets {
        Budgets { prompt_rows: stats.max_rows, batch_rows: stats.max_rows }
    }
}

/// What requests were like.
#[derive(Debug)]
struct Requests {
    first_token: Histogram,
    between_tokens: Histogram,
    per_output_token: Histogram,
    total: Histogram,
    queue: Histogram,
    prefill: Histogram,
    decode: Histogram,
    inference: Histogram,
    prompt_tokens: Histogram,
    generated_tokens: Histogram,
    max_tokens: Histogram,
    n: Histogram,
}

impl Default for Requests {
    fn default() -> Requests {
        Requests {
            first_token: Histogram::new(TOKEN_SECONDS),
            between_tokens: Histogram::new(TOKEN_SECONDS),
            per_output_token: Histogram::new(TOKEN_SECONDS),
            total: Histogram::new(SECONDS),
            queue: Histogram::new(SECONDS),
            prefill: Histogram::new(SECONDS),
            decode: Histogram::new(SECONDS),
            inference: Histogram::new(SECONDS),
            prompt_tokens: Histogram::new(TOKEN_COUNTS),
            generated_tokens: Histogram::new(TOKEN_COUNTS),
            max_tokens: Histogram::new(TOKEN_COUNTS),
            n: Histogram::new(SMALL_COUNTS),
        }
    }
}

/// Where a request's time went.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) queue: Duration,
    pub(crate) prefill: Duration,
    pub(crate) decode: Duration,
    pub(crate) total: Duration,
}

/// A request that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finished {
    pub(crate) reason: &'static str,
    pub(crate) n_prompt: u32,
    pub(crate) n_cached: u32,
    pub(crate) n_generated: u32,
    pub(crate) n: u32,
    pub(crate) max_tokens: u32,
    /// It has come as far as a token.
    pub(crate) has_spoken: bool,
    pub(crate) times: Times,
}

/// What the engine is, for the page of figures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EngineFacts<'a> {
    pub(crate) model: &'a str,
    pub(crate) limits: BackendLimits,
}

impl Metrics {
    /// The engine's own counters after a step, and what the next may have.
    pub(crate) fn publish(&self, stats: &Stats, budgets: Budgets) {
        let inner = &mut *self.lock();
        inner.engine.clone_from(stats);
        inner.budgets = budgets;
    }

    pub(crate) fn first_token_after(&self, since_arrival: Duration) {
        self.lock().requests.first_token.record(since_arrival.as_secs_f64());
    }

    pub(crate) fn token_after(&self, gap: Duration) {
        self.lock().requests.between_tokens.record(gap.as_secs_f64());
    }

    pub(crate) fn finished(&self, finished: &Finished) {
        let inner = &mut *self.lock();
        *inner.finished.entry(finished.reason).or_default() += 1;
        let (requests, times) = (&mut inner.requests, &finished.times);
        requests.total.record(times.total.as_secs_f64());
        requests.queue.record(times.queue.as_secs_f64());
        requests.prompt_tokens.record(f64::from(finished.n_prompt));
        requests.generated_tokens.record(f64::from(finished.n_generated));
        requests.max_tokens.record(f64::from(finished.max_tokens));
        requests.n.record(f64::from(finished.n));
        if finished.has_spoken {
            requests.prefill.record(times.prefill.as_secs_f64());
            requests.decode.record(times.decode.as_secs_f64());
            requests.inference.record((times.prefill + times.decode).as_secs_f64());
        }
        if finished.n_generated > finished.n && finished.n > 0 {
            let n_gaps = finished.n_generated / finished.n - 1;
            let seconds = times.decode.as_secs_f64() / f64::from(n_gaps.max(1));
            requests.per_output_token.record(seconds);
        }
    }

    pub(crate) fn spans_exported(&self, n: u64) {
        self.lock().n_spans_exported += n;
    }

    pub(crate) fn spans_dropped(&self, n: u64) {
        self.lock().n_spans_dropped += n;
    }

    pub(crate) fn responded(&self, status: u16) {
        *self.lock().responses.entry(status).or_default() += 1;
    }

    /// Prometheus' text format. Without an engine there is only what HTTP has seen.
    pub(crate) fn text(&self, facts: Option<EngineFacts<'_>>) -> String {
        text::render(&self.lock(), facts)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
