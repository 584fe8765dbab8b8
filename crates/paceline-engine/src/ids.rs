//! The numbers things are known by.

/// A token of the model's vocabulary.
pub type Token = u32;

/// A request, from `submit` to its last event. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// A KV block: `block_size` token slots in the backend's memory. The engine hands out the
/// numbers; only the backend knows what lies behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u32);
