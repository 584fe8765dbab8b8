//! The `paceline` command: flags, wiring, exit codes. What it runs is the library's.

mod cli;
mod cmd;

use std::process::ExitCode;

use clap::Parser;

use cli::{Cli, Console, Outcome, UsageError, is_broken_pipe, sentence};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // A closed pipe behind `--help` is no reason to complain.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(1));
        }
    };
    let console = Console::new(cli.verbosity(), cli.log_format());
    match cmd::dispatch(&cli, &console) {
        Ok(outcome) => outcome.into(),
        Err(error) if is_broken_pipe(&error) => Outcome::Done.into(),
        Err(error) => {
            console.error(&sentence(&error));
            let is_usage = error.downcast_ref::<UsageError>().is_some();
            ExitCode::from(if is_usage { 2 } else { 1 })
        }
    }
}
