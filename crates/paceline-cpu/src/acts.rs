//! Activations as the matrix kernels read them.
//!
//! Weights other than f32 read activations rounded to bf16, the columns filled up with zeros to
//! a multiple of 32. Lanes read rows of floats; tiles read, for every sixteen rows and every two
//! columns, the sixteen rows' pairs of bf16 values. Where there are only a few rows, tiles have
//! room for no more: one thread writes what all read, and each line that it touches goes from core
//! to core.
//!
//! What a norm divides a row by is left to the end of the products that follow: they are linear, so
//! that their results are multiplied with one by it, and activations are made before it is known.
//!
//! Weights that were packed for integers read activations as integers of twelve or eight bits, with
//! a scale for each 32 columns ([`crate::kernels::matmul_int`]): see [`KeptAs`].

use crate::aligned::Aligned;
use crate::isa::Isa;
use crate::lanes::{Lanes, WIDTH};
use crate::quant::TensorType;

/// Elements that a matrix kernel takes at once.
pub const ACT_BLOCK: usize = 32;

/// Rows of a tile.
pub(crate) const TILE_ROWS: usize = 16;

/// What activations are rounded to where they meet coded weights.
///
/// Each is an arithmetic of its own: results differ between them, within one they never do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ActDtype {
    /// Weights are turned into bf16, too: the faster for many rows on matrix tiles.
    Bf16,
    /// Integers that meet the weights' codes as they are: the most exact, and on tiles the faster
    /// for few rows. Weights that have no codes keep bf16.
    Int12,
    /// The same with fewer bits, but for the last products: the fastest without tiles, the least
    /// exact.
    Int8,
}

impl ActDtype {
    pub const ALL: [ActDtype; 3] = [ActDtype::Bf16, ActDtype::Int12, ActDtype::Int8];

    pub fn name(self) -> &'static str {
        match self {
            ActDtype::Bf16 => "bf16",
            ActDtype::Int12 => "int12",
            ActDtype::Int8 => "int8",
        }
    }

    /// The fastest for an instruction set and a model whose weights are mostly of type `ty`.
    pub fn fastest_for(isa: Isa, ty: TensorType) -> ActDtype {
        match (isa, ty) {
            (Isa::Amx, _) => ActDtype::Bf16,
            // Without VNNI, codes of eight bits are met as two of four.
            (Isa::Scalar | Isa::Avx2 | Isa::Avx512, TensorType::Q8_0) => ActDtype::Int12,
            _ => ActDtype::Int8,
        }
    }

    /// What the last products round to, of the last layer's feed-forward and of the logits: little
    /// or nothing comes after them that would make up for what rounding changes.
    pub fn of_last_products(self) -> ActDtype {
        match self {
            ActDtype::Int8 => ActDtype::Int12,
            other => other,
        }
    }

    /// Bits of the integers it stands for, if any.
    pub(crate) fn int_bits(self) -> Option<IntBits> {
        match self {
            ActDtype::Bf16 => None,
            ActDtype::Int12 => Some(IntBits::Twelve),
            ActDtype::Int8 => Some(IntBits::Eight),
        }
    }
}

/// Bits of an activation's integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntBits {
    Twelve,
    Eight,
}

impl IntBits {
    /// The largest magnitude: of twelve bits, the largest whose sixteenth, rounded to nearest, fits
    /// a signed byte.
    pub(crate) const fn largest(self) -> f32 {
        match self {
            IntBits::Twelve => 2039.0,
            IntBits::Eight => 127.0,
        }
    }
}

/// How integers lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptAs {
    /// Half words: `[tile of rows][block][row][32]`.
    Words,
    /// Bytes, where eight bits are enough: `[tile of rows][block][row][32]`.
    Bytes,
    /// The same for a single row, as half words, which are then the faster: codes lie as bytes want
    /// them, so of every four columns the middle two change places.
    CrossedWords,
    /// Two bytes each: what is left over of sixteenths, then the sixteenths:
    /// `[row][block][2][32]`.
    Sixteenths,
}

impl std::fmt::Display for ActDtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Rows of activations in the forms the weights read. Made once, grows never.
#[derive(Debug)]
pub struct Acts {
    exact: Vec<f32>,
    /// Rounded, for lanes or for tiles.
    floats: Aligned<f32>,
    brains: Aligned<u16>,
    ints: Aligned<u8>,
    int_scales: Aligned<f32>,
    half_sums: Aligned<f32>,
    factors: Aligned<f32>,
    squares: Aligned<f32>,
    n_rows: usize,
    n_cols: usize,
    max_rows: usize,
    forms: ActForms,
}

