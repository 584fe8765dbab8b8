//! What the requests ask: prompts and lengths, the same ones for the same seed.

use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use paceline_cpu::quant::Rng;
use serde::Deserialize;

use crate::cli::{DataArgs, Dataset};

/// One request's prompt and length.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Asked {
    pub(super) prompt: Prompt,
    /// Tokens of the prompt, as far as known.
    pub(super) n_input: u32,
    pub(super) output_len: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

/// What random prompts are made of.
#[derive(Clone, Debug)]
pub(super) struct Vocabulary {
    /// Tokens of plain words, if the server takes tokens.
    pub(super) tokens: Option<Vec<u32>>,
    /// How many tokens a word takes.
    pub(super) tokens_per_word: f64,
}

const WORDS: [&str; 64] = [
    "river", "stone", "light", "garden", "window", "summer", "paper", "music", "table", "water",
    "mountain", "yellow", "bread", "winter", "letter", "morning", "horse", "silver", "island",
    "market", "bridge", "forest", "number", "cloud", "story", "engine", "ladder", "coffee",
    "street", "doctor", "orange", "camera", "valley", "button", "kitchen", "planet", "shadow",
    "village", "copper", "dinner", "feather", "castle", "mirror", "pencil", "rabbit", "ocean",
    "ticket", "violin", "basket", "candle", "desert", "farmer", "guitar", "hammer", "jacket",
    "lemon", "museum", "needle", "office", "pepper", "rocket", "singer", "tunnel", "wagon",
];

/// So many words at random.
pub(super) fn words(n: usize, rng: &mut Rng) -> String {
    let mut text = String::new();
    for i in 0..n {
        if i > 0 {
            text.push(' ');
        }
        text.push_str(WORDS[rng.below(WORDS.len())]);
    }
    text
}

/// All requests of the `nth` run, which are others than those of the runs before, unless a file
/// says what to ask.
pub(super) fn requests(args: &DataArgs, nth: usize, vocabulary: &Vocabulary) -> Result<Vec<Asked>> {
    let n_prefixes = match args.dataset_name {
        Dataset::Random => 0,
        Dataset::SharedPrefix => args.num_prefixes as usize,
        Dataset::File => return read(args),
    };
    let mut rng = Rng::new(args.seed.wrapping_add(nth as u64));
    let prefixes: Vec<Prompt> =
        (0..n_prefixes).map(|_| vocabulary.prompt(args.prefix_len, &mut rng)).collect();
    let request = |_| {
        let n_input = length(args.input_len, args.range_ratio, &mut rng);
        let output_len = length(args.output_len, args.range_ratio, &mut rng);
        let own = vocabulary.prompt(n_input, &mut rng);
        match prefixes.is_empty() {
            true => Asked { prompt: own, n_input, output_len },
            false => {
                let prefix = prefixes[rng.below(prefixes.len())].clone();
                let n_input = n_input + args.prefix_len;
                Asked { prompt: prefix.followed_by(own), n_input, output_len }
            }
        }
    };
    Ok((0..args.num_prompts).map(request).collect())
}

/// Even between `(1 - ratio) * mean` and `(1 + ratio) * mean`, and at least 1.
fn length(mean: u32, ratio: f64, rng: &mut Rng) -> u32 {
    let mean = f64::from(mean);
    let (least, most) = ((mean * (1.0 - ratio)).floor(), (mean * (1.0 + ratio)).ceil());
    if ratio == 0.0 {
        return mean as u32;
    }
    ((least as usize + rng.below((most - least) as usize + 1)) as u32).max(1)
}

impl Vocabulary {
    fn prompt(&self, n_tokens: u32, rng: &mut Rng) -> Prompt {
        match &self.tokens {
            Some(tokens) => {
                Prompt::Tokens((0..n_tokens).map(|_| tokens[rng.below(tokens.len())]).collect())
            }
            None => {
                let n_words = (f64::from(n_tokens) / self.tokens_per_word).round().max(1.0);
                Prompt::Text(words(n_words as usize, rng))
            }
        }
    }
}

impl Prompt {
    fn followed_by(self, other: Prompt) -> Prompt {
        match (self, other) {
            (Prompt::Tokens(mut tokens), Prompt::Tokens(more)) => {
                tokens.extend(more);
                Prompt::Tokens(tokens)
            }
            (Prompt::Text(text), Prompt::Text(more)) => Prompt::Text(format!("{text} {more}")),
            // One vocabulary makes prompts of one kind.
            (_, other) => other,
        }
    }
}

/// A line of a file of prompts.
#[derive(Deserialize)]
struct Line {
    prompt: String,
    output_len: Option<u32>,
    max_tokens: Option<u32>,
}

/// The file's prompts in their order, from the start again if there are too few.
fn read(args: &DataArgs) -> Result<Vec<Asked>> {
    let Some(path) = &args.dataset_path else { bail!("--dataset-path is missing") };
    let lines = read_lines(path, args.num_prompts as usize)?;
    ensure!(!lines.is_empty(), "{} has no prompts", path.display());
    let asked = |line: &Line| Asked {
        n_input: line.prompt.split_whitespace().count() as u32,
        prompt: Prompt::Text(line.prompt.clone()),
        output_len: line.output_len.or(line.max_tokens).unwrap_or(args.output_len),
    };
    Ok(lines.iter().cycle().take(args.num_prompts as usize).map(asked).collect())
}

fn read_lines(path: &Path, most: usize) -> Result<Vec<Line>> {
    let shown = path.display();
    let file = std::fs::File::open(path).with_context(|| format!("cannot read {shown}"))?;
    let mut found = Vec::new();
    for (i, line) in BufReader::new(file).lines().enumerate() {
        let line = line.with_context(|| format!("cannot read {shown}"))?;
        if line.trim().is_empty() {
            continue;
        }
        let parsed = serde_json::from_str(&line).with_context(|| format!("{shown}:{}", i + 1))?;
        found.push(parsed);
        if found.len() == most {
            break;
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_stay_in_their_range_and_reach_its_ends() {
        let mut rng = Rng::new(1);
        assert_eq!(length(7, 0.0, &mut rng), 7);
        let drawn: Vec<u32> = (0..2000).map(|_| length(10, 0.5, &mut rng)).collect();
        assert_eq!((drawn.iter().min(), drawn.iter().max()), (Some(&5), Some(&15)));
        assert!((0..500).all(|_| length(1, 0.99, &mut rng) >= 1));
    }

    #[test]
    fn prompts_have_the_tokens_asked_for() {
        let mut rng = Rng::new(1);
        let exact = Vocabulary { tokens: Some(vec![5, 6, 7]), tokens_per_word: 1.0 };
        let Prompt::Tokens(tokens) = exact.prompt(40, &mut rng) else { panic!("tokens") };
        assert!(tokens.len() == 40 && tokens.iter().all(|token| (5..=7).contains(token)));
        let rough = Vocabulary { tokens: None, tokens_per_word: 2.0 };
        let Prompt::Text(text) = rough.prompt(40, &mut rng) else { panic!("text") };
        assert_eq!(text.split(' ').count(), 20);
    }
}
