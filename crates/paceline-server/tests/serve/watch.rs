//! The page, and what spectators of the engine see.

use std::net::SocketAddr;
use std::time::Duration;

use paceline_engine::EngineConfig;
use paceline_server::{KeyRule, ServerOptions};
use serde_json::{Value, json};

use crate::client::{Exchange, get_bytes, post_bytes};
use crate::harness::{Setup, TestServer};

const COMPLETIONS: &str = "/v1/completions";
const MAX_WATCHERS: usize = 16;

/// Reads `/live`.
pub(crate) struct Spectator(Exchange);

impl Spectator {
    pub(crate) fn new(address: SocketAddr, headers: &[(&str, &str)]) -> Spectator {
        let mut exchange = Exchange::send(address, &get_bytes("/live", headers));
        assert_eq!(exchange.head().status, 200);
        Spectator(exchange)
    }

    pub(crate) fn next(&mut self) -> Value {
        let line = self.0.line_starting("data: ");
        serde_json::from_str(line.trim_start_matches("data: ")).unwrap()
    }

    /// Snapshots up to the first one that is right.
    pub(crate) fn until(&mut self, is_right: impl Fn(&Value) -> bool) -> Vec<Value> {
        let mut seen = Vec::new();
        for _ in 0..500 {
            let snapshot = self.next();
            let is_last = is_right(&snapshot);
            seen.push(snapshot);
            if is_last {
                return seen;
            }
        }
        panic!("never seen; the last was {}", seen.last().unwrap());
    }
}

/// The steps of some snapshots: number, and `[id, index, rows, is it decoding]` of each sequence.
pub(crate) fn steps(snapshots: &[Value]) -> Vec<(u64, Vec<[u64; 4]>)> {
    let steps = snapshots.iter().flat_map(|snapshot| snapshot["steps"].as_array().unwrap());
    let read = |step: &Value| {
        (step[0].as_u64().unwrap(), serde_json::from_value(step[2].clone()).unwrap())
    };
    steps.map(read).collect()
}

fn is_idle(snapshot: &Value) -> bool {
    snapshot["seqs"].as_array().unwrap().is_empty() && snapshot["queue"]["requests"] == 0
}

fn long_ask(max_tokens: u32) -> Value {
    json!({"prompt": vec![40; 300], "logit_bias": {"40": 100}, "max_tokens": max_tokens,
           "stream": true})
}

fn gated(keys: Vec<KeyRule>) -> TestServer {
    let options = ServerOptions { keys, ..ServerOptions::default() };
    TestServer::new(Setup { options, is_gated: true, ..Setup::default() })
}

#[test]
fn every_step_of_a_request_is_seen() {
    let server = gated(Vec::new());
    let mut spectator = Spectator::new(server.address, &[]);
    let first = spectator.next();
    assert!(is_idle(&first), "{first}");
    assert_eq!(first["kv"]["map"], json!([0, 256]));
    server.allow_steps(10);
    let answer = server.post(COMPLETIONS, &long_ask(4));
    assert_eq!(answer.status, 200);
    let seen = spectator.until(|snapshot| snapshot["step"] == 5 && is_idle(snapshot));
    // 256 rows fit a step, so the prompt comes in two chunks; the second brings the first token.
    let rows: Vec<[u64; 4]> = steps(&seen).into_iter().flat_map(|(_, rows)| rows).collect();
    assert_eq!(rows, [[0, 0, 256, 0], [0, 0, 44, 0], [0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 1, 1]]);
    let last = seen.last().unwrap();
    assert_eq!(last["totals"]["generated_tokens"], 4);
    assert_eq!(last["totals"]["finished"], 1);
    assert_eq!(last["kv"]["used"], 0);
    assert!(last["kv"]["cached"].as_u64().unwrap() >= 18, "{}", last["kv"]);
    assert!(last["ttft_ms"]["p50"].as_f64().unwrap() >= 0.0);
}

#[test]
fn a_running_sequence_has_its_phase_and_its_blocks() {
    let server = gated(Vec::new());
    let mut spectator = Spectator::new(server.address, &[]);
    let bytes = long_ask(700).to_string();
    let headers = [("X-Request-Id", "mine")];
    let bytes = post_bytes(COMPLETIONS, &headers, bytes.as_bytes());
    let _stream = Exchange::send(server.address, &bytes);
    let is_decoding = |snapshot: &Value| snapshot["seqs"][0]["phase"] == "decode";
    // A snapshot is due a while after the one before it; steps go on meanwhile.
    let snapshot = std::thread::scope(|scope| {
        let seen = scope.spawn(move || spectator.until(is_decoding));
        for _ in 0..600 {
            server.allow_steps(1);
            if seen.is_finished() {
                break;
            }
            std::thread::sleep(Duration::from_millis(3));
        }
        seen.join().unwrap().pop().unwrap()
    });
    let seq = &snapshot["seqs"][0];
    assert_eq!((&seq["request_id"], &seq["prompt"]), (&json!("mine"), &json!(0)));
    assert_eq!((&seq["prompt_done"], &seq["prompt_total"]), (&json!(300), &json!(300)));
    let n_blocks = seq["blocks"].as_u64().unwrap();
    assert_eq!(snapshot["kv"]["used"], n_blocks);
    let map: Vec<u64> = serde_json::from_value(snapshot["kv"]["map"].clone()).unwrap();
    let own = map.chunks(2).filter(|run| run[0] == 3).map(|run| run[1]);
    assert_eq!(own.sum::<u64>(), n_blocks, "{map:?}");
    assert_eq!(map.chunks(2).map(|run| run[1]).sum::<u64>(), 256);
}

