#![allow(warnings)]
use paceline_cpu::Isa;
use paceline_engine::*;
use paceline_model::{Checkpoint, cpu_backend::*, weights::Weights};
use std::sync::Arc;
use std::time::Instant;
fn main() {
    let path = std::env::args().nth(1).unwrap();
    let cp = Arc::new(Checkpoint::open(path.as_ref()).unwrap());
    let w = Arc::new(Weights::load(cp, 2, &|_| ()).unwrap());
    let threads: usize = std::env::var("T").map_or(2, |v| v.parse().unwrap());
    let rows: u32 = std::env::var("R").map_or(512, |v| v.parse().unwrap());
    let b = CpuBackend::new(
        w.clone(),
        CpuOptions {
            isa: Isa::from_env().unwrap(),
            n_threads: threads,
            n_blocks: 2048,
            max_rows: rows,
            max_model_len: 4096,
        },
    )
    .unwrap();
    let mut e = Engine::new(
        b,
        EngineConfig { prefix_cache: false, max_num_batched_tokens: rows, ..Default::default() },
    )
    .unwrap();
    for round in 0..2 {
        for bs in [1u32, 2, 4, 8, 16, 32, 64, 128] {
            for i in 0..bs {
                let prompt: Vec<u32> =
                    (0..128).map(|j| (i * 7919 + j * 104729 + 13) % 49000).collect();
                let params =
                    SamplingParams { max_tokens: 64, ignore_eos: true, ..SamplingParams::greedy() };
                e.submit(
                    Request {
                        prompt,
                        params: Arc::new(params),
                        priority: Priority::Normal,
                        deadline_ns: None,
                        tenant: 0,
                    },
                    0,
                )
                .unwrap();
            }
            let mut ev = vec![];
            let t = Instant::now();
            // prefill until all have first token
            let mut firsts = 0;
            while firsts < bs as usize {
                e.step(0, &mut ev);
                firsts = ev
                    .iter()
                    .filter(|x| matches!(x.kind, EventKind::Token { .. }))
                    .map(|x| x.request)
                    .collect::<std::collections::HashSet<_>>()
                    .len();
            }
            let tp = t.elapsed().as_secs_f64();
            let n0 = ev.iter().filter(|x| matches!(x.kind, EventKind::Token { .. })).count();
            let t = Instant::now();
            while e.has_work() {
                e.step(0, &mut ev);
            }
            let td = t.elapsed().as_secs_f64();
            let n1 = ev.iter().filter(|x| matches!(x.kind, EventKind::Token { .. })).count();
            println!(
                "batch {bs}: prefill {:.0} tok/s decode {:.0} tok/s",
                bs as f64 * 128.0 / tp,
                (n1 - n0) as f64 / td
            );
        }
    }
}
