//! A random workload: limits, configuration, requests, and what is done to them.

use std::sync::Arc;

use paceline_engine::fake::{FakeConstraint, FakeFailures};
use paceline_engine::{
    BackendLimits, Batching, Constraint, Drafts, EngineConfig, OutputRatio, Pooling, Priority,
    Request, SamplingParams, SharedRows,
};

/// A small generator of the tests' own.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x6a09_e667_f3bc_c909)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    /// From `low` to `high`, both included.
    pub(crate) fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.next().is_multiple_of(n)
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.range(0, from.len() as u64 - 1) as usize]
    }
}

#[derive(Debug)]
pub(crate) struct Workload {
    pub(crate) limits: BackendLimits,
    pub(crate) config: EngineConfig,
    pub(crate) failures: FakeFailures,
    pub(crate) nan_one_in: u64,
    pub(crate) has_habits: bool,
    pub(crate) arrivals: Vec<Arrival>,
    pub(crate) actions: Vec<Action>,
    pub(crate) step_ns: u64,
    /// What the batch class may have beside others, step by step, again and again.
    pub(crate) batch_rows: Vec<Option<u32>>,
    /// What prompts may have while tenants share steps; likewise.
    pub(crate) shared_rows: Vec<Option<SharedRows>>,
}

#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) step: u64,
    pub(crate) request: Request,
}

/// Something done from outside, before a step.
#[derive(Debug)]
pub(crate) struct Action {
    pub(crate) step: u64,
    /// Which arrival it concerns.
    pub(crate) arrival: usize,
    pub(crate) kind: ActionKind,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum ActionKind {
    Cancel,
    CancelIndex(u32),
    StopIndex(u32),
}

impl Workload {
    pub(crate) fn random(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let r = &mut random;
        let limits = random_limits(r);
        let config = random_config(r);
        let step_ns = r.range(1, 1000);
        let n_requests = r.range(1, 20) as usize;
        let last_step = r.pick(&[0, 10, 60]);
        let prefixes: Vec<Vec<u32>> =
            (0..3).map(|_| random_tokens(r, limits.max_model_len as u64, limits.n_vocab)).collect();
        let mut arrivals: Vec<Arrival> = (0..n_requests)
            .map(|_| {
                let step = r.range(0, last_step);
                let request = random_request(r, &limits, &config, &prefixes, step * step_ns);
                Arrival { step, request }
            })
            .collect();
        arrivals.sort_by_key(|arrival| arrival.step);
        let n_actions = if r.one_in(2) { r.range(0, 6) } else { 0 };
        let actions = (0..n_actions).map(|_| random_action(r, &arrivals)).collect();
        let failures = if r.one_in(5) { random_failures(r) } else { FakeFailures::default() };
        let nan_one_in = if r.one_in(5) { r.range(10, 200) } else { 0 };
        let has_habits = r.one_in(2);
        let batch_rows = (0..r.range(1, 4)).map(|_| random_batch_rows(r)).collect();
        let shared_rows = (0..r.range(1, 4)).map(|_| random_shared_rows(r)).collect();
        Self {
            limits,
            config,
            failures,
            nan_one_in,
            has_habits,
            arrivals,
            actions,
            step_ns,
            batch_rows,
            shared_rows,
        }
    }

