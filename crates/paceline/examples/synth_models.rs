//! Writes the tiny synthetic model of each architecture as a Hugging Face directory, so that
//! another implementation can be asked for reference logits
//! (`testdata/make_architecture_golden.py`).
//!
//! ```text
//! cargo run --release --example synth_models -- DIR
//! ```

use std::error::Error;
use std::path::PathBuf;

use paceline_model::synth::{SynthSpec, write_hf};

fn main() -> Result<(), Box<dyn Error>> {
    let dir = std::env::args_os().nth(1).ok_or("name a directory to write to")?;
    for arch in SynthSpec::architectures() {
        write_hf(&SynthSpec::tiny(arch), &PathBuf::from(&dir).join(arch))?;
    }
    Ok(())
}
