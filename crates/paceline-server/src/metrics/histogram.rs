//! Counts by fixed bounds, as Prometheus wants them.

/// Bounds of times to a token.
pub(super) const TOKEN_SECONDS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0,
    2.5, 5.0, 10.0, 20.0, 40.0, 80.0,
];
/// Bounds of times of whole requests.
pub(super) const SECONDS: &[f64] = &[
    0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0,
    60.0, 120.0, 240.0, 480.0, 960.0,
];
pub(super) const TOKEN_COUNTS: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0,
    20_000.0, 50_000.0, 100_000.0,
];
pub(super) const SMALL_COUNTS: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0];

#[derive(Clone, Debug)]
pub(super) struct Histogram {
    bounds: &'static [f64],
    /// One for each bound, and one for what is above all of them.
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    pub(super) fn new(bounds: &'static [f64]) -> Histogram {
        Histogram { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    pub(super) fn record(&mut self, value: f64) {
        let bucket = self.bounds.partition_point(|&bound| bound < value);
        self.counts[bucket] += 1;
        self.sum += value;
    }

    pub(super) fn sum(&self) -> f64 {
        self.sum
    }

    /// (bound, values at or below it); the last bound is infinite.
    pub(super) fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        bounds.zip(self.counts.iter().scan(0, |total, &count| {
            *total += count;
            Some(*total)
        }))
    }
}
