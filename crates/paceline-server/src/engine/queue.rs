//! The queue's bound: how many requests, and how many of their prompt tokens, may wait.
//!
//! The engine keeps the queue itself; this counts places in it, so that a request that finds none
//! is turned away at once, without waiting for the engine's thread.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::ApiError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueLimits {
    pub(crate) max_requests: u32,
    /// One prompt may always wait.
    pub(crate) max_tokens: u64,
}

#[derive(Debug)]
pub(crate) struct Queue {
    limits: QueueLimits,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    n_requests: u32,
    n_tokens: u64,
    /// Seconds between two requests leaving the queue, lately.
    seconds_per_request: f64,
    last_left: Instant,
}

/// A place in the queue. It is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    queue: Arc<Queue>,
    n_tokens: u64,
}

impl Queue {
    pub(crate) fn new(limits: QueueLimits) -> Arc<Queue> {
        let state = State {
            n_requests: 0,
            n_tokens: 0,
            seconds_per_request: 0.1,
            last_left: Instant::now(),
        };
        Arc::new(Queue { limits, state: Mutex::new(state) })
    }

    pub(crate) fn limits(&self) -> QueueLimits {
        self.limits
    }

    /// Places for prompts of these lengths: for all or for none.
    pub(crate) fn enter(
        self: &Arc<Queue>,
        prompts: impl Iterator<Item = u64> + Clone,
    ) -> Result<Vec<Permit>, ApiError> {
        let (n_requests, n_tokens) = prompts.clone().fold((0u32, 0u64), |(n, tokens), len| {
            (n.saturating_add(1), tokens.saturating_add(len))
        });
        let mut state = self.lock();
        if !self.has_room(&state, n_requests, n_tokens) {
            return Err(overloaded(&state));
        }
        state.n_requests += n_requests;
        state.n_tokens += n_tokens;
        drop(state);
        Ok(prompts.map(|n_tokens| Permit { queue: Arc::clone(self), n_tokens }).collect())
    }

    /// Whether another request would be turned away whatever its size: known before it is parsed.
    pub(crate) fn check_room(&self) -> Result<(), ApiError> {
        let state = self.lock();
        if self.has_room(&state, 1, 1) { Ok(()) } else { Err(overloaded(&state)) }
    }

    /// The answer to whoever finds no room.
    pub(crate) fn full(&self) -> ApiError {
        overloaded(&self.lock())
    }

    fn has_room(&self, state: &State, n_requests: u32, n_tokens: u64) -> bool {
        let fits_tokens = state.n_tokens.saturating_add(n_tokens) <= self.limits.max_tokens;
        state.n_requests.saturating_add(n_requests) <= self.limits.max_requests
            && (fits_tokens || state.n_requests == 0)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        state.n_requests = state.n_requests.saturating_sub(1);
        state.n_tokens = state.n_tokens.saturating_sub(self.n_tokens);
        let now = Instant::now();
        let seconds = now.duration_since(state.last_left).as_secs_f64().min(10.0);
        state.last_left = now;
        state.seconds_per_request += 0.05 * (seconds - state.seconds_per_request);
    }
}

/// The advice to come back when about half of what waits now will have left.
fn overloaded(state: &State) -> ApiError {
    let seconds = state.seconds_per_request * f64::from(state.n_requests) / 2.0;
    let (n_requests, n_tokens) = (state.n_requests, state.n_tokens);
    ApiError::Overloaded {
        message: format!(
            "the queue is full: {n_requests} requests with {n_tokens} prompt tokens are waiting; \
             try again later"
        ),
        code: "queue_full",
        retry_after: Duration::from_secs_f64(seconds.clamp(1.0, 60.0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(max_requests: u32, max_tokens: u64) -> Arc<Queue> {
        Queue::new(QueueLimits { max_requests, max_tokens })
    }

    #[test]
    fn places_are_given_out_and_come_back() {
        let queue = queue(3, 100);
        let first = queue.enter([40, 40].into_iter()).unwrap();
        assert!(queue.enter([1, 1].into_iter()).is_err(), "four requests");
        assert!(queue.enter([21].into_iter()).is_err(), "101 tokens");
        let second = queue.enter([20].into_iter()).unwrap();
        assert!(queue.check_room().is_err());
        drop(first);
        assert!(queue.check_room().is_ok());
        drop(second);
        let state = queue.lock();
        assert_eq!((state.n_requests, state.n_tokens), (0, 0));
    }

    #[test]
    fn a_prompt_longer_than_the_queue_may_wait_alone() {
        let queue = queue(3, 100);
        let long = queue.enter([500].into_iter()).unwrap();
        assert!(queue.enter([1].into_iter()).is_err());
        drop(long);
        assert!(queue.enter([1].into_iter()).is_ok());
    }

    #[test]
    fn the_advice_is_a_time_between_a_second_and_a_minute() {
        let queue = queue(1, 100);
        let _held = queue.enter([1].into_iter()).unwrap();
        let Err(ApiError::Overloaded { retry_after, .. }) = queue.check_room() else {
            panic!("there is no room");
        };
        assert!((1..=60).contains(&retry_after.as_secs()), "{retry_after:?}");
    }
}
