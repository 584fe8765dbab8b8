use super::*;

fn work(text: &str) -> Result<Work, String> {
    parse(text, GenerateParams::greedy(7)).work
}

#[test]
fn every_field_arrives_where_it_belongs() {
    let text = r#"{"custom_id": "x", "prompt": "hi", "n": 2, "temperature": 0.5, "top_k": 3,
        "top_p": 0.9, "min_p": 0.1, "typical_p": 0.8, "repetition_penalty": 1.1,
        "presence_penalty": 0.2, "frequency_penalty": 0.3, "logit_bias": {"5": -1.5},
        "stop": ["a", "b"], "stop_token_ids": [4], "ignore_eos": true, "min_tokens": 1,
        "max_tokens": 9, "seed": 11, "logprobs": 2, "prompt_logprobs": true,
        "priority": "low", "include_stop_str_in_output": true, "skip_special_tokens": false}"#;
    let parsed = parse(text, GenerateParams::default());
    assert_eq!(parsed.custom_id.as_deref(), Some("x"));
    let sampling = SamplingParams {
        n: 2,
        temperature: 0.5,
        top_k: 3,
        top_p: 0.9,
        min_p: 0.1,
        typical_p: 0.8,
        repetition_penalty: 1.1,
        presence_penalty: 0.2,
        frequency_penalty: 0.3,
        logit_bias: vec![(5, -1.5)],
        stop_tokens: vec![4],
        ignore_eos: true,
        min_tokens: 1,
        max_tokens: 9,
        seed: 11,
        logprobs: Some(2),
        prompt_logprobs: Some(0),
        pooling: None,
    };
    let params = GenerateParams {
        sampling,
        stop: vec!["a".to_owned(), "b".to_owned()],
        include_stop: true,
        show_special: true,
        priority: Priority::Low,
        ..GenerateParams::default()
    };
    assert_eq!(parsed.work, Ok(Work { input: Input::Text("hi".to_owned()), params }));
}

#[test]
fn what_is_null_or_left_out_keeps_its_default() {
    let found = work(r#"{"prompt_token_ids": [1, 2], "seed": null, "messages": null}"#).unwrap();
    assert_eq!(found.input, Input::Tokens(vec![1, 2]));
    assert_eq!(found.params, GenerateParams::greedy(7));
}

#[test]
fn fields_have_several_forms() {
    let found = work(r#"{"prompt": "a", "stop": "x", "logprobs": false, "top_k": -1}"#).unwrap();
    assert_eq!(found.params.stop, ["x"]);
    assert_eq!(found.params.sampling.logprobs, None);
    assert_eq!(found.params.sampling.top_k, 0);
    let chat = work(r#"{"messages": [{"role": "user", "content": "q"}]}"#).unwrap();
    assert_eq!(chat.input, Input::Chat(vec![Message::new("user", "q")]));
}

#[test]
fn errors_name_the_field() {
    let cases = [
        (r#"{"prompt": "a", "temprature": 1}"#, "unknown field \"temprature\""),
        (r#"{"prompt": "a", "temperature": "hot"}"#, "temperature: invalid type: string"),
        (r#"{"prompt": "a", "top_k": -2}"#, "top_k: -2 is not a count"),
        (r#"{"prompt": "a", "top_k": 5000000000}"#, "top_k: 5000000000 is not a count"),
        (r#"{"prompt": "a", "max_tokens": -1}"#, "max_tokens: invalid value"),
        (r#"{"prompt": "a", "stop": 3}"#, "stop: expected a string or a list"),
        (r#"{"prompt": "a", "logprobs": "all"}"#, "logprobs: expected a number or a boolean"),
        (r#"{"prompt": "a", "logit_bias": {"x": 1}}"#, "logit_bias: \"x\" is not a token id"),
        (r#"{"prompt": "a", "logit_bias": {"1": "x"}}"#, "logit_bias: \"x\" is not a number"),
        (r#"{"prompt": "a", "priority": "urgent"}"#, "priority: \"urgent\" is no priority"),
        (r#"{"prompt": ["a"]}"#, "prompt: invalid type: sequence"),
        (r#"{"prompt_token_ids": [-1]}"#, "prompt_token_ids: invalid value"),
        (r#"{"messages": [{"role": "user"}]}"#, "messages: missing field `content`"),
        (
            r#"{"messages": [{"role": "tool", "content": "", "name": "f"}]}"#,
            "messages: unknown field `name`",
        ),
        (r#"{"prompt": "a", "messages": []}"#, "more than one of prompt"),
        (r#"{"max_tokens": 3}"#, "has no prompt"),
        ("[1]", "not an object"),
        ("{\"prompt\": ", "not valid JSON"),
    ];
    for (text, expected) in cases {
        let error = work(text).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn the_id_of_a_bad_line_is_kept() {
    let parsed = parse(r#"{"custom_id": "b", "x": 1}"#, GenerateParams::default());
    assert_eq!(parsed.custom_id.as_deref(), Some("b"));
    assert!(parsed.work.is_err());
    let parsed = parse(r#"{"custom_id": 3, "prompt": "a"}"#, GenerateParams::default());
    assert_eq!(parsed.work, Err("custom_id must be a string".to_owned()));
}
