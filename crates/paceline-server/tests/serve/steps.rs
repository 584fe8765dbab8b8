//! Behaviour under load, counted in the engine's steps and never by the clock: the engine takes a
//! step only when the test lets it.

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use paceline_engine::EngineConfig;
use paceline_server::{KeyRule, ServerOptions};
use serde_json::{Value, json};

use crate::client::{Exchange, Response, get_bytes, post_bytes};
use crate::harness::{Setup, TestServer};
use crate::watch::{Spectator, steps};

const COMPLETIONS: &str = "/v1/completions";
const N_SLOTS: u32 = 4;

fn gated(options: ServerOptions) -> TestServer {
    let engine = EngineConfig { max_num_seqs: N_SLOTS, ..EngineConfig::default() };
    TestServer::new(Setup { options, engine, is_gated: true, ..Setup::default() })
}

fn ask(max_tokens: u32) -> Value {
    json!({"prompt": "in the", "logit_bias": {"40": 100}, "max_tokens": max_tokens})
}

fn send(server: &TestServer, key: &str, body: &Value) -> Exchange {
    let authorization = format!("Bearer {key}");
    let headers = [("Authorization", authorization.as_str())];
    Exchange::send(server.address, &post_bytes(COMPLETIONS, &headers, body.to_string().as_bytes()))
}

/// A response that is read while the test goes on.
fn finish_later(exchange: Exchange) -> Receiver<Response> {
    let (sender, answer) = channel();
    std::thread::spawn(move || sender.send(exchange.finish()));
    answer
}

/// Takes steps one by one until a sample of `/metrics` is right.
fn step_until(server: &TestServer, name: &str, is_right: impl Fn(f64) -> bool) {
    server.wait_for(name, |value| {
        let is_right = is_right(value);
        if !is_right {
            server.allow_steps(1);
        }
        is_right
    });
}

#[test]
fn an_urgent_request_in_a_flood_is_next() {
    const N_FLOOD: u32 = 60;
    let server = gated(ServerOptions::default());
    let some = |n: u32| (0..n).map(|_| server.start(COMPLETIONS, &ask(700)));
    let mut running: Vec<Exchange> = some(N_SLOTS).collect();
    step_until(&server, "vllm:num_requests_running", |n| n == f64::from(N_SLOTS));
    let _queued: Vec<Exchange> = some(N_FLOOD - N_SLOTS).collect();
    let n_queued = f64::from(N_FLOOD - N_SLOTS);
    step_until(&server, "vllm:num_requests_waiting", |n| n == n_queued);
    // Two hundred tokens of prompt, so that it is seen to be computed.
    let urgent = json!({"prompt": vec![40; 200], "max_tokens": 3, "priority": "high",
                        "stream": true});
    let mut urgent = server.start(COMPLETIONS, &urgent);
    step_until(&server, "vllm:num_requests_waiting", |n| n == n_queued + 1.0);
    let mut spectator = Spectator::new(server.address, &[]);
    server.allow_steps(3);
    let before = spectator.next()["step"].as_u64().unwrap();
    // One of those that run goes, and everybody waits for its place.
    running.remove(0);
    // So slowly that a snapshot tells of all steps since the one before it.
    let seen = std::thread::scope(|scope| {
        let has_left = |snapshot: &Value| snapshot["totals"]["finished"] == 2;
        let seen = scope.spawn(move || spectator.until(has_left));
        for _ in 0..600 {
            server.allow_steps(1);
            if seen.is_finished() {
                break;
            }
            std::thread::sleep(Duration::from_millis(4));
        }
        seen.join().unwrap()
    });
    assert_eq!(urgent.head().status, 200);
    urgent.line_starting("data: [DONE]");
    let id = u64::from(N_FLOOD);
    let steps = steps(&seen);
    let newcomers = steps.iter().flat_map(|(step, rows)| rows.iter().map(move |row| (step, row)));
    let mut newcomers = newcomers.filter(|(step, row)| **step > before && row[3] == 0);
    let (admitted, first) = newcomers.next().unwrap();
    assert_eq!(first[0], id, "somebody else came first");
    let spoken = steps.iter().find(|(_, rows)| rows.iter().any(|row| row[0] == id && row[3] == 1));
    // The row after the first token's.
    assert!(spoken.unwrap().0 - admitted <= 3, "{steps:?}");
}

