//! Scenarios, each small enough to be worked out by hand.

use std::sync::Arc;

use crate::backend::{Backend, BackendError, BackendLimits, Sampled};
use crate::batch::Batch;
use crate::config::{Batching, ConfigError, EngineConfig, OutputRatio};
use crate::engine::{Engine, StepOutcome};
use crate::fake::{FakeBackend, FakeFailures};
use crate::ids::{RequestId, Token};
use crate::request::{Event, EventKind, FinishReason, Priority, Request, SamplingParams};
use crate::scheduler::{Preemption, Resource, SubmitError};
use crate::sequence::SequenceState;

const LIMITS: BackendLimits = BackendLimits {
    n_blocks: 64,
    block_size: 4,
    max_rows: 32,
    max_model_len: 128,
    n_vocab: 100,
};

fn engine(limits: BackendLimits, config: EngineConfig) -> Engine<FakeBackend> {
    Engine::new(FakeBackend::new(limits, FakeFailures::default()), config).unwrap()
}

fn params(max_tokens: u32) -> SamplingParams {
    SamplingParams {
        max_tokens,
        ..SamplingParams::greedy()
    }
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
    let own = events
        .iter()
        .filter(|event| event.request == id && event.index == index);
    let tokens = own.filter_map(|event| match event.kind {
        EventKind::Token { token, .. } => Some(token),
        _ => None,
    });
    tokens.collect()
}

fn is_running(engine: &Engine<FakeBackend>, id: RequestId) -> bool {
    engine
        .view(id, 0)
        .is_some_and(|view| view.state == SequenceState::Running)
}

#[test]
fn running_come_first_and_prompts_fill_the_rest_in_chunks() {
    let config = EngineConfig {
        max_num_batched_tokens: 10,
        ..EngineConfig::default()
    };
    let mut engine = engine(LIMITS, config);
    engine.submit(request(prompt(1, 4), params(8)), 0).unwrap();
    let long = engine.submit(request(prompt(2, 20), params(8)), 0).unwrap();
    assert_eq!(step(&mut engine, 0).0, (10, 2));
    assert_eq!(engine.view(long, 0).unwrap().n_computed, 6);
    assert_eq!(step(&mut engine, 0).0, (10, 2));
    assert_eq!(engine.view(long, 0).unwrap().n_computed, 15);
    let (rows, events) = step(&mut engine, 0);
    assert_eq!(rows, (6, 2));
    assert_eq!(tokens_of(&events, long, 0).len(), 1);
    assert_eq!(step(&mut engine, 0).0, (2, 2));
}

#[test]
fn one_prompt_cannot_take_a_whole_step() {
    let config = EngineConfig {
        long_prefill_token_threshold: 3,
        ..EngineConfig::default()
    };
    let mut engine = engine(LIMITS, config);
    for id in 0..4 {
        engine.submit(request(prompt(id, 9), params(1)), 0).unwrap();
    }
    for _ in 0..3 {
        assert_eq!(step(&mut engine, 0).0, (12, 4));
    }
    assert_eq!(step(&mut engine, 0).0, (0, 0));
}

#[test]
fn classes_are_served_in_order_and_first_come_first_served_inside() {
    let config = EngineConfig {
        max_num_seqs: 1,
        ..EngineConfig::default()
    };
    let mut engine = engine(LIMITS, config);
    let order = [
        Priority::Batch,
        Priority::Normal,
        Priority::High,
        Priority::Normal,
        Priority::Low,
    ];
    let ids: Vec<RequestId> = (0..)
        .zip(order)
        .map(|(i, priority)| {
            let request = Request {
                priority,
                ..request(prompt(i, 3), params(1))
            };
            engine.submit(request, 0).unwrap()
        })
        .collect();
    let finished = finishes(&run_all(&mut engine));
    let served: Vec<RequestId> = finished.iter().map(|(id, ..)| *id).collect();
    assert_eq!(served, [ids[2], ids[1], ids[3], ids[4], ids[0]]);
}

#[test]
fn static_batching_runs_a_group_to_completion() {
    let batching = Batching::Static { max_batch_size: 2 };
    let mut engine = engine(
        LIMITS,
        EngineConfig {
            batching,
            ..EngineConfig::default()
        },
    );
    for (id, max_tokens) in [(0, 1), (1, 4), (2, 1)] {
        engine
            .submit(request(prompt(id, 3), params(max_tokens)), 0)
            .unwrap();
    }
    let sizes: Vec<u32> = (0..6).map(|_| step(&mut engine, 0).0.1).collect();
    assert_eq!(sizes, [2, 1, 1, 1, 1, 0]);
}

