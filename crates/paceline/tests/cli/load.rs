//! The real server process under load: nobody is forgotten, and memory stays flat.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use super::bench::Bench;
use super::served::Served;

/// Longer than anything takes here; a hang becomes a failure.
const PATIENCE: Duration = Duration::from_secs(120);

/// A request that has been sent.
struct Sent(TcpStream);

impl Sent {
    fn completion(server: &Served, max_tokens: u32) -> Sent {
        let body = json!({"prompt": "on the", "max_tokens": max_tokens, "ignore_eos": true});
        let body = body.to_string();
        let n = body.len();
        Sent::bytes(server, &format!("POST /v1/completions HTTP/1.1\r\nContent-Length: {n}"), &body)
    }

    fn bytes(server: &Served, head: &str, body: &str) -> Sent {
        let mut socket = TcpStream::connect(&server.address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let text = format!("{head}\r\nHost: a\r\nConnection: close\r\n\r\n{body}");
        socket.write_all(text.as_bytes()).unwrap();
        Sent(socket)
    }

    /// Status and body.
    fn finish(mut self) -> (u16, String) {
        let mut answer = String::new();
        self.0.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }
}

/// A sample of `/metrics`; 0 if it is not there yet.
fn metric(server: &Served, name: &str) -> f64 {
    let (_, page) = Sent::bytes(server, "GET /metrics HTTP/1.1", "").finish();
    let line = page.lines().find(|line| line.starts_with(name));
    line.map_or(0.0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
}

/// Memory of the server's process, in KiB.
fn resident_kib(server: &Served) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Sends so many, with a few hundred unanswered at any time, and counts answers by status.
fn flood(server: &Served, n_requests: usize) -> [usize; 2] {
    const AT_ONCE: usize = 360;
    let mut sent = VecDeque::new();
    let mut counts = [0; 2];
    let mut settle = |sent: Sent| match sent.finish() {
        (200, _) => counts[0] += 1,
        (429, _) => counts[1] += 1,
        (status, body) => panic!("{status}: {body}"),
    };
    for _ in 0..n_requests {
        sent.push_back(Sent::completion(server, 12));
        if sent.len() == AT_ONCE {
            sent.pop_front().map(&mut settle);
        }
    }
    sent.into_iter().for_each(settle);
    counts
}

#[test]
fn a_flood_is_answered_to_the_last_request_in_flat_memory() {
    let bench = Bench::new();
    let limits = ["--max-queued-requests", "256", "--max-num-seqs", "8"];
    let server = Served::start(&bench, &limits);
    // Once, so that buffers have the size they need.
    flood(&server, 400);
    let before = resident_kib(&server);
    let [n_answered, n_refused] = flood(&server, 2000);
    assert_eq!(n_answered + n_refused, 2000);
    assert!(n_answered > 0);
    let after = resident_kib(&server);
    assert!(after < before + (32 << 10), "{before} KiB grew to {after} KiB");
    assert_eq!(metric(&server, "vllm:num_requests_waiting"), 0.0);
    assert_eq!(metric(&server, "vllm:kv_cache_usage_perc"), 0.0);
    assert_eq!(server.terminate().0, Some(0));
}

#[test]
fn a_signal_under_load_loses_no_accepted_request() {
    const N_REQUESTS: usize = 60;
    let bench = Bench::new();
    let server = Served::start(&bench, &["--max-num-seqs", "4", "--shutdown-timeout", "100"]);
    let sent: Vec<Sent> = (0..N_REQUESTS).map(|_| Sent::completion(&server, 120)).collect();
    let n_known = || {
        let names = ["num_requests_running", "num_requests_waiting", "request_success_total"];
        names.iter().map(|name| metric(&server, &format!("vllm:{name}"))).sum::<f64>()
    };
    let is_accepted = (0..5000).any(|_| n_known() >= N_REQUESTS as f64);
    assert!(is_accepted, "{} of {N_REQUESTS} have arrived", n_known());
    // Answers are read only after the end: they must have been sent all the same.
    let (code, log) = server.terminate();
    assert_eq!(code, Some(0), "{log}");
    for sent in sent {
        let (status, body) = sent.finish();
        assert_eq!(status, 200, "{body}");
        let answer: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(answer["usage"]["completion_tokens"], 120);
    }
}
