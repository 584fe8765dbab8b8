//! Files and batches: shapes, limits, keys, and what happens to bad input.

use std::path::Path;
use std::time::Duration;

use paceline_server::{JobOptions, KeyRule, ServerOptions};
use serde_json::{Value, json};

use crate::client::{Exchange, Response, get_bytes, post_bytes};
use crate::harness::{MODEL, Setup, TestServer};

fn setup(dir: &Path) -> Setup {
    let jobs = JobOptions { max_file_bytes: 100_000, ..JobOptions::new(dir.to_owned()) };
    let options = ServerOptions { jobs: Some(jobs), ..ServerOptions::default() };
    Setup { options, ..Setup::default() }
}

fn line(id: &str, url: &str, body: &Value) -> String {
    json!({"custom_id": id, "method": "POST", "url": url, "body": body}).to_string() + "\n"
}

fn completion(id: &str, max_tokens: u32) -> String {
    let body = json!({"model": MODEL, "prompt": format!("on {id}"), "max_tokens": max_tokens,
                      "temperature": 0, "ignore_eos": true});
    line(id, "/v1/completions", &body)
}

fn form(fields: &[(&str, Option<&str>, &str)]) -> Vec<u8> {
    let mut body = String::new();
    for (name, filename, value) in fields {
        let filename = filename.map_or(String::new(), |name| format!("; filename=\"{name}\""));
        body.push_str(&format!(
            "--XX\r\nContent-Disposition: form-data; name=\"{name}\"{filename}\r\n\r\n{value}\r\n"
        ));
    }
    body.push_str("--XX--\r\n");
    body.into_bytes()
}

const MULTIPART: (&str, &str) = ("Content-Type", "multipart/form-data; boundary=XX");

trait Asks {
    fn send(&self, method: &str, path: &str, key: &str, body: &[u8]) -> Response;
    fn upload(&self, key: &str, text: &str) -> Response;
    fn create(&self, key: &str, file: &str, more: Value) -> Response;
    fn wait_for_batch(&self, id: &str, is_right: impl Fn(&Value) -> bool) -> Value;

    fn start_batch(&self, text: &str) -> String {
        let file = self.upload("", text).json()["id"].as_str().unwrap().to_owned();
        self.create("", &file, json!({})).json()["id"].as_str().unwrap().to_owned()
    }

    fn ended(&self, id: &str) -> Value {
        self.wait_for_batch(id, |batch| {
            ["completed", "failed", "cancelled"].contains(&batch["status"].as_str().unwrap())
        })
    }

