//! Prompts of unequal length, each with its own parameters, in one batch without padding.
//!
//! A short answer leaves the batch as soon as it ends; nobody waits for the longest.
//!
//! ```text
//! cargo run --release --example variable_lengths [MODEL]
//! ```
#![allow(clippy::print_stdout, reason = "an example shows its results")]

use paceline::{Error, Finish, GenerateParams, Llm, LlmOptions, Prompt};

fn main() -> Result<(), Error> {
    let model = std::env::args().nth(1).unwrap_or_else(|| "default".to_owned());
    let mut llm = Llm::load(&model, LlmOptions::default())?;
    let long = "The river ran past the mill, the mill past the hill, and the hill ".repeat(20);
    let prompts = [
        Prompt::from("One, two, three,").with_params(GenerateParams::greedy(6)),
        Prompt::from(long).with_params(GenerateParams::greedy(24)),
        Prompt::user("Write a line about rain.").with_params(GenerateParams::seeded(40, 0.8, 7)),
        Prompt::from("Paris is the capital of").with_params(GenerateParams {
            stop: vec![".".to_owned()],
            ..GenerateParams::greedy(32)
        }),
    ];

    println!("{:>6} {:>6}  {:<8} text", "prompt", "tokens", "end");
    for generation in llm.generate_batch(&prompts, &GenerateParams::default())? {
        let end = generation.completions[0].finish.as_ref().map_or("", Finish::name);
        let usage = generation.usage;
        println!(
            "{:>6} {:>6}  {end:<8} {:?}",
            usage.prompt_tokens,
            usage.completion_tokens,
            generation.text()
        );
    }
    println!("padding rows: {}", llm.stats().n_padding_rows);
    Ok(())
}
