//! Writes one sequence's part of a batch.

use std::ops::Range;

use super::Scheduler;
use crate::batch::{Batch, BatchSeq, SampleRow, SampleTask};
use crate::constraint::Guide;
use crate::request::Pooling;
use crate::sampler::derive_seed;
use crate::sequence::{RequestState, SeqSlot, Sequence, set_bits};

/// What `apply` must know of one sequence's rows.
#[derive(Clone, Debug)]
pub(super) struct Planned {
    pub(super) slot: SeqSlot,
    pub(super) n_rows: usize,
    /// Its sample rows: first the scores (or hidden states), then one per index that chooses a
    /// token.
    pub(super) samples: Range<usize>,
    pub(super) n_scores: usize,
    /// The indices that choose a token.
    pub(super) choosing: u128,
}

impl Scheduler {
    /// Adds the next `n_rows` of a sequence to the batch. Its table must cover them.
    pub(super) fn push_rows(&mut self, slot: SeqSlot, n_rows: usize) {
        let seq = &mut self.seqs[slot];
        let request = &self.requests[seq.request];
        let batch = &mut self.batch;
        let first_row = batch.n_rows() as u32;
        let first_sample = batch.samples.len();
        push_tokens(batch, seq, n_rows, self.pool.block_size() as usize);
        let n_scores = match request.params.pooling {
            Some(pooling) => push_hidden(batch, seq, request, pooling, n_rows),
            None => push_scores(batch, seq, request, first_row, n_rows),
        };
        let is_last = n_rows == seq.gap() && request.params.pooling.is_none();
        let choosing = match (is_last, seq.is_fork_pending) {
            (false, _) => 0,
            (true, true) => request.live,
            (true, false) => 1 << seq.index,
        };
        if is_last {
            push_choices(batch, seq, request, choosing);
        }
        let is_stream = seq.gap() == 1 && seq.n_generated() > 0;
        self.mix.add(request.priority, is_stream, n_rows as u32);
        let samples = first_sample..batch.samples.len();
        self.waiting.charge(request.lane, n_rows);
        self.plan.push(Planned { slot, n_rows, samples, n_scores, choosing });
    }
}

fn push_tokens(batch: &mut Batch, seq: &Sequence, n_rows: usize, block_size: usize) {
    let first_row = batch.n_rows() as u32;
    let range = seq.n_computed..seq.n_computed + n_rows;
    batch.tokens.extend_from_slice(&seq.tokens[range.clone()]);
    for position in range.clone() {
        let block = seq.blocks[position / block_size].0 as usize;
        batch.positions.push(position as u32);
        batch.slots.push((block * block_size + position % block_size) as u32);
    }
    let first_block = batch.block_tables.len() as u32;
    batch.block_tables.extend_from_slice(&seq.blocks[..range.end.div_ceil(block_size)]);
    batch.seqs.push(BatchSeq {
        rows: first_row..batch.n_rows() as u32,
        blocks: first_block..batch.block_tables.len() as u32,
    });
}

/// A score per prompt row whose next token is known and not yet reported.
fn push_scores(
    batch: &mut Batch,
    seq: &Sequence,
    request: &RequestState,
    first_row: u32,
    n_rows: usize,
) -> usize {
    if request.params.prompt_logprobs.is_none() || !seq.is_fork_pending {
        return 0;
    }
    let start = seq.n_computed.max(seq.n_scored);
    let end = (seq.n_computed + n_rows).min(seq.n_prompt - 1);
    for position in start..end {
        batch.samples.push(SampleRow {
            row: first_row + (position - seq.n_computed) as u32,
            task: SampleTask::Score(seq.tokens[position + 1]),
            params: request.params.clone(),
            seed: request.params.seed,
            position: position as u32 + 1,
            history: 0..0,
            n_prompt: 0,
            n_generated: 0,
            mask: None,
        });
    }
    end.saturating_sub(start)
}

/// The hidden states that a pooled prompt still needs of the rows just pushed.
fn push_hidden(
    batch: &mut Batch,
    seq: &Sequence,
    request: &RequestState,
    pooling: Pooling,
    n_rows: usize,
) -> usize {
    let end = seq.n_computed + n_rows;
    let start = match pooling {
        Pooling::Mean => seq.n_computed.max(seq.n_scored),
        Pooling::Last => seq.n_prompt - 1,
    };
    let first_row = batch.n_rows() - n_rows;
    for position in start..end {
        batch.samples.push(SampleRow {
            row: (first_row + position - seq.n_computed) as u32,
            task: SampleTask::Hidden,
            params: request.params.clone(),
            seed: request.params.seed,
            position: position as u32 + 1,
            history: 0..0,
            n_prompt: 0,
            n_generated: 0,
            mask: None,
        });
    }
    end.saturating_sub(start)
}

/// One choice per index, all off the sequence's last row.
fn push_choices(batch: &mut Batch, seq: &mut Sequence, request: &RequestState, choosing: u128) {
    let row = batch.n_rows() as u32 - 1;
    let start = batch.history.len() as u32;
    let mut n_prompt = 0;
    if request.params.has_penalties() {
        batch.history.extend_from_slice(&seq.tokens);
        n_prompt = seq.n_prompt as u32;
    }
    let history = start..batch.history.len() as u32;
    // Until they part, all indices are in the same place of their rules.
    let mask = seq.guide.as_mut().map(Guide::mask);
    for index in set_bits(choosing) {
        batch.samples.push(SampleRow {
            row,
            task: SampleTask::Next,
            params: request.params.clone(),
            seed: derive_seed(request.params.seed, index),
            position: seq.tokens.len() as u32,
            history: history.clone(),
            n_prompt,
            n_generated: seq.n_generated() as u32,
            mask: mask.clone(),
        });
    }
}