#[test]
fn a_group_is_closed_even_to_higher_priorities() {
    let batching = Batching::Static { max_batch_size: 4 };
    let config = EngineConfig {
        batching,
        max_num_seqs: 1,
        ..EngineConfig::default()
    };
    let mut engine = engine(LIMITS, config);
    let first = engine.submit(request(prompt(0, 3), params(2)), 0).unwrap();
    let second = engine.submit(request(prompt(1, 3), params(1)), 0).unwrap();
    let mut events = step(&mut engine, 0).1;
    let late = Request {
        priority: Priority::High,
        ..request(prompt(2, 3), params(1))
    };
    let late = engine.submit(late, 0).unwrap();
    events.append(&mut run_all(&mut engine));
    let order: Vec<RequestId> = finishes(&events).iter().map(|(id, ..)| *id).collect();
    assert_eq!(order, [first, second, late]);
}

#[test]
fn a_window_waits_for_its_time_or_its_number() {
    let batching = Batching::Window {
        max_batch_size: 3,
        window_ns: 100,
    };
    let mut engine = engine(
        LIMITS,
        EngineConfig {
            batching,
            ..EngineConfig::default()
        },
    );
    engine.submit(request(prompt(0, 3), params(1)), 50).unwrap();
    assert_eq!(step(&mut engine, 60).0, (0, 0));
    assert_eq!(engine.next_wakeup_ns(), Some(150));
    engine
        .submit(request(prompt(1, 3), params(1)), 100)
        .unwrap();
    assert_eq!(step(&mut engine, 149).0, (0, 0));
    assert_eq!(step(&mut engine, 150).0.1, 2);
    for id in 2..5 {
        engine
            .submit(request(prompt(id, 3), params(1)), 200)
            .unwrap();
    }
    assert_eq!(step(&mut engine, 200).0.1, 3);
    assert_eq!(engine.next_wakeup_ns(), None);
}

/// Four blocks, two sequences that come to need three each.
fn tight(max_preemptions: u32) -> Engine<FakeBackend> {
    let limits = BackendLimits {
        n_blocks: 4,
        ..LIMITS
    };
    let output_ratio = OutputRatio {
        initial: 0.0,
        least: 0.0,
        n_decay_steps: 1,
    };
    let config = EngineConfig {
        output_ratio,
        max_preemptions,
        watermark_permille: 0,
        prefix_cache: false,
        ..EngineConfig::default()
    };
    engine(limits, config)
}

#[test]
fn the_youngest_of_the_lowest_class_gives_way() {
    let mut engine = tight(4);
    let low = Request {
        priority: Priority::Low,
        ..request(prompt(0, 6), params(6))
    };
    let low = engine.submit(low, 0).unwrap();
    let normal = engine.submit(request(prompt(1, 6), params(6)), 0).unwrap();
    for _ in 0..3 {
        step(&mut engine, 0);
    }
    assert!(is_running(&engine, low) && is_running(&engine, normal));
    step(&mut engine, 0);
    assert!(!is_running(&engine, low) && is_running(&engine, normal));
    let preemption = Preemption {
        request: low,
        index: 0,
        n_tokens_lost: 8,
        n_preemptions: 1,
    };
    assert_eq!(engine.take_preemptions().collect::<Vec<_>>(), [preemption]);
    let view = engine.view(low, 0).unwrap();
    assert_eq!((view.n_computed, view.n_generated), (0, 3));
    let finished = finishes(&run_all(&mut engine));
    assert_eq!(
        finished,
        [
            (normal, 0, FinishReason::Length),
            (low, 0, FinishReason::Length)
        ]
    );
}

#[test]
fn the_preempted_return_before_the_waiting() {
    let mut engine = tight(4);
    let first = engine.submit(request(prompt(0, 6), params(6)), 0).unwrap();
    let second = engine.submit(request(prompt(1, 6), params(6)), 0).unwrap();
    let third = engine.submit(request(prompt(2, 6), params(1)), 0).unwrap();
    let finished = finishes(&run_all(&mut engine));
    assert!(engine.stats().n_preemptions > 0);
    let order: Vec<RequestId> = finished.iter().map(|(id, ..)| *id).collect();
    assert_eq!(order, [first, second, third]);
}

