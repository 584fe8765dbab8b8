//! The pace of streams while prompts are computed (`--target-itl-ms`).
//!
//! The next step gets as many prompt rows as fit the target, by what is known of
//! [steps' times](StepTimes).

use std::time::Duration;

use super::times::StepTimes;

/// Prompts never stop entirely: a stream that is too slow by itself is not helped by that.
const MIN_ROWS: u32 = 8;
/// What is tried before anything is known.
const FIRST_ROWS: u32 = 32;
/// The share of the target to aim at, at first, at least and at most: steps scatter, and it is
/// their slow ones that are felt.
const AIM: f64 = 0.8;
const LEAST_AIM: f64 = 0.5;
const MOST_AIM: f64 = 0.85;
/// A step counts as a miss from this share of the target on: until a token is read it takes longer
/// than its step.
const MISS: f64 = 0.9;
/// What the aim is multiplied with after a step that missed the target, and after one that kept it:
/// they balance where one step in forty misses.
const AFTER_MISS: f64 = 0.96;
const AFTER_HIT: f64 = 1.001;

#[derive(Debug)]
pub(super) struct Pace {
    target_seconds: f64,
    aim: f64,
    max_rows: u32,
    rows: u32,
}

impl Pace {
    /// `max_rows` is what a step may have in all.
    pub(super) fn new(target: Duration, max_rows: u32) -> Pace {
        Pace {
            target_seconds: target.as_secs_f64(),
            aim: AIM,
            max_rows: max_rows.max(1),
            rows: FIRST_ROWS.min(max_rows.max(1)),
        }
    }

    /// Prompt rows that the next step may have.
    pub(super) fn rows(&self) -> u32 {
        self.rows
    }

    /// Learns from a step that had so many prompt rows; `times` knows it already.
    pub(super) fn observe(&mut self, n_rows: u32, elapsed: Duration, times: &StepTimes) {
        if n_rows > 0 {
            let is_miss = elapsed.as_secs_f64() > MISS * self.target_seconds;
            let change = if is_miss { AFTER_MISS } else { AFTER_HIT };
            self.aim = (self.aim * change).clamp(LEAST_AIM, MOST_AIM);
        }
        let Some(fitting) = times.rows_within(self.aim * self.target_seconds) else {
            return;
        };
        // Not more than twice what was tried last: the line may bend.
        let most = self.max_rows.min(self.rows.saturating_mul(2));
        let least = MIN_ROWS.min(self.max_rows);
        self.rows = fitting.min(most).max(least);
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
        /// What is learned of it.
        times: StepTimes,
    }

    impl Machine {
        fn new(base: f64, per_row: f64) -> Machine {
            Machine { base, per_row, n_steps: 0, times: StepTimes::default() }
        }

        fn step(&mut self, rows: u32) -> Duration {
            self.n_steps += 1;
            let scatter = 0.95 + 0.1 * f64::from(self.n_steps * 7 % 11) / 10.0;
            Duration::from_secs_f64((self.base + self.per_row * f64::from(rows)) * scatter)
        }
    }

    /// Runs steps with prompts at hand; returns the times of the last `n`.
    fn run(pace: &mut Pace, machine: &mut Machine, n_steps: u32, n: usize) -> Vec<Duration> {
        let mut seconds = Vec::new();
        for _ in 0..n_steps {
            let rows = pace.rows();
            let time = machine.step(rows);
            machine.times.observe(rows, time);
            pace.observe(rows, time, &machine.times);
            seconds.push(time);
        }
        seconds.split_off(seconds.len() - n)
    }

    #[test]
    fn steps_keep_the_target_and_use_what_it_allows() {
        let target = Duration::from_millis(100);
        for per_row in [0.0001, 0.0007, 0.003] {
            let mut pace = Pace::new(target, 512);
            let mut machine = Machine::new(0.03, per_row);
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
        let (mut times, mut misses) = (StepTimes::default(), 0);
        for step in 0..1000 {
            let rows = pace.rows();
            let slower = if step % 12 == 0 { 1.4 } else { 1.0 };
            let time = Duration::from_secs_f64((0.03 + 0.0005 * f64::from(rows)) * slower);
            times.observe(rows, time);
            pace.observe(rows, time, &times);
            misses += i32::from(step >= 200 && time > target);
        }
        assert!(misses <= 40, "{misses} of 800 steps missed the target");
        assert!(pace.rows() > 40, "{} rows", pace.rows());
    }

    #[test]
    fn more_streams_mean_fewer_prompt_rows() {
        let target = Duration::from_millis(100);
        let mut pace = Pace::new(target, 512);
        let mut machine = Machine::new(0.02, 0.0005);
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
        let mut machine = Machine::new(0.05, 0.001);
        run(&mut pace, &mut machine, 40, 1);
        assert_eq!(pace.rows(), MIN_ROWS);
        let mut tiny = Pace::new(Duration::from_millis(10), 4);
        run(&mut tiny, &mut machine, 40, 1);
        assert!((1..=4).contains(&tiny.rows()));
    }
}
