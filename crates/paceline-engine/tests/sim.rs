//! Random workloads against the fake backend, every invariant checked after every step.
//!
//! `SIM_SEED=n` replays one workload; `SIM_COUNT=n` changes how many are run.

#[path = "sim/run.rs"]
mod run;
#[path = "sim/workload.rs"]
mod workload;

use std::panic::{AssertUnwindSafe, catch_unwind};

use run::Coverage;
use workload::Workload;

#[test]
fn random_workloads_keep_every_invariant() {
    if let Some(seed) = number_from_env("SIM_SEED") {
        let mut coverage = Coverage::default();
        run_seed(seed, &mut coverage);
        println!("{coverage:?}");
        return;
    }
    let count = number_from_env("SIM_COUNT").unwrap_or(10_000);
    let mut coverage = Coverage::default();
    for seed in 0..count {
        run_seed(seed, &mut coverage);
    }
    println!("{coverage:?}");
    if count >= 1_000 {
        coverage.assert_everything_happened();
    }
}

fn run_seed(seed: u64, coverage: &mut Coverage) {
    let workload = Workload::random(seed);
    let outcome = catch_unwind(AssertUnwindSafe(|| run::run(&workload)));
    let report = match outcome {
        Ok(Ok(report)) => report,
        Ok(Err(what)) => panic!("SIM_SEED={seed} fails: {what}\n{}", workload.summary()),
        Err(_) => panic!("SIM_SEED={seed} panicked (see above)"),
    };
    if seed.is_multiple_of(16) {
        let again = run::run(&workload).expect("it has just passed");
        assert!(
            report.events == again.events,
            "SIM_SEED={seed} gives other events the second time"
        );
    }
    coverage.add(&report);
}

fn number_from_env(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name}={value} is not a number")))
}
