//! Whose prompts come first, and how much of a step they may have while tenants share it.

use super::*;
use crate::config::SharedRows;

const SECOND: u64 = 1_000_000_000;

fn of_tenant(tenant: u64, id: u32, len: u32, max_tokens: u32) -> Request {
    Request { tenant, ..request(prompt(id, len), params(max_tokens)) }
}

fn computed(engine: &Engine<FakeBackend>, ids: &[RequestId]) -> Vec<u32> {
    ids.iter().map(|&id| engine.view(id, 0).map_or(0, |view| view.n_computed)).collect()
}

/// An engine with a cap for tenants that share, on which the first has a stream.
fn shared_engine(usual: u32, behind: u32) -> Engine<FakeBackend> {
    let max_shared_rows = Some(SharedRows { usual, behind });
    let mut engine = engine(LIMITS, EngineConfig { max_shared_rows, ..EngineConfig::default() });
    engine.submit(of_tenant(1, 0, 4, 100), 0).unwrap();
    assert_eq!(step(&mut engine, 0).0, (4, 1));
    engine
}

/// Rows of a step's prompts.
fn prompt_rows(engine: &mut Engine<FakeBackend>, now_ns: u64) -> Vec<u32> {
    engine.set_trace(true);
    step(engine, now_ns);
    engine.last_rows().iter().map(|rows| rows.n_rows).filter(|&n_rows| n_rows > 1).collect()
}

#[test]
fn a_prompt_goes_before_one_that_has_started_of_a_tenant_that_has_had_more() {
    let config = EngineConfig { max_num_batched_tokens: 10, ..EngineConfig::default() };
    let mut engine = engine(LIMITS, config);
    let flood: Vec<RequestId> =
        (0..2).map(|id| engine.submit(of_tenant(1, id, 30, 1), 0).unwrap()).collect();
    step(&mut engine, 0);
    let polite = engine.submit(of_tenant(2, 5, 6, 2), 0).unwrap();
    let (rows, events) = step(&mut engine, 0);
    assert_eq!((rows, tokens_of(&events, polite, 0).len()), ((10, 2), 1));
    assert_eq!(computed(&engine, &flood), [14, 0], "what is left goes on where it was");
    // Its next token, and from then on all for the flood, in its order.
    step(&mut engine, 0);
    assert_eq!(computed(&engine, &flood), [23, 0]);
    step(&mut engine, 0);
    assert_eq!(computed(&engine, &flood), [0, 3]);
}

#[test]
fn prompts_of_tenants_take_turns() {
    let config = EngineConfig { max_num_batched_tokens: 10, ..EngineConfig::default() };
    let mut engine = engine(LIMITS, config);
    let mut ids: Vec<RequestId> =
        (0..2).map(|id| engine.submit(of_tenant(1, id, 50, 1), 0).unwrap()).collect();
    step(&mut engine, 0);
    ids.push(engine.submit(of_tenant(2, 5, 50, 1), 0).unwrap());
    // They are level, and the second has less under way; then by turns.
    for expected in [[10, 0, 10], [20, 0, 10], [20, 0, 20], [30, 0, 20], [30, 0, 30]] {
        step(&mut engine, 0);
        assert_eq!(computed(&engine, &ids), expected);
    }
}

#[test]
fn a_higher_class_does_not_wait_for_a_prompt_that_has_started() {
    let config = EngineConfig { max_num_batched_tokens: 10, ..EngineConfig::default() };
    let mut engine = engine(LIMITS, config);
    let low = engine.submit(of_tenant(1, 0, 30, 1), 0).unwrap();
    step(&mut engine, 0);
    let high = Request { priority: Priority::High, ..of_tenant(1, 1, 20, 1) };
    let high = engine.submit(high, 0).unwrap();
    for expected in [[10, 10], [10, 0], [20, 0]] {
        step(&mut engine, 0);
        assert_eq!(computed(&engine, &[low, high]), expected);
    }
}

#[test]
fn while_tenants_share_steps_prompts_have_a_part_of_them() {
    let mut engine = shared_engine(4, 8);
    for id in 1..3 {
        engine.submit(of_tenant(1, id, 15, 2), 0).unwrap();
    }
    assert_eq!(prompt_rows(&mut engine, 0), [15, 15], "alone it has all");
    for id in 3..7 {
        engine.submit(of_tenant(1, id, 30, 2), 0).unwrap();
    }
    let polite = engine.submit(of_tenant(2, 9, 7, 1), 0).unwrap();
    assert_eq!(prompt_rows(&mut engine, SECOND), [7], "uncut, and nobody else's beside it");
    assert!(engine.view(polite, 0).is_none());
    for now_ns in [2 * SECOND, 11 * SECOND - 1] {
        assert_eq!(prompt_rows(&mut engine, now_ns), [4], "it may come back");
        assert!(engine.is_shared());
    }
    assert_eq!(prompt_rows(&mut engine, 11 * SECOND).iter().sum::<u32>(), 31);
    assert!(!engine.is_shared());
}

