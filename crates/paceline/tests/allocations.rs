//! After warm-up a step takes no memory: engine, forward pass and sampling together.
#![allow(unsafe_code, reason = "a counting allocator has to implement GlobalAlloc")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use paceline_cpu::quant::TensorType;
use paceline_cpu::{ActDtype, Isa, KvDtype};
use paceline_engine::{Engine, EngineConfig, Priority, Request, SamplingParams};
use paceline_model::Checkpoint;
use paceline_model::cpu_backend::{CpuBackend, CpuOptions};
use paceline_model::gguf::Gguf;
use paceline_model::synth::{SynthSpec, gguf_bytes};
use paceline_model::weights::Weights;

struct Counting;

static N_ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is handed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        N_ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: forwarded contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: forwarded contract.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        N_ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: forwarded contract.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn engine(arch: &str, acts: ActDtype, rows_apart: u32) -> Engine<CpuBackend> {
    let spec = SynthSpec { ty: TensorType::Q4_1, ..SynthSpec::tiny(arch) };
    let gguf = Gguf::parse(gguf_bytes(&spec).unwrap()).unwrap();
    let checkpoint = Arc::new(Checkpoint::from_gguf(gguf).unwrap());
    let weights = Arc::new(Weights::load(checkpoint, Isa::detect(), acts, 1).unwrap());
    let options = CpuOptions {
        n_threads: 2,
        n_blocks: 128,
        kv_dtype: KvDtype::default(),
        max_rows: 64,
        max_model_len: 1024,
        rows_apart,
    };
    let backend = CpuBackend::new(weights, options).unwrap();
    Engine::new(backend, EngineConfig::default()).unwrap()
}

#[test]
fn a_step_allocates_nothing() {
    let architectures = SynthSpec::architectures().into_iter();
    let all = architectures.flat_map(|arch| ActDtype::ALL.map(|acts| (arch, acts)));
    // Twelve rows a step, by both threads together or by each alone.
    let all = all.flat_map(|case| [(case, u32::MAX), (case, 6)]);
    for ((arch, acts), rows_apart) in all {
        let mut engine = engine(arch, acts, rows_apart);
        for i in 0..12u32 {
            let params = SamplingParams {
                temperature: if i % 2 == 0 { 0.0 } else { 0.8 },
                top_k: if i % 3 == 0 { 20 } else { 0 },
                top_p: if i % 4 == 0 { 0.9 } else { 1.0 },
                repetition_penalty: if i % 5 == 0 { 1.1 } else { 1.0 },
                max_tokens: 200,
                ignore_eos: true,
                seed: u64::from(i),
                ..SamplingParams::default()
            };
            let request = Request {
                prompt: (0..20 + 3 * i).map(|j| (i * 31 + j * 7) % 300).collect(),
                params: Arc::new(params),
                priority: Priority::Normal,
                deadline_ns: None,
                tenant: 0,
                constraint: None,
            };
            engine.submit(request, 0).unwrap();
        }
        let mut events = Vec::with_capacity(4096);
        for _ in 0..100 {
            engine.step(0, &mut events);
        }
        events.clear();
        let n_apart = engine.backend().n_steps_apart();
        let before = N_ALLOCATIONS.load(Ordering::Relaxed);
        for _ in 0..80 {
            engine.step(0, &mut events);
        }
        let n = N_ALLOCATIONS.load(Ordering::Relaxed) - before;
        assert_eq!(events.len(), 80 * 12, "{arch}: every sequence was meant to be running");
        assert_eq!(n, 0, "{arch}: 80 steps allocated {n} times");
        let n_apart = engine.backend().n_steps_apart() - n_apart;
        assert_eq!(n_apart, if rows_apart == 6 { 80 } else { 0 }, "{arch}: steps apart");
    }
}
