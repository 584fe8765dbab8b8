//! The load generator against the real server.

use serde_json::{Value, json};

use super::bench::Bench;
use super::served::Served;

fn load(bench: &Bench, server: &Served, args: &[&str]) -> super::bench::Ran {
    let url = format!("http://{}", server.address);
    bench.call(&[&["bench", "serve", "--base-url", &url], args].concat())
}

/// Labels and values of the block.
fn figure(block: &str, label: &str) -> f64 {
    let line = block.lines().find(|line| line.starts_with(label));
    let line = line.unwrap_or_else(|| panic!("no {label:?} in {block}"));
    line[label.len()..].trim().parse().unwrap()
}

#[test]
fn random_prompts_have_their_lengths_and_all_are_answered() {
    let bench = Bench::new();
    let server = Served::start(&bench, &[]);
    let args = ["--num-prompts", "9", "--input-len", "20", "--output-len", "5", "--ignore-eos"];
    let with = |more: &[&str]| load(&bench, &server, &[&args[..], more].concat()).expect(0);

    let block = with(&["--max-concurrency", "4", "--goodput", "ttft:1e9", "tpot:1e9"]).stdout;
    let first = block.lines().next().unwrap();
    assert_eq!(first, "============ Serving Benchmark Result ============");
    for (label, value) in [
        ("Successful requests:", 9.0),
        ("Failed requests:", 0.0),
        ("Maximum request concurrency:", 4.0),
        ("Total input tokens:", 9.0 * 20.0),
        ("Total generated tokens:", 9.0 * 5.0),
    ] {
        assert_eq!(figure(&block, label), value, "{block}");
    }
    assert!(figure(&block, "Peak concurrent requests:") <= 4.0, "{block}");
    let throughput = figure(&block, "Request throughput (req/s):");
    assert_eq!(figure(&block, "Request goodput (req/s):"), throughput, "all are good");
    for label in ["Mean TTFT (ms):", "Median TPOT (ms):", "P99 ITL (ms):", "Benchmark duration"] {
        assert!(block.contains(label), "{block}");
    }

    let levels = ["--concurrency", "1,3", "--plot", "plot.svg", "--json", "--num-warmups", "1"];
    let rows: Value = serde_json::from_str(&with(&levels).stdout).unwrap();
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.iter().map(|r| &r["max_concurrency"]).collect::<Vec<_>>(), [1, 3]);
    assert!(rows.iter().all(|row| row["completed"] == 9 && row["request_rate"] == "inf"));
    assert_eq!(rows[0]["max_concurrent_requests"], 1);
    let plot = bench.read("plot.svg");
    assert!(plot.contains("TTFT ms, median") && plot.contains("output tok/s"), "{plot}");
    assert_eq!(server.terminate().0, Some(0));
}

#[test]
fn chats_files_prefixes_and_arrivals() {
    let bench = Bench::new();
    let server = Served::start(&bench, &["--api-key", "sk-1", "--served-model-name", "a/tiny"]);
    let args = ["--api-key", "sk-1", "--num-prompts", "5", "--output-len", "4", "--ignore-eos"];
    let with = |more: &[&str]| load(&bench, &server, &[&args[..], more].concat());

    let lines = "{\"prompt\": \"on the\", \"output_len\": 2}\n\n{\"prompt\": \"off\"}\n";
    bench.write("p.jsonl", lines);
    let file = ["--dataset-name", "file", "--dataset-path", "p.jsonl"];
    let saved = ["--save-result", "--save-detailed", "--result-filename", "r.json"];
    let chat = ["--endpoint", "/v1/chat/completions", "--request-rate", "500"];
    let metrics = ["--percentile-metrics", "e2el,ttft", "--metric-percentiles", "50,99.9"];
    let ran = with(&[&file[..], &saved, &chat, &metrics].concat()).expect(0);
    assert!(ran.stdout.contains("P99.9 E2EL (ms):"), "{}", ran.stdout);
    assert!(!ran.stdout.contains("TPOT"), "{}", ran.stdout);
    let result: Value = serde_json::from_str(&bench.read("r.json")).unwrap();
    assert_eq!(result["output_lens"], json!([2, 4, 2, 4, 2]));
    assert_eq!((&result["model_id"], &result["request_rate"]), (&json!("a/tiny"), &json!(500.0)));
    assert!(result["p50_ttft_ms"].is_number() && result["ttfts"].as_array().unwrap().len() == 5);

    let prefix = ["--dataset-name", "shared-prefix", "--prefix-len", "70", "--input-len", "10"];
    let once = ["--max-concurrency", "1", "--json"];
    let ran = with(&[&prefix[..], &once].concat()).expect(0);
    let rows: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(rows[0]["total_input_tokens"], 5 * 80);

    bench.write("bad.jsonl", "{\"text\": 1}\n");
    with(&["--dataset-name", "file", "--dataset-path", "bad.jsonl"])
        .expect_error(1, "bad.jsonl:1: missing field `prompt`");
    assert_eq!(server.terminate().0, Some(0));
}

#[test]
fn what_goes_wrong_is_told() {
    let bench = Bench::new();
    let help = bench.call(&["bench", "serve", "--help"]).expect(0).stdout;
    assert!(help.contains("Examples:\n  paceline bench serve"), "{help}");
    let server = Served::start(&bench, &["--api-key", "sk-1"]);
    let quick = ["--num-prompts", "3", "--input-len", "8", "--ready-check-timeout-sec", "0"];
    let with = |more: &[&str]| load(&bench, &server, &[&quick[..], more].concat());
    with(&["--api-key", "sk-2"]).expect_error(1, "is the API key right?");
    let ran = with(&["--api-key", "sk-1", "--model", "other"]).expect(1);
    assert!(ran.stderr.contains("3 failed: status 404: the model \"other\""), "{ran:?}");
    assert_eq!(figure(&ran.stdout, "Failed requests:"), 3.0);
    let address = server.address.clone();
    assert_eq!(server.terminate().0, Some(0));
    let gone = ["bench", "serve", "--ready-check-timeout-sec", "0", "--base-url"];
    let call = |url: &str| bench.call(&[&gone[..], &[url]].concat());
    call(&format!("http://{address}")).expect_error(1, "cannot connect to");
    call("https://a").expect_error(1, "only http://");
    bench.call(&["bench", "serve", "--goodput", "fast"]).expect_error(2, "as in ttft:200");
}
