//! What spectators of the engine get to see, and how the engine's thread shows it.
//!
//! Costs a look at one counter a step while nobody watches. While somebody does, each step notes
//! who had rows in it, and every [`PERIOD`] a [`Snapshot`] replaces the one before it: spectators
//! who are slow miss some, and nobody waits for them. Knows sizes and times, never text.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use paceline_engine::{Backend, BlockUse, Engine, RequestId, RunningSequence, Stats, StepRows};
use tokio::sync::watch;

use super::Label;
use super::live::Live;

/// The shortest time between two snapshots.
pub(crate) const PERIOD: Duration = Duration::from_millis(200);
/// Steps that a snapshot tells of; more than two periods' worth on a usual model.
const MAX_STEPS: usize = 96;
/// Rows of sequences that a snapshot tells of, over all its steps.
const MAX_ROWS: usize = 4096;
/// Cells of the block map; with more blocks than that, a cell stands for several.
const MAX_CELLS: u32 = 2048;
/// First tokens, and gaps between tokens, that the times are of.
const MAX_TIMES: usize = 256;

/// The engine at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) at: Duration,
    pub(crate) stats: Stats,
    pub(crate) max_num_seqs: u32,
    pub(crate) block_size: u32,
    pub(crate) sequences: Vec<SequenceShown>,
    pub(crate) steps: VecDeque<StepShown>,
    pub(crate) blocks_per_cell: u32,
    pub(crate) map: Vec<Cell>,
    pub(crate) n_cached_idle: u32,
    pub(crate) first_token: Quantiles,
    pub(crate) between_tokens: Quantiles,
}

/// A sequence that runs.
#[derive(Clone, Debug)]
pub(crate) struct SequenceShown {
    pub(crate) request: RequestId,
    pub(crate) index: u32,
    pub(crate) n_prompt: u32,
    pub(crate) n_computed: u32,
    pub(crate) n_generated: u32,
    pub(crate) max_tokens: u32,
    pub(crate) n_blocks: u32,
    pub(crate) owner: Option<Owner>,
}

/// Whose sequence it is; for the eyes of that tenant alone.
#[derive(Clone, Debug)]
pub(crate) struct Owner {
    pub(crate) tenant: u64,
    pub(crate) label: Arc<Label>,
    /// Which prompt of the HTTP request.
    pub(crate) place: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct StepShown {
    pub(crate) number: u64,
    pub(crate) elapsed: Duration,
    pub(crate) rows: Arc<[StepRows]>,
}

/// What a part of the KV memory holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cell {
    Free,
    /// Nobody's, but its content is still known.
    Cached,
    /// Several sequences'.
    Shared,
    /// The sequence's at this place of the list.
    Of(u32),
}

/// Over the latest few; zero if there are none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Quantiles {
    pub(crate) p50: Duration,
    pub(crate) p95: Duration,
}

/// What the engine's thread and the spectators share.
#[derive(Debug, Default)]
pub(crate) struct Stage {
    snapshots: watch::Sender<Arc<Snapshot>>,
    /// A wish to look is on its way to the engine's thread.
    is_wished: AtomicBool,
}

impl Stage {
    pub(super) fn subscribe(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.snapshots.subscribe()
    }

    /// Sends a wish to look, unless one is on its way.
    pub(super) fn wish(&self, send: impl FnOnce() -> bool) {
        if !self.is_wished.swap(true, Ordering::Relaxed) && !send() {
            self.is_wished.store(false, Ordering::Relaxed);
        }
    }
}

/// The engine's end.
#[derive(Debug)]
pub(super) struct Board {
    stage: Arc<Stage>,
    is_watched: bool,
    /// Somebody has just come and waits for a first look.
    is_asked: bool,
    last: Option<Instant>,
    clock: Instant,
    steps: VecDeque<StepShown>,
    n_rows: usize,
    first_tokens: VecDeque<Duration>,
    gaps: VecDeque<Duration>,
}

impl Board {
    pub(super) fn new(stage: Arc<Stage>) -> Board {
        Board {
            stage,
            is_watched: false,
            is_asked: false,
            last: None,
            clock: Instant::now(),
            steps: VecDeque::new(),
            n_rows: 0,
            first_tokens: VecDeque::new(),
            gaps: VecDeque::new(),
        }
    }

    /// Somebody has come.
    pub(super) fn ask(&mut self) {
        self.stage.is_wished.store(false, Ordering::Relaxed);
        self.is_asked = true;
    }

    /// Before a step. Forgets everything when the last spectator has gone.
    pub(super) fn look_around<B: Backend>(&mut self, engine: &mut Engine<B>) {
        let is_watched = self.stage.snapshots.receiver_count() > 0;
        if is_watched == self.is_watched {
            return;
        }
        self.is_watched = is_watched;
        engine.set_trace(is_watched);
        self.steps.clear();
        self.n_rows = 0;
        self.first_tokens.clear();
        self.gaps.clear();
    }

    pub(super) fn first_token(&mut self, since_arrival: Duration) {
        if self.is_watched {
            keep(&mut self.first_tokens, since_arrival);
        }
    }

    pub(super) fn gap(&mut self, gap: Duration) {
        if self.is_watched {
            keep(&mut self.gaps, gap);
        }
    }

