//! Too much at once, clients that leave, and the end of the server.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use paceline_engine::EngineConfig;
use paceline_engine::fake::FakeFailures;
use paceline_server::{KeyRule, ServerOptions};
use serde_json::{Value, json};

use crate::client::{Exchange, Response, get_bytes, post_bytes};
use crate::harness::{Setup, TestServer};

const COMPLETIONS: &str = "/v1/completions";

fn ask(max_tokens: u32) -> Value {
    // A token that is a character, so that every step has something to show.
    json!({"prompt": "in the", "logit_bias": {"40": 100}, "max_tokens": max_tokens})
}

fn ask_stream(max_tokens: u32) -> Value {
    let mut body = ask(max_tokens);
    body["stream"] = true.into();
    body
}

fn gated(options: ServerOptions, max_num_seqs: u32) -> TestServer {
    let engine = EngineConfig { max_num_seqs, ..EngineConfig::default() };
    TestServer::new(Setup { options, engine, is_gated: true, ..Setup::default() })
}

/// Starts a stream and reads its first token.
fn stream_with_token(server: &TestServer, max_tokens: u32) -> Exchange {
    let mut stream = server.start(COMPLETIONS, &ask_stream(max_tokens));
    server.allow_steps(1);
    assert_eq!(stream.head().status, 200);
    stream.line_starting("data: ");
    stream
}

