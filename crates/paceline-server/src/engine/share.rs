//! The batch class's share of steps beside streams (`--batch-itl-factor`, `--target-itl-ms`).
//!
//! A step with more rows takes longer, so lines of batches slow down the streams beside them. How
//! long a step takes without lines is measured: in every step that has none, and, while they
//! always have some, in one step of [`QUIET_EVERY`] that they sit out. Their rows are then as many
//! as let steps take so many times that long, and no longer than the target. Medians of a few
//! steps are compared, so that one which the machine disturbed counts for nothing. What is learned
//! wrongly for a moment costs pace or throughput, never an answer: the rows of a step change no bit
//! of it. Knows no clock; steps are told to it with their times.

use std::time::Duration;

use paceline_engine::StepMix;

/// While lines have rows in every step, one in so many goes without.
const QUIET_EVERY: u32 = 16;
/// Quiet steps that are remembered.
const N_QUIET: usize = 5;
/// Steps with lines after which their rows are set anew.
const N_BESIDE: usize = 8;
/// Steps with prompts of others are left out, since they take longer by themselves; but if there
/// have been no others for so long, they count.
const N_PATIENT: u32 = 64;
/// What rows are multiplied with at least and at most when they are set anew.
const MOST_LESS: f64 = 0.5;
const MOST_MORE: f64 = 1.25;
/// What is tried before anything is known.
const FIRST_ROWS: f64 = 4.0;
/// The share of the target to aim at: steps scatter, and it is their slow ones that are felt.
const AIM: f64 = 0.8;

/// How long steps with lines may take.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Goals {
    /// So many times as long as without.
    pub(super) factor: Option<f64>,
    pub(super) target: Option<Duration>,
}

#[derive(Debug)]
pub(super) struct BatchShare {
    goals: Goals,
    max_rows: f64,
    rows: f64,
    /// Seconds of the latest steps beside streams that had no lines.
    quiet: Vec<f64>,
    /// Which of them is the oldest.
    oldest: usize,
    /// Rows of lines and seconds of steps that had some.
    beside: Vec<(f64, f64)>,
    n_since_quiet: u32,
    n_since_calm: u32,
}

impl BatchShare {
    /// `max_rows` is what a step may have in all. `None` if there is no goal.
    pub(super) fn new(goals: Goals, max_rows: u32) -> Option<BatchShare> {
        let has_goal = goals.factor.is_some() || goals.target.is_some();
        let max_rows = f64::from(max_rows.max(1));
        has_goal.then(|| BatchShare {
            goals,
            max_rows,
            rows: FIRST_ROWS.min(max_rows),
            quiet: Vec::with_capacity(N_QUIET),
            oldest: 0,
            beside: Vec::with_capacity(N_BESIDE),
            n_since_quiet: QUIET_EVERY,
            n_since_calm: 0,
        })
    }

    /// Rows that lines may have in the next step, if others run.
    pub(super) fn rows(&self) -> u32 {
        match self.n_since_quiet {
            QUIET_EVERY.. => 0,
            _ => self.rows as u32,
        }
    }

    /// What lines have in most steps.
    pub(super) fn usual_rows(&self) -> u32 {
        self.rows as u32
    }

    /// Learns from a step.
    pub(super) fn observe(&mut self, mix: StepMix, elapsed: Duration) {
        if mix.n_streams == 0 {
            // Who comes next is measured first.
            self.n_since_quiet = QUIET_EVERY;
            return;
        }
        self.n_since_quiet = if mix.n_batch == 0 { 0 } else { self.n_since_quiet + 1 };
        self.n_since_calm = if mix.n_prompts == 0 { 0 } else { self.n_since_calm + 1 };
        if mix.n_prompts > 0 && self.n_since_calm <= N_PATIENT {
            return;
        }
        let seconds = elapsed.as_secs_f64();
        match mix.n_batch {
            0 => self.remember_quiet(seconds),
            n_batch => self.beside.push((f64::from(n_batch), seconds)),
        }
        if self.beside.len() == N_BESIDE {
            self.adjust();
            self.beside.clear();
        }
    }

    fn remember_quiet(&mut self, seconds: f64) {
        if self.quiet.len() < N_QUIET {
            self.quiet.push(seconds);
        } else {
            self.quiet[self.oldest] = seconds;
            self.oldest = (self.oldest + 1) % N_QUIET;
        }
    }

    fn adjust(&mut self) {
        let Some(quiet) = median(self.quiet.iter().copied()) else { return };
        let rows = median(self.beside.iter().map(|&(rows, _)| rows)).unwrap_or(1.0);
        let seconds = median(self.beside.iter().map(|&(_, seconds)| seconds)).unwrap_or(quiet);
        let by_factor = self.goals.factor.map(|factor| (factor - 1.0) * quiet);
        let by_target = self.goals.target.map(|target| target.as_secs_f64() * AIM - quiet);
        let allowed = by_factor.into_iter().chain(by_target).fold(f64::INFINITY, f64::min);
        // What the machine does meanwhile is taken for the lines' doing, so one look is not
        // believed in full, and less so where it says that there is time left.
        let change = match seconds - quiet {
            spent if spent > 0.0 => (allowed.max(0.0) / spent).sqrt().clamp(MOST_LESS, MOST_MORE),
            _ => MOST_MORE,
        };
        // Fewer lines than may run say nothing of more. Batches never stop: streams that are too
        // slow by themselves are not helped by that.
        let tried = if rows < self.rows.floor() { rows } else { self.rows };
        self.rows = (tried * change).clamp(1.0, self.max_rows);
    }
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

#[cfg(test)]
mod tests;
