//! From the figures a checkpoint gives to a checked [`ModelSpec`].

use super::rope::Scaling;
use super::{Arch, WindowRule};
use crate::error::ModelError;
use crate::spec::{Activation, ModelSpec, RopeSpec, RopeStyle};

/// What either format says about a model, before defaults are filled in.
#[derive(Debug)]
pub(super) struct Figures {
    pub(super) name: Option<String>,
    pub(super) n_layers: usize,
    pub(super) d_model: usize,
    pub(super) n_heads: usize,
    pub(super) n_kv_heads: Option<usize>,
    pub(super) head_dim: Option<usize>,
    pub(super) d_ff: usize,
    pub(super) n_vocab: usize,
    pub(super) max_context: usize,
    pub(super) norm_eps: f32,
    pub(super) rope: RopeFigures,
    pub(super) activation: Option<Activation>,
    pub(super) window: Option<u32>,
    pub(super) sliding: Sliding,
    pub(super) attn_scale: Option<f32>,
    pub(super) attn_softcap: Option<f32>,
    pub(super) final_softcap: Option<f32>,
}

#[derive(Debug)]
pub(super) struct RopeFigures {
    pub(super) style: RopeStyle,
    pub(super) dim: Option<usize>,
    pub(super) base: f64,
    pub(super) local_base: Option<f64>,
    pub(super) scaling: Scaling,
    /// Each frequency is divided by its entry.
    pub(super) divisors: Option<Vec<f32>>,
}

/// Which layers slide, as far as the checkpoint says.
#[derive(Debug)]
pub(super) enum Sliding {
    /// As the architecture has it.
    Default,
    /// All but every n-th.
    AllBut(usize),
    /// Those from this layer on.
    From(usize),
    Listed(Vec<bool>),
}

pub(super) fn build(arch: &Arch, figures: Figures) -> Result<ModelSpec, ModelError> {
    let head_dim = figures
        .head_dim
        .unwrap_or(figures.d_model / figures.n_heads.max(1));
    let mut spec = ModelSpec {
        arch: arch.name.to_owned(),
        name: figures.name,
        n_layers: figures.n_layers,
        d_model: figures.d_model,
        n_heads: figures.n_heads,
        n_kv_heads: figures.n_kv_heads.unwrap_or(figures.n_heads),
        head_dim,
        d_ff: figures.d_ff,
        n_vocab: figures.n_vocab,
        max_context: figures.max_context,
        norm_eps: figures.norm_eps,
        rope: RopeSpec {
            style: figures.rope.style,
            dim: figures.rope.dim.unwrap_or(head_dim),
            inv_freq: Vec::new(),
            local_inv_freq: None,
            magnitude: figures.rope.scaling.magnitude(),
        },
        activation: figures.activation.unwrap_or(arch.activation),
        windows: Vec::new(),
        attn_scale: figures.attn_scale.unwrap_or(1.0 / (head_dim as f32).sqrt()),
        attn_softcap: figures.attn_softcap.or(arch.default_attn_softcap),
        final_softcap: figures.final_softcap.or(arch.default_final_softcap),
        embed_scale: if arch.embed_scaled {
            (figures.d_model as f32).sqrt()
        } else {
            1.0
        },
    };
    // Sizes first: the tables below are as long as they say.
    spec.check_sizes()?;
    spec.windows = windows(arch, spec.n_layers, figures.window, &figures.sliding);
    fill_rope(arch, &figures.rope, &mut spec.rope)?;
    spec.check()?;
    Ok(spec)
}

fn windows(
    arch: &Arch,
    n_layers: usize,
    window: Option<u32>,
    sliding: &Sliding,
) -> Vec<Option<u32>> {
    let window = window.or(arch.default_window);
    let all_but = |period: usize, layer: usize| !(layer + 1).is_multiple_of(period);
    let slides = |layer: usize| match (sliding, arch.windows) {
        (Sliding::Listed(layers), _) => layers.get(layer).copied().unwrap_or(false),
        (Sliding::From(first), _) => layer >= *first,
        (Sliding::AllBut(period), _) => all_but(*period, layer),
        (Sliding::Default, WindowRule::Every) => true,
        (Sliding::Default, WindowRule::OptIn) => false,
        (Sliding::Default, WindowRule::AllBut(period)) => all_but(period, layer),
    };
    (0..n_layers)
        .map(|layer| window.filter(|_| slides(layer)))
        .collect()
}

fn fill_rope(arch: &Arch, figures: &RopeFigures, rope: &mut RopeSpec) -> Result<(), ModelError> {
    rope.inv_freq = figures.scaling.inv_freq(rope.dim, figures.base);
    if let Some(divisors) = &figures.divisors {
        if divisors.len() != rope.inv_freq.len() {
            return Err(ModelError::BadFigure {
                what: "the number of rope divisors",
                found: divisors.len().to_string(),
                expected: format!("{}, half the rotated dimensions", rope.inv_freq.len()),
            });
        }
        rope.inv_freq
            .iter_mut()
            .zip(divisors)
            .for_each(|(f, divisor)| *f /= divisor);
    }
    let local_base = arch
        .local_rope_base
        .map(|base| figures.local_base.unwrap_or(base));
    rope.local_inv_freq = local_base.map(|base| Scaling::None.inv_freq(rope.dim, base));
    Ok(())
}
