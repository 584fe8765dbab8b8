//! `paceline batch`: many prompts from a file, results to a file.
//!
//! A thread reads and checks lines, the engine takes them as it has room, and each result is
//! written and forgotten as it finishes: memory does not grow with the file.

mod input;
mod line;
mod lines;
mod output;
mod result;
mod runner;

use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use paceline::{GenerateParams, Llm};

use crate::cli::{BatchArgs, Console, Interrupt, Outcome};
use input::{Input, LineReader};
use output::Output;
use runner::{Counts, Runner};

/// The name that stands for standard input or output.
const DASH: &str = "-";

pub(crate) fn run(args: &BatchArgs, console: &Console) -> Result<Outcome> {
    let mut params = args.sampling.params()?;
    params.sampling.n = args.n;
    // What can be refused is refused before the model is loaded.
    let input = Input::open(args)?;
    Output::check(args)?;
    let total = console.has_bars().then(|| input.count_lines()).transpose()?.flatten();
    let mut llm = args.engine.load(console)?;
    let output = Output::create(args)?;
    let interrupt = Interrupt::install()?;
    let reader = LineReader {
        format: input.format,
        chat: args.chat,
        system: args.system.clone(),
        defaults: params.clone(),
    };
    let start = Instant::now();
    let bar = console.prompts(total);
    let max_live = 2 * args.engine.max_group() as usize;
    let runner = Runner::new(llm.session(), output, input.spawn(reader), max_live);
    let counts = runner.run(&bar, &interrupt);
    bar.finish_and_clear();
    let counts = counts?;
    console.note(&summary(&counts, &llm, &params, start));
    if counts.n_abandoned > 0 || interrupt.is_set() {
        console.note(&interrupted(&counts, &args.output));
        return Ok(Outcome::Interrupted);
    }
    Ok(if counts.n_failed > 0 { Outcome::Failed } else { Outcome::Done })
}

fn summary(counts: &Counts, llm: &Llm, params: &GenerateParams, start: Instant) -> String {
    let seconds = start.elapsed().as_secs_f64();
    let stats = llm.stats();
    let mut text = format!(
        "{} prompts, {} failed: {} prompt tokens ({} from the prefix cache), {} generated in \
         {seconds:.1} s, {:.1} tokens/s",
        counts.n_done,
        counts.n_failed,
        stats.n_prompt_tokens + stats.n_cached_tokens,
        stats.n_cached_tokens,
        counts.n_generated,
        counts.n_generated as f64 / seconds.max(1e-9),
    );
    if stats.n_preemptions > 0 {
        text.push_str(&format!(", {} preemptions", stats.n_preemptions));
    }
    if params.sampling.temperature > 0.0 {
        text.push_str(&format!(", seed {}", params.sampling.seed));
    }
    text
}

fn interrupted(counts: &Counts, output: &Path) -> String {
    let place = if output == Path::new(DASH) {
        "were written".to_owned()
    } else {
        format!("are in {}", output.display())
    };
    let (done, lost) = (counts.n_done, counts.n_abandoned);
    format!(
        "interrupted: the results of {done} prompts {place}; {lost} were under way and are lost"
    )
}
