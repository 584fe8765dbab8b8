//! How a download tells where it is.

/// Told about a download as it goes. The library draws nothing itself.
pub trait Progress {
    /// A step begins: what it is, and how many bytes it has if that is known.
    fn start(&self, what: &str, total: Option<u64>);
    /// So many bytes of the step are there.
    fn at(&self, bytes: u64);
    /// The step is over, well or not.
    fn finish(&self);
}

/// Says nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn start(&self, _what: &str, _total: Option<u64>) {}
    fn at(&self, _bytes: u64) {}
    fn finish(&self) {}
}