/// Which forms of the activations the consumers read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ActForms {
    /// As they are.
    pub exact: bool,
    /// Rounded to bf16, in rows of floats.
    pub floats: bool,
    /// Rounded to bf16, in tiles.
    pub tiles: bool,
    /// Rounded to integers.
    pub ints: Option<(IntBits, KeptAs)>,
    /// With the sums of each half of a block's integers: for weights that have a scale for each.
    pub halves: bool,
}

impl ActForms {
    /// Tiles and nothing else.
    pub const TILES: ActForms =
        ActForms { exact: false, floats: false, tiles: true, ints: None, halves: false };

    /// What two readers need together; if both want integers, the same ones.
    pub fn or(self, other: ActForms) -> ActForms {
        ActForms {
            exact: self.exact || other.exact,
            floats: self.floats || other.floats,
            tiles: self.tiles || other.tiles,
            ints: self.ints.or(other.ints),
            halves: self.halves || other.halves,
        }
    }

    /// Whether there are integers, each by itself.
    pub(crate) fn has_whole_ints(self) -> bool {
        self.ints.is_some_and(|(_, kept_as)| kept_as != KeptAs::Sixteenths)
    }

    /// How `n_rows` are kept for who reads these.
    fn of_rows(self, n_rows: usize) -> ActForms {
        let ints = self.ints.map(|(bits, kept_as)| match kept_as {
            KeptAs::Bytes if n_rows == 1 => (bits, KeptAs::CrossedWords),
            _ => (bits, kept_as),
        });
        ActForms { ints, ..self }
    }
}

impl Acts {
    /// Room for `max_rows` rows of up to `max_cols` columns.
    pub fn new(max_rows: usize, max_cols: usize) -> Acts {
        let n = max_rows.next_multiple_of(TILE_ROWS) * max_cols.next_multiple_of(ACT_BLOCK);
        Acts {
            exact: vec![0.0; max_rows * max_cols],
            floats: Aligned::zeros(n),
            brains: Aligned::zeros(n),
            ints: Aligned::zeros(2 * n),
            int_scales: Aligned::zeros(IntScale::FIELDS * n / ACT_BLOCK),
            half_sums: Aligned::zeros(2 * n / ACT_BLOCK),
            factors: Aligned::zeros(max_rows.next_multiple_of(TILE_ROWS)),
            squares: Aligned::zeros(n / WIDTH),
            n_rows: 0,
            n_cols: max_cols,
            max_rows,
            forms: ActForms::default(),
        }
    }

    /// Says how many rows come next, their width, and what their readers need. Both sizes must fit
    /// what `new` got.
    pub fn shape(&mut self, n_rows: usize, n_cols: usize, forms: ActForms) {
        let padded = n_cols.next_multiple_of(ACT_BLOCK);
        assert!(
            n_rows <= self.max_rows
                && self.max_rows * n_cols <= self.exact.len()
                && self.max_rows.next_multiple_of(TILE_ROWS) * padded <= self.floats.len(),
            "activation buffer too small"
        );
        self.n_rows = n_rows;
        self.n_cols = n_cols;
        self.forms = forms.of_rows(n_rows);
        self.factors[..n_rows.next_multiple_of(TILE_ROWS)].fill(1.0);
    }

    /// Makes the rows' factors from the squares of their panels of columns.
    pub(crate) fn norm_by_squares(&mut self, eps: f32) {
        let n_panels = self.n_cols.div_ceil(WIDTH);
        let tiles = self.factors.chunks_exact_mut(TILE_ROWS);
        let n_tiles = self.n_rows.div_ceil(TILE_ROWS);
        for (tile, factors) in tiles.take(n_tiles).enumerate() {
            let squares = &self.squares[tile * n_panels * TILE_ROWS..][..n_panels * TILE_ROWS];
            let mut sums = [0.0; TILE_ROWS];
            for of_panel in squares.chunks_exact(TILE_ROWS) {
                sums.iter_mut().zip(of_panel).for_each(|(sum, square)| *sum += square);
            }
            for (factor, sum) in factors.iter_mut().zip(sums) {
                *factor = inverse_root(sum, self.n_cols, eps);
            }
        }
    }

    pub fn n_cols(&self) -> usize {
        self.n_cols
    }

    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Rows that a tile has room for: those there are, as a power of two.
    fn tile_rows(&self) -> usize {
        self.n_rows.next_power_of_two().min(TILE_ROWS)
    }

    pub fn forms(&self) -> ActForms {
        self.forms
    }

    /// Whether a reader finds here what it needs.
    pub(crate) fn suit(&self, needed: ActForms) -> bool {
        let needed = needed.of_rows(self.n_rows);
        self.forms.or(needed) == self.forms
            && needed.ints.is_none_or(|ints| self.forms.ints == Some(ints))
    }

