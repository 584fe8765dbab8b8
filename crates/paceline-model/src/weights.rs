//! A checkpoint's tensors, packed for the CPU kernels.
//!
//! Two differences between files disappear here, so that the forward pass has one path: llama GGUF
//! files keep the two halves of a rotation next to each other, and their query and key rows are
//! reordered to the half-split order; Gemma checkpoints store norm weights less one.

use std::collections::BTreeMap;
use std::sync::Arc;

use paceline_cpu::quant::{TensorType, dequantize_row};
use paceline_cpu::{ActDtype, ActForms, Isa, PackedMatrix, RawMatrix};

use crate::checkpoint::{Checkpoint, LayerRole, Role, TensorView};
use crate::error::ModelError;
use crate::spec::{ModelSpec, RopeStyle};

/// All weights of a model.
#[derive(Debug)]
pub struct Weights {
    checkpoint: Arc<Checkpoint>,
    isa: Isa,
    acts: ActDtype,
    pub(crate) layers: Vec<LayerWeights>,
    pub(crate) output_norm: Vec<f32>,
    pub(crate) head: PackedMatrix,
}

/// One layer's weights; vectors a model does not have are empty.
#[derive(Debug)]
pub(crate) struct LayerWeights {
    pub(crate) attn_norm: Vec<f32>,
    pub(crate) qkv: [PackedMatrix; 3],
    pub(crate) qkv_bias: [Vec<f32>; 3],
    pub(crate) head_norms: [Vec<f32>; 2],
    pub(crate) o: PackedMatrix,
    pub(crate) o_bias: Vec<f32>,
    pub(crate) post_attn_norm: Vec<f32>,
    pub(crate) ffn_norm: Vec<f32>,
    pub(crate) gate: PackedMatrix,
    pub(crate) up: PackedMatrix,
    pub(crate) down: PackedMatrix,
    pub(crate) post_ffn_norm: Vec<f32>,
}

impl Weights {
    /// Packs every tensor for the kernels of `isa` and activations of `acts`, layers side by side
    /// on `n_threads` threads.
    pub fn load(
        checkpoint: Arc<Checkpoint>,
        isa: Isa,
        acts: ActDtype,
        n_threads: usize,
    ) -> Result<Weights, ModelError> {
        let n_layers = checkpoint.spec().n_layers;
        let per_thread = n_layers.div_ceil(n_threads.max(1));
        let loader = Loader { checkpoint: &checkpoint, spec: checkpoint.spec(), isa, acts };
        let load_range = |first: usize| {
            let layers = first..(first + per_thread).min(n_layers);
            layers.map(|layer| loader.layer(layer)).collect::<Result<Vec<_>, _>>()
        };
        let layers = std::thread::scope(|scope| {
            let load_range = &load_range;
            let threads: Vec<_> = (0..n_layers)
                .step_by(per_thread)
                .map(|first| scope.spawn(move || load_range(first)))
                .collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().map(join).collect::<Result<Vec<Vec<_>>, _>>()
        })?;
        let head_role =
            if checkpoint.tensor(Role::Output).is_some() { Role::Output } else { Role::TokenEmbed };
        let head = loader.of_last_products().matrix(head_role, |row| row)?.with_lengths(isa);
        let output_norm = loader.norm(Role::OutputNorm)?;
        let layers = layers.into_iter().flatten().collect();
        Ok(Weights { layers, output_norm, head, isa, acts, checkpoint })
    }

    pub fn spec(&self) -> &ModelSpec {
        self.checkpoint.spec()
    }

    /// The instruction set whose kernels read these weights.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// What activations are rounded to where they meet coded weights.
    pub fn activation_dtype(&self) -> ActDtype {
        self.acts
    }

    /// The file the weights came from.
    pub fn checkpoint(&self) -> &Arc<Checkpoint> {
        &self.checkpoint
    }

    /// Bytes of packed weights that a decode step reads.
    pub fn n_bytes(&self) -> usize {
        let layer = |l: &LayerWeights| l.matrices().iter().map(|m| m.n_bytes()).sum::<usize>();
        self.layers.iter().map(layer).sum::<usize>() + self.head.n_bytes()
    }

    /// How the matrices of each type in the file are multiplied; where the last products have
    /// another kernel than those of the same type before them, the others'.
    pub fn kernels(&self) -> BTreeMap<TensorType, &'static str> {
        let layers = self.layers.iter().rev().flat_map(|layer| layer.matrices().into_iter().rev());
        [&self.head].into_iter().chain(layers).map(|m| (m.tensor_type(), m.kernel())).collect()
    }

    /// The token embedding matrix as it lies in the file.
    pub(crate) fn embedding(&self) -> TensorView<'_> {
        self.checkpoint.tensor(Role::TokenEmbed).expect("the checkpoint was checked on opening")
    }
}

