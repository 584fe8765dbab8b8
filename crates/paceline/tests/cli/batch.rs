use std::io::{BufRead, BufReader, Write};
use std::process::Command;

use serde_json::{Value, json};

use super::bench::{Bench, json_lines};

const BATCH: [&str; 7] = ["batch", "-m", "tiny.gguf", "--threads", "1", "-q", "-i"];

fn batch<'a>(args: &[&'a str]) -> Vec<&'a str> {
    [&BATCH, args].concat()
}

fn by_index(mut lines: Vec<Value>) -> Vec<Value> {
    lines.sort_by_key(|line| line["index"].as_u64());
    lines
}

#[test]
fn a_text_file_has_a_prompt_on_each_line() {
    let bench = Bench::new();
    bench.write("in.txt", "\u{feff}alpha\r\n\nbeta beta\n  \ngamma");
    let args = ["in.txt", "-o", "out.jsonl", "--ordered", "--max-tokens", "5", "--ignore-eos"];
    let ran = bench.call(&batch(&args)).expect(0);
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("", ""));
    let lines = json_lines(&bench.read("out.jsonl"));
    let indices: Vec<_> = lines.iter().map(|line| line["index"].as_u64().unwrap()).collect();
    assert_eq!(indices, [0, 2, 4]);
    for (line, n_prompt) in lines.iter().zip([5, 9, 5]) {
        assert_eq!(line["custom_id"], Value::Null);
        assert_eq!(line["token_ids"].as_array().unwrap().len(), 5);
        assert_eq!(line["finish_reason"], "length");
        assert!(line["text"].is_string());
        // Merges in the vocabulary make prompts a little shorter than their bytes.
        let n_tokens = line["usage"]["prompt_tokens"].as_u64().unwrap();
        assert!((1..=n_prompt).contains(&n_tokens), "{line}");
        assert_eq!(line["usage"]["completion_tokens"], 5);
        assert_eq!(line["usage"]["total_tokens"], n_tokens + 5);
        assert!(line.get("choice").is_none() && line.get("logprobs").is_none());
    }
}

#[test]
fn results_do_not_depend_on_what_runs_beside_them() {
    let bench = Bench::new();
    let line = |i: u32| {
        let prompt = "word ".repeat(1 + i as usize * 3 % 17);
        let line = json!({"custom_id": format!("id-{i}"), "prompt": prompt,
                          "temperature": 0.9, "max_tokens": 3 + i % 9, "logprobs": 2});
        line.to_string() + "\n"
    };
    bench.write("in.jsonl", (0..24).map(line).collect::<String>());
    let flags = [
        &["--max-num-seqs", "1"][..],
        &["--max-num-seqs", "24"],
        &["--max-num-batched-tokens", "16", "--no-prefix-cache"],
        &["--max-batch-size", "5"],
        &["--max-batch-size", "5", "--batch-window", "1"],
        &["--num-kv-blocks", "8"],
        &["--ordered", "--long-prefill-token-threshold", "7"],
    ];
    let run = |flags: &[&str]| {
        let args = [&["in.jsonl", "-o", "-", "--seed", "5"], flags].concat();
        by_index(json_lines(&bench.call(&batch(&args)).expect(0).stdout))
    };
    let expected = run(&[]);
    assert_eq!(expected.len(), 24);
    let ids: Vec<_> = expected.iter().map(|line| line["custom_id"].clone()).collect();
    assert_eq!(ids, (0..24).map(|i| json!(format!("id-{i}"))).collect::<Vec<_>>());
    for flags in flags {
        assert_eq!(run(flags), expected, "{flags:?}");
    }
}

