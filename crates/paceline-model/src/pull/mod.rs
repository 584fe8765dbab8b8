//! Model sources.

mod scratch;

pub(crate) use scratch::ScratchDir;
