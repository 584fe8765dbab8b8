//! Each filter against a naive oracle; distributions against their probabilities.

use std::sync::Arc;

use super::*;
use crate::request::TokenMask;

fn row(params: SamplingParams) -> SampleRow {
    SampleRow {
        row: 0,
        task: SampleTask::Next,
        seed: params.seed,
        params: Arc::new(params),
        position: 0,
        history: 0..0,
        n_prompt: 0,
        n_generated: 0,
        mask: None,
    }
}

fn sample_with(logits: &[f32], row: &SampleRow, history: &[Token]) -> Sampled {
    let mut out = Sampled::default();
    let mut sampler = Sampler::new(logits.len());
    sampler.sample(&mut logits.to_vec(), row, history, &RowOps::scalar(), &mut out);
    out
}

fn sample(logits: &[f32], params: SamplingParams) -> Sampled {
    sample_with(logits, &row(params), &[])
}

/// Logits from -5 to 5 on a coarse grid, so that ties are common.
fn random_logits(n: usize, seed: u64) -> Vec<f32> {
    (0..n).map(|i| (uniform(seed, i as u32) * 160.0).floor() as f32 / 16.0 - 5.0).collect()
}

#[test]
fn greedy_takes_the_lower_id_of_equals() {
    let logits = [0.0, 3.0, -1.0, 3.0];
    assert_eq!(sample(&logits, SamplingParams::greedy()).token, 1);
    let top_one = SamplingParams { top_k: 1, ..SamplingParams::default() };
    assert_eq!(sample(&logits, top_one).token, 1);
    let tiny = SamplingParams { temperature: 1e-30, ..SamplingParams::default() };
    assert_eq!(sample(&logits, tiny).token, 1);
}

#[test]
fn logits_that_are_not_finite_fail_the_row() {
    let inf = f32::INFINITY;
    let cases: [&[f32]; 5] =
        [&[0.0, f32::NAN], &[f32::NAN, 5.0], &[0.0, inf], &[-inf, -inf], &[0.0, -f32::NAN]];
    for logits in cases {
        for params in [SamplingParams::greedy(), SamplingParams::default()] {
            let out = sample(logits, params);
            assert_eq!(out.failure, Some(SampleFailure::NotFinite), "{logits:?}");
        }
    }
    assert_eq!(sample(&[-inf, 0.0], SamplingParams::default()).token, 1);
}

#[test]
fn a_mask_is_kept_and_an_empty_one_fails() {
    let logits = random_logits(130, 1);
    let mut masked = row(SamplingParams::default());
    masked.mask = Some(Arc::new(TokenMask { words: vec![0, 1 << 5, 0] }));
    for position in 0..20 {
        masked.position = position;
        assert_eq!(sample_with(&logits, &masked, &[]).token, 69);
    }
    masked.mask = Some(Arc::new(TokenMask { words: vec![0] }));
    let out = sample_with(&logits, &masked, &[]);
    assert_eq!(out.failure, Some(SampleFailure::NothingAllowed));
}

#[test]
fn min_tokens_keeps_stop_tokens_away() {
    let logits = [0.0, 9.0, 1.0];
    let params = SamplingParams { stop_tokens: vec![1], min_tokens: 2, ..SamplingParams::greedy() };
    let mut row = row(params);
    for (n_generated, expected) in [(0, 2), (1, 2), (2, 1)] {
        row.n_generated = n_generated;
        assert_eq!(sample_with(&logits, &row, &[]).token, expected);
    }
}

#[test]
fn bias_and_penalties_change_the_right_logits() {
    let logits = [1.0, 2.0, -1.0, 0.5];
    let base = SamplingParams { logprobs: Some(0), ..SamplingParams::greedy() };
    // History: prompt 1, output 3 3. Names the token chosen.
    let cases = [
        (SamplingParams { logit_bias: vec![(2, 4.0)], ..base.clone() }, 2),
        (SamplingParams { repetition_penalty: 4.0, ..base.clone() }, 0),
        (SamplingParams { presence_penalty: -1.6, ..base.clone() }, 3),
        (SamplingParams { presence_penalty: -1.4, ..base.clone() }, 1),
        (SamplingParams { frequency_penalty: -0.8, ..base.clone() }, 3),
        (SamplingParams { frequency_penalty: -0.7, ..base.clone() }, 1),
        (base, 1),
    ];
    for (params, expected) in cases {
        let mut row = row(params);
        row.n_prompt = 1;
        let out = sample_with(&logits, &row, &[1, 3, 3]);
        assert_eq!(out.token, expected, "{:?}", row.params);
        // Whatever was changed, the log-probability is the model's own.
        let sum: f32 = logits.iter().map(|x| x.exp()).sum();
        let own = logits[expected as usize] - sum.ln();
        assert!((out.logprob - own).abs() < 1e-5);
    }
}

