//! Batch sizes measured side by side: what `throughput` and `scaling` both show.

use std::path::Path;

use anyhow::{Result, ensure};
use paceline::Llm;
use serde::Serialize;

use super::ceiling::{Ceilings, Costs, resident_bytes};
use super::figures::{median, percentile};
use super::group::{self, GroupTiming, Shape};
use super::plot::{self, Curves, Series};
use crate::cli::{Console, CurveArgs};

/// One batch size.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Point {
    pub(super) batch: u32,
    pub(super) prompt_tokens: u32,
    pub(super) new_tokens: u32,
    /// Guesses at next tokens a sequence may have in a step.
    pub(super) num_speculative_tokens: u32,
    /// Guesses that were computed in the first round, and those that were right.
    pub(super) draft_tokens: u64,
    pub(super) accepted_tokens: u64,
    pub(super) prefill_s: f64,
    pub(super) prefill_tokens_per_s: f64,
    pub(super) decode_s: f64,
    /// Tokens decoded in `decode_s`.
    pub(super) decode_tokens: usize,
    pub(super) decode_tokens_per_s: f64,
    /// From the start of the batch to the first token of the median sequence.
    pub(super) ttft_ms_p50: f64,
    /// What the machine could do at best.
    pub(super) prefill_bound_tokens_per_s: f64,
    pub(super) prefill_share_of_bound: f64,
    pub(super) decode_bound_tokens_per_s: f64,
    pub(super) decode_share_of_bound: f64,
    /// `bytes` or `operations`.
    pub(super) decode_bound_by: &'static str,
    pub(super) read_bytes_per_s: f64,
    /// Share of decoding spent outside the forward pass.
    pub(super) outside_forward_share: f64,
    /// Resident memory after the batch's first round, against that after loading.
    pub(super) rss_change_bytes: i64,
    /// Keys and values of the whole batch.
    pub(super) kv_bytes: u64,
}

/// All batch sizes, and what they ran on.
#[derive(Clone, Debug)]
pub(super) struct Curve {
    pub(super) points: Vec<Point>,
    /// The model and the machine in a line.
    pub(super) setting: String,
    pub(super) model: String,
    pub(super) isa: &'static str,
    pub(super) n_threads: usize,
    pub(super) peak: String,
    pub(super) peak_ops_per_s: f64,
}

impl Curve {
    /// What was measured, in two lines.
    pub(super) fn head(&self) -> String {
        let work = self.points.first().map_or(String::new(), |p| {
            let (prompt, new) = (p.prompt_tokens, p.new_tokens);
            format!(
                "{prompt} prompt and {new} new tokens for each sequence, greedy{}\n",
                self.luck()
            )
        });
        format!("{}\n{work}", self.setting)
    }

    /// How many guesses at next tokens were right.
    fn luck(&self) -> String {
        let drafted: u64 = self.points.iter().map(|p| p.draft_tokens).sum();
        let accepted: u64 = self.points.iter().map(|p| p.accepted_tokens).sum();
        match self.points.first().map_or(0, |p| p.num_speculative_tokens) {
            0 => String::new(),
            n => format!(", with up to {n} guessed in each step ({accepted} of {drafted} right)"),
        }
    }

    pub(super) fn save_plot(&self, path: &Path, title: &str) -> Result<()> {
        let series = |name: &str, is_limit, value: fn(&Point) -> f64| Series {
            name: name.to_owned(),
            points: self.points.iter().map(|p| (f64::from(p.batch), value(p))).collect(),
            is_limit,
        };
        let curves = Curves {
            title: title.to_owned(),
            subtitle: format!("{}, {}, {} threads", self.model, self.isa, self.n_threads),
            x_label: "sequences in the batch".to_owned(),
            y_label: "tokens per second".to_owned(),
            series: vec![
                series("decode", false, |p| p.decode_tokens_per_s),
                series("the machine's ceiling", true, |p| p.decode_bound_tokens_per_s),
            ],
        };
        plot::save(path, &curves.svg())
    }
}

/// The rounds of one batch size.
#[derive(Debug, Default)]
struct Rounds {
    timings: Vec<GroupTiming>,
    rss_change: Option<i64>,
}

/// Measures every batch size in turn, `rounds` times.
pub(super) fn measure(batches: &[u32], args: &CurveArgs, console: &Console) -> Result<Curve> {
    let max_batch = batches.iter().copied().max().unwrap_or(1);
    let shape = Shape::new(&args.shape, max_batch);
    let mut llm = args.model.load(console, shape.options(max_batch)?)?;
    shape.check(&llm, max_batch)?;
    let costs = Costs::of(&llm);
    let step_work = |batch: u32| costs.decode(f64::from(batch), shape.mean_len());
    let sets = batches.iter().map(|&batch| step_work(batch).n_bytes);
    let facts = llm.facts();
    let kernels = (facts.isa, facts.activation_dtype);
    let mut ceilings = Ceilings::new(kernels, facts.n_threads, sets)?;
    let rounds = run_rounds(&mut llm, batches, shape, args.shape.rounds, &mut ceilings, console)?;
    let points = batches.iter().zip(&rounds).enumerate();
    let points = points.map(|(set, (&batch, rounds))| {
        point(batch, shape, rounds, &costs, Bounds { ceilings: &ceilings, set })
    });
    Ok(Curve { points: points.collect(), ..setting(&llm, &ceilings) })
}

