//! Weights in the order the kernels stream them.
//!
//! A matrix of `n_rows` outputs and `n_cols` inputs is cut into panels of sixteen outputs, one per
//! lane; a last panel is filled up with zeros. Inside a panel:
//!
//! * quantised: for every 32 columns, the scales (then the minima) of the sixteen outputs, then the
//!   codes: eight vectors of 64 bytes, vector `i` with columns `4i..4i + 4` of each output. With
//!   four-bit codes, vectors `i` and `i + 4` share their bytes: low and high nibbles.
//! * float: for every column, the sixteen outputs' weights, in the file's own precision.

use std::fmt;

use half::f16;

use crate::acts::{ACT_BLOCK, ActForms};
use crate::lanes::WIDTH;
use crate::quant::{TensorType, dequantize_row, unpack_row};

/// How a quantised panel's bytes are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QuantLayout {
    Nibble,
    NibbleMin,
    NibbleMinF32,
    Nibble16F32,
    Nibble16MinF32,
    Byte,
    ByteWide,
    ByteMin,
    ByteMinF32,
    Byte16F32,
}

impl QuantLayout {
    /// The layout a file type is packed into; `None` for float types.
    fn of(ty: TensorType) -> Option<QuantLayout> {
        Some(match ty {
            TensorType::F32 | TensorType::F16 | TensorType::BF16 => return None,
            TensorType::Q4_0 => QuantLayout::Nibble,
            TensorType::Q4_1 => QuantLayout::NibbleMin,
            TensorType::Q5_0 => QuantLayout::Byte,
            TensorType::Q5_1 => QuantLayout::ByteMin,
            TensorType::Q8_0 => QuantLayout::ByteWide,
            TensorType::Q2K => QuantLayout::Nibble16MinF32,
            TensorType::Q3K => QuantLayout::Nibble16F32,
            TensorType::Q4K => QuantLayout::NibbleMinF32,
            TensorType::Q5K => QuantLayout::ByteMinF32,
            TensorType::Q6K => QuantLayout::Byte16F32,
        })
    }
}

/// A weight matrix ready for the kernels.
#[derive(Debug)]
pub struct PackedMatrix {
    n_rows: usize,
    n_cols: usize,
    ty: TensorType,
    precision: ActPrecision,
    data: Data,
}

#[derive(Debug)]
enum Data {
    Quant { layout: QuantLayout, zero: i32, bytes: Vec<u8> },
    F32(Vec<f32>),
    F16(Vec<u16>),
    BF16(Vec<u16>),
}

/// A quantised matrix as a kernel sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuantView {
    pub(crate) data: *const u8,
    pub(crate) n_rows: usize,
    pub(crate) n_cols: usize,
    pub(crate) zero: i32,
    /// The activations are words.
    pub(crate) words: bool,
    pub(crate) layout: QuantLayout,
}

/// A float matrix as a kernel sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FloatView {
    pub(crate) data: FloatPointer,
    pub(crate) n_rows: usize,
    pub(crate) n_cols: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum FloatPointer {
    F32(*const f32),
    F16(*const u16),
    BF16(*const u16),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum MatrixView {
    Quant(QuantView),
    Float(FloatView),
}

// SAFETY: views are read-only and live inside an op that borrows the matrix.
unsafe impl Send for MatrixView {}
// SAFETY: as above.
unsafe impl Sync for MatrixView {}

/// Why a matrix cannot be packed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PackError {
    /// Bytes do not match the shape.
    Size { expected: usize, found: usize },
    /// Columns are not a whole number of blocks.
    Columns { n_cols: usize, block: usize },
    /// A weight (or its scale) is not a finite number.
    NotFinite { row: usize },
}

impl fmt::Display for PackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PackError::Size { expected, found } => {
                write!(f, "the data has {found} bytes where its shape needs {expected}")
            }
            PackError::Columns { n_cols, block } => {
                write!(f, "rows of {n_cols} values are not whole blocks of {block}")
            }
            PackError::NotFinite { row } => {
                write!(
                    f,
                    "row {row} holds a weight that is not a finite number; the file is damaged"
                )
            }
        }
    }
}

