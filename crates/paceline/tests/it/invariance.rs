//! The spine of the project: whatever else is in the batch, however it is cut, preempted, cached
//! or threaded, and whichever instructions compute it, an answer keeps every token and every bit.

use std::sync::Arc;

use paceline_cpu::quant::{Rng, TensorType};
use paceline_cpu::{ActDtype, Isa, KvDtype};
use paceline_engine::{Drafts, FinishReason, SamplingParams, Stats, derive_seed};
use paceline_model::Checkpoint;
use paceline_model::synth::SynthSpec;
use paceline_model::weights::Weights;

use crate::harness::{
    Job, Output, Run, Setup, alone, default_model, load, packed_for, packed_for_ints, tiny,
    together,
};

/// Prompt lengths: single tokens, block borders and their neighbours, many blocks.
const LENGTHS: [usize; 24] = [
    1, 700, 2, 450, 3, 333, 5, 257, 8, 200, 13, 150, 16, 128, 17, 127, 31, 100, 32, 90, 33, 65, 64,
    47,
];
/// Enough of them for instruction sets that are not the machine's best.
const FEWER: [usize; 17] = [1, 700, 2, 3, 5, 257, 13, 16, 17, 127, 31, 100, 32, 33, 65, 64, 47];
/// So that prompts of 16 and 17 tokens reach another block.
const MAX_TOKENS: u32 = 20;

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

/// Every circumstance, on one instruction set, against answers given alone. Returns what was
/// counted in the one with guesses.
pub(crate) fn check(
    weights: &Arc<Weights>,
    plain: Setup,
    jobs: &[Job],
    expected: &[Output],
) -> Stats {
    for (budget, n_threads) in [(16, 1), (64, 2), (512, 1), (512, 2)] {
        let setup = Setup { budget, n_threads, ..plain };
        assert_same("together", setup, &together(weights, setup, jobs).0, expected);
    }
    check_apart(weights, plain, jobs, expected);
    check_preemption(weights, plain, jobs, expected);
    check_prefix_cache(weights, plain, jobs, expected);
    check_cancelling(weights, plain, jobs, expected);
    check_parallel_samples(weights, plain, jobs);
    check_greedy(weights, plain, jobs, expected);
    check_drafts(weights, plain, jobs, expected)
}

/// Threads that take sequences of their own through the model.
fn check_apart(weights: &Arc<Weights>, plain: Setup, jobs: &[Job], expected: &[Output]) {
    for (n_threads, rows_apart, prefix_cache) in [(2, 4, false), (3, 1, true)] {
        let setup = Setup { n_threads, rows_apart, prefix_cache, ..plain };
        let mut run = Run::new(weights, setup);
        // One for each thread, so that steps can be cut into equal parts.
        let alike = std::iter::repeat_n(jobs, n_threads).flatten();
        let ids: Vec<_> = alike.map(|job| run.submit(job)).collect();
        run.finish();
        assert!(run.engine.backend().n_steps_apart() > 0, "no step was parted");
        let found: Vec<Output> = ids.into_iter().map(|id| run.output(id, 0)).collect();
        for found in found.chunks(jobs.len()) {
            assert_same("apart", setup, found, expected);
        }
    }
}

/// Blocks for little more than the longest job.
fn small_pool(jobs: &[Job]) -> u32 {
    let longest = jobs.iter().map(|job| job.prompt.len()).max().unwrap_or(0);
    (longest as u32 + MAX_TOKENS).div_ceil(32) + 1
}

fn check_preemption(weights: &Arc<Weights>, plain: Setup, jobs: &[Job], expected: &[Output]) {
    let n_blocks = small_pool(jobs);
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

/// Guesses at next tokens, as many as a sequence may have, whatever they cost.
fn check_drafts(weights: &Arc<Weights>, plain: Setup, jobs: &[Job], expected: &[Output]) -> Stats {
    let drafts = Drafts { most: 5, base_rows: 10_000, tile_rows: 1 };
    let plain = Setup { drafts, ..plain };
    let (found, stats) = together(weights, plain, jobs);
    assert_same("guessed", plain, &found, expected);
    assert!(stats.n_accepted_tokens > 0, "none of {} guesses is right", stats.n_drafted_tokens);
    let n_blocks = small_pool(jobs);
    let cramped = Setup { n_blocks, reckless: true, ..plain };
    let cached = Setup { n_threads: 2, rows_apart: 3, prefix_cache: true, ..plain };
    for setup in [cramped, cached] {
        assert_same("guessed", setup, &together(weights, setup, jobs).0, expected);
    }
    check_said(weights, plain, jobs, expected);
    stats
}

/// Guesses from what others have said: the same jobs again, which then are guessed as they were.
fn check_said(weights: &Arc<Weights>, plain: Setup, jobs: &[Job], expected: &[Output]) {
    let mut run = Run::new(weights, plain);
    let mut accepted = Vec::new();
    for pass in ["not said before", "said before"] {
        let before = run.engine.stats().n_accepted_tokens;
        let ids: Vec<_> = jobs.iter().map(|job| run.submit(job)).collect();
        run.finish();
        let found: Vec<Output> = ids.into_iter().map(|id| run.output(id, 0)).collect();
        assert_same(pass, plain, &found, expected);
        accepted.push(run.engine.stats().n_accepted_tokens - before);
    }
    // Models of random weights repeat themselves, so that the first pass has all there can be.
    assert!(accepted[1] >= accepted[0], "guessed right in the two passes: {accepted:?}");
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
        let single = |index| with(1, derive_seed(job.params.seed, index), job);
        let singles: Vec<Job> = (0..4).map(single).collect();
        for (index, mut expected) in (0..).zip(alone(weights, plain, &singles)) {
            if index > 0 {
                expected.prompt_logprobs.clear();
            }
            assert_eq!(run.output(id, index), expected, "sample {index} of 4");
        }
    }
}

