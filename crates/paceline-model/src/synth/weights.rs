//! Random weights, any row of which can be made by itself: both formats hold the same numbers,
//! in different orders.

use std::io::{self, Write};

use paceline_cpu::quant::{Rng, TensorType, random_row};

use super::SynthSpec;
use crate::arch::Slot;
use crate::spec::RopeStyle;
use crate::tensor::{LayerRole, Role};

/// Spread of biases, and of norms around one.
const SMALL: f32 = 0.1;

/// How a format holds the numbers.
#[derive(Clone, Copy)]
pub(super) enum Order {
    /// Norms whole; Q and K in this rope's order.
    Gguf(RopeStyle),
    /// Norms less their offset; Q and K as they come.
    Hf { norm_offset: f32 },
}

pub(super) struct Weights {
    seed: u64,
    ty: TensorType,
    n_layers: usize,
    head_dim: usize,
}

impl Weights {
    pub(super) fn new(synth: &SynthSpec) -> Self {
        let (n_layers, head_dim) = (synth.n_layers, synth.head_dim);
        Self {
            seed: synth.seed,
            ty: synth.ty,
            n_layers,
            head_dim,
        }
    }

    pub(super) fn ty(&self, role: Role) -> TensorType {
        match Kind::of(role) {
            Kind::Matrix => self.ty,
            Kind::Norm | Kind::Bias => TensorType::F32,
        }
    }

    /// Writes a tensor, row by row.
    pub(super) fn write(&self, slot: &Slot, order: Order, out: &mut dyn Write) -> io::Result<()> {
        match Kind::of(slot.role) {
            Kind::Norm => {
                let missing = match order {
                    Order::Gguf(_) => 0.0,
                    Order::Hf { norm_offset } => norm_offset,
                };
                let norm = |small: f32| if missing == 0.0 { 1.0 + small } else { small };
                self.write_vector(slot, |i, values| norm(values[i]), out)
            }
            Kind::Bias => self.write_vector(
                slot,
                |i, values| values[self.source(slot.role, order, i)],
                out,
            ),
            Kind::Matrix => self.write_matrix(slot, order, out),
        }
    }

    fn write_vector(
        &self,
        slot: &Slot,
        value: impl Fn(usize, &[f32]) -> f32,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let mut rng = self.rng(slot.role, 0);
        let values: Vec<f32> = (0..slot.cols).map(|_| SMALL * rng.normal()).collect();
        (0..slot.cols).try_for_each(|i| out.write_all(&value(i, &values).to_le_bytes()))
    }

    fn write_matrix(&self, slot: &Slot, order: Order, out: &mut dyn Write) -> io::Result<()> {
        let std = self.std(slot);
        let mut row = Vec::new();
        for i in 0..slot.rows {
            row.clear();
            let mut rng = self.rng(slot.role, self.source(slot.role, order, i));
            random_row(self.ty, &mut rng, std, slot.cols, &mut row);
            out.write_all(&row)?;
        }
        Ok(())
    }

    /// Keeps activations near one: matrices preserve the spread of their input, the two that add
    /// to the residual share it among all layers, and logits come out a few nats apart.
    fn std(&self, slot: &Slot) -> f32 {
        let width = slot.cols as f32;
        match slot.role {
            Role::TokenEmbed | Role::Output => 2.5 / width.sqrt(),
            Role::Layer(_, LayerRole::O | LayerRole::Down) => {
                1.0 / (width * 2.0 * self.n_layers as f32).sqrt()
            }
            _ => 1.0 / width.sqrt(),
        }
    }

    /// The row that stands at place `i`. Interleaved rope turns neighbours together where the
    /// plain order turns halves of a head, so its files hold the halves' rows by turns.
    fn source(&self, role: Role, order: Order, i: usize) -> usize {
        let Order::Gguf(RopeStyle::Interleaved) = order else {
            return i;
        };
        let (Role::Layer(_, LayerRole::Q | LayerRole::QBias)
        | Role::Layer(_, LayerRole::K | LayerRole::KBias)) = role
        else {
            return i;
        };
        let (head, within) = (i / self.head_dim, i % self.head_dim);
        head * self.head_dim + within % 2 * (self.head_dim / 2) + within / 2
    }

    /// The numbers of one row: a stream of its own for each.
    fn rng(&self, role: Role, row: usize) -> Rng {
        let stream = match role {
            Role::TokenEmbed => 0,
            Role::OutputNorm => 1,
            Role::Output => 2,
            Role::Layer(layer, role) => 3 + (layer * LayerRole::ALL.len()) as u64 + role as u64,
        };
        let mut seeds = Rng::new(self.seed);
        let mut seeds = Rng::new(seeds.next_u64() ^ stream << 32);
        Rng::new(seeds.next_u64() ^ row as u64)
    }
}

enum Kind {
    Matrix,
    Norm,
    Bias,
}

impl Kind {
    fn of(role: Role) -> Self {
        let Role::Layer(_, role) = role else {
            return if role == Role::OutputNorm {
                Self::Norm
            } else {
                Self::Matrix
            };
        };
        match role {
            LayerRole::AttnNorm
            | LayerRole::QNorm
            | LayerRole::KNorm
            | LayerRole::PostAttnNorm
            | LayerRole::FfnNorm
            | LayerRole::PostFfnNorm => Self::Norm,
            LayerRole::QBias | LayerRole::KBias | LayerRole::VBias | LayerRole::OBias => Self::Bias,
            LayerRole::Q
            | LayerRole::K
            | LayerRole::V
            | LayerRole::O
            | LayerRole::Gate
            | LayerRole::Up
            | LayerRole::Down => Self::Matrix,
        }
    }
}
