//! `/v1/embeddings`: its forms, its vectors, and its place among the other requests.

use paceline_engine::Pooling;
use paceline_engine::fake::FakeModel;
use paceline_model::tokenizer::SpecialTokens;
use paceline_server::{KeyRule, ServerOptions};
use serde_json::{Value, json};

use crate::client::{Exchange, post_bytes};
use crate::harness::{MODEL, Setup, TestServer, limits, tokenizer};

const PATH: &str = "/v1/embeddings";

fn with(pooling: Pooling) -> TestServer {
    TestServer::new(Setup { pooling, ..Setup::default() })
}

/// What the fake model must give for a prompt, at length 1.
fn expected(tokens: &[u32], pooling: Pooling) -> Vec<f64> {
    let model = FakeModel::new(limits().n_vocab);
    let mut state = FakeModel::START;
    let mut states = Vec::new();
    for &token in tokens {
        state = FakeModel::advance(state, token);
        states.push(model.hidden(state));
    }
    if pooling == Pooling::Last {
        states.drain(..states.len() - 1);
    }
    let sum = |i: usize| states.iter().map(|state| f64::from(state[i])).sum::<f64>();
    let mean: Vec<f64> = (0..4).map(|i| sum(i) / states.len() as f64).collect();
    let length = mean.iter().map(|x| x * x).sum::<f64>().sqrt();
    mean.iter().map(|x| x / length).collect()
}

