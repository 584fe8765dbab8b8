//! `paceline batch` cut short and started again.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use super::bench::{Bench, json_lines};

/// How many lines, and how often to kill; more of both for a longer night.
pub(crate) fn rough_ride() -> (usize, u64) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let n_lines = number("PACELINE_KILL_LINES").unwrap_or(60);
    (n_lines as usize, number("PACELINE_KILLS").unwrap_or(4))
}

/// A small generator, the same every time.
pub(crate) fn random(seed: u64, below: u64) -> u64 {
    let mixed = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) % below
}

/// Completions with a prompt, a length and a seed of their own; every tenth cannot be run.
pub(crate) fn openai_line(i: usize) -> String {
    let prompt = "word ".repeat(1 + i * 3 % 17);
    let temperature = if i % 10 == 9 { -1.0 } else { 0.9 };
    let body = json!({"model": "tiny", "prompt": prompt, "max_tokens": 8 + i % 9, "seed": i,
                      "temperature": temperature, "ignore_eos": true});
    let line = json!({"custom_id": format!("id-{i}"), "method": "POST",
                      "url": "/v1/completions", "body": body});
    line.to_string() + "\n"
}

fn plain_line(i: usize) -> String {
    let prompt = "word ".repeat(1 + i * 3 % 17);
    let n = if i % 7 == 3 { 2 } else { 1 };
    let temperature = if i % 10 == 9 { -1.0 } else { 0.9 };
    let line = json!({"custom_id": format!("id-{i}"), "prompt": prompt, "seed": i, "n": n,
                      "max_tokens": 8 + i % 9, "temperature": temperature, "ignore_eos": true});
    line.to_string() + "\n"
}

/// What each line was answered, by its id; no line may have two results.
pub(crate) fn answers(texts: &[&str]) -> BTreeMap<String, Value> {
    let mut answers = BTreeMap::new();
    for line in texts.iter().flat_map(|text| json_lines(text)) {
        let id = format!("{}/{}", line["custom_id"].as_str().unwrap(), line["choice"]);
        let body = &line["response"]["body"];
        let answer = match body.get("choices") {
            Some(choices) => choices.clone(),
            None if body.is_object() => body["error"]["message"].clone(),
            None => json!([line["token_ids"], line["error"]]),
        };
        assert!(answers.insert(id.clone(), answer).is_none(), "{id} has two results");
    }
    answers
}

const FLAGS: [&str; 8] =
    ["batch", "-m", "tiny.gguf", "--threads", "1", "-q", "--max-num-seqs", "2"];

fn batch<'a>(args: &[&'a str]) -> Vec<&'a str> {
    [&FLAGS, args].concat()
}

pub(crate) fn n_lines(bench: &Bench, names: &[&str]) -> usize {
    let count = |name: &&str| {
        let bytes = std::fs::read(bench.path(name)).unwrap_or_default();
        bytes.iter().filter(|&&byte| byte == b'\n').count()
    };
    names.iter().map(count).sum()
}

#[test]
fn killed_at_any_moment_each_line_is_answered_once() {
    let bench = Bench::new();
    let (n, n_kills) = rough_ride();
    for (format, make) in [("openai", openai_line as fn(usize) -> String), ("plain", plain_line)] {
        let input = format!("{format}.jsonl");
        bench.write(&input, (0..n).map(make).collect::<String>());
        bench.call(&batch(&["-i", &input, "-o", "calm.jsonl", "--force"])).expect(1);
        let calm = answers(&[&bench.read("calm.jsonl"), &bench.read("calm.errors.jsonl")]);
        let names = [format!("{format}-rough.jsonl"), format!("{format}-rough.errors.jsonl")];
        let files = names.each_ref().map(String::as_str);
        let args = batch(&["-i", &input, "-o", files[0]]);
        for kill in 0..n_kills {
            let enough = random(kill, n as u64) as usize;
            let mut child = bench.spawn(&args);
            while n_lines(&bench, &files) < enough && child.try_wait().unwrap().is_none() {
                std::thread::sleep(Duration::from_millis(1));
            }
            child.kill().unwrap();
            child.wait().unwrap();
            // Half the time the last write was cut in the middle.
            let path = bench.path(files[0]);
            if kill % 2 == 1 && path.exists() {
                let bytes = std::fs::read(&path).unwrap();
                std::fs::write(&path, &bytes[..bytes.len().saturating_sub(9)]).unwrap();
            }
        }
        assert!(bench.call(&args).code.is_some_and(|code| code <= 1));
        let rough = files.map(|name| bench.read(name));
        assert_eq!(answers(&[&rough[0], &rough[1]]), calm, "{format}");
        // Nothing is left to do, and nothing is done.
        bench.call(&args).expect(0);
        assert_eq!(files.map(|name| bench.read(name)), rough);
    }
}

