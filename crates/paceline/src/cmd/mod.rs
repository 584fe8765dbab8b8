//! The commands, one module each.

mod batch;
mod bench;
#[cfg(feature = "serve")]
mod health;
mod inspect;
mod pull;
mod run;
#[cfg(feature = "serve")]
mod serve;
mod synth;
#[cfg(feature = "nats")]
mod worker;

use anyhow::Result;

use crate::cli::{Cli, Command, Console, Outcome};

pub(crate) fn dispatch(cli: &Cli, console: &Console) -> Result<Outcome> {
    match &cli.command {
        Command::Run(args) => run::run(args, console),
        Command::Batch(args) => batch::run(args, console),
        Command::Bench(args) => bench::run(args, console),
        #[cfg(feature = "serve")]
        Command::Serve(args) => serve::run(args, console),
        #[cfg(feature = "serve")]
        Command::Health(args) => health::run(args),
        #[cfg(feature = "nats")]
        Command::Worker(args) => worker::run(args, console),
        Command::Pull(args) => pull::run(args, console),
        Command::Inspect(args) => inspect::run(args, console),
        Command::Synth(args) => synth::run(args, console),
    }
}