/// Where only the likeliest tokens are asked for, many rows need not have their logits written.
fn check_greedy(weights: &Arc<Weights>, plain: Setup, jobs: &[Job], expected: &[Output]) {
    let is_greedy = |job: &Job| job.params.temperature == 0.0;
    let bare = |job: &Job| Job {
        params: SamplingParams { logprobs: None, prompt_logprobs: None, ..job.params.clone() },
        ..job.clone()
    };
    let once: Vec<Job> = jobs.iter().filter(|job| is_greedy(job)).map(bare).collect();
    let expected = jobs.iter().zip(expected).filter(|(job, _)| is_greedy(job)).map(|(_, o)| o);
    for setup in [plain, Setup { n_threads: 2, rows_apart: 9, ..plain }] {
        // Twice each, so that there are more than a tile of rows.
        let (found, _) = together(weights, setup, &[&once[..], &once[..]].concat());
        for (i, (found, expected)) in found.iter().zip(expected.clone().cycle()).enumerate() {
            assert_eq!(found.tokens, expected.tokens, "greedy sequence {i}, {setup:?}");
        }
    }
}

/// Instruction sets of this machine, best first.
pub(crate) fn instruction_sets() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().rev().filter(|isa| isa.require().is_ok())
}

/// Every circumstance on every instruction set but plain code.
fn check_everywhere(weights: &Arc<Weights>) {
    let all = jobs(weights.spec().n_vocab, &LENGTHS);
    let expected = alone(weights, Setup::plain(), &all);
    assert!(expected.iter().all(|output| output.tokens.len() == MAX_TOKENS as usize));
    check(weights, Setup::plain(), &all, &expected);
    for isa in other_vectors() {
        let picked: Vec<usize> = (0..all.len()).filter(|&i| FEWER.contains(&LENGTHS[i])).collect();
        let jobs: Vec<Job> = picked.iter().map(|&i| all[i].clone()).collect();
        let expected: Vec<Output> = picked.iter().map(|&i| expected[i].clone()).collect();
        let (weights, plain) = (packed_for(weights, isa), Setup { isa, ..Setup::plain() });
        assert_same("alone", plain, &alone(&weights, plain, &jobs), &expected);
        check(&weights, plain, &jobs, &expected);
    }
}

/// The instruction sets between the machine's best and plain code.
fn other_vectors() -> impl Iterator<Item = Isa> {
    let best = Isa::detect();
    instruction_sets().filter(move |&isa| isa != best && isa != Isa::Scalar)
}

/// A few prompts alone and, cut into chunks, together: for what is too slow to do more of.
fn check_briefly(weights: &Arc<Weights>, isa: Isa) {
    let mut jobs = jobs(weights.spec().n_vocab, &[5, 3, 34]);
    jobs.iter_mut().for_each(|job| job.params.max_tokens = 6);
    let expected = alone(weights, Setup::plain(), &jobs);
    let setup = Setup { isa, budget: 16, ..Setup::plain() };
    let weights = packed_for(weights, isa);
    assert_same("briefly together", setup, &together(&weights, setup, &jobs).0, &expected);
    assert_same("briefly alone", setup, &alone(&weights, setup, &jobs[..2]), &expected[..2]);
}

#[test]
fn of_every_architecture() {
    for arch in SynthSpec::architectures() {
        let weights = tiny(arch, TensorType::Q4_1);
        check_everywhere(&weights);
        check_briefly(&weights, Isa::Scalar);
    }
}

/// Every circumstance in plain code, too: it is a hundred times slower, so on one small model.
#[test]
fn of_plain_code() {
    let weights = tiny("llama", TensorType::Q4_1);
    let jobs = jobs(weights.spec().n_vocab, &[1, 65, 5, 31, 17, 33]);
    let expected = alone(&weights, Setup::plain(), &jobs);
    let plain = Setup { isa: Isa::Scalar, ..Setup::plain() };
    let weights = packed_for(&weights, plain.isa);
    assert_same("alone", plain, &alone(&weights, plain, &jobs), &expected);
    check(&weights, plain, &jobs, &expected);
}

