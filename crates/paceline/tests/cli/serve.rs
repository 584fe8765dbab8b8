use serde_json::{Value, json};

use super::bench::Bench;
use super::served::Served;

/// The server and the command line say the same.
#[test]
fn a_served_answer_is_the_one_of_run() {
    let bench = Bench::new();
    let ran = bench.call(&["run", "-m", "tiny.gguf", "--raw", "--max-tokens", "9", "on the"]);
    let alone = ran.expect(0).stdout;
    let server = Served::start(&bench, &["--log-format", "json", "--served-model-name", "tiny"]);
    let ask = json!({"model": "tiny", "prompt": "on the", "max_tokens": 9, "temperature": 0});
    let (head, body) = server.post("/v1/completions", "X-Request-Id: r-1\r\n", &ask);
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let answer: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(answer["choices"][0]["text"].as_str().unwrap().trim_end(), alone.trim_end());
    let (code, log) = server.terminate();
    assert_eq!(code, Some(0), "{log}");
    let lines: Vec<Value> =
        log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let request = lines.iter().find(|line| line["request_id"] == "r-1").unwrap();
    assert_eq!((&request["finish"], &request["generated_tokens"]), (&json!("length"), &json!(9)));
    assert!(request["queue_ms"].is_number() && request["timestamp"].is_string());
}

#[test]
fn keys_come_from_a_file() {
    let bench = Bench::new();
    bench.write("keys.txt", "# ours\nann sk-ann max_concurrent=2\n");
    let server = Served::start(&bench, &["--api-key-file", "keys.txt"]);
    let ask = json!({"prompt": "on", "max_tokens": 1});
    let (head, _) = server.post("/v1/completions", "", &ask);
    assert!(head.starts_with("HTTP/1.1 401"), "{head}");
    let port = server.address.rsplit(':').next().unwrap();
    let health = bench.call(&["health", "--port", port]);
    assert_eq!(health.expect(0).stdout, "ok\n", "probes need no key");
    let (head, _) = server.post("/v1/completions", "Authorization: Bearer sk-ann\r\n", &ask);
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert_eq!(server.terminate().0, Some(0));
    bench.write("keys.txt", "ann sk-ann speed=9\n");
    let call = ["serve", "tiny.gguf", "--port", "0", "--api-key-file", "keys.txt"];
    bench.call(&call).expect_error(2, "keys.txt: line 1: \"speed\" is no limit");
}

#[test]
fn a_model_that_is_not_there_ends_the_server() {
    let bench = Bench::new();
    bench.call(&["serve", "missing.gguf", "--port", "0"]).expect_error(1, "missing.gguf");
    bench.call(&["serve", "tiny.gguf", "--host", "999.1.1.1"]).expect_error(1, "999.1.1.1");
}
