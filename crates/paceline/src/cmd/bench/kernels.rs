//! `paceline bench kernels`: each op of the forward pass against its ceiling.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use paceline::Isa;
use paceline_cpu::Cpu;
use paceline_cpu::quant::TensorType;
use paceline_model::sizing;
use serde::Serialize;

use super::ceiling::{Ceilings, Work};
use super::figures::{median, number, percent};
use super::ops::{self, Case};
use super::plot::{self, Bars, Panel};
use super::table::Table;
use super::{print, print_json};
use crate::cli::{Console, KernelsArgs, Outcome, UsageError};

/// One op at one size; medians of the rounds.
#[derive(Debug, Serialize)]
struct Row {
    op: String,
    rows: usize,
    isa: &'static str,
    threads: usize,
    us: f64,
    bytes_per_s: f64,
    ops_per_s: f64,
    bound_us: f64,
    share_of_bound: f64,
    /// `bytes` or `operations`.
    bound_by: &'static str,
}

pub(crate) fn run(args: &KernelsArgs, console: &Console) -> Result<Outcome> {
    let isa = args.isa.map_or_else(Isa::from_env, Isa::require)?;
    let n_threads = args.threads.map_or_else(sizing::default_threads, usize::from);
    let mut cpu = Cpu::new(isa, n_threads, ops::HEAD_DIM)?;
    let mut cases = ops::matmuls(&mut cpu, args, &types(args)?)?;
    cases.extend(ops::others(&mut cpu, args));
    let mut ceilings = Ceilings::new(
        (isa, args.act_dtype(isa, ops::USUAL_TYPE)),
        n_threads,
        cases.iter().map(|case| case.set_bytes),
    )?;
    let times = measure(&mut cpu, &mut cases, &mut ceilings, args, console);
    let rows: Vec<Row> = cases
        .iter()
        .zip(&times)
        .enumerate()
        .map(|(set, (case, times))| row(case, times, &ceilings, set, &cpu))
        .collect();
    match args.report.json {
        true => print_json(&rows)?,
        false => print(&text(&rows, args, &ceilings))?,
    }
    if let Some(path) = &args.report.plot {
        plot::save(path, &bars(&rows).svg())?;
    }
    Ok(Outcome::Done)
}

fn types(args: &KernelsArgs) -> Result<Vec<TensorType>> {
    if args.types.is_empty() {
        return Ok(TensorType::ALL.to_vec());
    }
    let mut types = Vec::new();
    for name in &args.types {
        match TensorType::from_name(name) {
            Some(ty) => types.push(ty),
            None => bail!(UsageError(format!("there is no type of weights named {name:?}"))),
        }
    }
    Ok(types)
}

/// Seconds of one call, by case and round.
fn measure(
    cpu: &mut Cpu,
    cases: &mut [Case],
    ceilings: &mut Ceilings,
    args: &KernelsArgs,
    console: &Console,
) -> Vec<Vec<f64>> {
    let budget = Duration::from_millis(args.budget_ms);
    let bar = console.measurements(u64::from(args.rounds) * cases.len() as u64);
    let mut times = vec![Vec::new(); cases.len()];
    for _ in 0..args.rounds {
        ceilings.sample();
        for (case, times) in cases.iter_mut().zip(&mut times) {
            bar.set_message(case.op.clone());
            bar.tick();
            times.push(seconds_of_a_call(cpu, case, budget));
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    times
}

fn seconds_of_a_call(cpu: &mut Cpu, case: &mut Case, budget: Duration) -> f64 {
    // The first one wakes the threads.
    (case.run)(cpu);
    let start = Instant::now();
    let mut n = 0;
    while n == 0 || start.elapsed() < budget {
        (case.run)(cpu);
        n += 1;
    }
    start.elapsed().as_secs_f64() / f64::from(n)
}

fn row(case: &Case, times: &[f64], ceilings: &Ceilings, set: usize, cpu: &Cpu) -> Row {
    let seconds = median(times.iter().copied());
    let bound = ceilings.bound(case.work, set);
    let Work { n_bytes, n_ops } = case.work;
    Row {
        op: case.op.clone(),
        rows: case.n_rows,
        isa: cpu.isa().name(),
        threads: cpu.n_threads(),
        us: 1e6 * seconds,
        bytes_per_s: n_bytes / seconds,
        ops_per_s: n_ops / seconds,
        bound_us: 1e6 * bound.seconds,
        share_of_bound: bound.seconds / seconds,
        bound_by: bound.by(),
    }
}

fn text(rows: &[Row], args: &KernelsArgs, ceilings: &Ceilings) -> String {
    let mut table =
        Table::new(&["op", "rows", "us", "GB/s", "T/s", "ceiling us", "of ceiling", "bound by"]);
    for row in rows {
        table.row([
            row.op.clone(),
            row.rows.to_string(),
            number(row.us),
            number(row.bytes_per_s / 1e9),
            format!("{:.3}", row.ops_per_s / 1e12),
            number(row.bound_us),
            percent(row.share_of_bound),
            row.bound_by.to_owned(),
        ]);
    }
    let (outputs, inputs, set) = (args.outputs, args.inputs, args.working_set);
    let (isa, threads) = rows.first().map_or(("", 0), |row| (row.isa, row.threads));
    format!(
        "{isa}, {threads} threads; products of {outputs} x {inputs} from {set} of weights; peak \
         {} {:.2} T/s\n\n{}",
        ceilings.unit,
        ceilings.ops_per_s() / 1e12,
        table.text(),
    )
}

fn bars(rows: &[Row]) -> Bars {
    let share = |row: &Row| (format!("{}, {} rows", row.op, row.rows), 100.0 * row.share_of_bound);
    Bars {
        title: "Ops against their ceilings".to_owned(),
        subtitle: rows.first().map_or(String::new(), |row| {
            let Row { isa, threads, .. } = row;
            format!("{isa}, {threads} threads")
        }),
        panels: vec![Panel {
            title: "percent of what the machine could do".to_owned(),
            bars: rows.iter().map(share).collect(),
        }],
    }
}
