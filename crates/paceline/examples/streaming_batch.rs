//! Many answers at once, each piece of text as it comes.
//!
//! ```text
//! cargo run --release --example streaming_batch [MODEL]
//! ```
#![allow(clippy::print_stdout, reason = "an example shows its results")]

use paceline::{Error, GenerateParams, Llm, LlmOptions, Prompt};

fn main() -> Result<(), Error> {
    let model = std::env::args().nth(1).unwrap_or_else(|| "default".to_owned());
    let mut llm = Llm::load(&model, LlmOptions::default())?;
    let prompts = ["Count to ten.", "What is the sun?", "Say hello in French."].map(Prompt::user);

    let mut stream = llm.stream(&prompts, &GenerateParams::greedy(24))?;
    while let Some(piece) = stream.next() {
        let piece = piece?;
        let prompt = stream.prompt_index(piece.request).unwrap_or(0);
        match piece.finish {
            None => println!("prompt {prompt}: {:?}", piece.text),
            Some(finish) => println!("prompt {prompt}: {:?}, end: {}", piece.text, finish.name()),
        }
    }

    println!();
    for generation in stream.generations() {
        println!("prompt {}: {}", generation.index, generation.text());
    }
    Ok(())
}
