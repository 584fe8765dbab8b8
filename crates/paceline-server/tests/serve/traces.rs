//! Spans at a collector of the test's own.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use paceline_server::ServerOptions;
use paceline_server::client::Origin;
use serde_json::{Value, json};

use crate::client::{Exchange, post_bytes};
use crate::harness::{MODEL, Setup, TestServer};

/// Takes export requests; hands out their paths and bodies.
struct Collector {
    address: SocketAddr,
    exports: Receiver<(String, Value)>,
}

impl Collector {
    fn start() -> Collector {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, exports) = channel();
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let sender = sender.clone();
                std::thread::spawn(move || take(socket, &sender));
            }
        });
        Collector { address, exports }
    }

    /// The next spans that come.
    fn spans(&self) -> Vec<Value> {
        let (path, body) = self.exports.recv_timeout(Duration::from_secs(30)).unwrap();
        assert_eq!(path, "/v1/traces");
        let resource = &body["resourceSpans"][0];
        let service = json!({"key": "service.name", "value": {"stringValue": "paceline"}});
        assert_eq!(resource["resource"]["attributes"][0], service);
        resource["scopeSpans"][0]["spans"].as_array().unwrap().clone()
    }
}

/// Serves one connection to its end.
fn take(socket: TcpStream, exports: &Sender<(String, Value)>) {
    let mut reader = BufReader::new(socket);
    loop {
        let mut path = String::new();
        let mut n_bytes = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            let line = line.trim_end().to_ascii_lowercase();
            if let Some(rest) = line.strip_prefix("post ") {
                path = rest.split(' ').next().unwrap().to_owned();
            }
            if let Some(n) = line.strip_prefix("content-length: ") {
                n_bytes = n.parse().unwrap();
            }
            if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; n_bytes];
        reader.read_exact(&mut body).unwrap();
        let _ = exports.send((path, serde_json::from_slice(&body).unwrap()));
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
        reader.get_mut().write_all(answer).unwrap();
    }
}

fn server(url: &str) -> TestServer {
    let traces = Some(Origin::parse(url).unwrap());
    let options = ServerOptions { traces, ..ServerOptions::default() };
    TestServer::new(Setup { options, ..Setup::default() })
}

fn ask(server: &TestServer, headers: &[(&str, &str)]) {
    let body = json!({"prompt": [1, 2, 3], "max_tokens": 5, "ignore_eos": true, "top_p": 0.5});
    let bytes = post_bytes("/v1/completions", headers, body.to_string().as_bytes());
    assert_eq!(Exchange::send(server.address, &bytes).finish().status, 200);
}

fn attribute<'a>(span: &'a Value, key: &str) -> &'a Value {
    let attributes = span["attributes"].as_array().unwrap();
    let found = attributes.iter().find(|attribute| attribute["key"] == key);
    &found.unwrap_or_else(|| panic!("no {key} in {span}"))["value"]
}

#[test]
fn a_span_for_each_prompt_in_its_callers_trace() {
    let collector = Collector::start();
    let server = server(&format!("http://{}", collector.address));
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let sampled = format!("00-{trace}-b7ad6b7169203331-01");
    ask(&server, &[("traceparent", &sampled), ("X-Request-Id", "r-1")]);
    let spans = collector.spans();
    assert_eq!(spans.len(), 1);
    let span = &spans[0];
    assert_eq!((&span["name"], &span["kind"]), (&json!("llm_request"), &json!(2)));
    assert_eq!(span["traceId"], trace);
    assert_eq!(span["parentSpanId"], "b7ad6b7169203331");
    assert_eq!(span["status"]["code"], 0);
    for (key, value) in [
        ("gen_ai.request.id", json!({"stringValue": "r-1"})),
        ("gen_ai.response.model", json!({"stringValue": MODEL})),
        ("gen_ai.request.max_tokens", json!({"intValue": "5"})),
        ("gen_ai.request.top_p", json!({"doubleValue": 0.5})),
        ("gen_ai.usage.prompt_tokens", json!({"intValue": "3"})),
        ("gen_ai.usage.completion_tokens", json!({"intValue": "5"})),
    ] {
        assert_eq!(attribute(span, key), &value, "{key}");
    }
    let seconds = |key: &str| {
        attribute(span, &format!("gen_ai.latency.{key}"))["doubleValue"].as_f64().unwrap()
    };
    let parts = ["time_in_queue", "time_in_model_prefill", "time_in_model_decode"].map(seconds);
    assert!((parts.iter().sum::<f64>() - seconds("e2e")).abs() < 1e-6, "{span}");
    let nanos = |key: &str| span[key].as_str().unwrap().parse::<u64>().unwrap();
    let elapsed = (nanos("endTimeUnixNano") - nanos("startTimeUnixNano")) as f64 / 1e9;
    assert!((elapsed - seconds("e2e")).abs() < 1e-6, "{span}");

    // One that its caller does not sample has no span; one without a caller starts a trace.
    ask(&server, &[("traceparent", &format!("00-{trace}-b7ad6b7169203331-00"))]);
    ask(&server, &[("traceparent", "nonsense"), ("X-Request-Id", "r-3")]);
    let spans = collector.spans();
    assert_eq!(spans.len(), 1, "{spans:?}");
    assert_eq!(attribute(&spans[0], "gen_ai.request.id"), &json!({"stringValue": "r-3"}));
    assert_eq!(spans[0]["parentSpanId"], "");
    assert_ne!(spans[0]["traceId"], trace);
    server.wait_for("paceline_trace_spans_exported_total", |n| n == 2.0);

    // What is left at the end is still sent.
    ask(&server, &[("X-Request-Id", "r-4")]);
    server.handle.shut_down();
    server.join();
    let spans = collector.spans();
    assert_eq!(attribute(&spans[0], "gen_ai.request.id"), &json!({"stringValue": "r-4"}));
}

#[test]
fn a_collector_that_is_away_costs_spans_and_nothing_else() {
    // A port that was free a moment ago.
    let address = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
    let server = server(&format!("http://{address}/custom/path"));
    for _ in 0..3 {
        ask(&server, &[]);
    }
    server.wait_for("paceline_trace_spans_dropped_total", |n| n == 3.0);
    ask(&server, &[]);
}
