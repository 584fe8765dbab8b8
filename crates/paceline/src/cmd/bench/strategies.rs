//! `paceline bench strategies`: ways of batching, on the same arrivals.
//!
//! An open loop: requests come when they come, whether or not the engine keeps up, and latencies
//! count from the arrival.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use indicatif::ProgressBar;
use paceline::{Batching, Llm, LlmOptions, Piece, RequestId, Session, Token};
use paceline_cpu::KV_BLOCK;
use serde::Serialize;

use super::figures::{median, number, percentile};
use super::plot::{self, Bars, Panel};
use super::table::Table;
use super::workload::{Arrival, arrivals};
use super::{group, print, print_json};
use crate::cli::{Console, Outcome, StrategiesArgs, Strategy};

/// One strategy; medians of the rounds.
#[derive(Debug, Serialize)]
struct Row {
    strategy: &'static str,
    /// Generated tokens over the time from the first arrival to the last token.
    tokens_per_s: f64,
    /// Against the first strategy.
    speedup: f64,
    total_s: f64,
    latency_ms_p50: f64,
    latency_ms_p95: f64,
    ttft_ms_p50: f64,
    ttft_ms_p95: f64,
    requests: usize,
    rate_per_s: f64,
    prompt_tokens: usize,
    new_tokens: usize,
    max_batch: u32,
}

/// What one request got.
#[derive(Clone, Debug, Default)]
struct Served {
    first_token: Duration,
    last_token: Duration,
    answer: Vec<Token>,
    is_done: bool,
}

pub(crate) fn run(args: &StrategiesArgs, console: &Console) -> Result<Outcome> {
    let mut llm = args.model.load(console, options(args)?)?;
    let arrivals = arrivals(args, llm.spec().n_vocab)?;
    let rounds = run_rounds(&mut llm, args, &arrivals, console)?;
    let rows = rows(args, &arrivals, &rounds);
    let head = head(args, &arrivals, &llm);
    match args.report.json {
        true => print_json(&rows)?,
        false => print(&format!("{head}\n{}", text(&rows)))?,
    }
    if let Some(path) = &args.report.plot {
        plot::save(path, &bars(&rows, &head).svg())?;
    }
    Ok(Outcome::Done)
}

/// An engine that holds `max_batch` of the longest requests.
fn options(args: &StrategiesArgs) -> Result<LlmOptions> {
    let max_len = args.prompt_tokens.most + args.new_tokens.most;
    let n_blocks = u64::from(max_len.div_ceil(KV_BLOCK as u32)) * u64::from(args.max_batch);
    let n_blocks = u32::try_from(n_blocks + n_blocks / 50 + 8)?;
    Ok(LlmOptions {
        max_num_seqs: args.max_batch,
        num_kv_blocks: Some(n_blocks),
        max_waiting_requests: args.requests.max(1),
        // Strategies differ in how they batch, and in nothing else.
        num_speculative_tokens: 0,
        ..LlmOptions::default()
    })
}

fn batching(strategy: Strategy, args: &StrategiesArgs) -> Batching {
    let max_batch_size = args.max_batch;
    let window_ns = Duration::from_millis(args.window_ms).as_nanos() as u64;
    match strategy {
        Strategy::Sequential => Batching::Static { max_batch_size: 1 },
        Strategy::Interleaved => Batching::Interleaved,
        Strategy::Static => Batching::Static { max_batch_size },
        Strategy::Window => Batching::Window { max_batch_size, window_ns },
        Strategy::Continuous => Batching::Continuous,
    }
}

/// Every strategy once in each round; indexed by strategy, then round.
fn run_rounds(
    llm: &mut Llm,
    args: &StrategiesArgs,
    arrivals: &[Arrival],
    console: &Console,
) -> Result<Vec<Vec<Vec<Served>>>> {
    let n_runs = args.rounds as usize * args.strategies.len();
    let bar = console.measurements((n_runs * arrivals.len()) as u64);
    let mut all = vec![Vec::new(); args.strategies.len()];
    let mut expected: Option<Vec<Vec<Token>>> = None;
    for _ in 0..args.rounds {
        for (&strategy, rounds) in args.strategies.iter().zip(&mut all) {
            bar.set_message(strategy.name());
            llm.set_batching(batching(strategy, args))?;
            let served = Run::new(llm, arrivals).finish(&bar)?;
            let answers: Vec<_> = served.iter().map(|served| served.answer.clone()).collect();
            let expected = expected.get_or_insert_with(|| answers.clone());
            ensure!(*expected == answers, "{strategy} has changed an answer: this is a bug");
            rounds.push(served);
        }
    }
    bar.finish_and_clear();
    Ok(all)
}

/// One strategy under way.
struct Run<'a> {
    session: Session<'a>,
    arrivals: &'a [Arrival],
    n_arrived: usize,
    n_done: usize,
    ids: HashMap<RequestId, usize>,
    served: Vec<Served>,
    start: Instant,
}

