//! The paged pool: which KV blocks are in use, by how many, and what the idle ones still hold.
//!
//! Owns block numbers, reference counts, the free list and the prefix cache. Knows nothing of
//! requests or queues, and never touches KV memory: that is the backend's.
//!
//! A full block whose tokens are known can be *registered*: it is then found again by its content.
//! When its last reference goes it joins the back of the free list, content intact, until it is
//! taken for something else. Blocks without known content join the front, so they are used first.
//! A table is released from its end, so a sequence's later blocks are evicted before its earlier
//! ones: a registered block's parent is registered for as long as the block is.

mod hash;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use crate::ids::{BlockId, Token};
use crate::list::{Links, List};

pub use hash::BlockHash;
use hash::{PassThrough, hash_block};

/// All blocks of a backend.
#[derive(Debug)]
pub struct BlockPool {
    block_size: u32,
    key: [u64; 2],
    blocks: Vec<Block>,
    /// Tokens of the registered blocks, `block_size` per block.
    tokens: Vec<Token>,
    links: Links,
    free: List,
    cache: HashMap<BlockHash, BlockId, BuildHasherDefault<PassThrough>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Block {
    ref_count: u32,
    entry: Option<Entry>,
}

/// What a registered block is known by; with its tokens, its full identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    hash: BlockHash,
    tenant: u64,
    parent: Option<BlockId>,
}

/// A full block's content, named: its tokens, after those of its parent, for one tenant.
#[derive(Clone, Copy, Debug)]
pub struct Content<'a> {
    pub hash: BlockHash,
    pub tenant: u64,
    pub parent: Option<BlockId>,
    pub tokens: &'a [Token],
}

/// What became of a block offered to the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registered {
    /// It is the cached copy now.
    Stored,
    /// This other block already holds the same content.
    Duplicate(BlockId),
    /// Other content has the same hash; the block stays out of the cache.
    Collision,
}

/// What a block is to a spectator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockUse {
    Free,
    /// Nobody's, and its content can be found again.
    Cached,
    /// Held by so many.
    Used(u32),
}

