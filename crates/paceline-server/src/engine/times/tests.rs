//! A machine with made-up step times and a clock of its own; nothing here is measured.

use std::sync::Arc;

use paceline_engine::fake::{FakeBackend, FakeFailures};
use paceline_engine::{
    BackendLimits, Engine, EngineConfig, Event, EventKind, Priority, Request, RequestId,
    SamplingParams, StepOutcome,
};

use super::*;

/// Steps of 64 streams and prompts of any length.
fn learned(base: f64, per_row: f64) -> StepTimes {
    let mut times = StepTimes::default();
    for i in 0..100 {
        let n_rows = i * 37 % 200;
        let seconds = base + per_row * f64::from(n_rows);
        times.observe(Prompts { n_rows, depth: 0 }, Duration::from_secs_f64(seconds));
    }
    times
}

#[test]
fn shared_steps_are_short_where_the_machine_allows_it() {
    // base, seconds per row, rows of a step, and of one with the prompt of who is behind
    let cases = [
        (0.020, 0.0001, 160, 520),
        (0.028, 0.0001, 80, 440),
        (0.030, 0.0003, SHARED_ROWS, BEHIND_ROWS),
        (0.200, 0.0020, SHARED_ROWS, BEHIND_ROWS),
    ];
    for (base, per_row, usual, behind) in cases {
        let rows = learned(base, per_row).shared_rows();
        assert!(rows.usual.abs_diff(usual) <= 1, "{base} {per_row}: {rows:?}");
        assert!(rows.behind.abs_diff(behind) <= 1, "{base} {per_row}: {rows:?}");
    }
    assert_eq!(StepTimes::default().shared_rows().usual, SHARED_ROWS);
}

const FLOOD: u64 = 1;
const POLITE: u64 = 2;

/// Two keys on an engine. One keeps some requests under way, each with a prompt of 128 tokens and
/// 64 to generate; the other asks one after the other, for 8.
struct Server {
    engine: Engine<FakeBackend>,
    times: StepTimes,
    is_bounded: bool,
    polite: Option<RequestId>,
    seconds: f64,
    n_steps: u32,
    n_requests: u32,
    n_generated: u32,
}

impl Server {
    fn new(n_flood: u32, is_bounded: bool) -> Server {
        let limits = BackendLimits {
            n_blocks: 4096,
            block_size: 16,
            max_rows: 512,
            max_model_len: 1024,
            n_vocab: 64,
        };
        let config = EngineConfig { prefix_cache: false, ..EngineConfig::default() };
        let backend = FakeBackend::new(limits, FakeFailures::default());
        let mut server = Server {
            engine: Engine::new(backend, config).unwrap(),
            times: StepTimes::default(),
            is_bounded,
            polite: None,
            seconds: 0.0,
            n_steps: 0,
            n_requests: 0,
            n_generated: 0,
        };
        (0..n_flood).for_each(|_| _ = server.ask(FLOOD, 64));
        server
    }

    fn ask(&mut self, tenant: u64, max_tokens: u32) -> RequestId {
        let params = SamplingParams { max_tokens, ignore_eos: true, ..SamplingParams::greedy() };
        self.n_requests += 1;
        let request = Request {
            prompt: (0..128).map(|i| (i * 7 + self.n_requests) % 64).collect(),
            params: Arc::new(params),
            priority: Priority::Normal,
            deadline_ns: None,
            tenant,
            constraint: None,
        };
        self.engine.submit(request, self.now_ns()).unwrap()
    }

    fn now_ns(&self) -> u64 {
        (self.seconds * 1e9) as u64
    }

    /// A step about as long as on the machine that docs/server.md has figures of.
    fn step(&mut self) -> Vec<Event> {
        self.n_steps += 1;
        assert!(self.n_steps < 100_000);
        self.engine.set_max_shared_rows(self.is_bounded.then(|| self.times.shared_rows()));
        let mut events = Vec::new();
        if self.engine.step(self.now_ns(), &mut events) == StepOutcome::Idle {
            self.seconds += 0.001;
            return events;
        }
        let mix = self.engine.last_mix();
        let by_rows = 0.00034 * f64::from(mix.n_streams) + 0.00027 * f64::from(mix.n_prompts);
        let scatter = 0.95 + 0.1 * f64::from(self.n_steps * 7 % 11) / 10.0;
        let elapsed = (0.013 + by_rows) * scatter;
        let prompts = Prompts { n_rows: mix.n_prompts, depth: 0 };
        self.times.observe(prompts, Duration::from_secs_f64(elapsed));
        self.seconds += elapsed;
        self.hear(&events);
        events
    }

    /// Who floods asks again as soon as it has an answer.
    fn hear(&mut self, events: &[Event]) {
        for event in events {
            match event.kind {
                EventKind::Token { .. } => self.n_generated += 1,
                EventKind::Finished(_) if self.polite == Some(event.request) => self.polite = None,
                EventKind::Finished(_) => _ = self.ask(FLOOD, 64),
                _ => {}
            }
        }
    }

    /// Asks at a time, often in the middle of a step; seconds until the first token.
    fn ask_politely(&mut self, arrival: f64) -> f64 {
        while self.seconds < arrival {
            self.step();
        }
        let id = self.ask(POLITE, 8);
        self.polite = Some(id);
        let is_first =
            |event: &Event| event.request == id && matches!(event.kind, EventKind::Token { .. });
        while !self.step().iter().any(is_first) {}
        let waited = self.seconds - arrival;
        while self.polite.is_some() {
            self.step();
        }
        waited
    }
}

/// The 95th percentile of the polite key's time to a first token, and all tokens per second.
fn play(n_flood: u32, is_bounded: bool) -> (f64, f64) {
    let mut server = Server::new(n_flood, is_bounded);
    let mut arrival = 5.0;
    let mut waits: Vec<f64> = (0..200)
        .map(|i| {
            let waited = server.ask_politely(arrival);
            arrival = server.seconds + 0.001 * f64::from(i * 7 % 61);
            waited
        })
        .collect();
    waits.sort_unstable_by(f64::total_cmp);
    (waits[waits.len() * 95 / 100], f64::from(server.n_generated) / server.seconds)
}

/// The polite key's first token comes within three times its quiet time, and the other key, which
/// makes up nearly all of the tokens, loses less than a fifth by it.
#[test]
fn a_polite_key_hears_soon_beside_one_that_floods() {
    let (quiet, _) = play(0, true);
    let (free, free_rate) = play(64, false);
    let (shared, shared_rate) = play(64, true);
    let figures = format!(
        "quiet {quiet:.3} s, free {free:.3} s and {free_rate:.0} tok/s, \
         shared {shared:.3} s and {shared_rate:.0} tok/s"
    );
    assert!(free > 3.0 * quiet, "the case is too easy: {figures}");
    assert!(shared < 3.0 * quiet, "{figures}");
    assert!(shared_rate > 0.8 * free_rate, "{figures}");
}
