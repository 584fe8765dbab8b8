//! The residual stream: what sublayers add to, and norms read.
//!
//! In rows, or in tiles as products leave them: a thread then adds its outputs to a part of the
//! stream that it alone reads and writes, and hands on what the next products read: floats of the
//! stream do not go from core to core, and no op is needed for the norm.

use crate::acts::{ActForms, Acts, TILE_ROWS};
use crate::aligned::Aligned;
use crate::lanes::WIDTH;
use crate::ops::{Cpu, MatmulJob};
use crate::packed::{MatrixView, PackedMatrix};

/// The stream of a step's rows.
#[derive(Debug)]
pub struct Residual {
    /// `[rows][width]`: all there is, or what the tiles began with.
    rows: Aligned<f32>,
    /// `[tile of rows][panel][16 columns][16 rows]`.
    tiles: Aligned<f32>,
    width: usize,
    n_rows: usize,
    in_tiles: bool,
}

/// The norm that follows a sublayer, and the activations it becomes, in the forms they are read.
#[derive(Debug)]
pub struct NextNorm<'a> {
    pub weight: &'a [f32],
    pub eps: f32,
    pub out: &'a mut Acts,
}

impl Residual {
    pub fn new(max_rows: usize, width: usize) -> Residual {
        let padded = max_rows.next_multiple_of(TILE_ROWS) * width.next_multiple_of(WIDTH);
        Residual {
            rows: Aligned::zeros(max_rows * width),
            tiles: Aligned::zeros(padded),
            width,
            n_rows: 0,
            in_tiles: false,
        }
    }

    /// Begins a step of `n_rows`, which are to be filled in.
    pub fn begin(&mut self, n_rows: usize) -> &mut [f32] {
        self.n_rows = n_rows;
        self.in_tiles = false;
        self.rows_mut()
    }

    /// The rows, while they are no tiles.
    pub fn rows_mut(&mut self) -> &mut [f32] {
        assert!(!self.in_tiles, "the stream is in tiles");
        &mut self.rows[..self.n_rows * self.width]
    }

    /// Copies a row.
    pub fn copy_row(&self, row: usize, to: &mut [f32]) {
        let (n, width) = (self.n_rows, self.width);
        assert!(row < n && to.len() == width, "row {row} of {n}, {width} wide");
        if !self.in_tiles {
            to.copy_from_slice(&self.rows[row * width..][..width]);
            return;
        }
        let tile = &self.tiles[row / TILE_ROWS * TILE_ROWS * width..][..TILE_ROWS * width];
        let columns = tile.chunks_exact(TILE_ROWS);
        to.iter_mut().zip(columns).for_each(|(x, column)| *x = column[row % TILE_ROWS]);
    }
}

impl Cpu {
    /// Whether a stream can be in tiles while this weight's product is added to it, and a norm
    /// follows whose result is read in these forms.
    pub fn adds_to_tiles(&self, weight: &PackedMatrix, next: ActForms) -> bool {
        #[cfg(target_arch = "x86_64")]
        if self.kernels.add_to_residual.is_some() {
            let is_coded = matches!(weight.view(), MatrixView::Coded(_));
            return is_coded && weight.n_rows().is_multiple_of(WIDTH) && next == ActForms::TILES;
        }
        let _ = (weight, next);
        false
    }

    /// Turns the stream into tiles, if it has rows enough for that; [`adds_to_tiles`] has said yes
    /// to all that will be added to it.
    ///
    /// [`adds_to_tiles`]: Self::adds_to_tiles
    pub fn keep_in_tiles(&mut self, residual: &mut Residual) {
        let Residual { rows, tiles, width, n_rows, .. } = residual;
        let (width, n_rows) = (*width, *n_rows);
        // Fewer rows are in tiles that have no room for more.
        if n_rows <= TILE_ROWS / 2 || !width.is_multiple_of(WIDTH) {
            return;
        }
        let tiles = &mut tiles[..n_rows.next_multiple_of(TILE_ROWS) * width];
        self.for_each_row(tiles, TILE_ROWS * width, |tile, to| {
            let first = tile * TILE_ROWS;
            to.fill(0.0);
            for row in first..n_rows.min(first + TILE_ROWS) {
                let columns = to.chunks_exact_mut(TILE_ROWS);
                let from = &rows[row * width..][..width];
                columns.zip(from).for_each(|(column, x)| column[row - first] = *x);
            }
        });
        residual.in_tiles = true;
    }

    /// Adds `weight · acts` to the stream, and applies the norm that follows.
    pub fn add_to_residual(
        &mut self,
        acts: &Acts,
        weight: &PackedMatrix,
        residual: &mut Residual,
        next: Option<NextNorm<'_>>,
    ) {
        #[cfg(target_arch = "x86_64")]
        if residual.in_tiles {
            return self.add_to_tiles(acts, weight, residual, next);
        }
        let out = residual.rows_mut();
        self.matmul(acts, [MatmulJob { weight, out, add: true }]);
        if let Some(next) = next {
            self.norm_acts(residual.rows_mut(), next.weight, next.eps, next.out);
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn add_to_tiles(
        &mut self,
        acts: &Acts,
        weight: &PackedMatrix,
        residual: &mut Residual,
        mut next: Option<NextNorm<'_>>,
    ) {
        use super::matmul::Products;
        use crate::kernels::matmul_amx;

        let (n_rows, width) = (residual.n_rows, residual.width);
        let (Some(kernel), MatrixView::Coded(w)) = (self.kernels.add_to_residual, weight.view())
        else {
            unreachable!("a stream in tiles has such weights only");
        };
        assert!(weight.suits(self.isa), "weight packed for another instruction set");
        assert_eq!(weight.n_cols(), acts.n_cols(), "weight and activation widths differ");
        assert_eq!(weight.n_rows(), width, "weight and stream widths differ");
        assert_eq!(acts.n_rows(), n_rows, "activations and stream have other rows");
        assert!(acts.forms().tiles, "activations lack the weight's form");
        let to = matmul_amx::ResidualSink {
            tiles: residual.tiles.as_mut_ptr(),
            n_panels: width / WIDTH,
            next: next.as_mut().map(|next| {
                assert_eq!(next.out.forms(), ActForms::TILES, "a norm's result in other forms");
                assert!(next.out.n_rows() == n_rows && next.out.n_cols() == width);
                assert_eq!(next.weight.len(), width, "the norm's weight has another width");
                let weight = next.weight.as_ptr();
                matmul_amx::NextNorm { weight, acts: next.out.view_mut() }
            }),
        };
        let view = acts.view();
        let (n_panels, together) = (weight.n_panels(), self.kernels.panels);
        let shape = Products { n_rows, n_panels, together, cost: acts.n_cols() };
        self.split_products(shape, &|_, rows, panels, end| {
            // SAFETY: the asserts above check every size; more than half a tile of rows means that
            // tiles are whole; threads write disjoint panels or rows.
            unsafe { kernel(w.up_to(end), panels, view, rows, to) };
        });
        if let Some(next) = next {
            next.out.norm_by_squares(next.eps);
        }
    }
}