/// Many sequences that all outgrow the pool: each is preempted at most once, none is given up.
#[test]
fn after_the_cap_a_sequence_is_left_alone() {
    let mut engine = tight(1);
    for id in 0..6 {
        engine
            .submit(request(prompt(id, 2), params(14)), 0)
            .unwrap();
    }
    let finished = finishes(&run_all(&mut engine));
    assert_eq!(finished.len(), 6);
    assert!(
        finished
            .iter()
            .all(|(.., reason)| *reason == FinishReason::Length)
    );
    let preemptions: Vec<Preemption> = engine.take_preemptions().collect();
    assert!(!preemptions.is_empty());
    assert!(
        preemptions
            .iter()
            .all(|preemption| preemption.n_preemptions == 1)
    );
}

#[test]
fn full_expectation_never_preempts() {
    let limits = BackendLimits {
        n_blocks: 8,
        ..LIMITS
    };
    let output_ratio = OutputRatio {
        initial: 1.0,
        least: 1.0,
        n_decay_steps: 1,
    };
    let mut engine = engine(
        limits,
        EngineConfig {
            output_ratio,
            ..EngineConfig::default()
        },
    );
    for id in 0..10 {
        engine.submit(request(prompt(id, 3), params(9)), 0).unwrap();
    }
    assert_eq!(finishes(&run_all(&mut engine)).len(), 10);
    assert_eq!(engine.stats().n_preemptions, 0);
}

#[test]
fn a_prefix_is_computed_once() {
    let mut engine = engine(LIMITS, EngineConfig::default());
    let shared = prompt(0, 13);
    engine
        .submit(request(shared.clone(), params(1)), 0)
        .unwrap();
    assert_eq!(step(&mut engine, 0).0, (13, 1));
    engine
        .submit(request(shared.clone(), params(1)), 0)
        .unwrap();
    assert_eq!(step(&mut engine, 0).0, (1, 1));
    // Twelve tokens are three full blocks, but the last token's logits are needed.
    engine
        .submit(request(shared[..12].to_vec(), params(1)), 0)
        .unwrap();
    assert_eq!(step(&mut engine, 0).0, (4, 1));
    let other = Request {
        tenant: 1,
        ..request(shared.clone(), params(1))
    };
    engine.submit(other, 0).unwrap();
    assert_eq!(step(&mut engine, 0).0, (13, 1));
    let stats = engine.stats();
    assert_eq!(stats.n_prefix_hit_tokens, 12 + 8);
    assert_eq!(stats.n_prompt_tokens, 13 + 1 + 4 + 13);
}

#[test]
fn generated_blocks_are_cached_too() {
    let mut engine = engine(LIMITS, EngineConfig::default());
    let mut chat = prompt(0, 6);
    let id = engine.submit(request(chat.clone(), params(8)), 0).unwrap();
    let events = run_all(&mut engine);
    chat.extend(tokens_of(&events, id, 0));
    chat.extend(prompt(5, 3));
    engine.submit(request(chat, params(1)), 0).unwrap();
    // Of 17 tokens, 13 were computed, and 12 of them fill blocks.
    assert_eq!(step(&mut engine, 0).0, (5, 1));
}

#[test]
fn without_a_prefix_cache_everything_is_computed() {
    let config = EngineConfig {
        prefix_cache: false,
        ..EngineConfig::default()
    };
    let mut engine = engine(LIMITS, config);
    for _ in 0..2 {
        engine.submit(request(prompt(0, 13), params(1)), 0).unwrap();
        assert_eq!(step(&mut engine, 0).0, (13, 1));
    }
    assert_eq!(engine.stats().n_cached_blocks, 0);
}

#[test]
fn equal_prompts_in_one_step_end_up_sharing_blocks() {
    let mut engine = engine(LIMITS, EngineConfig::default());
    for _ in 0..2 {
        engine.submit(request(prompt(0, 13), params(4)), 0).unwrap();
    }
    assert_eq!(step(&mut engine, 0).0, (26, 2));
    // Three full blocks in common, and a last one each.
    assert_eq!(engine.stats().n_used_blocks, 5);
}

