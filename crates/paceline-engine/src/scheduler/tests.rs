//! Scenarios, each small enough to be worked out by hand.

mod constraints;
mod door;
mod drafts;
mod endings;
mod look;
mod memory;
mod order;
mod share;
mod tenants;

use std::sync::Arc;

use crate::backend::{Backend, BackendError, BackendLimits, Sampled};
use crate::batch::Batch;
use crate::config::{Batching, ConfigError, EngineConfig, OutputRatio};
use crate::engine::{Engine, StepOutcome};
use crate::fake::{FakeBackend, FakeFailures};
use crate::ids::{RequestId, Token};
use crate::request::{Event, EventKind, FinishReason, Priority, Request, SamplingParams};
use crate::scheduler::{Preemption, Resource, StepMix, SubmitError};
use crate::sequence::SequenceState;

const LIMITS: BackendLimits =
    BackendLimits { n_blocks: 64, block_size: 4, max_rows: 32, max_model_len: 128, n_vocab: 100 };

fn engine(limits: BackendLimits, config: EngineConfig) -> Engine<FakeBackend> {
    Engine::new(FakeBackend::new(limits, FakeFailures::default()), config).unwrap()
}

fn params(max_tokens: u32) -> SamplingParams {
    SamplingParams { max_tokens, ..SamplingParams::greedy() }
}

/// A prompt of its own for each `id`.
fn prompt(id: u32, len: u32) -> Vec<Token> {
    (0..len).map(|i| (id * 31 + i * 7) % 100).collect()
}

fn request(prompt: Vec<Token>, params: SamplingParams) -> Request {
    Request {
        prompt,
        params: Arc::new(params),
        priority: Priority::Normal,
        deadline_ns: None,
        tenant: 0,
        constraint: None,
    }
}

/// Rows and sequences of one step, with its events; (0, 0) when idle.
fn step(engine: &mut Engine<FakeBackend>, now_ns: u64) -> ((u32, u32), Vec<Event>) {
    let mut events = Vec::new();
    let outcome = engine.step(now_ns, &mut events);
    engine.check().unwrap();
    assert_eq!(engine.backend().violations(), &[] as &[String]);
    match outcome {
        StepOutcome::Ran { n_rows, n_seqs } => ((n_rows, n_seqs), events),
        _ => ((0, 0), events),
    }
}

fn run_all(engine: &mut Engine<FakeBackend>) -> Vec<Event> {
    let mut all = Vec::new();
    while engine.has_work() {
        all.append(&mut step(engine, 0).1);
    }
    all
}

fn finishes(events: &[Event]) -> Vec<(RequestId, u32, FinishReason)> {
    let finished = events.iter().filter_map(|event| match &event.kind {
        EventKind::Finished(reason) => Some((event.request, event.index, reason.clone())),
        _ => None,
    });
    finished.collect()
}

fn tokens_of(events: &[Event], id: RequestId, index: u32) -> Vec<Token> {
    let own = events.iter().filter(|event| event.request == id && event.index == index);
    let tokens = own.filter_map(|event| match event.kind {
        EventKind::Token { token, .. } => Some(token),
        _ => None,
    });
    tokens.collect()
}

fn is_running(engine: &Engine<FakeBackend>, id: RequestId) -> bool {
    engine.view(id, 0).is_some_and(|view| view.state == SequenceState::Running)
}
