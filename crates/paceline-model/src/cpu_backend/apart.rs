//! Steps of many rows: each thread takes some of the sequences through all layers, alone.
//!
//! A step has some 270 ops, and after each the threads wait for the slowest and read what others
//! have written. Rows of different sequences have nothing to do with each other, so where there are
//! rows enough for every thread to use the weights well, threads meet at the end of the step only.
//! Who is done before others helps them: parts that cost the same take longer on a core that other
//! programs use, too.

use std::cmp::Reverse;
use std::sync::Arc;

use paceline_cpu::KV_BLOCK;
use paceline_cpu::ops::{Door, KvLayer};
use paceline_engine::backend::Sampled;
use paceline_engine::batch::{Batch, BatchSeq, SampleRow};

use super::CpuOptions;
use super::team::{Team, Threads};
use crate::error::ModelError;
use crate::weights::Weights;

/// The parts of a step, one for each thread; none where steps are too small to be parted.
#[derive(Debug)]
pub(super) struct Apart {
    parts: Vec<Part>,
    /// Where each part's helpers come in.
    doors: Vec<Door>,
    rows_apart: usize,
    /// Rows a part has room for.
    max_rows: usize,
    /// Each sequence's cost and place in the step, the dearest first, and its part.
    by_cost: Vec<(usize, usize)>,
    owners: Vec<u8>,
    loads: Vec<Load>,
    /// Which part, counted from 1, writes each block of keys and values; 0 for most.
    writers: Vec<u8>,
}

/// What a part has been given so far.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    n_rows: usize,
    cost: usize,
}

/// Some sequences of a step, and the thread's own memory to take them through the model.
#[derive(Debug)]
struct Part {
    team: Team,
    batch: Batch,
    /// Where its samples were in the step.
    places: Vec<usize>,
}

/// Threads that may help with a part.
const MOST_HELPERS: usize = 3;

/// By how much of its share a part may cost more than that: else the others would wait for longer
/// than they do in each op.
const MOST_ABOVE_SHARE: usize = 16;

impl Apart {
    pub(super) fn new(
        weights: &Arc<Weights>,
        kv: &[KvLayer],
        options: CpuOptions,
    ) -> Result<Apart, ModelError> {
        let (n_threads, rows_apart) = (options.n_threads, options.rows_apart.max(1) as usize);
        let max_rows = options.max_rows as usize;
        let is_useful = n_threads > 1
            && n_threads < usize::from(u8::MAX)
            && max_rows >= rows_apart.saturating_mul(n_threads);
        let n_parts = if is_useful { n_threads } else { 0 };
        // Half as many again: rows that look at little are cheaper than others.
        let part_rows = (max_rows * 3).div_ceil(n_threads.max(1) * 2);
        let n_helpers = MOST_HELPERS.min(n_threads.saturating_sub(1));
        let part = |_| Part::new(weights, kv, n_helpers, part_rows);
        let parts: Vec<Part> = (0..n_parts).map(part).collect::<Result<_, _>>()?;
        Ok(Apart {
            doors: parts.iter().map(|part| part.team.cpu.door()).collect(),
            parts,
            rows_apart,
            max_rows: part_rows,
            by_cost: Vec::with_capacity(max_rows),
            owners: Vec::with_capacity(max_rows),
            loads: Vec::with_capacity(n_parts),
            writers: vec![0; options.n_blocks as usize],
        })
    }

    /// Runs the step in parts on `all` threads, which get the results; false if it is to be done by
    /// all of them together.
    pub(super) fn step(&mut self, batch: &Batch, all: &mut Team) -> bool {
        let is_large = batch.n_rows() >= self.parts.len() * self.rows_apart;
        // As sequences are.
        let is_in_order = || batch.samples.is_sorted_by_key(|sample| sample.row);
        if self.parts.is_empty() || !is_large || !is_in_order() {
            return false;
        }
        let is_fit = self.deal(batch) && self.are_disjoint(batch);
        if is_fit {
            let help = || self.doors.iter().for_each(Door::help);
            all.cpu.for_each(&mut self.parts, Part::step, help);
            all.results.clear();
            all.results.resize(batch.samples.len(), Sampled::default());
        }
        for part in &mut self.parts {
            for (place, result) in part.places.drain(..).zip(part.team.results.drain(..)) {
                all.results[place] = result;
            }
            // What it holds of requests is not kept longer than the step.
            part.batch.clear();
        }
        is_fit
    }

    /// Gives each part sequences that cost about as much; false if that cannot be.
    fn deal(&mut self, batch: &Batch) -> bool {
        if !self.assign(batch) {
            return false;
        }
        self.parts.iter_mut().for_each(|part| part.begin(batch));
        let mut samples = batch.samples.iter().enumerate().peekable();
        for (seq, &owner) in batch.seqs.iter().zip(&self.owners) {
            let part = &mut self.parts[usize::from(owner)];
            part.push(batch, seq);
            while let Some(sample) = samples.next_if(|(_, sample)| sample.row < seq.rows.end) {
                part.push_sample(sample, seq);
            }
        }
        true
    }

