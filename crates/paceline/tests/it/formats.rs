//! What files hold is read as it is meant: one model in two formats answers the same, to the bit.

use std::path::Path;

use paceline::{GenerateParams, Llm, LlmOptions, Prompt};
use paceline_cpu::quant::TensorType;
use paceline_model::Checkpoint;
use paceline_model::synth::{SynthSpec, write_gguf, write_hf};

use crate::harness::testdata;

fn answers(path: &Path) -> Vec<(Vec<u32>, Vec<u32>)> {
    let options = LlmOptions { num_kv_blocks: Some(64), threads: Some(1), ..LlmOptions::default() };
    let mut llm = Llm::load(path.to_str().unwrap(), options).unwrap();
    let mut params = GenerateParams::seeded(12, 0.9, 5);
    params.sampling.logprobs = Some(0);
    let prompts = ["Hello", "The quick brown fox", "1 + 1 ="].map(Prompt::from);
    let generations = llm.generate_batch(&prompts, &params).unwrap();
    let answer = |generation: &paceline::Generation| {
        let completion = &generation.completions[0];
        let bits = completion.logprobs.iter().map(|l| l.logprob.to_bits()).collect();
        (completion.tokens.clone(), bits)
    };
    generations.iter().map(answer).collect()
}

#[test]
fn gguf_and_safetensors_answer_alike() {
    for arch in SynthSpec::architectures() {
        for (ty, tied) in [(TensorType::F32, true), (TensorType::BF16, false)] {
            let spec = SynthSpec { ty, tied, ..SynthSpec::tiny(arch) };
            let dir = tempfile::tempdir().unwrap();
            let (gguf, hf) = (dir.path().join("model.gguf"), dir.path().join("hf"));
            write_gguf(&spec, &gguf).unwrap();
            write_hf(&spec, &hf).unwrap();
            let expected = answers(&gguf);
            assert!(expected.iter().all(|(tokens, _)| !tokens.is_empty()));
            assert_eq!(answers(&hf), expected, "{arch} {ty}");
        }
    }
}

/// What activations are rounded to by default goes by it.
#[test]
fn the_usual_type_of_weights_is_that_of_most() {
    let usual = |path: &str| Checkpoint::open(&testdata(path)).unwrap().usual_type();
    assert_eq!(usual("models/smollm2-draft-16m.Q8_0.gguf"), TensorType::Q8_0);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    // Vectors are floats in every file, and embeddings are no layer's.
    write_gguf(&SynthSpec { ty: TensorType::Q4_1, ..SynthSpec::tiny("llama") }, &path).unwrap();
    assert_eq!(Checkpoint::open(&path).unwrap().usual_type(), TensorType::Q4_1);
}