#[test]
fn a_flood_of_one_key_is_not_felt_by_another() {
    const N_FLOOD: usize = 120;
    let keys = vec![KeyRule::new("flood", "sk-flood"), KeyRule::new("polite", "sk-polite")];
    let server = gated(ServerOptions { keys, ..ServerOptions::default() });
    let flood: Vec<Receiver<Response>> =
        (0..N_FLOOD).map(|_| finish_later(send(&server, "sk-flood", &ask(12)))).collect();
    let metric = |name: &str| {
        let metrics = get_bytes("/metrics", &[("Authorization", "Bearer sk-flood")]);
        let page = Exchange::send(server.address, &metrics).finish().body;
        let line = page.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    let mut is_queued = false;
    for _ in 0..1000 {
        server.allow_steps(1);
        is_queued = metric("vllm:num_requests_waiting") > N_FLOOD as f64 / 2.0;
        if is_queued {
            break;
        }
    }
    assert!(is_queued, "there is no flood");
    for _ in 0..4 {
        let before = metric("paceline_steps_total");
        let answer = finish_later(send(&server, "sk-polite", &ask(12)));
        let answer = std::iter::repeat_with(|| {
            server.allow_steps(1);
            metric("vllm:num_requests_running");
            answer.try_recv().ok()
        });
        assert_eq!(answer.take(5000).flatten().next().unwrap().status, 200);
        // A place is free after twelve steps and it answers in twelve; in turn with all the flood
        // it would be ten times as many.
        let n_steps = metric("paceline_steps_total") - before;
        assert!(n_steps <= 60.0, "{n_steps} steps");
        assert!(metric("vllm:num_requests_waiting") > 0.0, "the flood is over too early");
    }
    server.allow_steps(2000);
    assert!(flood.iter().all(|answer| answer.recv().unwrap().status == 200));
}

#[test]
fn blocks_are_free_two_steps_after_a_client_has_left() {
    let mut body = ask(900);
    body["stream"] = true.into();
    for _ in 0..5 {
        let server = gated(ServerOptions::default());
        let mut stream = server.start(COMPLETIONS, &body);
        server.allow_steps(1);
        assert_eq!(stream.head().status, 200);
        server.wait_for("vllm:kv_cache_usage_perc", |usage| usage > 0.0);
        drop(stream);
        // The socket's end reaches the server before these do.
        for _ in 0..20 {
            server.get("/ping");
        }
        // The step that is under way, and one more at most.
        server.allow_steps(2);
        server.wait_for("vllm:num_requests_running", |n| n == 0.0);
        assert_eq!(server.metric("vllm:kv_cache_usage_perc"), 0.0);
    }
}

#[test]
fn a_flood_finds_a_bounded_queue() {
    const LIMIT: usize = 256;
    const N_FLOOD: usize = 320;
    let options = ServerOptions { max_queued_requests: LIMIT as u32, ..ServerOptions::default() };
    let server = gated(options);
    // No step is taken, so nobody leaves the queue.
    let flood: Vec<Receiver<Response>> =
        (0..N_FLOOD).map(|_| finish_later(server.start(COMPLETIONS, &ask(2)))).collect();
    let mut statuses: Vec<u16> = Vec::new();
    let mut waiting = flood;
    while statuses.len() < N_FLOOD - LIMIT {
        waiting.retain(|answer| {
            let status = answer.try_recv().ok().map(|response| response.status);
            statuses.extend(status);
            status.is_none()
        });
        server.get("/ping");
    }
    assert_eq!(statuses, vec![429; N_FLOOD - LIMIT]);
    server.allow_steps(2000);
    assert!(waiting.iter().all(|answer| answer.recv().unwrap().status == 200));
    assert_eq!(waiting.len(), LIMIT);
}
