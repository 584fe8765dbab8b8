//! Ops that treat rows one by one.

use crate::acts::{Acts, TILE_ROWS};
use crate::kernels::rows::Norm;
use crate::ops::{Cpu, Shared};

/// The activation of a gated feed-forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    Silu,
    GeluTanh,
}

impl Cpu {
    /// `acts = rms_norm(x) * weight`, row by row, in the forms `acts` was shaped for. What a row is
    /// divided by is left to the end of the products that follow.
    pub fn norm_acts(&mut self, x: &[f32], weight: &[f32], eps: f32, acts: &mut Acts) {
        let n = acts.n_cols();
        let n_rows = x.len() / n;
        assert!(x.len() == n_rows * n && weight.len() == n && n_rows == acts.n_rows());
        let (kernel, view) = (self.kernels.norm_acts, acts.view_mut());
        let (norm, is_exact) = (Norm { weight: weight.as_ptr(), eps }, acts.forms().exact);
        self.split_acts(n_rows, self.kernels.rows_to_acts, acts, &|range| {
            for first in range.clone().step_by(TILE_ROWS) {
                let rows = first..range.end.min(first + TILE_ROWS);
                // Where nobody reads what is exact, it need not leave the caches.
                let place = if is_exact { first } else { range.start };
                // SAFETY: sizes checked above; each row of `acts` is written by one thread.
                unsafe {
                    let exact = view.exact.add(place * n);
                    kernel(norm, x.as_ptr().add(first * n), exact, view, rows);
                }
            }
        });
    }

    /// `acts = x`, row by row.
    pub fn acts_from(&mut self, x: &[f32], acts: &mut Acts) {
        let n = acts.n_cols();
        let n_rows = x.len() / n;
        assert!(x.len() == n_rows * n && n_rows == acts.n_rows());
        let (kernels, view) = (self.kernels, acts.view_mut());
        self.split_acts(n_rows, kernels.rows_to_acts, acts, &|rows| {
            // SAFETY: sizes checked above; each row of `acts` is written by one thread.
            unsafe { (kernels.put_acts)(x.as_ptr().add(rows.start * n), view, rows) };
        });
    }

    /// `acts = gate(gate) * up`, row by row; `gate` is overwritten.
    pub fn gated_acts(&mut self, kind: Gate, gate: &mut [f32], up: &[f32], acts: &mut Acts) {
        let n = acts.n_cols();
        let n_rows = gate.len() / n;
        assert!(gate.len() == n_rows * n && up.len() == gate.len() && n_rows == acts.n_rows());
        let (kernels, view) = (self.kernels, acts.view_mut());
        let gate = Shared(gate.as_mut_ptr());
        // The gate costs more than what follows, so that every thread should have some.
        self.split_acts(n_rows, kernels.rows_to_acts.div_ceil(4), acts, &|rows| {
            let at = rows.start * n;
            // SAFETY: sizes checked above; each row is written by one thread.
            unsafe {
                let gelu = kind == Gate::GeluTanh;
                (kernels.gated)(gate.at(at), up.as_ptr().add(at), rows.len() * n, gelu);
                (kernels.put_acts)(gate.at(at), view, rows);
            }
        });
    }

    /// Cuts rows of activations into ranges: of whole tiles where they are tiles, of `unit` rows
    /// where they are integers that may be made together.
    fn split_acts(
        &mut self,
        n_rows: usize,
        unit: usize,
        acts: &Acts,
        f: &(dyn Fn(std::ops::Range<usize>) + Sync),
    ) {
        let forms = acts.forms();
        let unit = if forms.tiles {
            TILE_ROWS
        } else if forms.has_whole_ints() {
            unit
        } else {
            1
        };
        self.split(n_rows.div_ceil(unit), unit * acts.n_cols(), &|_, units| {
            f(units.start * unit..n_rows.min(units.end * unit));
        });
    }

    /// `x += rms_norm(y) * weight`, row by row; `y` is overwritten.
    pub fn add_normed(&mut self, x: &mut [f32], y: &mut [f32], weight: &[f32], eps: f32) {
        let n = weight.len();
        let n_rows = x.len() / n;
        assert!(x.len() == n_rows * n && y.len() == x.len());
        let kernels = self.kernels;
        let (x, y) = (Shared(x.as_mut_ptr()), Shared(y.as_mut_ptr()));
        self.split(n_rows, n, &|_, rows| {
            for row in rows {
                // SAFETY: sizes checked above; each row is written by one thread.
                unsafe {
                    let normed = y.at(row * n);
                    (kernels.rms_norm)(normed, weight.as_ptr(), eps, n, normed);
                    (kernels.add)(x.at(row * n), normed, n);
                }
            }
        });
    }

    /// `x += bias`, row by row.
    pub fn add_bias(&mut self, x: &mut [f32], bias: &[f32]) {
        let kernel = self.kernels.add;
        self.for_each_row(x, bias.len(), |_, row| {
            // SAFETY: the row is as long as the bias.
            unsafe { kernel(row.as_mut_ptr(), bias.as_ptr(), bias.len()) };
        });
    }

    /// `x = cap * tanh(x / cap)`.
    pub fn softcap(&mut self, x: &mut [f32], cap: f32) {
        assert!(cap > 0.0);
        let kernel = self.kernels.softcap;
        let base = Shared(x.as_mut_ptr());
        self.split(x.len(), 1, &|_, range| {
            // SAFETY: ranges are disjoint and within `x`.
            unsafe { kernel(base.at(range.start), range.len(), cap) };
        });
    }
}
