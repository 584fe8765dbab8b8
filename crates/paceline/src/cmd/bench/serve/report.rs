//! What people and programs get to see: vLLM's block of text, its JSON fields, a table over
//! concurrencies and a plot.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use super::load::Run;
use super::metrics::Figures;
use crate::cli::{BenchServeArgs, FigureArgs, Metric};
use crate::cmd::bench::figures::number;
use crate::cmd::bench::plot::{self, Curves, Series};
use crate::cmd::bench::table::Table;

/// One concurrency's run.
#[derive(Debug)]
pub(super) struct Level {
    pub(super) max_concurrency: Option<u32>,
    pub(super) run: Run,
    pub(super) figures: Figures,
}

/// Columns of the block.
const WIDTH: usize = 50;

/// The block that `vllm bench serve` prints, label for label.
pub(super) fn block(level: &Level, args: &BenchServeArgs) -> String {
    let figures = &level.figures;
    let mut block = Block(String::new());
    block.head(" Serving Benchmark Result ", '=');
    block.count("Successful requests:", figures.n_succeeded as u64);
    block.count("Failed requests:", figures.n_failed as u64);
    if let Some(n) = level.max_concurrency {
        block.count("Maximum request concurrency:", u64::from(n));
    }
    if args.load.request_rate.is_finite() {
        block.value("Request rate configured (RPS):", args.load.request_rate);
    }
    block.value("Benchmark duration (s):", figures.duration);
    block.count("Total input tokens:", figures.n_input);
    block.count("Total generated tokens:", figures.n_output);
    block.value("Request throughput (req/s):", figures.requests_per_s);
    if let Some(goodput) = figures.good_requests_per_s {
        block.value("Request goodput (req/s):", goodput);
    }
    block.value("Output token throughput (tok/s):", figures.output_per_s);
    block.value("Peak output token throughput (tok/s):", figures.peak_output_per_s);
    block.value("Peak concurrent requests:", figures.peak_concurrency as f64);
    block.value("Total token throughput (tok/s):", figures.total_per_s);
    for &metric in &args.figures.percentile_metrics {
        block.latencies(metric, figures);
    }
    block.head("", '=');
    block.0
}

struct Block(String);

impl Block {
    fn head(&mut self, title: &str, fill: char) {
        let n_fill = WIDTH.saturating_sub(title.len());
        let (left, right) = (n_fill / 2, n_fill - n_fill / 2);
        let fill = |n: usize| fill.to_string().repeat(n);
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "{}{title}{}", fill(left), fill(right));
    }

    fn count(&mut self, label: &str, value: u64) {
        let _ = writeln!(self.0, "{label:<40} {value:<10}");
    }

    fn value(&mut self, label: &str, value: f64) {
        let _ = writeln!(self.0, "{label:<40} {value:<10.2}");
    }

    fn latencies(&mut self, metric: Metric, figures: &Figures) {
        let (title, name) = match metric {
            Metric::Ttft => ("Time to First Token", "TTFT"),
            Metric::Tpot => ("Time per Output Token (excl. 1st token)", "TPOT"),
            Metric::Itl => ("Inter-token Latency", "ITL"),
            Metric::E2el => ("End-to-end Latency", "E2EL"),
        };
        let latencies = figures.latencies(metric);
        self.head(title, '-');
        self.value(&format!("Mean {name} (ms):"), latencies.mean);
        self.value(&format!("Median {name} (ms):"), latencies.median);
        for (percent, value) in &latencies.percentiles {
            self.value(&format!("P{percent} {name} (ms):"), *value);
        }
    }
}

/// A run as JSON, with vLLM's names.
pub(super) fn json(level: &Level, args: &BenchServeArgs, model: &str) -> Value {
    let figures = &level.figures;
    let rate = args.load.request_rate;
    let mut fields = json!({
        "unix_seconds": unix_seconds(),
        "backend": "openai",
        "endpoint": args.endpoint.path(),
        "model_id": model,
        "num_prompts": args.data.num_prompts,
        "request_rate": if rate.is_finite() { json!(rate) } else { json!("inf") },
        "max_concurrency": level.max_concurrency,
        "duration": figures.duration,
        "completed": figures.n_succeeded,
        "failed": figures.n_failed,
        "total_input_tokens": figures.n_input,
        "total_output_tokens": figures.n_output,
        "request_throughput": figures.requests_per_s,
        "request_goodput": figures.good_requests_per_s,
        "output_throughput": figures.output_per_s,
        "total_token_throughput": figures.total_per_s,
        "max_output_tokens_per_s": figures.peak_output_per_s,
        "max_concurrent_requests": figures.peak_concurrency,
    });
    if let Some(fields) = fields.as_object_mut() {
        for &metric in &args.figures.percentile_metrics {
            add_latencies(fields, metric, figures);
        }
    }
    fields
}

