#![allow(warnings)]
use paceline_cpu::Isa;
use paceline_engine::*;
use paceline_model::{Checkpoint, cpu_backend::*, weights::Weights};
use std::sync::Arc;
use std::time::Instant;
fn main() {
    let path = std::env::args().nth(1).unwrap();
    let t = Instant::now();
    let cp = Arc::new(Checkpoint::open(path.as_ref()).unwrap());
    let w = Arc::new(Weights::load(cp, 2, &|_| ()).unwrap());
    eprintln!("load {:?} bytes {}", t.elapsed(), w.n_bytes());
    let threads: usize = std::env::var("T").map_or(2, |v| v.parse().unwrap());
    let b = CpuBackend::new(
        w.clone(),
        CpuOptions {
            isa: Isa::from_env().unwrap(),
            n_threads: threads,
            n_blocks: 2048,
            max_rows: 512,
            max_model_len: 4096,
        },
    )
    .unwrap();
    let mut b = b;
    if let Some(d) = std::env::args().nth(3) {
        let g: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(d).unwrap()).unwrap();
        let toks: Vec<u32> =
            g["token_ids"].as_array().unwrap().iter().map(|x| x.as_u64().unwrap() as u32).collect();
        let mut batch = Batch::default();
        let n = toks.len() as u32;
        batch.tokens = toks;
        batch.positions = (0..n).collect();
        batch.slots = (0..n).collect();
        batch.seqs.push(BatchSeq { rows: 0..n, blocks: 0..8 });
        batch.block_tables = (0..8).map(BlockId).collect();
        let rows = g["rows"].as_array().unwrap();
        for r in rows {
            batch.samples.push(SampleRow {
                row: r["position"].as_u64().unwrap() as u32,
                task: SampleTask::Next,
                params: Arc::new(SamplingParams::greedy()),
                seed: 0,
                position: 0,
                history: 0..0,
                n_prompt: 0,
                n_generated: 0,
                mask: None,
            });
        }
        let mut kls = vec![];
        b.logits_of(&batch, |i, l| {
            let m = l.iter().copied().fold(f32::MIN, f32::max) as f64;
            let z = l.iter().map(|x| (*x as f64 - m).exp()).sum::<f64>().ln() + m;
            let (mut kl, mut pr, mut qr) = (0.0, 1.0, 1.0);
            for t in rows[i]["top"].as_array().unwrap() {
                let (id, lp) = (t[0].as_u64().unwrap() as usize, t[1].as_f64().unwrap());
                let lq = l[id] as f64 - z;
                kl += lp.exp() * (lp - lq);
                pr -= lp.exp();
                qr -= lq.exp();
            }
            if pr > 0.0 && qr > 0.0 {
                kl += pr * (pr / qr).ln();
            }
            kls.push(kl);
        })
        .unwrap();
        let mean = kls.iter().sum::<f64>() / kls.len() as f64;
        kls.sort_by(|a, b| a.total_cmp(b));
        eprintln!(
            "KL mean {mean:.5} median {:.5} max {:.5}",
            kls[kls.len() / 2],
            kls[kls.len() - 1]
        );
    }
    let mut e = Engine::new(b, EngineConfig { prefix_cache: false, ..Default::default() }).unwrap();
    let golden: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(std::env::args().nth(2).unwrap()).unwrap())
            .unwrap();
    let mut ids = vec![];
    for c in golden["cases"].as_array().unwrap() {
        let prompt: Vec<u32> = c["prompt_token_ids"]
            .as_array()
            .unwrap()
            .iter()
            .map(|x| x.as_u64().unwrap() as u32)
            .collect();
        let n = c["greedy"].as_array().unwrap().len() as u32;
        let params = SamplingParams {
            max_tokens: n,
            ignore_eos: true,
            logprobs: Some(0),
            prompt_logprobs: Some(0),
            ..SamplingParams::greedy()
        };
        ids.push(
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
            .unwrap(),
        );
    }
    let mut ev = vec![];
    let t = Instant::now();
    let mut steps = 0;
    while e.has_work() {
        e.step(0, &mut ev);
        steps += 1;
    }
    eprintln!("{steps} steps {:?}", t.elapsed());
    for (i, c) in golden["cases"].as_array().unwrap().iter().enumerate() {
        let toks: Vec<(u32, f32)> = ev
            .iter()
            .filter(|x| x.request == ids[i])
            .filter_map(|x| match &x.kind {
                EventKind::Token { token, logprob } => {
                    Some((*token, logprob.as_ref().unwrap().logprob))
                }
                _ => None,
            })
            .collect();
        let pl: Vec<f32> = ev
            .iter()
            .filter(|x| x.request == ids[i])
            .filter_map(|x| match &x.kind {
                EventKind::PromptLogprob(l) => Some(l.logprob),
                _ => None,
            })
            .collect();
        let ref_pl: Vec<f64> = c["prompt_logprobs"]
            .as_array()
            .unwrap()
            .iter()
            .skip(1)
            .map(|x| x.as_f64().unwrap())
            .collect();
        let md = pl.iter().zip(&ref_pl).map(|(a, b)| (*a as f64 - b).abs()).fold(0.0, f64::max);
        let g = c["greedy"].as_array().unwrap();
        let mut div = None;
        for (j, x) in g.iter().enumerate() {
            if x["token"].as_u64().unwrap() as u32 != toks[j].0 {
                div = Some((j, x["margin"].as_f64().unwrap()));
                break;
            }
        }
        eprintln!("{} toks {} prompt-lp maxdiff {md:.4} div {div:?}", c["name"], toks.len());
    }
}
