//! What a stream gets beside its next row: guesses at the tokens after it.
//!
//! Drafts take what nobody needs: rows that are left when every stream has its own, and blocks
//! beyond those that the others' next rows may take.

use super::Scheduler;
use super::running::Rows;
use crate::ids::Token;
use crate::sequence::SeqSlot;
use crate::speculate::{Match, Speaker};

/// Where prompts want rows, too, drafts have one in this many at most. A guess that is right saves
/// a row of a later step, which costs more than a prompt's, so they pay as well as without prompts;
/// but whoever waits for a first token should not wait for others' guesses.
const PROMPTS_DIVISOR: usize = 8;

/// Which guesses a step has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drafting {
    /// How likely they are to be right, at least.
    least: f32,
    /// How many there may still be.
    n_left: usize,
}

impl Drafting {
    const NONE: Drafting = Drafting { least: 1.0, n_left: 0 };
}

impl Scheduler {
    /// Whether prompts will have rows in this step, as far as it can be told before it is planned.
    fn has_prompts(&self) -> bool {
        let is_prompt = |slot: &SeqSlot| self.seqs[*slot].gap() > 1;
        let has_place = self.running.len() < self.config.max_num_seqs as usize;
        has_place && self.waiting.len() > 0 || self.running.iter().any(is_prompt)
    }

    /// Looks at what each stream may say next and decides which guesses the step will have.
    pub(super) fn plan_drafts(&mut self) -> Drafting {
        let drafts = self.config.drafts;
        if drafts.most == 0 {
            return Drafting::NONE;
        }
        self.guesses.clear();
        for i in 0..self.running.len() {
            self.foresee(self.running[i]);
        }
        if !self.is_drafting {
            // What is said next is compared with the guesses all the same, to learn from it.
            return Drafting::NONE;
        }
        self.likely.clear();
        self.likely.extend(self.guesses.iter().map(|guess| guess.likely));
        self.likely.sort_unstable_by(|a, b| b.total_cmp(a));
        let mut n_left = drafts.best_count(self.running.len(), &self.likely);
        if self.has_prompts() {
            n_left = n_left.min(self.budget / PROMPTS_DIVISOR);
        }
        let last = n_left.checked_sub(1);
        Drafting { least: last.map_or(1.0, |last| self.likely[last]), n_left }
    }

    /// Guesses what a stream says next.
    fn foresee(&mut self, slot: SeqSlot) {
        let start = self.guesses.len();
        let seq = &mut self.seqs[slot];
        let may = seq.gap() == 1 && seq.n_generated() > 0;
        seq.found = may.then(|| Match::find(&seq.tokens)).flatten();
        if may {
            let request = &self.requests[seq.request];
            let speaker = Speaker {
                tenant: request.tenant,
                tokens: &seq.tokens,
                ends: request.params.ends(),
                found: seq.found,
                luck: seq.luck,
            };
            // A sequence's last token is never computed.
            let most = seq.max_len - seq.tokens.len() - 1;
            let most = most.min(self.config.drafts.most as usize);
            speaker.guess(&self.said, most, &mut self.guesses);
        }
        seq.guesses = start..self.guesses.len();
    }

    /// Fills `draft` for a stream whose own row has its place, and takes the rows from `left`, of
    /// which `n_others` are for the streams after it.
    pub(super) fn draft(
        &mut self,
        slot: SeqSlot,
        drafting: &mut Drafting,
        n_others: usize,
        left: &mut Rows,
        draft: &mut Vec<Token>,
    ) {
        draft.clear();
        if drafting.n_left == 0 {
            return;
        }
        let room = self.room_for_drafts(slot, n_others, left).min(drafting.n_left);
        let guesses = self.seqs[slot].guesses.clone();
        let worth = self.guesses[guesses.clone()].iter().take(room);
        let n_wanted = worth.take_while(|guess| guess.likely >= drafting.least).count();
        let n_drafts = self.take_slots(slot, n_wanted);
        draft.extend(self.guesses[guesses].iter().take(n_drafts).map(|guess| guess.token));
        drafting.n_left -= n_drafts;
        left.all -= n_drafts;
        left.batch -= if self.is_batch(slot) { n_drafts } else { 0 };
    }

    /// How many drafts a stream may have by rows.
    fn room_for_drafts(&self, slot: SeqSlot, n_others: usize, left: &Rows) -> usize {
        let n_rows = if self.is_batch(slot) { left.all.min(left.batch) } else { left.all };
        n_rows.saturating_sub(n_others)
    }

    /// Slots after that of a stream's own row, as many of the wanted ones as there are without
    /// the blocks that others may need for their next rows.
    fn take_slots(&mut self, slot: SeqSlot, n_wanted: usize) -> usize {
        let n_kept = self.running.len() as u32;
        let seq = &mut self.seqs[slot];
        let n_blocks = self.pool.blocks_for(seq.n_computed + 1 + n_wanted);
        while seq.blocks.len() < n_blocks && self.pool.n_free() > n_kept {
            let Some(block) = self.pool.take() else { break };
            seq.blocks.push(block);
        }
        let n_slots = seq.blocks.len() * self.pool.block_size() as usize;
        n_wanted.min(n_slots - seq.n_computed - 1)
    }
}
