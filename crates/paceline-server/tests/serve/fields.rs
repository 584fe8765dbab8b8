//! The fields of generating routes: what each does to the answer.

use paceline_model::tokenizer::SpecialTokens;
use serde_json::{Value, json};

use crate::harness::{TestServer, tokenizer};

fn body(base: Value, extra: Value) -> Value {
    let mut body = base;
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

fn completion(server: &TestServer, extra: Value) -> Value {
    let base = json!({"prompt": "on the way", "temperature": 0, "ignore_eos": true,
                      "max_tokens": 12});
    let response = server.post("/v1/completions", &body(base, extra));
    assert_eq!(response.status, 200, "{}", response.body);
    response.json()
}

fn chat(server: &TestServer, extra: Value) -> Value {
    let base = json!({"messages": [{"role": "user", "content": "hi"}], "temperature": 0,
                      "ignore_eos": true, "max_tokens": 12});
    let response = server.post("/v1/chat/completions", &body(base, extra));
    assert_eq!(response.status, 200, "{}", response.body);
    response.json()
}

fn texts(answer: &Value) -> Vec<String> {
    let choices = answer["choices"].as_array().unwrap();
    choices.iter().map(|choice| choice["text"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn seeds_and_n() {
    let server = TestServer::plain();
    let ask = |extra| texts(&completion(&server, body(json!({"temperature": 1}), extra)));
    assert_eq!(ask(json!({"seed": 7})), ask(json!({"seed": 7})));
    assert_ne!(ask(json!({"seed": 7})), ask(json!({"seed": -7})));
    assert_ne!(ask(json!({})), ask(json!({})), "without a seed there is a new one each time");
    let three = ask(json!({"seed": 7, "n": 3}));
    assert_eq!(three[..1], ask(json!({"seed": 7})), "the first of n is the same as alone");
    assert!(three[0] != three[1] && three[1] != three[2]);
    let twins = ask(json!({"prompt": ["one", "one"]}));
    assert_ne!(twins[0], twins[1], "prompts without a seed do not share one");
}

#[test]
fn best_of_keeps_the_likeliest() {
    let server = TestServer::plain();
    let ask = |extra| completion(&server, body(json!({"temperature": 1, "seed": 3}), extra));
    let all = ask(json!({"n": 5, "logprobs": 0}));
    let mean = |choice: &Value| {
        let logprobs = choice["logprobs"]["token_logprobs"].as_array().unwrap();
        logprobs.iter().map(|l| l.as_f64().unwrap()).sum::<f64>() / logprobs.len() as f64
    };
    let mut choices = all["choices"].as_array().unwrap().clone();
    choices.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
    let best = ask(json!({"n": 2, "best_of": 5}));
    let expected: Vec<&Value> = choices[..2].iter().map(|choice| &choice["text"]).collect();
    let got: Vec<&Value> =
        best["choices"].as_array().unwrap().iter().map(|choice| &choice["text"]).collect();
    assert_eq!(got, expected);
    assert!(best["choices"][0]["logprobs"].is_null(), "they were not asked for");
    assert_eq!(best["usage"]["completion_tokens"], 60, "all five were generated");
}

#[test]
fn stop_strings_cut_the_text_wherever_tokens_end() {
    let server = TestServer::plain();
    let whole = texts(&completion(&server, json!({"max_tokens": 40}))).remove(0);
    let middle: Vec<usize> = whole.char_indices().map(|(at, _)| at).collect();
    let (from, to) = (middle[middle.len() / 2], middle[middle.len() / 2 + 3]);
    let stop = &whole[from..to];
    let end = whole.find(stop).unwrap();
    for streamed in [false, true] {
        let ask = json!({"prompt": "on the way", "temperature": 0, "ignore_eos": true,
                         "max_tokens": 40, "stop": [stop, "never this"], "stream": streamed});
        let response = server.post("/v1/completions", &ask);
        let text: String = match streamed {
            false => texts(&response.json()).remove(0),
            true => response.events().iter().flat_map(texts).collect(),
        };
        assert_eq!(text, whole[..end]);
    }
    let kept = json!({"max_tokens": 40, "stop": stop, "include_stop_str_in_output": true});
    let kept = completion(&server, kept);
    assert_eq!(texts(&kept), [&whole[..end + stop.len()]]);
    assert_eq!(kept["choices"][0]["finish_reason"], "stop");
    assert!(kept["usage"]["completion_tokens"].as_u64().unwrap() < 40);
    server.wait_for("vllm:kv_cache_usage_perc", |usage| usage == 0.0);
}

#[test]
fn chat_logprobs_have_bytes_and_alternatives() {
    let server = TestServer::plain();
    let answer = chat(&server, json!({"logprobs": true, "top_logprobs": 3}));
    let content = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), 12);
    for token in content {
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        assert_eq!(top[0]["logprob"], token["logprob"], "greedy takes the likeliest");
        assert!(token["bytes"].is_array() && token["token"].is_string());
    }
    assert!(chat(&server, json!({}))["choices"][0]["logprobs"].is_null());
    let base = json!({"messages": [{"role": "user", "content": "hi"}], "top_logprobs": 3});
    assert_eq!(server.post("/v1/chat/completions", &base).error().1["param"], "top_logprobs");
}

/// The call that lm-eval's `local-completions` makes for log-likelihoods.
#[test]
fn echo_with_logprobs_scores_token_prompts() {
    let server = TestServer::plain();
    let lists = [vec![5, 6, 7, 8, 9], vec![20, 21, 22]];
    let call = json!({"prompt": lists, "max_tokens": 1, "logprobs": 1, "echo": true,
                      "temperature": 0, "seed": 1234});
    let answer = server.post("/v1/completions", &call).json();
    for (list, choice) in lists.iter().zip(answer["choices"].as_array().unwrap()) {
        let logprobs = &choice["logprobs"];
        let scores = logprobs["token_logprobs"].as_array().unwrap();
        assert_eq!(scores.len(), list.len() + 1);
        assert!(scores[0].is_null() && scores[1..].iter().all(Value::is_number));
        let top = logprobs["top_logprobs"].as_array().unwrap();
        assert!(top[0].is_null() && top[1..].iter().all(|t| !t.as_object().unwrap().is_empty()));
        assert_eq!(logprobs["tokens"].as_array().unwrap().len(), scores.len());
        let offsets = logprobs["text_offset"].as_array().unwrap();
        assert!(offsets.is_sorted_by_key(|offset| offset.as_u64().unwrap()));
        let text = tokenizer().decode(list);
        assert!(choice["text"].as_str().unwrap().starts_with(&text));
        for (token, top) in logprobs["tokens"].as_array().unwrap()[1..].iter().zip(&top[1..]) {
            assert!(top.get(token.as_str().unwrap()).is_some(), "{token} is not in {top}");
        }
    }
    // A score is the same however it is asked for.
    let shorter = json!({"prompt": [5, 6, 7, 8], "max_tokens": 0, "logprobs": 0, "echo": true});
    let shorter = server.post("/v1/completions", &shorter).json();
    let scores = |answer: &Value, range: std::ops::Range<usize>| {
        answer["choices"][0]["logprobs"]["token_logprobs"].as_array().unwrap()[range].to_vec()
    };
    assert_eq!(scores(&answer, 0..4), scores(&shorter, 0..4));
    assert_eq!(shorter["choices"][0]["text"], tokenizer().decode(&[5, 6, 7, 8]));
    assert_eq!(shorter["usage"]["completion_tokens"], 0);
}

#[test]
fn echo_streams_the_prompt_first() {
    let server = TestServer::plain();
    let ask = json!({"prompt": ["in the", "on a"], "n": 2, "max_tokens": 4, "seed": 1,
                     "echo": true, "logprobs": 1, "ignore_eos": true});
    let whole = server.post("/v1/completions", &ask).json();
    let events = server.post("/v1/completions", &body(ask, json!({"stream": true}))).events();
    for choice in whole["choices"].as_array().unwrap() {
        let mut text = String::new();
        let mut scores = Vec::new();
        for event in &events {
            let part = &event["choices"][0];
            if part["index"] == choice["index"] {
                text.push_str(part["text"].as_str().unwrap());
                let logprobs = part["logprobs"]["token_logprobs"].as_array();
                scores.extend(logprobs.into_iter().flatten().cloned());
            }
        }
        assert_eq!(choice["text"], text);
        assert_eq!(*choice["logprobs"]["token_logprobs"].as_array().unwrap(), scores);
    }
}

#[test]
fn biases_bounds_and_ends() {
    let server = TestServer::plain();
    let forced = completion(&server, json!({"logit_bias": {"40": 100}, "max_tokens": 3}));
    assert_eq!(texts(&forced), [tokenizer().decode(&[40, 40, 40])]);
    let ends = json!({"ignore_eos": false, "logit_bias": {"2": 100}, "max_tokens": 9});
    let ended = completion(&server, ends.clone());
    assert_eq!(texts(&ended), [""], "an end token is no text");
    assert_eq!(ended["choices"][0]["finish_reason"], "stop");
    assert_eq!(ended["usage"]["completion_tokens"], 1);
    let later = completion(&server, body(ends, json!({"min_tokens": 5})));
    assert!(later["usage"]["completion_tokens"].as_u64().unwrap() >= 5);
    let stopped = json!({"logit_bias": {"41": 100}, "stop_token_ids": [41], "ignore_eos": false});
    assert_eq!(completion(&server, stopped)["usage"]["completion_tokens"], 1);
    // What asks for more than fits gets what fits.
    let long = completion(&server, json!({"max_tokens": 1_000_000}));
    assert_eq!(long["usage"]["total_tokens"], 1024);
    assert_eq!(long["choices"][0]["finish_reason"], "length");
}

#[test]
fn messages_take_parts_and_other_roles() {
    let server = TestServer::plain();
    let ask = |messages: Value| {
        let answer = server.post("/tokenize", &json!({"messages": messages}));
        (answer.status, answer.json()["tokens"].clone())
    };
    let plain = ask(json!([{"role": "system", "content": "ab"}, {"role": "user", "content": "c"}]));
    let parts = json!([{"role": "developer", "content": [{"type": "text", "text": "a"},
                        {"type": "text", "text": "b"}]}, {"role": "user", "content": "c"}]);
    assert_eq!(ask(parts), plain);
    let image = json!([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]);
    assert_eq!(ask(image).0, 400);
    assert_eq!(ask(json!([{"role": "user", "content": 5}])).0, 400);
}

#[test]
fn tokens_and_back() {
    let server = TestServer::plain();
    let text = "the rain in spain";
    let ids = tokenizer().encode(text, SpecialTokens::Parse).unwrap();
    let asked = json!({"prompt": text, "add_special_tokens": false, "return_token_strs": true});
    let answer = server.post("/tokenize", &asked).json();
    assert_eq!(answer["tokens"], json!(ids));
    assert_eq!(answer["count"], ids.len());
    assert_eq!(answer["max_model_len"], 1024);
    let strings = answer["token_strs"].as_array().unwrap();
    assert_eq!(strings.iter().map(|s| s.as_str().unwrap()).collect::<String>(), text);
    let back = server.post("/detokenize", &json!({"tokens": ids})).json();
    assert_eq!(back["prompt"], text);
    assert_eq!(server.post("/detokenize", &json!({"tokens": [1_000_000]})).status, 400);
}

#[test]
fn generate_and_its_batch() {
    let server = TestServer::plain();
    let shared = json!({"temperature": 0, "max_tokens": 6, "ignore_eos": true});
    let one = server.post("/generate", &body(shared.clone(), json!({"prompt": "on"}))).json();
    assert_eq!(one["tokens"].as_array().unwrap().len(), 6);
    assert_eq!(one["finish_reason"], "length");
    assert!(one["time_seconds"].is_number() && one["tokens_per_second"].is_number());

    let prompts = json!(["on", {"prompt": "on", "max_tokens": 2}, [9, 10],
                         {"prompt": "on", "stop": one["text"].as_str().unwrap()}]);
    let many = body(shared, json!({"prompts": prompts}));
    let answer = server.post("/generate/batch", &many).json();
    let results = answer["results"].as_array().unwrap();
    assert_eq!(answer["total_prompts"], 4);
    assert!(answer["total_time_seconds"].is_number() && answer["avg_time_per_prompt"].is_number());
    assert_eq!(results[0]["text"], one["text"]);
    assert_eq!(results[1]["tokens"], json!(one["tokens"].as_array().unwrap()[..2]));
    assert_eq!((&results[3]["text"], &results[3]["finish_reason"]), (&json!(""), &json!("stop")));

    let mut events = server.post("/generate/batch", &body(many, json!({"stream": true}))).events();
    assert_eq!(events.pop().unwrap()["total_prompts"], 4);
    for (index, result) in results.iter().enumerate() {
        let mut mine = events.iter().filter(|event| event["index"] == index);
        let text: String = mine.clone().map(|event| event["text"].as_str().unwrap()).collect();
        assert_eq!(result["text"], text);
        assert_eq!(mine.next_back().unwrap()["finish_reason"], result["finish_reason"]);
    }
    assert_eq!(server.post("/generate/batch", &json!({"prompts": []})).status, 400);
    let too_many = json!({"prompts": vec!["a"; 1025]});
    assert_eq!(server.post("/generate/batch", &too_many).status, 400);
}

#[test]
fn responses_whole_and_streamed() {
    let server = TestServer::plain();
    let ask = json!({"input": "hi", "instructions": "be brief", "max_output_tokens": 5,
                     "temperature": 0, "ignore_eos": true});
    let whole = server.post("/v1/responses", &ask).json();
    assert_eq!(whole["object"], "response");
    assert_eq!(whole["status"], "incomplete");
    assert_eq!(whole["incomplete_details"]["reason"], "max_output_tokens");
    assert_eq!(whole["usage"]["output_tokens"], 5);
    let text = whole["output"][0]["content"][0]["text"].as_str().unwrap();

    let list = json!({"instructions": null, "input": [{"role": "system", "content": "be brief"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}]});
    let same = server.post("/v1/responses", &body(ask.clone(), list)).json();
    assert_eq!(same["output"][0]["content"][0]["text"], text);

    let stream = server.post("/v1/responses", &body(ask, json!({"stream": true})));
    let events: Vec<Value> = stream
        .body
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let names: Vec<&str> = stream.body.lines().filter_map(|l| l.strip_prefix("event: ")).collect();
    assert_eq!(
        names[..3],
        ["response.created", "response.in_progress", "response.output_item.added"]
    );
    assert_eq!(names.last(), Some(&"response.incomplete"));
    for (number, (name, event)) in names.iter().zip(&events).enumerate() {
        assert_eq!((&event["type"], &event["sequence_number"]), (&json!(name), &json!(number)));
    }
    let deltas: String = events.iter().filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(deltas, text);
    let stored = json!({"input": "hi", "previous_response_id": "resp_1"});
    assert_eq!(server.post("/v1/responses", &stored).error().1["param"], "previous_response_id");
}