fn run_rounds(
    llm: &mut Llm,
    batches: &[u32],
    shape: Shape,
    n_rounds: u32,
    ceilings: &mut Ceilings,
    console: &Console,
) -> Result<Vec<Rounds>> {
    let max_batch = batches.iter().copied().max().unwrap_or(1);
    let prompts = group::prompts(llm, max_batch, shape.n_prompt);
    let bar = console.measurements(u64::from(n_rounds) * batches.len() as u64);
    // Wakes the threads, and is not counted.
    group::run(llm, &prompts[..1], Shape { n_new: 2, ..shape })?;
    let before = resident_bytes();
    let mut all: Vec<Rounds> = batches.iter().map(|_| Rounds::default()).collect();
    let mut expected: Vec<Vec<u32>> = Vec::new();
    for _ in 0..n_rounds {
        ceilings.sample();
        for (&batch, rounds) in batches.iter().zip(&mut all) {
            bar.set_message(format!("batch {batch}"));
            bar.tick();
            let mut timing = group::run(llm, &prompts[..batch as usize], shape)?;
            check_answers(&mut expected, &timing.answers)?;
            if rounds.timings.is_empty() {
                // The first run took the batch's memory from the system, which is not counted
                // either: a program that serves does it once.
                timing = group::run(llm, &prompts[..batch as usize], shape)?;
                check_answers(&mut expected, &timing.answers)?;
            }
            rounds.rss_change.get_or_insert_with(|| resident_bytes() - before);
            rounds.timings.push(timing);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(all)
}

/// The promise: a sequence's tokens are the same in every batch and every round.
fn check_answers(expected: &mut Vec<Vec<u32>>, answers: &[Vec<u32>]) -> Result<()> {
    let n = expected.len().min(answers.len());
    ensure!(expected[..n] == answers[..n], "the batch has changed an answer: this is a bug");
    expected.extend_from_slice(&answers[n..]);
    Ok(())
}

struct Bounds<'a> {
    ceilings: &'a Ceilings,
    /// The working set of this batch size.
    set: usize,
}

fn point(batch: u32, shape: Shape, rounds: &Rounds, costs: &Costs, bounds: Bounds<'_>) -> Point {
    let over = |figure: &dyn Fn(&GroupTiming) -> f64| median(rounds.timings.iter().map(figure));
    let prefill = over(&|t| t.n_prefill_rows as f64 / t.prefill.as_secs_f64());
    let decode = over(&|t| t.n_decoded as f64 / t.decode.as_secs_f64());
    let first_token = |t: &GroupTiming| {
        let times: Vec<f64> = t.first_tokens.iter().map(|time| time.as_secs_f64()).collect();
        1e3 * percentile(&times, 0.5)
    };
    let Bounds { ceilings, set } = bounds;
    let (n, n_prompt) = (f64::from(batch), f64::from(shape.n_prompt));
    let decode_bound = ceilings.bound(costs.decode(n, shape.mean_len()), set);
    let prefill_work = costs.prefill(n, n_prompt, f64::from(shape.max_rows));
    let prefill_bound = n * n_prompt / ceilings.bound(prefill_work, set).seconds;
    let block_bytes = costs.kv_bytes_per_token() * paceline_cpu::KV_BLOCK as f64;
    Point {
        batch,
        prompt_tokens: shape.n_prompt,
        new_tokens: shape.n_new,
        num_speculative_tokens: shape.n_drafts,
        draft_tokens: rounds.timings.first().map_or(0, |t| t.n_drafted),
        accepted_tokens: rounds.timings.first().map_or(0, |t| t.n_accepted),
        prefill_s: over(&|t| t.prefill.as_secs_f64()),
        prefill_tokens_per_s: prefill,
        decode_s: over(&|t| t.decode.as_secs_f64()),
        decode_tokens: rounds.timings.first().map_or(0, |t| t.n_decoded),
        decode_tokens_per_s: decode,
        ttft_ms_p50: over(&first_token),
        prefill_bound_tokens_per_s: prefill_bound,
        prefill_share_of_bound: prefill / prefill_bound,
        decode_bound_tokens_per_s: n / decode_bound.seconds,
        decode_share_of_bound: decode * decode_bound.seconds / n,
        decode_bound_by: decode_bound.by(),
        read_bytes_per_s: ceilings.read_bytes_per_s(set),
        outside_forward_share: over(&|t| {
            1.0 - t.decode_forward.as_secs_f64() / t.decode.as_secs_f64()
        }),
        rss_change_bytes: rounds.rss_change.unwrap_or(0),
        kv_bytes: (shape.n_kv_blocks(batch) as f64 * block_bytes) as u64,
    }
}

fn setting(llm: &Llm, ceilings: &Ceilings) -> Curve {
    let (facts, spec) = (llm.facts(), llm.spec());
    let file = facts.path.file_name().map(|name| name.to_string_lossy().into_owned());
    let model = file.unwrap_or_else(|| facts.path.display().to_string());
    let (peak, rate) = (ceilings.unit.name(), ceilings.ops_per_s());
    let setting = format!(
        "{model} ({arch}, {mib} MiB of weights), {isa}, {threads} threads; peak {peak} {rate:.2} \
         T/s",
        arch = spec.arch,
        mib = facts.weight_bytes >> 20,
        isa = facts.isa,
        threads = facts.n_threads,
        rate = rate / 1e12,
    );
    Curve {
        points: Vec::new(),
        setting,
        model,
        isa: facts.isa.name(),
        n_threads: facts.n_threads,
        peak: peak.to_owned(),
        peak_ops_per_s: rate,
    }
}
