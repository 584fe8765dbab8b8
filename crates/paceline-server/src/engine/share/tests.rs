//! A machine with made-up step times and a clock of its own; nothing here is measured.

use std::collections::BTreeMap;
use std::sync::Arc;

use paceline_engine::fake::{FakeBackend, FakeFailures};
use paceline_engine::{
    BackendLimits, Engine, EngineConfig, Event, EventKind, Priority, Request, RequestId,
    SamplingParams, StepOutcome,
};

use super::*;

const N_STREAMS: u32 = 8;

/// Steps take `base` and `per_row` for each row, and sometimes are disturbed.
#[derive(Clone, Copy)]
struct Machine {
    base: f64,
    per_row: f64,
    n_steps: u32,
}

impl Machine {
    fn step(&mut self, n_rows: u32) -> Duration {
        self.n_steps += 1;
        let scatter = 0.95 + 0.1 * f64::from(self.n_steps * 7 % 11) / 10.0;
        let disturbance = if self.n_steps.is_multiple_of(13) { 3.0 } else { 1.0 };
        let seconds = (self.base + self.per_row * f64::from(n_rows)) * scatter * disturbance;
        Duration::from_secs_f64(seconds)
    }

    /// Without scatter.
    fn seconds(&self, n_rows: u32) -> f64 {
        self.base + self.per_row * f64::from(n_rows)
    }
}

/// Rows of lines in each of so many steps beside streams, with any number of lines at hand.
fn run(share: &mut BatchShare, machine: &mut Machine, n_steps: u32) -> Vec<u32> {
    let mut rows = Vec::new();
    for _ in 0..n_steps {
        let n_batch = share.rows();
        let elapsed = machine.step(N_STREAMS + n_batch);
        share
            .observe(StepMix { n_batch, n_streams: N_STREAMS, n_prompts: 0, n_before: 0 }, elapsed);
        rows.push(n_batch);
    }
    rows
}

fn by_factor(factor: f64) -> BatchShare {
    BatchShare::new(Goals { factor: Some(factor), target: None }, 512).unwrap()
}

#[test]
fn steps_take_as_long_as_they_may_and_no_longer() {
    for (base, per_row) in [(0.008, 0.0004), (0.002, 0.00001), (0.03, 0.001), (0.001, 0.002)] {
        let mut machine = Machine { base, per_row, n_steps: 0 };
        let mut share = by_factor(1.4);
        run(&mut share, &mut machine, 300);
        let rows = run(&mut share, &mut machine, 160);
        let quiet = machine.seconds(N_STREAMS);
        let wanted = (0.4 * quiet / per_row).clamp(1.0, 512.0);
        for &n_batch in rows.iter().filter(|&&n_batch| n_batch > 1) {
            let factor = machine.seconds(N_STREAMS + n_batch) / quiet;
            assert!(factor < 1.5, "{base} {per_row}: {factor} times as long in {rows:?}");
        }
        let mean = f64::from(rows.iter().sum::<u32>()) / rows.len() as f64;
        assert!(mean > 0.6 * wanted, "{base} {per_row}: {mean} of {wanted} rows in {rows:?}");
        let n_quiet = rows.iter().filter(|&&n_batch| n_batch == 0).count();
        assert!((8..=12).contains(&n_quiet), "{n_quiet} steps without lines");
    }
}

#[test]
fn the_share_follows_the_machine() {
    let mut machine = Machine { base: 0.008, per_row: 0.0002, n_steps: 0 };
    let mut share = by_factor(1.4);
    run(&mut share, &mut machine, 300);
    let before = share.usual_rows();
    machine.per_row = 0.0008;
    run(&mut share, &mut machine, 600);
    let after = share.usual_rows();
    assert!(after < before, "{before} {after}");
    let factor = machine.seconds(N_STREAMS + after) / machine.seconds(N_STREAMS);
    assert!((1.2..1.5).contains(&factor), "{factor}");
}

#[test]
fn a_target_bounds_steps_too() {
    let target = Some(Duration::from_millis(25));
    let mut machine = Machine { base: 0.01, per_row: 0.0005, n_steps: 0 };
    for (factor, seconds) in [(None, 0.02), (Some(1.2), 0.0168), (Some(3.0), 0.02)] {
        let mut share = BatchShare::new(Goals { factor, target }, 512).unwrap();
        run(&mut share, &mut machine, 400);
        let reached = machine.seconds(N_STREAMS + share.usual_rows());
        assert!((0.85..1.1).contains(&(reached / seconds)), "{factor:?}: {reached}");
    }
    let slow = Some(Duration::from_millis(5));
    let mut share = BatchShare::new(Goals { factor: None, target: slow }, 512).unwrap();
    run(&mut share, &mut machine, 200);
    assert_eq!(share.usual_rows(), 1, "batches go on, however slowly");
    assert!(BatchShare::new(Goals::default(), 512).is_none());
}

