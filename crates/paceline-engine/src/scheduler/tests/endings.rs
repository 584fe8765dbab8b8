//! How sequences end.

use super::*;

#[test]
fn indices_can_end_before_the_prompt_is_computed() {
    let config = EngineConfig { max_num_batched_tokens: 4, ..EngineConfig::default() };
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
    let id = engine.submit(request(prompt(0, 10), params(50)), 0).unwrap();
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
    let config = EngineConfig { max_num_seqs: 1, ..EngineConfig::default() };
    let mut engine = engine(LIMITS, config);
    let late = |id, ns| Request { deadline_ns: Some(ns), ..request(prompt(id, 3), params(50)) };
    let first = engine.submit(late(0, 10), 0).unwrap();
    let second = engine.submit(late(1, 5), 0).unwrap();
    assert_eq!(engine.next_wakeup_ns(), Some(5));
    assert_eq!(step(&mut engine, 4).0.1, 1);
    assert_eq!(finishes(&step(&mut engine, 5).1), [(second, 0, FinishReason::Deadline)]);
    assert_eq!(finishes(&step(&mut engine, 10).1), [(first, 0, FinishReason::Deadline)]);
    assert!(!engine.has_work());
}

#[test]
fn a_failed_step_fails_its_own_sequences_only() {
    let failures = FakeFailures { collect_at: [1].into(), ..FakeFailures::default() };
    let config = EngineConfig { max_num_seqs: 1, ..EngineConfig::default() };
    let mut engine = Engine::new(FakeBackend::new(LIMITS, failures), config).unwrap();
    let first = engine.submit(request(prompt(0, 5), params(4)), 0).unwrap();
    let second = engine.submit(request(prompt(1, 5), params(4)), 0).unwrap();
    let events = run_all(&mut engine);
    let message = "fake failure of collect".to_owned();
    let expected = [(first, 0, FinishReason::Backend(message)), (second, 0, FinishReason::Length)];
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
        results.push(Sampled { token: 100, ..Sampled::default() });
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
    assert!(matches!(finishes(&events)[0].2, FinishReason::Backend(_)), "{events:?}");
    assert_eq!(engine.stats().n_faults, 1);
    engine.check().unwrap();
}

#[test]
fn prompt_logprobs_come_in_order_and_skip_the_cache() {
    let config = EngineConfig { max_num_batched_tokens: 5, ..EngineConfig::default() };
    let mut engine = engine(LIMITS, config);
    let prompt = prompt(0, 9);
    for round in 0..2 {
        let scored = SamplingParams { prompt_logprobs: Some(2), ..params(1) };
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
fn stopping_tokens_stop_unless_ignored() {
    let mut engine = engine(LIMITS, EngineConfig::default());
    let id = engine.submit(request(prompt(0, 5), params(6)), 0).unwrap();
    let tokens = tokens_of(&run_all(&mut engine), id, 0);
    let stop = SamplingParams { stop_tokens: vec![tokens[2]], ..params(6) };
    let n_before = tokens.iter().position(|&token| token == tokens[2]).unwrap();
    for (ignore_eos, len) in [(false, n_before + 1), (true, 6)] {
        let stop = SamplingParams { ignore_eos, ..stop.clone() };
        let id = engine.submit(request(prompt(0, 5), stop), 0).unwrap();
        assert_eq!(tokens_of(&run_all(&mut engine), id, 0), tokens[..len]);
    }
}

#[test]
fn the_context_ends_a_sequence() {
    let limits = BackendLimits { max_model_len: 12, ..LIMITS };
    let mut engine = engine(limits, EngineConfig::default());
    let id = engine.submit(request(prompt(0, 9), params(50)), 0).unwrap();
    let events = run_all(&mut engine);
    assert_eq!(tokens_of(&events, id, 0).len(), 3);
    assert_eq!(finishes(&events), [(id, 0, FinishReason::Length)]);
}