impl std::error::Error for PackError {}

/// How finely the activations that meet a quantised matrix are quantised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActPrecision {
    /// To bytes.
    Bytes,
    /// To 16-bit words, at about twice the arithmetic: for the logits, where an error is not
    /// averaged away by further layers.
    Words,
}

/// One source of rows: a tensor as it lies in its file.
#[derive(Clone, Copy, Debug)]
pub struct RawMatrix<'a> {
    pub ty: TensorType,
    pub n_rows: usize,
    pub n_cols: usize,
    pub data: &'a [u8],
}

impl<'a> RawMatrix<'a> {
    fn row_bytes(&self) -> Result<usize, PackError> {
        let columns = PackError::Columns { n_cols: self.n_cols, block: self.ty.block_len() };
        let row_bytes = self.ty.row_bytes(self.n_cols).ok_or(columns)?;
        let expected = row_bytes * self.n_rows;
        if self.data.len() != expected {
            return Err(PackError::Size { expected, found: self.data.len() });
        }
        Ok(row_bytes)
    }

    fn row(&self, row: usize, row_bytes: usize) -> &'a [u8] {
        &self.data[row * row_bytes..(row + 1) * row_bytes]
    }
}

impl PackedMatrix {
    /// Packs a matrix. Output `i` is the source's row `row_of(i)`.
    pub fn pack(
        raw: RawMatrix<'_>,
        precision: ActPrecision,
        row_of: impl Fn(usize) -> usize,
    ) -> Result<Self, PackError> {
        let row_bytes = raw.row_bytes()?;
        let data = match QuantLayout::of(raw.ty) {
            Some(layout) => Data::Quant {
                layout,
                zero: raw.ty.zero_point(),
                bytes: pack_quant(&raw, row_bytes, layout, &row_of)?,
            },
            None => pack_float(&raw, row_bytes, &row_of)?,
        };
        Ok(PackedMatrix { n_rows: raw.n_rows, n_cols: raw.n_cols, ty: raw.ty, precision, data })
    }

    /// Outputs.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Inputs.
    pub fn n_cols(&self) -> usize {
        self.n_cols
    }

    pub fn tensor_type(&self) -> TensorType {
        self.ty
    }

    pub fn n_panels(&self) -> usize {
        self.n_rows.div_ceil(WIDTH)
    }

    /// Memory the weights take.
    pub fn n_bytes(&self) -> usize {
        match &self.data {
            Data::Quant { bytes, .. } => bytes.len(),
            Data::F32(v) => v.len() * 4,
            Data::F16(v) | Data::BF16(v) => v.len() * 2,
        }
    }

    /// The form of activations this matrix multiplies with.
    pub fn act_forms(&self) -> ActForms {
        match (&self.data, self.precision) {
            (Data::Quant { .. }, ActPrecision::Bytes) => {
                ActForms { bytes: true, ..ActForms::default() }
            }
            (Data::Quant { .. }, ActPrecision::Words) => {
                ActForms { words: true, ..ActForms::default() }
            }
            _ => ActForms { floats: true, ..ActForms::default() },
        }
    }

    pub(crate) fn view(&self) -> MatrixView {
        let float =
            |data| MatrixView::Float(FloatView { data, n_rows: self.n_rows, n_cols: self.n_cols });
        match &self.data {
            Data::Quant { layout, zero, bytes } => MatrixView::Quant(QuantView {
                data: bytes.as_ptr(),
                n_rows: self.n_rows,
                n_cols: self.n_cols,
                zero: *zero,
                words: self.precision == ActPrecision::Words,
                layout: *layout,
            }),
            Data::F32(v) => float(FloatPointer::F32(v.as_ptr())),
            Data::F16(v) => float(FloatPointer::F16(v.as_ptr())),
            Data::BF16(v) => float(FloatPointer::BF16(v.as_ptr())),
        }
    }
}