/// A few lines that leave most of their share unused do not let it grow for the many that follow.
#[test]
fn what_was_not_tried_is_not_allowed() {
    let mut machine = Machine { base: 0.008, per_row: 0.0004, n_steps: 0 };
    let mut share = by_factor(1.4);
    for _ in 0..400 {
        let n_batch = share.rows().min(2);
        let elapsed = machine.step(N_STREAMS + n_batch);
        share
            .observe(StepMix { n_batch, n_streams: N_STREAMS, n_prompts: 0, n_before: 0 }, elapsed);
    }
    assert!(share.usual_rows() <= 6, "{}", share.usual_rows());
}

#[test]
fn prompts_of_others_do_not_mislead_and_do_not_starve_lines() {
    let mut machine = Machine { base: 0.008, per_row: 0.0004, n_steps: 0 };
    let mut share = by_factor(1.4);
    let mut mixed = |share: &mut BatchShare, n_prompts: u32| {
        let n_batch = share.rows();
        let elapsed = machine.step(N_STREAMS + n_batch + n_prompts);
        share.observe(StepMix { n_batch, n_streams: N_STREAMS, n_prompts, n_before: 0 }, elapsed);
        n_batch
    };
    (0..600).for_each(|i| _ = mixed(&mut share, if i % 5 == 0 { 128 } else { 0 }));
    assert!((6..=14).contains(&share.usual_rows()), "{}", share.usual_rows());
    let rows: u32 = (0..1200).map(|_| mixed(&mut share, 40)).sum();
    assert!(rows > 1200 * 6, "{rows}");
}

fn request(priority: Priority, n_prompt: u32, max_tokens: u32) -> Request {
    let params = SamplingParams { max_tokens, ignore_eos: true, ..SamplingParams::greedy() };
    Request {
        prompt: (0..n_prompt).map(|i| i % 50).collect(),
        params: Arc::new(params),
        priority,
        deadline_ns: None,
        tenant: 0,
        constraint: None,
    }
}

/// Eight streams beside a job, on the engine itself: each takes its step's time in made-up seconds.
/// Answers are those of the same requests without any share.
#[test]
fn streams_keep_their_pace_beside_a_job() {
    let limits = BackendLimits {
        n_blocks: 4096,
        block_size: 16,
        max_rows: 512,
        max_model_len: 1024,
        n_vocab: 64,
    };
    let play = |mut share: Option<BatchShare>| {
        let config = EngineConfig { max_num_seqs: 64, ..EngineConfig::default() };
        let backend = FakeBackend::new(limits, FakeFailures::default());
        let mut engine = Engine::new(backend, config).unwrap();
        let mut machine = Machine { base: 0.008, per_row: 0.0004, n_steps: 0 };
        for i in 0..N_STREAMS {
            engine.submit(request(Priority::Normal, 30 + i, 400), 0).unwrap();
        }
        let (mut events, mut steps) = (Vec::new(), Vec::new());
        for n_steps in 0..20_000 {
            if n_steps == 20 {
                for i in 0..300 {
                    engine.submit(request(Priority::Batch, 20 + i % 60, 40), 0).unwrap();
                }
            }
            let cap = share.as_ref().map(BatchShare::rows);
            engine.set_max_batch_rows(cap);
            match engine.step(0, &mut events) {
                StepOutcome::Ran { n_rows, .. } => {
                    let mix = engine.last_mix();
                    steps.push((mix, n_rows));
                    if let Some(share) = &mut share {
                        share.observe(mix, machine.step(n_rows));
                    }
                }
                _ => break,
            }
        }
        assert!(!engine.has_work());
        (answers(&events), steps)
    };
    let (free, _) = play(None);
    let (paced, steps) = play(Some(by_factor(1.4)));
    assert_eq!(paced, free, "a share changed an answer");
    let machine = Machine { base: 0.008, per_row: 0.0004, n_steps: 0 };
    let quiet = machine.seconds(N_STREAMS);
    let beside: Vec<StepMix> =
        steps.iter().map(|&(mix, _)| mix).filter(|mix| mix.n_streams == N_STREAMS).collect();
    let n_slow = beside.iter().filter(|mix| machine.seconds(8 + mix.n_batch) > 1.5 * quiet).count();
    assert!(n_slow * 20 < beside.len(), "{n_slow} of {} steps are too slow", beside.len());
    let n_lines: u32 = beside.iter().map(|mix| mix.n_batch).sum();
    assert!(n_lines as usize > 5 * beside.len(), "the job goes on: {n_lines} rows");
    let alone = steps.iter().filter(|(mix, _)| mix.n_streams + mix.n_prompts == 0);
    let most = alone.map(|&(_, n_rows)| n_rows).max();
    assert!(most >= Some(60), "alone it takes everything: {most:?}");
}

/// The tokens of every request.
fn answers(events: &[Event]) -> BTreeMap<RequestId, Vec<u32>> {
    let mut answers: BTreeMap<RequestId, Vec<u32>> = BTreeMap::new();
    for event in events {
        if let EventKind::Token { token, .. } = event.kind {
            answers.entry(event.request).or_default().push(token);
        }
    }
    answers
}
