//! The largest output of each row of a product, without the outputs.

#[cfg(target_arch = "x86_64")]
use std::ops::Range;

#[cfg(target_arch = "x86_64")]
use super::matmul::Products;
use crate::acts::Acts;
#[cfg(target_arch = "x86_64")]
use crate::acts::{ActForms, IntBits, KeptAs, TILE_ROWS};
use crate::aligned::Aligned;
#[cfg(target_arch = "x86_64")]
use crate::isa::Isa;
#[cfg(target_arch = "x86_64")]
use crate::kernels::matmul_amx::{TileTops, TopSink};
#[cfg(target_arch = "x86_64")]
use crate::kernels::matmul_int_blocks::rough::{self, RoughTops};
use crate::lanes::WIDTH;
use crate::ops::Cpu;
#[cfg(target_arch = "x86_64")]
use crate::ops::Shared;
#[cfg(target_arch = "x86_64")]
use crate::packed::CodedView;
use crate::packed::PackedMatrix;
#[cfg(target_arch = "x86_64")]
use crate::table::FindTops;

/// Rows whose tops are found at once, at most.
pub(super) const ROWS: usize = 64;

#[cfg(target_arch = "x86_64")]
const TILES: usize = ROWS / TILE_ROWS;

/// A row's largest output.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Top {
    /// The first one's place.
    pub place: u32,
    pub value: f32,
    /// Every output is a number, and none is positive infinity.
    pub is_sound: bool,
}

impl Default for Top {
    fn default() -> Self {
        Self::NONE
    }
}

impl Top {
    /// Nothing seen yet.
    pub(super) const NONE: Top = Top { place: 0, value: f32::NEG_INFINITY, is_sound: true };

    /// The larger one; of equal ones, the first.
    fn or(self, other: Top) -> Top {
        let is_other =
            other.value > self.value || (other.value == self.value && other.place < self.place);
        let top = if is_other { other } else { self };
        Top { is_sound: self.is_sound && other.is_sound, ..top }
    }
}

/// The largest outputs of rows, and what finding them takes.
#[derive(Debug)]
pub struct Tops {
    found: [Top; ROWS],
    n_rows: usize,
    /// The rows' activations with fewer bits, how far off products with them are, and the largest
    /// of each panel.
    rough: Acts,
    reaches: [f32; ROWS],
    maxima: Aligned<f32>,
}

impl Tops {
    /// Room for all rows whose largest outputs are found at once, of a weight of such a shape.
    pub fn new(n_cols: usize, n_outputs: usize) -> Tops {
        Tops {
            found: [Top::NONE; ROWS],
            n_rows: 0,
            rough: Acts::new(ROWS, n_cols),
            reaches: [0.0; ROWS],
            maxima: Aligned::zeros(ROWS * n_outputs.div_ceil(WIDTH)),
        }
    }

    /// Each row's, after [`Cpu::find_tops`] has found them.
    pub fn found(&self) -> &[Top] {
        &self.found[..self.n_rows]
    }
}

impl Cpu {
    /// Finds the largest output of each row of `w · acts`, as [`argmax`](Self::argmax) and
    /// [`is_sound`](Self::is_sound) would after [`matmul`](Self::matmul). False where that would be
    /// no faster: for few rows, many, and weights and instruction sets that have no kernel for it.
    pub fn find_tops(&mut self, acts: &Acts, weight: &PackedMatrix, tops: &mut Tops) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self.find_tops_at_once(acts, weight, tops);
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    #[cfg(target_arch = "x86_64")]
    fn find_tops_at_once(&mut self, acts: &Acts, weight: &PackedMatrix, tops: &mut Tops) -> bool {
        use crate::kernels::matmul_int_blocks;

        let n_rows = acts.n_rows();
        let (Some(kernel), Some(w)) = (self.kernels.find_tops, self.fused_view(weight)) else {
            return false;
        };
        // On matrix tiles, fewer rows are in some that have no room for more.
        let few = if self.isa == Isa::Amx { TILE_ROWS / 2 } else { matmul_int_blocks::FEW };
        if n_rows <= few || n_rows > ROWS {
            return false;
        }
        assert!(weight.suits(self.isa), "weight packed for another instruction set");
        assert_eq!(weight.n_cols(), acts.n_cols(), "weight and activation widths differ");
        assert!(acts.suit(weight.act_forms()), "activations lack the weight's form");
        self.tops.fill([Top::NONE; ROWS]);
        match weight.lengths() {
            Some(lengths) => self.settle_tops(acts, w, lengths, tops),
            None => self.compare_all(kernel, acts, w),
        }
        tops.n_rows = n_rows;
        for (row, top) in tops.found[..n_rows].iter_mut().enumerate() {
            *top = self.tops.iter().fold(Top::NONE, |top, own| top.or(own[row]));
        }
        true
    }

    /// Finds tops among all outputs.
    #[cfg(target_arch = "x86_64")]
    fn compare_all(&mut self, kernel: FindTops, acts: &Acts, w: CodedView) {
        let mut of_threads = std::mem::take(&mut self.tops);
        let (view, own_of) = (acts.view(), Shared(of_threads.as_mut_ptr()));
        self.split_products(
            self.products_of(acts, w.n_rows.div_ceil(WIDTH)),
            &|thread, rows, panels, end| {
                let mut found = [TileTops::NONE; TILES];
                let to = TopSink { tops: found.as_mut_ptr() };
                // SAFETY: the caller has checked every size; a thread has its own tops.
                let own = unsafe {
                    kernel(w.up_to(end), panels, view, rows.clone(), to);
                    &mut *own_of.at(thread)
                };
                add_tops(own, &found, rows);
            },
        );
        self.tops = of_threads;
    }

