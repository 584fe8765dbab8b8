//! Writes one sequence's part of a batch.

use std::ops::Range;

use super::Scheduler;
use crate::batch::{Batch, BatchSeq, SampleRow, SampleTask};
use crate::ids::Token;
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
    /// The batch's row of its first draft, and how many there are: `n_rows` are its own.
    pub(super) first_draft: usize,
    pub(super) n_drafts: usize,
}

impl Scheduler {
    /// Adds the next `n_rows` of a sequence to the batch, and drafts after the last of them, as far
    /// as its rules allow them. Its table must cover all.
    pub(super) fn push_rows(&mut self, slot: SeqSlot, n_rows: usize, drafts: &[Token]) {
        let seq = &mut self.seqs[slot];
        let request = &self.requests[seq.request];
        let batch = &mut self.batch;
        let is_last = n_rows == seq.gap() && request.params.pooling.is_none();
        let guide = seq.guide.as_mut().filter(|_| is_last);
        let drafts = &drafts[..guide.map_or(drafts.len(), |guide| guide.look(drafts))];
        let first_row = batch.n_rows() as u32;
        let first_sample = batch.samples.len();
        push_tokens(batch, seq, n_rows, drafts, self.pool.block_size() as usize);
        let n_scores = push_reports(batch, seq, request, first_row, n_rows);
        let choosing = match (is_last, seq.is_fork_pending) {
            (false, _) => 0,
            (true, true) => request.live,
            (true, false) => 1 << seq.index,
        };
        if is_last {
            push_choices(batch, seq, request, choosing, drafts);
        }
        let is_stream = seq.gap() == 1 && seq.n_generated() > 0;
        let (first_draft, n_drafts) = (first_row as usize + n_rows, drafts.len());
        let n_all_rows = n_rows + n_drafts;
        self.mix.add(request.priority, is_stream, seq.n_computed..seq.n_computed + n_all_rows);
        let samples = first_sample..batch.samples.len();
        self.waiting.charge(request.lane, n_all_rows);
        self.plan.push(Planned {
            slot,
            n_rows,
            samples,
            n_scores,
            choosing,
            first_draft,
            n_drafts,
        });
    }
}

fn push_tokens(
    batch: &mut Batch,
    seq: &Sequence,
    n_rows: usize,
    drafts: &[Token],
    block_size: usize,
) {
    let first_row = batch.n_rows() as u32;
    batch.tokens.extend_from_slice(&seq.tokens[seq.n_computed..seq.n_computed + n_rows]);
    batch.tokens.extend_from_slice(drafts);
    let range = seq.n_computed..seq.n_computed + n_rows + drafts.len();
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

/// The prompt positions from `seq.n_computed` on, `n_rows` of them, that report something of their
/// own: a score of the next token, or a hidden state. What was reported once is left out.
fn reported(seq: &Sequence, request: &RequestState, n_rows: usize) -> Range<usize> {
    let end = seq.n_computed + n_rows;
    let unreported = seq.n_computed.max(seq.n_scored);
    match request.params.pooling {
        Some(Pooling::Mean) => unreported..end,
        Some(Pooling::Last) => seq.n_prompt - 1..end,
        None if request.params.prompt_logprobs.is_some() && seq.is_fork_pending => {
            // The last token's successor is not known yet.
            unreported..end.min(seq.n_prompt - 1)
        }
        None => 0..0,
    }
}

/// A sample row for each position that reports something; how many there are.
fn push_reports(
    batch: &mut Batch,
    seq: &Sequence,
    request: &RequestState,
    first_row: u32,
    n_rows: usize,
) -> usize {
    let positions = reported(seq, request, n_rows);
    for position in positions.clone() {
        let task = match request.params.pooling {
            Some(_) => SampleTask::Hidden,
            None => SampleTask::Score(seq.tokens[position + 1]),
        };
        batch.samples.push(SampleRow {
            row: first_row + (position - seq.n_computed) as u32,
            task,
            params: request.params.clone(),
            seed: request.params.seed,
            position: position as u32 + 1,
            history: 0..0,
            n_prompt: 0,
            n_generated: 0,
            mask: None,
        });
    }
    positions.len()
}

/// One choice per index, all off the sequence's last own row, and one off each draft's. Where
/// several indices choose, there are no drafts.
fn push_choices(
    batch: &mut Batch,
    seq: &Sequence,
    request: &RequestState,
    choosing: u128,
    drafts: &[Token],
) {
    let n_drafts = drafts.len() as u32;
    let row = batch.n_rows() as u32 - 1 - n_drafts;
    let start = batch.history.len() as u32;
    let mut n_prompt = 0;
    if request.params.has_penalties() {
        batch.history.extend_from_slice(&seq.tokens);
        n_prompt = seq.n_prompt as u32;
    }
    let end = batch.history.len() as u32;
    let n_known = if end > start { n_drafts } else { 0 };
    batch.history.extend_from_slice(&drafts[..n_known as usize]);
    for (index, i) in set_bits(choosing).flat_map(|index| (0..=n_drafts).map(move |i| (index, i))) {
        batch.samples.push(SampleRow {
            row: row + i,
            task: SampleTask::Next,
            params: request.params.clone(),
            seed: derive_seed(request.params.seed, index),
            position: seq.tokens.len() as u32 + i,
            history: start..end + i.min(n_known),
            n_prompt,
            n_generated: seq.n_generated() as u32 + i,
            // Until they part, all indices are in the same place of their rules.
            mask: seq.guide.as_ref().map(|guide| guide.mask(i as usize)),
        });
    }
}