    pub(crate) fn view(&self) -> ActView {
        ActView {
            exact: self.exact.as_ptr(),
            floats: self.floats.as_ptr(),
            brains: self.brains.as_ptr(),
            ints: self.ints.as_ptr(),
            int_scales: self.int_scales.as_ptr(),
            half_sums: self.half_sums.as_ptr(),
            factors: self.factors.as_ptr(),
            n_blocks: self.n_cols.div_ceil(ACT_BLOCK),
            tile_rows: self.tile_rows(),
            forms: self.forms,
        }
    }

    pub(crate) fn view_mut(&mut self) -> ActViewMut {
        ActViewMut {
            exact: self.exact.as_mut_ptr(),
            floats: self.floats.as_mut_ptr(),
            brains: self.brains.as_mut_ptr(),
            ints: self.ints.as_mut_ptr(),
            int_scales: self.int_scales.as_mut_ptr(),
            half_sums: self.half_sums.as_mut_ptr(),
            factors: self.factors.as_mut_ptr(),
            squares: self.squares.as_mut_ptr(),
            n_cols: self.n_cols,
            n_blocks: self.n_cols.div_ceil(ACT_BLOCK),
            tile_rows: self.tile_rows(),
            largest_int: self.forms.ints.map_or(0.0, |(bits, _)| bits.largest()),
            forms: self.forms,
        }
    }
}

/// What a row is multiplied with whose squares add up to `sum`.
pub(crate) fn inverse_root(sum: f32, n_cols: usize, eps: f32) -> f32 {
    1.0 / (sum / n_cols as f32 + eps).sqrt()
}

/// What 32 columns of a row's integers stand for, or a half of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IntScale {
    /// What one stands for.
    pub(crate) unit: f32,
    /// The sum of the integers,
    pub(crate) sum: f32,
    /// and what it stands for.
    pub(crate) total: f32,
}

impl IntScale {
    pub(crate) const FIELDS: usize = 3;

    /// The fields lie `step` apart.
    ///
    /// # Safety
    /// They do.
    #[inline(always)]
    pub(crate) unsafe fn read(at: *const f32, step: usize) -> IntScale {
        // SAFETY: forwarded contract.
        unsafe { IntScale { unit: *at, sum: *at.add(step), total: *at.add(2 * step) } }
    }

    /// The same for a half, whose sum lies elsewhere.
    ///
    /// # Safety
    /// Both are there.
    #[inline(always)]
    pub(crate) unsafe fn of_half(unit: *const f32, sum: *const f32) -> IntScale {
        // SAFETY: forwarded contract.
        let (unit, sum) = unsafe { (*unit, *sum) };
        IntScale { unit, sum, total: sum * unit }
    }
}

/// [`Acts`] for kernels that read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ActView {
    pub(crate) exact: *const f32,
    /// `[row][block][32]`.
    pub(crate) floats: *const f32,
    /// `[tile of rows][block][16 pairs of columns][row][2]`.
    pub(crate) brains: *const u16,
    /// See [`KeptAs`].
    pub(crate) ints: *const u8,
    /// `[tile of rows][block][unit, sum, total][row]`.
    pub(crate) int_scales: *const f32,
    /// `[tile of rows][block][half][row]`, where [`ActForms::halves`] wants them.
    pub(crate) half_sums: *const f32,
    /// What each row's results are multiplied with.
    pub(crate) factors: *const f32,
    pub(crate) n_blocks: usize,
    pub(crate) tile_rows: usize,
    pub(crate) forms: ActForms,
}

impl ActView {
    /// A row's results.
    ///
    /// # Safety
    /// As [`Lanes`]; the row lies within the activations.
    #[inline(always)]
    pub(crate) unsafe fn scaled<V: Lanes>(&self, sums: V, row: usize) -> V {
        // SAFETY: forwarded contract.
        unsafe { sums.mul(V::splat(*self.factors.add(row))) }
    }

    /// Of the tile that begins with `row`, what `block` stands for: all units, sums and totals.
    ///
    /// # Safety
    /// The row and the block lie within the activations.
    #[inline(always)]
    pub(crate) unsafe fn int_scales_of(&self, row: usize, block: usize) -> *const f32 {
        let at = (row / self.tile_rows * self.n_blocks + block) * IntScale::FIELDS;
        // SAFETY: the caller vouches for the row and the block.
        unsafe { self.int_scales.add(at * self.tile_rows) }
    }

    /// Of the tile that begins with `row`, the sums of the halves of `block`.
    ///
    /// # Safety
    /// As [`ActView::int_scales_of`].
    #[inline(always)]
    pub(crate) unsafe fn half_sums_of(&self, row: usize, block: usize) -> *const f32 {
        let at = (row / self.tile_rows * self.n_blocks + block) * 2;
        // SAFETY: the caller vouches for the row and the block.
        unsafe { self.half_sums.add(at * self.tile_rows) }
    }

