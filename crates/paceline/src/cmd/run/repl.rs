//! The chat: a line is a turn. The prefix cache keeps earlier turns from being computed again.

use std::io::{self, BufRead, IsTerminal, Read, Write};

use anyhow::{Context, Result};
use paceline::{GenerateParams, Input, Llm, Message};
use paceline_model::tokenizer::MAX_TEXT_BYTES;

use super::Style;
use super::answer::{Answer, answer};
use crate::cli::{Console, Interrupt, Outcome, Verbosity, is_broken_pipe, sentence};

const HELP: &str = "\
/clear   forget the conversation
/help    this list
/exit    leave (Ctrl-D does too)
Ctrl-C   cut an answer short";

/// A chat over standard input and output.
struct Repl<'a> {
    llm: &'a mut Llm,
    params: &'a GenerateParams,
    console: &'a Console,
    interrupt: &'a Interrupt,
    /// What the conversation starts with.
    fresh: Style,
    style: Style,
    total: Answer,
    has_failed: bool,
}

pub(super) fn repl(
    llm: &mut Llm,
    style: Style,
    params: &GenerateParams,
    console: &Console,
    interrupt: &Interrupt,
) -> Result<Outcome> {
    let is_terminal = io::stdin().is_terminal();
    if is_terminal {
        console.note("Type a message; /help lists the commands.");
    }
    let total = Answer::default();
    let fresh = style.clone();
    let mut repl = Repl { llm, params, console, interrupt, fresh, style, total, has_failed: false };
    while let Some(line) = repl.read_line(is_terminal)? {
        match line.trim() {
            "" => {}
            "/exit" => break,
            "/clear" => repl.style = repl.fresh.clone(),
            "/help" => console.note(HELP),
            command if command.starts_with('/') && is_terminal => {
                console.note(&format!("{command} is no command; /help lists them"));
            }
            text => repl.turn(text)?,
        }
    }
    if repl.total.n_generated > 0 {
        console.note(&repl.total.statistics(params));
    }
    // On a terminal the user has seen the errors and gone on.
    Ok(if repl.has_failed && !is_terminal { Outcome::Failed } else { Outcome::Done })
}

impl Repl<'_> {
    /// The next line; `None` at the end. While it waits, Ctrl-C leaves.
    fn read_line(&self, is_terminal: bool) -> Result<Option<String>> {
        if is_terminal {
            let mut out = io::stdout();
            out.write_all(b"> ")?;
            out.flush()?;
        }
        self.interrupt.make_final();
        let mut line = String::new();
        let mut input = io::stdin().lock().take(MAX_TEXT_BYTES as u64 + 1);
        let n_read = input.read_line(&mut line).context("cannot read standard input")?;
        self.interrupt.reset();
        if n_read == 0 && is_terminal {
            writeln!(io::stdout())?;
        }
        Ok((n_read > 0).then_some(line))
    }

    /// One question and its answer. An error costs this turn only.
    fn turn(&mut self, text: &str) -> Result<()> {
        let input = self.style.clone().first(text.to_owned());
        match answer(self.llm, &input, self.params, self.interrupt) {
            Ok(answer) => {
                self.total.add(&answer);
                if self.console.verbosity() >= Verbosity::Info {
                    self.console.note(&answer.statistics(self.params));
                }
                self.remember(input, answer.text);
            }
            Err(error) if is_broken_pipe(&error) => return Err(error),
            Err(error) => {
                self.has_failed = true;
                self.console.error(&sentence(&error));
            }
        }
        Ok(())
    }

    fn remember(&mut self, input: Input, answer: String) {
        if let Input::Chat(mut messages) = input {
            messages.push(Message::new("assistant", answer));
            self.style = Style::Chat(messages);
        }
    }
}
