//! What a run's outcomes come to. Meanings are those of `vllm bench serve`.

use super::load::Run;
use super::request::Outcome;
use crate::cli::{Goal, Metric};
use crate::cmd::bench::figures::percentile;

/// Latencies of one kind over all requests that succeeded, in ms.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Latencies {
    pub(super) mean: f64,
    pub(super) median: f64,
    pub(super) std: f64,
    /// As asked for: percent and value.
    pub(super) percentiles: Vec<(f64, f64)>,
}

/// The figures of a run.
#[derive(Clone, Debug)]
pub(super) struct Figures {
    pub(super) duration: f64,
    pub(super) n_succeeded: usize,
    pub(super) n_failed: usize,
    pub(super) n_input: u64,
    pub(super) n_output: u64,
    pub(super) requests_per_s: f64,
    /// Of those that kept to all goals, if there are goals.
    pub(super) good_requests_per_s: Option<f64>,
    pub(super) output_per_s: f64,
    pub(super) total_per_s: f64,
    /// In the best second, counted from the start.
    pub(super) peak_output_per_s: f64,
    pub(super) peak_concurrency: usize,
    latencies: [Latencies; 4],
}

const METRICS: [Metric; 4] = [Metric::Ttft, Metric::Tpot, Metric::Itl, Metric::E2el];

impl Figures {
    pub(super) fn new(run: &Run, goals: &[Goal], percentiles: &[f64]) -> Figures {
        let good: Vec<&Outcome> = run.outcomes.iter().filter(|o| o.error.is_none()).collect();
        let duration = run.elapsed.as_secs_f64().max(1e-9);
        let n_input: u64 = good.iter().map(|outcome| u64::from(outcome.n_input)).sum();
        let n_output: u64 = good.iter().map(|outcome| u64::from(outcome.n_output)).sum();
        let n_keeping = good.iter().filter(|outcome| keeps(outcome, goals)).count();
        let latencies = METRICS.map(|metric| {
            let ms: Vec<f64> = good.iter().flat_map(|o| values(o, metric)).collect();
            Latencies::new(&ms, percentiles)
        });
        Figures {
            duration,
            n_succeeded: good.len(),
            n_failed: run.outcomes.len() - good.len(),
            n_input,
            n_output,
            requests_per_s: good.len() as f64 / duration,
            good_requests_per_s: (!goals.is_empty()).then(|| n_keeping as f64 / duration),
            output_per_s: n_output as f64 / duration,
            total_per_s: (n_input + n_output) as f64 / duration,
            peak_output_per_s: peak_output_per_s(&good),
            peak_concurrency: peak_concurrency(&good),
            latencies,
        }
    }

    pub(super) fn latencies(&self, metric: Metric) -> &Latencies {
        let place = METRICS.iter().position(|&known| known == metric);
        &self.latencies[place.unwrap_or(0)]
    }
}

impl Latencies {
    fn new(ms: &[f64], percentiles: &[f64]) -> Latencies {
        let n = ms.len().max(1) as f64;
        let mean = ms.iter().sum::<f64>() / n;
        let variance = ms.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
        Latencies {
            mean,
            median: percentile(ms, 0.5),
            std: variance.sqrt(),
            percentiles: percentiles.iter().map(|&p| (p, percentile(ms, p / 100.0))).collect(),
        }
    }
}

/// A request's latencies of a kind in ms: one, or one for each gap.
fn values(outcome: &Outcome, metric: Metric) -> Vec<f64> {
    let seconds = match metric {
        Metric::Ttft => vec![outcome.ttft().as_secs_f64()],
        Metric::Tpot => outcome.tpot().into_iter().collect(),
        Metric::Itl => outcome.gaps().collect(),
        Metric::E2el => vec![outcome.latency.as_secs_f64()],
    };
    seconds.into_iter().map(|seconds| 1e3 * seconds).collect()
}

/// Whether a request kept to all goals. One without a second token has no pace to miss.
fn keeps(outcome: &Outcome, goals: &[Goal]) -> bool {
    goals.iter().all(|goal| values(outcome, goal.metric).iter().all(|&ms| ms <= goal.ms))
}