#[test]
fn a_full_queue_says_429_and_when_to_come_back() {
    let options = ServerOptions { max_queued_requests: 3, ..ServerOptions::default() };
    let server = gated(options, 8);
    let (sender, answers) = channel::<Response>();
    for _ in 0..10 {
        let exchange = server.start(COMPLETIONS, &ask(2));
        let sender = sender.clone();
        std::thread::spawn(move || sender.send(exchange.finish()));
    }
    for _ in 0..7 {
        let refused = answers.recv().unwrap();
        let (status, error) = refused.error();
        assert_eq!((status, &error["code"]), (429, &json!("queue_full")));
        assert_eq!(error["type"], "rate_limit_error");
        assert!(refused.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
        assert_eq!(refused.header("x-should-retry"), Some("true"));
    }
    server.allow_steps(1000);
    for _ in 0..3 {
        assert_eq!(answers.recv().unwrap().status, 200);
    }
    assert_eq!(server.post(COMPLETIONS, &ask(1)).status, 200, "there is room again");
}

#[test]
fn prompt_tokens_fill_the_queue_too() {
    let options = ServerOptions { max_queued_tokens: 100, ..ServerOptions::default() };
    let server = gated(options, 8);
    let long = json!({"prompt": vec![7; 90], "max_tokens": 1});
    let first = server.start(COMPLETIONS, &long);
    let (sender, answers) = channel();
    // Of two that do not fit together one is refused, whichever comes second.
    let second = server.start(COMPLETIONS, &long);
    for exchange in [first, second] {
        let sender = sender.clone();
        std::thread::spawn(move || sender.send(exchange.finish().status));
    }
    assert_eq!(answers.recv().unwrap(), 429);
    server.allow_steps(1000);
    assert_eq!(answers.recv().unwrap(), 200);
}

#[test]
fn whoever_waits_too_long_is_turned_away() {
    let queue_timeout = Some(Duration::from_millis(20));
    let server = gated(ServerOptions { queue_timeout, ..ServerOptions::default() }, 1);
    // The first must get in whatever the machine does meanwhile, so it may try again.
    let mut running = loop {
        let mut stream = server.start(COMPLETIONS, &ask_stream(900));
        server.allow_steps(1);
        if stream.head().status == 200 {
            break stream;
        }
    };
    let (sender, answer) = channel();
    let waiting = server.start(COMPLETIONS, &ask(1));
    std::thread::spawn(move || sender.send(waiting.finish()));
    // Step until it is seen in the queue, or gone from it again; then let its time pass.
    let sent = Instant::now();
    let refused = loop {
        server.allow_steps(1);
        running.line_starting("data: ");
        if let Ok(response) = answer.try_recv() {
            break response;
        }
        if server.metric("vllm:num_requests_waiting") == 1.0 {
            while sent.elapsed() < Duration::from_millis(200) {
                server.get("/ping");
            }
            server.allow_steps(1);
            break answer.recv().unwrap();
        }
    };
    let (status, error) = refused.error();
    assert_eq!((status, &error["code"]), (429, &json!("queue_timeout")));
}

#[test]
fn a_client_that_leaves_a_stream_frees_its_blocks() {
    let server = gated(ServerOptions::default(), 8);
    let stream = stream_with_token(&server, 900);
    server.wait_for("vllm:num_requests_running", |n| n == 1.0);
    drop(stream);
    server.wait_for("vllm:kv_cache_usage_perc", |usage| {
        server.allow_steps(1);
        usage == 0.0
    });
    assert!(server.metric("vllm:generation_tokens_total") < 900.0);
    server.wait_for("vllm:request_success_total", |n| n == 1.0);
    assert!(server.get("/metrics").body.contains("finished_reason=\"abort\"} 1"));
}

#[test]
fn a_client_that_leaves_before_its_answer_is_cancelled_too() {
    let server = gated(ServerOptions::default(), 8);
    let exchange = server.start(COMPLETIONS, &ask(900));
    server.allow_steps(1);
    server.wait_for("vllm:num_requests_running", |n| n == 1.0);
    drop(exchange);
    server.wait_for("vllm:num_requests_running", |n| {
        server.allow_steps(1);
        n == 0.0
    });
    assert!(server.metric("vllm:generation_tokens_total") < 900.0);
}

#[test]
fn shutting_down_finishes_what_was_accepted() {
    let server = gated(ServerOptions::default(), 8);
    let mut stream = stream_with_token(&server, 900);
    let queued = server.start(COMPLETIONS, &ask(30));
    server.wait_for("vllm:num_requests_running", |n| {
        server.allow_steps(1);
        n == 2.0
    });
    server.handle.shut_down();
    assert_eq!(server.get("/health").status, 503);
    assert_eq!(server.get("/ping").status, 200);
    assert_eq!(server.post(COMPLETIONS, &ask(1)).status, 503);
    server.allow_steps(1000);
    assert_eq!(queued.finish().json()["usage"]["completion_tokens"], 30);
    stream.line_starting("data: [DONE]");
    server.join();
}

#[test]
fn what_does_not_finish_in_time_is_told_so() {
    let shutdown_timeout = Duration::ZERO;
    let server = gated(ServerOptions { shutdown_timeout, ..ServerOptions::default() }, 8);
    let mut stream = stream_with_token(&server, 900);
    server.handle.shut_down();
    let event = loop {
        server.allow_steps(1);
        let line = stream.line_starting("data: ");
        if line.contains("error") {
            break line;
        }
    };
    assert!(event.contains("unavailable_error"), "{event}");
    server.join();
}

#[test]
fn keys_guard_everything_but_health() {
    let keys = vec![KeyRule::new("ann", "sk-ann"), KeyRule::new("bob", "sk-bob")];
    let options = ServerOptions { keys, ..ServerOptions::default() };
    let server = TestServer::new(Setup { options, ..Setup::default() });
    for open in ["/health", "/ready", "/ping"] {
        assert_eq!(server.get(open).status, 200, "{open}");
    }
    for guarded in ["/metrics", "/v1/models", "/version", "/nowhere"] {
        let (status, error) = server.get(guarded).error();
        assert_eq!((status, &error["type"]), (401, &json!("authentication_error")), "{guarded}");
    }
    assert_eq!(server.post(COMPLETIONS, &ask(1)).status, 401);
    for (key, status) in [("sk-ann", 200), ("sk-bob", 200), ("sk-", 401), ("sk-annn", 401)] {
        let header = format!("Bearer {key}");
        let body = ask(1).to_string();
        let bytes = post_bytes(COMPLETIONS, &[("Authorization", &header)], body.as_bytes());
        assert_eq!(Exchange::send(server.address, &bytes).finish().status, status, "{key}");
    }
}

#[test]
fn keys_have_limits_of_their_own() {
    let few = KeyRule { max_concurrent: Some(1), ..KeyRule::new("few", "sk-few") };
    let slow = KeyRule { tokens_per_minute: Some(10), ..KeyRule::new("slow", "sk-slow") };
    let options = ServerOptions { keys: vec![few, slow], ..ServerOptions::default() };
    let server = gated(options, 8);
    let send = |key: &str, body: &Value| {
        let header = format!("Bearer {key}");
        let bytes =
            post_bytes(COMPLETIONS, &[("Authorization", &header)], body.to_string().as_bytes());
        Exchange::send(server.address, &bytes)
    };
    let mut first = send("sk-few", &ask_stream(900));
    server.allow_steps(1);
    assert_eq!(first.head().status, 200);
    let (status, error) = send("sk-few", &ask(1)).finish().error();
    assert_eq!((status, &error["code"]), (429, &json!("concurrency_limit")));
    server.allow_steps(5000);
    assert_eq!(send("sk-slow", &ask(20)).finish().status, 200, "other keys are not concerned");
    let refused = send("sk-slow", &ask(1)).finish();
    assert_eq!(refused.error().1["code"], "rate_limit_exceeded");
    assert!(refused.header("retry-after").unwrap().parse::<u64>().unwrap() > 1);
}

#[test]
fn a_failed_step_is_told_and_forgotten() {
    let failures = FakeFailures { collect_at: [0, 3].into(), ..FakeFailures::default() };
    let server = TestServer::new(Setup { failures, ..Setup::default() });
    let (status, error) = server.post(COMPLETIONS, &ask(5)).error();
    assert_eq!((status, &error["type"]), (500, &json!("server_error")));
    let events = server.post(COMPLETIONS, &ask_stream(5)).events();
    let last = events.last().unwrap();
    assert_eq!(last["error"]["type"], "server_error", "{last}");
    assert_eq!(server.post(COMPLETIONS, &ask(5)).status, 200);
}

/// The promise, seen from outside: 64 streams side by side say what each says alone.
#[test]
fn many_streams_at_once_are_each_as_if_alone() {
    let server = TestServer::plain();
    let body = |i: u64, stream: bool| {
        json!({"prompt": format!("the {i} and"), "seed": i, "max_tokens": 24, "stream": stream,
               "temperature": 0.9, "stop": ["in", "zz"]})
    };
    let text = |response: &Response| -> String {
        let events = response.events();
        events.iter().map(|event| event["choices"][0]["text"].as_str().unwrap()).collect()
    };
    let alone: Vec<Value> =
        (0..64).map(|i| server.post(COMPLETIONS, &body(i, false)).json()).collect();
    let streams: Vec<Exchange> =
        (0..64).map(|i| server.start(COMPLETIONS, &body(i, true))).collect();
    for (stream, alone) in streams.into_iter().zip(alone) {
        assert_eq!(alone["choices"][0]["text"], text(&stream.finish()));
    }
    server.wait_for("vllm:kv_cache_usage_perc", |usage| usage == 0.0);
}

#[test]
fn a_flood_is_answered_to_the_last_request() {
    let options = ServerOptions { max_queued_requests: 16, ..ServerOptions::default() };
    let engine = EngineConfig { max_num_seqs: 4, ..EngineConfig::default() };
    let server = TestServer::new(Setup { options, engine, ..Setup::default() });
    let (sender, statuses) = channel();
    std::thread::scope(|scope| {
        for _ in 0..40 {
            let (sender, server) = (sender.clone(), &server);
            scope.spawn(move || {
                for _ in 0..25 {
                    sender.send(server.post(COMPLETIONS, &ask(8)).status).unwrap();
                }
            });
        }
    });
    drop(sender);
    let statuses: Vec<u16> = statuses.iter().collect();
    assert_eq!(statuses.len(), 1000);
    assert!(statuses.iter().all(|status| [200, 429].contains(status)));
    assert!(statuses.contains(&200) && statuses.contains(&429));
    assert_eq!(server.metric("vllm:num_requests_waiting"), 0.0);
    let health = Exchange::send(server.address, &get_bytes("/health", &[])).finish();
    assert_eq!(health.status, 200);
}
