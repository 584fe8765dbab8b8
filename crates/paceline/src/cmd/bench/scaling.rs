//! `paceline bench scaling`: what a larger batch gives, from 1 to 128.

use anyhow::Result;
use serde::Serialize;

use super::curve::{self, Curve, Point};
use super::figures::{mebibytes, number, percent};
use super::table::Table;
use super::{print, print_json};
use crate::cli::{Console, Outcome, ScalingArgs};

/// A batch size against the first one.
#[derive(Debug, Serialize)]
struct Row<'a> {
    #[serde(flatten)]
    point: &'a Point,
    /// Tokens per second, as a multiple of the first batch size's.
    speedup: f64,
    /// The speedup as a share of how many times more sequences there are.
    efficiency: f64,
}

impl<'a> Row<'a> {
    fn new(point: &'a Point, first: &Point) -> Row<'a> {
        let speedup = point.decode_tokens_per_s / first.decode_tokens_per_s;
        let efficiency = speedup * f64::from(first.batch) / f64::from(point.batch);
        Row { point, speedup, efficiency }
    }
}

pub(crate) fn run(args: &ScalingArgs, console: &Console) -> Result<Outcome> {
    let curve = curve::measure(&args.batch, &args.curve, console)?;
    let rows = rows(&curve.points);
    match args.curve.report.json {
        true => print_json(&rows)?,
        false => print(&text(&curve, &rows))?,
    }
    if let Some(path) = &args.curve.report.plot {
        curve.save_plot(path, "Decoding by batch size")?;
    }
    Ok(Outcome::Done)
}

fn rows(points: &[Point]) -> Vec<Row<'_>> {
    let Some(first) = points.first() else { return Vec::new() };
    points.iter().map(|point| Row::new(point, first)).collect()
}

fn text(curve: &Curve, rows: &[Row<'_>]) -> String {
    let mut table = Table::new(&[
        "batch",
        "prefill s",
        "decode s",
        "tokens",
        "tok/s",
        "memory MiB",
        "speedup",
        "efficiency",
        "of ceiling",
    ]);
    for Row { point, speedup, efficiency } in rows {
        table.row([
            point.batch.to_string(),
            format!("{:.3}", point.prefill_s),
            format!("{:.3}", point.decode_s),
            point.decode_tokens.to_string(),
            number(point.decode_tokens_per_s),
            mebibytes(point.rss_change_bytes),
            format!("{speedup:.2}x"),
            percent(*efficiency),
            percent(point.decode_share_of_bound),
        ]);
    }
    format!("{}\n{}", curve.head(), table.text())
}
