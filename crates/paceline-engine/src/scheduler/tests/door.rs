//! What is refused.

use super::*;

type Change = fn(&mut EngineConfig);

#[test]
fn requests_that_cannot_be_served_are_refused() {
    let limits = BackendLimits { n_blocks: 8, ..LIMITS };
    let config = EngineConfig { max_num_seqs: 4, ..EngineConfig::default() };
    let mut engine = engine(limits, config);
    let mut submit = |prompt: Vec<Token>, params| engine.submit(request(prompt, params), 0);
    assert_eq!(submit(Vec::new(), params(1)), Err(SubmitError::EmptyPrompt));
    let too_long = SubmitError::PromptTooLong { len: 128, max: 127 };
    assert_eq!(submit(prompt(0, 128), params(1)), Err(too_long));
    let unknown = SubmitError::UnknownToken { token: 100, n_vocab: 100 };
    assert_eq!(submit(vec![1, 100], params(1)), Err(unknown));
    // The last token is never computed: 33 tokens need 32 slots, which is all there are.
    assert!(submit(prompt(0, 20), params(13)).is_ok());
    let what = Resource::KvBlocks;
    let never = SubmitError::NeverFits { needed: 9, available: 8, what };
    assert_eq!(submit(prompt(0, 20), params(14)), Err(never));
    let what = Resource::Sequences;
    let never = SubmitError::NeverFits { needed: 5, available: 4, what };
    assert_eq!(submit(prompt(0, 3), SamplingParams { n: 5, ..params(1) }), Err(never));
    let hot = SamplingParams { temperature: f32::NAN, ..params(1) };
    assert!(matches!(submit(prompt(0, 3), hot), Err(SubmitError::InvalidParams(_))));
    assert_eq!(engine.stats().n_rejected, 6);
}

#[test]
fn the_queue_is_bounded_by_requests_and_by_tokens() {
    let config =
        EngineConfig { max_waiting_requests: 3, max_waiting_tokens: 20, ..EngineConfig::default() };
    let mut engine = engine(LIMITS, config);
    // Alone, a prompt may be longer than the bound.
    engine.submit(request(prompt(0, 25), params(1)), 0).unwrap();
    let full = engine.submit(request(prompt(1, 1), params(1)), 0).unwrap_err();
    let expected = SubmitError::QueueFull {
        waiting_requests: 1,
        max_requests: 3,
        waiting_tokens: 25,
        max_tokens: 20,
    };
    assert_eq!(full, expected);
    step(&mut engine, 0);
    let ids: Vec<RequestId> =
        (0..3).map(|id| engine.submit(request(prompt(id, 2), params(1)), 0).unwrap()).collect();
    assert!(engine.submit(request(prompt(9, 2), params(1)), 0).is_err());
    engine.cancel(ids[1]);
    assert!(engine.submit(request(prompt(9, 2), params(1)), 0).is_ok());
}

#[test]
fn senseless_configurations_are_refused() {
    let cases: [(&str, Change); 7] = [
        ("max_num_seqs", |c| c.max_num_seqs = 0),
        ("max_num_batched_tokens", |c| c.max_num_batched_tokens = 0),
        ("max_waiting_requests", |c| c.max_waiting_requests = 0),
        ("max_preemptions", |c| c.max_preemptions = 0),
        ("max_batch_size", |c| c.batching = Batching::Static { max_batch_size: 0 }),
        ("watermark_permille", |c| c.watermark_permille = 1001),
        ("output_ratio", |c| c.output_ratio.least = 0.9),
    ];
    for (name, change) in cases {
        let mut config = EngineConfig::default();
        change(&mut config);
        let error = config.validate(&LIMITS).unwrap_err().to_string();
        assert!(error.starts_with(name), "{name}: {error}");
    }
}

#[test]
fn backends_that_hold_nothing_are_refused() {
    let cases: [fn(&mut BackendLimits); 6] = [
        |limits| limits.n_blocks = 0,
        |limits| limits.block_size = 0,
        |limits| limits.max_rows = 0,
        |limits| limits.max_model_len = 1,
        |limits| limits.n_vocab = 0,
        |limits| (limits.n_blocks, limits.block_size) = (1 << 20, 1 << 20),
    ];
    for change in cases {
        let mut limits = LIMITS;
        change(&mut limits);
        let result = EngineConfig::default().validate(&limits);
        assert!(matches!(result, Err(ConfigError::Backend { .. })), "{limits:?}");
    }
}
