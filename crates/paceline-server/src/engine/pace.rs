//! The pace of streams while prompts are computed (`--target-itl-ms`).
//!
//! The next step gets as many prompt rows as fit the target, by what is known of
//! [steps' times](StepTimes). Where none fit, prompts wait, but have a step now and then: few
//! tokens are late for it. Where streams alone miss the target, it would not be kept by waiting.

use std::time::Duration;

use super::times::StepTimes;

/// Where none fit, prompts have so many rows, once in so many steps.
const LEAST_ROWS: u32 = 8;
const PATIENCE: u32 = 48;
/// What is tried before anything is known.
const FIRST_ROWS: u32 = 32;
/// The share of the target to aim at, at first, at least and at most: steps scatter, and it is
/// their slow ones that are felt.
const AIM: f64 = 0.85;
const LEAST_AIM: f64 = 0.5;
const MOST_AIM: f64 = 0.92;
/// A step counts as a miss from this share of the target on: until a token is read it takes longer
/// than its step.
const MISS: f64 = 0.94;
/// What the aim is multiplied with after a step that missed the target, and after one that kept it:
/// they balance where one step in thirty misses.
const AFTER_MISS: f64 = 0.97;
const AFTER_HIT: f64 = 1.001;

#[derive(Debug)]
pub(super) struct Pace {
    target_seconds: f64,
    aim: f64,
    max_rows: u32,
    rows: u32,
    /// Steps since prompts had rows.
    n_waited: u32,
}

impl Pace {
    /// `max_rows` is what a step may have in all.
    pub(super) fn new(target: Duration, max_rows: u32) -> Pace {
        Pace {
            target_seconds: target.as_secs_f64(),
            aim: AIM,
            max_rows: max_rows.max(1),
            rows: FIRST_ROWS.min(max_rows.max(1)),
            n_waited: 0,
        }
    }

    /// Prompt rows that the next step may have.
    pub(super) fn rows(&self) -> u32 {
        if self.is_overdue() { LEAST_ROWS.min(self.max_rows) } else { self.rows }
    }

    /// Whether steps stay short enough with guesses at next tokens, which may double them.
    pub(super) fn has_time_for_drafts(&self, times: &StepTimes) -> bool {
        times.seconds_without_prompts() < 0.5 * self.aim * self.target_seconds
    }

    /// Prompts have a step whatever it costs.
    fn is_overdue(&self) -> bool {
        self.rows == 0 && self.n_waited >= PATIENCE
    }

    /// Learns from a step that had so many prompt rows; `times` knows it already.
    pub(super) fn observe(&mut self, n_rows: u32, elapsed: Duration, times: &StepTimes) {
        let is_miss = elapsed.as_secs_f64() > MISS * self.target_seconds;
        // A step without prompts says that the aim is too low only if that is why it had none. What
        // misses by itself, or for the sake of prompts that have waited, says nothing of it.
        let change = match n_rows {
            0 if self.rows == 0 && !is_miss => AFTER_HIT,
            1.. if !is_miss => AFTER_HIT,
            1.. if !self.is_overdue() => AFTER_MISS,
            _ => 1.0,
        };
        self.aim = (self.aim * change).clamp(LEAST_AIM, MOST_AIM);
        self.n_waited = if n_rows > 0 { 0 } else { self.n_waited.saturating_add(1) };
        let Some(fitting) = times.rows_within(self.aim * self.target_seconds) else {
            return;
        };
        // Not more than twice what was tried last: the line may bend.
        let most = self.rows.saturating_mul(2).max(LEAST_ROWS);
        let is_in_vain = times.seconds_without_prompts() > MISS * self.target_seconds;
        let least = if is_in_vain { LEAST_ROWS } else { 0 };
        self.rows = fitting.min(most).max(least).min(self.max_rows);
    }
}

#[cfg(test)]
mod tests {
    use super::super::times::Prompts;
    use super::*;

    /// A machine whose steps scatter by a tenth, always in the same way.
    struct Machine {
        base: f64,
        per_row: f64,
        /// Seconds by which a row is dearer for each token before it.
        per_pair: f64,
        n_steps: u32,
        /// Tokens of the prompt so far.
        depth: u32,
        /// What is learned of it.
        times: StepTimes,
    }

