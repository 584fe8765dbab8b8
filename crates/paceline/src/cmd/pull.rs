//! `paceline pull`: a model's files onto this machine.

use std::io::{self, Write};

use anyhow::Result;
use paceline_model::pull::{self, Source};

use crate::cli::{Console, Outcome, PullArgs};

pub(crate) fn run(args: &PullArgs, console: &Console) -> Result<Outcome> {
    let source = Source::parse(&args.model)?;
    let options = args.source.pull_options(&source)?;
    let path = pull::resolve(&source, &console.download(), &options)?;
    writeln!(io::stdout(), "{}", path.display())?;
    Ok(Outcome::Done)
}
