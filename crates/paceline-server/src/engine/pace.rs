//! The pace of streams while prompts are computed (`--target-itl-ms`).
//!
//! A step takes about `a + c * r`: `a` for the rows of running streams, `c` for each of the `r`
//! rows of prompts. Both are learned from the steps as they go, with the old ones forgotten, and
//! the next step gets as many prompt rows as fit the target. What is learned wrongly for a moment
//! costs pace or throughput, never an answer: the rows of a step change no bit of it.

use std::time::Duration;

/// Prompts never stop entirely: a stream that is too slow by itself is not helped by that.
const MIN_ROWS: u32 = 8;
/// What is tried before anything is known.
const FIRST_ROWS: u32 = 32;
/// The share of the target to aim at, at first, at least and at most: steps scatter, and it is
/// their slow ones that are felt.
const AIM: f64 = 0.8;
const LEAST_AIM: f64 = 0.5;
const MOST_AIM: f64 = 0.85;
/// What the aim is multiplied with after a step that missed the target, and after one that kept it:
/// they balance where one step in forty misses.
/// A step counts as a miss from this share of the target on: until a token is read it takes longer
/// than its step.
const MISS: f64 = 0.9;
const AFTER_MISS: f64 = 0.96;
const AFTER_HIT: f64 = 1.001;
/// What a step's weight falls to with each further step.
const MEMORY: f64 = 0.9;
/// Where rows differ by less than this share of themselves, a slope is noise: the last one is kept.
const LEAST_SPREAD: f64 = 0.15;
/// How fast a new slope replaces the old one, and a new base the old one. Streams come and go from
/// step to step; the machine stays the same.
const LEARN_SLOPE: f64 = 0.3;
const LEARN_BASE: f64 = 0.4;

#[derive(Debug)]
pub(super) struct Pace {
    target_seconds: f64,
    aim: f64,
    max_rows: u32,
    rows: u32,
    seen: Seen,
    /// Seconds per prompt row.
    slope: Option<f64>,
    /// Seconds that a step takes without prompts.
    base: f64,
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

impl Pace {
    /// `max_rows` is what a step may have in all.
    pub(super) fn new(target: Duration, max_rows: u32) -> Pace {
        Pace {
            target_seconds: target.as_secs_f64(),
            aim: AIM,
            max_rows: max_rows.max(1),
            rows: FIRST_ROWS.min(max_rows.max(1)),
            seen: Seen::default(),
            slope: None,
            base: 0.0,
        }
    }

    /// Prompt rows that the next step may have.
    pub(super) fn rows(&self) -> u32 {
        self.rows
    }

    /// Learns from a step that had so many prompt rows.
    pub(super) fn observe(&mut self, n_rows: u32, elapsed: Duration) {
        let (rows, seconds) = (f64::from(n_rows), elapsed.as_secs_f64());
        self.seen.add(rows, seconds);
        if n_rows > 0 {
            let is_miss = seconds > MISS * self.target_seconds;
            let change = if is_miss { AFTER_MISS } else { AFTER_HIT };
            self.aim = (self.aim * change).clamp(LEAST_AIM, MOST_AIM);
        }
        if let Some(new) = self.seen.slope() {
            let old = self.slope.unwrap_or(new);
            self.slope = Some(old + LEARN_SLOPE * (new - old));
        }
        // Until rows have varied, all of a step's time is taken for theirs.
        let Some(slope) = self.slope.or_else(|| self.seen.seconds_per_row()) else {
            return;
        };
        self.base += LEARN_BASE * ((seconds - slope * rows).max(0.0) - self.base);
        let fitting = ((self.aim * self.target_seconds - self.base) / slope).max(0.0);
        // Not more than twice what was tried last: the line may bend.
        let most = self.max_rows.min(self.rows.saturating_mul(2));
        let least = MIN_ROWS.min(self.max_rows);
        self.rows = (fitting as u32).min(most).max(least);
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
mod tests {
    use super::*;

    /// A machine whose steps scatter by a tenth, always in the same way.
    struct Machine {
        base: f64,
        per_row: f64,
        n_steps: u32,
    }

    impl Machine {
        fn step(&mut self, rows: u32) -> Duration {
            self.n_steps += 1;
            let scatter = 0.95 + 0.1 * f64::from(self.n_steps * 7 % 11) / 10.0;
            Duration::from_secs_f64((self.base + self.per_row * f64::from(rows)) * scatter)
        }
    }

    /// Runs steps with prompts at hand; returns the times of the last `n`.
    fn run(pace: &mut Pace, machine: &mut Machine, n_steps: u32, n: usize) -> Vec<Duration> {
        let mut times = Vec::new();
        for _ in 0..n_steps {
            let rows = pace.rows();
            let time = machine.step(rows);
            pace.observe(rows, time);
            times.push(time);
        }
        times.split_off(times.len() - n)
    }

    #[test]
    fn steps_keep_the_target_and_use_what_it_allows() {
        let target = Duration::from_millis(100);
        for per_row in [0.0001, 0.0007, 0.003] {
            let mut pace = Pace::new(target, 512);
            let mut machine = Machine { base: 0.03, per_row, n_steps: 0 };
            let times = run(&mut pace, &mut machine, 60, 40);
            assert!(times.iter().all(|&time| time < target), "{per_row}: {times:?}");
            let wanted = ((0.085 - 0.03) / per_row).clamp(8.0, 512.0);
            let ratio = f64::from(pace.rows()) / wanted;
            assert!((0.6..1.4).contains(&ratio), "{per_row}: {} rows, {wanted}", pace.rows());
        }
    }

    #[test]
    fn scattered_steps_make_it_careful() {
        let target = Duration::from_millis(100);
        let mut pace = Pace::new(target, 512);
        let mut misses = 0;
        for step in 0..1000 {
            let rows = pace.rows();
            let slower = if step % 12 == 0 { 1.4 } else { 1.0 };
            let time = Duration::from_secs_f64((0.03 + 0.0005 * f64::from(rows)) * slower);
            pace.observe(rows, time);
            misses += i32::from(step >= 200 && time > target);
        }
        assert!(misses <= 40, "{misses} of 800 steps missed the target");
        assert!(pace.rows() > 40, "{} rows", pace.rows());
    }

    #[test]
    fn more_streams_mean_fewer_prompt_rows() {
        let target = Duration::from_millis(100);
        let mut pace = Pace::new(target, 512);
        let mut machine = Machine { base: 0.02, per_row: 0.0005, n_steps: 0 };
        run(&mut pace, &mut machine, 40, 1);
        let before = pace.rows();
        machine.base = 0.06;
        let times = run(&mut pace, &mut machine, 60, 30);
        assert!(pace.rows() < before);
        assert!(times.iter().all(|&time| time < target), "{times:?}");
    }

    #[test]
    fn prompts_go_on_when_streams_alone_are_too_slow() {
        let mut pace = Pace::new(Duration::from_millis(10), 512);
        let mut machine = Machine { base: 0.05, per_row: 0.001, n_steps: 0 };
        run(&mut pace, &mut machine, 40, 1);
        assert_eq!(pace.rows(), MIN_ROWS);
        let mut tiny = Pace::new(Duration::from_millis(10), 4);
        run(&mut tiny, &mut machine, 40, 1);
        assert!((1..=4).contains(&tiny.rows()));
    }
}
