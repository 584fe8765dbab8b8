//! `paceline bench` and `paceline synth` on models that run in a blink.

use serde_json::Value;

use super::bench::Bench;

fn rows(bench: &Bench, args: &[&str]) -> Vec<Value> {
    let args = [&["bench"], args, &["--json"]].concat();
    serde_json::from_str(&bench.call(&args).expect(0).stdout).unwrap()
}

fn is_rate(value: &Value) -> bool {
    value.as_f64().is_some_and(|rate| rate > 0.0 && rate.is_finite())
}

const SMALL: [&str; 10] = [
    "-m",
    "tiny.gguf",
    "--threads",
    "2",
    "--prompt-tokens",
    "20",
    "--new-tokens",
    "6",
    "--rounds",
    "2",
];

#[test]
fn throughput_has_a_row_for_each_batch_size() {
    let bench = Bench::new();
    let rows = rows(&bench, &[&["throughput", "--batch", "1,3,8"], &SMALL[..]].concat());
    let batches: Vec<u64> = rows.iter().map(|row| row["batch"].as_u64().unwrap()).collect();
    assert_eq!(batches, [1, 3, 8]);
    for row in &rows {
        for rate in [
            "prefill_tokens_per_s",
            "decode_tokens_per_s",
            "decode_bound_tokens_per_s",
            "prefill_bound_tokens_per_s",
            "read_bytes_per_s",
            "peak_ops_per_s",
            "ttft_ms_p50",
            "kv_bytes",
        ] {
            assert!(is_rate(&row[rate]), "{rate}: {row}");
        }
        assert_eq!(row["decode_tokens"].as_u64().unwrap(), row["batch"].as_u64().unwrap() * 5);
        assert_eq!((&row["threads"], &row["model"]), (&Value::from(2), &Value::from("tiny.gguf")));
    }
}

#[test]
fn answers_may_be_shorter_than_the_prompts_take_steps() {
    let bench = Bench::new();
    let shape = ["--batch", "64", "--prompt-tokens", "128", "--new-tokens", "2", "--rounds", "1"];
    let rows = rows(&bench, &[&["throughput", "-m", "tiny.gguf"], &shape[..]].concat());
    assert_eq!(rows[0]["decode_tokens"], 64);
}

#[test]
fn throughput_runs_on_any_instruction_set_and_draws() {
    let bench = Bench::new();
    let args = ["bench", "throughput", "--batch", "1,2", "--isa", "scalar", "--plot", "t.svg"];
    let text = bench.call(&[&args, &SMALL[..]].concat()).expect(0).stdout;
    assert!(text.contains("scalar") && text.contains("decode tok/s"), "{text}");
    let svg = bench.read("t.svg");
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"), "{svg}");
    assert!(svg.contains("prefers-color-scheme:dark"));
}

#[test]
fn scaling_compares_with_the_first_batch_size() {
    let bench = Bench::new();
    let rows = rows(&bench, &[&["scaling", "--batch", "2,4"], &SMALL[..]].concat());
    assert_eq!(
        (rows[0]["speedup"].as_f64(), rows[0]["efficiency"].as_f64()),
        (Some(1.0), Some(1.0))
    );
    let (speedup, efficiency) = (&rows[1]["speedup"], &rows[1]["efficiency"]);
    let twice = efficiency.as_f64().unwrap() * 2.0;
    assert!((speedup.as_f64().unwrap() - twice).abs() < 1e-9, "{rows:?}");
    assert_eq!(rows[1]["decode_tokens"], 4 * 5);
}

#[test]
fn every_strategy_serves_the_same_requests_with_the_same_tokens() {
    let bench = Bench::new();
    // The command itself compares the tokens and fails if one differs.
    let work =
        ["--requests", "12", "--rate", "400", "--prompt-tokens", "3..40", "--max-batch", "4"];
    let args = ["strategies", "-m", "tiny.gguf", "--new-tokens", "2..24", "--plot", "s.svg"];
    let rows = rows(&bench, &[&args[..], &work, &["--window-ms", "5", "--rounds", "2"]].concat());
    let names: Vec<&str> = rows.iter().map(|row| row["strategy"].as_str().unwrap()).collect();
    assert_eq!(names, ["sequential", "interleaved", "static", "window", "continuous"]);
    for row in &rows {
        for figure in ["tokens_per_s", "latency_ms_p50", "ttft_ms_p50", "total_s", "speedup"] {
            assert!(is_rate(&row[figure]), "{figure}: {row}");
        }
        assert!(row["latency_ms_p50"].as_f64() <= row["latency_ms_p95"].as_f64());
        assert!(row["ttft_ms_p50"].as_f64() <= row["latency_ms_p50"].as_f64());
        assert_eq!(row["new_tokens"], rows[0]["new_tokens"]);
    }
    assert!(bench.read("s.svg").contains("continuous"));
}

#[test]
fn ceilings_tell_bandwidth_and_peaks() {
    let bench = Bench::new();
    let args = ["ceilings", "--sizes", "256KiB,1M", "--rounds", "1", "--budget-ms", "1"];
    let rows = rows(&bench, &[&args[..], &["--threads", "2", "--plot", "c.svg"]].concat());
    let reads: Vec<&Value> = rows.iter().filter(|row| row["kind"] == "read").collect();
    assert_eq!(reads.len(), 4);
    assert_eq!(reads[0]["working_set_bytes"], 256 << 10);
    assert!(rows.iter().all(|row| is_rate(&row["per_s"])), "{rows:?}");
    assert!(rows.iter().any(|row| row["kind"] == "peak" && row["name"] == "plain f32"));
    assert!(bench.read("c.svg").contains("GB/s"));
}

