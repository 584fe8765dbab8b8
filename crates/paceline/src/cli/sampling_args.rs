//! Flags that say how tokens are chosen.

use anyhow::Result;
use clap::Args;
use paceline::{GenerateParams, SamplingParams};
use paceline_model::stop::StopMatcher;

use super::UsageError;

/// Sampling. The defaults take the likeliest token each time.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// 0 takes the likeliest token each time; higher is more varied
    #[arg(short, long, default_value_t = 0.0, allow_negative_numbers = true)]
    temperature: f32,

    /// Choose among this many likeliest tokens; 0 is off
    #[arg(long, value_name = "N", default_value_t = 0)]
    top_k: u32,

    /// Choose among the likeliest tokens that make up this probability; 1 is off
    #[arg(long, value_name = "P", default_value_t = 1.0, allow_negative_numbers = true)]
    top_p: f32,

    /// Drop tokens less likely than this share of the likeliest; 0 is off
    #[arg(long, value_name = "P", default_value_t = 0.0, allow_negative_numbers = true)]
    min_p: f32,

    /// Choose among the most typical tokens that make up this probability; 1 is off
    #[arg(long, value_name = "P", default_value_t = 1.0, allow_negative_numbers = true)]
    typical_p: f32,

    /// Makes tokens seen in prompt or answer less likely; 1 is off
    #[arg(long, value_name = "X", default_value_t = 1.0, allow_negative_numbers = true)]
    repetition_penalty: f32,

    /// Subtracted from tokens seen in the answer
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    presence_penalty: f32,

    /// Subtracted from tokens for each time they were seen in the answer
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    frequency_penalty: f32,

    /// Same seed, same answer [default: random]
    #[arg(long)]
    seed: Option<u64>,

    /// Longest answer
    #[arg(long, value_name = "TOKENS", default_value_t = 256)]
    max_tokens: u32,

    /// End the answer at this text, which is left out (may be repeated)
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,

    /// Go on when the model says it is done
    #[arg(long)]
    ignore_eos: bool,
}

impl SamplingArgs {
    /// The parameters, within their ranges. Without a seed one is made up.
    pub(crate) fn params(&self) -> Result<GenerateParams> {
        let sampling = SamplingParams {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            typical_p: self.typical_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            ignore_eos: self.ignore_eos,
            max_tokens: self.max_tokens,
            seed: self.seed.unwrap_or_else(random_seed),
            ..SamplingParams::default()
        };
        // The flags name no tokens, so any vocabulary will do.
        sampling.validate(u32::MAX).map_err(|error| UsageError(error.to_string()))?;
        StopMatcher::new(&self.stop, false).map_err(|error| UsageError(error.to_string()))?;
        Ok(GenerateParams { sampling, stop: self.stop.clone(), ..GenerateParams::default() })
    }
}

/// A seed short enough to type again.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0u8) >> 32
}
