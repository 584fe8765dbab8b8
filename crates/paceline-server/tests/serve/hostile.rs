//! What strangers send: the right refusal, and a server that goes on.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::Duration;

use paceline_server::ServerOptions;
use serde_json::{Value, json};

use crate::client::{Exchange, connect, get_bytes, post_bytes};
use crate::harness::{Setup, TestServer};

const COMPLETIONS: &str = "/v1/completions";

/// Does not wait for those who send nothing more.
fn quick() -> TestServer {
    let timeout = Duration::from_millis(100);
    server(ServerOptions {
        body_timeout: timeout,
        header_timeout: timeout,
        ..ServerOptions::default()
    })
}

/// Waits as long as it does by default, so that a machine that is busy is not taken for a stranger.
fn patient() -> TestServer {
    server(ServerOptions::default())
}

fn server(options: ServerOptions) -> TestServer {
    let options = ServerOptions { max_body_bytes: 1 << 20, ..options };
    TestServer::new(Setup { options, ..Setup::default() })
}

fn is_well(server: &TestServer) {
    let answer = server.post(COMPLETIONS, &json!({"prompt": "on", "max_tokens": 2}));
    assert_eq!(answer.status, 200, "{}", answer.body);
}

#[test]
fn bodies_that_are_no_requests() {
    let server = patient();
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
    let server = patient();
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
    let server = patient();
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
    let server = patient();
    for path in ["/v1", "/v1/", "//", "/v1/chat", "/%00", "/../etc/passwd", "/v1/models/%ff"] {
        let answer = Exchange::send(server.address, &get_bytes(path, &[])).finish();
        assert!([400, 404].contains(&answer.error().0), "{path}: {}", answer.status);
    }
    let delete = b"DELETE /v1/models HTTP/1.1\r\nHost: a\r\n\r\n";
    assert_eq!(Exchange::send(server.address, delete).finish().error().0, 405);
    is_well(&server);
}