impl LayerWeights {
    fn matrices(&self) -> [&PackedMatrix; 7] {
        let [q, k, v] = &self.qkv;
        [q, k, v, &self.o, &self.gate, &self.up, &self.down]
    }
}

/// The activation forms a set of weights reads.
pub(crate) fn forms_of<'a>(weights: impl IntoIterator<Item = &'a PackedMatrix>) -> ActForms {
    weights.into_iter().fold(ActForms::default(), |all, weight| all.or(weight.act_forms()))
}

#[derive(Clone, Copy)]
struct Loader<'a> {
    checkpoint: &'a Checkpoint,
    spec: &'a ModelSpec,
    isa: Isa,
    acts: ActDtype,
}

impl Loader<'_> {
    /// The same for the last layer's feed-forward and the logits.
    fn of_last_products(self) -> Self {
        Self { acts: self.acts.of_last_products(), ..self }
    }

    fn layer(self, index: usize) -> Result<LayerWeights, ModelError> {
        use LayerRole::*;
        let role = |layer_role| Role::Layer(index, layer_role);
        let plain = |layer_role| self.matrix(role(layer_role), |row| row);
        let rotated = |layer_role| self.matrix(role(layer_role), |row| self.source_row(row));
        let is_last = index + 1 == self.spec.n_layers;
        let late = if is_last { self.of_last_products() } else { self };
        let feed_forward = |layer_role| late.matrix(role(layer_role), |row| row);
        Ok(LayerWeights {
            attn_norm: self.norm(role(AttnNorm))?,
            qkv: [rotated(Q)?, rotated(K)?, plain(V)?],
            qkv_bias: [
                self.reordered(self.vector(role(QBias))?),
                self.reordered(self.vector(role(KBias))?),
                self.vector(role(VBias))?,
            ],
            head_norms: [
                self.reordered(self.norm(role(QNorm))?),
                self.reordered(self.norm(role(KNorm))?),
            ],
            o: plain(O)?,
            o_bias: self.vector(role(OBias))?,
            post_attn_norm: self.norm(role(PostAttnNorm))?,
            ffn_norm: self.norm(role(FfnNorm))?,
            gate: feed_forward(Gate)?,
            up: feed_forward(Up)?,
            down: feed_forward(Down)?,
            post_ffn_norm: self.norm(role(PostFfnNorm))?,
        })
    }

    /// Where a query or key row of the half-split order lies in the file.
    fn source_row(self, row: usize) -> usize {
        let (head_dim, rope) = (self.spec.head_dim, &self.spec.rope);
        let (head, i) = (row / head_dim * head_dim, row % head_dim);
        match rope.style {
            RopeStyle::Interleaved if i < rope.dim / 2 => head + 2 * i,
            RopeStyle::Interleaved if i < rope.dim => head + 2 * (i - rope.dim / 2) + 1,
            _ => row,
        }
    }

    fn reordered(self, values: Vec<f32>) -> Vec<f32> {
        (0..values.len()).map(|i| values[self.source_row(i)]).collect()
    }

    fn matrix(
        self,
        role: Role,
        row_of: impl Fn(usize) -> usize,
    ) -> Result<PackedMatrix, ModelError> {
        let view = self.checkpoint.tensor(role).expect("the checkpoint was checked on opening");
        let raw = RawMatrix { ty: view.ty, n_rows: view.rows, n_cols: view.cols, data: view.data };
        PackedMatrix::pack(raw, self.isa, self.acts, row_of)
            .map_err(|source| ModelError::Weights { tensor: view.name.to_owned(), source })
    }

    /// A vector, or nothing where the model has none.
    fn vector(self, role: Role) -> Result<Vec<f32>, ModelError> {
        let Some(view) = self.checkpoint.tensor(role) else { return Ok(Vec::new()) };
        let mut values = vec![0.0; view.rows * view.cols];
        dequantize_row(view.ty, view.data, &mut values);
        match values.iter().all(|x| x.is_finite()) {
            true => Ok(values),
            false => Err(ModelError::Weights {
                tensor: view.name.to_owned(),
                source: paceline_cpu::PackError::NotFinite { row: 0 },
            }),
        }
    }

    fn norm(self, role: Role) -> Result<Vec<f32>, ModelError> {
        let offset = self.checkpoint.norm_offset();
        Ok(self.vector(role)?.into_iter().map(|w| w + offset).collect())
    }
}
