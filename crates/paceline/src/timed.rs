//! How long the forward pass takes, apart from everything around it.

use std::time::{Duration, Instant};

use paceline_engine::{Backend, BackendError, BackendLimits, Batch, Sampled};

/// A backend that adds up the time spent in it.
#[derive(Debug)]
pub(crate) struct Timed<B> {
    inner: B,
    elapsed: Duration,
}

impl<B> Timed<B> {
    pub(crate) fn new(inner: B) -> Timed<B> {
        Timed { inner, elapsed: Duration::ZERO }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.elapsed
    }

    fn timed<T>(&mut self, call: impl FnOnce(&mut B) -> T) -> T {
        let start = Instant::now();
        let result = call(&mut self.inner);
        self.elapsed += start.elapsed();
        result
    }
}

impl<B: Backend> Backend for Timed<B> {
    fn limits(&self) -> BackendLimits {
        self.inner.limits()
    }

    fn submit(&mut self, batch: &Batch) -> Result<(), BackendError> {
        self.timed(|inner| inner.submit(batch))
    }

    fn collect(&mut self, results: &mut Vec<Sampled>) -> Result<(), BackendError> {
        self.timed(|inner| inner.collect(results))
    }

    fn prepare(&mut self) -> bool {
        self.inner.prepare()
    }
}