#[test]
fn whose_request_it_is_concerns_its_own_key_alone() {
    let server = gated(vec![KeyRule::new("ann", "sk-ann"), KeyRule::new("bob", "sk-bob")]);
    let ann = [("Authorization", "Bearer sk-ann"), ("X-Request-Id", "anns-secret")];
    let bob = [("Authorization", "Bearer sk-bob")];
    let body = long_ask(600).to_string();
    let _stream = Exchange::send(server.address, &post_bytes(COMPLETIONS, &ann, body.as_bytes()));
    let metrics = get_bytes("/metrics", &bob);
    for _ in 0..1000 {
        let page = Exchange::send(server.address, &metrics).finish().body;
        if page.contains("paceline_requests_running{model_name=\"org/fake-model\"} 1") {
            break;
        }
        server.allow_steps(1);
    }
    // The first snapshot comes with the next step, whatever the time.
    let look = |headers: &[(&str, &str)]| {
        let mut spectator = Spectator::new(server.address, headers);
        server.allow_steps(3);
        spectator.until(|snapshot| snapshot["seqs"][0]["id"] == 0).pop().unwrap()
    };
    assert_eq!(look(&ann[..1])["seqs"][0]["request_id"], "anns-secret");
    let seen = look(&bob);
    assert!(!seen.to_string().contains("secret"), "{seen}");
    assert_eq!(seen["seqs"][0]["prompt_total"], 300);
    let refused = Exchange::send(server.address, &get_bytes("/live", &[])).finish();
    assert_eq!(refused.error().0, 401);
}

#[test]
fn who_comes_late_sees_the_present() {
    let engine = EngineConfig { max_num_seqs: 2, ..EngineConfig::default() };
    let server = TestServer::new(Setup { engine, is_gated: true, ..Setup::default() });
    let spectator = Spectator::new(server.address, &[]);
    let stream = server.start(COMPLETIONS, &long_ask(20));
    server.allow_steps(5);
    drop(spectator);
    server.allow_steps(100);
    assert_eq!(stream.finish().status, 200);
    let now = Spectator::new(server.address, &[]).next();
    assert!(is_idle(&now), "{now}");
    assert_eq!(now["totals"]["generated_tokens"], 20);
}

#[test]
fn there_is_room_for_so_many_spectators() {
    let server = TestServer::plain();
    let mut all: Vec<Spectator> =
        (0..MAX_WATCHERS).map(|_| Spectator::new(server.address, &[])).collect();
    let (status, error) = server.get("/live").error();
    assert_eq!((status, &error["code"]), (429, &json!("too_many_watchers")));
    all.pop();
    let came = (0..10_000).any(|_| {
        let mut exchange = Exchange::send(server.address, &get_bytes("/live", &[]));
        exchange.head().status == 200
    });
    assert!(came, "a place that was left is never free again");
}

#[test]
fn spectators_do_not_keep_a_server_from_ending() {
    let server = TestServer::plain();
    let mut spectator = Spectator::new(server.address, &[]);
    spectator.next();
    server.handle.shut_down();
    // The chunked body ends as it should, and there is nobody to answer any more.
    spectator.0.line_starting("0");
    server.join();
}

#[test]
fn the_page_is_whole_and_uses_nothing_foreign() {
    let keys = vec![KeyRule::new("ann", "sk-ann")];
    let options = ServerOptions { keys, ..ServerOptions::default() };
    // It is there before the model is.
    let server = TestServer::without_model(options);
    let index = server.get("/");
    assert_eq!(index.header("content-type"), Some("text/html; charset=utf-8"));
    let mut waiting = linked(&index.body, "\"page/");
    let mut found: Vec<String> = Vec::new();
    while let Some(name) = waiting.pop() {
        if found.contains(&name) {
            continue;
        }
        let file = server.get(&format!("/page/{name}"));
        assert_eq!(file.status, 200, "{name}");
        let policy = file.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'self';"), "{policy}");
        let is_own = |url: &str| url.starts_with("http://www.w3.org/2000/svg");
        let foreign = file.body.split("http").skip(1).find(|rest| {
            let url = format!("http{}", rest.chars().take(40).collect::<String>());
            url.contains("://") && !is_own(&url)
        });
        assert_eq!(foreign, None, "{name}");
        waiting.extend(linked(&file.body, "from \"./"));
        found.push(name);
    }
    assert!(found.len() >= 8, "{found:?}");
    for (path, status) in [("/page/none.js", 404), ("/page/..%2fapp.rs", 404), ("/live", 401)] {
        assert_eq!(server.get(path).error().0, status, "{path}");
    }
}

/// The names after each `mark` in a text, up to the quote.
fn linked(text: &str, mark: &str) -> Vec<String> {
    let names = text.split(mark).skip(1).filter_map(|rest| rest.split('"').next());
    names.map(str::to_owned).collect()
}