/// Tokens of the best second. Where an event has several tokens, each counts for its share.
fn peak_output_per_s(outcomes: &[&Outcome]) -> f64 {
    let mut seconds: Vec<f64> = Vec::new();
    for outcome in outcomes {
        let per_event = f64::from(outcome.n_output) / outcome.texts.len().max(1) as f64;
        for &text in &outcome.texts {
            let second = (outcome.start + text).as_secs() as usize;
            if seconds.len() <= second {
                seconds.resize(second + 1, 0.0);
            }
            seconds[second] += per_event;
        }
    }
    seconds.into_iter().fold(0.0, f64::max)
}

/// The most requests that were under way at one time.
fn peak_concurrency(outcomes: &[&Outcome]) -> usize {
    let starts = outcomes.iter().map(|o| (o.start, 1_isize));
    let ends = outcomes.iter().map(|o| (o.start + o.latency, -1));
    let mut changes: Vec<_> = starts.chain(ends).collect();
    // Who ends as another starts is not under way with it.
    changes.sort();
    let mut n = 0;
    changes.iter().fold(0, |most, (_, change)| {
        n += change;
        most.max(n)
    }) as usize
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn outcome(start: u64, latency: u64, texts: &[u64], n_output: u32) -> Outcome {
        let ms = Duration::from_millis;
        Outcome {
            start: ms(start),
            latency: ms(latency),
            texts: texts.iter().copied().map(ms).collect(),
            n_input: 10,
            n_output,
            error: None,
        }
    }

    fn run() -> Run {
        let failed = Outcome { error: Some("no".to_owned()), ..outcome(0, 1, &[], 0) };
        Run {
            outcomes: vec![
                outcome(0, 1000, &[200, 600, 1000], 3),
                outcome(500, 1000, &[100, 1000], 2),
                outcome(1500, 500, &[500], 1),
                failed,
            ],
            elapsed: Duration::from_secs(2),
        }
    }

    #[test]
    fn figures_of_a_known_run() {
        let goals = [Goal { metric: Metric::Ttft, ms: 200.0 }];
        let figures = Figures::new(&run(), &goals, &[50.0, 100.0]);
        assert_eq!((figures.n_succeeded, figures.n_failed), (3, 1));
        assert_eq!((figures.n_input, figures.n_output), (30, 6));
        assert_eq!((figures.requests_per_s, figures.output_per_s), (1.5, 3.0));
        assert_eq!(figures.total_per_s, 18.0);
        assert_eq!(figures.good_requests_per_s, Some(1.0), "two of three");
        // 200, 600 and 600 ms are in the first second; 1000, 1500 and 2000 are not.
        assert_eq!(figures.peak_output_per_s, 3.0);
        assert_eq!(figures.peak_concurrency, 2);
        let ttft = figures.latencies(Metric::Ttft);
        assert!((ttft.mean - 800.0 / 3.0).abs() < 1e-9);
        assert_eq!(ttft.percentiles, [(50.0, 200.0), (100.0, 500.0)]);
        // (1000 - 200) / 2 and (1000 - 100) / 1: the third has one token alone.
        assert_eq!(figures.latencies(Metric::Tpot).mean, 650.0);
        assert_eq!(figures.latencies(Metric::Itl).median, 400.0);
        assert_eq!(figures.latencies(Metric::E2el).std.round(), 236.0);
    }

    #[test]
    fn goals_must_all_be_kept() {
        let goal = |metric, ms| Goal { metric, ms };
        let request = outcome(0, 1000, &[200, 600, 1000], 3);
        for (goals, is_kept) in [
            (vec![], true),
            (vec![goal(Metric::Ttft, 200.0), goal(Metric::Tpot, 400.0)], true),
            (vec![goal(Metric::Ttft, 200.0), goal(Metric::Tpot, 399.0)], false),
            (vec![goal(Metric::E2el, 999.0)], false),
        ] {
            assert_eq!(keeps(&request, &goals), is_kept, "{goals:?}");
        }
    }

    #[test]
    fn nothing_at_all_gives_zeros() {
        let nothing = Run { outcomes: Vec::new(), elapsed: Duration::ZERO };
        let figures = Figures::new(&nothing, &[], &[99.0]);
        assert_eq!((figures.peak_concurrency, figures.peak_output_per_s), (0, 0.0));
        assert_eq!(figures.latencies(Metric::Itl).percentiles, [(99.0, 0.0)]);
    }
}