/// The first token of one who asks little waits for few rows beside its own.
#[test]
fn streams_of_one_that_has_had_more_sit_out_a_newcomers_prompt_but_not_two_on_end() {
    let mut engine = shared_engine(4, 8);
    let n_rows = |engine: &mut Engine<FakeBackend>| step(engine, 0).0.0;
    for id in 1..3 {
        engine.submit(of_tenant(1, id, 4, 100), 0).unwrap();
    }
    assert_eq!(n_rows(&mut engine), 1 + 2 * 4);
    engine.submit(of_tenant(2, 3, 7, 1), 0).unwrap();
    engine.submit(of_tenant(3, 4, 6, 1), 0).unwrap();
    assert_eq!(n_rows(&mut engine), 7, "streams sit out");
    assert_eq!(n_rows(&mut engine), 3 + 6, "and go on beside the next");
    engine.submit(of_tenant(1, 5, 4, 1), 0).unwrap();
    assert_eq!(n_rows(&mut engine), 3 + 4, "they do not wait for one of their own");
    engine.submit(of_tenant(2, 6, 9, 1), 0).unwrap();
    assert_eq!(n_rows(&mut engine), 3 + 8, "nor for a longer one");
}

#[test]
fn who_is_left_alone_is_not_cut_short_for_others_that_may_return() {
    let mut engine = shared_engine(4, 8);
    engine.submit(of_tenant(2, 1, 3, 1), 0).unwrap();
    while engine.has_work() {
        step(&mut engine, 0);
    }
    engine.submit(of_tenant(2, 2, 12, 1), 0).unwrap();
    assert_eq!(prompt_rows(&mut engine, 0), [8]);
    assert!(engine.is_shared());
    engine.submit(of_tenant(2, 3, 12, 1), 0).unwrap();
    assert_eq!(prompt_rows(&mut engine, 0), [4]);
}

/// Only what is less than another's is behind: in turn, and never more than twice.
#[test]
fn a_long_prompt_of_the_least_served_keeps_to_its_part_too() {
    let mut engine = shared_engine(4, 8);
    for id in 1..3 {
        engine.submit(of_tenant(id, id as u32, 60, 1), 0).unwrap();
    }
    let mut sizes = Vec::new();
    while engine.stats().n_active > 1 || engine.stats().n_waiting > 0 {
        let rows = prompt_rows(&mut engine, 0);
        let sum: u32 = rows.iter().sum();
        assert!(sum <= 4 || (rows.len() == 1 && sum <= 8), "{rows:?}");
        sizes.extend(rows);
        assert!(sizes.len() < 100);
    }
    assert!(sizes.contains(&8) && sizes.contains(&4), "{sizes:?}");
}

#[test]
fn streams_are_no_condition_and_the_batch_class_is_no_tenant() {
    let max_shared_rows = Some(SharedRows { usual: 5, behind: 0 });
    let mut engine = engine(LIMITS, EngineConfig { max_shared_rows, ..EngineConfig::default() });
    let job = Request { priority: Priority::Batch, ..of_tenant(3, 0, 10, 1) };
    engine.submit(job, 0).unwrap();
    engine.submit(of_tenant(1, 1, 10, 1), 0).unwrap();
    assert_eq!(prompt_rows(&mut engine, 0), [10, 10]);
    for tenant in [1, 2] {
        engine.submit(of_tenant(tenant, 4, 10, 1), 0).unwrap();
    }
    assert_eq!(prompt_rows(&mut engine, 0), [5]);
    assert_eq!(finishes(&run_all(&mut engine)).len(), 2);
}

/// One tenant has a new prompt as soon as the last is done; the other's get on all the same.
#[test]
fn nobody_starves_beside_one_that_always_returns() {
    for shared in [SharedRows { usual: 1, behind: 1 }, SharedRows { usual: 4, behind: 16 }] {
        let mut engine = shared_engine(shared.usual, shared.behind);
        let flood: Vec<RequestId> =
            (0..6).map(|id| engine.submit(of_tenant(1, id, 20, 4), 0).unwrap()).collect();
        let mut polite = engine.submit(of_tenant(2, 50, 16, 2), 0).unwrap();
        let (mut n_steps, mut n_polite) = (0, 0);
        while flood.iter().any(|&id| engine.view(id, 0).is_some()) {
            n_steps += 1;
            assert!(n_steps < 1000, "{shared:?}: {n_polite}");
            step(&mut engine, 0);
            if engine.view(polite, 0).is_none() {
                n_polite += 1;
                polite = engine.submit(of_tenant(2, 50 + n_polite, 16, 2), 0).unwrap();
            }
        }
        assert!(n_polite >= 4, "{shared:?}: {n_polite} in {n_steps} steps");
    }
}
