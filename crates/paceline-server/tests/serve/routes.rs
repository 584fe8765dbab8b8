//! What each route answers when all is well, and its plainest errors.

use paceline_server::{JobOptions, ServerOptions};
use serde_json::{Value, json};

use crate::client::{Exchange, get_bytes, post_bytes};
use crate::harness::{MODEL, Setup, TestServer, tokenizer};

fn completion(extra: Value) -> Value {
    let mut body = json!({"model": MODEL, "prompt": "the rain in", "temperature": 0, "seed": 1,
                          "ignore_eos": true, "max_tokens": 8});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

fn chat(extra: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "hi"}], "temperature": 0,
                          "ignore_eos": true, "max_completion_tokens": 8});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

#[test]
fn health_models_version() {
    let server = TestServer::plain();
    assert_eq!(server.get("/health").status, 200);
    assert_eq!(server.get("/ready").status, 200);
    assert!(server.get("/version").json()["version"].is_string());
    let models = server.get("/v1/models").json();
    assert_eq!(models["object"], "list");
    assert_eq!(models["data"][0]["id"], MODEL);
    assert_eq!(models["data"][0]["max_model_len"], 1024);
    assert_eq!(server.get(&format!("/v1/models/{MODEL}")).json()["id"], MODEL);
    let (status, error) = server.get("/v1/models/other").error();
    assert_eq!((status, &error["code"]), (404, &json!("model_not_found")));
}

#[test]
fn health_is_503_until_there_is_a_model() {
    let server = TestServer::without_model(Setup::default().options);
    let loading = server.get("/health");
    assert_eq!(loading.error().1["type"], "unavailable_error");
    assert_eq!(loading.status, 503);
    assert!(loading.header("retry-after").is_some());
    assert_eq!(server.get("/ping").status, 200, "the process is there");
    assert_eq!(server.post("/v1/completions", &completion(json!({}))).status, 503);
    assert_eq!(server.get("/metrics").status, 200);
    let server = server.load(Setup::default());
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn the_examples_of_the_document_are_answered() {
    let dir = tempfile::tempdir().unwrap();
    let jobs = Some(JobOptions::new(dir.path().to_owned()));
    let options = ServerOptions { jobs, ..ServerOptions::default() };
    let server = TestServer::new(Setup { options, ..Setup::default() });
    let document = server.get("/openapi.json").json();
    assert_eq!(document["openapi"], "3.1.0");
    let mut n_sent = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        let body = &methods["post"]["requestBody"]["content"]["application/json"]["example"];
        if !body.is_null() {
            let answer = server.post(path, body);
            assert_eq!(answer.status, 200, "{path}: {}", answer.body);
            n_sent += 1;
        } else if !path.contains('{') {
            // The head alone: some streams never end.
            let head = Exchange::send(server.address, &get_bytes(path, &[])).head();
            assert_eq!(head.status, 200, "{path}");
        }
    }
    assert_eq!(n_sent, 8);
}

#[test]
fn a_completion_streamed_and_whole_is_the_same() {
    let server = TestServer::plain();
    let whole = server.post("/v1/completions", &completion(json!({}))).json();
    assert_eq!(whole["object"], "text_completion");
    assert_eq!(whole["model"], MODEL);
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    let n_prompt =
        tokenizer().encode("the rain in", paceline_model::tokenizer::SpecialTokens::Parse);
    let n_prompt = n_prompt.unwrap().len();
    assert_eq!(whole["usage"]["prompt_tokens"], n_prompt);
    assert_eq!(whole["usage"]["completion_tokens"], 8);
    assert_eq!(whole["usage"]["total_tokens"], n_prompt + 8);

    let options = json!({"stream": true, "stream_options": {"include_usage": true}});
    let stream = server.post("/v1/completions", &completion(options));
    assert_eq!(stream.header("content-type"), Some("text/event-stream"));
    let mut events = stream.events();
    let last = events.pop().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], 8);
    assert!(events.iter().all(|event| event["usage"].is_null()));
    let text: String =
        events.iter().map(|event| event["choices"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(text, whole["choices"][0]["text"]);
    assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "length");
}