#[test]
fn n_sequences_share_one_prompt() {
    let mut engine = engine(LIMITS, EngineConfig::default());
    let sampled = SamplingParams {
        n: 3,
        max_tokens: 6,
        seed: 9,
        ..SamplingParams::default()
    };
    let id = engine.submit(request(prompt(0, 10), sampled), 0).unwrap();
    let (rows, mut events) = step(&mut engine, 0);
    assert_eq!(rows, (10, 1));
    assert_eq!(engine.stats().n_used_blocks, 3);
    assert_eq!(engine.live().count(), 3);
    assert_eq!(step(&mut engine, 0).0, (3, 3));
    // Two of the three had to copy the half-full block.
    assert_eq!(engine.backend().n_copies(), 2);
    assert_eq!(engine.stats().n_used_blocks, 5);
    events.append(&mut run_all(&mut engine));
    let first_tokens: Vec<Token> = (0..3).map(|i| tokens_of(&events, id, i)[0]).collect();
    assert!(
        first_tokens.iter().any(|token| *token != first_tokens[0]),
        "{first_tokens:?}"
    );
    assert_eq!(finishes(&events).len(), 3);
}

#[test]
fn indices_can_end_before_the_prompt_is_computed() {
    let config = EngineConfig {
        max_num_batched_tokens: 4,
        ..EngineConfig::default()
    };
    let mut engine = engine(LIMITS, config);
    let three = SamplingParams { n: 3, ..params(2) };
    let id = engine.submit(request(prompt(0, 10), three), 0).unwrap();
    step(&mut engine, 0);
    assert!(engine.finish_sequence(id, 0, FinishReason::Stop));
    assert!(!engine.cancel_sequence(id, 0) && !engine.cancel_sequence(id, 3));
    assert!(!engine.cancel_sequence(id, 500));
    assert!(engine.view(id, 0).is_none() && engine.view(id, 1).is_some());
    let events = run_all(&mut engine);
    assert!(tokens_of(&events, id, 0).is_empty());
    assert_eq!(tokens_of(&events, id, 1).len(), 2);
    assert_eq!(finishes(&events)[0], (id, 0, FinishReason::Stop));
}

#[test]
fn cancel_frees_blocks_at_once_and_says_so_with_the_next_step() {
    let mut engine = engine(LIMITS, EngineConfig::default());
    let id = engine
        .submit(request(prompt(0, 10), params(50)), 0)
        .unwrap();
    step(&mut engine, 0);
    assert!(engine.cancel(id));
    assert!(!engine.cancel(id));
    assert_eq!(engine.stats().n_used_blocks, 0);
    assert!(engine.has_work());
    let (rows, events) = step(&mut engine, 0);
    assert_eq!(rows, (0, 0));
    assert_eq!(finishes(&events), [(id, 0, FinishReason::Cancelled)]);
    assert!(!engine.has_work());
}

#[test]
fn deadlines_end_the_running_and_the_waiting() {
    let config = EngineConfig {
        max_num_seqs: 1,
        ..EngineConfig::default()
    };
    let mut engine = engine(LIMITS, config);
    let late = |id, ns| Request {
        deadline_ns: Some(ns),
        ..request(prompt(id, 3), params(50))
    };
    let first = engine.submit(late(0, 10), 0).unwrap();
    let second = engine.submit(late(1, 5), 0).unwrap();
    assert_eq!(engine.next_wakeup_ns(), Some(5));
    assert_eq!(step(&mut engine, 4).0.1, 1);
    assert_eq!(
        finishes(&step(&mut engine, 5).1),
        [(second, 0, FinishReason::Deadline)]
    );
    assert_eq!(
        finishes(&step(&mut engine, 10).1),
        [(first, 0, FinishReason::Deadline)]
    );
    assert!(!engine.has_work());
}

#[test]
fn a_failed_step_fails_its_own_sequences_only() {
    let failures = FakeFailures {
        collect_at: [1].into(),
        ..FakeFailures::default()
    };
    let config = EngineConfig {
        max_num_seqs: 1,
        ..EngineConfig::default()
    };
    let mut engine = Engine::new(FakeBackend::new(LIMITS, failures), config).unwrap();
    let first = engine.submit(request(prompt(0, 5), params(4)), 0).unwrap();
    let second = engine.submit(request(prompt(1, 5), params(4)), 0).unwrap();
    let events = run_all(&mut engine);
    let message = "fake failure of collect".to_owned();
    let expected = [
        (first, 0, FinishReason::Backend(message)),
        (second, 0, FinishReason::Length),
    ];
    assert_eq!(finishes(&events), expected);
    assert_eq!(engine.stats().n_failed_steps, 1);
}

