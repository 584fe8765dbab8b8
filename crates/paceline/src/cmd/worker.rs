//! `paceline worker`: lines of batches from a queue that machines share.

use anyhow::Result;
use paceline::LlmParts;
use paceline_engine::Pooling;
use paceline_jobs::Runner;
use paceline_jobs::nats::{ModelId, StopWorker, WorkerSource};
use paceline_server::{Embedding, LineEngine, ServedModel};

use crate::cli::{Console, Interrupt, Outcome, WorkerArgs};

pub(crate) fn run(args: &WorkerArgs, console: &Console) -> Result<Outcome> {
    let stop = StopWorker::default();
    // A queue that cannot be reached is known before the model is loaded.
    let lines = WorkerSource::connect(&args.queue, args.options(), stop.clone())?;
    let llm = args.engine.with_model(args.model.as_deref()).load(console)?;
    let _interrupt = Interrupt::install_with(move || stop.stop())?;
    // As the server has it unless told otherwise.
    let embedding = Embedding { pooling: Pooling::Last, n_dims: llm.spec().d_model };
    let name = llm.spec().name.clone().unwrap_or_else(|| args.engine.model().to_owned());
    let id = ModelId::of_files(&name, &llm.facts().path, &llm.facts().arithmetic())?;
    let LlmParts { engine, tokenizer, template } = llm.into_parts();
    // Whatever the lines call the model: which one is meant is told by its fingerprint.
    let model = ServedModel { names: Vec::new(), tokenizer, template, embedding, id: None };
    let engine = LineEngine::start(engine, model)?;
    lines.serve(id)?;
    let wakes = lines.wakes();
    let runner = Runner::new(lines, engine);
    wakes(runner.sender());
    console.note(&format!("ready: takes lines from {}", args.queue));
    drop(runner.run());
    Ok(Outcome::Done)
}
