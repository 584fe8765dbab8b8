//! Seeded random rows of any type, for tests and synthetic models.

use half::f16;

use super::{TensorType, encode};

/// A small counter-based generator (SplitMix64): the same seed gives the same numbers everywhere.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
}

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`. The bias of the remainder does not matter to tests.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next_u64() % bound as u64) as usize
    }

    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f32 {
        (self.next_u64() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// Roughly normal, mean 0 and deviation 1: the sum of twelve uniforms, which needs nothing
    /// but additions and so is the same on every machine.
    pub fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.unit()).sum::<f32>() - 6.0
    }
}

/// Appends a row of `n_cols` random values with mean near 0 and a deviation of about `std` to
/// `out`. Float types get normal values; the others random codes under scales that spread them as
/// far, which is much faster than rounding a billion normal values.
///
/// # Panics
/// When `n_cols` is not whole blocks.
pub fn random_row(ty: TensorType, rng: &mut Rng, std: f32, n_cols: usize, out: &mut Vec<u8>) {
    assert!(ty.row_bytes(n_cols).is_some(), "{n_cols} values of {ty}");
    if ty.is_float() {
        let values: Vec<f32> = (0..n_cols).map(|_| rng.normal() * std).collect();
        encode::quantize_row(ty, &values, out);
        return;
    }
    for _ in 0..n_cols / ty.block_len() {
        random_block(ty, rng, std, out);
    }
}

/// A block of random bytes whose scales are then set. Group scales vary, so `step` is divided by
/// their typical size; mins sit half a code range below zero.
fn random_block(ty: TensorType, rng: &mut Rng, std: f32, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend((0..ty.block_bytes()).map(|_| rng.next_u64() as u8));
    let block = &mut out[start..];
    let codes = f32::from(ty.max_code());
    // Codes are uniform, so their deviation is their range over the square root of twelve.
    let step = std * 12f32.sqrt() / (codes + 1.0);
    let half_range = step * codes / 2.0;
    // Codes without a min reach one step further down than up; scales of either sign, which real
    // files have too, bring the mean back to zero.
    let signed_step = if rng.below(2) == 0 { step } else { -step };
    match ty {
        TensorType::Q4_0 | TensorType::Q5_0 | TensorType::Q8_0 => put_f16(block, 0, signed_step),
        TensorType::Q4_1 | TensorType::Q5_1 => {
            put_f16(block, 0, step);
            put_f16(block, 2, -half_range);
        }
        TensorType::Q2K => {
            // Scale and min of each group: 8 or 9.
            block[..16].iter_mut().for_each(|s| *s = 0x88 | *s & 0x11);
            put_f16(block, 80, step / 8.5);
            put_f16(block, 82, half_range / 8.5);
        }
        TensorType::Q4K | TensorType::Q5K => {
            // All sixteen six-bit numbers 32 to 39: the set bit of the late ones lies on top of
            // the early ones.
            block[4..12].iter_mut().for_each(|s| *s = 0xa0 | *s & 7);
            block[12..16].iter_mut().for_each(|s| *s &= 0x77);
            put_f16(block, 0, step / 35.5);
            put_f16(block, 2, half_range / 35.5);
        }
        TensorType::Q3K => {
            // Upper bits all set: scales 48 to 63, that is 16 to 31 above their zero of 32.
            block[104..108].fill(0xff);
            put_f16(block, 108, signed_step / 23.5);
        }
        TensorType::Q6K => {
            // Scales 32 to 63.
            block[192..208].iter_mut().for_each(|s| *s = 32 | *s & 31);
            put_f16(block, 208, signed_step / 47.5);
        }
        TensorType::F32 | TensorType::F16 | TensorType::BF16 => unreachable!("{ty} is a float"),
    }
}

fn put_f16(block: &mut [u8], at: usize, value: f32) {
    block[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
}