/// Chooses a token that does not exist.
struct Nonsense;

impl Backend for Nonsense {
    fn limits(&self) -> BackendLimits {
        LIMITS
    }

    fn submit(&mut self, _: &Batch) -> Result<(), BackendError> {
        Ok(())
    }

    fn collect(&mut self, results: &mut Vec<Sampled>) -> Result<(), BackendError> {
        results.push(Sampled {
            token: 100,
            ..Sampled::default()
        });
        Ok(())
    }
}

#[test]
fn a_token_that_does_not_exist_fails_its_request() {
    let backend: Box<dyn Backend> = Box::new(Nonsense);
    let mut engine = Engine::new(backend, EngineConfig::default()).unwrap();
    engine.submit(request(prompt(0, 5), params(4)), 0).unwrap();
    let mut events = Vec::new();
    engine.step(0, &mut events);
    assert!(
        matches!(finishes(&events)[0].2, FinishReason::Backend(_)),
        "{events:?}"
    );
    assert_eq!(engine.stats().n_faults, 1);
    engine.check().unwrap();
}

#[test]
fn prompt_logprobs_come_in_order_and_skip_the_cache() {
    let config = EngineConfig {
        max_num_batched_tokens: 5,
        ..EngineConfig::default()
    };
    let mut engine = engine(LIMITS, config);
    let prompt = prompt(0, 9);
    for round in 0..2 {
        let scored = SamplingParams {
            prompt_logprobs: Some(2),
            ..params(1)
        };
        engine.submit(request(prompt.clone(), scored), 0).unwrap();
        let events = run_all(&mut engine);
        let scores: Vec<Token> = events
            .iter()
            .filter_map(|event| match &event.kind {
                EventKind::PromptLogprob(score) => Some(score.token),
                _ => None,
            })
            .collect();
        assert_eq!(scores, prompt[1..], "round {round}");
    }
}

#[test]
fn requests_that_cannot_be_served_are_refused() {
    let limits = BackendLimits {
        n_blocks: 8,
        ..LIMITS
    };
    let config = EngineConfig {
        max_num_seqs: 4,
        ..EngineConfig::default()
    };
    let mut engine = engine(limits, config);
    let mut submit = |prompt: Vec<Token>, params| engine.submit(request(prompt, params), 0);
    assert_eq!(submit(Vec::new(), params(1)), Err(SubmitError::EmptyPrompt));
    let too_long = SubmitError::PromptTooLong { len: 128, max: 127 };
    assert_eq!(submit(prompt(0, 128), params(1)), Err(too_long));
    let unknown = SubmitError::UnknownToken {
        token: 100,
        n_vocab: 100,
    };
    assert_eq!(submit(vec![1, 100], params(1)), Err(unknown));
    // The last token is never computed: 33 tokens need 32 slots, which is all there are.
    assert!(submit(prompt(0, 20), params(13)).is_ok());
    let what = Resource::KvBlocks;
    let never = SubmitError::NeverFits {
        needed: 9,
        available: 8,
        what,
    };
    assert_eq!(submit(prompt(0, 20), params(14)), Err(never));
    let what = Resource::Sequences;
    let never = SubmitError::NeverFits {
        needed: 5,
        available: 4,
        what,
    };
    assert_eq!(
        submit(prompt(0, 3), SamplingParams { n: 5, ..params(1) }),
        Err(never)
    );
    let hot = SamplingParams {
        temperature: f32::NAN,
        ..params(1)
    };
    assert!(matches!(
        submit(prompt(0, 3), hot),
        Err(SubmitError::InvalidParams(_))
    ));
    assert_eq!(engine.stats().n_rejected, 6);
}

