//! What a spectator can see of a scheduler between steps. Changes nothing.

use std::ops::Range;

use super::Scheduler;
use super::rows::Planned;
use crate::blocks::BlockUse;
use crate::ids::{BlockId, RequestId};
use crate::request::Priority;

/// A sequence that takes part in steps. Until a request's prompt is computed, one stands for all
/// of its sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunningSequence<'a> {
    pub request: RequestId,
    pub index: u32,
    pub n_prompt: u32,
    /// Tokens whose KV is computed, of prompt and output.
    pub n_computed: u32,
    pub n_generated: u32,
    pub n_preemptions: u32,
    /// Its KV, in order; a block may be shared.
    pub blocks: &'a [BlockId],
}

/// One sequence's part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepRows {
    pub request: RequestId,
    pub index: u32,
    pub n_rows: u32,
    /// The newest token (with guesses at the next), and not a prompt or what a preemption lost.
    pub is_decode: bool,
}

/// Whose a step's rows were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepMix {
    /// The batch class's, of prompts and next tokens.
    pub n_batch: u32,
    /// The next tokens of all other classes.
    pub n_streams: u32,
    /// Prompts (or what a preemption lost of sequences) of all other classes.
    pub n_prompts: u32,
    /// Tokens before the rows of prompts, of all classes: a prompt's part of a step begins where
    /// the part before ended, and this is where, times its rows.
    pub n_before: u64,
}

impl StepMix {
    pub(super) fn add(&mut self, priority: Priority, is_stream: bool, rows: Range<usize>) {
        let n_rows = rows.len() as u32;
        if !is_stream {
            self.n_before += u64::from(n_rows) * rows.start as u64;
        }
        *match (priority, is_stream) {
            (Priority::Batch, _) => &mut self.n_batch,
            (_, true) => &mut self.n_streams,
            (_, false) => &mut self.n_prompts,
        } += n_rows;
    }
}

impl Scheduler {
    /// Whose rows the batch has.
    pub fn mix(&self) -> StepMix {
        self.mix
    }

    /// In the order they are served.
    pub fn running(&self) -> impl Iterator<Item = RunningSequence<'_>> {
        self.running.iter().map(|&slot| {
            let seq = &self.seqs[slot];
            RunningSequence {
                request: self.requests[seq.request].id,
                index: seq.index,
                n_prompt: seq.n_prompt as u32,
                n_computed: seq.n_computed as u32,
                n_generated: seq.n_generated() as u32,
                n_preemptions: seq.n_preemptions,
                blocks: &seq.blocks,
            }
        })
    }

    /// Every block's use, by number.
    pub fn block_uses(&self) -> impl Iterator<Item = BlockUse> {
        self.pool.uses()
    }

    /// Who has rows in the batch. Only between `schedule` and `apply`: sequences end there.
    pub(crate) fn planned_rows(&self) -> impl Iterator<Item = StepRows> {
        self.plan.iter().map(|planned| self.step_rows(planned))
    }

    fn step_rows(&self, planned: &Planned) -> StepRows {
        let seq = &self.seqs[planned.slot];
        StepRows {
            request: self.requests[seq.request].id,
            index: seq.index,
            n_rows: (planned.n_rows + planned.n_drafts) as u32,
            is_decode: planned.n_rows == 1 && seq.n_computed >= seq.n_prompt,
        }
    }
}
