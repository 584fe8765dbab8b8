//! Real models against reference outputs of a plain float32 forward pass.

use std::path::Path;
use std::sync::Arc;

use paceline_cpu::quant::TensorType;
use paceline_cpu::{ActDtype, Isa, KvDtype};
use paceline_engine::{Batch, BatchSeq, BlockId, SampleRow, SampleTask, SamplingParams, Token};
use paceline_model::Checkpoint;
use paceline_model::cpu_backend::{CpuBackend, CpuOptions};
use paceline_model::synth::SynthSpec;
use paceline_model::tokenizer::{SpecialTokens, Tokenizer};
use paceline_model::weights::Weights;
use serde_json::Value;

use crate::harness::{
    Job, Output, Setup, default_model, load, packed_for, packed_for_ints, testdata, tiny, together,
};

/// Where the reference's best token leads by less, another is no error.
const DECISIVE_MARGIN: f64 = 0.3;
/// llama.cpp's mean divergence on the same text and file.
const MEAN_KL_MAX: f64 = 0.00241;

fn read(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(testdata(name)).unwrap()).unwrap()
}

fn ids(value: &Value) -> Vec<Token> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as Token).collect()
}

/// Greedy tokens are the reference's until it hesitates; prompt ids are the tokenizer's.
fn check_cases(model: &Path, golden: &str) {
    let weights = load(Checkpoint::open(model).unwrap());
    let tokenizer =
        Tokenizer::from_metadata(weights.checkpoint().gguf().unwrap().metadata()).unwrap();
    let golden = read(golden);
    let cases = golden["cases"].as_array().unwrap();
    let job = |case: &Value| {
        let prompt = ids(&case["prompt_token_ids"]);
        let text = case["prompt"].as_str().unwrap();
        assert_eq!(tokenizer.encode(text, SpecialTokens::Parse).unwrap(), prompt, "{text:?}");
        let params = SamplingParams {
            max_tokens: case["greedy"].as_array().unwrap().len() as u32,
            ignore_eos: true,
            logprobs: Some(0),
            prompt_logprobs: Some(0),
            ..SamplingParams::greedy()
        };
        Job { prompt, params }
    };
    let jobs: Vec<Job> = cases.iter().map(job).collect();
    let (outputs, _) = together(&weights, Setup::plain(), &jobs);
    for (case, output) in cases.iter().zip(&outputs) {
        let n_agreed = check_greedy(case, output);
        assert!(n_agreed > 0 || case["greedy"][0]["margin"].as_f64() < Some(DECISIVE_MARGIN));
        check_prompt_logprobs(case, output);
    }
}

/// How many tokens agree; a disagreement must be at a small margin, and ends the comparison.
fn check_greedy(case: &Value, output: &Output) -> usize {
    let name = &case["name"];
    let reference = case["greedy"].as_array().unwrap();
    for (i, (expected, &token)) in reference.iter().zip(&output.tokens).enumerate() {
        if expected["token"].as_u64() != Some(u64::from(token)) {
            let margin = expected["margin"].as_f64().unwrap();
            assert!(margin < DECISIVE_MARGIN, "{name}: token {i} differs at margin {margin}");
            return i;
        }
        let logprob = f64::from(f32::from_bits(output.logprobs[i].1));
        let difference = (logprob - expected["logprob"].as_f64().unwrap()).abs();
        assert!(difference < 0.5, "{name}: logprob of token {i} is off by {difference}");
    }
    reference.len()
}

fn check_prompt_logprobs(case: &Value, output: &Output) {
    let reference: Vec<f64> =
        case["prompt_logprobs"].as_array().unwrap().iter().filter_map(Value::as_f64).collect();
    assert_eq!(output.prompt_logprobs.len(), reference.len());
    let difference = |(bits, expected): (&crate::harness::Bits, &f64)| {
        (f64::from(f32::from_bits(bits.1)) - expected).abs()
    };
    let differences = output.prompt_logprobs.iter().zip(&reference).map(difference);
    let mean = differences.sum::<f64>() / reference.len().max(1) as f64;
    assert!(mean < 0.2, "{}: prompt logprobs are off by {mean} on average", case["name"]);
}

/// Tiny models of every architecture against transformers' own float32 logits
/// (`testdata/make_architecture_golden.py`). Attention reads queries, keys, values and its weights
/// as bf16, which moves single logits by up to 0.033; on average they are as close as 0.01.
#[test]
fn every_architecture() {
    let golden = read("golden/architectures.json");
    let (tokens, entries) = (ids(&golden["tokens"]), ids(&golden["entries"]));
    for arch in SynthSpec::architectures() {
        let expected = golden["architectures"][arch].as_array().unwrap();
        let rows: Vec<Value> =
            (0..tokens.len()).map(|row| serde_json::json!({"position": row})).collect();
        let weights = tiny(arch, TensorType::F32);
        let (mut total, mut count) = (0.0, 0);
        each_logits(&weights, KvDtype::Bf16, &tokens, &rows, |row, logits| {
            for (entry, expected) in entries.iter().zip(expected[row].as_array().unwrap()) {
                let (found, expected) =
                    (f64::from(logits[*entry as usize]), expected.as_f64().unwrap());
                let difference = (found - expected).abs();
                assert!(difference < 0.04, "{arch} row {row}: {found} and not {expected}");
                total += difference;
                count += 1;
            }
        });
        let mean = total / f64::from(count);
        assert!(mean < 0.01, "{arch}: logits are off by {mean} on average");
    }
}

