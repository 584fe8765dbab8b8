//! Weights in the order the kernels stream them.
//!
//! A matrix of `n_rows` outputs and `n_cols` inputs is cut into panels of sixteen outputs; a last
//! panel is filled up with zeros. A panel of f32 weights holds, for every column, the sixteen
//! outputs' weights. Any other panel holds, each part on cache lines of its own:
//!
//! * the scales, then the minima of the sixteen outputs, for each group of 32 (or 16) columns;
//! * for each 32 columns the codes, less the code that stands in the middle of their range.
//!
//! Codes are arranged for lanes, one output a lane:
//!
//! * four-bit: four vectors of words; of lane `n` of vector `i`, nibble `j` of the low half is
//!   column `8i + 2j` of output `n` plus eight, nibble `j` of the high half column `8i + 2j + 1`;
//! * bytes: for each column the sixteen outputs;
//! * bf16: sixteen vectors of words; lane `n` of vector `i` holds columns `2i` and `2i + 1`;
//!
//! or for tiles, one output a row:
//!
//! * four-bit: four vectors of half words; nibble `j` of half word `k` of vector `i` is column `k`
//!   of output `4i + j` plus eight;
//! * bytes: for each output the thirty-two columns, plus 128;
//! * bf16: for each output the thirty-two columns;
//!
//! or for integers, one output a lane, codes as they are in the file:
//!
//! * four-bit: four vectors of words; of lane `n` of vector `i`, the low nibbles of the bytes are
//!   columns `4i` to `4i + 3` of output `n`, the high ones columns `16 + 4i` to `16 + 4i + 3`;
//! * bytes: eight vectors of words; the bytes of lane `n` of vector `i` are columns `4i` to
//!   `4i + 3` of output `n`.
//!
//! Bytes meet the four in this order. Half words meet them two by two, the first and third and then
//! the others, so for them the second and third change places.

use std::fmt;

use half::f16;

use crate::acts::{ACT_BLOCK, ActDtype, ActForms, IntBits, KeptAs};
use crate::aligned::{Aligned, LINE};
use crate::isa::Isa;
use crate::kernels::format::{Codes, Layout};
use crate::lanes::{WIDTH, round_to_bf16};
use crate::quant::{TensorType, dequantize_row, unpack_row};

/// A weight matrix ready for the kernels.
#[derive(Debug)]
pub struct PackedMatrix {
    n_rows: usize,
    n_cols: usize,
    ty: TensorType,
    data: Data,
    /// See [`PackedMatrix::with_lengths`].
    lengths: Vec<f32>,
}

#[derive(Debug)]
enum Data {
    Coded { layout: Layout, arrangement: Arrangement, bytes: Aligned<u8> },
    Exact(Aligned<f32>),
}

/// Whom the codes are arranged for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrangement {
    Lanes,
    Tiles,
    /// For integers that are kept so.
    Ints(IntBits, KeptAs),
}

impl Arrangement {
    fn of(isa: Isa, acts: ActDtype, layout: Layout) -> Arrangement {
        match (isa, acts.int_bits()) {
            (_, Some(bits)) if layout.groups() > 0 => {
                Arrangement::Ints(bits, Arrangement::kept_as(isa, bits))
            }
            (Isa::Amx, _) => Arrangement::Tiles,
            _ => Arrangement::Lanes,
        }
    }

    fn kept_as(isa: Isa, bits: IntBits) -> KeptAs {
        match (isa, bits) {
            (Isa::Amx, _) => KeptAs::Sixteenths,
            (Isa::Avx2 | Isa::Avx512 | Isa::Vnni, IntBits::Eight) => KeptAs::Bytes,
            _ => KeptAs::Words,
        }
    }

    fn suits(self, isa: Isa) -> bool {
        match self {
            Arrangement::Lanes => isa != Isa::Amx,
            Arrangement::Tiles => isa == Isa::Amx,
            Arrangement::Ints(bits, kept_as) => kept_as == Arrangement::kept_as(isa, bits),
        }
    }
}

/// A matrix that meets rounded activations, as a kernel sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CodedView {
    pub(crate) data: *const u8,
    /// Where the panels end that will be read.
    pub(crate) end: *const u8,
    pub(crate) n_rows: usize,
    pub(crate) panel: PanelLayout,
    pub(crate) layout: Layout,
}

