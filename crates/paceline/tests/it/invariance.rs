//! The spine of the project: whatever else is in the batch, however it is cut, preempted, cached
//! or threaded, and whichever instructions compute it, an answer keeps every token and every bit.

use std::sync::Arc;

use paceline_cpu::quant::{Rng, TensorType};
use paceline_cpu::{Isa, KvDtype};
use paceline_engine::{FinishReason, SamplingParams, derive_seed};
use paceline_model::Checkpoint;
use paceline_model::synth::SynthSpec;
use paceline_model::weights::Weights;

use crate::harness::{Job, Output, Run, Setup, alone, default_model, load, tiny, together, turn};

/// Prompt lengths: single tokens, block borders and their neighbours, many blocks.
const LENGTHS: [usize; 24] = [
    1, 700, 2, 450, 3, 333, 5, 257, 8, 200, 13, 150, 16, 128, 17, 127, 31, 100, 32, 90, 33, 65, 64,
    47,
];
const MAX_TOKENS: u32 = 24;

/// Greedy and seeded jobs by turns, with every kind of sampling; every third prompt shares its
/// beginning with others.
pub(crate) fn jobs(n_vocab: usize, lengths: &[usize]) -> Vec<Job> {
    let mut rng = Rng::new(7);
    let shared: Vec<u32> = (0..700).map(|_| rng.below(n_vocab) as u32).collect();
    let job = |(i, &length): (usize, &usize)| {
        let fresh: Vec<u32> = (0..length).map(|_| rng.below(n_vocab) as u32).collect();
        let prompt = if i % 3 == 0 { shared[..length].to_vec() } else { fresh };
        let greedy = SamplingParams {
            max_tokens: MAX_TOKENS,
            ignore_eos: true,
            logprobs: Some(3),
            ..SamplingParams::greedy()
        };
        let seeded = SamplingParams {
            temperature: 0.9,
            top_p: if i % 4 == 1 { 0.95 } else { 1.0 },
            top_k: if i % 8 == 3 { 40 } else { 0 },
            repetition_penalty: if i % 6 == 5 { 1.2 } else { 1.0 },
            seed: i as u64,
            ..greedy.clone()
        };
        let params = if i % 2 == 0 { greedy } else { seeded };
        let prompt_logprobs = (length < 40 && i % 5 == 0).then_some(1);
        Job { prompt, params: SamplingParams { prompt_logprobs, ..params } }
    };
    lengths.iter().enumerate().map(job).collect()
}

pub(crate) fn assert_same(what: &str, setup: Setup, found: &[Output], expected: &[Output]) {
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(found, expected, "{what}, sequence {i}, {setup:?}");
    }
}

/// Every circumstance, on one instruction set, against answers given alone on another.
pub(crate) fn check(weights: &Arc<Weights>, plain: Setup, jobs: &[Job], expected: &[Output]) {
    assert_same("alone", plain, &alone(weights, plain, jobs), expected);
    for budget in [16, 64, 512] {
        let setup = Setup { budget, ..plain };
        assert_same("together", setup, &together(weights, setup, jobs).0, expected);
    }
    let setup = Setup { n_threads: 1, ..plain };
    assert_same("on one thread", setup, &together(weights, setup, jobs).0, expected);
    check_preemption(weights, plain, jobs, expected);
    check_prefix_cache(weights, plain, jobs, expected);
    check_cancelling(weights, plain, jobs, expected);
    check_parallel_samples(weights, plain, jobs);
}

fn check_preemption(weights: &Arc<Weights>, plain: Setup, jobs: &[Job], expected: &[Output]) {
    let longest = jobs.iter().map(|job| job.prompt.len()).max().unwrap_or(0);
    let n_blocks = (longest as u32 + MAX_TOKENS).div_ceil(32) + 1;
    let setup = Setup { n_blocks, reckless: true, ..plain };
    let (found, stats) = together(weights, setup, jobs);
    assert!(stats.n_preemptions > 0, "the pool of {n_blocks} blocks was meant to be too small");
    assert_same("preempted", setup, &found, expected);
}

fn check_prefix_cache(weights: &Arc<Weights>, plain: Setup, jobs: &[Job], expected: &[Output]) {
    let setup = Setup { prefix_cache: true, ..plain };
    let mut run = Run::new(weights, setup);
    for pass in ["cold cache", "warm cache"] {
        let before = run.engine.stats().n_cached_tokens;
        let ids: Vec<_> = jobs.iter().map(|job| run.submit(job)).collect();
        run.finish();
        let found: Vec<Output> = ids.into_iter().map(|id| run.output(id, 0)).collect();
        assert_same(pass, setup, &found, expected);
        let n_cached = run.engine.stats().n_cached_tokens - before;
        assert!(pass == "cold cache" || n_cached > 0, "nothing came from the warm cache");
    }
}

fn check_cancelling(weights: &Arc<Weights>, plain: Setup, jobs: &[Job], expected: &[Output]) {
    let mut run = Run::new(weights, plain);
    let ids: Vec<_> = jobs.iter().map(|job| run.submit(job)).collect();
    for pair in ids.chunks(2) {
        run.step();
        run.step();
        pair.get(1).map(|&second| run.engine.cancel(second));
    }
    run.finish();
    let mut n_cancelled = 0;
    for (i, &id) in ids.iter().enumerate() {
        let found = run.output(id, 0);
        if found.finish == Some(FinishReason::Cancelled) {
            n_cancelled += 1;
            assert!(expected[i].tokens.starts_with(&found.tokens), "cancelled sequence {i}");
            continue;
        }
        assert_eq!(found, expected[i], "beside cancelled ones, sequence {i}");
    }
    assert!(n_cancelled > 0, "nothing was cancelled in time");
}

