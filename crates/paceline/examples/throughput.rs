//! Tokens per second: batch sizes, and ways of batching, side by side.
//!
//! ```text
//! cargo run --release --example throughput -- [MODEL] [--batch 1,4,16] [--threads 2]
//! ```
//!
//! The first table decodes the same prompts in groups of each batch size. Prompts (prefill) and
//! answers (decode) are timed apart: the time until every sequence of a group has its first token
//! is prefill, the rest decode. `around` is the share of decode steps spent outside the forward
//! pass: scheduling, text, everything the engine adds.
//!
//! The second table serves prompts with answers of unequal length: one by one (sequential), in
//! groups that wait for their longest member (static batches), and with a free place filled as soon
//! as it is there (concurrent: continuous batching).
//!
//! A machine's speed drifts, so the settings take turns, and the median of the rounds is shown.
//! The tokens must be the same in all of them, which is checked.
#![allow(clippy::print_stdout, reason = "an example shows its results")]

use std::error::Error;
use std::time::{Duration, Instant};

use clap::Parser;
use paceline::{GenerateParams, Llm, LlmOptions, Piece, RequestId, SamplingParams, Token};

/// Tokens per second: batch sizes, and ways of batching, side by side
#[derive(Parser, Debug)]
struct Args {
    /// `default`, a path, or hf:ORG/REPO[:FILE]
    #[arg(default_value = "default")]
    model: String,
    /// Batch sizes to compare; the first is the yardstick
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 16],
          value_parser = clap::value_parser!(u32).range(1..=256))]
    batch: Vec<u32>,
    /// Tokens of each prompt
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    prompt_tokens: u32,
    /// Tokens of each answer
    #[arg(long, default_value_t = 48, value_parser = clap::value_parser!(u32).range(4..))]
    new_tokens: u32,
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
}

/// A prompt, and how many tokens to answer it with.
#[derive(Clone, Debug)]
struct Request {
    prompt: Vec<Token>,
    n_new: u32,
}

/// What one run took.
#[derive(Clone, Debug, Default)]
struct Timing {
    prefill: Duration,
    decode: Duration,
    /// The part of `decode` spent in the forward pass.
    decode_forward: Duration,
    n_decoded: usize,
    /// Each request's tokens.
    answers: Vec<Vec<Token>>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    let largest = args.batch.iter().copied().max().unwrap_or(1);
    let options = LlmOptions {
        threads: args.threads.map(usize::from),
        max_num_seqs: largest,
        // Every run shall do all its work.
        prefix_cache: false,
        ..LlmOptions::default()
    };
    let mut llm = Llm::load(&args.model, options)?;
    let facts = llm.facts();
    println!("{}: {}, {} threads", facts.path.display(), facts.isa, facts.n_threads);
    compare_sizes(&mut llm, &args, largest as usize)?;
    compare_ways(&mut llm, &args, largest as usize)
}

fn compare_sizes(llm: &mut Llm, args: &Args, n: usize) -> Result<(), Box<dyn Error>> {
    let requests = requests(llm, n, args.prompt_tokens, |_| args.new_tokens);
    let run = |llm: &mut Llm, way: usize| serve(llm, &requests, args.batch[way] as usize);
    let rounds = take_turns(llm, args, args.batch.len(), run)?;

    let (prompt, new) = (args.prompt_tokens, args.new_tokens);
    println!("\n{n} prompts of {prompt} tokens, {new} new tokens each");
    println!("batch   prefill tok/s   decode tok/s   speed-up   around the forward pass");
    let rate = |t: &Timing| t.n_decoded as f64 / t.decode.as_secs_f64();
    let base = median(&rounds[0], rate);
    for (size, timings) in args.batch.iter().zip(&rounds) {
        let prefill = median(timings, |t| (n as u32 * prompt) as f64 / t.prefill.as_secs_f64());
        let decode = median(timings, rate);
        let around = |t: &Timing| 1.0 - t.decode_forward.as_secs_f64() / t.decode.as_secs_f64();
        let around = 100.0 * median(timings, around);
        let ratio = decode / base;
        println!("{size:>5}   {prefill:>13.1}   {decode:>12.1}   {ratio:>7.2}x   {around:>22.2}%");
    }
    Ok(())
}

