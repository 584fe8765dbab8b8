//! Whole-row reductions, so that a backend can lend its vectorised ones.

/// Reductions over a row of logits. The row is not empty, and sound for all but the first.
#[derive(Clone, Copy, Debug)]
pub struct RowOps {
    /// Whether there is neither NaN nor +inf; -inf may be.
    pub is_sound: fn(&[f32]) -> bool,
    /// Index of the largest element; the lowest index among equals.
    pub argmax: fn(&[f32]) -> usize,
    /// The largest element.
    pub max: fn(&[f32]) -> f32,
    /// Σ exp(x - max). -inf contributes 0.
    pub sum_exp: fn(&[f32], f32) -> f32,
}

impl RowOps {
    /// Plain loops: the oracle for the others.
    pub fn scalar() -> Self {
        Self { is_sound, argmax, max, sum_exp }
    }
}

fn is_sound(row: &[f32]) -> bool {
    row.iter().all(|&x| x < f32::INFINITY)
}

fn argmax(row: &[f32]) -> usize {
    let mut best = 0;
    for (index, &x) in row.iter().enumerate() {
        if x > row[best] {
            best = index;
        }
    }
    best
}

fn max(row: &[f32]) -> f32 {
    row.iter().copied().fold(f32::NEG_INFINITY, f32::max)
}

fn sum_exp(row: &[f32], max: f32) -> f32 {
    row.iter().map(|&x| (x - max).exp()).sum()
}