#[test]
fn a_chat_streamed_and_whole_is_the_same() {
    let server = TestServer::plain();
    let whole = server.post("/v1/chat/completions", &chat(json!({}))).json();
    assert_eq!(whole["object"], "chat.completion");
    let message = &whole["choices"][0]["message"];
    assert_eq!(message["role"], "assistant");
    assert_eq!(whole["usage"]["completion_tokens"], 8);

    let events = server.post("/v1/chat/completions", &chat(json!({"stream": true}))).events();
    assert_eq!(events[0]["object"], "chat.completion.chunk");
    assert_eq!(events[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    assert!(events.iter().all(|event| event.get("usage").is_none()));
    let text: String = events
        .iter()
        .filter_map(|event| event["choices"][0]["delta"]["content"].as_str())
        .collect();
    assert_eq!(message["content"], text);
    let last = &events.last().unwrap()["choices"][0];
    assert_eq!((&last["delta"], &last["finish_reason"]), (&json!({}), &json!("length")));
}

#[test]
fn prompts_come_as_text_and_as_tokens() {
    let server = TestServer::plain();
    let ids =
        tokenizer().encode("the rain in", paceline_model::tokenizer::SpecialTokens::Parse).unwrap();
    let texts = |prompt: Value| {
        let answer = server.post("/v1/completions", &completion(json!({"prompt": prompt}))).json();
        let choices = answer["choices"].as_array().unwrap().clone();
        for (place, choice) in choices.iter().enumerate() {
            assert_eq!(choice["index"], place);
        }
        choices.iter().map(|choice| choice["text"].clone()).collect::<Vec<_>>()
    };
    let [one] = &texts(json!("the rain in"))[..] else { panic!("one choice") };
    assert_eq!(&texts(json!(ids))[..], std::slice::from_ref(one));
    assert_eq!(&texts(json!(["the rain in", "the rain in"])), &[one.clone(), one.clone()]);
    let [first, other] = &texts(json!([ids, [9, 9, 9]]))[..] else { panic!("two choices") };
    assert_eq!(first, one);
    assert_ne!(other, one);
}

#[test]
fn plain_errors_have_openais_form() {
    let server = TestServer::plain();
    let cases = [
        (json!({"model": "other"}), 404, json!("model"), json!("model_not_found")),
        (json!({"prompt": null}), 400, json!("prompt"), json!(null)),
        (json!({"prompt": {"a": 1}}), 400, json!("prompt"), json!(null)),
        (json!({"prompt": ""}), 400, json!("prompt"), json!(null)),
        (
            json!({"prompt": "a".repeat(3000)}),
            400,
            json!("prompt"),
            json!("context_length_exceeded"),
        ),
        (json!({"prompt": [1, 1_000_000]}), 400, json!("prompt"), json!(null)),
        (json!({"prompt": [1, -1]}), 400, json!("prompt"), json!(null)),
        (json!({"temperature": "hot"}), 400, json!("temperature"), json!(null)),
        (json!({"temperature": -1}), 400, json!("temperature"), json!(null)),
        (json!({"temperature": 1e30}), 400, json!("temperature"), json!(null)),
        (json!({"top_p": 2}), 400, json!("top_p"), json!(null)),
        (json!({"max_tokens": -1}), 400, json!("max_tokens"), json!(null)),
        (json!({"max_tokens": 1e300}), 400, json!("max_tokens"), json!(null)),
        (json!({"n": 0}), 400, json!("n"), json!(null)),
        (json!({"n": 100_000}), 400, json!("n"), json!(null)),
        (json!({"logprobs": 21}), 400, json!("logprobs"), json!(null)),
        (json!({"stop": vec!["a"; 17]}), 400, json!("stop"), json!(null)),
        (json!({"stop": [1]}), 400, json!("stop"), json!(null)),
        (json!({"stop": ""}), 400, json!("stop"), json!(null)),
        (json!({"logit_bias": {"x": 1}}), 400, json!("logit_bias"), json!(null)),
        (json!({"logit_bias": {"1": 101}}), 400, json!("logit_bias"), json!(null)),
        (json!({"logit_bias": {"100000": 1}}), 400, json!("logit_bias"), json!(null)),
        (json!({"best_of": 1, "n": 2}), 400, json!("best_of"), json!(null)),
        (json!({"priority": "urgent"}), 400, json!("priority"), json!(null)),
        (json!({"seed": 1.5}), 400, json!("seed"), json!(null)),
    ];
    for (extra, status, param, code) in cases {
        let response = server.post("/v1/completions", &completion(extra.clone()));
        let error = response.error();
        assert_eq!(
            (error.0, &error.1["param"], &error.1["code"]),
            (status, &param, &code),
            "{extra}"
        );
    }
    let (status, error) = server.get("/nowhere").error();
    assert_eq!((status, &error["type"]), (404, &json!("invalid_request_error")));
    assert_eq!(server.get("/v1/completions").error().0, 405);
    let (status, error) = server.post("/v1/chat/completions", &json!({"messages": []})).error();
    assert_eq!((status, &error["param"]), (400, &json!("messages")));
}

#[test]
fn request_ids_come_back() {
    let server = TestServer::plain();
    let named = get_bytes("/health", &[("X-Request-Id", "mine-7")]);
    let response = Exchange::send(server.address, &named).finish();
    assert_eq!(response.header("x-request-id"), Some("mine-7"));
    let odd = get_bytes("/health", &[("X-Request-Id", "has space")]);
    let made_up = Exchange::send(server.address, &odd).finish();
    assert_eq!(made_up.header("x-request-id").unwrap().len(), 32);
    let body = completion(json!({})).to_string();
    let named = post_bytes("/v1/completions", &[("x-request-id", "abc")], body.as_bytes());
    let response = Exchange::send(server.address, &named).finish();
    assert_eq!(response.json()["id"], "cmpl-abc");
}