#[test]
fn a_bad_line_fails_alone() {
    let bench = Bench::new();
    let too_long = json!({"custom_id": "long", "prompt": "x".repeat(300)}).to_string();
    let cases = [
        (r#"{"custom_id": "good", "prompt": "hello"}"#, None),
        (r#"{"custom_id": "typo", "promt": "hello"}"#, Some("unknown field \"promt\"")),
        ("{\"prompt\": \"cut", Some("not valid JSON")),
        (r#"{"prompt": ""}"#, Some("the prompt is empty")),
        (&too_long, Some("the prompt has 300 tokens, but the model's context leaves room for 255")),
        (r#"{"prompt": "a", "temperature": -1}"#, Some("temperature is -1")),
        (r#"{"prompt": "a", "top_p": 0}"#, Some("top_p is 0")),
        (r#"{"prompt": "a", "n": 129}"#, Some("n is 129")),
        (r#"{"prompt": "a", "n": 4000000000}"#, Some("n is 4000000000")),
        (r#"{"prompt": "a", "max_tokens": 0}"#, Some("max_tokens is 0")),
        (r#"{"prompt": "a", "logprobs": 21}"#, Some("logprobs is 21")),
        (r#"{"prompt": "a", "stop": [""]}"#, Some("stop string 0 is empty")),
        (r#"{"prompt": "a", "logit_bias": {"320": 1}}"#, Some("logit_bias names token 320")),
        (r#"{"prompt_token_ids": [320]}"#, Some("token 320, but the model's vocabulary has 320")),
        (r#"{"messages": []}"#, None),
        (r#"{"custom_id": "last", "prompt_token_ids": [5, 6]}"#, None),
    ];
    let text: String = cases.iter().map(|(line, _)| format!("{line}\n")).collect();
    bench.write("in.jsonl", text);
    let args = ["in.jsonl", "-o", "out.jsonl", "--max-tokens", "2"];
    bench.call(&batch(&args)).expect(1);
    let good = json_lines(&bench.read("out.jsonl"));
    let bad = json_lines(&bench.read("out.errors.jsonl"));
    assert!(good.iter().all(|line| line.get("error").is_none()));
    let lines = by_index([good, bad].concat());
    assert_eq!(lines.len(), cases.len());
    for (i, ((input, expected), line)) in cases.iter().zip(&lines).enumerate() {
        assert_eq!(line["index"], i);
        let error = line["error"].as_str();
        assert_eq!(error.is_some(), expected.is_some(), "{input}: {line}");
        assert_eq!(line["text"].is_string(), expected.is_none(), "{input}: {line}");
        let says = |expected: &&str| error.is_some_and(|error| error.contains(expected));
        assert!(expected.as_ref().is_none_or(says), "{input}: {line}");
    }
    assert_eq!(lines[1]["custom_id"], "typo");
    assert_eq!(lines[4]["custom_id"], "long");
}

#[test]
fn bytes_that_are_no_text_fail_alone() {
    let bench = Bench::new();
    bench.write("in.txt", b"one\n\xff\xfe\ntwo\n");
    bench.call(&batch(&["in.txt", "-o", "out.jsonl", "--max-tokens", "1"])).expect(1);
    let args = ["in.txt", "-o", "one.jsonl", "--errors", "bad", "--max-tokens", "1"];
    bench.call(&batch(&args)).expect(1);
    let both = [bench.read("one.jsonl"), bench.read("bad")].concat();
    let lines =
        by_index(json_lines(&[bench.read("out.jsonl"), bench.read("out.errors.jsonl")].concat()));
    assert_eq!(by_index(json_lines(&both)), lines);
    assert_eq!(
        lines[1],
        json!({"custom_id": null, "index": 1,
                                "error": "the line is not valid UTF-8"})
    );
    assert!(lines[0]["text"].is_string() && lines[2]["text"].is_string());
}

#[test]
fn n_answers_are_n_lines() {
    let bench = Bench::new();
    let line = json!({"custom_id": "a", "prompt": "hello there", "n": 3, "temperature": 1.5,
                      "max_tokens": 6, "ignore_eos": true, "seed": 3});
    let args = batch(&["-", "-o", "-"]);
    let lines = json_lines(&bench.call_with(&args, &line.to_string()).expect(0).stdout);
    let choices: Vec<_> = lines.iter().map(|line| line["choice"].as_u64().unwrap()).collect();
    assert_eq!(choices, [0, 1, 2]);
    assert!(lines.iter().all(|line| line["custom_id"] == "a" && line["index"] == 0));
    assert!(lines.iter().all(|line| line["usage"]["completion_tokens"] == 6));
    assert_ne!(lines[0]["token_ids"], lines[1]["token_ids"]);
}

#[test]
fn logprobs_are_there_if_asked_for() {
    let bench = Bench::new();
    let line = json!({"prompt_token_ids": [10, 11, 12], "max_tokens": 2, "ignore_eos": true,
                      "temperature": 0, "logprobs": 2, "prompt_logprobs": true});
    let args = batch(&["-", "-o", "-"]);
    let line = &json_lines(&bench.call_with(&args, &line.to_string()).expect(0).stdout)[0];
    let logprobs = line["logprobs"].as_array().unwrap();
    assert_eq!(logprobs.len(), 2);
    for (entry, token) in logprobs.iter().zip(line["token_ids"].as_array().unwrap()) {
        assert_eq!(&entry["token_id"], token);
        let top = entry["top_logprobs"].as_array().unwrap();
        // Greedy: the chosen token is the likeliest.
        assert_eq!((top.len(), &top[0]["token_id"]), (2, token));
        assert_eq!(top[0]["logprob"], entry["logprob"]);
        assert!(top[0]["logprob"].as_f64() >= top[1]["logprob"].as_f64());
    }
    let of_prompt = line["prompt_logprobs"].as_array().unwrap();
    let tokens: Vec<_> = of_prompt.iter().map(|entry| entry["token_id"].as_u64()).collect();
    assert_eq!(tokens, [None, Some(11), Some(12)]);
}

#[test]
fn chat_puts_prompts_into_the_template() {
    let bench = Bench::new();
    let messages = json!({"messages": [{"role": "system", "content": "s"},
                                       {"role": "user", "content": "q"}]});
    let from = |args: &[&str], text: &str| {
        let args = [&["-", "-o", "-", "--max-tokens", "4"], args].concat();
        let ran = bench.call_with(&batch(&args), text).expect(0);
        json_lines(&ran.stdout).remove(0)
    };
    let expected = from(&[], &messages.to_string());
    assert_eq!(from(&["--format", "text", "--chat", "--system", "s"], "q\n"), expected);
    assert_eq!(from(&["--chat", "--system", "s"], r#"{"prompt": "q"}"#), expected);
    assert_ne!(from(&["--format", "text"], "q\n")["usage"], expected["usage"]);
}

#[test]
fn an_output_that_exists_is_kept_unless_forced() {
    let bench = Bench::new();
    bench.write("in.txt", "a\n");
    bench.write("out.jsonl", "precious\n");
    let args = ["in.txt", "-o", "out.jsonl", "--max-tokens", "1"];
    let says = "out.jsonl exists already, but its line 1 is no result to go on from; use --force";
    bench.call(&batch(&args)).expect_error(1, says);
    assert_eq!(bench.read("out.jsonl"), "precious\n");
    bench.call(&batch(&[&args[..], &["--force"]].concat())).expect(0);
    assert_eq!(json_lines(&bench.read("out.jsonl")).len(), 1);
    let same = ["in.txt", "-o", "./in.txt", "--force"];
    bench.call(&batch(&same)).expect_error(1, "input and output are the same file");
    assert_eq!(bench.read("in.txt"), "a\n");
}

#[test]
fn an_empty_file_has_no_results() {
    let bench = Bench::new();
    bench.write("in.jsonl", "\n \n");
    bench.call(&batch(&["in.jsonl", "-o", "out.jsonl"])).expect(0);
    assert_eq!(bench.read("out.jsonl"), "");
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let bench = Bench::new();
    bench.write("in.txt", "a\n");
    let cases = [
        (["missing.txt", "-o", "out.jsonl"], "cannot read missing.txt: No such file"),
        ([".", "-o", "out.jsonl"], ". is a directory"),
        (["in.txt", "-o", "no/such/out.jsonl"], "cannot create no/such/out.jsonl"),
    ];
    for (args, says) in cases {
        bench.call(&batch(&args)).expect_error(1, says);
    }
    assert!(!bench.path("out.jsonl").exists());
}

#[test]
fn the_summary_counts_and_names_the_seed() {
    let bench = Bench::new();
    let args = [
        "batch",
        "-m",
        "tiny.gguf",
        "-i",
        "-",
        "-o",
        "-",
        "--format",
        "text",
        "-t",
        "1",
        "--seed",
        "9",
        "--max-tokens",
        "3",
        "--ignore-eos",
    ];
    let ran = bench.call_with(&args, "a\nb\n").expect(0);
    assert!(ran.stderr.contains("2 prompts, 0 failed: 2 prompt tokens"), "{}", ran.stderr);
    assert!(ran.stderr.contains("6 generated in"), "{}", ran.stderr);
    assert!(ran.stderr.contains("seed 9"), "{}", ran.stderr);
    assert!(ran.stderr.contains("KV pool"), "{}", ran.stderr);
}

/// The first result shows that the batch runs; more input could still come.
#[cfg(unix)]
#[test]
fn ctrl_c_keeps_what_is_written() {
    let bench = Bench::new();
    let args = ["batch", "-m", "tiny.gguf", "-i", "-", "-o", "-", "--max-tokens", "2"];
    let mut child = bench.spawn(&args);
    let mut stdin = child.stdin.take().unwrap();
    writeln!(stdin, "{}", json!({"prompt": "a"})).unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(json_lines(&line)[0]["index"], 0);
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(kill.unwrap().success());
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("interrupted: the results of 1 prompts were written"), "{stderr}");
}
