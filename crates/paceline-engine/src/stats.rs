//! Plain counters. Nothing here decides anything.

use crate::request::FinishReason;

/// Step sizes and times are counted in powers of two: bucket `i` holds values below `2^i` that no
/// lower bucket holds.
pub const N_BUCKETS: usize = 40;

/// Counts by power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Histogram {
    pub buckets: [u64; N_BUCKETS],
    pub count: u64,
    pub sum: u64,
    pub max: u64,
    pub last: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: [0; N_BUCKETS], count: 0, sum: 0, max: 0, last: 0 }
    }
}

impl Histogram {
    pub fn record(&mut self, value: u64) {
        let bucket = (u64::BITS - value.leading_zeros()) as usize;
        self.buckets[bucket.min(N_BUCKETS - 1)] += 1;
        self.count += 1;
        self.sum = self.sum.saturating_add(value);
        self.max = self.max.max(value);
        self.last = value;
    }

    pub fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum as f64 / self.count as f64 }
    }
}

/// Sequences finished, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FinishedCounts {
    pub stop: u64,
    pub length: u64,
    pub cancelled: u64,
    pub deadline: u64,
    pub preempted: u64,
    pub failed: u64,
    pub backend: u64,
}

impl FinishedCounts {
    pub(crate) fn count(&mut self, reason: &FinishReason) {
        *match reason {
            FinishReason::Stop => &mut self.stop,
            FinishReason::Length => &mut self.length,
            FinishReason::Cancelled => &mut self.cancelled,
            FinishReason::Deadline => &mut self.deadline,
            FinishReason::Preempted => &mut self.preempted,
            FinishReason::Failed(_) => &mut self.failed,
            FinishReason::Backend(_) => &mut self.backend,
        } += 1;
    }

    pub fn total(&self) -> u64 {
        let Self { stop, length, cancelled, deadline, preempted, failed, backend } = *self;
        stop + length + cancelled + deadline + preempted + failed + backend
    }
}

/// The state of an engine, and what it has done since it was made.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// Sequences that take part in steps now.
    pub n_active: u32,
    /// Sequences in the queue now; a request that has not started counts once.
    pub n_waiting: u32,
    /// Prompt tokens of the requests that have not started.
    pub n_waiting_tokens: u64,
    pub n_blocks: u32,
    pub n_free_blocks: u32,
    pub n_used_blocks: u32,
    /// Blocks whose content can be found again, used or free.
    pub n_cached_blocks: u32,
    /// Rows a step may have.
    pub max_rows: u32,
    pub n_requests: u64,
    pub n_rejected: u64,
    pub n_steps: u64,
    pub n_failed_steps: u64,
    /// Prompt tokens computed (again after a preemption).
    pub n_prompt_tokens: u64,
    /// Prompt tokens taken from the prefix cache instead.
    pub n_cached_tokens: u64,
    pub n_generated_tokens: u64,
    /// Generated tokens computed a second time after a preemption.
    pub n_recomputed_tokens: u64,
    /// Rows that were computed for guesses at next tokens, and how many of those were right.
    pub n_drafted_tokens: u64,
    pub n_accepted_tokens: u64,
    pub n_preemptions: u64,
    /// Tokens looked up in the prefix cache, and found there.
    pub n_prefix_query_tokens: u64,
    pub n_prefix_hit_tokens: u64,
    /// Rows without work. Rows are only made for work, so this stays 0.
    pub n_padding_rows: u64,
    /// Internal errors that cost one request.
    pub n_faults: u64,
    pub finished: FinishedCounts,
    /// Rows per step.
    pub step_rows: Histogram,
    /// Sequences per step.
    pub step_seqs: Histogram,
    /// Nanoseconds per step, as the caller timed them.
    pub step_ns: Histogram,
}

impl Stats {
    /// Share of the row budget that steps have used.
    pub fn utilisation(&self) -> f64 {
        self.step_rows.mean() / f64::from(self.max_rows.max(1))
    }
}