fn vector(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

fn assert_near(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{found:?}");
}

#[test]
fn all_forms_of_input_give_the_pooled_states() {
    for pooling in [Pooling::Last, Pooling::Mean] {
        let server = with(pooling);
        let tokens = |text: &str| tokenizer().encode(text, SpecialTokens::Parse).unwrap();
        let (a, b) = ("the rain in spain", "falls");
        let cases = [
            (json!(a), vec![tokens(a)]),
            (json!([a, b]), vec![tokens(a), tokens(b)]),
            (json!([5, 6, 7]), vec![vec![5, 6, 7]]),
            (json!([[5, 6, 7], [9]]), vec![vec![5, 6, 7], vec![9]]),
        ];
        for (input, prompts) in cases {
            let answer = server.post(PATH, &json!({"model": MODEL, "input": input}));
            assert_eq!(answer.status, 200, "{}", answer.body);
            let answer = answer.json();
            assert_eq!((&answer["object"], &answer["model"]), (&json!("list"), &json!(MODEL)));
            let n_tokens: usize = prompts.iter().map(Vec::len).sum();
            let usage = json!({"prompt_tokens": n_tokens, "total_tokens": n_tokens});
            assert_eq!(answer["usage"], usage);
            let data = answer["data"].as_array().unwrap();
            assert_eq!(data.len(), prompts.len());
            for (i, (entry, prompt)) in data.iter().zip(&prompts).enumerate() {
                assert_eq!((&entry["object"], &entry["index"]), (&json!("embedding"), &json!(i)));
                assert_near(&vector(&entry["embedding"]), &expected(prompt, pooling));
            }
        }
    }
}

#[test]
fn base64_has_the_same_bits() {
    let server = with(Pooling::Mean);
    let ask = |format: &str| {
        let body = json!({"input": [3, 1, 4, 1, 5], "encoding_format": format, "dimensions": 4});
        server.post(PATH, &body).json()["data"][0]["embedding"].clone()
    };
    let floats = vector(&ask("float"));
    let alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let text = ask("base64");
    let sextets = text.as_str().unwrap().trim_end_matches('=').chars();
    let bits: String = sextets.map(|c| format!("{:06b}", alphabet.find(c).unwrap())).collect();
    let byte = |i: usize| u8::from_str_radix(&bits[8 * i..8 * i + 8], 2).unwrap();
    let word = |i: usize| f32::from_le_bytes([0, 1, 2, 3].map(|j| byte(4 * i + j)));
    let words: Vec<f32> = (0..4).map(word).collect();
    assert_eq!(words, floats.iter().map(|&x| x as f32).collect::<Vec<_>>());
}

/// Many at once, beside streams and in chunks, are what each is alone.
#[test]
fn the_batch_does_not_change_a_vector() {
    let mut setup = Setup { pooling: Pooling::Mean, ..Setup::default() };
    setup.engine.max_num_batched_tokens = 48;
    let server = TestServer::new(setup);
    let prompt = |i: usize| (0..=7 * i).map(|j| (i * 31 + j * 7) % 300).collect::<Vec<_>>();
    let prompts: Vec<_> = (0..16).map(prompt).collect();
    let ask = |input: Value| server.post(PATH, &json!({"input": input})).json()["data"].clone();
    let alone: Vec<Value> =
        prompts.iter().map(|prompt| ask(json!(prompt))[0]["embedding"].clone()).collect();
    let stream = json!({"prompt": "the", "max_tokens": 400, "ignore_eos": true, "stream": true});
    let streams: Vec<Exchange> = (0..4).map(|_| server.start("/v1/completions", &stream)).collect();
    let together = ask(json!(prompts));
    for (i, alone) in alone.iter().enumerate() {
        assert_eq!(&together[i]["embedding"], alone, "prompt {i}");
    }
    streams.into_iter().for_each(|stream| assert_eq!(stream.finish().status, 200));
    server.wait_for("vllm:request_queue_time_seconds_count", |n| n == 16.0 + 16.0 + 4.0);
}

#[test]
fn it_obeys_fields_keys_limits_and_figures() {
    let rule = KeyRule { max_concurrent: Some(1), ..KeyRule::new("a", "sk-a") };
    let options = ServerOptions { keys: vec![rule], max_prompts: 3, ..ServerOptions::default() };
    let server = TestServer::new(Setup { options, is_gated: true, ..Setup::default() });
    let send = |key: &str, body: &Value| {
        let headers = [("Authorization", key)];
        let bytes = post_bytes(PATH, &headers, body.to_string().as_bytes());
        Exchange::send(server.address, &bytes)
    };
    let mine = "Bearer sk-a";
    assert_eq!(send("", &json!({"input": "a"})).finish().status, 401);
    let long: Vec<u32> = vec![1; 1024];
    for (body, status, param) in [
        (json!({}), 400, json!("input")),
        (json!({"input": []}), 400, json!("input")),
        (json!({"input": [[]]}), 400, json!("input")),
        (json!({"input": {"a": 1}}), 400, json!("input")),
        (json!({"input": [1, 2], "dimensions": 3}), 400, json!("dimensions")),
        (json!({"input": [999_999]}), 400, json!("input")),
        (json!({"input": ["a", "b", "c", "d"]}), 400, json!("input")),
        (json!({"input": long}), 400, json!("input")),
        (json!({"input": "a", "encoding_format": "int8"}), 400, json!("encoding_format")),
        (json!({"input": "a", "model": "other"}), 404, json!("model")),
    ] {
        let (found, error) = send(mine, &body).finish().error();
        assert_eq!((found, &error["param"]), (status, &param), "{body} {error}");
    }
    // A stream that has begun holds the key's only place.
    let ask = json!({"prompt": "a", "max_tokens": 9, "ignore_eos": true, "stream": true});
    let bytes =
        post_bytes("/v1/completions", &[("Authorization", mine)], ask.to_string().as_bytes());
    let mut stream = Exchange::send(server.address, &bytes);
    server.allow_steps(1);
    assert_eq!(stream.head().status, 200);
    let refused = send(mine, &json!({"input": "c"})).finish();
    assert_eq!(refused.status, 429);
    assert_eq!(refused.error().1["code"], "concurrency_limit");
    server.allow_steps(100);
    stream.line_starting("data: [DONE]");
    let is_let_in = |_| send(mine, &json!({"input": "c"})).finish().status == 200;
    assert!((0..1000).any(is_let_in), "the place is free again");
}