    /// A row's integers of a block, as half words; the next row of its tile follows.
    ///
    /// # Safety
    /// As [`ActView::int_scales_of`].
    #[inline(always)]
    pub(crate) unsafe fn int_words(&self, row: usize, block: usize) -> *const i16 {
        // SAFETY: forwarded contract.
        unsafe { self.ints.cast::<i16>().add(place(row, block, self.n_blocks, self.tile_rows)) }
    }

    /// # Safety
    /// As [`ActView::int_scales_of`].
    #[inline(always)]
    pub(crate) unsafe fn int_scale(&self, row: usize, block: usize) -> IntScale {
        // SAFETY: forwarded contract.
        unsafe {
            let at = self.int_scales_of(row, block).add(row % self.tile_rows);
            IntScale::read(at, self.tile_rows)
        }
    }

    /// [`Self::int_scale`] of a half of a block.
    ///
    /// # Safety
    /// As there; sums of halves are there.
    #[inline(always)]
    pub(crate) unsafe fn half_scale(&self, row: usize, block: usize, half: usize) -> IntScale {
        // SAFETY: forwarded contract.
        unsafe {
            let unit = self.int_scales_of(row, block).add(row % self.tile_rows);
            let sums = self.half_sums_of(row, block).add(half * self.tile_rows);
            IntScale::of_half(unit, sums.add(row % self.tile_rows))
        }
    }
}

/// Where a row's integers of a block are.
#[inline(always)]
fn place(row: usize, block: usize, n_blocks: usize, tile_rows: usize) -> usize {
    let tile = row / tile_rows * n_blocks + block;
    (tile * tile_rows + row % tile_rows) * ACT_BLOCK
}

impl ActViewMut {
    /// As [`ActView::int_words`].
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub(crate) unsafe fn int_words(&self, row: usize, block: usize) -> *mut i16 {
        // SAFETY: forwarded contract.
        unsafe { self.ints.cast::<i16>().add(place(row, block, self.n_blocks, self.tile_rows)) }
    }

    /// The same as bytes.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub(crate) unsafe fn int_bytes(&self, row: usize, block: usize) -> *mut i8 {
        // SAFETY: forwarded contract.
        unsafe { self.ints.cast::<i8>().add(place(row, block, self.n_blocks, self.tile_rows)) }
    }

    /// # Safety
    /// As [`ActView::int_scales_of`]; nobody else writes the row.
    #[inline(always)]
    pub(crate) unsafe fn put_int_scale(&self, row: usize, block: usize, scale: IntScale) {
        let tile = (row / self.tile_rows * self.n_blocks + block) * IntScale::FIELDS;
        // SAFETY: the caller vouches for the row and the block.
        unsafe {
            let at = self.int_scales.add(tile * self.tile_rows + row % self.tile_rows);
            *at = scale.unit;
            *at.add(self.tile_rows) = scale.sum;
            *at.add(2 * self.tile_rows) = scale.total;
        }
    }

    /// Notes the sums of a block's halves.
    ///
    /// # Safety
    /// As [`ActViewMut::put_int_scale`].
    #[inline(always)]
    pub(crate) unsafe fn put_half_sums(&self, row: usize, block: usize, sums: [f32; 2]) {
        let tile = (row / self.tile_rows * self.n_blocks + block) * 2;
        // SAFETY: the caller vouches for the row and the block.
        unsafe {
            let at = self.half_sums.add(tile * self.tile_rows + row % self.tile_rows);
            *at = sums[0];
            *at.add(self.tile_rows) = sums[1];
        }
    }
}

/// [`Acts`] for kernels that fill in rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ActViewMut {
    pub(crate) exact: *mut f32,
    pub(crate) floats: *mut f32,
    pub(crate) brains: *mut u16,
    pub(crate) ints: *mut u8,
    pub(crate) int_scales: *mut f32,
    pub(crate) half_sums: *mut f32,
    pub(crate) factors: *mut f32,
    /// `[tile of rows][panel][row]`: sums of the squares of a panel's columns.
    pub(crate) squares: *mut f32,
    pub(crate) n_cols: usize,
    pub(crate) n_blocks: usize,
    pub(crate) tile_rows: usize,
    /// What a block's largest integer is.
    pub(crate) largest_int: f32,
    pub(crate) forms: ActForms,
}

// SAFETY: the pointers are used only inside an op, which holds the borrow of the `Acts` they come
// from; threads write disjoint rows, and of tiles, disjoint tiles.
unsafe impl Send for ActView {}
// SAFETY: as above.
unsafe impl Sync for ActView {}
// SAFETY: as above.
unsafe impl Send for ActViewMut {}
// SAFETY: as above.
unsafe impl Sync for ActViewMut {}
