//! Random numbers without state: a function of (seed, position).
//!
//! No generator is carried along, so batching, preemption and drafts cannot shift the stream.

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// A 64-bit permutation whose every output bit depends on every input bit.
fn mix(mut x: u64) -> u64 {
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// A number in `[0, 1)` with 53 random bits.
pub fn uniform(seed: u64, position: u32) -> f64 {
    // The seed is mixed before the position comes in: neighbouring seeds at neighbouring
    // positions must not meet.
    let keyed =
        mix(seed.wrapping_add(GOLDEN)).wrapping_add(u64::from(position).wrapping_mul(GOLDEN));
    let bits = mix(mix(keyed) ^ seed.rotate_left(32));
    (bits >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

/// Seed of sequence `index` among a request's `n`; the first keeps the request's own.
pub fn derive_seed(seed: u64, index: u32) -> u64 {
    if index == 0 {
        return seed;
    }
    mix(mix(seed ^ GOLDEN).wrapping_add(u64::from(index).wrapping_mul(GOLDEN)))
}