#[test]
fn of_every_weight_type() {
    for ty in TensorType::ALL {
        let weights = tiny("llama", ty);
        let lengths = [5, 33, 16, 150, 17, 128, 31, 127, 32, 100, 64, 90, 65, 47];
        let jobs = jobs(weights.spec().n_vocab, &lengths);
        let expected = alone(&weights, Setup::plain(), &jobs);
        for isa in instruction_sets() {
            let setup = Setup { isa, budget: 64, ..Setup::plain() };
            let n = if isa == Isa::Scalar { 3 } else { jobs.len() };
            let (found, _) = together(&weights, setup, &jobs[..n]);
            assert_same(ty.name(), setup, &found, &expected[..n]);
        }
    }
}

/// Each element type of keys and values has answers of its own, and keeps them.
#[test]
fn of_every_kv_type() {
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

/// Integers are an arithmetic of their own, with answers of its own, which it keeps: for weights
/// with and without minima, of four bits and of bytes, with a scale for 32 columns and for 16.
#[test]
fn of_integers() {
    for (arch, ty, acts) in [
        ("llama", TensorType::Q4_1, ActDtype::Int12),
        ("llama", TensorType::Q4_1, ActDtype::Int8),
        ("qwen2", TensorType::Q4_0, ActDtype::Int12),
        ("qwen2", TensorType::Q4_0, ActDtype::Int8),
        ("gemma2", TensorType::Q8_0, ActDtype::Int12),
        ("gemma2", TensorType::Q8_0, ActDtype::Int8),
        ("llama", TensorType::Q6K, ActDtype::Int8),
        ("qwen2", TensorType::Q2K, ActDtype::Int12),
    ] {
        let usual = tiny(arch, ty);
        let weights = packed_for_ints(&usual, acts);
        let jobs = jobs(weights.spec().n_vocab, &LENGTHS[8..]);
        let expected = alone(&weights, Setup::plain(), &jobs);
        assert_ne!(expected, alone(&usual, Setup::plain(), &jobs), "{arch}, {ty}");
        check(&weights, Setup::plain(), &jobs, &expected);
        for isa in other_vectors() {
            let setup = Setup { isa, budget: 64, ..Setup::plain() };
            let (found, _) = together(&packed_for(&weights, isa), setup, &jobs);
            assert_same("integers", setup, &found, &expected);
        }
        check_briefly(&weights, Isa::Scalar);
    }
}

/// Memory for keys and values that is taken between the steps, ahead of its use.
#[test]
fn of_memory_taken_ahead() {
    let weights = tiny("llama", TensorType::Q4_1);
    let jobs = jobs(weights.spec().n_vocab, &[33, 100, 5]);
    let setup = Setup { n_blocks: 20_000, ..Setup::plain() };
    let expected = alone(&weights, setup, &jobs);
    let mut run = Run::new(&weights, setup);
    let ids: Vec<_> = jobs.iter().map(|job| run.submit(job)).collect();
    let mut n_parts = 0;
    while run.engine.has_work() {
        n_parts += usize::from(run.engine.prepare());
        run.step();
    }
    assert!(n_parts > 0, "no memory was taken ahead");
    assert!((0..1000).any(|_| !run.engine.prepare()), "there is an end to it");
    let found: Vec<_> = ids.into_iter().map(|id| run.output(id, 0)).collect();
    assert_same("memory taken ahead", setup, &found, &expected);
}

#[test]
fn of_the_default_model() {
    let Some(path) = default_model("batch invariance of the default model") else { return };
    let weights = load(Checkpoint::open(&path).unwrap());
    // The small models above have more and longer prompts, on every instruction set.
    let lengths = [1, 2, 257, 3, 100, 5, 17, 31, 128, 32, 33, 47, 64, 65];
    let jobs = jobs(weights.spec().n_vocab, &lengths);
    let expected = alone(&weights, Setup::plain(), &jobs);
    let stats = check(&weights, Setup::plain(), &jobs, &expected);
    let n_wrong = stats.n_drafted_tokens - stats.n_accepted_tokens;
    assert!(n_wrong > 0, "all guesses were right");
    for isa in other_vectors().chain([Isa::Scalar]) {
        check_briefly(&weights, isa);
    }
    // The same kernels meet both in plain code, which is slow.
    for (acts, plain) in [(ActDtype::Int12, Some(Isa::Scalar)), (ActDtype::Int8, None)] {
        let ints = packed_for_ints(&weights, acts);
        let expected = alone(&ints, Setup::plain(), &jobs);
        let (found, _) = together(&ints, Setup::plain(), &jobs);
        assert_same(acts.name(), Setup::plain(), &found, &expected);
        for isa in other_vectors().chain(plain) {
            check_briefly(&ints, isa);
        }
    }
}