    /// After a step that ran.
    pub(super) fn note<B: Backend>(&mut self, engine: &Engine<B>, elapsed: Duration) {
        if !self.is_watched {
            return;
        }
        let rows: Arc<[StepRows]> = engine.last_rows().into();
        self.n_rows += rows.len();
        self.steps.push_back(StepShown { number: engine.stats().n_steps, elapsed, rows });
        while self.steps.len() > MAX_STEPS || (self.n_rows > MAX_ROWS && self.steps.len() > 1) {
            let oldest = self.steps.pop_front();
            self.n_rows -= oldest.map_or(0, |step| step.rows.len());
        }
    }

    /// Shows a snapshot if one is due: after a while, when somebody has come, and before the
    /// engine rests.
    pub(super) fn show<B: Backend>(
        &mut self,
        engine: &Engine<B>,
        live: &HashMap<RequestId, Live>,
        now: Instant,
    ) {
        if !self.is_watched {
            return;
        }
        let is_fresh = self.last.is_some_and(|last| now.duration_since(last) < PERIOD);
        if is_fresh && engine.has_work() && !self.is_asked {
            return;
        }
        self.is_asked = false;
        self.last = Some(now);
        self.stage.snapshots.send_replace(Arc::new(self.snapshot(engine, live, now)));
    }

    fn snapshot<B: Backend>(
        &self,
        engine: &Engine<B>,
        live: &HashMap<RequestId, Live>,
        now: Instant,
    ) -> Snapshot {
        let stats = engine.stats();
        let blocks_per_cell = stats.n_blocks.div_ceil(MAX_CELLS).max(1);
        let cells = cells(engine);
        Snapshot {
            at: now.duration_since(self.clock),
            max_num_seqs: engine.max_num_seqs(),
            block_size: engine.backend().limits().block_size,
            sequences: engine.running().map(|seq| shown(&seq, live)).collect(),
            steps: self.steps.clone(),
            blocks_per_cell,
            n_cached_idle: cells.iter().filter(|&&cell| cell == Cell::Cached).count() as u32,
            map: cells.chunks(blocks_per_cell as usize).map(summary).collect(),
            first_token: quantiles(&self.first_tokens),
            between_tokens: quantiles(&self.gaps),
            stats,
        }
    }
}

/// What every block holds.
fn cells<B: Backend>(engine: &Engine<B>) -> Vec<Cell> {
    let mut cells: Vec<Cell> = engine
        .block_uses()
        .map(|block| match block {
            BlockUse::Free => Cell::Free,
            BlockUse::Cached => Cell::Cached,
            BlockUse::Used(_) => Cell::Shared,
        })
        .collect();
    let mut owners: Vec<u8> = vec![0; cells.len()];
    for (place, seq) in (0..).zip(engine.running()) {
        for block in seq.blocks {
            let block = block.0 as usize;
            let n_owners = owners[block].saturating_add(1);
            owners[block] = n_owners;
            cells[block] = if n_owners == 1 { Cell::Of(place) } else { Cell::Shared };
        }
    }
    cells
}

/// One cell for several: what is in use counts most.
fn summary(cells: &[Cell]) -> Cell {
    let used = cells.iter().find(|cell| matches!(cell, Cell::Of(_) | Cell::Shared));
    let cached = cells.iter().find(|&&cell| cell == Cell::Cached);
    used.or(cached).copied().unwrap_or(Cell::Free)
}

/// A running sequence as spectators see it.
fn shown(seq: &RunningSequence<'_>, live: &HashMap<RequestId, Live>) -> SequenceShown {
    let live = live.get(&seq.request);
    SequenceShown {
        request: seq.request,
        index: seq.index,
        n_prompt: seq.n_prompt,
        n_computed: seq.n_computed,
        n_generated: seq.n_generated,
        max_tokens: live.map_or(0, |live| live.params.max_tokens),
        n_blocks: seq.blocks.len() as u32,
        owner: live.map(|live| Owner {
            tenant: live.tenant,
            label: Arc::clone(&live.label),
            place: live.place,
        }),
    }
}

fn keep(times: &mut VecDeque<Duration>, time: Duration) {
    if times.len() == MAX_TIMES {
        times.pop_front();
    }
    times.push_back(time);
}

fn quantiles(times: &VecDeque<Duration>) -> Quantiles {
    let mut sorted: Vec<Duration> = times.iter().copied().collect();
    sorted.sort_unstable();
    let at = |share: usize| {
        let place = (sorted.len() * share / 100).min(sorted.len().saturating_sub(1));
        sorted.get(place).copied().unwrap_or_default()
    };
    Quantiles { p50: at(50), p95: at(95) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_of_several_blocks_shows_what_is_in_use() {
        let cases: [(&[Cell], Cell); 5] = [
            (&[Cell::Free, Cell::Free], Cell::Free),
            (&[Cell::Free, Cell::Cached], Cell::Cached),
            (&[Cell::Cached, Cell::Of(3)], Cell::Of(3)),
            (&[Cell::Free, Cell::Shared, Cell::Of(1)], Cell::Shared),
            (&[], Cell::Free),
        ];
        for (cells, expected) in cases {
            assert_eq!(summary(cells), expected, "{cells:?}");
        }
    }

    #[test]
    fn quantiles_are_of_the_latest() {
        let mut times = VecDeque::new();
        assert_eq!(quantiles(&times).p95, Duration::ZERO);
        for ms in 0..1000 {
            keep(&mut times, Duration::from_millis(ms));
        }
        assert_eq!(times.len(), MAX_TIMES);
        let Quantiles { p50, p95 } = quantiles(&times);
        assert_eq!((p50, p95), (Duration::from_millis(872), Duration::from_millis(987)));
    }
}
