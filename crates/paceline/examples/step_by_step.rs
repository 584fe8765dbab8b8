//! Manual control: step a batch one token at a time, watch its sequences, add and remove some in
//! mid-flight.
//!
//! ```text
//! cargo run --release --example step_by_step [MODEL]
//! ```
#![allow(clippy::print_stdout, reason = "an example shows its results")]

use paceline::{Error, GenerateParams, Llm, LlmOptions, RequestId, Session};

fn main() -> Result<(), Error> {
    let model = std::env::args().nth(1).unwrap_or_else(|| "default".to_owned());
    // Where a text repeats itself a step may bring several of its tokens; here it shall not.
    let options = LlmOptions { num_speculative_tokens: 0, ..LlmOptions::default() };
    let mut llm = Llm::load(&model, options)?;
    let params = GenerateParams::greedy(8);
    let mut session = llm.session();
    let mut requests =
        vec![session.add("The sun is", &params)?, session.add("Water boils at", &params)?];

    let mut pieces = Vec::new();
    for step in 1.. {
        if step == 4 {
            println!("-- a third joins, the first leaves");
            requests.push(session.add("A paceline is", &params)?);
            session.remove(requests[0]);
        }
        if !session.step(&mut pieces) {
            break;
        }
        println!("step {step}");
        for piece in pieces.drain(..) {
            show(&session, piece.request, &piece.text);
        }
    }
    Ok(())
}

fn show(session: &Session<'_>, request: RequestId, text: &str) {
    let state = match session.state(request, 0) {
        Some(view) => format!("{:?}, position {}", view.state, view.position),
        None => "ended".to_owned(),
    };
    println!("  request {}: {text:?} ({state})", request.0);
}
