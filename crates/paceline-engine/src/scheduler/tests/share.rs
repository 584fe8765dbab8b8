//! The batch class beside the others.

use super::*;

fn batch_request(id: u32, len: u32, max_tokens: u32) -> Request {
    Request { priority: Priority::Batch, ..request(prompt(id, len), params(max_tokens)) }
}

#[test]
fn beside_streams_the_batch_class_has_its_share_and_alone_it_has_all() {
    let mut engine = engine(LIMITS, EngineConfig::default());
    let jobs: Vec<RequestId> =
        (0..5).map(|id| engine.submit(batch_request(id, 3, 20), 0).unwrap()).collect();
    engine.set_max_batch_rows(Some(2));
    assert_eq!(step(&mut engine, 0).0, (15, 5), "nobody else is there");
    let stream = engine.submit(request(prompt(9, 4), params(6)), 0).unwrap();
    assert_eq!(step(&mut engine, 0).0, (2 + 4, 3), "it comes with this step");
    let n_blocks = engine.stats().n_used_blocks;
    for _ in 0..2 {
        assert_eq!(step(&mut engine, 0).0, (1 + 2, 3));
    }
    let lengths = |engine: &Engine<FakeBackend>| -> Vec<u32> {
        jobs.iter().map(|&id| engine.view(id, 0).unwrap().n_generated).collect()
    };
    assert_eq!(lengths(&engine), [4, 4, 1, 1, 1], "the oldest go on");
    assert!(jobs.iter().all(|&id| is_running(&engine, id)), "the others only pause");
    assert!(engine.stats().n_used_blocks >= n_blocks);
    engine.set_max_batch_rows(Some(0));
    assert_eq!(step(&mut engine, 0).0, (1, 1));
    assert_eq!(lengths(&engine), [4, 4, 1, 1, 1]);
    engine.set_max_batch_rows(Some(2));
    while engine.view(stream, 0).is_some() {
        assert_eq!(step(&mut engine, 0).0, (3, 3));
    }
    assert_eq!(step(&mut engine, 0).0, (5, 5));
}

#[test]
fn the_share_counts_prompts_too_and_holds_newcomers_back() {
    let mut engine = engine(LIMITS, EngineConfig::default());
    engine.submit(request(prompt(9, 4), params(20)), 0).unwrap();
    step(&mut engine, 0);
    engine.set_max_batch_rows(Some(3));
    let jobs: Vec<RequestId> =
        (0..3).map(|id| engine.submit(batch_request(id, 7, 9), 0).unwrap()).collect();
    let running =
        |engine: &Engine<FakeBackend>| jobs.iter().filter(|&&id| is_running(engine, id)).count();
    // Seven rows of a prompt, then next tokens beside the next prompt.
    for (rows, n_running) in [((4, 2), 1), ((4, 2), 1), ((4, 3), 2), ((4, 3), 2)] {
        assert_eq!((step(&mut engine, 0).0, running(&engine)), (rows, n_running));
    }
    // Another class is not held back by it.
    engine.submit(request(prompt(5, 6), params(2)), 0).unwrap();
    assert_eq!(step(&mut engine, 0).0.0, 1 + 6 + 3);
    assert_eq!(engine.last_mix(), StepMix { n_batch: 3, n_streams: 1, n_prompts: 6, n_before: 8 });
    assert_eq!(finishes(&run_all(&mut engine)).len(), 5);
}

/// What is held back, and when, changes no token.
#[test]
fn a_share_changes_no_answer() {
    let answers = |shares: &[Option<u32>]| {
        let mut engine = engine(LIMITS, EngineConfig::default());
        let mut ids = Vec::new();
        for id in 0..4 {
            ids.push(engine.submit(batch_request(id, 9, 12), 0).unwrap());
            ids.push(engine.submit(request(prompt(20 + id, 5), params(8 * id + 1)), 0).unwrap());
        }
        let mut events = Vec::new();
        for &share in shares.iter().cycle().take(1000) {
            engine.set_max_batch_rows(share);
            events.append(&mut step(&mut engine, 0).1);
        }
        ids.iter().map(|&id| tokens_of(&events, id, 0)).collect::<Vec<_>>()
    };
    let expected = answers(&[None]);
    assert!(expected.iter().all(|tokens| !tokens.is_empty()));
    assert_eq!(answers(&[Some(1)]), expected);
    assert_eq!(answers(&[Some(3), Some(0), None, Some(2)]), expected);
}

#[test]
fn nobody_waits_for_a_place_that_the_batch_class_has() {
    let config = EngineConfig { max_num_seqs: 3, ..EngineConfig::default() };
    let mut engine = engine(LIMITS, config);
    let jobs: Vec<RequestId> =
        (0..4).map(|id| engine.submit(batch_request(id, 3, 9), 0).unwrap()).collect();
    step(&mut engine, 0);
    let stream = engine.submit(request(prompt(9, 4), params(2)), 0).unwrap();
    let (_, events) = step(&mut engine, 0);
    assert_eq!(tokens_of(&events, stream, 0).len(), 1);
    let is_running: Vec<bool> = jobs.iter().map(|&id| is_running(&engine, id)).collect();
    assert_eq!(is_running, [true, true, false, false], "the youngest went");
    let low = Request { priority: Priority::Low, ..request(prompt(8, 4), params(2)) };
    engine.submit(low, 0).unwrap();
    engine.submit(request(prompt(7, 4), params(2)), 0).unwrap();
    step(&mut engine, 0);
    // The first stream has ended with this step, and two batch sequences went for the others.
    assert_eq!(engine.stats().n_preemptions, 1 + 2);
    assert_eq!(finishes(&run_all(&mut engine)).len(), 4 + 2);
}

/// Four blocks, all of the batch class: memory is made for others as well as places.
#[test]
fn nobody_waits_for_memory_that_the_batch_class_has() {
    let limits = BackendLimits { n_blocks: 4, ..LIMITS };
    let config = EngineConfig { prefix_cache: false, ..EngineConfig::default() };
    let mut engine = engine(limits, config);
    let job = engine.submit(batch_request(0, 8, 6), 0).unwrap();
    step(&mut engine, 0);
    let stream = engine.submit(request(prompt(9, 8), params(4)), 0).unwrap();
    step(&mut engine, 0);
    assert!(is_running(&engine, stream) && !is_running(&engine, job));
    let finished = finishes(&run_all(&mut engine));
    assert_eq!(finished, [(stream, 0, FinishReason::Length), (job, 0, FinishReason::Length)]);
}
