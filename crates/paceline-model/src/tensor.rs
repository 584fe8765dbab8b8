//! A tensor as the loader sees it, whatever file it came from.

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
