//! What one step asks of a backend, as flat arrays.
//!
//! The engine owns one `Batch` and refills it every step; a backend reads it and keeps nothing.

use std::ops::Range;
use std::sync::Arc;

use crate::ids::{BlockId, Token};
use crate::request::{SamplingParams, TokenMask};

/// One step's work. Rows (`tokens`, `positions`, `slots`) of one sequence are adjacent and in
/// rising position; there is no padding anywhere.
#[derive(Debug, Default)]
pub struct Batch {
    /// The token each row feeds in.
    pub tokens: Vec<Token>,
    /// Its absolute position in its sequence.
    pub positions: Vec<u32>,
    /// Where its K and V go: `block * block_size + offset`.
    pub slots: Vec<u32>,
    /// The sequences the rows belong to, in row order.
    pub seqs: Vec<BatchSeq>,
    /// All block tables end to end; each sequence names its range.
    pub block_tables: Vec<BlockId>,
    /// Block contents to copy, in this order, before anything else in the step (copy-on-write).
    pub copies: Vec<BlockCopy>,
    /// What to read off which rows.
    pub samples: Vec<SampleRow>,
    /// Token histories of the sample rows that need one (penalties), end to end.
    pub history: Vec<Token>,
}

/// A sequence's part of a batch.
#[derive(Clone, Debug)]
pub struct BatchSeq {
    /// Its rows.
    pub rows: Range<u32>,
    /// Its block table, as a range of `block_tables`; covers every position up to its last row.
    pub blocks: Range<u32>,
}

/// Copy the first `n_tokens` slots of block `from` to block `to`, in every layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCopy {
    pub from: BlockId,
    pub to: BlockId,
    pub n_tokens: u32,
}

/// One reading of one row's logits or hidden state. Several may read the same row (`n > 1`).
#[derive(Clone, Debug)]
pub struct SampleRow {
    /// The row whose logits are read.
    pub row: u32,
    pub task: SampleTask,
    pub params: Arc<SamplingParams>,
    /// Seed of the sequence (already derived for its index among `n`).
    pub seed: u64,
    /// Position the sampled token will take: with `seed`, the key of the random number.
    pub position: u32,
    /// Tokens so far, as a range of `Batch::history`; empty when no penalty asks for it.
    pub history: Range<u32>,
    /// How many of `history` are the prompt's.
    pub n_prompt: u32,
    /// Tokens generated so far (for `min_tokens`).
    pub n_generated: u32,
    /// Tokens the grammar allows next; `None` allows all.
    pub mask: Option<Arc<TokenMask>>,
}

/// What a sample row is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleTask {
    /// Choose the next token.
    Next,
    /// Report the log-probability of a token that is already known (prompt logprobs).
    Score(Token),
    /// Report the row's hidden state after the model's last norm; its logits are not needed.
    Hidden,
}

impl Batch {
    /// Empties every array and keeps its memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.slots.clear();
        self.seqs.clear();
        self.block_tables.clear();
        self.copies.clear();
        self.samples.clear();
        self.history.clear();
    }

    /// Rows in this step.
    pub fn n_rows(&self) -> usize {
        self.tokens.len()
    }

    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// The tokens a sample row's penalties look at.
    pub fn history_of(&self, sample: &SampleRow) -> &[Token] {
        &self.history[sample.history.start as usize..sample.history.end as usize]
    }

    /// The block table of a sequence.
    pub fn blocks_of(&self, seq: &BatchSeq) -> &[BlockId] {
        &self.block_tables[seq.blocks.start as usize..seq.blocks.end as usize]
    }
}