fn add_latencies(fields: &mut Map<String, Value>, metric: Metric, figures: &Figures) {
    let latencies = figures.latencies(metric);
    let mut set = |what: &str, ms: f64| fields.insert(format!("{what}_{metric}_ms"), json!(ms));
    set("mean", latencies.mean);
    set("median", latencies.median);
    set("std", latencies.std);
    for (percent, ms) in &latencies.percentiles {
        set(&format!("p{percent}"), *ms);
    }
}

/// Adds each request's own figures, in seconds.
fn add_details(fields: &mut Value, run: &Run) {
    let all = |f: &dyn Fn(&super::request::Outcome) -> Value| -> Value {
        run.outcomes.iter().map(f).collect()
    };
    fields["start_times"] = all(&|o| json!(o.start.as_secs_f64()));
    fields["input_lens"] = all(&|o| json!(o.n_input));
    fields["output_lens"] = all(&|o| json!(o.n_output));
    fields["ttfts"] = all(&|o| json!(o.ttft().as_secs_f64()));
    fields["itls"] = all(&|o| json!(o.gaps().collect::<Vec<_>>()));
    fields["e2els"] = all(&|o| json!(o.latency.as_secs_f64()));
    fields["errors"] = all(&|o| json!(o.error));
}

/// Writes each run to a file of its own; returns where.
pub(super) fn save(levels: &[Level], args: &BenchServeArgs, model: &str) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for level in levels {
        let mut fields = json(level, args, model);
        if args.figures.save_detailed {
            add_details(&mut fields, &level.run);
        }
        let name = file_name(level, args, model, levels.len() > 1);
        let path = args.figures.result_dir.join(name);
        let text = serde_json::to_string_pretty(&fields)?;
        std::fs::write(&path, text + "\n")
            .with_context(|| format!("cannot write {}", path.display()))?;
        paths.push(path);
    }
    Ok(paths)
}

fn file_name(level: &Level, args: &BenchServeArgs, model: &str, is_one_of_many: bool) -> String {
    let FigureArgs { result_filename, .. } = &args.figures;
    let concurrency = level.max_concurrency.map_or(String::new(), |n| format!("-concurrency{n}"));
    match result_filename {
        Some(name) if !is_one_of_many => name.clone(),
        Some(name) => {
            let stem = name.strip_suffix(".json").unwrap_or(name);
            format!("{stem}{concurrency}.json")
        }
        None => {
            let rate = args.load.request_rate;
            let model = model.rsplit('/').next().unwrap_or(model);
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
            let model: String = model.chars().filter(|&c| is_plain(c)).collect();
            format!("openai-{rate}qps{concurrency}-{model}-{}.json", unix_seconds())
        }
    }
}

fn unix_seconds() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// All concurrencies side by side.
pub(super) fn table(levels: &[Level]) -> String {
    let mut table = Table::new(&[
        "concurrency",
        "req/s",
        "output tok/s",
        "TTFT ms p50",
        "TPOT ms p50",
        "E2EL ms p50",
        "failed",
    ]);
    for level in levels {
        let figures = &level.figures;
        let median = |metric| number(figures.latencies(metric).median);
        table.row([
            level.max_concurrency.map_or_else(|| "all".to_owned(), |n| n.to_string()),
            number(figures.requests_per_s),
            number(figures.output_per_s),
            median(Metric::Ttft),
            median(Metric::Tpot),
            median(Metric::E2el),
            figures.n_failed.to_string(),
        ]);
    }
    table.text()
}

/// Throughput and latencies over concurrency, on one logarithmic scale.
pub(super) fn save_plot(
    levels: &[Level],
    args: &BenchServeArgs,
    model: &str,
    path: &Path,
) -> Result<()> {
    let series = |name: &str, value: &dyn Fn(&Figures) -> f64| Series {
        name: name.to_owned(),
        points: levels.iter().map(|level| (concurrency(level), value(&level.figures))).collect(),
        is_limit: false,
    };
    let median = |metric| move |figures: &Figures| figures.latencies(metric).median;
    let mut series = vec![
        series("output tok/s", &|figures| figures.output_per_s),
        series("TTFT ms, median", &median(Metric::Ttft)),
        series("TPOT ms, median", &median(Metric::Tpot)),
    ];
    // A logarithmic scale has no place for zero, as where no answer had two tokens.
    series.iter_mut().for_each(|series| series.points.retain(|point| point.1 > 0.0));
    series.retain(|series| !series.points.is_empty());
    let data = &args.data;
    let curves = Curves {
        title: "Serving by concurrency".to_owned(),
        subtitle: format!(
            "{model}, {} requests of {} prompt and {} new tokens",
            data.num_prompts, data.input_len, data.output_len
        ),
        x_label: "requests at once".to_owned(),
        y_label: "tokens per second, and milliseconds".to_owned(),
        series,
    };
    plot::save(path, &curves.svg())
}

fn concurrency(level: &Level) -> f64 {
    level.max_concurrency.map_or(level.figures.peak_concurrency.max(1) as f64, f64::from)
}
