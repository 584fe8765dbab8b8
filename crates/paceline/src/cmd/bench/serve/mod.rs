//! `paceline bench serve`: load on a server, and what its clients feel of it.
//!
//! Knows OpenAI's streaming routes from the outside, so it can load any server that has them.
//! Everything that costs time is made before the clock starts: prompts, bodies, the server's
//! tokens. One thread sends and reads, because the cores are the server's.

mod dataset;
mod events;
mod load;
mod metrics;
mod report;
mod request;
mod server;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use paceline_server::client::Client;

use super::{print, print_json};
use crate::cli::{BenchServeArgs, Console, Outcome};
use load::{Plan, Run};
use metrics::Figures;
use report::Level;
use request::Prepared;

pub(crate) fn run(args: &BenchServeArgs, console: &Console) -> Result<Outcome> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (levels, model) = runtime.block_on(measure(args, console))?;
    if args.report.json {
        let rows: Vec<_> = levels.iter().map(|level| report::json(level, args, &model)).collect();
        print_json(&rows)?;
    } else {
        for level in &levels {
            print(&report::block(level, args))?;
        }
        if levels.len() > 1 {
            print(&format!("\n{}", report::table(&levels)))?;
        }
    }
    if args.figures.save_result {
        for path in report::save(&levels, args, &model)? {
            console.note(&format!("wrote {}", path.display()));
        }
    }
    if let Some(path) = &args.report.plot {
        report::save_plot(&levels, args, &model, path)?;
    }
    let n_succeeded: usize = levels.iter().map(|level| level.figures.n_succeeded).sum();
    Ok(if n_succeeded > 0 { Outcome::Done } else { Outcome::Failed })
}

/// Every level, one after the other, and the model's name.
async fn measure(args: &BenchServeArgs, console: &Console) -> Result<(Vec<Level>, String)> {
    let client = server::client(args)?;
    let model = server::model(&client, args).await.context(args.base_url.clone())?;
    let vocabulary = server::vocabulary(&client, args, &model).await?;
    let prepare = |asked| Arc::new(Prepared::new(args.endpoint, &model, &asked, &args.data));
    // Every level asks anew: a prompt that was asked before would be answered from a cache.
    let requests_of = |level| -> Result<Vec<Arc<Prepared>>> {
        let asked = dataset::requests(&args.data, level, &vocabulary)?;
        Ok(asked.into_iter().map(prepare).collect())
    };
    let timeout = Duration::from_secs(args.timeout_sec);
    let wanted = args.load.levels();
    let warm_ups = requests_of(wanted.len())?;
    warm_up(&client, &warm_ups, args.load.num_warmups, timeout, console).await;
    let mut levels = Vec::new();
    for (level, max_concurrency) in wanted.into_iter().enumerate() {
        let requests = requests_of(level)?;
        let plan =
            Plan { rate: args.load.request_rate, max_concurrency, timeout, seed: args.data.seed };
        let bar = console.measurements(requests.len() as u64);
        bar.set_message("requests");
        let run = load::run(&client, &requests, plan, &bar).await;
        bar.finish_and_clear();
        tell_errors(&run, console);
        let figures = Figures::new(&run, &args.figures.goodput, &args.figures.metric_percentiles);
        levels.push(Level { max_concurrency, run, figures });
    }
    Ok((levels, model))
}

async fn warm_up(
    client: &Client,
    requests: &[Arc<Prepared>],
    n: u32,
    timeout: Duration,
    console: &Console,
) {
    for request in requests.iter().cycle().take(n as usize) {
        let outcome = request.send(client, timeout, Instant::now()).await;
        if let Some(error) = outcome.error {
            console.note(&format!("a warm-up request failed: {error}"));
        }
    }
}

/// One line for each kind of failure, the most frequent first.
fn tell_errors(run: &Run, console: &Console) {
    const MAX_KINDS: usize = 5;
    let mut kinds: Vec<(&str, usize)> = Vec::new();
    for error in run.outcomes.iter().filter_map(|outcome| outcome.error.as_deref()) {
        match kinds.iter_mut().find(|(known, _)| *known == error) {
            Some((_, count)) => *count += 1,
            None => kinds.push((error, 1)),
        }
    }
    kinds.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    for (error, count) in kinds.iter().take(MAX_KINDS) {
        console.note(&format!("{count} failed: {error}"));
    }
    if kinds.len() > MAX_KINDS {
        console.note(&format!("and {} other kinds of failures", kinds.len() - MAX_KINDS));
    }
}
