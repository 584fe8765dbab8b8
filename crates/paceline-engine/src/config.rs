//! How an engine is set up.

use std::fmt;

use crate::backend::BackendLimits;

/// Settings of one engine. Sizes that concern memory come from the backend's limits.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineConfig {
    /// Sequences that may run at once.
    pub max_num_seqs: u32,
    /// Rows a step may have; the backend's own limit applies as well.
    pub max_num_batched_tokens: u32,
    /// Most rows one sequence may have in a step; 0 is no cap.
    pub long_prefill_token_threshold: u32,
    /// While sequences generate, most rows of a step that may go to prompts, so that a step does
    /// not take longer than they can wait; `None` is no cap. Can be changed between steps.
    pub max_prefill_rows: Option<u32>,
    /// While sequences of other classes run or wait, most rows of a step that may go to the batch
    /// class, prompts and next tokens alike; `None` is no cap. Can be changed between steps.
    pub max_batch_rows: Option<u32>,
    /// While tenants share steps (several have requests that are not of the batch class, or had
    /// some seconds ago), most rows of a step that may go to prompts; `None` is no cap. Can be
    /// changed between steps.
    pub max_shared_rows: Option<SharedRows>,
    /// Reuse the KV of prompts and outputs that begin alike.
    pub prefix_cache: bool,
    /// Secret that keys the prefix cache's hashes; random per process in a server.
    pub hash_key: [u8; 16],
    /// Requests that may wait for their first step.
    pub max_waiting_requests: u32,
    /// Prompt tokens that may wait for their first step. One prompt may always wait.
    pub max_waiting_tokens: u64,
    /// After this many preemptions a sequence is only started with its worst case set aside, and
    /// not preempted again.
    pub max_preemptions: u32,
    /// Share of the pool, in thousandths, that admission leaves free.
    pub watermark_permille: u32,
    /// How much of `max_tokens` admission expects a sequence to use.
    pub output_ratio: OutputRatio,
    pub batching: Batching,
    /// Guesses at next tokens that are computed along and kept where they turn out right.
    pub drafts: Drafts,
}

/// How many guesses at a sequence's next tokens may be computed beside them, and what that costs.
/// They change how soon tokens come, and never which.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drafts {
    /// Most that a sequence may have in a step; 0 is none.
    pub most: u32,
    /// What a step takes before its first row, in rows: where it is much, few more rows are cheap.
    pub base_rows: u32,
    /// Rows that are computed together, whether there are so many or fewer; 0 is as good as 1.
    pub tile_rows: u32,
}

/// More than anybody can guess right; memory is set aside for all of them.
const MAX_DRAFTS: u32 = 64;

/// What prompts may have of a step that tenants share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedRows {
    /// All of them together.
    pub usual: u32,
    /// If more, what the first of them may have, where its tenant has had less than another: a
    /// short prompt of one who asks little need not be cut. The others then get nothing beyond
    /// `usual`.
    pub behind: u32,
}

/// The expected share of `max_tokens` that sequences really generate: falls while all goes well,
/// rises with each preemption.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OutputRatio {
    pub initial: f64,
    pub least: f64,
    /// Steps from `initial` down to `least`.
    pub n_decay_steps: u32,
}

/// When waiting requests may start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Batching {
    /// As soon as there is room.
    #[default]
    Continuous,
    /// As soon as there is room, but each step computes one sequence alone, all in turn:
    /// concurrency without batching, to compare with.
    Interleaved,
    /// In groups that run to completion: when `max_batch_size` requests wait, or `window_ns` after
    /// the oldest of them arrived.
    Window { max_batch_size: u32, window_ns: u64 },
    /// In groups that run to completion: up to `max_batch_size` of what waits.
    Static { max_batch_size: u32 },
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            max_num_seqs: 256,
            max_num_batched_tokens: 512,
            long_prefill_token_threshold: 0,
            max_prefill_rows: None,
            max_batch_rows: None,
            max_shared_rows: None,
            prefix_cache: true,
            hash_key: [0; 16],
            max_waiting_requests: 4096,
            max_waiting_tokens: 1 << 22,
            max_preemptions: 4,
            watermark_permille: 10,
            output_ratio: OutputRatio::default(),
            batching: Batching::Continuous,
            drafts: Drafts::default(),
        }
    }
}

impl Default for OutputRatio {
    fn default() -> Self {
        Self { initial: 0.7, least: 0.1, n_decay_steps: 600 }
    }
}

/// A configuration no engine can run with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// The setting must be at least 1.
    Zero { name: &'static str },
    /// The setting is outside its range.
    OutOfRange { name: &'static str, allowed: &'static str },
    /// The backend reports a size the engine cannot address.
    Backend { what: &'static str },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zero { name } => write!(f, "{name} is 0, but must be at least 1"),
            Self::OutOfRange { name, allowed } => write!(f, "{name} must be {allowed}"),
            Self::Backend { what } => write!(f, "the backend cannot be used: {what}"),
        }
    }
}

impl std::error::Error for ConfigError {}

impl EngineConfig {
    pub(crate) fn validate(&self, limits: &BackendLimits) -> Result<(), ConfigError> {
        let at_least_one = [
            ("max_num_seqs", self.max_num_seqs),
            ("max_num_batched_tokens", self.max_num_batched_tokens),
            ("max_waiting_requests", self.max_waiting_requests),
            ("max_preemptions", self.max_preemptions),
            ("max_batch_size", self.batching.max_batch_size().unwrap_or(1)),
        ];
        for (name, value) in at_least_one {
            if value == 0 {
                return Err(ConfigError::Zero { name });
            }
        }
        if self.watermark_permille > 1000 {
            let name = "watermark_permille";
            return Err(ConfigError::OutOfRange { name, allowed: "at most 1000" });
        }
        if self.drafts.most > MAX_DRAFTS {
            let name = "num_speculative_tokens";
            return Err(ConfigError::OutOfRange { name, allowed: "at most 64" });
        }
        let OutputRatio { initial, least, .. } = self.output_ratio;
        if !(0.0 <= least && least <= initial && initial <= 1.0) {
            let name = "output_ratio";
            return Err(ConfigError::OutOfRange { name, allowed: "0 <= least <= initial <= 1" });
        }
        validate_limits(limits)
    }
}

fn validate_limits(limits: &BackendLimits) -> Result<(), ConfigError> {
    let BackendLimits { n_blocks, block_size, max_rows, max_model_len, n_vocab } = *limits;
    let what = if n_blocks == 0 || block_size == 0 {
        "its KV pool has no room"
    } else if max_rows == 0 {
        "its steps have no rows"
    } else if max_model_len < 2 {
        "its context is shorter than two tokens"
    } else if n_vocab == 0 {
        "its vocabulary is empty"
    } else if n_blocks >= u32::MAX - 1 || n_blocks.checked_mul(block_size).is_none() {
        "its KV pool has more slots than 32 bits can number"
    } else {
        return Ok(());
    };
    Err(ConfigError::Backend { what })
}

impl Batching {
    /// Requests a group may have; `None` when there are no groups.
    pub(crate) fn max_batch_size(self) -> Option<u32> {
        match self {
            Self::Continuous | Self::Interleaved => None,
            Self::Window { max_batch_size, .. } | Self::Static { max_batch_size } => {
                Some(max_batch_size)
            }
        }
    }
}
