//! `paceline run`: one prompt answered as a stream, or a chat.

mod answer;
mod repl;

use std::io::{self, Read};

use anyhow::{Context, Result, bail};
use paceline::{GenerateParams, Input, Llm, Message};
use paceline_model::tokenizer::MAX_TEXT_BYTES;

use crate::cli::{Console, Interrupt, Outcome, RunArgs};
use answer::answer;

pub(crate) fn run(args: &RunArgs, console: &Console) -> Result<Outcome> {
    let params = args.sampling.params()?;
    let prompt = args.prompt.as_deref().map(read_prompt).transpose()?;
    let mut llm = args.engine.load(console)?;
    let style = Style::choose(args, &llm)?;
    let interrupt = Interrupt::install()?;
    match prompt {
        Some(prompt) => once(&mut llm, style.first(prompt), &params, console, &interrupt),
        None => repl::repl(&mut llm, style, &params, console, &interrupt),
    }
}

/// What becomes of the user's text.
#[derive(Clone, Debug)]
enum Style {
    Raw,
    /// The conversation so far.
    Chat(Vec<Message>),
}

impl Style {
    fn choose(args: &RunArgs, llm: &Llm) -> Result<Style> {
        match &args.system {
            Some(_) if !llm.has_chat_template() => {
                bail!("this model has no chat template, so it cannot be given --system")
            }
            Some(system) => Ok(Style::Chat(vec![Message::new("system", system)])),
            None if args.raw || !llm.has_chat_template() => Ok(Style::Raw),
            None => Ok(Style::Chat(Vec::new())),
        }
    }

    /// The input of a first turn.
    fn first(self, text: String) -> Input {
        match self {
            Style::Raw => Input::Text(text),
            Style::Chat(mut messages) => {
                messages.push(Message::new("user", text));
                Input::Chat(messages)
            }
        }
    }
}

/// The prompt itself, or standard input for `-`.
fn read_prompt(prompt: &str) -> Result<String> {
    if prompt != "-" {
        return Ok(prompt.to_owned());
    }
    let mut text = String::new();
    let limit = MAX_TEXT_BYTES as u64;
    io::stdin()
        .lock()
        .take(limit + 1)
        .read_to_string(&mut text)
        .context("cannot read the prompt from standard input")?;
    if text.len() as u64 > limit {
        bail!("the prompt on standard input is longer than {} MiB", limit >> 20);
    }
    Ok(text)
}

fn once(
    llm: &mut Llm,
    input: Input,
    params: &GenerateParams,
    console: &Console,
    interrupt: &Interrupt,
) -> Result<Outcome> {
    let answer = answer(llm, &input, params, interrupt)?;
    console.note(&answer.statistics(params));
    Ok(if answer.is_interrupted { Outcome::Interrupted } else { Outcome::Done })
}
