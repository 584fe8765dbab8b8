use paceline_model::synth::{SynthSpec, write_hf};
use serde_json::{Value, json};

use super::bench::Bench;

fn inspect(bench: &Bench, args: &[&str]) -> Value {
    let args = [&["inspect", "--json"], args].concat();
    serde_json::from_str(&bench.call(&args).expect(0).stdout).unwrap()
}

#[test]
fn inspect_tells_shape_tensors_and_memory() {
    let bench = Bench::new();
    let args = ["tiny.gguf", "--num-kv-blocks", "40", "--max-num-seqs", "6"];
    let report = inspect(&bench, &args);
    assert_eq!(report["model"]["architecture"], "llama");
    assert_eq!(report["model"]["format"], "GGUF");
    assert_eq!(report["model"]["n_layers"], 2);
    assert_eq!(report["model"]["max_context"], 256);
    // One norm before attention, one before the feed-forward, one at the end; seven matrices a
    // layer and the embedding; all in F32.
    let n_tensors = 2 * (2 + 7) + 2;
    let n_parameters = report["model"]["n_parameters"].as_u64().unwrap();
    assert_eq!(
        report["tensors"],
        json!([{"type": "F32", "count": n_tensors, "n_bytes": 4 * n_parameters}])
    );
    assert_eq!(report["tokenizer"]["n_tokens"], 320);
    assert_eq!(report["tokenizer"]["has_chat_template"], true);
    assert_eq!(report["tokenizer"]["ends"][1], json!({"id": 2, "text": "<|im_end|>"}));
    let memory = &report["memory"];
    // Two layers, keys and values of two heads of 64 in 16 bits.
    assert_eq!(memory["kv_bytes_per_token"], 2 * 2 * 2 * 64 * 2);
    assert_eq!(memory["kv_pool_tokens"], 40 * 32);
    assert_eq!(memory["full_sequences"], 40 * 32 / 256);
    assert_eq!((&memory["usual_sequences"], &memory["usual_tokens"]), (&json!(5), &json!(256)));
    assert_eq!(memory["max_num_seqs"], 6);
}

#[test]
fn inspect_sizes_the_kv_cache_by_its_type() {
    let bench = Bench::new();
    // Two layers, keys and values of two heads of 64; bytes have a scale of 4 bytes for each head.
    let heads = 2 * 2 * 2;
    for (flag, name, n_bytes) in [
        ("auto", "bf16", 2 * 64),
        ("f16", "f16", 2 * 64),
        ("float16", "f16", 2 * 64),
        ("bf16", "bf16", 2 * 64),
        ("bfloat16", "bf16", 2 * 64),
        ("int8", "int8", 64 + 4),
    ] {
        let memory = &inspect(&bench, &["tiny.gguf", "--kv-cache-dtype", flag])["memory"];
        assert_eq!(memory["kv_dtype"], name, "{flag}");
        assert_eq!(memory["kv_bytes_per_token"], heads * n_bytes, "{flag}");
    }
    let text = bench.call(&["inspect", "tiny.gguf", "--kv-cache-dtype", "int8"]).expect(0).stdout;
    assert!(text.contains("for each token, in int8"), "{text}");
}

#[test]
fn inspect_reads_a_checkpoint_directory() {
    let bench = Bench::new();
    write_hf(&SynthSpec::tiny("qwen2"), &bench.path("hf")).unwrap();
    let report = inspect(&bench, &["hf"]);
    assert_eq!(report["model"]["architecture"], "qwen2");
    assert_eq!(report["model"]["format"], "safetensors");
    let text = bench.call(&["inspect", "hf"]).expect(0).stdout;
    for says in ["architecture   qwen2", "chat template  yes", "KV pool", "sequences of the full"] {
        assert!(text.contains(says), "{text}");
    }
}

#[test]
fn pull_says_where_a_model_is() {
    let bench = Bench::new();
    assert_eq!(bench.call(&["pull", "tiny.gguf"]).expect(0).stdout, "tiny.gguf\n");
    bench.call(&["pull"]).expect_error(1, "downloads are switched off");
}

#[test]
fn every_command_has_help_with_examples() {
    let bench = Bench::new();
    let bench_commands =
        ["ceilings", "throughput", "scaling", "strategies", "kernels"].map(|c| ["bench", c]);
    let commands = ["run", "batch", "pull", "inspect", "bench", "synth"].map(|c| [c]);
    let commands = commands.iter().map(|c| &c[..]).chain(bench_commands.iter().map(|c| &c[..]));
    for command in commands.chain([&[][..]]) {
        let help = bench.call(&[command, &["--help"]].concat()).expect(0).stdout;
        assert!(help.contains("Examples:\n  paceline "), "{help}");
    }
    let version = bench.call(&["--version"]).expect(0).stdout;
    assert_eq!(version, format!("paceline {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn wrong_usage_ends_with_two() {
    let bench = Bench::new();
    bench.call(&[]).expect(2);
    bench.call(&["batch", "-i", "in.txt"]).expect_error(2, "required arguments were not provided");
    bench.call(&["rnu"]).expect_error(2, "unrecognized subcommand 'rnu'");
    let args = ["batch", "-i", "a", "-o", "b", "--system", "x"];
    bench.call(&args).expect_error(2, "required arguments were not provided");
    bench.call(&["run", "-q", "-v", "x"]).expect_error(2, "cannot be used with");
}
