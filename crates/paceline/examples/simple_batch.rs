//! Several prompts in, all answers out, computed side by side.
//!
//! ```text
//! cargo run --release --example simple_batch [MODEL]
//! ```
#![allow(clippy::print_stdout, reason = "an example shows its results")]

use paceline::{Error, GenerateParams, Llm, LlmOptions, Prompt};

fn main() -> Result<(), Error> {
    let model = std::env::args().nth(1).unwrap_or_else(|| "default".to_owned());
    let mut llm = Llm::load(&model, LlmOptions::default())?;
    let questions = ["What is gravity?", "Name three colours.", "Who wrote Hamlet?"];
    // In the model's chat template; a plain `&str` would be continued as it is.
    let prompts = questions.map(Prompt::user);

    for generation in llm.generate_batch(&prompts, &GenerateParams::greedy(48))? {
        println!("{}\n  {}\n", questions[generation.index], generation.text());
    }
    let stats = llm.stats();
    println!("{} tokens in {} steps", stats.n_generated_tokens, stats.n_steps);
    Ok(())
}
