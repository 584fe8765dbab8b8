//! One sequence and the request it belongs to.
//!
//! A sequence has tokens known and tokens computed; the gap between the two is the work left,
//! whatever made it: a fresh prompt, a chunk of one, a preemption, a new token.

use std::ops::Range;
use std::sync::Arc;

use crate::blocks::BlockHash;
use crate::constraint::Guide;
use crate::ids::{BlockId, RequestId, Token};
use crate::request::{Priority, SamplingParams};
use crate::scheduler::LaneSlot;
use crate::slab::Slot;
use crate::speculate::{Luck, Match};

pub(crate) type SeqSlot = Slot<Sequence>;
pub(crate) type RequestSlot = Slot<RequestState>;

/// Where a sequence is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequenceState {
    /// In a queue, holding no blocks.
    Waiting,
    /// Taking part in steps.
    Running,
}

/// What can be seen of a live sequence from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceView {
    /// Tokens known: prompt and generated.
    pub position: u32,
    /// Tokens whose KV is computed.
    pub n_computed: u32,
    pub n_generated: u32,
    pub state: SequenceState,
    pub n_preemptions: u32,
}

/// One of a request's sequences, or, until its prompt is computed, all of them.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) request: RequestSlot,
    /// Which of the request's `n`; while `is_fork_pending`, the lowest still live.
    pub(crate) index: u32,
    pub(crate) state: SequenceState,
    /// Stands for every live index of its request: they part when the prompt is computed.
    pub(crate) is_fork_pending: bool,
    /// Tokens known.
    pub(crate) tokens: Vec<Token>,
    pub(crate) n_prompt: usize,
    /// How many of `tokens` have their KV in `blocks`.
    pub(crate) n_computed: usize,
    /// Most tokens it can come to know.
    pub(crate) max_len: usize,
    pub(crate) blocks: Vec<BlockId>,
    /// Chain hashes of the leading full blocks of `tokens`, as far as they were needed.
    pub(crate) hashes: Vec<BlockHash>,
    /// Leading blocks that are in the prefix cache.
    pub(crate) n_registered: usize,
    /// False once a hash collision has cut its chain.
    pub(crate) is_cacheable: bool,
    /// Prompt rows that were read: log-probabilities reported, or hidden states added to `pooled`.
    pub(crate) n_scored: usize,
    /// The sum of the hidden states read so far; empty before the first.
    pub(crate) pooled: Vec<f64>,
    pub(crate) n_preemptions: u32,
    /// Has run before.
    pub(crate) was_admitted: bool,
    /// What its next tokens must keep to; has taken every token generated so far.
    pub(crate) guide: Option<Guide>,
    /// How often guesses at its tokens are right.
    pub(crate) luck: Luck,
    /// Where the end of its tokens stood before, as far as it was looked for.
    pub(crate) found: Option<Match>,
    /// Its part of the step's guesses.
    pub(crate) guesses: Range<usize>,
}

impl Sequence {
    pub(crate) fn new(request: RequestSlot, prompt: Vec<Token>, max_len: usize) -> Self {
        Self {
            request,
            index: 0,
            state: SequenceState::Waiting,
            is_fork_pending: true,
            n_prompt: prompt.len(),
            tokens: prompt,
            n_computed: 0,
            max_len,
            blocks: Vec::new(),
            hashes: Vec::new(),
            n_registered: 0,
            is_cacheable: true,
            n_scored: 0,
            pooled: Vec::new(),
            n_preemptions: 0,
            was_admitted: false,
            guide: None,
            luck: Luck::default(),
            found: None,
            guesses: 0..0,
        }
    }

    /// A sibling that shares what is computed so far. The caller adds the block references.
    pub(crate) fn fork(&self, index: u32) -> Self {
        let mut sibling = Self {
            index,
            is_fork_pending: false,
            tokens: Vec::with_capacity(self.tokens.capacity()),
            blocks: Vec::with_capacity(self.blocks.capacity()),
            hashes: Vec::with_capacity(self.hashes.capacity()),
            pooled: Vec::new(),
            n_preemptions: 0,
            guide: self.guide.clone(),
            guesses: 0..0,
            ..*self
        };
        sibling.tokens.extend_from_slice(&self.tokens);
        sibling.blocks.extend_from_slice(&self.blocks);
        sibling.hashes.extend_from_slice(&self.hashes);
        sibling
    }

    /// Makes room for all it can become, so that steps need not allocate.
    pub(crate) fn reserve(&mut self, block_size: usize) {
        let max_blocks = self.max_len.div_ceil(block_size);
        self.tokens.reserve_exact(self.max_len - self.tokens.len());
        self.blocks.reserve_exact(max_blocks - self.blocks.len());
        self.hashes.reserve_exact(max_blocks - self.hashes.len());
    }

    /// Tokens still to compute.
    pub(crate) fn gap(&self) -> usize {
        self.tokens.len() - self.n_computed
    }

    pub(crate) fn n_generated(&self) -> usize {
        self.tokens.len() - self.n_prompt
    }

    /// Adds a token, and learns from it how good guesses at it were.
    pub(crate) fn push(&mut self, token: Token) {
        let found = self.found.take();
        self.found = found.and_then(|found| found.meet(&self.tokens, token, &mut self.luck));
        self.tokens.push(token);
    }

    /// Adds the hidden state of the next row to be read.
    pub(crate) fn pool(&mut self, hidden: &[f32]) {
        self.pooled.resize(hidden.len(), 0.0);
        for (sum, &value) in self.pooled.iter_mut().zip(hidden) {
            *sum += f64::from(value);
        }
        self.n_scored += 1;
    }

    /// The mean of the hidden states read.
    pub(crate) fn pooled_mean(&self) -> Vec<f32> {
        let n = self.n_scored.max(1) as f64;
        self.pooled.iter().map(|sum| (sum / n) as f32).collect()
    }

    /// Blocks it holds at its longest. The last token is never computed.
    pub(crate) fn max_blocks(&self, block_size: usize) -> usize {
        (self.max_len - 1).div_ceil(block_size)
    }

    pub(crate) fn view(&self) -> SequenceView {
        SequenceView {
            position: self.tokens.len() as u32,
            n_computed: self.n_computed as u32,
            n_generated: self.n_generated() as u32,
            state: self.state,
            n_preemptions: self.n_preemptions,
        }
    }
}

/// What a request's sequences have in common.
#[derive(Debug)]
pub(crate) struct RequestState {
    pub(crate) id: RequestId,
    pub(crate) params: Arc<SamplingParams>,
    pub(crate) priority: Priority,
    pub(crate) tenant: u64,
    pub(crate) lane: LaneSlot,
    pub(crate) deadline_ns: Option<u64>,
    pub(crate) arrival_ns: u64,
    /// One bit per index that has not finished. `n` is at most 128.
    pub(crate) live: u128,
    /// The sequence that stands for each index.
    pub(crate) slots: Vec<SeqSlot>,
    /// Belongs to the group that runs now (window and static batching).
    pub(crate) is_in_group: bool,
}

impl RequestState {
    pub(crate) fn is_live(&self, index: u32) -> bool {
        index < u128::BITS && self.live >> index & 1 == 1
    }
}

/// The numbers of the set bits, lowest first.
pub(crate) fn set_bits(mut bits: u128) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let index = bits.trailing_zeros();
        (bits != 0).then(|| {
            bits &= bits - 1;
            index
        })
    })
}