    /// Names each sequence's part: the dearest first, each to the part that has least so far.
    fn assign(&mut self, batch: &Batch) -> bool {
        let n_parts = self.parts.len();
        self.by_cost.clear();
        self.by_cost.extend(batch.seqs.iter().map(cost).zip(0..));
        self.by_cost.sort_unstable_by_key(|&(cost, seq)| (Reverse(cost), seq));
        self.owners.clear();
        self.owners.resize(batch.seqs.len(), 0);
        self.loads.clear();
        self.loads.resize(n_parts, Load::default());
        for &(cost, seq) in &self.by_cost {
            let least = self.loads.iter_mut().enumerate().min_by_key(|(_, load)| load.cost);
            let Some((part, load)) = least else { return false };
            self.owners[seq] = part as u8;
            load.cost += cost;
            load.n_rows += batch.seqs[seq].rows.len();
        }
        let all: usize = self.loads.iter().map(|load| load.cost).sum();
        let fits = |load: &Load| {
            load.n_rows <= self.max_rows && load.cost * n_parts <= all + all / MOST_ABOVE_SHARE
        };
        self.loads.iter().all(fits)
    }

    /// Whether no part writes a block that another reads or writes. The engine sees to that, since
    /// sequences share only blocks that are full; but memory's safety is ours to see to.
    fn are_disjoint(&mut self, batch: &Batch) -> bool {
        let writers = &mut self.writers;
        let mut are_disjoint = true;
        for (part, writer) in self.parts.iter().zip(1..) {
            for block in part.written_blocks() {
                are_disjoint &= writers[block] == 0 || writers[block] == writer;
                writers[block] = writer;
            }
        }
        for (part, reader) in self.parts.iter().zip(1..) {
            let mut tables = part.batch.block_tables.iter();
            are_disjoint &= tables.all(|block| {
                let writer = writers[block.0 as usize];
                writer == 0 || writer == reader
            });
        }
        batch.slots.iter().for_each(|&slot| writers[slot as usize / KV_BLOCK] = 0);
        are_disjoint
    }
}

/// What a sequence costs: its rows, and reading what they look at. To read keys and values of 512
/// tokens takes about as long as a row's products.
fn cost(seq: &BatchSeq) -> usize {
    const ROW: usize = 512;
    seq.rows.len() * ROW + seq.blocks.len() * KV_BLOCK
}

impl Part {
    fn new(
        weights: &Arc<Weights>,
        kv: &[KvLayer],
        n_helpers: usize,
        max_rows: usize,
    ) -> Result<Part, ModelError> {
        // SAFETY: parts run only at once, while nobody else does, and only if they are disjoint
        // (`Apart::step`): what one writes, no other reads or writes.
        #[allow(unsafe_code, reason = "threads write different blocks of the same memory")]
        let kv: Vec<KvLayer> = kv.iter().map(|layer| unsafe { layer.again() }).collect();
        let batch = Batch {
            tokens: Vec::with_capacity(max_rows),
            positions: Vec::with_capacity(max_rows),
            slots: Vec::with_capacity(max_rows),
            seqs: Vec::with_capacity(max_rows),
            samples: Vec::with_capacity(max_rows),
            ..Batch::default()
        };
        let team = Team::new(Arc::clone(weights), kv, Threads::Guests(n_helpers), max_rows)?;
        Ok(Part { team, batch, places: Vec::with_capacity(max_rows) })
    }

    /// Takes what all parts have, and memory for as much as the whole step may have.
    fn begin(&mut self, from: &Batch) {
        let to = &mut self.batch;
        to.block_tables.reserve(from.block_tables.capacity());
        to.history.reserve(from.history.capacity());
        to.history.extend_from_slice(&from.history);
    }

    fn push(&mut self, from: &Batch, seq: &BatchSeq) {
        let (to, rows) = (&mut self.batch, seq.rows.start as usize..seq.rows.end as usize);
        let first_row = to.n_rows() as u32;
        let first_block = to.block_tables.len() as u32;
        to.tokens.extend_from_slice(&from.tokens[rows.clone()]);
        to.positions.extend_from_slice(&from.positions[rows.clone()]);
        to.slots.extend_from_slice(&from.slots[rows]);
        to.block_tables.extend_from_slice(from.blocks_of(seq));
        to.seqs.push(BatchSeq {
            rows: first_row..to.tokens.len() as u32,
            blocks: first_block..to.block_tables.len() as u32,
        });
    }