    fn lines(&self, file: &Value) -> Vec<Value> {
        let path = format!("/v1/files/{}/content", file.as_str().unwrap());
        let body = self.send("GET", &path, "", b"").body;
        body.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

impl Asks for TestServer {
    fn send(&self, method: &str, path: &str, key: &str, body: &[u8]) -> Response {
        let key = format!("Bearer {key}");
        let bytes = match method {
            "GET" => get_bytes(path, &[("Authorization", &key)]),
            _ => {
                let bytes = post_bytes(path, &[("Authorization", &key), MULTIPART], body);
                [method.as_bytes(), &bytes[4..]].concat()
            }
        };
        Exchange::send(self.address, &bytes).finish()
    }

    fn upload(&self, key: &str, text: &str) -> Response {
        let form = form(&[("purpose", None, "batch"), ("file", Some("in.jsonl"), text)]);
        self.send("POST", "/v1/files", key, &form)
    }

    fn create(&self, key: &str, file: &str, more: Value) -> Response {
        let mut body = json!({"input_file_id": file, "endpoint": "/v1/completions",
                              "completion_window": "24h"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.send("POST", "/v1/batches", key, body.to_string().as_bytes())
    }

    fn wait_for_batch(&self, id: &str, is_right: impl Fn(&Value) -> bool) -> Value {
        let path = format!("/v1/batches/{id}");
        for _ in 0..10_000 {
            let batch = self.send("GET", &path, "", b"").json();
            if is_right(&batch) {
                return batch;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        panic!("it stays {}", self.send("GET", &path, "", b"").body);
    }
}

fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

#[test]
fn a_file_and_a_batch_have_openais_shapes() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::new(setup(dir.path()));
    let bad = line("bad", "/v1/completions", &json!({"prompt": "x", "temperature": -1}));
    let text = completion("a", 3) + &bad + &completion("b", 4);
    let file = server.upload("", &text).json();
    let fields =
        ["bytes", "created_at", "expires_at", "filename", "id", "object", "purpose", "status"];
    assert_eq!(keys(&file), fields);
    assert_eq!((&file["bytes"], &file["filename"]), (&json!(text.len()), &json!("in.jsonl")));
    let id = file["id"].as_str().unwrap();
    assert_eq!(server.get(&format!("/v1/files/{id}")).json(), file);
    assert_eq!(server.get(&format!("/v1/files/{id}/content")).body, text);

    let batch = server.create("", id, json!({"metadata": {"who": "me"}})).json();
    assert_eq!(batch["status"], "validating");
    let done = server.ended(batch["id"].as_str().unwrap());
    assert_eq!(keys(&done), keys(&batch));
    assert_eq!(done["status"], "completed");
    assert_eq!(done["request_counts"], json!({"total": 3, "completed": 2, "failed": 1}));
    assert_eq!((&done["metadata"], &done["errors"]), (&json!({"who": "me"}), &Value::Null));
    assert_eq!(done["expires_at"], json!(done["created_at"].as_u64().unwrap() + 86_400));
    for at in ["in_progress_at", "finalizing_at", "completed_at"] {
        assert!(done[at].is_u64(), "{at}");
    }
    let mut output = server.lines(&done["output_file_id"]);
    output.sort_by_key(|line| line["custom_id"].to_string());
    assert_eq!(output.len(), 2);
    for (line, n) in output.iter().zip([3, 4]) {
        assert_eq!(keys(line), ["custom_id", "error", "id", "response"]);
        assert_eq!(keys(&line["response"]), ["body", "request_id", "status_code"]);
        assert_eq!(line["response"]["status_code"], 200);
        assert_eq!(line["response"]["body"]["usage"]["completion_tokens"], n);
    }
    // A line says what the request says.
    let asked = json!({"model": MODEL, "prompt": "on a", "max_tokens": 3, "temperature": 0,
                       "ignore_eos": true});
    let alone = server.post("/v1/completions", &asked).json();
    assert_eq!(output[0]["response"]["body"]["choices"], alone["choices"]);
    let errors = server.lines(&done["error_file_id"]);
    assert_eq!(errors[0]["response"]["status_code"], 400);
    assert_eq!(errors[0]["response"]["body"]["error"]["param"], "temperature");
}

#[test]
fn bad_uploads_and_batches_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::new(setup(dir.path()));
    let file = Some("in.jsonl");
    let large = "x".repeat(100_001);
    let uploads = [
        (form(&[("file", file, "x")]), 400, "purpose"),
        (form(&[("purpose", None, "batch")]), 400, "file"),
        (form(&[("purpose", None, "fine-tune"), ("file", file, "x")]), 400, "purpose"),
        (form(&[("purpose", None, "batch"), ("file", file, &large)]), 413, ""),
        (form(&[("expires_after[seconds]", None, "9")]), 400, "expires_after"),
        (form(&[("purpose", None, &large)]), 400, "file"),
        (b"no form".to_vec(), 400, ""),
        (form(&[("purpose", None, "batch"), ("file", file, "x")])[..60].to_vec(), 400, ""),
    ];
    for (body, status, param) in uploads {
        let (found, error) = server.send("POST", "/v1/files", "", &body).error();
        assert_eq!((found, error["param"].as_str().unwrap_or("")), (status, param), "{error}");
    }
    let plain = server.post("/v1/files", &json!({}));
    assert!(plain.error().1["message"].as_str().unwrap().contains("multipart/form-data"));
    assert_eq!(server.get("/v1/files").json()["data"], json!([]), "nothing was kept");
    assert_eq!(std::fs::read_dir(dir.path().join("files")).unwrap().count(), 0);

    let id = server.upload("", "x").json()["id"].as_str().unwrap().to_owned();
    let long: Value =
        (0..17).map(|i| (i.to_string(), json!("v"))).collect::<serde_json::Map<_, _>>().into();
    let batches = [
        ("file-none", json!({}), 404, ""),
        (&id, json!({"endpoint": "/v1/images"}), 400, "endpoint"),
        (&id, json!({"endpoint": null}), 400, "endpoint"),
        (&id, json!({"completion_window": "soon"}), 400, "completion_window"),
        (&id, json!({"metadata": long}), 400, "metadata"),
        (&id, json!({"metadata": {"k": "x".repeat(513)}}), 400, "metadata"),
        (&id, json!({"metadata": {"max_concurrency": "0"}}), 400, "metadata"),
    ];
    for (file, more, status, param) in batches {
        let (found, error) = server.create("", file, more).error();
        assert_eq!((found, error["param"].as_str().unwrap_or("")), (status, param), "{error}");
    }
    assert_eq!(server.get("/v1/batches").json()["data"], json!([]));
    for path in ["/v1/files/none", "/v1/files/..%2Flock/content", "/v1/batches/none"] {
        assert_eq!(server.get(path).error().0, 404, "{path}");
    }
    assert_eq!(server.get("/v1/batches?limit=0").error().1["param"], "limit");
    let failed = server.create("", &id, json!({})).json();
    let failed = server.ended(failed["id"].as_str().unwrap());
    assert_eq!(failed["status"], "failed");
    assert_eq!(failed["errors"]["object"], "list");
    let error = &failed["errors"]["data"][0];
    assert_eq!((&error["line"], &error["code"]), (&json!(1), &json!("invalid_json_line")));
    assert_eq!(failed["output_file_id"], Value::Null);
}

#[test]
fn without_a_data_directory_the_routes_say_so() {
    let server = TestServer::plain();
    for path in ["/v1/files", "/v1/batches", "/v1/files/x", "/v1/batches/x"] {
        let (status, error) = server.get(path).error();
        assert_eq!((status, &error["code"]), (404, &json!("no_data_dir")));
        assert!(error["message"].as_str().unwrap().contains("--data-dir"));
    }
}

#[test]
fn every_route_runs_and_unknown_models_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::new(setup(dir.path()));
    let messages = json!([{"role": "user", "content": "hi"}]);
    let cases = [
        ("/v1/chat/completions", json!({"messages": messages, "max_tokens": 3}), "completed", 1),
        ("/v1/responses", json!({"input": "hi", "max_output_tokens": 3}), "completed", 1),
        ("/v1/embeddings", json!({"input": "hi"}), "completed", 1),
        ("/v1/completions", json!({"model": "other", "prompt": "x"}), "failed", 0),
    ];
    for (url, body, status, n_completed) in cases {
        let file = server.upload("", &line("a", url, &body)).json();
        let more = json!({"endpoint": url});
        let batch = server.create("", file["id"].as_str().unwrap(), more).json();
        let batch = server.ended(batch["id"].as_str().unwrap());
        assert_eq!(batch["status"], status, "{url}: {batch}");
        assert_eq!(batch["request_counts"]["completed"], n_completed, "{url}");
        if status == "failed" {
            assert_eq!(batch["errors"]["data"][0]["code"], "model_not_found");
        }
    }
    let newest = server.get("/v1/batches?limit=1").json();
    assert_eq!(
        (&newest["has_more"], &newest["data"][0]["status"]),
        (&json!(true), &json!("failed"))
    );
    let after = newest["last_id"].as_str().unwrap();
    let rest = server.get(&format!("/v1/batches?after={after}")).json();
    assert_eq!((rest["data"].as_array().unwrap().len(), &rest["has_more"]), (3, &json!(false)));
}

/// The engine stands still, so that it is known what runs.
#[test]
fn a_cancelled_batch_lets_go_and_keeps_what_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let mut setup = Setup { is_gated: true, ..setup(dir.path()) };
    setup.engine.max_num_seqs = 2;
    let server = TestServer::new(setup);
    // Three lines end soon, in whatever order they come to run; the others do not.
    let length = |i| if i < 3 { 1 } else { 400 };
    let text: String = (0..50).map(|i| completion(&i.to_string(), length(i))).collect();
    let id = server.start_batch(&text);
    server.wait_for_batch(&id, |batch| batch["status"] == "in_progress");
    server.allow_steps(20);
    server.wait_for_batch(&id, |batch| batch["request_counts"]["completed"] == 3);
    let in_use = server.wait_for_batch(&id, |_| true)["input_file_id"].as_str().unwrap().to_owned();
    let kept = server.send("DELETE", &format!("/v1/files/{in_use}"), "", b"");
    assert!(kept.error().1["message"].as_str().unwrap().contains(&id));
    let cancelled = server.send("POST", &format!("/v1/batches/{id}/cancel"), "", b"").json();
    assert!(cancelled["cancelling_at"].is_u64());
    let batch = server.wait_for_batch(&id, |batch| batch["status"] == "cancelled");
    assert_eq!(batch["request_counts"], json!({"total": 50, "completed": 3, "failed": 0}));
    assert_eq!(server.lines(&batch["output_file_id"]).len(), 3);
    assert_eq!(batch["error_file_id"], Value::Null);
    // The lines have let go of the engine, which hears of it between two steps, sooner or later.
    server.wait_for("paceline_requests_running", |n| {
        server.allow_steps(1);
        n == 0.0
    });
    let metrics = server.get("/metrics").body;
    let is_length =
        |line: &&str| line.contains("request_success_total{") && line.contains("length");
    let n_ended = metrics.lines().find(is_length).and_then(|line| line.rsplit(' ').next());
    assert_eq!(n_ended, Some("3"), "those that ran were not run to their end");
    let again = server.send("POST", &format!("/v1/batches/{id}/cancel"), "", b"");
    assert_eq!(again.status, 200, "cancelling twice is no error");
    let deleted = server.send("DELETE", &format!("/v1/files/{in_use}"), "", b"").json();
    assert_eq!(deleted, json!({"id": in_use, "object": "file", "deleted": true}));
    assert_eq!(server.get(&format!("/v1/files/{in_use}")).status, 404);
}

#[test]
fn files_and_batches_belong_to_keys() {
    let dir = tempfile::tempdir().unwrap();
    let mut setup = setup(dir.path());
    let ann = KeyRule { max_concurrent: Some(2), ..KeyRule::new("ann", "sk-ann") };
    setup.options.keys = vec![ann, KeyRule::new("bob", "sk-bob")];
    let server = TestServer::new(setup);
    assert_eq!(server.upload("sk-none", "x").status, 401);
    let text: String = (0..20).map(|i| completion(&i.to_string(), 4)).collect();
    let file = server.upload("sk-ann", &text).json();
    let id = file["id"].as_str().unwrap();
    let path = format!("/v1/files/{id}");
    assert_eq!(server.send("GET", &path, "sk-bob", b"").status, 404);
    assert_eq!(server.send("DELETE", &path, "sk-bob", b"").status, 404);
    assert_eq!(server.create("sk-bob", id, json!({})).status, 404);
    assert_eq!(server.send("GET", "/v1/files", "sk-bob", b"").json()["data"], json!([]));
    let batch = server.create("sk-ann", id, json!({})).json();
    let path = format!("/v1/batches/{}", batch["id"].as_str().unwrap());
    assert_eq!(server.send("GET", &path, "sk-bob", b"").status, 404);
    // Lines keep to the key's limits, and wait instead of failing.
    for _ in 0..10_000 {
        let batch = server.send("GET", &path, "sk-ann", b"").json();
        if batch["status"] == "completed" {
            assert_eq!(batch["request_counts"]["completed"], 20);
            return;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    panic!("it never ended");
}

/// Interactive requests come first, whatever waits in batches.
#[test]
fn lines_are_of_the_batch_class() {
    let dir = tempfile::tempdir().unwrap();
    let mut setup = Setup { is_gated: true, ..setup(dir.path()) };
    setup.engine.max_num_seqs = 1;
    let server = TestServer::new(setup);
    const LONG: usize = 900;
    let text: String = (0..2).map(|i| completion(&i.to_string(), LONG as u32)).collect();
    let id = server.start_batch(&text);
    server.allow_steps(1);
    server.wait_for("paceline_requests_running", |n| n == 1.0);
    let ask = json!({"prompt": "now", "max_tokens": 1, "temperature": 0});
    let asked = server.start("/v1/completions", &ask);
    // The first line runs; the second and ours wait.
    let mut n_steps = 1;
    while server.metric("paceline_requests_waiting") < 2.0 {
        server.allow_steps(1);
        n_steps += 1;
        assert!(n_steps < LONG - 50, "it never came");
        // It has a way to go: through a socket and a queue.
        std::thread::sleep(Duration::from_millis(5));
    }
    // The first line ends, and there is no time for the second.
    server.allow_steps(LONG + 50 - n_steps);
    assert_eq!(asked.finish().status, 200);
    server.allow_steps(LONG);
    assert_eq!(server.ended(&id)["request_counts"]["completed"], 2);
}
