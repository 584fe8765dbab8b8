//! What the commands have in common: flags, the terminal, how errors and signals end a run.

mod args;
mod bench_args;
#[cfg(feature = "serve")]
mod bench_serve_args;
mod console;
mod engine_args;
#[cfg(feature = "serve")]
mod health_args;
mod interrupt;
mod outcome;
mod sampling_args;
#[cfg(feature = "serve")]
mod serve_args;
mod synth_args;
mod values;
#[cfg(feature = "nats")]
mod worker_args;

pub(crate) use args::{BatchArgs, Cli, Command, InspectArgs, LineFormat, PullArgs, RunArgs};
pub(crate) use bench_args::{
    BenchArgs, BenchCommand, CeilingsArgs, CurveArgs, KernelsArgs, ScalingArgs, ShapeArgs,
    StrategiesArgs, Strategy, ThroughputArgs,
};
#[cfg(feature = "serve")]
pub(crate) use bench_serve_args::{
    BenchServeArgs, DataArgs, Dataset, Endpoint, FigureArgs, Goal, Metric,
};
pub(crate) use console::{Console, LogFormat, Verbosity};
pub(crate) use engine_args::{EngineArgs, MemoryArgs, SourceArgs};
#[cfg(feature = "serve")]
pub(crate) use health_args::HealthArgs;
pub(crate) use interrupt::Interrupt;
pub(crate) use outcome::{Outcome, UsageError, is_broken_pipe, sentence};
pub(crate) use sampling_args::SamplingArgs;
#[cfg(feature = "serve")]
pub(crate) use serve_args::ServeArgs;
pub(crate) use synth_args::SynthArgs;
pub(crate) use values::{ByteSize, Span};
#[cfg(feature = "nats")]
pub(crate) use worker_args::WorkerArgs;
