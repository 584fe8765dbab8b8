//! How long steps take: what the pace of streams and of keys is made from.
//!
//! A step takes about `a + c * r`: `a` for the rows of running streams, `c` for each of the `r`
//! rows of prompts. Both are learned from the steps as they go, with the old ones forgotten. Rows
//! deep in a prompt see many tokens before them and count for more than one, by a rule that need
//! not be exact: it only has to bend the right way, since what is learned is never old. What is
//! learned wrongly for a moment costs pace or throughput, never an answer: the rows of a step
//! change no bit of it. Knows no clock; steps are told to it with their times.

use std::time::Duration;

use paceline_engine::SharedRows;

/// How long a step that keys share is to take: whoever comes in its middle waits for its end.
const SHARED_SECONDS: f64 = 0.036;
/// What its prompts may have however long that takes: with less, streams would become few, and
/// steps dear.
const SHARED_ROWS: u32 = 60;
/// Likewise for a step with the prompt of a key that has had less than another. It has waited for
/// a step already, and to cut its prompt would make it wait for the streams of others again.
const BEHIND_SECONDS: f64 = 2.0 * SHARED_SECONDS;
const BEHIND_ROWS: u32 = 256;
/// Tokens before a row that take about as long to see as all else of the row takes: in the default
/// model 2,300.
const EVEN_DEPTH: f64 = 2048.0;
/// The tokens before a prompt's rows are fetched once for all of them, which takes as long as so
/// many rows take to see them.
const FETCH_ROWS: f64 = 8.0;
/// What a step's weight falls to with each further step.
const MEMORY: f64 = 0.9;
/// Where rows differ by less than this share of themselves, a slope is noise: the last one is kept.
const LEAST_SPREAD: f64 = 0.15;
/// How fast a new slope replaces the old one, and a new base the old one. Streams come and go from
/// step to step; the machine stays the same.
const LEARN_SLOPE: f64 = 0.3;
const LEARN_BASE: f64 = 0.4;

/// A step's rows of prompts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Prompts {
    pub(super) n_rows: u32,
    /// Tokens before them, in the mean.
    pub(super) depth: u64,
}

impl Prompts {
    /// As rows at the beginning of a prompt.
    fn cost(self) -> f64 {
        match self.n_rows {
            0 => 0.0,
            n => f64::from(n) + (f64::from(n) + FETCH_ROWS) * self.depth as f64 / EVEN_DEPTH,
        }
    }

    /// Rows at a depth that cost so much.
    fn within(cost: f64, depth: u64) -> u32 {
        let depth = depth as f64 / EVEN_DEPTH;
        ((cost - FETCH_ROWS * depth) / (1.0 + depth)).max(0.0) as u32
    }
}

#[derive(Debug, Default)]
pub(super) struct StepTimes {
    seen: Seen,
    /// Seconds per prompt row, once rows have varied.
    slope: Option<f64>,
    /// Seconds that a step takes without prompts.
    base: f64,
    /// Tokens before the next rows of prompts.
    depth: u64,
}

/// Weighted sums over the steps so far.
#[derive(Debug, Default)]
struct Seen {
    weight: f64,
    rows: f64,
    rows_squared: f64,
    seconds: f64,
    rows_by_seconds: f64,
}

impl StepTimes {
    /// Learns from a step that had these prompts.
    pub(super) fn observe(&mut self, prompts: Prompts, elapsed: Duration) {
        let (rows, seconds) = (prompts.cost(), elapsed.as_secs_f64());
        self.seen.add(rows, seconds);
        if let Some(new) = self.seen.slope() {
            let old = self.slope.unwrap_or(new);
            self.slope = Some(old + LEARN_SLOPE * (new - old));
        }
        if let Some(slope) = self.seconds_per_row() {
            self.base += LEARN_BASE * ((seconds - slope * rows).max(0.0) - self.base);
        }
    }

    /// Notes where the next step's prompts go on.
    pub(super) fn expect(&mut self, depth: u64) {
        self.depth = depth;
    }

    /// Until rows have varied, all of a step's time is taken for theirs.
    fn seconds_per_row(&self) -> Option<f64> {
        self.slope.or_else(|| self.seen.seconds_per_row())
    }

    /// Prompt rows with which a step takes so long; `None` before any are known.
    pub(super) fn rows_within(&self, seconds: f64) -> Option<u32> {
        let slope = self.seconds_per_row()?;
        Some(Prompts::within((seconds - self.base) / slope, self.depth))
    }

    pub(super) fn seconds_without_prompts(&self) -> f64 {
        self.base
    }

    /// Prompt rows of a step that keys share.
    pub(super) fn shared_rows(&self) -> SharedRows {
        let rows = |seconds, least| self.rows_within(seconds).unwrap_or(0).max(least);
        SharedRows {
            usual: rows(SHARED_SECONDS, SHARED_ROWS),
            behind: rows(BEHIND_SECONDS, BEHIND_ROWS),
        }
    }
}

impl Seen {
    fn add(&mut self, rows: f64, seconds: f64) {
        for sum in [
            &mut self.weight,
            &mut self.rows,
            &mut self.rows_squared,
            &mut self.seconds,
            &mut self.rows_by_seconds,
        ] {
            *sum *= MEMORY;
        }
        self.weight += 1.0;
        self.rows += rows;
        self.rows_squared += rows * rows;
        self.seconds += seconds;
        self.rows_by_seconds += rows * seconds;
    }

    /// Seconds per row, where the steps differ enough to tell.
    fn slope(&self) -> Option<f64> {
        let (mean_rows, mean_seconds) = (self.rows / self.weight, self.seconds / self.weight);
        let spread = self.rows_squared / self.weight - mean_rows * mean_rows;
        let together = self.rows_by_seconds / self.weight - mean_rows * mean_seconds;
        let least_spread = (LEAST_SPREAD * mean_rows).powi(2).max(1.0);
        (spread > least_spread && together > 0.0).then_some(together / spread)
    }

    fn seconds_per_row(&self) -> Option<f64> {
        (self.rows > 0.0 && self.seconds > 0.0).then(|| self.seconds / self.rows)
    }
}

#[cfg(test)]
mod tests;