impl<'a> Run<'a> {
    fn new(llm: &'a mut Llm, arrivals: &'a [Arrival]) -> Run<'a> {
        Run {
            session: llm.session(),
            arrivals,
            n_arrived: 0,
            n_done: 0,
            ids: HashMap::new(),
            served: vec![Served::default(); arrivals.len()],
            start: Instant::now(),
        }
    }

    fn finish(mut self, bar: &ProgressBar) -> Result<Vec<Served>> {
        let mut pieces = Vec::new();
        while self.n_done < self.arrivals.len() {
            self.admit()?;
            if !self.session.step(&mut pieces) {
                self.wait();
            }
            let now = self.start.elapsed();
            for piece in pieces.drain(..) {
                self.take(&piece, now, bar)?;
            }
        }
        Ok(self.served)
    }

    /// Hands over the requests that have come.
    fn admit(&mut self) -> Result<()> {
        let now = self.start.elapsed();
        while let Some(arrival) = self.arrivals.get(self.n_arrived).filter(|a| a.at <= now) {
            let id = self.session.add(arrival.prompt.clone(), &group::params(arrival.n_new))?;
            self.ids.insert(id, self.n_arrived);
            self.n_arrived += 1;
        }
        Ok(())
    }

    /// Nothing to do until the next request comes.
    fn wait(&self) {
        if let Some(next) = self.arrivals.get(self.n_arrived) {
            std::thread::sleep(next.at.saturating_sub(self.start.elapsed()));
        }
    }

    fn take(&mut self, piece: &Piece, now: Duration, bar: &ProgressBar) -> Result<()> {
        let Some(&i) = self.ids.get(&piece.request) else { return Ok(()) };
        let (arrival, served) = (&self.arrivals[i], &mut self.served[i]);
        if let Some(token) = piece.token {
            if served.answer.is_empty() {
                served.first_token = now;
            }
            served.answer.push(token);
        }
        if let Some(finish) = &piece.finish
            && !served.is_done
        {
            if served.answer.len() != arrival.n_new as usize {
                bail!("a request ended before its time ({}); is it too long?", finish.name());
            }
            (served.last_token, served.is_done) = (now, true);
            self.n_done += 1;
            bar.inc(1);
        }
        Ok(())
    }
}

fn rows(args: &StrategiesArgs, arrivals: &[Arrival], rounds: &[Vec<Vec<Served>>]) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for (strategy, rounds) in args.strategies.iter().zip(rounds) {
        let over = |figure: &dyn Fn(&[Served]) -> f64| median(rounds.iter().map(|r| figure(r)));
        let since = |share: f64, time: fn(&Served) -> Duration| {
            over(&|served| {
                let times = served.iter().zip(arrivals);
                let times = times.map(|(s, a)| 1e3 * time(s).saturating_sub(a.at).as_secs_f64());
                percentile(&times.collect::<Vec<_>>(), share)
            })
        };
        let new_tokens = arrivals.iter().map(|arrival| arrival.n_new as usize).sum();
        let total_s = over(&|served| total_s(arrivals, served));
        let tokens_per_s = new_tokens as f64 / total_s;
        let base = rows.first().map_or(tokens_per_s, |row| row.tokens_per_s);
        rows.push(Row {
            strategy: strategy.name(),
            tokens_per_s,
            speedup: tokens_per_s / base,
            total_s,
            latency_ms_p50: since(0.5, |served| served.last_token),
            latency_ms_p95: since(0.95, |served| served.last_token),
            ttft_ms_p50: since(0.5, |served| served.first_token),
            ttft_ms_p95: since(0.95, |served| served.first_token),
            requests: arrivals.len(),
            rate_per_s: args.rate,
            prompt_tokens: arrivals.iter().map(|arrival| arrival.prompt.len()).sum(),
            new_tokens,
            max_batch: args.max_batch,
        });
    }
    rows
}

/// From the first arrival to the last token.
fn total_s(arrivals: &[Arrival], served: &[Served]) -> f64 {
    let first = arrivals.first().map_or(Duration::ZERO, |arrival| arrival.at);
    let last = served.iter().map(|served| served.last_token).max().unwrap_or_default();
    last.saturating_sub(first).as_secs_f64()
}

fn head(args: &StrategiesArgs, arrivals: &[Arrival], llm: &Llm) -> String {
    let facts = llm.facts();
    let model = facts.path.file_name().unwrap_or(facts.path.as_os_str()).to_string_lossy();
    let n_new: u32 = arrivals.iter().map(|arrival| arrival.n_new).sum();
    format!(
        "{model}, {}, {} threads\n{} requests, {}/s; prompts of {} tokens, answers of {} ({n_new} \
         in all); at most {} at once\n",
        facts.isa,
        facts.n_threads,
        arrivals.len(),
        args.rate,
        args.prompt_tokens,
        args.new_tokens,
        args.max_batch,
    )
}

fn text(rows: &[Row]) -> String {
    let mut table = Table::new(&[
        "strategy",
        "tok/s",
        "speedup",
        "latency p50 ms",
        "p95 ms",
        "first token p50 ms",
        "p95 ms",
    ]);
    for row in rows {
        table.row([
            row.strategy.to_owned(),
            number(row.tokens_per_s),
            format!("{:.2}x", row.speedup),
            number(row.latency_ms_p50),
            number(row.latency_ms_p95),
            number(row.ttft_ms_p50),
            number(row.ttft_ms_p95),
        ]);
    }
    table.text()
}

fn bars(rows: &[Row], head: &str) -> Bars {
    let panel = |title: &str, value: fn(&Row) -> f64| Panel {
        title: title.to_owned(),
        bars: rows.iter().map(|row| (row.strategy.to_owned(), value(row))).collect(),
    };
    Bars {
        title: "Ways of batching, same requests, same answers".to_owned(),
        subtitle: head.lines().nth(1).unwrap_or_default().to_owned(),
        panels: vec![
            panel("tokens per second: more is better", |row| row.tokens_per_s),
            panel("95th percentile of latency, ms: less is better", |row| row.latency_ms_p95),
            panel("median time to the first token, ms: less is better", |row| row.ttft_ms_p50),
        ],
    }
}
