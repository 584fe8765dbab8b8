//! A backend without a model, for tests of everything around one.
//!
//! Its KV memory holds (token, position) pairs. To sample a row it reads the row's whole history
//! back through the block table and derives the logits from that: a wrong slot, a missed copy, a
//! block shared or reused too early changes the answer, or is seen as a violation. What a request
//! must produce can be computed without any engine: [`FakeModel::reference`].

mod constraint;
mod model;

use std::collections::BTreeSet;

use crate::backend::{Backend, BackendError, BackendLimits, Sampled};
use crate::batch::{Batch, BatchSeq, SampleRow, SampleTask};
use crate::ids::Token;
use crate::sampler::{RowOps, Sampler};

pub use constraint::FakeConstraint;
pub use model::{FakeModel, Reference};

/// Violations kept; one is enough to fail a test.
const MAX_VIOLATIONS: usize = 16;

/// Steps, counted from 0, in which the backend misbehaves.
#[derive(Clone, Debug, Default)]
pub struct FakeFailures {
    /// `submit` fails after it has written half of its rows.
    pub submit_at: BTreeSet<u64>,
    /// `collect` fails.
    pub collect_at: BTreeSet<u64>,
    /// `collect` returns one result too few.
    pub short_at: BTreeSet<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    token: Token,
    position: u32,
}

/// See the module's text.
#[derive(Debug)]
pub struct FakeBackend {
    limits: BackendLimits,
    model: FakeModel,
    failures: FakeFailures,
    cells: Vec<Option<Cell>>,
    /// The step that wrote each slot last, plus one.
    written_in: Vec<u64>,
    n_steps: u64,
    n_copies: u64,
    sampler: Sampler,
    logits: Vec<f32>,
    pending: Vec<Sampled>,
    violations: Vec<String>,
}

impl FakeBackend {
    pub fn new(limits: BackendLimits, failures: FakeFailures) -> Self {
        Self::with_model(limits, FakeModel::new(limits.n_vocab), failures)
    }

    pub fn with_model(limits: BackendLimits, model: FakeModel, failures: FakeFailures) -> Self {
        let n_slots = limits.n_blocks as usize * limits.block_size as usize;
        Self {
            limits,
            model,
            failures,
            cells: vec![None; n_slots],
            written_in: vec![0; n_slots],
            n_steps: 0,
            n_copies: 0,
            sampler: Sampler::new(limits.n_vocab as usize),
            logits: Vec::with_capacity(limits.n_vocab as usize),
            pending: Vec::with_capacity(limits.max_rows as usize),
            violations: Vec::new(),
        }
    }

    /// Steps submitted so far.
    pub fn n_steps(&self) -> u64 {
        self.n_steps
    }

    /// Blocks copied so far.
    pub fn n_copies(&self) -> u64 {
        self.n_copies
    }

    /// What was wrong with the batches so far. Must stay empty.
    pub fn violations(&self) -> &[String] {
        &self.violations
    }

    fn violation(&mut self, what: impl FnOnce() -> String) {
        if self.violations.len() < MAX_VIOLATIONS {
            self.violations.push(format!("step {}: {}", self.n_steps, what()));
        }
    }

    fn copy_blocks(&mut self, batch: &Batch) {
        let size = self.limits.block_size as usize;
        for copy in &batch.copies {
            let (from, to) = (copy.from.0 as usize * size, copy.to.0 as usize * size);
            let n_tokens = copy.n_tokens as usize;
            if n_tokens == 0 || n_tokens > size || from == to {
                self.violation(|| format!("senseless copy {copy:?}"));
                continue;
            }
            self.n_copies += 1;
            self.cells.copy_within(from..from + n_tokens, to);
            self.cells[to + n_tokens..to + size].fill(None);
        }
    }

    fn check_shape(&mut self, batch: &Batch) {
        let n_rows = batch.n_rows();
        if n_rows > self.limits.max_rows as usize
            || batch.positions.len() != n_rows
            || batch.slots.len() != n_rows
        {
            self.violation(|| format!("{n_rows} rows, or arrays of unequal length"));
        }
        let mut next_row = 0;
        for seq in &batch.seqs {
            if seq.rows.start != next_row || seq.rows.is_empty() {
                self.violation(|| format!("rows {:?} do not follow row {next_row}", seq.rows));
            }
            next_row = seq.rows.end;
        }
        if next_row as usize != n_rows {
            self.violation(|| format!("rows after {next_row} belong to nobody"));
        }
    }