#[test]
fn kernels_are_measured_for_each_type_and_number_of_rows() {
    let bench = Bench::new();
    let sizes = ["--outputs", "48", "--inputs", "256", "--working-set", "64K", "--rows", "1,5"];
    let quick = ["--rounds", "1", "--budget-ms", "1", "--threads", "2", "--plot", "k.svg"];
    let rows = rows(&bench, &[&["kernels"], &sizes[..], &quick].concat());
    let products = rows.iter().filter(|row| row["op"].as_str().unwrap().starts_with("product"));
    assert_eq!(products.count(), 13 * 2);
    for op in ["attention bf16, decode", "attention int8, prompt", "norm", "gate", "argmax"] {
        assert!(rows.iter().any(|row| row["op"] == op), "{op}");
    }
    for row in &rows {
        assert!(is_rate(&row["us"]) && is_rate(&row["share_of_bound"]), "{row}");
    }
    assert!(bench.read("k.svg").contains("product Q4_K"));
}

#[test]
fn measurements_that_make_no_sense_are_refused() {
    let bench = Bench::new();
    let cases: [(&[&str], &str); 11] = [
        (&["throughput", "--batch", "0"], "0 is not in 1..=4096"),
        (&["throughput", "--batch", "a"], "invalid value 'a'"),
        (&["throughput", "--new-tokens", "1"], "1 is not in 2..="),
        (&["throughput", "--isa", "mmx"], "instruction set 'mmx' is not known"),
        (&["throughput", "-m", "tiny.gguf", "--new-tokens", "300"], "need a context of"),
        (&["strategies", "--new-tokens", "9..8"], "write two counts"),
        (&["strategies", "-m", "tiny.gguf", "--rate", "0"], "--rate is 0"),
        (&["kernels", "--types", "q9"], "no type of weights named"),
        (&["kernels", "--types", "q4_k", "--inputs", "96"], "not whole blocks of 256"),
        (&["ceilings", "--sizes", "1TB"], "write a size as in 64MiB"),
        (&[], ""),
    ];
    for (args, says) in cases {
        let ran = bench.call(&[&["bench"], args].concat());
        match says {
            "" => _ = ran.expect(2),
            says => ran.expect_error(2, says),
        }
    }
    bench.call(&["bench", "throughput", "-m", "no.gguf"]).expect_error(1, "there is no file");
    let args = ["bench", "ceilings", "--sizes", "1K", "--rounds", "1", "--budget-ms", "1"];
    let args = [&args[..], &["--plot", "no/such/dir.svg"]].concat();
    bench.call(&args).expect_error(1, "cannot write no/such/dir.svg");
}

const SHRUNK: [&str; 12] = [
    "--layers",
    "2",
    "--d-model",
    "256",
    "--d-ff",
    "512",
    "--vocab",
    "320",
    "--context",
    "128",
    "--head-dim",
    "32",
];

#[test]
fn a_synthesised_model_runs() {
    let bench = Bench::new();
    for (like, ty) in [("tinyllama-1.1b", "q4_0"), ("qwen3-0.6b", "q6_k"), ("gemma-3-1b", "bf16")] {
        let args =
            [&["synth", "--like", like, "--type", ty, "-o", "m.gguf", "--force"], &SHRUNK[..]];
        assert_eq!(bench.call(&args.concat()).expect(0).stdout, "m.gguf\n");
        let args = ["run", "-m", "m.gguf", "--raw", "--max-tokens", "5", "--ignore-eos", "hello"];
        let ran = bench.call(&args).expect(0);
        assert!(ran.stderr.contains("5 generated"), "{like}: {}", ran.stderr);
    }
}

#[test]
fn a_synthesised_model_is_its_seed_and_replaces_nothing_unasked() {
    let bench = Bench::new();
    let synth = |more: &[&str]| bench.call(&[&["synth"], &SHRUNK[..], more].concat());
    assert_eq!(synth(&[]).expect(0).stdout, "smollm2-135m.Q4_0.gguf\n");
    let read = |name: &str| std::fs::read(bench.path(name)).unwrap();
    let first = read("smollm2-135m.Q4_0.gguf");
    synth(&[]).expect_error(2, "smollm2-135m.Q4_0.gguf exists already");
    synth(&["--seed", "1", "-o", "same.gguf"]).expect(0);
    synth(&["--seed", "2", "-o", "other.gguf"]).expect(0);
    assert!(read("same.gguf") == first && read("other.gguf") != first);
    let cases = [
        (&["--like", "gpt-5"][..], 2, "--like knows smollm2-135m"),
        (&["--type", "q9"], 2, "--type knows F32"),
        (&["--arch", "rnn", "-o", "x"], 1, "\"rnn\" is not supported"),
        (&["--heads", "9", "--kv-heads", "2", "-o", "x"], 1, "the number of key-value heads"),
        (&["-o", "no/such/dir/x"], 1, "no/such/dir/x"),
    ];
    for (args, code, says) in cases {
        synth(args).expect_error(code, says);
    }
    let args = ["synth", "--d-model", "576", "--type", "q4_k", "-o", "x"];
    bench.call(&args).expect_error(1, "576");
}