fn compare_ways(llm: &mut Llm, args: &Args, size: usize) -> Result<(), Box<dyn Error>> {
    // From a quarter to seven quarters of the usual length, in no particular order.
    let n_new = |i: usize| args.new_tokens * (1 + (i as u32 * 5 + 3) % 7) / 4;
    let requests = requests(llm, 2 * size, args.prompt_tokens, n_new);
    let n_tokens: u32 = requests.iter().map(|request| request.n_new).sum();
    let run = |llm: &mut Llm, way: usize| match way {
        0 => serve(llm, &requests, 1),
        1 => serve(llm, &requests, size),
        // All at once; the engine runs `size` of them at a time.
        _ => serve(llm, &requests, requests.len()),
    };
    let rounds = take_turns(llm, args, 3, run)?;

    println!("\n{} prompts with answers of unequal length, {n_tokens} tokens", requests.len());
    println!("way                      new tok/s   speed-up");
    let rate =
        |t: &Timing| f64::from(n_tokens) / (t.prefill.as_secs_f64() + t.decode.as_secs_f64());
    let base = median(&rounds[0], rate);
    let names = [
        "one by one".to_owned(),
        format!("static batches of {size}"),
        format!("continuous, {size} at once"),
    ];
    for (name, timings) in names.iter().zip(&rounds) {
        let rate = median(timings, rate);
        println!("{name:<22} {rate:>11.1}   {:>7.2}x", rate / base);
    }
    Ok(())
}

/// Requests with prompts of unlike tokens.
fn requests(llm: &Llm, n: usize, n_prompt: u32, n_new: impl Fn(usize) -> u32) -> Vec<Request> {
    let n_vocab = llm.spec().n_vocab as u64;
    let mut state = 1u64;
    let mut token = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        ((state >> 33) % n_vocab) as Token
    };
    let prompt = |_| (0..n_prompt).map(|_| token()).collect();
    let prompts: Vec<Vec<Token>> = (0..n).map(prompt).collect();
    let request = |(i, prompt)| Request { prompt, n_new: n_new(i) };
    prompts.into_iter().enumerate().map(request).collect()
}

/// Every way once in each round, so that drift hits them alike. Indexed by way, then round.
fn take_turns(
    llm: &mut Llm,
    args: &Args,
    n_ways: usize,
    run: impl Fn(&mut Llm, usize) -> Result<Timing, paceline::Error>,
) -> Result<Vec<Vec<Timing>>, Box<dyn Error>> {
    let mut rounds: Vec<Vec<Timing>> = vec![Vec::new(); n_ways];
    for _ in 0..args.rounds {
        for way in 0..n_ways {
            let timing = run(llm, way)?;
            let expected = rounds[0].first().unwrap_or(&timing);
            if timing.answers != expected.answers {
                return Err("the batch has changed an answer".into());
            }
            rounds[way].push(timing);
        }
    }
    Ok(rounds)
}

/// Serves the requests in groups that run to their end.
fn serve(llm: &mut Llm, requests: &[Request], group: usize) -> Result<Timing, paceline::Error> {
    let mut total = Timing::default();
    for requests in requests.chunks(group) {
        let timing = serve_group(llm, requests)?;
        total.prefill += timing.prefill;
        total.decode += timing.decode;
        total.decode_forward += timing.decode_forward;
        total.n_decoded += timing.n_decoded;
        total.answers.extend(timing.answers);
    }
    Ok(total)
}

fn serve_group(llm: &mut Llm, requests: &[Request]) -> Result<Timing, paceline::Error> {
    let mut session = llm.session();
    let mut ids = Vec::new();
    for request in requests {
        ids.push(session.add(request.prompt.clone(), &params(request.n_new))?);
    }
    let mut timing = Timing { answers: vec![Vec::new(); requests.len()], ..Timing::default() };
    let mut pieces = Vec::new();
    loop {
        let forward = session.llm().forward_time();
        let start = Instant::now();
        let is_decode = timing.answers.iter().all(|answer| !answer.is_empty());
        if !session.step(&mut pieces) {
            return Ok(timing);
        }
        if is_decode {
            timing.decode += start.elapsed();
            timing.decode_forward += session.llm().forward_time() - forward;
            timing.n_decoded += pieces.iter().filter(|piece| piece.token.is_some()).count();
        } else {
            timing.prefill += start.elapsed();
        }
        record(&mut timing.answers, &ids, &mut pieces);
    }
}

fn record(answers: &mut [Vec<Token>], ids: &[RequestId], pieces: &mut Vec<Piece>) {
    for piece in pieces.drain(..) {
        if let Some(answer) = ids.iter().position(|&id| id == piece.request) {
            answers[answer].extend(piece.token);
        }
    }
}

fn params(max_tokens: u32) -> GenerateParams {
    let sampling = SamplingParams { max_tokens, ignore_eos: true, ..SamplingParams::greedy() };
    GenerateParams { sampling, ..GenerateParams::default() }
}

fn median(timings: &[Timing], figure: impl Fn(&Timing) -> f64) -> f64 {
    let mut figures: Vec<f64> = timings.iter().map(figure).collect();
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}
