//! Every invariant of the scheduler, for tests and simulation.

use super::Scheduler;
use crate::sequence::{SequenceState, set_bits};

impl Scheduler {
    /// Verifies the books; says what is wrong with them.
    pub fn check(&self) -> Result<(), String> {
        self.pool.check()?;
        self.check_references()?;
        self.check_sequences()?;
        self.check_requests()?;
        self.check_order()
    }

    /// Every reference the pool counts is in a table, and the other way round.
    fn check_references(&self) -> Result<(), String> {
        let mut counts = vec![0; self.pool.n_blocks() as usize];
        for (_, seq) in self.seqs.iter() {
            for block in &seq.blocks {
                counts[block.0 as usize] += 1;
            }
        }
        for (index, &count) in counts.iter().enumerate() {
            let counted = self.pool.ref_count(crate::ids::BlockId(index as u32));
            if counted != count {
                return Err(format!("block {index} is in {count} tables, {counted} are counted"));
            }
        }
        Ok(())
    }

    fn check_sequences(&self) -> Result<(), String> {
        let (mut n_running, mut n_waiting) = (0, 0);
        for (slot, seq) in self.seqs.iter() {
            let fail = |what: &str| Err(format!("sequence {slot:?} {what}: {:?}", seq.view()));
            let is_waiting = seq.state == SequenceState::Waiting;
            n_running += usize::from(!is_waiting);
            n_waiting += u32::from(is_waiting);
            if self.waiting.contains(slot) != is_waiting
                || self.running.contains(&slot) == is_waiting
            {
                return fail("is not where its state says");
            }
            if is_waiting && (!seq.blocks.is_empty() || seq.n_computed > 0) {
                return fail("waits but holds blocks");
            }
            if seq.n_computed >= seq.tokens.len() || seq.tokens.len() >= seq.max_len {
                return fail("has nothing left to compute");
            }
            if !is_waiting && self.pool.blocks_for(seq.n_computed) > seq.blocks.len() {
                return fail("has computed more than its blocks hold");
            }
            let n_known = self.pool.blocks_for(seq.tokens.len());
            if !is_waiting && seq.gap() > 1 && n_known > seq.blocks.len() {
                return fail("runs without blocks for its prompt");
            }
            if seq.n_registered * self.pool.block_size() as usize > seq.n_computed {
                return fail("has registered more than it has computed");
            }
            if seq.is_fork_pending && seq.n_generated() > 0 {
                return fail("generated before it was forked");
            }
        }
        if n_running != self.running.len() || n_waiting != self.waiting.len() {
            return Err("a queue holds a sequence twice".to_owned());
        }
        Ok(())
    }

    fn check_requests(&self) -> Result<(), String> {
        let mut n_indices = 0;
        let mut n_in_group = 0;
        for (slot, request) in self.requests.iter() {
            if request.live == 0 || self.by_id.get(&request.id) != Some(&slot) {
                return Err(format!("{:?} is finished or cannot be found", request.id));
            }
            n_in_group += u32::from(request.is_in_group);
            for index in set_bits(request.live) {
                let seq = &self.seqs[request.slots[index as usize]];
                if seq.request != slot || (!seq.is_fork_pending && seq.index != index) {
                    return Err(format!("{:?} has lost its sequence {index}", request.id));
                }
                n_indices += usize::from(!seq.is_fork_pending || seq.index == index);
            }
        }
        if n_indices != self.seqs.len() || self.by_id.len() != self.requests.len() {
            return Err(format!("{n_indices} sequences known, {} kept", self.seqs.len()));
        }
        self.waiting.check(self.requests.len())?;
        if n_in_group != self.n_group_live {
            return Err(format!("{n_in_group} in the group, {} counted", self.n_group_live));
        }
        Ok(())
    }

    fn check_order(&self) -> Result<(), String> {
        if !self.running.is_sorted_by_key(|&slot| self.running_key(slot)) {
            return Err("running sequences are out of order".to_owned());
        }
        let block_size = self.pool.block_size() as usize;
        let protected = self.running.iter().filter(|&&slot| self.is_protected(slot));
        let n_blocks: usize = protected.map(|&slot| self.seqs[slot].max_blocks(block_size)).sum();
        if n_blocks > self.pool.n_blocks() as usize {
            return Err(format!("{n_blocks} blocks are set aside, more than there are"));
        }
        if self.running.len() > self.config.max_num_seqs as usize {
            return Err(format!("{} sequences run", self.running.len()));
        }
        if self.batch.n_rows() > self.budget {
            return Err(format!("{} rows exceed the budget", self.batch.n_rows()));
        }
        Ok(())
    }
}