    /// A sample of the sequence that was pushed last.
    fn push_sample(&mut self, (place, sample): (usize, &SampleRow), seq: &BatchSeq) {
        self.places.push(place);
        let to = &mut self.batch;
        let first_row = to.seqs.last().map_or(0, |seq| seq.rows.start);
        let row = first_row + sample.row - seq.rows.start;
        to.samples.push(SampleRow { row, ..sample.clone() });
    }

    fn written_blocks(&self) -> impl Iterator<Item = usize> {
        self.batch.slots.iter().map(|&slot| slot as usize / KV_BLOCK)
    }

    fn step(&mut self) {
        if !self.batch.is_empty() {
            let _welcome = self.team.cpu.welcome();
            self.team.step(&self.batch);
        }
    }
}

#[cfg(test)]
mod tests {
    use paceline_cpu::{ActDtype, Isa, KvDtype};
    use paceline_engine::ids::BlockId;
    use paceline_engine::{SampleTask, SamplingParams};

    use super::*;
    use crate::checkpoint::Checkpoint;
    use crate::gguf::Gguf;
    use crate::synth::{SynthSpec, gguf_bytes};

    fn two_parts() -> Apart {
        let gguf = Gguf::parse(gguf_bytes(&SynthSpec::tiny("llama")).unwrap()).unwrap();
        let checkpoint = Arc::new(Checkpoint::from_gguf(gguf).unwrap());
        let weights = Weights::load(checkpoint, Isa::Scalar, ActDtype::Bf16, 1).unwrap();
        let options = CpuOptions {
            n_threads: 2,
            n_blocks: 16,
            kv_dtype: KvDtype::Bf16,
            max_rows: 64,
            max_model_len: 256,
            rows_apart: 4,
        };
        let kv = vec![KvLayer::new(KvDtype::Bf16, 16, 2, 64)];
        Apart::new(&Arc::new(weights), &kv, options).unwrap()
    }

    /// Sequences with these numbers of rows, each with a block of its own, and a sample of its last
    /// row that has its number as history.
    fn batch_of(lengths: &[u32]) -> Batch {
        let mut batch = Batch::default();
        for (i, &n_rows) in (0..).zip(lengths) {
            let first = batch.n_rows() as u32;
            for position in 0..n_rows {
                batch.tokens.push(100 * i + position);
                batch.positions.push(position);
                batch.slots.push(KV_BLOCK as u32 * i + position);
            }
            batch.block_tables.push(BlockId(i));
            batch.seqs.push(BatchSeq { rows: first..first + n_rows, blocks: i..i + 1 });
            batch.history.push(i);
            batch.samples.push(SampleRow {
                row: first + n_rows - 1,
                task: SampleTask::Next,
                params: Arc::new(SamplingParams::greedy()),
                seed: 0,
                position: n_rows,
                history: i..i + 1,
                n_prompt: 1,
                n_generated: 0,
                mask: None,
            });
        }
        batch
    }

    #[test]
    fn parts_are_even_and_sequences_keep_their_own() {
        let (mut apart, batch) = (two_parts(), batch_of(&[3, 6, 2, 8, 1]));
        assert!(apart.deal(&batch) && apart.are_disjoint(&batch));
        let [first, second] = &apart.parts[..] else { panic!("two threads, two parts") };
        assert_eq!(first.batch.n_rows(), second.batch.n_rows());
        assert_eq!((&first.places[..], &second.places[..]), (&[2, 3][..], &[0, 1, 4][..]));
        for (part, seqs) in [(first, &[2, 3][..]), (second, &[0, 1, 4])] {
            for ((seq, sample), i) in
                part.batch.seqs.iter().zip(&part.batch.samples).zip(seqs.iter().copied())
            {
                assert_eq!(part.batch.blocks_of(seq), [BlockId(i)]);
                assert_eq!(part.batch.history_of(sample), [i]);
                assert_eq!(sample.row, seq.rows.end - 1);
                assert_eq!(part.batch.tokens[seq.rows.start as usize], 100 * i);
            }
        }
    }

    #[test]
    fn a_long_sequence_is_for_all_threads() {
        let (mut apart, batch) = (two_parts(), batch_of(&[1, 18, 2]));
        assert!(!apart.deal(&batch));
    }

    #[test]
    fn what_one_writes_no_other_may_read() {
        let mut apart = two_parts();
        let mut batch = batch_of(&[5, 5]);
        batch.block_tables[1] = BlockId(0);
        assert!(apart.deal(&batch) && !apart.are_disjoint(&batch));
        assert!(apart.writers.iter().all(|&writer| writer == 0), "nothing is left behind");
        let mut apart = two_parts();

        // A block that nobody writes may be read by all.
        let mut batch = batch_of(&[5, 5]);
        batch.block_tables = [9, 0, 9, 1].map(BlockId).to_vec();
        batch.seqs[0].blocks = 0..2;
        batch.seqs[1].blocks = 2..4;
        assert!(apart.deal(&batch) && apart.are_disjoint(&batch));
    }
}