    fn write_rows(&mut self, batch: &Batch, seq: &BatchSeq) {
        let size = self.limits.block_size;
        let table = batch.blocks_of(seq);
        let first = batch.positions[seq.rows.start as usize];
        for (position, row) in (first..).zip(seq.rows.clone()) {
            let row = row as usize;
            let slot = batch.slots[row] as usize;
            let token = batch.tokens[row];
            let block = table.get((position / size) as usize);
            let expected = block.map(|block| (block.0 * size + position % size) as usize);
            if expected != Some(slot) || batch.positions[row] != position {
                self.violation(|| format!("row {row} at {position} goes to slot {slot}"));
                continue;
            }
            if token >= self.limits.n_vocab || position >= self.limits.max_model_len {
                self.violation(|| format!("token {token} at {position} does not exist"));
            }
            if std::mem::replace(&mut self.written_in[slot], self.n_steps + 1) == self.n_steps + 1 {
                self.violation(|| format!("slot {slot} is written twice"));
            }
            self.cells[slot] = Some(Cell { token, position });
        }
    }

    fn sample(&mut self, batch: &Batch, sample: &SampleRow) {
        let owner = batch.seqs.partition_point(|seq| seq.rows.end <= sample.row);
        let Some(seq) = batch.seqs.get(owner) else {
            return self.violation(|| format!("sample row {} has no sequence", sample.row));
        };
        let last = batch.positions[sample.row as usize];
        let mut state = FakeModel::START;
        for position in 0..=last {
            match self.read(batch, seq, position) {
                Some(token) => state = FakeModel::advance(state, token),
                None => self.violation(|| format!("position {position} of {seq:?} is lost")),
            }
        }
        let mut result = Sampled::default();
        if sample.task == SampleTask::Hidden {
            result.hidden = self.model.hidden(state);
            return self.pending.push(result);
        }
        self.model.logits(state, batch.tokens[sample.row as usize], &mut self.logits);
        let history = batch.history_of(sample);
        self.sampler.sample(&mut self.logits, sample, history, &RowOps::scalar(), &mut result);
        self.pending.push(result);
    }

    fn read(&self, batch: &Batch, seq: &BatchSeq, position: u32) -> Option<Token> {
        let size = self.limits.block_size;
        let block = batch.blocks_of(seq).get((position / size) as usize)?;
        let cell = self.cells[(block.0 * size + position % size) as usize]?;
        (cell.position == position).then_some(cell.token)
    }

    /// Leaves garbage where a step that died would have.
    fn scribble(&mut self, batch: &Batch) {
        for &slot in &batch.slots[..batch.slots.len().div_ceil(2)] {
            self.cells[slot as usize] = Some(Cell { token: 0, position: u32::MAX });
        }
    }
}

impl Backend for FakeBackend {
    fn limits(&self) -> BackendLimits {
        self.limits
    }

    fn submit(&mut self, batch: &Batch) -> Result<(), BackendError> {
        self.pending.clear();
        self.check_shape(batch);
        self.copy_blocks(batch);
        if self.failures.submit_at.contains(&self.n_steps) {
            self.scribble(batch);
            self.n_steps += 1;
            return Err(BackendError { message: "fake failure of submit".to_owned() });
        }
        for seq in &batch.seqs {
            self.write_rows(batch, seq);
        }
        for sample in &batch.samples {
            self.sample(batch, sample);
        }
        self.n_steps += 1;
        Ok(())
    }

    fn collect(&mut self, results: &mut Vec<Sampled>) -> Result<(), BackendError> {
        let step = self.n_steps - 1;
        if self.failures.collect_at.contains(&step) {
            return Err(BackendError { message: "fake failure of collect".to_owned() });
        }
        if self.failures.short_at.contains(&step) {
            self.pending.pop();
        }
        results.append(&mut self.pending);
        Ok(())
    }
}