    pub(crate) fn summary(&self) -> String {
        let Self { limits, config, failures, nan_one_in, actions, .. } = self;
        let Self { has_habits, batch_rows, shared_rows, .. } = self;
        let mut lines = vec![format!(
            "{limits:?}\n{config:?}\n{failures:?} nan_one_in {nan_one_in} has_habits {has_habits}\n\
             {actions:?}\nbatch_rows {batch_rows:?} shared_rows {shared_rows:?}"
        )];
        lines.extend(self.arrivals.iter().map(|arrival| format!("{arrival:?}")));
        lines.join("\n")
    }
}

fn random_limits(r: &mut Random) -> BackendLimits {
    let block_size = r.pick(&[1, 2, 4, 4, 8]);
    let most_blocks = r.pick(&[24, 24, 24, 80]);
    let n_blocks = r.range(2, most_blocks) as u32;
    let n_slots = n_blocks * block_size;
    BackendLimits {
        n_blocks,
        block_size,
        max_rows: r.range(1, 48) as u32,
        // Sometimes more than the pool holds: such requests must be refused, not hang.
        max_model_len: r.range(4, u64::from(n_slots + n_slots / 8).max(8)) as u32,
        n_vocab: r.range(4, 24) as u32,
    }
}

fn random_config(r: &mut Random) -> EngineConfig {
    let max_batch_size = r.range(1, 6) as u32;
    let initial = r.pick(&[0.0, 0.3, 0.7, 1.0]);
    EngineConfig {
        max_num_seqs: r.range(1, 16) as u32,
        max_num_batched_tokens: r.range(1, 48) as u32,
        max_prefill_rows: r.one_in(3).then(|| r.range(1, 8) as u32),
        max_batch_rows: None,
        max_shared_rows: None,
        long_prefill_token_threshold: if r.one_in(3) { r.range(1, 8) as u32 } else { 0 },
        prefix_cache: !r.one_in(4),
        hash_key: [r.range(0, 255) as u8; 16],
        max_waiting_requests: r.pick(&[2, 8, 64, 64]),
        max_waiting_tokens: r.pick(&[16, 100, 10_000, 10_000]),
        max_preemptions: r.range(1, 4) as u32,
        watermark_permille: r.pick(&[0, 10, 200]),
        output_ratio: OutputRatio { initial, least: initial * 0.2, n_decay_steps: 20 },
        batching: match r.range(0, 5) {
            0 => Batching::Window { max_batch_size, window_ns: r.range(0, 4000) },
            1 => Batching::Static { max_batch_size },
            2 => Batching::Interleaved,
            _ => Batching::Continuous,
        },
        drafts: random_drafts(r),
    }
}

fn random_drafts(r: &mut Random) -> Drafts {
    let most = if r.one_in(3) { 0 } else { r.range(1, 9) as u32 };
    Drafts { most, base_rows: r.pick(&[0, 2, 16, 1000]), tile_rows: r.pick(&[1, 4, 16]) }
}

fn random_batch_rows(r: &mut Random) -> Option<u32> {
    (!r.one_in(3)).then(|| r.range(0, 4) as u32)
}

fn random_shared_rows(r: &mut Random) -> Option<SharedRows> {
    let usual = r.range(0, 6) as u32;
    r.one_in(2).then(|| SharedRows { usual, behind: r.range(0, 12) as u32 })
}

fn random_tokens(r: &mut Random, max_len: u64, n_vocab: u32) -> Vec<u32> {
    let len = r.range(1, max_len);
    (0..len).map(|_| r.range(0, u64::from(n_vocab) - 1) as u32).collect()
}

fn random_request(
    r: &mut Random,
    limits: &BackendLimits,
    config: &EngineConfig,
    prefixes: &[Vec<u32>],
    arrival_ns: u64,
) -> Request {
    let mut prompt = Vec::new();
    if !r.one_in(3) {
        let prefix = &prefixes[r.range(0, prefixes.len() as u64 - 1) as usize];
        prompt.extend_from_slice(&prefix[..r.range(0, prefix.len() as u64) as usize]);
    }
    let max_tail = if r.one_in(3) { limits.max_model_len } else { limits.max_model_len / 4 + 1 };
    prompt.extend(random_tokens(r, u64::from(max_tail), limits.n_vocab));
    if !r.one_in(8) {
        prompt.truncate(limits.max_model_len as usize * 3 / 4);
    }
    let priorities = [Priority::High, Priority::Normal, Priority::Low, Priority::Batch];
    Request {
        prompt,
        params: Arc::new(random_params(r, limits, config)),
        priority: r.pick(&priorities),
        deadline_ns: r.one_in(6).then(|| arrival_ns + r.range(0, 30_000)),
        tenant: r.range(0, 1),
        constraint: r.one_in(4).then(|| random_constraint(r, limits)),
    }
}

fn random_constraint(r: &mut Random, limits: &BackendLimits) -> Box<dyn Constraint> {
    let n_tokens = r.range(1, u64::from(limits.max_model_len)) as u32;
    Box::new(FakeConstraint::new(limits.n_vocab, n_tokens))
}

fn random_params(r: &mut Random, limits: &BackendLimits, config: &EngineConfig) -> SamplingParams {
    let n = if r.one_in(3) { r.range(1, u64::from(config.max_num_seqs).min(5)) as u32 } else { 1 };
    let max_tokens = r.range(1, u64::from(limits.max_model_len)) as u32;
    let pooling = r.one_in(8).then(|| r.pick(&[Pooling::Last, Pooling::Mean]));
    let n = if pooling.is_some() { 1 } else { n };
    let last_token = u64::from(limits.n_vocab) - 1;
    SamplingParams {
        n,
        temperature: r.pick(&[0.0, 0.0, 0.7, 1.5]),
        top_k: r.pick(&[0, 0, 3]),
        top_p: r.pick(&[1.0, 0.8]),
        min_p: r.pick(&[0.0, 0.0, 0.05]),
        typical_p: r.pick(&[1.0, 1.0, 0.9]),
        repetition_penalty: r.pick(&[1.0, 1.0, 1.3]),
        presence_penalty: r.pick(&[0.0, 0.0, 0.5]),
        frequency_penalty: r.pick(&[0.0, 0.0, 0.2]),
        logit_bias: if r.one_in(4) {
            vec![(r.range(0, last_token) as u32, 3.0)]
        } else {
            Vec::new()
        },
        stop_tokens: if r.one_in(2) { vec![r.range(0, last_token) as u32] } else { Vec::new() },
        ignore_eos: r.one_in(5),
        min_tokens: if r.one_in(4) { max_tokens.min(3) } else { 0 },
        max_tokens,
        seed: r.range(0, 1_000_000),
        logprobs: if r.one_in(4) { Some(r.range(0, 3) as u32) } else { None },
        prompt_logprobs: if r.one_in(5) { Some(r.range(0, 3) as u32) } else { None },
        pooling,
    }
}

fn random_action(r: &mut Random, arrivals: &[Arrival]) -> Action {
    let arrival = r.range(0, arrivals.len() as u64 - 1) as usize;
    let index = r.range(0, 4) as u32;
    let kind = match r.range(0, 2) {
        0 => ActionKind::Cancel,
        1 => ActionKind::CancelIndex(index),
        _ => ActionKind::StopIndex(index),
    };
    Action { step: arrivals[arrival].step + r.range(0, 40), arrival, kind }
}

fn random_failures(r: &mut Random) -> FakeFailures {
    let mut failures = FakeFailures::default();
    for _ in 0..r.range(1, 3) {
        let step = r.range(0, 60);
        match r.range(0, 2) {
            0 => failures.submit_at.insert(step),
            1 => failures.collect_at.insert(step),
            _ => failures.short_at.insert(step),
        };
    }
    failures
}
