//! What the engine's thread knows of a request beside its tokens: whom to tell, and its times.

use std::sync::Arc;
use std::time::{Duration, Instant};

use paceline_engine::{FinishReason, SamplingParams};
use tokio::sync::mpsc;

use super::{Ended, Label, Message, News, Parcel, Permit};
use crate::metrics::{Finished, Times};

/// A request in the engine.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) place: u32,
    pub(super) tenant: u64,
    pub(super) sink: mpsc::Sender<Parcel>,
    /// News that wait for the last, where the reader does.
    pub(super) held: Option<Vec<News>>,
    pub(super) ended: Arc<Ended>,
    /// Its place in the queue, until it starts.
    pub(super) permit: Option<Permit>,
    pub(super) label: Arc<Label>,
    pub(super) arrival: Instant,
    pub(super) started: Option<Instant>,
    pub(super) first_token: Option<Instant>,
    /// When each sequence said something last.
    pub(super) last_token: Vec<Option<Instant>>,
    pub(super) n_running: u32,
    pub(super) n_prompt: u32,
    pub(super) n_cached: u32,
    pub(super) n_generated: u32,
    pub(super) params: Arc<SamplingParams>,
}

impl Live {
    pub(super) fn tell(&mut self, news: News) {
        match &mut self.held {
            Some(held) => held.push(news),
            None => self.send(Parcel::One(Message { prompt: self.place, news })),
        }
    }

    /// Tells the end, and before it all that was held.
    pub(super) fn tell_last(mut self, news: News) {
        let prompt = self.place;
        match self.held.take() {
            Some(mut held) => {
                held.push(news);
                self.send(Parcel::Whole { prompt, news: held });
            }
            None => self.send(Parcel::One(Message { prompt, news })),
        }
    }

    /// A reader that has gone misses nothing. A full channel cannot be (see the module above), and
    /// if it were, its request would be the one to pay.
    fn send(&self, parcel: Parcel) {
        let _ = self.sink.try_send(parcel);
    }

    pub(super) fn start(&mut self, now: Instant, n_cached: u32) {
        self.permit = None;
        self.started = Some(now);
        self.n_cached = n_cached;
    }

    /// Notes a token; returns the time since the one before it.
    pub(super) fn token(&mut self, index: u32, now: Instant) -> Option<Duration> {
        self.n_generated += 1;
        self.first_token.get_or_insert(now);
        let last = self.last_token.get_mut(index as usize)?;
        last.replace(now).map(|last| now.duration_since(last))
    }

    /// What the metrics and the log get to hear at the end.
    pub(super) fn finished(&self, reason: &FinishReason, now: Instant) -> Finished {
        let started = self.started.unwrap_or(now);
        let first_token = self.first_token.unwrap_or(now);
        Finished {
            reason: reason_name(reason),
            n_prompt: self.n_prompt,
            n_cached: self.n_cached,
            n_generated: self.n_generated,
            n: self.last_token.len() as u32,
            max_tokens: self.params.max_tokens,
            has_spoken: self.first_token.is_some(),
            times: Times {
                queue: started.duration_since(self.arrival),
                prefill: first_token.duration_since(started),
                decode: now.duration_since(first_token),
                total: now.duration_since(self.arrival),
            },
        }
    }
}

pub(super) fn reason_name(reason: &FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::Cancelled => "abort",
        FinishReason::Deadline => "timeout",
        FinishReason::Preempted | FinishReason::Failed(_) | FinishReason::Backend(_) => "error",
    }
}
