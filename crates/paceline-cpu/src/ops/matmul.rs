//! Weights times activations.

use std::ops::Range;

use crate::acts::Acts;
#[cfg(target_arch = "x86_64")]
use crate::acts::{ACT_BLOCK, ActForms, KeptAs};
#[cfg(target_arch = "x86_64")]
use crate::isa::Isa;
use crate::kernels::matmul::{Output, rows_together};
#[cfg(target_arch = "x86_64")]
use crate::kernels::{matmul_amx::GateSink, matmul_int_blocks};
#[cfg(target_arch = "x86_64")]
use crate::lanes::WIDTH;
use crate::ops::{Cpu, Gate};
#[cfg(target_arch = "x86_64")]
use crate::packed::CodedView;
use crate::packed::{MatrixView, PackedMatrix};

/// One product: `out = w · acts`, or `out += w · acts`.
#[derive(Debug)]
pub struct MatmulJob<'a> {
    pub weight: &'a PackedMatrix,
    /// `[rows][weight rows]`.
    pub out: &'a mut [f32],
    pub add: bool,
}

/// Two products whose results meet: `out = gate(weights[0] · acts) * (weights[1] · acts)`.
#[derive(Debug)]
pub struct GatedJob<'a> {
    pub weights: [&'a PackedMatrix; 2],
    pub kind: Gate,
    /// Room for both products, where they must go through memory.
    pub products: [&'a mut [f32]; 2],
    pub out: &'a mut Acts,
}

impl Cpu {
    /// Multiplies `acts` with both weights, and gates.
    pub fn gated_matmul(&mut self, acts: &Acts, job: GatedJob<'_>) {
        #[cfg(target_arch = "x86_64")]
        if self.gated_at_once(acts, &mut *job.out, job.weights, job.kind) {
            return;
        }
        let n = acts.n_rows() * job.out.n_cols();
        let [gate, up] = job.products.map(|product| &mut product[..n]);
        let into = |weight, out| MatmulJob { weight, out, add: false };
        let jobs = [into(job.weights[0], &mut *gate), into(job.weights[1], &mut *up)];
        self.matmul(acts, jobs);
        self.gated_acts(job.kind, gate, up, job.out);
    }

    /// Does so in one go, if there is a kernel for such weights.
    #[cfg(target_arch = "x86_64")]
    fn gated_at_once(
        &mut self,
        acts: &Acts,
        out: &mut Acts,
        weights: [&PackedMatrix; 2],
        kind: Gate,
    ) -> bool {
        let Some(kernel) = self.kernels.gated_matmul else { return false };
        let [Some(gate), Some(up)] = weights.map(|weight| self.fused_view(weight)) else {
            return false;
        };
        let Some(together) = self.panels_of_gate(out) else { return false };
        if gate.layout != up.layout {
            return false;
        }
        for weight in weights {
            assert!(weight.suits(self.isa), "weight packed for another instruction set");
            assert_eq!(weight.n_cols(), acts.n_cols(), "weight and activation widths differ");
            assert_eq!(weight.n_rows(), out.n_cols(), "weight and result widths differ");
        }
        let n_rows = acts.n_rows();
        assert_eq!(n_rows, out.n_rows(), "activations and results have other rows");
        assert!(acts.suit(weights[0].act_forms()), "activations lack the weight's form");
        let to = GateSink { acts: out.view_mut(), gelu: kind == Gate::GeluTanh };
        let view = acts.view();
        let n_panels = weights[0].n_panels();
        let shape = Products { n_rows, n_panels, together, cost: 2 * acts.n_cols() };
        self.split_products(shape, &|_, rows, panels, end| {
            // SAFETY: the asserts above check every size; threads write disjoint panels or rows.
            unsafe { kernel([gate.up_to(end), up.up_to(end)], panels, view, rows, to) };
        });
        true
    }

    /// A weight as kernels see it that do something with its products at once.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn fused_view(&self, weight: &PackedMatrix) -> Option<CodedView> {
        match (self.isa, weight.view()) {
            (Isa::Amx, MatrixView::Coded(view)) => Some(view),
            (Isa::Avx512 | Isa::Vnni, MatrixView::Ints(view)) => Some(view),
            _ => None,
        }
    }

    /// How many panels of each weight a gate takes together whose results are read as `out` is;
    /// none if there is no kernel for that, or a slower one.
    #[cfg(target_arch = "x86_64")]
    fn panels_of_gate(&self, out: &Acts) -> Option<usize> {
        let are_few = out.n_rows() <= matmul_int_blocks::FEW;
        let whole_blocks = out.n_cols().is_multiple_of(ACT_BLOCK).then_some(ACT_BLOCK / WIDTH);
        match out.forms() {
            ActForms::TILES if self.isa == Isa::Amx => Some(1),
            ActForms {
                exact: false, floats: false, tiles: false, ints: Some((_, kept)), ..
            } => match kept {
                KeptAs::Bytes => whole_blocks,
                KeptAs::Words => whole_blocks.filter(|_| !are_few),
                KeptAs::CrossedWords | KeptAs::Sixteenths => None,
            },
            _ => None,
        }
    }

    /// Multiplies `acts` with each weight, in one go over the threads.
    pub fn matmul<const N: usize>(&mut self, acts: &Acts, jobs: [MatmulJob<'_>; N]) {
        let (n_rows, mut n_panels) = (acts.n_rows(), 0);
        let jobs: [(MatrixView, usize, Output); N] = jobs.map(|job| {
            let forms = job.weight.act_forms();
            assert!(job.weight.suits(self.isa), "weight packed for another instruction set");
            assert_eq!(job.weight.n_cols(), acts.n_cols(), "weight and activation widths differ");
            assert!(acts.suit(forms), "activations lack the weight's form");
            let stride = job.weight.n_rows();
            assert!(job.out.len() >= n_rows * stride, "output too small");
            n_panels += job.weight.n_panels();
            let out = Output { data: job.out.as_mut_ptr(), stride, add: job.add };
            (job.weight.view(), job.weight.n_panels(), out)
        });
        let (kernel, view) = (self.kernels.matmul, acts.view());
        let together = self.kernels.panels;
        let shape = Products { n_rows, n_panels, together, cost: acts.n_cols() };
        self.split_products(shape, &|_, rows, range, end| {
            let mut first = 0;
            for (weight, count, out) in &jobs {
                let own = |panel: usize| panel.clamp(first, first + count) - first;
                let panels = own(range.start)..own(range.end);
                if !panels.is_empty() {
                    // SAFETY: the asserts above check every size; threads write disjoint panels
                    // or rows.
                    unsafe {
                        kernel(weight.up_to(own(end)), panels, view, rows.clone(), *out);
                    }
                }
                first += count;
            }
        });
    }

    /// Runs `f(thread, rows, panels, end)` for all, over the threads: some rows meet all panels
    /// before the next ones do, so that their activations stay in the caches. The thread's next
    /// panels follow up to `end`.
    pub(super) fn split_products(
        &mut self,
        Products { n_rows, n_panels, together, cost }: Products,
        f: &(dyn Fn(usize, Range<usize>, Range<usize>, usize) + Sync),
    ) {
        let n_together = rows_together(n_rows);
        let n_groups = n_rows.div_ceil(n_together.max(1));
        let (n, cost) = (n_panels.div_ceil(together), together * cost * n_rows.min(n_together));
        self.split_in_order(n_groups * n, cost, &|thread, range, end| {
            for group in range.start / n..range.end.div_ceil(n) {
                let first = group * n;
                let panel =
                    |at: usize| n_panels.min((at.clamp(first, first + n) - first) * together);
                let rows = group * n_together..n_rows.min((group + 1) * n_together);
                f(thread, rows, panel(range.start)..panel(range.end), panel(end));
            }
        });
    }
}

/// How large some products are together, and what one panel costs for one row.
pub(super) struct Products {
    pub(super) n_rows: usize,
    pub(super) n_panels: usize,
    /// Panels that are not parted.
    pub(super) together: usize,
    pub(super) cost: usize,
}