#[test]
fn draft_model() {
    let model = testdata("models/smollm2-draft-16m.Q8_0.gguf");
    check_cases(&model, "golden/smollm2-draft-16m.json");
}

#[test]
fn default_model_greedy() {
    let Some(path) = default_model("greedy golden cases of the default model") else { return };
    check_cases(&path, "golden/smollm2-135m-q4_1.json");
}

#[test]
fn default_model_distributions() {
    let Some(path) = default_model("divergence of the default model") else { return };
    let weights = load(Checkpoint::open(&path).unwrap());
    let golden = read("golden/smollm2-135m-q4_1-distributions.json");
    // Every instruction set gives the same bits (see `invariance`), so one speaks for all.
    let usual = mean_kl(&weights, KvDtype::Bf16, &golden);
    println!("mean divergence with bf16 keys and values: {usual:.5}");
    for (acts, cost_max) in [(ActDtype::Int12, 0.0002), (ActDtype::Int8, 0.0022)] {
        let ints = mean_kl(&packed_for_ints(&weights, acts), KvDtype::Bf16, &golden);
        println!("mean divergence with activations as {acts}: {ints:.5}");
        assert!(ints <= usual + cost_max, "activations as {acts} make {ints:.5} of {usual:.5}");
    }
    for (dtype, cost_max) in [(KvDtype::F16, 0.0002), (KvDtype::Int8, 0.0012)] {
        let mean = mean_kl(&weights, dtype, &golden);
        println!("mean divergence with {dtype} keys and values: {mean:.5}");
        assert!(mean <= usual + cost_max, "{dtype} keys and values make {mean:.5} of {usual:.5}");
    }
    let ints = packed_for_ints(&weights, ActDtype::Int8);
    let all = mean_kl(&ints, KvDtype::Int8, &golden);
    println!("mean divergence with activations, keys and values as int8: {all:.5}");
}

/// Holds the mean divergence to the rule.
fn mean_kl(weights: &Arc<Weights>, dtype: KvDtype, golden: &Value) -> f64 {
    let mean = mean_divergence(weights, dtype, golden);
    assert!(mean <= MEAN_KL_MAX, "with {dtype} keys and values it is {mean:.5}");
    mean
}

fn mean_divergence(weights: &Arc<Weights>, dtype: KvDtype, golden: &Value) -> f64 {
    let rows = golden["rows"].as_array().unwrap();
    let mut total = 0.0;
    each_logits(weights, dtype, &ids(&golden["token_ids"]), rows, |i, logits| {
        total += divergence(&rows[i]["top"], logits);
    });
    total / rows.len() as f64
}

/// Hands out the logits after each of the positions that `rows` name in a text.
fn each_logits(
    weights: &Arc<Weights>,
    kv_dtype: KvDtype,
    tokens: &[Token],
    rows: &[Value],
    f: impl FnMut(usize, &[f32]),
) {
    let n = tokens.len() as u32;
    let options = CpuOptions {
        n_threads: 1,
        n_blocks: n.div_ceil(32),
        kv_dtype,
        max_rows: n,
        max_model_len: n,
        rows_apart: u32::MAX,
    };
    let mut backend = CpuBackend::new(packed_for(weights, Isa::detect()), options).unwrap();
    backend.logits_of(&whole_text(tokens, rows), f).unwrap();
}

fn whole_text(tokens: &[Token], rows: &[Value]) -> Batch {
    let n = tokens.len() as u32;
    let sample = |row: &Value| SampleRow {
        row: row["position"].as_u64().unwrap() as u32,
        task: SampleTask::Next,
        params: Arc::new(SamplingParams::greedy()),
        seed: 0,
        position: 0,
        history: 0..0,
        n_prompt: 0,
        n_generated: 0,
        mask: None,
    };
    Batch {
        tokens: tokens.to_vec(),
        positions: (0..n).collect(),
        slots: (0..n).collect(),
        seqs: vec![BatchSeq { rows: 0..n, blocks: 0..n.div_ceil(32) }],
        block_tables: (0..n.div_ceil(32)).map(BlockId).collect(),
        samples: rows.iter().map(sample).collect(),
        ..Batch::default()
    }
}

/// KL(reference ‖ ours) over the reference's listed tokens and one bin for the rest.
fn divergence(top: &Value, logits: &[f32]) -> f64 {
    let max = f64::from(logits.iter().copied().fold(f32::MIN, f32::max));
    let total: f64 = logits.iter().map(|&x| (f64::from(x) - max).exp()).sum();
    let log_total = total.ln() + max;
    let (mut kl, mut rest_p, mut rest_q) = (0.0, 1.0, 1.0);
    for entry in top.as_array().unwrap() {
        let log_p = entry[1].as_f64().unwrap();
        let log_q = f64::from(logits[entry[0].as_u64().unwrap() as usize]) - log_total;
        kl += log_p.exp() * (log_p - log_q);
        rest_p -= log_p.exp();
        rest_q -= log_q.exp();
    }
    if rest_p > 0.0 && rest_q > 0.0 { kl + rest_p * (rest_p / rest_q).ln() } else { kl }
}