    impl Machine {
        fn new(base: f64, per_row: f64) -> Machine {
            let times = StepTimes::default();
            Machine { base, per_row, per_pair: 0.0, n_steps: 0, depth: 0, times }
        }

        fn step(&mut self, n_rows: u32) -> Duration {
            self.n_steps += 1;
            let scatter = 0.95 + 0.1 * f64::from(self.n_steps * 7 % 11) / 10.0;
            let rows = f64::from(n_rows);
            // To fetch the tokens takes as long as to see them from some rows.
            let seen = if n_rows > 0 { rows + 8.0 } else { 0.0 };
            let pairs = seen * f64::from(self.depth) * self.per_pair;
            let seconds = (self.base + self.per_row * rows + pairs) * scatter;
            let prompts = Prompts { n_rows, depth: u64::from(self.depth) };
            let elapsed = Duration::from_secs_f64(seconds);
            self.times.observe(prompts, elapsed);
            self.depth += n_rows;
            self.times.expect(u64::from(self.depth));
            elapsed
        }
    }

    /// Runs steps with prompts at hand; returns the times of the last `n`.
    fn run(pace: &mut Pace, machine: &mut Machine, n_steps: u32, n: usize) -> Vec<Duration> {
        let mut seconds = Vec::new();
        for _ in 0..n_steps {
            let rows = pace.rows();
            let time = machine.step(rows);
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
            times.observe(Prompts { n_rows: rows, depth: 0 }, time);
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

    /// A prompt of 6,000 tokens beside streams on the machine that docs/server.md has figures of,
    /// which is slower by half every now and then.
    #[test]
    fn a_deep_prompt_keeps_the_target() {
        let target = Duration::from_millis(30);
        for slower in [1.0, 1.2, 1.5] {
            let mut pace = Pace::new(target, 512);
            let mut machine = Machine::new(0.013, 0.00028);
            machine.per_pair = 0.00000012;
            let (mut n_steps, mut n_misses) = (0, 0);
            while machine.depth < 6000 {
                let is_slow = n_steps % 100 > 70;
                machine.base = if is_slow { slower * 0.013 } else { 0.013 };
                let time = run(&mut pace, &mut machine, 1, 1)[0];
                n_steps += 1;
                n_misses += u32::from(time > target);
            }
            assert!(n_misses * 20 < n_steps, "{slower}: {n_misses} of {n_steps} steps");
            assert!(n_steps < 1000, "{slower}: {n_steps} steps");
        }
    }

    #[test]
    fn a_short_prompt_does_not_wait_for_what_a_deep_one_took() {
        let mut pace = Pace::new(Duration::from_millis(30), 512);
        let mut machine = Machine::new(0.02, 0.00028);
        machine.per_pair = 0.0000004;
        while machine.depth < 6000 && pace.rows() > 0 {
            run(&mut pace, &mut machine, 1, 1);
        }
        assert_eq!(pace.rows(), 0, "after {} tokens", machine.depth);
        machine.depth = 0;
        machine.times.expect(0);
        run(&mut pace, &mut machine, 8, 1);
        assert!(machine.depth > 8, "{} rows in 8 steps", machine.depth);
    }

    #[test]
    fn prompts_go_on_now_and_then_where_they_do_not_fit() {
        for max_rows in [512, 4] {
            let mut pace = Pace::new(Duration::from_millis(60), max_rows);
            let mut machine = Machine::new(0.055, 0.01);
            run(&mut pace, &mut machine, 40, 1);
            let before = machine.depth;
            run(&mut pace, &mut machine, 2 * (PATIENCE + 1), 1);
            assert_eq!(machine.depth - before, 2 * LEAST_ROWS.min(max_rows));
        }
    }

    #[test]
    fn prompts_go_on_when_streams_alone_are_too_slow() {
        let mut pace = Pace::new(Duration::from_millis(10), 512);
        let mut machine = Machine::new(0.05, 0.001);
        run(&mut pace, &mut machine, 40, 1);
        assert_eq!(pace.rows(), LEAST_ROWS);
        let mut tiny = Pace::new(Duration::from_millis(10), 4);
        run(&mut tiny, &mut machine, 40, 1);
        assert!((1..=4).contains(&tiny.rows()));
    }
}
