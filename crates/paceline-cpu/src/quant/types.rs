//! The tensor types and their sizes.

use std::fmt;

/// How the numbers of a tensor are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TensorType {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
}

/// The constants of one type; one line of a table instead of seven `match`es.
struct Layout {
    name: &'static str,
    block_len: usize,
    block_bytes: usize,
    group_len: usize,
    zero_point: i32,
    has_min: bool,
    max_code: u8,
}

impl TensorType {
    /// Every type, floats first.
    pub const ALL: [TensorType; 13] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
    ];

    /// The name users know it by, as in `Q4_K`.
    pub fn name(self) -> &'static str {
        self.layout().name
    }

    /// The type of that [`name`](Self::name), whatever its case.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|ty| ty.name().eq_ignore_ascii_case(name))
    }

    /// True for the types that hold plain numbers: one value a block, no codes.
    pub fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::BF16)
    }

    /// Values in one block.
    pub fn block_len(self) -> usize {
        self.layout().block_len
    }

    /// Bytes of one block.
    pub fn block_bytes(self) -> usize {
        self.layout().block_bytes
    }

    /// Bytes of a row of `n_cols` values; `None` when the row is not whole blocks or the size
    /// does not fit the machine.
    pub fn row_bytes(self, n_cols: usize) -> Option<usize> {
        let layout = self.layout();
        if !n_cols.is_multiple_of(layout.block_len) {
            return None;
        }
        (n_cols / layout.block_len).checked_mul(layout.block_bytes)
    }

    /// Values that share one scale (and one min): 16 or 32, and 1 for the float types.
    pub fn group_len(self) -> usize {
        self.layout().group_len
    }

    /// The code that stands for zero times the scale; 0 for types with a min.
    pub fn zero_point(self) -> i32 {
        self.layout().zero_point
    }

    /// Whether each group has an offset beside its scale.
    pub fn has_min(self) -> bool {
        self.layout().has_min
    }

    /// The largest code; 0 for the float types, which have none.
    pub fn max_code(self) -> u8 {
        self.layout().max_code
    }

    fn layout(self) -> Layout {
        match self {
            Self::F32 => float("F32", 4),
            Self::F16 => float("F16", 2),
            Self::BF16 => float("BF16", 2),
            Self::Q4_0 => centred("Q4_0", (32, 18), 32, 4),
            Self::Q4_1 => with_min("Q4_1", (32, 20), 32, 4),
            Self::Q5_0 => centred("Q5_0", (32, 22), 32, 5),
            Self::Q5_1 => with_min("Q5_1", (32, 24), 32, 5),
            Self::Q8_0 => centred("Q8_0", (32, 34), 32, 8),
            Self::Q2K => with_min("Q2_K", (256, 84), 16, 2),
            Self::Q3K => centred("Q3_K", (256, 110), 16, 3),
            Self::Q4K => with_min("Q4_K", (256, 144), 32, 4),
            Self::Q5K => with_min("Q5_K", (256, 176), 32, 5),
            Self::Q6K => centred("Q6_K", (256, 210), 16, 6),
        }
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

fn float(name: &'static str, bytes: usize) -> Layout {
    Layout {
        name,
        block_len: 1,
        block_bytes: bytes,
        group_len: 1,
        zero_point: 0,
        has_min: false,
        max_code: 0,
    }
}

/// Codes of `bits` bits around a zero point in their middle.
fn centred(
    name: &'static str,
    (block_len, block_bytes): (usize, usize),
    group_len: usize,
    bits: u32,
) -> Layout {
    Layout {
        name,
        block_len,
        block_bytes,
        group_len,
        zero_point: 1 << (bits - 1),
        has_min: false,
        max_code: u8::MAX >> (8 - bits),
    }
}

/// Codes of `bits` bits that count upwards from the group's min.
fn with_min(name: &'static str, blocks: (usize, usize), group_len: usize, bits: u32) -> Layout {
    Layout {
        zero_point: 0,
        has_min: true,
        ..centred(name, blocks, group_len, bits)
    }
}
