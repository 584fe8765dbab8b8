//! Names for block contents: a keyed hash chain from the first block on.

use std::hash::Hasher;

use crate::ids::Token;
use crate::siphash::SipHash128;

/// The hash of a full block and all that comes before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockHash(u128);

/// First word of what is hashed: says what the rest means, so that no two kinds of input can read
/// the same.
const ROOT_BLOCK: u64 = u64::from_le_bytes(*b"kv-root1");
const CHILD_BLOCK: u64 = u64::from_le_bytes(*b"kv-next1");

pub(super) fn hash_block(
    key: [u64; 2],
    tenant: u64,
    parent: Option<BlockHash>,
    tokens: &[Token],
) -> BlockHash {
    let mut hash = SipHash128::new(key);
    hash.word(if parent.is_some() { CHILD_BLOCK } else { ROOT_BLOCK });
    hash.word(tenant);
    hash.word(tokens.len() as u64);
    if let Some(BlockHash(parent)) = parent {
        hash.word(parent as u64);
        hash.word((parent >> 64) as u64);
    }
    for pair in tokens.chunks(2) {
        let high = pair.get(1).copied().unwrap_or(0);
        hash.word(u64::from(high) << 32 | u64::from(pair[0]));
    }
    // Whole words only, and the token count is in the message: no tail is needed.
    BlockHash(hash.finish(0))
}

/// Table hasher for keys that are hashes already.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PassThrough(u64);

impl Hasher for PassThrough {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }

    fn write_u128(&mut self, hash: u128) {
        self.0 = hash as u64;
    }
}

#[cfg(test)]
impl BlockHash {
    /// A name of the test's choosing, to force collisions.
    pub(super) fn forged(value: u128) -> Self {
        Self(value)
    }
}
