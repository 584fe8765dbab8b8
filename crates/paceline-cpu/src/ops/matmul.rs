//! Weights times activations.

use crate::acts::Acts;
use crate::kernels::matmul::Output;
use crate::ops::Cpu;
use crate::packed::{MatrixView, PackedMatrix};

/// One product: `out = w · acts`, or `out += w · acts`.
#[derive(Debug)]
pub struct MatmulJob<'a> {
    pub weight: &'a PackedMatrix,
    /// `[rows][weight rows]`.
    pub out: &'a mut [f32],
    pub add: bool,
}

impl Cpu {
    /// Multiplies the first `n_rows` of `acts` with each weight, in one go over the threads.
    pub fn matmul<const N: usize>(&mut self, acts: &Acts, n_rows: usize, jobs: [MatmulJob<'_>; N]) {
        assert!(n_rows <= acts.max_rows());
        let mut n_panels = 0;
        let jobs: [(MatrixView, usize, Output); N] = jobs.map(|job| {
            let forms = job.weight.act_forms();
            assert!(job.weight.suits(self.isa), "weight packed for another instruction set");
            assert_eq!(job.weight.n_cols(), acts.n_cols(), "weight and activation widths differ");
            assert_eq!(acts.forms().or(forms), acts.forms(), "activations lack the weight's form");
            let stride = job.weight.n_rows();
            assert!(job.out.len() >= n_rows * stride, "output too small");
            n_panels += job.weight.n_panels();
            let out = Output { data: job.out.as_mut_ptr(), stride, add: job.add };
            (job.weight.view(), job.weight.n_panels(), out)
        });
        let (kernel, view) = (self.kernels.matmul, acts.view());
        self.split(n_panels, acts.n_cols() * n_rows, &|_, range| {
            let mut first = 0;
            for (weight, count, out) in &jobs {
                let from = range.start.clamp(first, first + count) - first;
                let to = range.end.clamp(first, first + count) - first;
                if from < to {
                    // SAFETY: the asserts above check every size; threads write disjoint panels.
                    unsafe { kernel(*weight, from..to, view, n_rows, *out) };
                }
                first += count;
            }
        });
    }
}