/// A matrix of f32 weights as a kernel sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExactView {
    pub(crate) data: *const f32,
    pub(crate) n_rows: usize,
    pub(crate) n_cols: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum MatrixView {
    Coded(CodedView),
    /// Arranged for integers.
    Ints(CodedView),
    Exact(ExactView),
}

impl MatrixView {
    /// As [`CodedView::up_to`].
    pub(crate) fn up_to(self, panel: usize) -> MatrixView {
        match self {
            MatrixView::Coded(view) => MatrixView::Coded(view.up_to(panel)),
            MatrixView::Ints(view) => MatrixView::Ints(view.up_to(panel)),
            MatrixView::Exact(_) => self,
        }
    }
}

// SAFETY: views are read-only and live inside an op that borrows the matrix.
unsafe impl Send for MatrixView {}
// SAFETY: as above.
unsafe impl Sync for MatrixView {}
// SAFETY: as above.
unsafe impl Send for CodedView {}
// SAFETY: as above.
unsafe impl Sync for CodedView {}

/// Where the parts of a panel lie, in bytes. Scales come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PanelLayout {
    pub(crate) n_blocks: usize,
    pub(crate) mins: usize,
    pub(crate) codes: usize,
    pub(crate) n_bytes: usize,
}

impl PanelLayout {
    pub(crate) fn of(layout: Layout, n_cols: usize) -> PanelLayout {
        let n_blocks = n_cols.div_ceil(ACT_BLOCK);
        let scales = n_blocks * layout.groups() * layout.scale_bytes();
        let mins = scales.next_multiple_of(LINE);
        let codes = mins + if layout.has_min() { mins } else { 0 };
        PanelLayout { n_blocks, mins, codes, n_bytes: codes + n_blocks * layout.code_bytes() }
    }
}

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
    /// Packs a matrix for the kernels of `isa` and activations of `acts`. Output `i` is the
    /// source's row `row_of(i)`.
    pub fn pack(
        raw: RawMatrix<'_>,
        isa: Isa,
        acts: ActDtype,
        row_of: impl Fn(usize) -> usize,
    ) -> Result<Self, PackError> {
        let row_bytes = raw.row_bytes()?;
        let arrangement = |layout| Arrangement::of(isa, acts, layout);
        let data = match Layout::of(raw.ty) {
            Some(Layout::Brain) => {
                pack_brain(&raw, row_bytes, arrangement(Layout::Brain), &row_of)?
            }
            Some(layout) => pack_codes(&raw, row_bytes, (layout, arrangement(layout)), &row_of)?,
            None => pack_exact(&raw, row_bytes, &row_of)?,
        };
        let RawMatrix { n_rows, n_cols, ty, .. } = raw;
        Ok(PackedMatrix { n_rows, n_cols, ty, data, lengths: Vec::new() })
    }

    /// Notes how long each panel's longest weights are, as vectors: with that,
    /// [`find_tops`](crate::Cpu::find_tops) takes less time. Nothing where it would not.
    pub fn with_lengths(mut self, isa: Isa) -> Self {
        let twelve_bits = Arrangement::Ints(IntBits::Twelve, KeptAs::Words);
        if let Data::Coded { layout, arrangement, bytes } = &self.data
            && (isa, *arrangement) == (Isa::Vnni, twelve_bits)
            && !layout.has_min()
        {
            self.lengths = lengths_of(bytes, *layout, self.n_cols);
        }
        self
    }

    /// How long each panel's longest weights are, if that was noted.
    pub(crate) fn lengths(&self) -> Option<&[f32]> {
        (!self.lengths.is_empty()).then_some(&self.lengths)
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
            Data::Coded { bytes, .. } => bytes.len() + 4 * self.lengths.len(),
            Data::Exact(values) => values.len() * 4,
        }
    }

    /// How it is multiplied, in a few words.
    pub fn kernel(&self) -> &'static str {
        match &self.data {
            Data::Coded { arrangement, .. } => match arrangement {
                Arrangement::Lanes => "bf16 lanes",
                Arrangement::Tiles => "bf16 tiles",
                Arrangement::Ints(IntBits::Twelve, KeptAs::Sixteenths) => "int12 tiles",
                Arrangement::Ints(IntBits::Eight, KeptAs::Sixteenths) => "int8 tiles",
                Arrangement::Ints(IntBits::Twelve, _) => "int12 lanes",
                Arrangement::Ints(IntBits::Eight, _) => "int8 lanes",
            },
            Data::Exact(_) => "f32 lanes",
        }
    }

    /// The form of activations this matrix multiplies with.
    pub fn act_forms(&self) -> ActForms {
        let none = ActForms::default();
        match &self.data {
            Data::Coded { layout, arrangement, .. } => match arrangement {
                Arrangement::Lanes => ActForms { floats: true, ..none },
                Arrangement::Tiles => ActForms { tiles: true, ..none },
                Arrangement::Ints(bits, kept_as) => {
                    let halves = layout.has_halves();
                    ActForms { ints: Some((*bits, *kept_as)), halves, ..none }
                }
            },
            Data::Exact(_) => ActForms { exact: true, ..none },
        }
    }

    /// Whether the kernels of `isa` can read it.
    pub(crate) fn suits(&self, isa: Isa) -> bool {
        match &self.data {
            Data::Coded { arrangement, .. } => arrangement.suits(isa),
            Data::Exact(_) => true,
        }
    }

    pub(crate) fn view(&self) -> MatrixView {
        match &self.data {
            Data::Coded { layout, arrangement, bytes } => {
                let view = CodedView {
                    data: bytes.as_ptr(),
                    end: bytes.as_ptr_range().end,
                    n_rows: self.n_rows,
                    panel: PanelLayout::of(*layout, self.n_cols),
                    layout: *layout,
                };
                match arrangement {
                    Arrangement::Lanes | Arrangement::Tiles => MatrixView::Coded(view),
                    Arrangement::Ints(..) => MatrixView::Ints(view),
                }
            }
            Data::Exact(values) => MatrixView::Exact(ExactView {
                data: values.as_ptr(),
                n_rows: self.n_rows,
                n_cols: self.n_cols,
            }),
        }
    }
}

