//! `paceline bench throughput`: tokens per second by batch size.

use anyhow::Result;
use serde::Serialize;

use super::curve::{self, Curve, Point};
use super::figures::{mebibytes, number, percent};
use super::table::Table;
use super::{print, print_json};
use crate::cli::{Console, Outcome, ThroughputArgs};

/// A row of `--json`.
#[derive(Debug, Serialize)]
struct Row<'a> {
    model: &'a str,
    isa: &'a str,
    threads: usize,
    rounds: u32,
    #[serde(flatten)]
    point: &'a Point,
    peak: &'a str,
    peak_ops_per_s: f64,
}

pub(crate) fn run(args: &ThroughputArgs, console: &Console) -> Result<Outcome> {
    let curve = curve::measure(&args.batch, &args.curve, console)?;
    if args.curve.report.json {
        let row = |point| Row {
            model: &curve.model,
            isa: curve.isa,
            threads: curve.n_threads,
            rounds: args.curve.shape.rounds,
            point,
            peak: &curve.peak,
            peak_ops_per_s: curve.peak_ops_per_s,
        };
        print_json(&curve.points.iter().map(row).collect::<Vec<_>>())?;
    } else {
        print(&text(&curve))?;
    }
    if let Some(path) = &args.curve.report.plot {
        curve.save_plot(path, "Decoding by batch size")?;
    }
    Ok(Outcome::Done)
}

fn text(curve: &Curve) -> String {
    let mut table = Table::new(&[
        "batch",
        "prefill tok/s",
        "of ceiling",
        "decode tok/s",
        "ceiling",
        "share",
        "bound by",
        "first token ms",
        "KV MiB",
        "RSS MiB",
    ]);
    for p in &curve.points {
        table.row([
            p.batch.to_string(),
            number(p.prefill_tokens_per_s),
            percent(p.prefill_share_of_bound),
            number(p.decode_tokens_per_s),
            number(p.decode_bound_tokens_per_s),
            percent(p.decode_share_of_bound),
            p.decode_bound_by.to_owned(),
            number(p.ttft_ms_p50),
            number(p.kv_bytes as f64 / f64::from(1 << 20)),
            mebibytes(p.rss_change_bytes),
        ]);
    }
    format!("{}\n{}", curve.head(), table.text())
}