#[test]
fn openai_lines_are_answered_as_the_routes_do() {
    let bench = Bench::new();
    const CHAT: &str = "/v1/chat/completions";
    let chat = |id: &str, body: Value| -> Value {
        json!({"custom_id": id, "method": "POST", "url": CHAT, "body": body})
    };
    let messages = json!([{"role": "user", "content": "hi"}]);
    let lines = [
        chat(
            "chat",
            json!({"model": "gpt-4o", "messages": messages, "max_tokens": 3,
                            "temperature": 0, "ignore_eos": true}),
        ),
        chat("stream", json!({"messages": messages, "stream": true})),
        chat("empty", json!({"messages": messages, "max_tokens": 3, "temperature": -1})),
        json!({"custom_id": "embed", "method": "POST", "url": "/v1/embeddings",
               "body": {"input": "x"}}),
        json!({"custom_id": "put", "method": "PUT", "url": "/v1/completions", "body": {}}),
        json!("no line"),
    ];
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    // A pipe has no second chance: errors come among the results.
    let ran = bench.call_with(&batch(&["-i", "-", "-o", "-"]), &text).expect(1);
    let mut found = json_lines(&ran.stdout);
    found.sort_by_key(|line| line["index"].as_u64());
    assert_eq!(found.len(), lines.len());
    let body = &found[0]["response"]["body"];
    assert_eq!(
        (&found[0]["response"]["status_code"], &found[0]["error"]),
        (&json!(200), &Value::Null)
    );
    assert_eq!((&body["object"], &body["model"]), (&json!("chat.completion"), &json!("gpt-4o")));
    assert_eq!(body["usage"]["completion_tokens"], 3);
    assert_eq!(found[1]["error"]["code"], "invalid_request");
    assert_eq!(found[2]["response"]["status_code"], 400);
    assert_eq!(found[2]["response"]["body"]["error"]["param"], "temperature");
    assert!(found[3]["response"]["body"]["data"][0]["embedding"].is_array());
    assert_eq!(found[4]["error"]["code"], "invalid_method");
    assert_eq!(found[5]["error"]["code"], "invalid_json_line");
    assert_eq!(found[5]["custom_id"], Value::Null);
}

#[test]
fn one_id_on_two_lines_is_refused() {
    let bench = Bench::new();
    let text = openai_line(1) + "\n" + &openai_line(2) + &openai_line(1);
    bench.write("in.jsonl", &text);
    let args = batch(&["-i", "in.jsonl", "-o", "out.jsonl"]);
    bench.call(&args).expect_error(1, "lines 1 and 4 of in.jsonl have the same custom_id");
    let ran = bench.call_with(&batch(&["-i", "-", "-o", "-"]), &text).expect(1);
    let found = json_lines(&ran.stdout);
    let error = found.iter().find(|line| line["index"] == 3).unwrap();
    assert_eq!((&error["custom_id"], found.len()), (&json!("id-1"), 3));
    assert!(error["error"]["message"].as_str().unwrap().contains("same custom_id"));
}

#[cfg(unix)]
#[test]
fn a_full_disk_loses_nothing() {
    let bench = Bench::new();
    for (name, make) in [("a", openai_line as fn(usize) -> String), ("b", plain_line)] {
        let (input, output) = (format!("{name}.jsonl"), format!("{name}-out.jsonl"));
        bench.write(&input, (0..40).map(make).collect::<String>());
        let args = batch(&["-i", &input, "-o", &output]);
        let ended = bench.spawn_on_full_disk(8, &args).wait_with_output().unwrap();
        let stderr = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains(&format!("error: cannot write to {output}: File too large")));
        let n_before = n_lines(&bench, &[&output]);
        assert!((1..36).contains(&n_before), "{n_before}");
        bench.call(&args).expect(1);
        let errors = bench.read(&format!("{name}-out.errors.jsonl"));
        let found = answers(&[&bench.read(&output), &errors]);
        let ids: std::collections::BTreeSet<_> =
            found.keys().map(|key| key.split('/').next().unwrap()).collect();
        assert_eq!(ids.len(), 40);
    }
}

#[test]
fn two_runs_do_not_share_an_output() {
    let bench = Bench::new();
    let mut first = bench.spawn(&batch(&["-i", "-", "-o", "out.jsonl"]));
    let mut stdin = first.stdin.take().unwrap();
    std::io::Write::write_all(&mut stdin, plain_line(0).as_bytes()).unwrap();
    while !bench.path("out.jsonl").exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
    bench.write("in.jsonl", plain_line(1));
    let second = batch(&["-i", "in.jsonl", "-o", "out.jsonl"]);
    bench.call(&second).expect_error(1, "out.jsonl is being written by another run");
    drop(stdin);
    assert_eq!(first.wait().unwrap().code(), Some(0));
    bench.call(&second).expect(0);
    assert_eq!(json_lines(&bench.read("out.jsonl")).len(), 2);
}

#[cfg(unix)]
#[test]
fn ctrl_c_can_be_gone_on_from() {
    let bench = Bench::new();
    bench.write("in.jsonl", (0..60).map(openai_line).collect::<String>());
    let args = batch(&["-i", "in.jsonl", "-o", "out.jsonl", "--ordered"]);
    let child = bench.spawn(&args);
    while n_lines(&bench, &["out.jsonl"]) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(kill.unwrap().success());
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130));
    bench.call(&args).expect(1);
    let found = answers(&[&bench.read("out.jsonl"), &bench.read("out.errors.jsonl")]);
    assert_eq!(found.len(), 60);
}
