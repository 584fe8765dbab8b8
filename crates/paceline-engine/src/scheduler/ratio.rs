//! How much of `max_tokens` to expect a sequence to use.

use crate::config::OutputRatio;

/// Added on a preemption when what was observed does not ask for more.
const STEP_UP: f64 = 0.05;

/// Starts high, decays every step, is raised when a preemption shows it was too low.
#[derive(Debug)]
pub(super) struct LearnedRatio {
    current: f64,
    least: f64,
    decay: f64,
}

impl LearnedRatio {
    pub(super) fn new(config: OutputRatio) -> Self {
        let OutputRatio { initial, least, n_decay_steps } = config;
        let decay = (initial - least) / f64::from(n_decay_steps.max(1));
        Self { current: initial, least, decay }
    }

    pub(super) fn decay(&mut self) {
        self.current = (self.current - self.decay).max(self.least);
    }

    /// `observed` is the share that the running sequences have used so far.
    pub(super) fn raise(&mut self, observed: f64) {
        self.current = (self.current + STEP_UP).max(observed).min(1.0);
    }

    /// Tokens expected of `n_tokens` allowed.
    pub(super) fn expected(&self, n_tokens: usize) -> usize {
        (n_tokens as f64 * self.current).ceil() as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decays_to_the_least_and_rises_to_one() {
        let config = OutputRatio { initial: 0.7, least: 0.1, n_decay_steps: 10 };
        let mut ratio = LearnedRatio::new(config);
        assert_eq!(ratio.expected(100), 70);
        for _ in 0..20 {
            ratio.decay();
        }
        assert_eq!(ratio.expected(100), 10);
        ratio.raise(0.0);
        assert_eq!(ratio.expected(100), 16);
        ratio.raise(0.5);
        assert_eq!(ratio.expected(100), 50);
        ratio.raise(3.0);
        assert_eq!(ratio.expected(100), 100);
    }
}
