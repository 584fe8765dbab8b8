//! What the next product will read, so that threads that wait can ask for it.

use crate::ops::{Cpu, first_of_share};
use crate::packed::{MatrixView, PackedMatrix};
use crate::pool::Coming;

/// Weights in the order a product goes through their panels.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Expected {
    weights: [Option<Panels>; 3],
    /// The first two are read side by side.
    is_gated: bool,
}

#[derive(Clone, Copy, Debug)]
struct Panels {
    data: *const u8,
    n_bytes: usize,
    count: usize,
}

// SAFETY: the pointer is used as an address to ask for, never read.
unsafe impl Send for Panels {}
// SAFETY: as above.
unsafe impl Sync for Panels {}

impl Cpu {
    /// Says which weights the next product will read, before the op that comes before it: whoever
    /// is done with that op asks for the beginning of its share. A hint; nothing depends on it.
    pub fn expect_matmul<const N: usize>(&mut self, weights: [&PackedMatrix; N]) {
        let mut panels = weights.into_iter().map(panels_of);
        let weights = [(); 3].map(|()| panels.next().flatten());
        self.expected = Expected { weights, is_gated: false };
    }

    /// The same for a gated product.
    pub fn expect_gated_matmul(&mut self, weights: [&PackedMatrix; 2]) {
        self.expect_matmul(weights);
        self.expected.is_gated = true;
    }
}

fn panels_of(weight: &PackedMatrix) -> Option<Panels> {
    match weight.view() {
        MatrixView::Coded(view) | MatrixView::Ints(view) => {
            Some(Panels { data: view.data, n_bytes: view.panel.n_bytes, count: weight.n_panels() })
        }
        MatrixView::Exact(_) => None,
    }
}

impl Expected {
    /// Where a thread's share begins.
    pub(super) fn share_of(&self, thread: usize, n_threads: usize) -> Coming {
        let start = |weight: Panels, panel: usize| weight.data.wrapping_add(panel * weight.n_bytes);
        if let ([Some(gate), Some(up), _], true) = (self.weights, self.is_gated) {
            let panel = first_of_share(gate.count, thread, n_threads);
            return Coming::new(start(gate, panel), Some(start(up, panel)));
        }
        let weights = self.weights.into_iter().flatten();
        let n_panels = weights.clone().map(|weight| weight.count).sum();
        let mut panel = first_of_share(n_panels, thread, n_threads);
        for weight in weights {
            if panel < weight.count {
                return Coming::new(start(weight, panel), None);
            }
            panel -= weight.count;
        }
        Coming::default()
    }
}