#[test]
fn repetition_penalty_pushes_negative_logits_down() {
    let params = SamplingParams { repetition_penalty: 2.0, ..SamplingParams::greedy() };
    let mut row = row(params);
    row.n_prompt = 1;
    assert_eq!(sample_with(&[-1.0, -1.5], &row, &[0]).token, 1);
}

#[test]
fn penalties_leave_nothing_behind() {
    let params = SamplingParams { frequency_penalty: 2.0, ..SamplingParams::greedy() };
    let row = row(params);
    let mut sampler = Sampler::new(2);
    let mut out = Sampled::default();
    for _ in 0..3 {
        sampler.sample(&mut [1.0, 0.5], &row, &[0], &RowOps::scalar(), &mut out);
        assert_eq!(out.token, 1);
        sampler.sample(&mut [1.0, 0.5], &row, &[], &RowOps::scalar(), &mut out);
        assert_eq!(out.token, 0);
    }
}

#[test]
fn logprobs_are_ordered_and_normalised() {
    let logits = random_logits(300, 3);
    let params = SamplingParams { logprobs: Some(20), ..SamplingParams::default() };
    let out = sample(&logits, params);
    let mut ids: Vec<Token> = (0..300).collect();
    ids.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
    let sum: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
    assert!(out.top.iter().map(|(id, _)| id).eq(&ids[..20]));
    for &(id, logprob) in &out.top {
        let expected = f64::from(logits[id as usize]) - sum.ln();
        assert!((f64::from(logprob) - expected).abs() < 1e-4);
    }
}

#[test]
fn score_reports_the_known_token() {
    let params = SamplingParams { prompt_logprobs: Some(1), ..SamplingParams::default() };
    let mut row = row(params);
    row.task = SampleTask::Score(2);
    let out = sample_with(&[0.0, 1.0, 0.5], &row, &[]);
    let log_sum = (1.0f32 + 1.0f32.exp() + 0.5f32.exp()).ln();
    assert_eq!(out.token, 2);
    assert!((out.logprob - (0.5 - log_sum)).abs() < 1e-6);
    assert_eq!(out.top.len(), 1);
    assert_eq!(out.top[0].0, 1);
}

/// The plain way: sort everything, filter one after the other.
fn oracle(logits: &[f32], params: &SamplingParams) -> Vec<(Token, f64)> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let scale = params.temperature.recip();
    let mut all: Vec<(Token, f64)> =
        (0..).zip(logits).map(|(id, &x)| (id, f64::from((x - max) * scale).exp())).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    if params.top_k > 0 {
        all.truncate(params.top_k as usize);
    }
    if params.top_p < 1.0 {
        keep_prefix(&mut all, f64::from(params.top_p));
    }
    all.retain(|&(_, weight)| weight >= f64::from(params.min_p));
    if params.typical_p < 1.0 {
        let total: f64 = all.iter().map(|(_, weight)| weight).sum();
        let entropy: f64 = all.iter().map(|(_, w)| -(w / total) * (w / total).ln()).sum();
        let distance = |w: f64| (-(w / total).ln() - entropy).abs();
        all.sort_by(|a, b| distance(a.1).total_cmp(&distance(b.1)));
        keep_prefix(&mut all, f64::from(params.typical_p));
        all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    }
    all
}

fn keep_prefix(all: &mut Vec<(Token, f64)>, share: f64) {
    let total: f64 = all.iter().map(|(_, weight)| weight).sum();
    let mut sum = 0.0;
    let reached = all.iter().position(|(_, weight)| {
        sum += weight;
        sum >= share * total
    });
    all.truncate(reached.map_or(all.len(), |last| last + 1));
}

#[test]
fn filters_agree_with_the_oracle() {
    let filters: [fn(&mut SamplingParams); 11] = [
        |p| p.top_k = 1,
        |p| p.top_k = 7,
        |p| p.top_k = 5000,
        |p| p.top_p = 0.1,
        |p| p.top_p = 0.9,
        |p| (p.top_p, p.temperature) = (0.999, 3.0),
        |p| p.min_p = 0.2,
        |p| p.typical_p = 0.3,
        |p| (p.typical_p, p.temperature) = (0.95, 0.5),
        |p| (p.top_k, p.top_p, p.min_p, p.typical_p) = (40, 0.8, 0.05, 0.9),
        |p| (p.top_p, p.min_p, p.temperature) = (0.95, 0.1, 1.7),
    ];
    for n_vocab in [1, 5, 64, 65, 1000, 5000] {
        for seed in 0..8 {
            let logits = random_logits(n_vocab, seed);
            for change in filters {
                let mut params = SamplingParams::default();
                change(&mut params);
                check_against_oracle(&logits, &params);
            }
        }
    }
}

