//! `paceline serve`: the model over HTTP.

use anyhow::{Result, anyhow};
use paceline::{Llm, LlmParts};
use paceline_server::{Embedding, ServedModel, Server, ServerHandle};

use crate::cli::{Console, EngineArgs, Interrupt, Outcome, ServeArgs};

pub(crate) fn run(args: &ServeArgs, console: &Console) -> Result<Outcome> {
    let address = args.address()?;
    let server = Server::bind(address, args.options()?)?;
    let address = server.local_addr()?;
    let handle = server.handle();
    let stop = server.handle();
    let interrupt = Interrupt::install_with(move || stop.shut_down())?;
    // The port answers while the model loads, and says so.
    let thread = std::thread::spawn(move || server.run());
    console.note(&format!("listening on http://{address}; loading the model"));
    let loaded = load(args, console, &handle);
    if loaded.is_ok() {
        console.note(&format!("the page is at http://{address}/"));
        console.note(&format!("ready: http://{address}/v1"));
    } else {
        handle.shut_down();
    }
    let served = thread.join().map_err(|_| anyhow!("the server ended unexpectedly"))?;
    // A model that could not be loaded because the user was tired of waiting is no error.
    match loaded {
        Err(error) if !interrupt.is_set() => Err(error),
        _ => {
            served?;
            Ok(Outcome::Done)
        }
    }
}

fn load(args: &ServeArgs, console: &Console, handle: &ServerHandle) -> Result<()> {
    let engine = args.engine.with_model(args.model.as_deref());
    let llm = engine.load(console)?;
    let names = names(args, &engine, &llm);
    let embedding = Embedding { pooling: args.pooling.into(), n_dims: llm.spec().d_model };
    #[cfg(feature = "nats")]
    let id = {
        use paceline_jobs::nats::ModelId;
        let name = names.first().map(String::as_str).unwrap_or_default();
        Some(ModelId::of_files(name, &llm.facts().path, &llm.facts().arithmetic())?)
    };
    let LlmParts { engine, tokenizer, template } = llm.into_parts();
    let served = ServedModel {
        names,
        tokenizer,
        template,
        embedding,
        #[cfg(feature = "nats")]
        id,
    };
    handle.serve(engine, served)?;
    Ok(())
}

/// What clients may call the model: what they were promised, or its own name and the one on the
/// command line.
fn names(args: &ServeArgs, engine: &EngineArgs, llm: &Llm) -> Vec<String> {
    if !args.served_model_name.is_empty() {
        return args.served_model_name.clone();
    }
    let own = llm.spec().name.clone().filter(|name| !name.trim().is_empty());
    let mut names: Vec<String> = own.into_iter().chain([engine.model().to_owned()]).collect();
    names.dedup();
    names
}
