//! `paceline batch`: many prompts from a file, results to a file.
//!
//! A first pass over the file finds what is to do and in which order; a thread reads and checks
//! lines, the engine takes them as it has room, and each result is written and forgotten as it
//! finishes: memory does not grow with what the lines say. A run that was cut short goes on where
//! it stopped.

mod counts;
mod input;
mod line;
#[cfg(feature = "serve")]
mod openai;
mod output;
mod plain;
#[cfg(feature = "nats")]
mod queue;
mod result;
mod runner;
mod survey;

use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use indicatif::ProgressBar;
use paceline::{GenerateParams, Llm};

use crate::cli::{BatchArgs, Console, Interrupt, LineFormat, Outcome};
use counts::Counts;
use input::{Feed, Input};
use output::Output;
use plain::PlainLines;
use runner::Runner;
use survey::Done;

/// The name that stands for standard input or output.
const DASH: &str = "-";

/// What a run needs beside its model.
struct Run<'a> {
    args: &'a BatchArgs,
    params: &'a GenerateParams,
    feed: Feed,
    output: Output,
    format: LineFormat,
    counts: Counts,
    bar: &'a ProgressBar,
    interrupt: &'a Interrupt,
}

pub(crate) fn run(args: &BatchArgs, console: &Console) -> Result<Outcome> {
    let mut params = args.sampling.params()?;
    params.sampling.n = args.n;
    // What can be refused is refused before the model is loaded.
    let input = Input::open(args)?;
    let format = input.format;
    check_format(format)?;
    #[cfg(feature = "nats")]
    queue::check_format(args, format)?;
    let mut done = Done::default();
    let output = Output::open(args, &mut done)?;
    let feed = input.survey(done, args.shuffle_by_prefix && !args.ordered)?;
    let (n_before, total) = (feed.n_done, feed.n_lines);
    if let Some(total) = total.filter(|_| n_before > 0) {
        console.note(&format!("going on: {n_before} of {total} lines have their results"));
        if n_before == total {
            // A kill between the last result and the end leaves it behind.
            #[cfg(feature = "nats")]
            queue::remove_name(args)?;
            return Ok(Outcome::Done);
        }
    }
    let place = Place::of(args, console)?;
    let interrupt = Interrupt::install()?;
    let start = Instant::now();
    let bar = console.prompts(total);
    bar.set_position(n_before);
    bar.reset_eta();
    let counts = Counts { n_before, ..Counts::default() };
    let (params, bar, interrupt) = (&params, &bar, &interrupt);
    let run = Run { args, params, feed, output, format, counts, bar, interrupt };
    let counts = run.at(place);
    bar.finish_and_clear();
    let counts = counts?;
    console.note(&summary(&counts, params, start));
    if counts.n_abandoned > 0 || interrupt.is_set() {
        console.note(&interrupted(&counts, &args.output));
        return Ok(Outcome::Interrupted);
    }
    Ok(if counts.n_failed > 0 { Outcome::Failed } else { Outcome::Done })
}

/// Where lines run.
enum Place {
    Here(Box<Llm>),
    #[cfg(feature = "nats")]
    Queue(queue::Workers),
}

impl Place {
    fn of(args: &BatchArgs, console: &Console) -> Result<Place> {
        #[cfg(feature = "nats")]
        if let Some(address) = &args.queue {
            return Ok(Place::Queue(queue::Workers::reach(address, args)?));
        }
        Ok(Place::Here(Box::new(args.engine.load(console)?)))
    }
}

fn check_format(format: LineFormat) -> Result<()> {
    if format == LineFormat::Openai && cfg!(not(feature = "serve")) {
        anyhow::bail!("this build has no OpenAI routes to run such lines with");
    }
    Ok(())
}

impl Run<'_> {
    fn at(self, place: Place) -> Result<Counts> {
        match (place, self.format) {
            #[cfg(feature = "serve")]
            (Place::Here(llm), LineFormat::Openai) => self.openai_lines(*llm),
            (Place::Here(llm), _) => self.plain_lines(*llm),
            #[cfg(feature = "nats")]
            (Place::Queue(workers), _) => self.lines_for(workers),
        }
    }

    fn plain_lines(self, mut llm: Llm) -> Result<Counts> {
        let Run { args, params, feed, output, format, counts, bar, interrupt } = self;
        let lines = PlainLines {
            format,
            chat: args.chat,
            system: args.system.clone(),
            defaults: params.clone(),
        };
        let entries = feed.spawn(move |raw| lines.entry(raw));
        let max_live = args.max_live();
        let runner = Runner::new(llm.session(), output, entries, max_live, counts);
        let counts = runner.run(bar, interrupt)?;
        let stats = llm.stats();
        Ok(Counts {
            n_prompt: stats.n_prompt_tokens + stats.n_cached_tokens,
            n_cached: stats.n_cached_tokens,
            n_preemptions: stats.n_preemptions,
            ..counts
        })
    }

    #[cfg(feature = "serve")]
    fn openai_lines(self, llm: Llm) -> Result<Counts> {
        use paceline_server::{Embedding, LineEngine, ServedModel};

        let Run { args, feed, output, counts, bar, interrupt, .. } = self;
        let pooling = paceline_engine::Pooling::default();
        let embedding = Embedding { pooling, n_dims: llm.spec().d_model };
        let paceline::LlmParts { engine, tokenizer, template } = llm.into_parts();
        // Whatever the lines call the model: the one that was asked for is meant.
        let model = ServedModel {
            names: Vec::new(),
            tokenizer,
            template,
            embedding,
            #[cfg(feature = "nats")]
            id: None,
        };
        let engine = LineEngine::start(engine, model)?;
        let entries = feed.spawn(openai::Entry::of);
        let max_live = args.max_live();
        let lines = openai::Lines::new(entries, output, max_live, counts, bar, interrupt);
        paceline_jobs::Runner::new(lines, engine).run().finish()
    }

    #[cfg(feature = "nats")]
    fn lines_for(self, workers: queue::Workers) -> Result<Counts> {
        let Run { args, feed, output, counts, bar, interrupt, .. } = self;
        let entries = feed.spawn(openai::Entry::of);
        let max_live = args.max_on_queue();
        let lines = openai::Lines::new(entries, output, max_live, counts, bar, interrupt);
        let queue::Workers { executor, sender } = workers;
        let counts = paceline_jobs::Runner::new(lines, executor).run().finish()?;
        if counts.n_abandoned == 0 && !interrupt.is_set() {
            sender.forget()?;
        }
        Ok(counts)
    }
}

fn summary(counts: &Counts, params: &GenerateParams, start: Instant) -> String {
    let seconds = start.elapsed().as_secs_f64();
    let mut text = format!(
        "{} prompts, {} failed: {} prompt tokens ({} from the prefix cache), {} generated in \
         {seconds:.1} s, {:.1} tokens/s",
        counts.n_done,
        counts.n_failed,
        counts.n_prompt,
        counts.n_cached,
        counts.n_generated,
        counts.n_generated as f64 / seconds.max(1e-9),
    );
    if counts.n_preemptions > 0 {
        text.push_str(&format!(", {} preemptions", counts.n_preemptions));
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
        format!("are in {}; the same command goes on from there", output.display())
    };
    let (done, lost) = (counts.n_done, counts.n_abandoned);
    format!(
        "interrupted: the results of {done} prompts {place}; {lost} were under way and are lost"
    )
}
