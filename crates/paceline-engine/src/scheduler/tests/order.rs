//! Who is served when.

use super::*;

#[test]
fn running_come_first_and_prompts_fill_the_rest_in_chunks() {
    let config = EngineConfig { max_num_batched_tokens: 10, ..EngineConfig::default() };
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
    let config = EngineConfig { long_prefill_token_threshold: 3, ..EngineConfig::default() };
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
    let config = EngineConfig { max_num_seqs: 1, ..EngineConfig::default() };
    let mut engine = engine(LIMITS, config);
    let order =
        [Priority::Batch, Priority::Normal, Priority::High, Priority::Normal, Priority::Low];
    let ids: Vec<RequestId> = (0..)
        .zip(order)
        .map(|(i, priority)| {
            let request = Request { priority, ..request(prompt(i, 3), params(1)) };
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
    let mut engine = engine(LIMITS, EngineConfig { batching, ..EngineConfig::default() });
    for (id, max_tokens) in [(0, 1), (1, 4), (2, 1)] {
        engine.submit(request(prompt(id, 3), params(max_tokens)), 0).unwrap();
    }
    let sizes: Vec<u32> = (0..6).map(|_| step(&mut engine, 0).0.1).collect();
    assert_eq!(sizes, [2, 1, 1, 1, 1, 0]);
}

#[test]
fn a_group_is_closed_even_to_higher_priorities() {
    let batching = Batching::Static { max_batch_size: 4 };
    let config = EngineConfig { batching, max_num_seqs: 1, ..EngineConfig::default() };
    let mut engine = engine(LIMITS, config);
    let first = engine.submit(request(prompt(0, 3), params(2)), 0).unwrap();
    let second = engine.submit(request(prompt(1, 3), params(1)), 0).unwrap();
    let mut events = step(&mut engine, 0).1;
    let late = Request { priority: Priority::High, ..request(prompt(2, 3), params(1)) };
    let late = engine.submit(late, 0).unwrap();
    events.append(&mut run_all(&mut engine));
    let order: Vec<RequestId> = finishes(&events).iter().map(|(id, ..)| *id).collect();
    assert_eq!(order, [first, second, late]);
}

#[test]
fn a_window_waits_for_its_time_or_its_number() {
    let batching = Batching::Window { max_batch_size: 3, window_ns: 100 };
    let mut engine = engine(LIMITS, EngineConfig { batching, ..EngineConfig::default() });
    engine.submit(request(prompt(0, 3), params(1)), 50).unwrap();
    assert_eq!(step(&mut engine, 60).0, (0, 0));
    assert_eq!(engine.next_wakeup_ns(), Some(150));
    engine.submit(request(prompt(1, 3), params(1)), 100).unwrap();
    assert_eq!(step(&mut engine, 149).0, (0, 0));
    assert_eq!(step(&mut engine, 150).0.1, 2);
    for id in 2..5 {
        engine.submit(request(prompt(id, 3), params(1)), 200).unwrap();
    }
    assert_eq!(step(&mut engine, 200).0.1, 3);
    assert_eq!(engine.next_wakeup_ns(), None);
}

#[test]
fn interleaving_gives_each_step_to_one_sequence_in_turn() {
    let batching = Batching::Interleaved;
    let mut engine = engine(LIMITS, EngineConfig { batching, ..EngineConfig::default() });
    let ids: Vec<RequestId> =
        (0..3).map(|id| engine.submit(request(prompt(id, 5), params(3)), 0).unwrap()).collect();
    let mut served = Vec::new();
    while engine.has_work() {
        let ((_, n_seqs), events) = step(&mut engine, 0);
        assert_eq!(n_seqs, 1);
        let own = |event: &Event| ids.iter().position(|&id| id == event.request);
        served.extend(events.first().and_then(own));
    }
    // A newcomer after each round of those that run.
    assert_eq!(served, [0, 0, 1, 0, 1, 2, 1, 2, 2]);
}

#[test]
fn batching_may_change_in_flight() {
    let mut engine = engine(LIMITS, EngineConfig::default());
    for (id, max_tokens) in [(0, 2), (1, 4)] {
        engine.submit(request(prompt(id, 3), params(max_tokens)), 0).unwrap();
    }
    assert_eq!(step(&mut engine, 0).0.1, 2);
    engine.set_batching(Batching::Static { max_batch_size: 1 }).unwrap();
    for id in 2..4 {
        engine.submit(request(prompt(id, 3), params(2)), 0).unwrap();
    }
    let sizes: Vec<u32> = (0..5).map(|_| step(&mut engine, 0).0.1).collect();
    assert_eq!(sizes, [3, 2, 2, 1, 0]);
    assert!(engine.set_batching(Batching::Static { max_batch_size: 0 }).is_err());
}

/// One tenant queues forty requests before the other's four; they are served in turn all the same.
#[test]
fn a_flood_waits_for_itself() {
    let config = EngineConfig { max_num_seqs: 1, prefix_cache: false, ..EngineConfig::default() };
    let mut engine = engine(LIMITS, config);
    let submit = |engine: &mut Engine<FakeBackend>, tenant, id| {
        let request = Request { tenant, ..request(prompt(id, 5), params(2)) };
        engine.submit(request, 0).unwrap()
    };
    for id in 0..40 {
        submit(&mut engine, 1, id);
    }
    let mut events = Vec::new();
    for _ in 0..10 {
        events.append(&mut step(&mut engine, 0).1);
    }
    let polite: Vec<RequestId> = (0..4).map(|id| submit(&mut engine, 2, id)).collect();
    let before = finishes(&events).len();
    events.append(&mut run_all(&mut engine));
    let order: Vec<RequestId> = finishes(&events).into_iter().map(|(id, ..)| id).collect();
    let places: Vec<usize> =
        polite.iter().map(|id| order.iter().position(|known| known == id).unwrap()).collect();
    // The one that ran finishes first; from there they take turns.
    assert!(places[0] <= before + 1, "{places:?}");
    assert!(places.windows(2).all(|pair| pair[1] - pair[0] == 2), "{places:?}");
}

/// Turns are counted in rows: whoever sends long prompts gets fewer of them.
#[test]
fn tenants_share_rows_not_requests() {
    let config = EngineConfig { max_num_seqs: 1, prefix_cache: false, ..EngineConfig::default() };
    let mut engine = engine(LIMITS, config);
    for id in 0..12 {
        let long = Request { tenant: 1, ..request(prompt(id, 30), params(1)) };
        let short = Request { tenant: 2, ..request(prompt(id, 10), params(1)) };
        engine.submit(long, 0).unwrap();
        engine.submit(short, 0).unwrap();
    }
    let mut events = Vec::new();
    for _ in 0..8 {
        events.append(&mut step(&mut engine, 0).1);
    }
    let n_short = finishes(&events).iter().filter(|(id, ..)| id.0 % 2 == 1).count();
    assert_eq!((n_short, finishes(&events).len()), (6, 8));
}

#[test]
fn prompts_leave_streams_their_pace() {
    let config = EngineConfig { max_prefill_rows: Some(3), ..EngineConfig::default() };
    let mut engine = engine(LIMITS, config);
    engine.submit(request(prompt(0, 4), params(20)), 0).unwrap();
    assert_eq!(step(&mut engine, 0).0, (4, 1), "nobody streams yet");
    for id in 1..3 {
        engine.submit(request(prompt(id, 7), params(1)), 0).unwrap();
    }
    // One row for the stream and three for prompts, the last row of each prompt not counted: it is
    // a single one, like a stream's.
    let rows: Vec<u32> = (0..5).map(|_| step(&mut engine, 0).0.0).collect();
    assert_eq!(rows, [4, 4, 5, 4, 2]);
    engine.submit(request(prompt(3, 9), params(1)), 0).unwrap();
    engine.set_max_prefill_rows(Some(0));
    assert_eq!(step(&mut engine, 0).0, (1, 1), "prompts sit it out");
    engine.set_max_prefill_rows(None);
    assert_eq!(step(&mut engine, 0).0, (10, 2));
}
