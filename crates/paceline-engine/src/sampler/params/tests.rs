use super::*;

type Change = fn(&mut SamplingParams);

#[test]
fn defaults_are_valid() {
    SamplingParams::default().validate(10).unwrap();
    SamplingParams::greedy().validate(1).unwrap();
}

#[test]
fn bad_parameters_are_named() {
    let cases: [(&str, Change); 22] = [
        ("n", |p| p.n = 0),
        ("n", |p| p.n = 129),
        ("temperature", |p| p.temperature = -0.1),
        ("temperature", |p| p.temperature = f32::NAN),
        ("temperature", |p| p.temperature = f32::INFINITY),
        ("top_p", |p| p.top_p = 0.0),
        ("top_p", |p| p.top_p = 1.1),
        ("min_p", |p| p.min_p = 1.5),
        ("typical_p", |p| p.typical_p = 0.0),
        ("repetition_penalty", |p| p.repetition_penalty = 0.0),
        ("repetition_penalty", |p| p.repetition_penalty = 11.0),
        ("presence_penalty", |p| p.presence_penalty = 2.5),
        ("frequency_penalty", |p| p.frequency_penalty = f32::NAN),
        ("logit_bias", |p| p.logit_bias = vec![(10, 0.0)]),
        ("logit_bias", |p| p.logit_bias = vec![(1, 101.0)]),
        ("logit_bias", |p| p.logit_bias = vec![(1, 0.0); 1025]),
        ("stop_tokens", |p| p.stop_tokens = vec![10]),
        ("stop_tokens", |p| p.stop_tokens = vec![1; 65]),
        ("min_tokens", |p| p.min_tokens = p.max_tokens + 1),
        ("max_tokens", |p| p.max_tokens = 0),
        ("logprobs", |p| p.logprobs = Some(21)),
        ("prompt_logprobs", |p| p.prompt_logprobs = Some(21)),
    ];
    for (name, change) in cases {
        let mut params = SamplingParams::default();
        change(&mut params);
        let error = params.validate(10).unwrap_err().to_string();
        assert!(error.starts_with(name), "{name}: {error}");
    }
}
