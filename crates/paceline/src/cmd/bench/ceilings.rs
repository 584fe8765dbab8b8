//! `paceline bench ceilings`: what this machine can do.

use std::time::Duration;

use anyhow::Result;
use paceline_cpu::peak::{Meter, Unit};
use paceline_model::sizing;
use serde::Serialize;

use super::figures::median;
use super::plot::{self, Bars, Panel};
use super::table::Table;
use super::{print, print_json};
use crate::cli::{ByteSize, CeilingsArgs, Console, Outcome};

/// Within the second-level cache, about a small model, and far beyond any cache.
const USUAL_SIZES: [ByteSize; 4] =
    [ByteSize(1 << 20), ByteSize(64 << 20), ByteSize(96 << 20), ByteSize(1 << 30)];
/// Share of the free memory that is taken for reading.
const READ_SHARE: u64 = 2;

/// What is measured, and how often it came to what.
#[derive(Debug, Serialize)]
struct Row {
    /// `read` or `peak`.
    kind: &'static str,
    name: String,
    threads: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    working_set_bytes: Option<u64>,
    /// Bytes, or products and sums.
    per_s: f64,
    least_per_s: f64,
    most_per_s: f64,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Read(ByteSize),
    Peak(Unit),
}

pub(crate) fn run(args: &CeilingsArgs, console: &Console) -> Result<Outcome> {
    let rows = measure(args, console)?;
    match args.report.json {
        true => print_json(&rows)?,
        false => print(&text(&rows))?,
    }
    if let Some(path) = &args.report.plot {
        plot::save(path, &bars(&rows).svg())?;
    }
    Ok(Outcome::Done)
}

fn measure(args: &CeilingsArgs, console: &Console) -> Result<Vec<Row>> {
    let cases = cases(args);
    let largest = cases.iter().filter_map(|(what, _)| what.n_words()).max().unwrap_or(0);
    // Not zero, so that every page is memory of its own.
    let data = vec![1u64; largest];
    let budget = Duration::from_millis(args.budget_ms);
    let mut rates: Vec<Vec<f64>> = vec![Vec::new(); cases.len()];
    let bar = console.measurements(u64::from(args.rounds) * cases.len() as u64);
    for _ in 0..args.rounds {
        for ((what, n_threads), rates) in cases.iter().zip(&mut rates) {
            bar.set_message(what.name());
            bar.tick();
            let mut meter = Meter::new(*n_threads)?;
            rates.extend(match what {
                What::Read(_) => {
                    let words = &data[..what.n_words().unwrap_or(0)];
                    Some(meter.read_bytes_per_s(words, budget))
                }
                What::Peak(unit) => meter.ops_per_s(*unit, budget),
            });
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(cases.iter().zip(&rates).map(|(case, rates)| case.0.row(case.1, rates)).collect())
}

/// Everything, with one thread and with all.
fn cases(args: &CeilingsArgs) -> Vec<(What, usize)> {
    let affordable = sizing::free_bytes() / READ_SHARE;
    let sizes = if args.sizes.is_empty() { &USUAL_SIZES[..] } else { &args.sizes };
    let reads = sizes.iter().map(|size| What::Read(ByteSize(size.0.min(affordable).max(64))));
    let peaks = Unit::ALL.into_iter().filter(|unit| unit.is_available()).map(What::Peak);
    let n_threads = args.threads.map_or_else(sizing::default_threads, usize::from);
    let threads: &[usize] = if n_threads == 1 { &[1] } else { &[1, n_threads] };
    reads.chain(peaks).flat_map(|what| threads.iter().map(move |&n| (what, n))).collect()
}

impl What {
    fn name(self) -> String {
        match self {
            What::Read(size) => format!("read {size}"),
            What::Peak(unit) => unit.name().to_owned(),
        }
    }

    fn n_words(self) -> Option<usize> {
        match self {
            What::Read(size) => Some(size.0 as usize / size_of::<u64>()),
            What::Peak(_) => None,
        }
    }

    fn row(self, threads: usize, rates: &[f64]) -> Row {
        let (kind, working_set_bytes) = match self {
            What::Read(size) => ("read", Some(size.0)),
            What::Peak(_) => ("peak", None),
        };
        Row {
            kind,
            name: self.name(),
            threads,
            working_set_bytes,
            per_s: median(rates.iter().copied()),
            least_per_s: rates.iter().copied().fold(f64::INFINITY, f64::min),
            most_per_s: rates.iter().copied().fold(0.0, f64::max),
        }
    }
}

impl Row {
    /// In GB/s, or in T/s for operations.
    fn scaled(&self, per_s: f64) -> f64 {
        if self.kind == "read" { per_s / 1e9 } else { per_s / 1e12 }
    }

    fn unit(&self) -> &'static str {
        if self.kind == "read" { "GB/s" } else { "T/s" }
    }
}

fn text(rows: &[Row]) -> String {
    let mut table = Table::new(&["", "threads", "median", "least", "most", ""]);
    for row in rows {
        let figure = |per_s| format!("{:.2}", row.scaled(per_s));
        table.row([
            row.name.clone(),
            row.threads.to_string(),
            figure(row.per_s),
            figure(row.least_per_s),
            figure(row.most_per_s),
            row.unit().to_owned(),
        ]);
    }
    table.text()
}

fn bars(rows: &[Row]) -> Bars {
    let panel = |kind: &str, title: &str| Panel {
        title: title.to_owned(),
        bars: rows
            .iter()
            .filter(|row| row.kind == kind)
            .map(|row| (format!("{}, {} threads", row.name, row.threads), row.scaled(row.per_s)))
            .collect(),
    };
    Bars {
        title: "What this machine can do".to_owned(),
        subtitle: "medians".to_owned(),
        panels: vec![
            panel("read", "read bandwidth, GB/s"),
            panel("peak", "arithmetic from registers, T operations/s"),
        ],
    }
}
