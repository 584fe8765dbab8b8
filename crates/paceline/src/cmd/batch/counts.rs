//! How far a run is.

use std::time::Instant;

use indicatif::ProgressBar;

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Prompts with a result, failed ones included.
    pub(super) n_done: u64,
    pub(super) n_failed: u64,
    pub(super) n_prompt: u64,
    pub(super) n_cached: u64,
    pub(super) n_generated: u64,
    /// Prompts that were under way when the user stopped.
    pub(super) n_abandoned: u64,
    pub(super) n_preemptions: u64,
    /// Prompts that an earlier run has answered.
    pub(super) n_before: u64,
}

impl Counts {
    pub(super) fn show(&self, bar: &ProgressBar, start: Instant) {
        if bar.is_hidden() {
            return;
        }
        let rate = self.n_generated as f64 / start.elapsed().as_secs_f64().max(1e-9);
        let failed = match self.n_failed {
            0 => String::new(),
            n => format!("{n} failed, "),
        };
        bar.set_position(self.n_before + self.n_done);
        bar.set_message(format!("{failed}{rate:.1} tokens/s"));
    }
}
