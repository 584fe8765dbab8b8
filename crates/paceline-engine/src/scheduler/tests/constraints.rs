//! Sequences whose next tokens somebody outside decides about.

use super::*;
use crate::fake::FakeConstraint;

/// Rules that are complete after so many tokens.
fn constrained(id: u32, n_tokens: u32, params: SamplingParams) -> Request {
    let constraint = FakeConstraint::new(LIMITS.n_vocab, n_tokens);
    Request { constraint: Some(Box::new(constraint)), ..request(prompt(id, 6), params) }
}

fn keeps_to_the_rules(tokens: &[Token]) -> bool {
    let mut rules = FakeConstraint::new(LIMITS.n_vocab, u32::MAX);
    tokens.iter().all(|&token| {
        let is_allowed = rules.allows(token);
        crate::constraint::Constraint::accept(&mut rules, token);
        is_allowed
    })
}

/// Constrained and free requests by turns, some with several sequences and every kind of sampling.
fn mixed() -> Vec<Request> {
    let kinds = [
        params(12),
        SamplingParams { temperature: 1.0, n: 3, logprobs: Some(2), ..params(9) },
        SamplingParams { repetition_penalty: 1.3, top_p: 0.8, temperature: 0.7, ..params(12) },
    ];
    let requests = (0..12).map(|id| {
        let params = SamplingParams { seed: 5, ..kinds[id as usize / 2 % kinds.len()].clone() };
        match id % 2 {
            0 => constrained(id, 4 + id, params),
            _ => request(prompt(id, 6), params),
        }
    });
    requests.collect()
}

#[test]
fn a_complete_constraint_ends_its_sequence() {
    let mut engine = engine(LIMITS, EngineConfig::default());
    let id = engine.submit(constrained(0, 5, params(50)), 0).unwrap();
    // Ends of other kinds change nothing about that.
    let stubborn = SamplingParams { ignore_eos: true, min_tokens: 20, ..params(50) };
    let stubborn = engine.submit(constrained(1, 5, stubborn), 0).unwrap();
    let events = run_all(&mut engine);
    for id in [id, stubborn] {
        let tokens = tokens_of(&events, id, 0);
        assert_eq!(tokens.len(), 5);
        assert!(keeps_to_the_rules(&tokens));
    }
    assert!(finishes(&events).iter().all(|(.., reason)| *reason == FinishReason::Stop));
}

/// The same tokens alone in plenty of room, and together where everybody is preempted.
#[test]
fn preemption_and_company_change_nothing() {
    let limits = BackendLimits { n_blocks: 12, ..LIMITS };
    let output_ratio = OutputRatio { initial: 0.0, least: 0.0, n_decay_steps: 1 };
    let config = EngineConfig { output_ratio, watermark_permille: 0, ..EngineConfig::default() };
    let mut tight = engine(limits, config);
    let ids: Vec<RequestId> =
        mixed().into_iter().map(|request| tight.submit(request, 0).unwrap()).collect();
    let together = run_all(&mut tight);
    assert!(tight.stats().n_preemptions > 0);
    for (request, id) in mixed().into_iter().zip(ids) {
        let mut alone = engine(LIMITS, EngineConfig::default());
        let (n, is_free) = (request.params.n, request.constraint.is_none());
        let id_alone = alone.submit(request, 0).unwrap();
        let events = run_all(&mut alone);
        for index in 0..n {
            let tokens = tokens_of(&together, id, index);
            assert_eq!(tokens, tokens_of(&events, id_alone, index));
            assert_eq!(keeps_to_the_rules(&tokens), !is_free);
        }
    }
}
