//! The largest output of each row of a product, without the outputs.

use crate::acts::Acts;
use crate::ops::{Cpu, Shared};
use crate::packed::PackedMatrix;

/// Rows whose tops are found at once, at most.
pub(super) const ROWS: usize = 64;

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

impl Cpu {
    /// Finds the largest output of each row of `w · acts`, as [`argmax`](Self::argmax) and
    /// [`is_sound`](Self::is_sound) would after [`matmul`](Self::matmul). False where that would be
    /// no faster: for few rows, many, and weights and instruction sets that have no kernel for it.
    pub fn find_tops(&mut self, acts: &Acts, weight: &PackedMatrix, tops: &mut [Top]) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self.find_tops_at_once(acts, weight, tops);
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    #[cfg(target_arch = "x86_64")]
    fn find_tops_at_once(&mut self, acts: &Acts, weight: &PackedMatrix, tops: &mut [Top]) -> bool {
        use super::matmul::Products;
        use crate::acts::TILE_ROWS;
        use crate::isa::Isa;
        use crate::kernels::matmul_amx::{TileTops, TopSink};
        use crate::kernels::matmul_int_vnni;

        let n_rows = acts.n_rows();
        let (Some(kernel), Some(w)) = (self.kernels.find_tops, self.fused_view(weight)) else {
            return false;
        };
        // On matrix tiles, fewer rows are in some that have no room for more.
        let few = if self.isa == Isa::Amx { TILE_ROWS / 2 } else { matmul_int_vnni::FEW };
        if n_rows <= few || n_rows > ROWS {
            return false;
        }
        assert!(weight.suits(self.isa), "weight packed for another instruction set");
        assert_eq!(weight.n_cols(), acts.n_cols(), "weight and activation widths differ");
        assert!(acts.forms().has(weight.act_forms()), "activations lack the weight's form");
        assert_eq!(tops.len(), n_rows, "a top for each row");
        let mut of_threads = std::mem::take(&mut self.tops);
        of_threads.fill([Top::NONE; ROWS]);
        let (view, shared) = (acts.view(), Shared(of_threads.as_mut_ptr()));
        let (n_panels, together) = (weight.n_panels(), self.kernels.panels);
        let shape = Products { n_rows, n_panels, together, cost: acts.n_cols() };
        self.split_products(shape, &|thread, rows, panels, end| {
            let mut found = [TileTops::NONE; ROWS / TILE_ROWS];
            let to = TopSink { tops: found.as_mut_ptr() };
            // SAFETY: the asserts above check every size; a thread has its own tops.
            let own = unsafe {
                kernel(w.up_to(end), panels, view, rows.clone(), to);
                &mut *shared.at(thread)
            };
            for row in rows {
                let (tile, i) = (&found[row / TILE_ROWS], row % TILE_ROWS);
                let (place, value) = (tile.places[i], tile.values[i]);
                own[row] = own[row].or(Top { place, value, is_sound: tile.nothing[i] == 0.0 });
            }
        });
        for (row, top) in tops.iter_mut().enumerate() {
            *top = of_threads.iter().fold(Top::NONE, |top, own| top.or(own[row]));
        }
        self.tops = of_threads;
        true
    }
}
