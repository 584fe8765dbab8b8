//! Hidden states as answers: which they are, and that the batch does not change them either.

use paceline_cpu::Isa;
use paceline_cpu::quant::{TensorType, dequantize_row};
use paceline_engine::{FinishReason, Pooling, SamplingParams};
use paceline_model::tensor::Role;

use crate::harness::{Job, Output, Setup, alone, tiny, together};
use crate::invariance::{assert_same, check, instruction_sets, jobs};

fn pooled(prompt: &[u32], pooling: Pooling) -> Job {
    let params =
        SamplingParams { pooling: Some(pooling), max_tokens: 1, ..SamplingParams::greedy() };
    Job { prompt: prompt.to_vec(), params }
}

fn values(output: &Output) -> Vec<f32> {
    assert_eq!(output.finish, Some(FinishReason::Stop));
    output.pooled.iter().map(|&bits| f32::from_bits(bits)).collect()
}

/// Prompts that generate and prompts that are pooled, by turns, in every circumstance.
#[test]
fn the_batch_does_not_change_them() {
    let weights = tiny("qwen3", TensorType::Q8_0);
    // Many that are about to need a second block: memory shall run out.
    let lengths = [31, 30, 450, 29, 28, 27, 26, 25, 24, 23, 22, 21, 127, 64, 1];
    let mut mixed = Vec::new();
    for (i, job) in jobs(weights.spec().n_vocab, &lengths).into_iter().enumerate() {
        let pooling = if i % 2 == 0 { Pooling::Mean } else { Pooling::Last };
        mixed.push(pooled(&job.prompt, pooling));
        mixed.push(job);
    }
    let expected = alone(&weights, Setup::plain(), &mixed);
    check(&weights, Setup::plain(), &mixed, &expected);
    for isa in instruction_sets() {
        let setup = Setup { isa, budget: 48, ..Setup::plain() };
        let n = if isa == Isa::Scalar { 3 } else { mixed.len() };
        let (found, _) = together(&weights, setup, &mixed[..n]);
        assert_same("pooled", setup, &found, &expected[..n]);
    }
}

#[test]
fn the_mean_is_that_of_every_prefix_and_the_last_is_the_last() {
    let weights = tiny("llama", TensorType::F32);
    let prompt: Vec<u32> = (0..40).map(|i| 11 + 7 * i % 300).collect();
    let lasts = (1..=prompt.len()).map(|n| pooled(&prompt[..n], Pooling::Last));
    let lasts: Vec<Job> = lasts.collect();
    let lasts: Vec<Vec<f32>> =
        together(&weights, Setup::plain(), &lasts).0.iter().map(values).collect();
    let mean = alone(&weights, Setup::plain(), &[pooled(&prompt, Pooling::Mean)]);
    for (i, &found) in values(&mean[0]).iter().enumerate() {
        let sum: f64 = lasts.iter().map(|last| f64::from(last[i])).sum();
        assert_eq!(found, (sum / lasts.len() as f64) as f32, "value {i}");
    }
}

/// The states are those that the head sees: its products with them are the logits.
#[test]
fn the_head_makes_the_same_logits_of_them() {
    let weights = tiny("llama", TensorType::F32);
    let prompt = [5, 200, 17, 33];
    let params = SamplingParams { max_tokens: 1, logprobs: Some(5), ..SamplingParams::greedy() };
    let next = Job { prompt: prompt.to_vec(), params };
    let outputs = alone(&weights, Setup::plain(), &[pooled(&prompt, Pooling::Last), next]);
    let hidden = values(&outputs[0]);
    let head = weights.checkpoint().tensor(Role::TokenEmbed).unwrap();
    let logit = |row: &[u8]| {
        let mut weights = vec![0.0; hidden.len()];
        dequantize_row(head.ty, row, &mut weights);
        weights.iter().zip(&hidden).map(|(w, x)| f64::from(w * x)).sum::<f64>()
    };
    let logits: Vec<f64> = (0..head.rows).map(|row| logit(head.row(row))).collect();
    let normaliser = logits.iter().map(|x| x.exp()).sum::<f64>().ln();
    let (_, _, top) = &outputs[1].logprobs[0];
    assert_eq!(top.len(), 5);
    for &(token, bits) in top {
        let (found, expected) = (f32::from_bits(bits), logits[token as usize] - normaliser);
        assert!((f64::from(found) - expected).abs() < 0.02, "{token}: {found} and {expected}");
    }
}
