//! How much one key may have at once and per minute.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Caller;
use crate::error::ApiError;

#[derive(Debug)]
pub(super) struct Limiter {
    max_concurrent: Option<u32>,
    tokens_per_minute: Option<u32>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    n_prompts: u32,
    /// Tokens that may be spent now. Falls below zero when answers are counted in the end; the
    /// next request waits until it is positive again.
    balance: f64,
    counted_at: Instant,
}

impl Limiter {
    pub(super) fn new(max_concurrent: Option<u32>, tokens_per_minute: Option<u32>) -> Limiter {
        let balance = tokens_per_minute.map_or(0.0, f64::from);
        let state = State { n_prompts: 0, balance, counted_at: Instant::now() };
        Limiter { max_concurrent, tokens_per_minute, state: Mutex::new(state) }
    }

    pub(super) fn max_concurrent(&self) -> Option<u32> {
        self.max_concurrent
    }

    pub(super) fn check(&self) -> Result<(), ApiError> {
        let mut state = self.lock();
        self.refill(&mut state, Instant::now());
        self.check_prompts(&state, 1)?;
        self.check_tokens(&state)
    }

    pub(super) fn enter(&self, n_prompts: u32, n_tokens: u64) -> Result<(), ApiError> {
        let mut state = self.lock();
        self.refill(&mut state, Instant::now());
        self.check_prompts(&state, n_prompts)?;
        self.check_tokens(&state)?;
        state.n_prompts = state.n_prompts.saturating_add(n_prompts);
        state.balance -= n_tokens as f64;
        Ok(())
    }

    fn leave(&self, n_prompts: u32, n_tokens: u64) {
        let mut state = self.lock();
        state.n_prompts = state.n_prompts.saturating_sub(n_prompts);
        state.balance -= n_tokens as f64;
    }

    /// A minute's tokens may be saved up, not more.
    fn refill(&self, state: &mut State, now: Instant) {
        let per_minute = self.tokens_per_minute.map_or(0.0, f64::from);
        let minutes = now.duration_since(state.counted_at).as_secs_f64() / 60.0;
        state.balance = (state.balance + minutes * per_minute).min(per_minute);
        state.counted_at = now;
    }

    fn check_prompts(&self, state: &State, n_more: u32) -> Result<(), ApiError> {
        let Some(max) = self.max_concurrent else {
            return Ok(());
        };
        // A request that is larger than the limit may run when nothing else does.
        if state.n_prompts.saturating_add(n_more) <= max || state.n_prompts == 0 {
            return Ok(());
        }
        Err(ApiError::Overloaded {
            message: format!(
                "this key has {} prompts under way; it may have {max}",
                state.n_prompts
            ),
            code: "concurrency_limit",
            retry_after: Duration::from_secs(1),
        })
    }

    fn check_tokens(&self, state: &State) -> Result<(), ApiError> {
        let Some(per_minute) = self.tokens_per_minute.filter(|_| state.balance <= 0.0) else {
            return Ok(());
        };
        let seconds = (1.0 - state.balance) * 60.0 / f64::from(per_minute);
        Err(ApiError::Overloaded {
            message: format!("this key has used up its {per_minute} tokens per minute"),
            code: "rate_limit_exceeded",
            retry_after: Duration::from_secs_f64(seconds.min(3600.0)),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a request takes of its caller's limits; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    caller: Arc<Caller>,
    n_prompts: u32,
    /// Generated tokens, to be counted in the end.
    pub(crate) n_tokens: u64,
}

impl Share {
    pub(super) fn new(caller: Arc<Caller>, n_prompts: u32) -> Share {
        Share { caller, n_prompts, n_tokens: 0 }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.caller.limiter.leave(self.n_prompts, self.n_tokens);
    }
}
