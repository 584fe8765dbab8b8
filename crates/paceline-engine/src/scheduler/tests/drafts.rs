//! Guesses at next tokens.

use super::*;
use crate::config::Drafts;
use crate::fake::FakeModel;

/// As many as there may be, whatever they cost.
const ALL: Drafts = Drafts { most: 4, base_rows: 1000, tile_rows: 1 };

/// The model says mostly what it has said before.
fn habitual(limits: BackendLimits, config: EngineConfig) -> Engine<FakeBackend> {
    let mut model = FakeModel::new(limits.n_vocab);
    model.has_habits = true;
    let backend = FakeBackend::with_model(limits, model, FakeFailures::default());
    Engine::new(backend, config).unwrap()
}

fn config(drafts: Drafts) -> EngineConfig {
    EngineConfig { drafts, prefix_cache: false, ..EngineConfig::default() }
}

/// Tokens of a few requests, and the steps they took.
fn answers(config: EngineConfig) -> (Vec<Vec<Token>>, u64) {
    let mut engine = habitual(BackendLimits { n_vocab: 20, ..LIMITS }, config);
    let ids: Vec<RequestId> = (0..4)
        .map(|i| {
            let prompt = prompt(i, 6).iter().map(|token| token % 20).collect();
            engine.submit(request(prompt, params(60)), 0).unwrap()
        })
        .collect();
    let events = run_all(&mut engine);
    (ids.iter().map(|&id| tokens_of(&events, id, 0)).collect(), engine.stats().n_steps)
}

#[test]
fn they_save_steps_and_change_no_token() {
    let (expected, n_steps) = answers(config(Drafts::default()));
    let (found, n_fewer) = answers(config(ALL));
    assert_eq!(found, expected);
    assert!(n_fewer * 4 < n_steps * 3, "{n_fewer} steps instead of {n_steps}");
}

#[test]
fn what_one_answer_was_is_guessed_for_the_next_of_the_same_tenant() {
    let mut engine = engine(LIMITS, config(ALL));
    let mut ask = |tenant| {
        let before = engine.stats().n_steps;
        let asked = Request { tenant, ..request(prompt(3, 6), params(60)) };
        let id = engine.submit(asked, 0).unwrap();
        let tokens = tokens_of(&run_all(&mut engine), id, 0);
        (tokens, engine.stats().n_steps - before)
    };
    let (expected, n_first) = ask(1);
    let (found, n_again) = ask(1);
    assert_eq!(found, expected);
    assert!(n_again * 3 < n_first, "{n_again} steps instead of {n_first}");
    let (found, n_other) = ask(2);
    assert_eq!(found, expected);
    assert_eq!(n_other, n_first, "answers of others would tell by the time they take");
}

#[test]
fn they_can_be_switched_off_and_on_again() {
    let mut engine = habitual(LIMITS, config(ALL));
    engine.submit(request(prompt(1, 5), params(90)), 0).unwrap();
    engine.set_drafting(false);
    for _ in 0..60 {
        step(&mut engine, 0);
    }
    assert_eq!(engine.stats().n_drafted_tokens, 0);
    engine.set_drafting(true);
    run_all(&mut engine);
    assert!(engine.stats().n_drafted_tokens > 0);
}

#[test]
fn nothing_is_guessed_beyond_the_last_token() {
    let mut engine = habitual(LIMITS, config(ALL));
    let id = engine.submit(request(vec![3; 9], params(3)), 0).unwrap();
    let events = run_all(&mut engine);
    assert_eq!(tokens_of(&events, id, 0).len(), 3);
    assert_eq!(finishes(&events), [(id, 0, FinishReason::Length)]);
}

#[test]
fn beside_prompts_they_have_an_eighth_of_the_rows() {
    let mut engine = habitual(BackendLimits { n_vocab: 20, ..LIMITS }, config(ALL));
    for i in 0..3 {
        let prompt = prompt(i, 6).iter().map(|token| token % 20).collect();
        engine.submit(request(prompt, params(40)), 0).unwrap();
    }
    let n_drafts = |engine: &mut Engine<FakeBackend>| {
        let before = engine.stats().n_drafted_tokens;
        let ((n_rows, _), _) = step(engine, 0);
        (n_rows, engine.stats().n_drafted_tokens - before)
    };
    let alone = (0..6).map(|_| n_drafts(&mut engine).1).max().unwrap();
    engine.submit(request(vec![7; 100], params(2)), 0).unwrap();
    let beside: Vec<_> = (0..3).map(|_| n_drafts(&mut engine)).collect();
    assert!(alone > 4, "{alone}");
    for (n_rows, n_drafts) in beside {
        assert_eq!(n_rows, LIMITS.max_rows);
        assert!((1..=4).contains(&n_drafts), "{n_drafts}");
    }
}

#[test]
fn nobody_is_preempted_for_them() {
    // Room for both sequences, and for nothing else.
    let limits = BackendLimits { n_blocks: 20, n_vocab: 20, ..LIMITS };
    let mut engine = habitual(limits, EngineConfig { watermark_permille: 0, ..config(ALL) });
    for i in 0..2 {
        let prompt = prompt(i, 10).iter().map(|token| token % 20).collect();
        engine.submit(request(prompt, params(30)), 0).unwrap();
    }
    run_all(&mut engine);
    let stats = engine.stats();
    assert!(stats.n_accepted_tokens > 0 && stats.n_preemptions == 0, "{stats:?}");
}

#[test]
fn guided_sequences_have_those_that_their_rules_allow() {
    let answer = |drafts: Drafts| {
        let mut engine = engine(LIMITS, config(drafts));
        let mut found = Vec::new();
        for _ in 0..2 {
            let constraint = crate::fake::FakeConstraint::new(LIMITS.n_vocab, 50);
            let guided = request(prompt(1, 5), params(60));
            let guided = Request { constraint: Some(Box::new(constraint)), ..guided };
            let id = engine.submit(guided, 0).unwrap();
            found.push(tokens_of(&run_all(&mut engine), id, 0));
        }
        (found, engine.stats())
    };
    let (expected, plain) = answer(Drafts::default());
    let (found, drafted) = answer(ALL);
    assert_eq!(found, expected);
    assert_eq!(found[0].len(), 50, "the rules say where it ends");
    // The second says what the first has said.
    assert!(drafted.n_accepted_tokens > 30, "{drafted:?}");
    assert!(drafted.n_steps * 3 < plain.n_steps * 2, "{} {}", drafted.n_steps, plain.n_steps);
}

#[test]
fn more_than_can_be_are_refused() {
    let drafts = Drafts { most: 65, ..ALL };
    let backend = FakeBackend::new(LIMITS, FakeFailures::default());
    let refused = Engine::new(backend, config(drafts)).err();
    assert!(matches!(refused, Some(ConfigError::OutOfRange { .. })), "{refused:?}");
}