impl BlockPool {
    /// A pool of `n_blocks` free blocks. `key` keys the content hash.
    pub fn new(n_blocks: u32, block_size: u32, key: [u8; 16]) -> Self {
        let mut links = Links::new(n_blocks);
        let mut free = List::default();
        for block in 0..n_blocks {
            free.push_back(&mut links, block);
        }
        let (low, high) = key.split_at(8);
        let half = |bytes: &[u8]| bytes.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b));
        Self {
            block_size,
            key: [half(low), half(high)],
            blocks: vec![Block::default(); n_blocks as usize],
            tokens: vec![0; n_blocks as usize * block_size as usize],
            links,
            free,
            // Twice what can be in it, so that churn is settled in place and never grows the table.
            cache: HashMap::with_capacity_and_hasher(n_blocks as usize * 2, Default::default()),
        }
    }

    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    pub fn n_blocks(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// Blocks nobody refers to, cached content or not.
    pub fn n_free(&self) -> u32 {
        self.free.len()
    }

    pub fn n_used(&self) -> u32 {
        self.n_blocks() - self.n_free()
    }

    /// Blocks whose content can be found, in use or free.
    pub fn n_cached(&self) -> u32 {
        self.cache.len() as u32
    }

    pub fn ref_count(&self, block: BlockId) -> u32 {
        self.blocks[block.0 as usize].ref_count
    }

    /// Every block's use, by number.
    pub fn uses(&self) -> impl Iterator<Item = BlockUse> {
        self.blocks.iter().map(|block| match (block.ref_count, block.entry) {
            (0, None) => BlockUse::Free,
            (0, Some(_)) => BlockUse::Cached,
            (n, _) => BlockUse::Used(n),
        })
    }

    /// Blocks that hold `n_tokens` tokens.
    pub fn blocks_for(&self, n_tokens: usize) -> usize {
        n_tokens.div_ceil(self.block_size as usize)
    }

    /// Takes the free block that was idle longest; what it held is forgotten.
    pub fn take(&mut self) -> Option<BlockId> {
        let index = self.free.front()?;
        self.free.remove(&mut self.links, index);
        let block = &mut self.blocks[index as usize];
        block.ref_count = 1;
        if let Some(entry) = block.entry.take() {
            self.cache.remove(&entry.hash);
        }
        Some(BlockId(index))
    }

    /// Adds a reference to a block that is in use or cached.
    pub fn retain(&mut self, id: BlockId) {
        let block = &mut self.blocks[id.0 as usize];
        debug_assert!(block.ref_count > 0 || block.entry.is_some(), "{id:?} holds nothing");
        if block.ref_count == 0 {
            self.free.remove(&mut self.links, id.0);
        }
        block.ref_count += 1;
    }

    /// Gives one reference back.
    pub fn release(&mut self, id: BlockId) {
        let block = &mut self.blocks[id.0 as usize];
        debug_assert!(block.ref_count > 0, "{id:?} is free already");
        // In a release build a count that is wrong costs a leaked block, not a wrong answer.
        let Some(left) = block.ref_count.checked_sub(1) else {
            return;
        };
        block.ref_count = left;
        match (left, block.entry) {
            (0, Some(_)) => self.free.push_back(&mut self.links, id.0),
            (0, None) => self.free.push_front(&mut self.links, id.0),
            _ => {}
        }
    }

    /// Releases a sequence's table, last block first.
    pub fn release_table(&mut self, table: &mut Vec<BlockId>) {
        while let Some(block) = table.pop() {
            self.release(block);
        }
    }

    /// The hash of a full block's tokens, following those of the block hashed `parent`.
    pub fn hash(&self, tenant: u64, parent: Option<BlockHash>, tokens: &[Token]) -> BlockHash {
        hash_block(self.key, tenant, parent, tokens)
    }

    /// The block that holds exactly this content. A hash alone is not believed: tenant, parent and
    /// tokens are compared.
    pub fn find(&self, content: &Content<'_>) -> Option<BlockId> {
        let id = *self.cache.get(&content.hash)?;
        self.holds(id, content).then_some(id)
    }

    /// Offers a full, computed block to the cache. Its parent must be registered.
    pub fn register(&mut self, id: BlockId, content: &Content<'_>) -> Registered {
        if let Some(&other) = self.cache.get(&content.hash) {
            return match self.holds(other, content) {
                true if other == id => Registered::Stored,
                true => Registered::Duplicate(other),
                false => Registered::Collision,
            };
        }
        let Content { hash, tenant, parent, tokens } = *content;
        self.blocks[id.0 as usize].entry = Some(Entry { hash, tenant, parent });
        let range = self.token_range(id);
        self.tokens[range].copy_from_slice(tokens);
        self.cache.insert(hash, id);
        Registered::Stored
    }

    fn holds(&self, id: BlockId, content: &Content<'_>) -> bool {
        let Content { hash, tenant, parent, tokens } = *content;
        self.blocks[id.0 as usize].entry == Some(Entry { hash, tenant, parent })
            && self.tokens[self.token_range(id)] == *tokens
    }

    fn token_range(&self, id: BlockId) -> std::ops::Range<usize> {
        let size = self.block_size as usize;
        let start = id.0 as usize * size;
        start..start + size
    }

    /// Verifies every invariant of the pool; for tests.
    pub fn check(&self) -> Result<(), String> {
        let mut place_in_free = vec![None; self.blocks.len()];
        for (place, index) in self.free.iter(&self.links).enumerate() {
            if place_in_free[index as usize].replace(place).is_some() {
                return Err(format!("block {index} is twice in the free list"));
            }
        }
        let n_listed = place_in_free.iter().flatten().count();
        if n_listed != self.free.len() as usize {
            return Err(format!("{n_listed} blocks listed, {} counted", self.free.len()));
        }
        for (index, block) in self.blocks.iter().enumerate() {
            if (block.ref_count == 0) != place_in_free[index].is_some() {
                return Err(format!("block {index} has {} references", block.ref_count));
            }
            if let Some(entry) = block.entry {
                self.check_entry(index, entry, &place_in_free)?;
            }
        }
        let n_entries = self.blocks.iter().filter(|block| block.entry.is_some()).count();
        if n_entries != self.cache.len() {
            return Err(format!("{n_entries} registered, {} in the cache", self.cache.len()));
        }
        Ok(())
    }

    fn check_entry(
        &self,
        index: usize,
        entry: Entry,
        place_in_free: &[Option<usize>],
    ) -> Result<(), String> {
        if self.cache.get(&entry.hash) != Some(&BlockId(index as u32)) {
            return Err(format!("block {index} is registered but cannot be found"));
        }
        let Some(parent) = entry.parent else {
            return Ok(());
        };
        let Some(parent_entry) = self.blocks[parent.0 as usize].entry else {
            return Err(format!("block {index} outlived its parent {parent:?}"));
        };
        let tokens = &self.tokens[self.token_range(BlockId(index as u32))];
        if self.hash(entry.tenant, Some(parent_entry.hash), tokens) != entry.hash {
            return Err(format!("block {index} does not hash to its name"));
        }
        match (place_in_free[index], place_in_free[parent.0 as usize]) {
            (Some(own), Some(parents)) if parents < own => {
                Err(format!("block {index} would be evicted after its parent {parent:?}"))
            }
            (None, Some(_)) => Err(format!("block {index} is in use, its parent is not")),
            _ => Ok(()),
        }
    }
}
