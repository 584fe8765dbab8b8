//! After warm-up a step allocates nothing.
#![allow(unsafe_code, reason = "a counting allocator has to implement GlobalAlloc")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use paceline_engine::fake::{FakeBackend, FakeFailures, FakeModel};
use paceline_engine::{
    BackendLimits, Drafts, Engine, EngineConfig, Event, Priority, Request, SamplingParams,
    StepOutcome,
};

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

fn count_one() {
    // Fails only while the thread ends, when nobody counts any more.
    let _ = COUNT.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: every call goes to the system's allocator unchanged; counting touches a thread-local
// that needs no allocation.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_one();
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: `block` came from `alloc` or `realloc` above with this layout.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count_one();
        // SAFETY: `block` came from this allocator; the caller vouches for `size`.
        unsafe { System.realloc(block, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn request(i: u32, params: &SamplingParams) -> Request {
    let params = SamplingParams { seed: u64::from(i), ..params.clone() };
    Request {
        prompt: (0..20 + i).map(|token| (token * 7 + i) % 50).collect(),
        params: Arc::new(params),
        priority: Priority::Normal,
        deadline_ns: None,
        tenant: 0,
        constraint: None,
    }
}

/// Sequences cross block borders, fill and register blocks, and use every filter and penalty.
#[test]
fn a_steady_step_allocates_nothing() {
    let limits = BackendLimits {
        n_blocks: 512,
        block_size: 4,
        max_rows: 128,
        max_model_len: 400,
        n_vocab: 50,
    };
    let backend = FakeBackend::new(limits, FakeFailures::default());
    let mut engine = Engine::new(backend, EngineConfig::default()).unwrap();
    let plain = SamplingParams { max_tokens: 120, ..SamplingParams::default() };
    let all = [
        SamplingParams { temperature: 0.0, ..plain.clone() },
        SamplingParams { top_k: 5, top_p: 0.9, min_p: 0.01, typical_p: 0.9, ..plain.clone() },
        SamplingParams { top_p: 0.9, n: 3, ..plain.clone() },
        SamplingParams { repetition_penalty: 1.2, presence_penalty: 0.1, ..plain.clone() },
        plain,
    ];
    for (i, params) in (0..).zip(&all) {
        engine.submit(request(i, params), 0).unwrap();
    }
    let mut events: Vec<Event> = Vec::with_capacity(64);
    for step in 0..10 {
        events.clear();
        engine.step(step, &mut events);
    }
    let before = COUNT.get();
    for step in 10..100 {
        events.clear();
        let outcome = engine.step(step, &mut events);
        assert_eq!(outcome, StepOutcome::Ran { n_rows: 7, n_seqs: 7 });
        assert_eq!(events.len(), 7);
    }
    assert_eq!(COUNT.get() - before, 0, "allocations in 90 steps");
    assert!(engine.backend().violations().is_empty());
}

/// Likewise with guesses at next tokens, as many as there may be.
#[test]
fn a_step_with_drafts_allocates_nothing() {
    let limits = BackendLimits {
        n_blocks: 512,
        block_size: 4,
        max_rows: 128,
        max_model_len: 1200,
        n_vocab: 50,
    };
    let mut model = FakeModel::new(limits.n_vocab);
    model.has_habits = true;
    let backend = FakeBackend::with_model(limits, model, FakeFailures::default());
    let drafts = Drafts { most: 3, base_rows: 1000, tile_rows: 1 };
    let mut engine =
        Engine::new(backend, EngineConfig { drafts, ..EngineConfig::default() }).unwrap();
    for i in 0..4 {
        let params = SamplingParams {
            max_tokens: 400,
            repetition_penalty: if i == 3 { 1.01 } else { 1.0 },
            ..SamplingParams::greedy()
        };
        engine.submit(request(i, &params), 0).unwrap();
    }
    let mut events: Vec<Event> = Vec::with_capacity(64);
    for step in 0..10 {
        events.clear();
        engine.step(step, &mut events);
    }
    let before = COUNT.get();
    for step in 10..80 {
        events.clear();
        engine.step(step, &mut events);
    }
    assert_eq!(COUNT.get() - before, 0, "allocations in 70 steps");
    let stats = engine.stats();
    assert!(stats.n_accepted_tokens > 100, "{stats:?}");
    assert!(engine.backend().violations().is_empty());
}
