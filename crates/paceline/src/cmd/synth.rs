//! `paceline synth`: a model file of true size with random weights, to measure without a download.

use std::io::{self, Write};

use anyhow::{Result, ensure};
use paceline_model::pull::Progress;
use paceline_model::synth::{self, Written};

use crate::cli::{Console, Interrupt, Outcome, SynthArgs, UsageError};

pub(crate) fn run(args: &SynthArgs, console: &Console) -> Result<Outcome> {
    let spec = args.spec()?;
    let path = args.output(&spec);
    ensure!(
        args.force || !path.exists(),
        UsageError(format!("{} exists already; --force replaces it", path.display()))
    );
    let interrupt = Interrupt::install()?;
    let bar = console.transfer("writing");
    let mut is_started = false;
    let mut watch = |Written { bytes, total }| {
        if !std::mem::replace(&mut is_started, true) {
            bar.start(&path.display().to_string(), Some(total));
        }
        bar.at(bytes);
        match interrupt.is_set() {
            // Ends the writing; what was written is removed. Not `ErrorKind::Interrupted`, after
            // which writers try again, for ever.
            true => Err(io::Error::other("interrupted")),
            false => Ok(()),
        }
    };
    let result = synth::write_gguf_watched(&spec, &path, &mut watch);
    bar.finish();
    if interrupt.is_set() {
        return Ok(Outcome::Interrupted);
    }
    result?;
    writeln!(io::stdout(), "{}", path.display())?;
    Ok(Outcome::Done)
}
