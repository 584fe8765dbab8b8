//! What strangers send: the right refusal, and a server that goes on.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::Duration;

use paceline_server::ServerOptions;
use serde_json::{Value, json};

use crate::client::{Exchange, connect, get_bytes, post_bytes};
use crate::harness::{Setup, TestServer};

const COMPLETIONS: &str = "/v1/completions";

fn quick() -> TestServer {
    let options = ServerOptions {
        max_body_bytes: 1 << 20,
        body_timeout: Duration::from_millis(100),
        header_timeout: Duration::from_millis(100),
        ..ServerOptions::default()
    };
    TestServer::new(Setup { options, ..Setup::default() })
}

fn is_well(server: &TestServer) {
    let answer = server.post(COMPLETIONS, &json!({"prompt": "on", "max_tokens": 2}));
    assert_eq!(answer.status, 200, "{}", answer.body);
}

#[test]
fn bodies_that_are_no_requests() {
    let server = quick();
    let deep = format!("{}1{}", "[".repeat(50_000), "]".repeat(50_000));
    let deep_field = format!("{{\"prompt\": {deep}}}");
    let stops = json!({"prompt": "a", "stop": vec!["x"; 100_000]}).to_string();
    let biases: serde_json::Map<String, Value> =
        (0..5000).map(|i| (i.to_string(), json!(1))).collect();
    let biases = json!({"prompt": "a", "logit_bias": biases}).to_string();
    let cases: [(&str, &[u8]); 14] = [
        ("nothing", b""),
        ("no JSON", b"hello"),
        ("half JSON", b"{\"prompt\": \"a\""),
        ("a list", b"[1, 2]"),
        ("a number", b"7"),
        ("null", b"null"),
        ("invalid UTF-8", b"{\"prompt\": \"\xff\xfe\"}"),
        ("a lone surrogate", b"{\"prompt\": \"\\ud800\"}"),
        ("a zero byte", b"{\"prompt\": \"a\"}\0"),
        ("two objects", b"{\"prompt\": \"a\"}{}"),
        ("deep lists", deep.as_bytes()),
        ("a deep field", deep_field.as_bytes()),
        ("many stop strings", stops.as_bytes()),
        ("many biases", biases.as_bytes()),
    ];
    for (name, body) in cases {
        for path in [COMPLETIONS, "/v1/chat/completions", "/generate/batch", "/v1/responses"] {
            let answer = Exchange::send(server.address, &post_bytes(path, &[], body)).finish();
            assert_eq!(answer.error().0, 400, "{name} at {path}");
        }
    }
    is_well(&server);
}

#[test]
fn numbers_nobody_means() {
    let server = quick();
    let numbers =
        ["-1", "1e999", "-1e999", "1e308", "18446744073709551616", "0.5", "true", "\"1\""];
    for field in ["max_tokens", "n", "top_k", "logprobs", "min_tokens", "best_of", "seed"] {
        for number in numbers {
            let body = format!("{{\"prompt\": \"a\", \"max_tokens\": 1, \"{field}\": {number}}}");
            let answer = Exchange::send(
                server.address,
                &post_bytes(
                    COMPLETIONS,
                    &[],
                    body.replace("\"max_tokens\": 1, \"max", "\"max").as_bytes(),
                ),
            );
            let status = answer.finish().status;
            // A negative top_k is "off", a negative seed is a seed.
            let is_fine = matches!((field, number), ("top_k" | "seed", "-1"));
            assert_eq!(status, if is_fine { 200 } else { 400 }, "{field}: {number}");
        }
    }
    is_well(&server);
}