#[test]
fn the_queue_is_bounded_by_requests_and_by_tokens() {
    let config = EngineConfig {
        max_waiting_requests: 3,
        max_waiting_tokens: 20,
        ..EngineConfig::default()
    };
    let mut engine = engine(LIMITS, config);
    // Alone, a prompt may be longer than the bound.
    engine.submit(request(prompt(0, 25), params(1)), 0).unwrap();
    let full = engine
        .submit(request(prompt(1, 1), params(1)), 0)
        .unwrap_err();
    let expected = SubmitError::QueueFull {
        waiting_requests: 1,
        max_requests: 3,
        waiting_tokens: 25,
        max_tokens: 20,
    };
    assert_eq!(full, expected);
    step(&mut engine, 0);
    let ids: Vec<RequestId> = (0..3)
        .map(|id| engine.submit(request(prompt(id, 2), params(1)), 0).unwrap())
        .collect();
    assert!(engine.submit(request(prompt(9, 2), params(1)), 0).is_err());
    engine.cancel(ids[1]);
    assert!(engine.submit(request(prompt(9, 2), params(1)), 0).is_ok());
}

#[test]
fn stopping_tokens_stop_unless_ignored() {
    let mut engine = engine(LIMITS, EngineConfig::default());
    let id = engine.submit(request(prompt(0, 5), params(6)), 0).unwrap();
    let tokens = tokens_of(&run_all(&mut engine), id, 0);
    let stop = SamplingParams {
        stop_tokens: vec![tokens[2]],
        ..params(6)
    };
    let n_before = tokens.iter().position(|&token| token == tokens[2]).unwrap();
    for (ignore_eos, len) in [(false, n_before + 1), (true, 6)] {
        let stop = SamplingParams {
            ignore_eos,
            ..stop.clone()
        };
        let id = engine.submit(request(prompt(0, 5), stop), 0).unwrap();
        assert_eq!(tokens_of(&run_all(&mut engine), id, 0), tokens[..len]);
    }
}

#[test]
fn the_context_ends_a_sequence() {
    let limits = BackendLimits {
        max_model_len: 12,
        ..LIMITS
    };
    let mut engine = engine(limits, EngineConfig::default());
    let id = engine.submit(request(prompt(0, 9), params(50)), 0).unwrap();
    let events = run_all(&mut engine);
    assert_eq!(tokens_of(&events, id, 0).len(), 3);
    assert_eq!(finishes(&events), [(id, 0, FinishReason::Length)]);
}

#[test]
fn senseless_configurations_are_refused() {
    let ok = EngineConfig::default();
    let ratio = OutputRatio {
        initial: 0.1,
        least: 0.5,
        n_decay_steps: 1,
    };
    let batching = Batching::Static { max_batch_size: 0 };
    let cases = [
        (
            "max_num_seqs",
            EngineConfig {
                max_num_seqs: 0,
                ..ok.clone()
            },
        ),
        (
            "max_num_batched_tokens",
            EngineConfig {
                max_num_batched_tokens: 0,
                ..ok.clone()
            },
        ),
        (
            "max_waiting_requests",
            EngineConfig {
                max_waiting_requests: 0,
                ..ok.clone()
            },
        ),
        (
            "max_preemptions",
            EngineConfig {
                max_preemptions: 0,
                ..ok.clone()
            },
        ),
        (
            "max_batch_size",
            EngineConfig {
                batching,
                ..ok.clone()
            },
        ),
        (
            "watermark_permille",
            EngineConfig {
                watermark_permille: 1001,
                ..ok.clone()
            },
        ),
        (
            "output_ratio",
            EngineConfig {
                output_ratio: ratio,
                ..ok.clone()
            },
        ),
    ];
    for (name, config) in cases {
        let error = config.validate(&LIMITS).unwrap_err().to_string();
        assert!(error.starts_with(name), "{name}: {error}");
    }
    for limits in [
        BackendLimits {
            n_blocks: 0,
            ..LIMITS
        },
        BackendLimits {
            block_size: 0,
            ..LIMITS
        },
        BackendLimits {
            max_rows: 0,
            ..LIMITS
        },
        BackendLimits {
            max_model_len: 1,
            ..LIMITS
        },
        BackendLimits {
            n_vocab: 0,
            ..LIMITS
        },
        BackendLimits {
            n_blocks: 1 << 20,
            block_size: 1 << 20,
            ..LIMITS
        },
    ] {
        assert!(
            matches!(ok.validate(&limits), Err(ConfigError::Backend { .. })),
            "{limits:?}"
        );
    }
}
