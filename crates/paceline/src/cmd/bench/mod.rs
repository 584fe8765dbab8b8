//! `paceline bench`: how fast, and how far from what the machine could do.
//!
//! Measures only: it decides nothing about how tokens are computed, and everything it runs goes
//! through the library's own doors.

mod ceiling;
mod ceilings;
mod curve;
mod figures;
mod group;
mod kernels;
mod ops;
mod plot;
mod scaling;
#[cfg(feature = "serve")]
mod serve;
mod strategies;
mod table;
mod throughput;
mod workload;

use anyhow::Result;
use std::io::{self, Write};

use serde::Serialize;

use crate::cli::{BenchArgs, BenchCommand, Console, Outcome};

pub(crate) fn run(args: &BenchArgs, console: &Console) -> Result<Outcome> {
    match &args.command {
        BenchCommand::Ceilings(args) => ceilings::run(args, console),
        BenchCommand::Kernels(args) => kernels::run(args, console),
        BenchCommand::Throughput(args) => throughput::run(args, console),
        BenchCommand::Scaling(args) => scaling::run(args, console),
        BenchCommand::Strategies(args) => strategies::run(args, console),
        #[cfg(feature = "serve")]
        BenchCommand::Serve(args) => serve::run(args, console),
    }
}

/// Prints rows as one JSON list.
fn print_json<T: Serialize>(rows: &[T]) -> Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, rows)?;
    writeln!(out)?;
    Ok(())
}

/// Prints text for people.
fn print(text: &str) -> Result<()> {
    Ok(io::stdout().lock().write_all(text.as_bytes())?)
}