#[test]
fn bodies_that_are_too_large_or_never_come() {
    let server = quick();
    let large = vec![b' '; (1 << 20) + 1];
    let answer = Exchange::send(server.address, &post_bytes(COMPLETIONS, &[], &large)).finish();
    assert_eq!(answer.error().0, 413);
    // A body that stops in the middle is given up, not waited for.
    let mut socket = connect(server.address);
    socket
        .write_all(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{")
        .unwrap();
    assert_eq!(Exchange::of(socket).finish().error().0, 408);
    is_well(&server);
}

#[test]
fn heads_that_are_too_large_or_never_end() {
    let server = quick();
    let mut socket = connect(server.address);
    let huge = "x".repeat(10 << 20);
    let head = format!("GET /health HTTP/1.1\r\nHost: a\r\nX-Huge: {huge}\r\n\r\n");
    // The server may close before it has read everything.
    let _ = socket.write_all(head.as_bytes());
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");

    let mut slow = connect(server.address);
    slow.write_all(b"GET /health HTTP/1.1\r\nHost:").unwrap();
    let mut answer = Vec::new();
    slow.read_to_end(&mut answer).unwrap();
    assert!(!answer.starts_with(b"HTTP/1.1 200"));

    let mut garbage = connect(server.address);
    garbage.write_all(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = garbage.read_to_end(&mut answer);
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 400"));
    is_well(&server);
}

#[test]
fn a_half_closed_socket_is_a_client_that_left() {
    let server = quick();
    let mut socket = connect(server.address);
    let body = json!({"prompt": "on", "max_tokens": 2}).to_string();
    socket.write_all(&post_bytes(COMPLETIONS, &[], body.as_bytes())).unwrap();
    socket.shutdown(Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer);
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 200"));
    server.wait_for("vllm:kv_cache_usage_perc", |usage| usage == 0.0);
    is_well(&server);
}

#[test]
fn paths_and_methods_nobody_serves() {
    let server = quick();
    for path in ["/v1", "/v1/", "//", "/v1/chat", "/%00", "/../etc/passwd", "/v1/models/%ff"] {
        let answer = Exchange::send(server.address, &get_bytes(path, &[])).finish();
        assert!([400, 404].contains(&answer.error().0), "{path}: {}", answer.status);
    }
    let delete = b"DELETE /v1/models HTTP/1.1\r\nHost: a\r\n\r\n";
    assert_eq!(Exchange::send(server.address, delete).finish().error().0, 405);
    is_well(&server);
}

/// A generator of nonsense: `SplitMix64`.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }

    fn value(&mut self, depth: usize) -> Value {
        let words = ["", "high", "text", "the", "\u{1f600}\u{0}", "json_schema", "1"];
        match self.below(if depth == 0 { 7 } else { 9 }) {
            0 => Value::Null,
            1 => json!(self.below(2) == 0),
            2 => json!(self.below(40) as i64 - 20),
            3 => json!((self.below(1000) as f64 - 500.0) / 7.0),
            4 => json!(u64::MAX - self.below(3) as u64),
            5 => json!(f64::MAX / (1 + self.below(9)) as f64),
            6 => json!(words[self.below(words.len())]),
            7 => (0..self.below(4)).map(|_| self.value(depth - 1)).collect(),
            _ => {
                let keys = ["type", "role", "content", "text", "prompt", "1", "include_usage"];
                let entry =
                    |r: &mut Random| (keys[r.below(keys.len())].to_owned(), r.value(depth - 1));
                let n = self.below(4);
                Value::Object((0..n).map(|_| entry(self)).collect())
            }
        }
    }
}

const FIELDS: [&str; 40] = [
    "model",
    "prompt",
    "prompts",
    "messages",
    "input",
    "instructions",
    "max_tokens",
    "tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "min_tokens",
    "seed",
    "n",
    "best_of",
    "logprobs",
    "top_logprobs",
    "echo",
    "priority",
    "stream_options",
    "response_format",
    "tools",
    "tool_choice",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "text",
    "include_stop_str_in_output",
];

/// Random bodies: some are requests, most are not, none may do harm.
#[test]
fn random_bodies_are_answered() {
    let server = quick();
    let routes = [
        COMPLETIONS,
        "/v1/chat/completions",
        "/v1/responses",
        "/generate",
        "/generate/batch",
        "/tokenize",
        "/detokenize",
    ];
    let mut statuses = std::collections::BTreeMap::new();
    for seed in 0..1500 {
        let mut r = Random(seed);
        let mut body = json!({"prompt": "on", "messages": [{"role": "user", "content": "a"}],
                              "input": "a", "prompts": ["a", [5]], "tokens": [4], "max_tokens": 3,
                              "max_output_tokens": 3});
        for _ in 0..r.below(3) {
            body[FIELDS[r.below(FIELDS.len())]] = r.value(3);
        }
        let mut bytes = body.to_string().into_bytes();
        if r.below(4) == 0 {
            let at = r.below(bytes.len());
            bytes[at] = r.below(256) as u8;
        }
        let path = routes[r.below(routes.len())];
        let answer = Exchange::send(server.address, &post_bytes(path, &[], &bytes)).finish();
        assert!(
            [200, 400, 404].contains(&answer.status),
            "seed {seed}: {} {}",
            answer.status,
            answer.body
        );
        if answer.status != 200 {
            answer.error();
        }
        *statuses.entry(answer.status).or_insert(0) += 1;
    }
    assert!(statuses[&200] > 300 && statuses[&400] > 300, "{statuses:?}");
    is_well(&server);
}