fn check_against_oracle(logits: &[f32], params: &SamplingParams) {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let scale = params.temperature.recip();
    let scaled: Vec<f32> = logits.iter().map(|x| (x - max) * scale).collect();
    let mut candidates = Candidates::new(logits.len());
    candidates.filter(&scaled, params, &RowOps::scalar());
    let kept: Vec<Token> = candidates.iter().map(|candidate| candidate.id).collect();
    let expected: Vec<Token> = oracle(logits, params).iter().map(|&(id, _)| id).collect();
    assert_eq!(kept, expected, "vocabulary {}, {params:?}", logits.len());
}

/// Pearson's statistic stays near its expectation, the number of outcomes.
fn assert_follows(logits: &[f32], params: &SamplingParams) {
    const N_SAMPLES: u32 = 20_000;
    let expected = oracle(logits, params);
    let total: f64 = expected.iter().map(|(_, weight)| weight).sum();
    let mut counts = vec![0u32; logits.len()];
    let mut row = row(params.clone());
    let mut sampler = Sampler::new(logits.len());
    let mut out = Sampled::default();
    for position in 0..N_SAMPLES {
        row.position = position;
        sampler.sample(&mut logits.to_vec(), &row, &[], &RowOps::scalar(), &mut out);
        counts[out.token as usize] += 1;
    }
    let mut statistic = 0.0;
    for &(id, weight) in &expected {
        let mean = weight / total * f64::from(N_SAMPLES);
        let count = std::mem::take(&mut counts[id as usize]);
        statistic += (f64::from(count) - mean).powi(2) / mean;
    }
    assert!(counts.iter().all(|&count| count == 0), "a filtered token was chosen");
    let freedom = expected.len() as f64 - 1.0;
    let bound = freedom + 5.0 * (2.0 * freedom).sqrt() + 5.0;
    assert!(statistic < bound, "{statistic} for {freedom} degrees of freedom, {params:?}");
}

#[test]
fn samples_follow_the_distribution() {
    let logits: Vec<f32> = random_logits(600, 11).iter().map(|x| x / 4.0).collect();
    let plain = SamplingParams { seed: 5, ..SamplingParams::default() };
    assert_follows(&logits, &plain);
    assert_follows(&logits, &SamplingParams { temperature: 2.0, ..plain.clone() });
    assert_follows(&logits, &SamplingParams { top_k: 10, ..plain.clone() });
    assert_follows(&logits, &SamplingParams { top_p: 0.5, ..plain.clone() });
    assert_follows(&logits, &SamplingParams { min_p: 0.3, temperature: 0.5, ..plain.clone() });
    assert_follows(&logits[..3], &plain);
}

#[test]
fn random_numbers_are_even_and_unrelated() {
    let (mut sum, mut product) = (0.0, 0.0);
    let mut tenths = [0u32; 10];
    for seed in 0..100u64 {
        for position in 0..1000 {
            let x = uniform(seed, position);
            assert!((0.0..1.0).contains(&x));
            sum += x;
            product += (x - 0.5) * (uniform(seed + 1, position) - 0.5);
            product += (x - 0.5) * (uniform(seed, position + 1) - 0.5);
            product += (x - 0.5) * (uniform(derive_seed(seed, 1), position) - 0.5);
            tenths[(x * 10.0) as usize] += 1;
        }
    }
    assert!((sum / 1e5 - 0.5).abs() < 0.005, "mean {}", sum / 1e5);
    assert!((product / 3e5).abs() < 0.001, "covariance {}", product / 3e5);
    assert!(tenths.iter().all(|&count| (9_500..10_500).contains(&count)), "{tenths:?}");
}

#[test]
fn the_first_of_n_keeps_the_seed_and_the_rest_differ() {
    assert_eq!(derive_seed(42, 0), 42);
    let mut seeds: Vec<u64> = (0..128).map(|index| derive_seed(42, index)).collect();
    seeds.sort_unstable();
    seeds.dedup();
    assert_eq!(seeds.len(), 128);
}

#[test]
fn scratch_does_not_carry_over() {
    let params = SamplingParams { top_p: 0.9, logprobs: Some(3), ..SamplingParams::default() };
    let row = row(params);
    let mut used = Sampler::new(400);
    let mut out = Sampled::default();
    for seed in 0..20 {
        let logits = random_logits(400, seed);
        used.sample(&mut logits.clone(), &row, &[], &RowOps::scalar(), &mut out);
        assert_eq!(out, sample_with(&logits, &row, &[]));
    }
}