    /// Finds tops among those outputs that may be it, as far as activations of fewer bits tell.
    #[cfg(target_arch = "x86_64")]
    fn settle_tops(&mut self, acts: &Acts, w: CodedView, lengths: &[f32], tops: &mut Tops) {
        let (n_rows, n_panels) = (acts.n_rows(), lengths.len());
        assert!(tops.maxima.len() >= ROWS * n_panels, "too little room for panels");
        let ints = Some((IntBits::Eight, KeptAs::Bytes));
        let halves = w.layout.has_halves();
        tops.rough.shape(n_rows, acts.n_cols(), ActForms { ints, halves, ..ActForms::default() });
        let view = acts.view();
        // SAFETY: there are as many rows of the same width, in the forms just named; weights have
        // lengths where there is AVX-512 with VNNI alone.
        unsafe { rough::round(view, n_rows, tops.rough.view_mut(), &mut tops.reaches) };
        let rough = RoughTops {
            acts: tops.rough.view(),
            reaches: tops.reaches.as_ptr(),
            lengths: lengths.as_ptr(),
            maxima: tops.maxima.as_mut_ptr(),
            n_panels,
        };

        let mut floors = std::mem::take(&mut self.floors);
        floors.fill([f32::NEG_INFINITY; ROWS]);
        let own_of = Shared(floors.as_mut_ptr());
        self.split_products(self.products_of(acts, n_panels), &|thread, rows, panels, end| {
            // SAFETY: every size was checked; threads have floors of their own and write disjoint
            // panels.
            unsafe { rough::bound(w.up_to(end), panels, rows, rough, &mut *own_of.at(thread)) };
        });
        let floor_of = |row| floors.iter().fold(f32::NEG_INFINITY, |top, own| top.max(own[row]));
        let least: [f32; ROWS] = std::array::from_fn(floor_of);
        self.floors = floors;

        let mut of_threads = std::mem::take(&mut self.tops);
        let own_of = Shared(of_threads.as_mut_ptr());
        self.split(n_panels, n_rows * acts.n_cols(), &|thread, panels| {
            let mut found = [TileTops::NONE; TILES];
            // SAFETY: as above; a thread has its own tops.
            let own = unsafe {
                rough::settle(w, panels, view, n_rows, (rough, &least), &mut found);
                &mut *own_of.at(thread)
            };
            add_tops(own, &found, 0..n_rows);
        });
        self.tops = of_threads;
    }

    /// How a product of `n_panels` panels is split.
    #[cfg(target_arch = "x86_64")]
    fn products_of(&self, acts: &Acts, n_panels: usize) -> Products {
        let together = self.kernels.panels;
        Products { n_rows: acts.n_rows(), n_panels, together, cost: acts.n_cols() }
    }
}

/// Adds what was found for tiles of rows to what a thread has found before.
#[cfg(target_arch = "x86_64")]
fn add_tops(own: &mut [Top; ROWS], found: &[TileTops; TILES], rows: Range<usize>) {
    for row in rows {
        let (tile, i) = (&found[row / TILE_ROWS], row % TILE_ROWS);
        let (place, value) = (tile.places[i], tile.values[i]);
        own[row] = own[row].or(Top { place, value, is_sound: tile.nothing[i] == 0.0 });
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::acts::ActDtype;
    use crate::aligned::Aligned;
    use crate::ops::MatmulJob;
    use crate::packed::RawMatrix;
    use crate::quant::{Rng, TensorType, random_row};

    /// What products of bytes say holds, and says something: the bounds are some hundredths of what
    /// an output could be.
    #[test]
    fn largest_outputs_are_within_their_bounds() {
        let (n_rows, n_cols, n_outputs) = (19, 256, 1003);
        let Ok(mut cpu) = Cpu::new(Isa::Vnni, 2, 16) else { return };
        let mut rng = Rng::new(5);
        for ty in [TensorType::Q8_0, TensorType::Q4_0, TensorType::Q6K, TensorType::Q3K] {
            let mut data = Vec::new();
            (0..n_outputs).for_each(|_| random_row(ty, &mut rng, 1.0, n_cols, &mut data));
            let raw = RawMatrix { ty, n_rows: n_outputs, n_cols, data: &data };
            let weight = PackedMatrix::pack(raw, Isa::Vnni, ActDtype::Int12, |row| row).unwrap();
            let weight = weight.with_lengths(Isa::Vnni);
            let mut acts = Acts::new(n_rows, n_cols);
            acts.shape(n_rows, n_cols, weight.act_forms());
            let x: Vec<f32> = (0..n_rows * n_cols).map(|_| rng.normal()).collect();
            cpu.acts_from(&x, &mut acts);
            let mut out = Aligned::zeros(n_rows * n_outputs);
            cpu.matmul(&acts, [MatmulJob { weight: &weight, out: &mut out, add: false }]);
            let mut tops = Tops::new(n_cols, n_outputs);
            assert!(cpu.find_tops(&acts, &weight, &mut tops));

            let lengths = weight.lengths().unwrap();
            for (row, out) in out.chunks_exact(n_outputs).enumerate() {
                let of_row = &x[row * n_cols..(row + 1) * n_cols];
                let length = of_row.iter().map(|x| x * x).sum::<f32>().sqrt();
                assert!(tops.reaches[row] < 0.03 * length, "{ty}: {}", tops.reaches[row] / length);
                for (panel, out) in out.chunks(WIDTH).enumerate() {
                    let at = (row / TILE_ROWS * lengths.len() + panel) * TILE_ROWS;
                    let rough = tops.maxima[at + row % TILE_ROWS];
                    let exact = out.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
                    let reach = tops.reaches[row] * lengths[panel];
                    assert!((rough - exact).abs() <= reach, "{ty}, row {row}, panel {panel}");
                }
            }
        }
    }
}