fn pack_quant(
    raw: &RawMatrix<'_>,
    row_bytes: usize,
    layout: QuantLayout,
    row_of: &impl Fn(usize) -> usize,
) -> Result<Vec<u8>, PackError> {
    let n_groups = raw.n_cols / raw.ty.group_len();
    let mut codes = vec![0; raw.n_cols];
    let mut scales = vec![0.0; n_groups];
    let mut mins = vec![0.0; if raw.ty.has_min() { n_groups } else { 0 }];
    let panel_bytes = raw.n_cols / ACT_BLOCK * layout.block_bytes();
    let mut out = vec![0; raw.n_rows.div_ceil(WIDTH) * panel_bytes];
    for row in 0..raw.n_rows {
        let source = row_of(row);
        unpack_row(raw.ty, raw.row(source, row_bytes), &mut codes, &mut scales, &mut mins);
        if !scales.iter().chain(&mins).all(|x| x.is_finite()) {
            return Err(PackError::NotFinite { row: source });
        }
        let panel = &mut out[row / WIDTH * panel_bytes..][..panel_bytes];
        for (block, bytes) in panel.chunks_exact_mut(layout.block_bytes()).enumerate() {
            put_block(bytes, layout, row % WIDTH, block, (&codes, &scales, &mins));
        }
    }
    Ok(out)
}

/// Writes one output's share of a block: its lane of the scales, minima and codes.
fn put_block(
    bytes: &mut [u8],
    layout: QuantLayout,
    lane: usize,
    block: usize,
    (codes, scales, mins): (&[u8], &[f32], &[f32]),
) {
    let n_groups = scales.len() * ACT_BLOCK / codes.len();
    let (head, body) = bytes.split_at_mut(layout.head_bytes());
    let groups = block * n_groups..(block + 1) * n_groups;
    let mins = if mins.is_empty() { mins } else { &mins[groups.clone()] };
    for (slot, &x) in scales[groups].iter().chain(mins).enumerate() {
        if layout.f32_scales() {
            let at = slot * 4 * WIDTH + lane * 4;
            head[at..at + 4].copy_from_slice(&x.to_le_bytes());
        } else {
            let at = slot * 2 * WIDTH + lane * 2;
            head[at..at + 2].copy_from_slice(&f16::from_f32(x).to_le_bytes());
        }
    }
    for (i, &code) in codes[block * ACT_BLOCK..(block + 1) * ACT_BLOCK].iter().enumerate() {
        let (vector, byte) = (i / 4, 4 * lane + i % 4);
        if layout.nibbles() {
            let shift = if vector < 4 { 0 } else { 4 };
            body[64 * (vector % 4) + byte] |= code << shift;
        } else {
            body[64 * vector + byte] = code;
        }
    }
}

fn pack_float(
    raw: &RawMatrix<'_>,
    row_bytes: usize,
    row_of: &impl Fn(usize) -> usize,
) -> Result<Data, PackError> {
    let mut values = vec![0.0; raw.n_cols];
    let n = raw.n_rows.div_ceil(WIDTH) * WIDTH * raw.n_cols;
    let mut f32s = vec![0f32; if raw.ty == TensorType::F32 { n } else { 0 }];
    let mut u16s = vec![0u16; if raw.ty == TensorType::F32 { 0 } else { n }];
    for row in 0..raw.n_rows {
        let source = row_of(row);
        let bytes = raw.row(source, row_bytes);
        dequantize_row(raw.ty, bytes, &mut values);
        if !values.iter().all(|x| x.is_finite()) {
            return Err(PackError::NotFinite { row: source });
        }
        let at = |col: usize| (row / WIDTH * raw.n_cols + col) * WIDTH + row % WIDTH;
        if raw.ty == TensorType::F32 {
            for (col, &x) in values.iter().enumerate() {
                f32s[at(col)] = x;
            }
        } else {
            for (col, pair) in bytes.chunks_exact(2).enumerate() {
                u16s[at(col)] = u16::from_le_bytes([pair[0], pair[1]]);
            }
        }
    }
    Ok(match raw.ty {
        TensorType::F16 => Data::F16(u16s),
        TensorType::BF16 => Data::BF16(u16s),
        _ => Data::F32(f32s),
    })
}
