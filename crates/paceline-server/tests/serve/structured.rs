//! Answers that must have a form.

use std::time::Duration;

use paceline_engine::{Drafts, EngineConfig, OutputRatio};
use paceline_server::ServerOptions;
use serde_json::{Value, json};

use crate::client::Response;
use crate::harness::{Setup, TestServer};
use crate::schemas::{Random, keeps};

const CHAT: &str = "/v1/chat/completions";

fn with(mut body: Value, extra: &Value) -> Value {
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

fn person() -> Value {
    json!({"type": "object", "properties": {
               "name": {"type": "string", "maxLength": 8},
               "age": {"type": "integer", "minimum": 0, "maximum": 150}},
           "required": ["name", "age"], "additionalProperties": false})
}

fn schema_format(schema: &Value) -> Value {
    json!({"response_format": {"type": "json_schema",
           "json_schema": {"name": "a", "strict": true, "schema": schema}}})
}

fn ask_chat(server: &TestServer, extra: &Value) -> Response {
    let body = json!({"messages": [{"role": "user", "content": "Who?"}], "max_tokens": 400,
                      "seed": 5});
    server.post(CHAT, &with(body, extra))
}

/// The text of the one choice, which must have ended by itself.
fn text_of(response: &Response) -> String {
    assert_eq!(response.status, 200, "{}", response.body);
    let choice = &response.json()["choices"][0];
    assert_eq!(choice["finish_reason"], "stop", "{choice}");
    let text = choice["message"]["content"].as_str().or(choice["text"].as_str());
    text.unwrap().to_owned()
}

/// A form, and whether a text has it.
type Form = (Value, fn(&str) -> bool);

fn forms() -> [Form; 6] {
    let is_person = |text: &str| keeps(&serde_json::from_str(text).unwrap(), &person());
    [
        (schema_format(&person()), is_person),
        (json!({"guided_json": person()}), is_person),
        (json!({"guided_json": person().to_string()}), is_person),
        (json!({"guided_regex": "[0-9]{2}:[0-9]{2}"}), |text| {
            let bytes = text.as_bytes();
            bytes.len() == 5 && bytes[2] == b':' && bytes[4].is_ascii_digit()
        }),
        (json!({"guided_choice": ["yes", "no", "not sure"]}), |text| {
            ["yes", "no", "not sure"].contains(&text)
        }),
        (json!({"guided_grammar": "start: \"a\" start? \"b\""}), |text| {
            let n = text.len() / 2;
            n > 0 && text == "a".repeat(n) + &"b".repeat(n)
        }),
    ]
}

#[test]
fn every_form_on_every_route_and_with_every_sampling() {
    let server = TestServer::patient(Setup::default());
    let samplings = [
        json!({"temperature": 0}),
        json!({"temperature": 1.3, "top_p": 0.9, "logprobs": true, "top_logprobs": 2}),
        json!({"temperature": 0.8, "top_k": 20, "repetition_penalty": 1.2, "ignore_eos": true}),
        json!({"temperature": 1, "frequency_penalty": 0.5, "min_tokens": 2, "stream": false}),
    ];
    for (form, has_form) in &forms() {
        for sampling in &samplings {
            let text = text_of(&ask_chat(&server, &with(form.clone(), sampling)));
            assert!(has_form(&text), "{form} {sampling}: {text:?}");
        }
        let body = json!({"prompt": "Who?", "max_tokens": 400, "seed": 9});
        let text = text_of(&server.post("/v1/completions", &with(body.clone(), form)));
        assert!(has_form(&text), "{form}: {text:?}");
        let answer = server.post("/generate", &with(body, form)).json();
        assert_eq!(answer["finish_reason"], "stop");
        assert!(has_form(answer["text"].as_str().unwrap()), "{answer}");
    }
    let format = json!({"type": "json_schema", "name": "a", "schema": person()});
    let body = json!({"input": "Who?", "max_output_tokens": 400, "text": {"format": format}});
    let answer = server.post("/v1/responses", &body).json();
    assert_eq!(answer["text"]["format"]["type"], "json_schema");
    assert!(forms()[0].1(answer["output"][0]["content"][0]["text"].as_str().unwrap()));
}

#[test]
fn any_object_and_plain_text() {
    let server = TestServer::patient(Setup::default());
    let mut n_whole = 0;
    for seed in 0..20 {
        let form = json!({"response_format": {"type": "json_object"}, "seed": seed});
        let choice = ask_chat(&server, &form).json()["choices"][0].clone();
        let text = choice["message"]["content"].as_str().unwrap();
        if choice["finish_reason"] == "stop" {
            n_whole += 1;
            assert!(serde_json::from_str::<Value>(text).unwrap().is_object(), "{text}");
        } else {
            assert!(text.starts_with('{'), "{text}");
        }
    }
    assert!(n_whole > 0);
    let free = text_or_cut(&ask_chat(&server, &json!({"max_tokens": 20})));
    for form in [json!({"type": "text"}), Value::Null] {
        let form = json!({"response_format": form, "max_tokens": 20});
        assert_eq!(text_or_cut(&ask_chat(&server, &form)), free, "text asks for nothing");
    }
}

fn text_or_cut(response: &Response) -> String {
    response.json()["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
}

#[test]
fn each_of_n_goes_its_own_way() {
    let server = TestServer::patient(Setup::default());
    let many = with(schema_format(&person()), &json!({"n": 5, "temperature": 1.2}));
    let choices = ask_chat(&server, &many).json()["choices"].as_array().unwrap().clone();
    let mut texts: Vec<&str> =
        choices.iter().map(|choice| choice["message"]["content"].as_str().unwrap()).collect();
    let one = with(many.clone(), &json!({"n": 1}));
    assert_eq!(texts[0], text_of(&ask_chat(&server, &one)));
    let streamed = ask_chat(&server, &with(many, &json!({"stream": true}))).events();
    for (index, text) in texts.iter().enumerate() {
        assert!(keeps(&serde_json::from_str(text).unwrap(), &person()), "{text}");
        let own = streamed.iter().map(|event| &event["choices"][0]);
        let own = own.filter(|choice| choice["index"] == index);
        let joined: String = own.filter_map(|choice| choice["delta"]["content"].as_str()).collect();
        assert_eq!(joined, *text);
    }
    texts.sort_unstable();
    texts.dedup();
    assert_eq!(texts.len(), 5);
}

fn batch(server: &TestServer, prompts: &[Value]) -> Vec<Value> {
    let body = json!({"prompts": prompts, "max_tokens": 60, "temperature": 0.9});
    let response = server.post("/generate/batch", &body);
    assert_eq!(response.status, 200, "{}", response.body);
    response.json()["results"].as_array().unwrap().clone()
}

#[test]
fn free_rows_do_not_notice_constrained_ones() {
    let server = TestServer::patient(Setup::default());
    let free: Vec<Value> =
        (0..12).map(|i| json!({"prompt": format!("free {i}"), "seed": i})).collect();
    let mut mixed = Vec::new();
    for (i, prompt) in free.iter().enumerate() {
        let form = forms()[i % forms().len()].0.clone();
        mixed.extend([prompt.clone(), with(json!({"prompt": "bound", "seed": 3}), &form)]);
    }
    let together = batch(&server, &mixed);
    for (i, prompt) in free.iter().enumerate() {
        let alone = &batch(&server, std::slice::from_ref(prompt))[0];
        assert_eq!(alone["tokens"], together[2 * i]["tokens"]);
        let bound = &batch(&server, &mixed[2 * i + 1..2 * i + 2])[0];
        assert_eq!(bound["tokens"], together[2 * i + 1]["tokens"], "nor do those notice anyone");
    }
}

/// Each form is asked for twice, so that the second answer is guessed from the first.
#[test]
fn guesses_keep_to_the_form_and_change_no_token() {
    let drafts = Drafts { most: 6, base_rows: 10_000, tile_rows: 1 };
    let guessing = EngineConfig { drafts, ..EngineConfig::default() };
    let answers = |engine: EngineConfig| {
        let server = TestServer::patient(Setup { engine, ..Setup::default() });
        let mut texts = Vec::new();
        for (form, has_form) in forms().iter().flat_map(|form| [form, form]) {
            for temperature in [0.0, 1.2] {
                let sampling = json!({"temperature": temperature, "top_p": 0.95});
                let text = text_of(&ask_chat(&server, &with(form.clone(), &sampling)));
                assert!(has_form(&text), "{form}: {text:?}");
                texts.push(text);
            }
        }
        (texts, server.get("/metrics").body)
    };
    let (expected, _) = answers(EngineConfig::default());
    let (found, metrics) = answers(guessing);
    assert_eq!(found, expected);
    let accepted = metrics.lines().find(|line| line.contains("num_accepted_tokens_total{"));
    let n_accepted = accepted.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    assert!(n_accepted.unwrap() > 50.0, "{accepted:?}");
}

/// In one batch that does not fit the memory, so that most are preempted and computed again.
#[test]
fn two_hundred_random_schemas() {
    // Everybody is let in at once, as if nobody would say anything.
    let output_ratio = OutputRatio { initial: 0.0, least: 0.0, n_decay_steps: 1 };
    let engine = EngineConfig { output_ratio, watermark_permille: 0, ..EngineConfig::default() };
    let server = TestServer::patient(Setup { engine, n_blocks: Some(64), ..Setup::default() });
    let mut random = Random(7);
    let schemas: Vec<Value> = (0..200).map(|_| random.schema(3)).collect();
    let prompts: Vec<Value> = (0..)
        .zip(&schemas)
        .map(|(seed, schema)| {
            let max_tokens = if seed % 10 == 0 { 12 } else { 300 };
            let own =
                json!({"prompt": "some JSON, please", "seed": seed, "max_tokens": max_tokens});
            with(own, &schema_format(schema))
        })
        .collect();
    let results = batch(&server, &prompts);
    let mut n_whole = 0;
    for (schema, result) in schemas.iter().zip(&results) {
        if result["finish_reason"] != "stop" {
            continue;
        }
        n_whole += 1;
        let text = result["text"].as_str().unwrap();
        let value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}\n{schema}"));
        assert!(keeps(&value, schema), "{value} does not keep to {schema}");
    }
    assert!(n_whole >= 150, "only {n_whole} of 200 came to their end");
    assert!(server.metric("vllm:num_preemptions_total") > 0.0);
}

#[test]
fn forms_that_make_no_sense_are_refused() {
    let server = TestServer::patient(Setup::default());
    let format = |format: Value| json!({"response_format": format});
    let cases = [
        (format(json!({"type": "xml"})), "response_format"),
        (format(json!("json_object")), "response_format"),
        (format(json!({"type": "json_schema"})), "response_format"),
        (schema_format(&json!({"type": "nonsense"})), "response_format"),
        (schema_format(&json!([])), "response_format"),
        (schema_format(&json!({"type": "string", "not": {"const": "a"}})), "response_format"),
        (json!({"guided_json": "{"}), "guided_json"),
        (json!({"guided_json": 5}), "guided_json"),
        (json!({"guided_regex": "(unclosed"}), "guided_regex"),
        (json!({"guided_regex": ["a"]}), "guided_regex"),
        (json!({"guided_regex": "a?".repeat(50_000)}), "guided_regex"),
        (json!({"guided_choice": []}), "guided_choice"),
        (json!({"guided_choice": "yes"}), "guided_choice"),
        (json!({"guided_grammar": "start: missing"}), "guided_grammar"),
        (json!({"guided_grammar": "start: \"a\"", "guided_regex": "a"}), "guided_grammar"),
    ];
    for (form, param) in cases {
        let (status, error) = ask_chat(&server, &form).error();
        assert_eq!((status, error["param"].as_str()), (400, Some(param)), "{form}");
        assert!(error["message"].as_str().unwrap().len() < 1000);
    }
}

/// The engine stands still while the bomb is looked at, so that neither can hide behind the other.
#[test]
fn a_bomb_is_refused_while_a_stream_goes_on() {
    let server = TestServer::patient(Setup { is_gated: true, ..Setup::default() });
    let ask = json!({"prompt": "on", "max_tokens": 30, "seed": 4, "stream": true,
                     "ignore_eos": true});
    let mut stream = server.start("/v1/completions", &ask);
    server.allow_steps(10);
    stream.head();
    stream.line_starting("data: ");
    let either: Vec<Value> =
        (2..26).map(|i| json!({"anyOf": [{"minimum": i}, {"multipleOf": i}]})).collect();
    let deep = (0..5_000).fold("{}".to_owned(), |inner, _| format!("{{\"items\":{inner}}}"));
    let bombs = [
        schema_format(&json!({"type": "number", "allOf": either})),
        json!({"guided_json": deep}),
        json!({"guided_grammar": "start: ".to_owned() + &"(".repeat(10_000)}),
    ];
    for bomb in &bombs {
        assert_eq!(ask_chat(&server, bomb).error().0, 400);
    }
    server.allow_steps(1000);
    let line = stream.line_starting("data: [DONE]");
    assert_eq!(line, "data: [DONE]");
}

#[test]
fn what_takes_too_long_is_refused_and_there_the_next_time() {
    let options = ServerOptions { grammar_timeout: Duration::ZERO, ..ServerOptions::default() };
    let server = TestServer::new(Setup { options, ..Setup::default() });
    let form = json!({"guided_choice": ["yes", "no"]});
    let (status, error) = ask_chat(&server, &form).error();
    assert_eq!((status, error["code"].as_str()), (400, Some("grammar_too_complex")));
    for _ in 0..10_000 {
        let response = ask_chat(&server, &form);
        if response.status == 200 {
            assert!(["yes", "no"].contains(&text_of(&response).as_str()));
            return;
        }
    }
    panic!("it was never compiled");
}
