//! Requests that arrive at random, as traffic does; the same ones for the same seed.

use std::time::Duration;

use anyhow::{Result, ensure};
use paceline::Token;
use paceline_cpu::quant::Rng;

use crate::cli::{Span, StrategiesArgs, UsageError};

/// A request and when it comes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Arrival {
    pub(super) at: Duration,
    pub(super) prompt: Vec<Token>,
    pub(super) n_new: u32,
}

/// Poisson arrivals: independent, exponential gaps. Lengths are even on a logarithmic scale.
pub(super) fn arrivals(args: &StrategiesArgs, n_vocab: usize) -> Result<Vec<Arrival>> {
    let rate = args.rate;
    ensure!(
        rate.is_finite() && (1e-3..=1e6).contains(&rate),
        UsageError(format!("--rate is {rate}, but must be from 0.001 to 1000000"))
    );
    let mut rng = Rng::new(args.seed);
    let mut at = 0.0;
    let arrival = |_| {
        // One less the uniform number, which may be 0 but never 1.
        at -= f64::from(1.0 - rng.unit()).ln() / rate;
        let n_prompt = length(args.prompt_tokens, &mut rng);
        let n_new = length(args.new_tokens, &mut rng);
        let prompt = (0..n_prompt).map(|_| rng.below(n_vocab) as Token).collect();
        Arrival { at: Duration::from_secs_f64(at), prompt, n_new }
    };
    Ok((0..args.requests).map(arrival).collect())
}

fn length(span: Span, rng: &mut Rng) -> u32 {
    // Half a token further on both sides, so that the ends are as likely as their neighbours.
    let (low, high) = (f64::from(span.least) - 0.5, f64::from(span.most) + 0.5);
    let drawn = low * (high / low).powf(f64::from(rng.unit()));
    (drawn.round() as u32).clamp(span.least, span.most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_fill_their_span_evenly_on_a_logarithmic_scale() {
        let span = Span { least: 4, most: 256 };
        let mut rng = Rng::new(3);
        let lengths: Vec<u32> = (0..4000).map(|_| length(span, &mut rng)).collect();
        assert!(lengths.iter().all(|n| (4..=256).contains(n)));
        // The middle of the scale is the geometric mean.
        let n_short = lengths.iter().filter(|&&n| n < 32).count();
        assert!((1800..2200).contains(&n_short), "{n_short}");
        assert_eq!(length(Span { least: 7, most: 7 }, &mut rng), 7);
    }
}
