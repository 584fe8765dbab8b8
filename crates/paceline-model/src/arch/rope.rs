//! Rope frequencies and the ways to stretch them beyond the trained context.
//!
//! Computed in `f64` and rounded once, so nothing here adds error of its own.

use std::f64::consts::PI;

/// How frequencies are changed.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Scaling {
    None,
    /// All divided by the factor.
    Linear {
        factor: f64,
    },
    /// Low ones divided by the factor, high ones kept, with a ramp between two wavelengths that
    /// are the original context over `low` and over `high`.
    Llama3 {
        factor: f64,
        low: f64,
        high: f64,
        original_context: f64,
    },
    /// Likewise with the ramp between two dimensions, those that turn `beta_fast` and `beta_slow`
    /// times over the original context.
    Yarn {
        factor: f64,
        original_context: f64,
        beta_fast: f64,
        beta_slow: f64,
        magnitude: f64,
    },
}

impl Scaling {
    /// The scaled frequencies of `dim` rotated dimensions.
    pub(super) fn inv_freq(&self, dim: usize, base: f64) -> Vec<f32> {
        let plain = (0..dim / 2).map(|i| base.powf(-2.0 * i as f64 / dim as f64));
        match *self {
            Self::None => plain.map(|f| f as f32).collect(),
            Self::Linear { factor } => plain.map(|f| (f / factor) as f32).collect(),
            Self::Llama3 {
                factor,
                low,
                high,
                original_context,
            } => plain
                .map(|f| {
                    let turns = original_context * f / (2.0 * PI);
                    let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                    blend(f, factor, kept) as f32
                })
                .collect(),
            Self::Yarn {
                factor,
                original_context,
                beta_fast,
                beta_slow,
                ..
            } => {
                // The dimension whose pair turns `turns` times over the original context.
                let dim_of = |turns: f64| {
                    dim as f64 * (original_context / (turns * 2.0 * PI)).ln() / (2.0 * base.ln())
                };
                let low = dim_of(beta_fast).floor().max(0.0);
                let high = dim_of(beta_slow).ceil().min(dim as f64 - 1.0);
                let width = (high - low).max(0.001);
                let kept = |i: usize| 1.0 - ((i as f64 - low) / width).clamp(0.0, 1.0);
                plain
                    .enumerate()
                    .map(|(i, f)| blend(f, factor, kept(i)) as f32)
                    .collect()
            }
        }
    }

    /// What sine and cosine are multiplied by.
    pub(super) fn magnitude(&self) -> f32 {
        match self {
            Self::Yarn { magnitude, .. } => *magnitude as f32,
            _ => 1.0,
        }
    }
}

/// The magnitude YaRN prescribes for a factor.
pub(super) fn yarn_magnitude(factor: f64, multiplier: f64) -> f64 {
    if factor <= 1.0 {
        1.0
    } else {
        0.1 * multiplier * factor.ln() + 1.0
    }
}

fn blend(frequency: f64, factor: f64, kept: f64) -> f64 {
    frequency / factor * (1.0 - kept) + frequency * kept
}
