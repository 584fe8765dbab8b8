//! What a spectator sees.

use super::*;
use crate::blocks::BlockUse;
use crate::scheduler::StepRows;

#[test]
fn steps_are_traced_by_sequence() {
    let mut engine = engine(LIMITS, EngineConfig::default());
    let long = engine.submit(request(prompt(1, 40), params(3)), 0).unwrap();
    engine.set_trace(true);
    let mut seen = Vec::new();
    while engine.has_work() {
        step(&mut engine, 0);
        seen.push(engine.last_rows().to_vec());
    }
    let rows = |n_rows, is_decode| vec![StepRows { request: long, index: 0, n_rows, is_decode }];
    assert_eq!(seen, [rows(32, false), rows(8, false), rows(1, true), rows(1, true)]);
    engine.set_trace(false);
    assert_eq!(engine.last_rows(), []);
}

#[test]
fn running_sequences_and_their_blocks_can_be_seen() {
    let mut engine = engine(LIMITS, EngineConfig::default());
    let pair = SamplingParams { n: 2, ..params(9) };
    engine.submit(request(prompt(1, 10), pair), 0).unwrap();
    step(&mut engine, 0);
    let seen: Vec<_> = engine.running().collect();
    assert_eq!(seen.iter().map(|seq| seq.index).collect::<Vec<_>>(), [0, 1]);
    assert!(seen.iter().all(|seq| (seq.n_prompt, seq.n_computed) == (10, 10)));
    let uses: Vec<BlockUse> = engine.block_uses().collect();
    assert_eq!(uses.len(), 64);
    for block in seen[0].blocks {
        assert!(matches!(uses[block.0 as usize], BlockUse::Used(1 | 2)));
    }
    assert!(uses.contains(&BlockUse::Used(2)), "the prompt's full blocks are shared");
    run_all(&mut engine);
    assert_eq!(engine.running().count(), 0);
    let n_cached = engine.block_uses().filter(|&block| block == BlockUse::Cached).count();
    assert_eq!(n_cached as u32, engine.stats().n_cached_blocks);
    assert!(n_cached > 0 && engine.block_uses().all(|block| !matches!(block, BlockUse::Used(_))));
}
