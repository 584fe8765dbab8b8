//! Preemption, prefix cache, shared blocks.

use super::*;

/// Four blocks, two sequences that come to need three each.
fn tight(max_preemptions: u32) -> Engine<FakeBackend> {
    let limits = BackendLimits { n_blocks: 4, ..LIMITS };
    let output_ratio = OutputRatio { initial: 0.0, least: 0.0, n_decay_steps: 1 };
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
    let low = Request { priority: Priority::Low, ..request(prompt(0, 6), params(6)) };
    let low = engine.submit(low, 0).unwrap();
    let normal = engine.submit(request(prompt(1, 6), params(6)), 0).unwrap();
    for _ in 0..3 {
        step(&mut engine, 0);
    }
    assert!(is_running(&engine, low) && is_running(&engine, normal));
    step(&mut engine, 0);
    assert!(!is_running(&engine, low) && is_running(&engine, normal));
    let preemption = Preemption { request: low, index: 0, n_tokens_lost: 8, n_preemptions: 1 };
    assert_eq!(engine.take_preemptions().collect::<Vec<_>>(), [preemption]);
    let view = engine.view(low, 0).unwrap();
    assert_eq!((view.n_computed, view.n_generated), (0, 3));
    let finished = finishes(&run_all(&mut engine));
    assert_eq!(finished, [(normal, 0, FinishReason::Length), (low, 0, FinishReason::Length)]);
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
        engine.submit(request(prompt(id, 2), params(14)), 0).unwrap();
    }
    let finished = finishes(&run_all(&mut engine));
    assert_eq!(finished.len(), 6);
    assert!(finished.iter().all(|(.., reason)| *reason == FinishReason::Length));
    let preemptions: Vec<Preemption> = engine.take_preemptions().collect();
    assert!(!preemptions.is_empty());
    assert!(preemptions.iter().all(|preemption| preemption.n_preemptions == 1));
}

#[test]
fn full_expectation_never_preempts() {
    let limits = BackendLimits { n_blocks: 8, ..LIMITS };
    let output_ratio = OutputRatio { initial: 1.0, least: 1.0, n_decay_steps: 1 };
    let mut engine = engine(limits, EngineConfig { output_ratio, ..EngineConfig::default() });
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
    engine.submit(request(shared.clone(), params(1)), 0).unwrap();
    assert_eq!(step(&mut engine, 0).0, (13, 1));
    engine.submit(request(shared.clone(), params(1)), 0).unwrap();
    assert_eq!(step(&mut engine, 0).0, (1, 1));
    // Twelve tokens are three full blocks, but the last token's logits are needed.
    engine.submit(request(shared[..12].to_vec(), params(1)), 0).unwrap();
    assert_eq!(step(&mut engine, 0).0, (4, 1));
    let other = Request { tenant: 1, ..request(shared.clone(), params(1)) };
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
    let config = EngineConfig { prefix_cache: false, ..EngineConfig::default() };
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
    let sampled = SamplingParams { n: 3, max_tokens: 6, seed: 9, ..SamplingParams::default() };
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
    assert!(first_tokens.iter().any(|token| *token != first_tokens[0]), "{first_tokens:?}");
    assert_eq!(finishes(&events).len(), 3);
}
