//! A tensor as the loader sees it, whatever file it came from, and the part it plays in a model.

use paceline_cpu::quant::TensorType;

/// A matrix (or a vector: one row) in a mapped file.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    pub name: &'a str,
    pub ty: TensorType,
    pub rows: usize,
    /// Values in a row, which are contiguous.
    pub cols: usize,
    /// `rows * ty.row_bytes(cols)` bytes.
    pub data: &'a [u8],
}

impl<'a> TensorView<'a> {
    /// The bytes of one row.
    ///
    /// # Panics
    /// When there is no such row.
    pub fn row(&self, row: usize) -> &'a [u8] {
        let row_bytes = self.data.len() / self.rows;
        &self.data[row * row_bytes..][..row_bytes]
    }
}

/// The part a tensor plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    TokenEmbed,
    OutputNorm,
    /// The head; a model without one uses `TokenEmbed`.
    Output,
    Layer(usize, LayerRole),
}

/// The part a tensor plays in its layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LayerRole {
    AttnNorm,
    Q,
    QBias,
    /// Norm over each query head.
    QNorm,
    K,
    KBias,
    KNorm,
    V,
    VBias,
    O,
    OBias,
    /// Norm of the attention's result, before it is added.
    PostAttnNorm,
    FfnNorm,
    Gate,
    Up,
    Down,
    /// Norm of the feed-forward's result, before it is added.
    PostFfnNorm,
}

impl LayerRole {
    /// Every role, in the order a layer uses them.
    pub const ALL: [LayerRole; 17] = [
        Self::AttnNorm,
        Self::Q,
        Self::QBias,
        Self::QNorm,
        Self::K,
        Self::KBias,
        Self::KNorm,
        Self::V,
        Self::VBias,
        Self::O,
        Self::OBias,
        Self::PostAttnNorm,
        Self::FfnNorm,
        Self::Gate,
        Self::Up,
        Self::Down,
        Self::PostFfnNorm,
    ];
}