fn pack_codes(
    raw: &RawMatrix<'_>,
    row_bytes: usize,
    (layout, arrangement): (Layout, Arrangement),
    row_of: &impl Fn(usize) -> usize,
) -> Result<Data, PackError> {
    let n_groups = raw.n_cols / raw.ty.group_len();
    let mut row = Row {
        codes: vec![0; raw.n_cols],
        scales: vec![0.0; n_groups],
        mins: vec![0.0; if raw.ty.has_min() { n_groups } else { 0 }],
    };
    let panel = PanelLayout::of(layout, raw.n_cols);
    let mut bytes = Aligned::zeros(raw.n_rows.div_ceil(WIDTH) * panel.n_bytes);
    for output in 0..raw.n_rows {
        let source = row_of(output);
        let data = raw.row(source, row_bytes);
        unpack_row(raw.ty, data, &mut row.codes, &mut row.scales, &mut row.mins);
        if !row.scales.iter().chain(&row.mins).all(|x| x.is_finite()) {
            return Err(PackError::NotFinite { row: source });
        }
        let to = &mut bytes[output / WIDTH * panel.n_bytes..][..panel.n_bytes];
        let (head, codes) = to.split_at_mut(panel.codes);
        let (scales, mins) = head.split_at_mut(panel.mins);
        put_scales(scales, layout, &row.scales, output % WIDTH);
        put_scales(mins, layout, &row.mins, output % WIDTH);
        let blocks = codes.chunks_exact_mut(layout.code_bytes());
        for (block, codes) in blocks.zip(row.codes.as_chunks::<ACT_BLOCK>().0) {
            put_block(block, codes, layout, arrangement, output % WIDTH);
        }
    }
    Ok(Data::Coded { layout, arrangement, bytes })
}

/// One output's weights, unpacked.
struct Row {
    codes: Vec<u8>,
    scales: Vec<f32>,
    mins: Vec<f32>,
}

/// Writes an output's scales (or minima), group after group.
fn put_scales(to: &mut [u8], layout: Layout, scales: &[f32], output: usize) {
    for (slot, &scale) in to.chunks_exact_mut(layout.scale_bytes()).zip(scales) {
        if layout.f32_scales() {
            slot[4 * output..4 * output + 4].copy_from_slice(&scale.to_le_bytes());
        } else {
            let half = f16::from_f32(scale).to_le_bytes();
            slot[2 * output..2 * output + 2].copy_from_slice(&half);
        }
    }
}