/// `n = 4`: each of the four is what it would be alone with its own seed.
fn check_parallel_samples(weights: &Arc<Weights>, plain: Setup, jobs: &[Job]) {
    let with = |n: u32, seed: u64, job: &Job| Job {
        params: SamplingParams { n, seed, ..job.params.clone() },
        ..job.clone()
    };
    let picked: Vec<&Job> =
        jobs.iter().filter(|job| job.params.temperature > 0.0).take(3).collect();
    let mut run = Run::new(weights, plain);
    let ids: Vec<_> = picked.iter().map(|job| run.submit(&with(4, job.params.seed, job))).collect();
    run.finish();
    for (job, id) in picked.iter().zip(ids) {
        for index in 0..4 {
            let single = with(1, derive_seed(job.params.seed, index), job);
            let mut expected = alone(weights, plain, &[single]).remove(0);
            if index > 0 {
                expected.prompt_logprobs.clear();
            }
            assert_eq!(run.output(id, index), expected, "sample {index} of 4");
        }
    }
}

/// Instruction sets of this machine, best first.
pub(crate) fn instruction_sets() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().rev().filter(|isa| isa.require().is_ok())
}

/// Checks every instruction set with the prompts whose lengths `lengths` names for it.
fn check_everywhere(weights: &Arc<Weights>, lengths: impl Fn(Isa) -> &'static [usize]) {
    let all = jobs(weights.spec().n_vocab, &LENGTHS);
    let expected = alone(weights, Setup::plain(), &all);
    assert!(expected.iter().all(|output| output.tokens.len() == MAX_TOKENS as usize));
    for isa in instruction_sets() {
        if lengths(isa).is_empty() {
            continue;
        }
        let is_picked = |i: &usize| lengths(isa).contains(&LENGTHS[*i]);
        let picked: Vec<usize> = (0..all.len()).filter(is_picked).collect();
        let jobs: Vec<Job> = picked.iter().map(|&i| all[i].clone()).collect();
        let expected: Vec<Output> = picked.iter().map(|&i| expected[i].clone()).collect();
        check(weights, Setup { isa, ..Setup::plain() }, &jobs, &expected);
    }
}

/// Plain code takes some tenths of a second for a token of a real model: a few tokens must do.
fn check_scalar_briefly(weights: &Arc<Weights>) {
    let mut jobs = jobs(weights.spec().n_vocab, &[5, 3, 34]);
    jobs.iter_mut().for_each(|job| job.params.max_tokens = 6);
    let expected = alone(weights, Setup::plain(), &jobs);
    let setup = Setup { isa: Isa::Scalar, budget: 16, ..Setup::plain() };
    assert_same("plain code", setup, &together(weights, setup, &jobs).0, &expected);
}

#[test]
fn of_every_architecture() {
    let _turn = turn();
    for arch in SynthSpec::architectures() {
        check_everywhere(&tiny(arch, TensorType::Q4_1), |isa| match isa {
            Isa::Scalar => &[1, 5, 17, 31, 32, 33, 65, 100],
            _ => &LENGTHS,
        });
    }
}

#[test]
fn of_every_weight_type() {
    let _turn = turn();
    for ty in TensorType::ALL {
        let weights = tiny("llama", ty);
        let jobs = jobs(weights.spec().n_vocab, &LENGTHS[10..]);
        let expected = alone(&weights, Setup::plain(), &jobs);
        for isa in instruction_sets() {
            let setup = Setup { isa, budget: 64, ..Setup::plain() };
            let n = if isa == Isa::Scalar { 4 } else { jobs.len() };
            let (found, _) = together(&weights, setup, &jobs[..n]);
            assert_same(ty.name(), setup, &found, &expected[..n]);
        }
    }
}

/// Each element type of keys and values has answers of its own, and keeps them.
#[test]
fn of_every_kv_type() {
    let _turn = turn();
    let weights = tiny("gemma2", TensorType::Q8_0);
    let jobs = jobs(weights.spec().n_vocab, &LENGTHS[14..]);
    let usual = alone(&weights, Setup::plain(), &jobs);
    for kv_dtype in [KvDtype::F16, KvDtype::Int8] {
        let plain = Setup { kv_dtype, ..Setup::plain() };
        let expected = alone(&weights, plain, &jobs);
        assert_ne!(expected, usual, "{kv_dtype} is not bf16");
        check(&weights, plain, &jobs, &expected);
        for isa in instruction_sets() {
            let setup = Setup { isa, budget: 64, ..plain };
            let n = if isa == Isa::Scalar { 1 } else { jobs.len() };
            let (found, _) = together(&weights, setup, &jobs[..n]);
            assert_same(kv_dtype.name(), setup, &found, &expected[..n]);
        }
    }
}

#[test]
fn of_the_default_model() {
    let Some(path) = default_model("batch invariance of the default model") else { return };
    let _turn = turn();
    let weights = load(Checkpoint::open(&path).unwrap());
    // All prompts on the best instruction set; the small models above have them on every one.
    let best = Isa::detect();
    check_everywhere(&weights, |isa| match isa {
        Isa::Scalar => &[],
        isa if isa == best => &LENGTHS,
        _ => &[1, 5, 17, 33, 100, 257],
    });
    check_scalar_briefly(&weights);
}
