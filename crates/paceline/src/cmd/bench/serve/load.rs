//! Sends requests at their times, with so many under way at most.

use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use paceline_cpu::quant::Rng;
use paceline_server::client::Client;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::request::{Outcome, Prepared};

/// How a run goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// Requests a second; infinity is all at once.
    pub(super) rate: f64,
    pub(super) max_concurrency: Option<u32>,
    pub(super) timeout: Duration,
    pub(super) seed: u64,
}

/// What came of a run.
#[derive(Debug)]
pub(super) struct Run {
    /// In the order of the requests.
    pub(super) outcomes: Vec<Outcome>,
    pub(super) elapsed: Duration,
}

/// Sends all requests and waits for their answers.
pub(super) async fn run(
    client: &Client,
    requests: &[Arc<Prepared>],
    plan: Plan,
    bar: &ProgressBar,
) -> Run {
    let places = plan.max_concurrency.map_or(Semaphore::MAX_PERMITS, |n| n as usize);
    let places = Arc::new(Semaphore::new(places));
    let arrivals = arrivals(requests.len(), plan.rate, plan.seed);
    let mut tasks = JoinSet::new();
    let origin = Instant::now();
    for (place, (request, arrival)) in requests.iter().zip(arrivals).enumerate() {
        if !arrival.is_zero() {
            tokio::time::sleep_until((origin + arrival).into()).await;
        }
        // The semaphore is never closed.
        let permit = Arc::clone(&places).acquire_owned().await;
        let (client, request, bar) = (client.clone(), Arc::clone(request), bar.clone());
        tasks.spawn(async move {
            let outcome = request.send(&client, plan.timeout, origin).await;
            drop(permit);
            bar.inc(1);
            (place, outcome)
        });
    }
    let mut outcomes = vec![Outcome::default(); requests.len()];
    while let Some(ended) = tasks.join_next().await {
        // A task that panicked would have ended the process; its outcome stays empty.
        if let Ok((place, outcome)) = ended {
            outcomes[place] = outcome;
        }
    }
    Run { outcomes, elapsed: origin.elapsed() }
}

/// When each request comes, from the start: independent exponential gaps, or all at once.
fn arrivals(n: usize, rate: f64, seed: u64) -> Vec<Duration> {
    let mut rng = Rng::new(seed ^ 0x6172_7269_7661_6c73);
    let mut at = 0.0;
    let arrival = |_| {
        if rate.is_finite() {
            // One less the uniform number, which may be 0 but never 1.
            at -= f64::from(1.0 - rng.unit()).ln() / rate;
        }
        Duration::from_secs_f64(at)
    };
    (0..n).map(arrival).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_have_their_rate_and_their_seed() {
        assert!(arrivals(9, f64::INFINITY, 1).iter().all(Duration::is_zero));
        let some = arrivals(4000, 50.0, 1);
        assert!(some.is_sorted() && some == arrivals(4000, 50.0, 1));
        assert_ne!(some, arrivals(4000, 50.0, 2));
        let seconds = some.last().unwrap().as_secs_f64();
        assert!((76.0..84.0).contains(&seconds), "{seconds}");
    }
}