/// How long the longest weights of each panel are, which are arranged for integers and have no
/// minimum: a little more rather than less, and infinite where floats might not be able to tell.
fn lengths_of(bytes: &[u8], layout: Layout, n_cols: usize) -> Vec<f32> {
    let panel = PanelLayout::of(layout, n_cols);
    let centre = i32::from(layout.centre());
    let square = |code: u8| (i32::from(code) - centre).pow(2);
    let of_panel = |bytes: &[u8]| {
        let mut sums = [0.0; WIDTH];
        let (scales, codes) = bytes.split_at(panel.codes);
        let scales = scales.chunks_exact(layout.scale_bytes());
        for (nth, scales) in scales.take(panel.n_blocks * layout.groups()).enumerate() {
            let (block, group) = (nth / layout.groups(), nth % layout.groups());
            let codes = &codes[block * layout.code_bytes()..][..layout.code_bytes()];
            let mut of_group = [0; WIDTH];
            for_each_code(codes, layout, group, |output, code| of_group[output] += square(code));
            for (output, (sum, squares)) in sums.iter_mut().zip(of_group).enumerate() {
                *sum += scale_at(scales, layout, output).powi(2) * f64::from(squares);
            }
        }
        let longest = sums.into_iter().fold(0.0, f64::max);
        1.000_001 * longest.sqrt() as f32
    };
    let lengths = bytes.chunks_exact(panel.n_bytes).map(of_panel);
    let or_infinite = |x: f32| if x == 0.0 || is_plain_length(x) { x } else { f32::INFINITY };
    lengths.map(or_infinite).collect()
}

/// Hands out the codes of a group of a block that is arranged for integers, each with its output.
fn for_each_code(codes: &[u8], layout: Layout, group: usize, mut f: impl FnMut(usize, u8)) {
    let n_groups = layout.groups();
    let (codes, shifts) = match (layout.codes(), n_groups) {
        (Codes::Nibbles, 1) => (codes, 0..2),
        (Codes::Nibbles, _) => (codes, group..group + 1),
        _ => (&codes[group * codes.len() / n_groups..][..codes.len() / n_groups], 0..0),
    };
    for (word, bytes) in codes.as_chunks::<4>().0.iter().enumerate() {
        for &byte in bytes {
            match layout.codes() {
                Codes::Nibbles => {
                    shifts.clone().for_each(|nth| f(word % WIDTH, byte >> (4 * nth) & 15));
                }
                _ => f(word % WIDTH, byte),
            }
        }
    }
}

/// Whether products of such lengths, and a millionth of them, are well within what floats hold.
pub(crate) fn is_plain_length(x: f32) -> bool {
    (1e-15..1e15).contains(&x)
}

/// What [`put_scales`] has written.
fn scale_at(scales: &[u8], layout: Layout, output: usize) -> f64 {
    if layout.f32_scales() {
        let bytes = &scales[4 * output..4 * output + 4];
        return f64::from(f32::from_le_bytes(bytes.try_into().expect("four bytes")));
    }
    f16::from_le_bytes([scales[2 * output], scales[2 * output + 1]]).to_f64()
}

/// Writes an output's codes of 32 columns.
fn put_block(
    block: &mut [u8],
    codes: &[u8; ACT_BLOCK],
    layout: Layout,
    arrangement: Arrangement,
    output: usize,
) {
    // Codes lie within a byte of their centre, so that the difference fits a signed byte.
    let centred = codes.map(|code| code.wrapping_sub(layout.centre()));
    match (layout.codes(), arrangement) {
        (_, Arrangement::Ints(_, KeptAs::Words)) => {
            codes_for_ints(block, codes, layout, [0, 2, 1, 3], output);
        }
        (_, Arrangement::Ints(..)) => codes_for_ints(block, codes, layout, [0, 1, 2, 3], output),
        (Codes::Nibbles, Arrangement::Lanes) => nibbles_for_lanes(block, &centred, output),
        (Codes::Nibbles, Arrangement::Tiles) => nibbles_for_tiles(block, &centred, output),
        (_, Arrangement::Lanes) => {
            for (column, &code) in centred.iter().enumerate() {
                block[column * WIDTH + output] = code;
            }
        }
        (_, Arrangement::Tiles) => {
            for (column, &code) in centred.iter().enumerate() {
                block[ACT_BLOCK * output + column] = code.wrapping_add(128);
            }
        }
    }
}

fn nibbles_for_lanes(block: &mut [u8], centred: &[u8; ACT_BLOCK], output: usize) {
    let nibble = |code: u8| u32::from(code.wrapping_add(8));
    for (i, codes) in centred.as_chunks::<8>().0.iter().enumerate() {
        let mut word = 0;
        for (j, pair) in codes.as_chunks::<2>().0.iter().enumerate() {
            word |= nibble(pair[0]) << (4 * j) | nibble(pair[1]) << (16 + 4 * j);
        }
        let at = LINE * i + 4 * output;
        block[at..at + 4].copy_from_slice(&word.to_le_bytes());
    }
}

fn nibbles_for_tiles(block: &mut [u8], centred: &[u8; ACT_BLOCK], output: usize) {
    let vector = &mut block[LINE * (output / 4)..][..LINE];
    for (half_word, &code) in vector.as_chunks_mut::<2>().0.iter_mut().zip(centred) {
        half_word[output % 4 / 2] |= code.wrapping_add(8) << (4 * (output % 2));
    }
}

/// Column `4i + j` goes to byte `place[j]` of the output's lane.
fn codes_for_ints(
    block: &mut [u8],
    codes: &[u8; ACT_BLOCK],
    layout: Layout,
    place: [usize; 4],
    output: usize,
) {
    for (column, &code) in codes.iter().enumerate() {
        let is_high = layout.codes() == Codes::Nibbles && column >= ACT_BLOCK / 2;
        let vector = (column - if is_high { ACT_BLOCK / 2 } else { 0 }) / 4;
        let at = LINE * vector + 4 * output + place[column % 4];
        block[at] |= if is_high { code << 4 } else { code };
    }
}

/// bf16 as it is, f16 rounded to it.
fn pack_brain(
    raw: &RawMatrix<'_>,
    row_bytes: usize,
    arrangement: Arrangement,
    row_of: &impl Fn(usize) -> usize,
) -> Result<Data, PackError> {
    let layout = Layout::Brain;
    let panel = PanelLayout::of(layout, raw.n_cols);
    let mut bytes = Aligned::zeros(raw.n_rows.div_ceil(WIDTH) * panel.n_bytes);
    for_each_row(raw, row_bytes, row_of, |output, values| {
        let to = &mut bytes[output / WIDTH * panel.n_bytes..][..panel.n_bytes];
        let lane = output % WIDTH;
        for (column, &x) in values.iter().enumerate() {
            let at = match arrangement {
                Arrangement::Tiles => {
                    column / ACT_BLOCK * layout.code_bytes()
                        + LINE * lane
                        + 2 * (column % ACT_BLOCK)
                }
                _ => column / 2 * LINE + 4 * lane + 2 * (column % 2),
            };
            let bits = (round_to_bf16(x).to_bits() >> 16) as u16;
            to[at..at + 2].copy_from_slice(&bits.to_le_bytes());
        }
    })?;
    Ok(Data::Coded { layout, arrangement, bytes })
}

fn pack_exact(
    raw: &RawMatrix<'_>,
    row_bytes: usize,
    row_of: &impl Fn(usize) -> usize,
) -> Result<Data, PackError> {
    let mut packed = Aligned::zeros(raw.n_rows.div_ceil(WIDTH) * WIDTH * raw.n_cols);
    for_each_row(raw, row_bytes, row_of, |output, values| {
        for (column, &x) in values.iter().enumerate() {
            packed[(output / WIDTH * raw.n_cols + column) * WIDTH + output % WIDTH] = x;
        }
    })?;
    Ok(Data::Exact(packed))
}

/// Hands out each output's weights as floats.
fn for_each_row(
    raw: &RawMatrix<'_>,
    row_bytes: usize,
    row_of: &impl Fn(usize) -> usize,
    mut f: impl FnMut(usize, &[f32]),
) -> Result<(), PackError> {
    let mut values = vec![0.0; raw.n_cols];
    for output in 0..raw.n_rows {
        let source = row_of(output);
        dequantize_row(raw.ty, raw.row(source, row_bytes), &mut values);
        if !values.iter().all(|x| x.is_finite()) {
            return Err(PackError::NotFinite { row: source });
        }
        f(output, &values);
    }
    Ok(())
}
