//! Architectures as data: what distinguishes the supported models, and how a checkpoint's own
//! description becomes a [`ModelSpec`] and a list of tensors.
//!
//! The only module that knows model names. A new architecture of the same block shape is a new
//! row of [`ARCHS`].

mod build;
mod from_gguf;
mod from_hf;
mod names;
mod rope;

#[cfg(test)]
mod tests;

pub(crate) use from_gguf::spec_from_gguf;
pub(crate) use from_hf::{HfModel, spec_from_config};
pub(crate) use names::{gguf_name, hf_name, is_ignored};

use crate::error::ModelError;
use crate::spec::{Activation, ModelSpec, RopeStyle};
use crate::tensor::{LayerRole, Role};

/// One architecture.
#[derive(Debug)]
pub(crate) struct Arch {
    /// As GGUF's `general.architecture` has it.
    pub(crate) name: &'static str,
    /// Class names in `config.json`; the last is the one to write for a model with windows.
    hf_classes: &'static [&'static str],
    /// `model_type` in `config.json`, used where no class is named; in the classes' order.
    hf_model_types: &'static [&'static str],
    /// The order GGUF files of this architecture hold Q and K in. Hugging Face is always `Neox`.
    pub(crate) gguf_rope: RopeStyle,
    activation: Activation,
    qkv_bias: Presence,
    qk_norm: Presence,
    post_norms: Presence,
    /// Embeddings are multiplied by the square root of the width.
    embed_scaled: bool,
    /// What Hugging Face's norm weights lack; GGUF files have it added.
    pub(crate) hf_norm_offset: f32,
    pub(crate) windows: WindowRule,
    default_window: Option<u32>,
    /// Base of the rope of sliding layers, where it is another one.
    local_rope_base: Option<f64>,
    default_attn_softcap: Option<f32>,
    default_final_softcap: Option<f32>,
    /// The one size of the family, by its layers, whose queries scale by width over heads rather
    /// than by head size. GGUF files do not say so themselves.
    scaled_by_width_at: Option<usize>,
    /// What Hugging Face takes `query_pre_attn_scalar` for where a configuration leaves it out.
    pub(crate) hf_query_scalar: Option<f32>,
}

/// Whether an architecture has a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    Required,
    Optional,
    Absent,
}

/// Which layers slide, where the checkpoint does not list them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WindowRule {
    /// All, when there is a window at all.
    Every,
    /// None, unless the configuration asks for it; then those from a given layer on.
    OptIn,
    /// All but every n-th.
    AllBut(usize),
}

const LLAMA: Arch = Arch {
    name: "llama",
    hf_classes: &["LlamaForCausalLM", "MistralForCausalLM"],
    hf_model_types: &["llama", "mistral"],
    gguf_rope: RopeStyle::Interleaved,
    activation: Activation::Silu,
    qkv_bias: Presence::Optional,
    qk_norm: Presence::Absent,
    post_norms: Presence::Absent,
    embed_scaled: false,
    hf_norm_offset: 0.0,
    windows: WindowRule::Every,
    default_window: None,
    local_rope_base: None,
    default_attn_softcap: None,
    default_final_softcap: None,
    scaled_by_width_at: None,
    hf_query_scalar: None,
};

const QWEN2: Arch = Arch {
    name: "qwen2",
    hf_classes: &["Qwen2ForCausalLM"],
    hf_model_types: &["qwen2"],
    gguf_rope: RopeStyle::Neox,
    qkv_bias: Presence::Required,
    windows: WindowRule::OptIn,
    ..LLAMA
};

const QWEN3: Arch = Arch {
    name: "qwen3",
    hf_classes: &["Qwen3ForCausalLM"],
    hf_model_types: &["qwen3"],
    qkv_bias: Presence::Optional,
    qk_norm: Presence::Required,
    ..QWEN2
};

const GEMMA2: Arch = Arch {
    name: "gemma2",
    hf_classes: &["Gemma2ForCausalLM"],
    hf_model_types: &["gemma2"],
    gguf_rope: RopeStyle::Neox,
    activation: Activation::GeluTanh,
    post_norms: Presence::Required,
    embed_scaled: true,
    hf_norm_offset: 1.0,
    windows: WindowRule::AllBut(2),
    default_window: Some(4096),
    default_attn_softcap: Some(50.0),
    default_final_softcap: Some(30.0),
    scaled_by_width_at: Some(46),
    hf_query_scalar: Some(256.0),
    ..LLAMA
};

const GEMMA3: Arch = Arch {
    name: "gemma3",
    hf_classes: &["Gemma3ForCausalLM"],
    hf_model_types: &["gemma3_text"],
    qk_norm: Presence::Required,
    windows: WindowRule::AllBut(6),
    local_rope_base: Some(10_000.0),
    default_attn_softcap: None,
    default_final_softcap: None,
    scaled_by_width_at: Some(62),
    hf_query_scalar: Some(256.0),
    ..GEMMA2
};

static ARCHS: [Arch; 5] = [LLAMA, QWEN2, QWEN3, GEMMA2, GEMMA3];

/// The GGUF names of all architectures.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    ARCHS.iter().map(|arch| arch.name)
}

/// A tensor a model of some architecture and size has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub(crate) role: Role,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) presence: Presence,
}

impl Arch {
    /// The architecture of that GGUF name.
    pub(crate) fn by_name(name: &str) -> Result<&'static Self, ModelError> {
        ARCHS.iter().find(|arch| arch.name == name).ok_or_else(|| ModelError::UnknownArch {
            found: name.to_owned(),
            supported: names().collect(),
        })
    }

    /// The architecture a `config.json` names by class, or failing that by model type.
    fn by_hf(class: Option<&str>, model_type: Option<&str>) -> Result<&'static Self, ModelError> {
        let matches = |arch: &&Arch| match (class, model_type) {
            (Some(class), _) => arch.hf_classes.contains(&class),
            (None, Some(ty)) => arch.hf_model_types.contains(&ty),
            (None, None) => false,
        };
        ARCHS.iter().find(matches).ok_or_else(|| ModelError::UnknownArch {
            found: class.or(model_type).unwrap_or("none named in config.json").to_owned(),
            supported: ARCHS.iter().flat_map(|arch| arch.hf_classes).copied().collect(),
        })
    }

    /// Whether models of this architecture have sliding layers without being asked.
    pub(crate) fn has_default_window(&self) -> bool {
        self.default_window.is_some()
    }

    /// The class name a configuration of this architecture carries.
    pub(crate) fn hf_class(&self, has_window: bool) -> &'static str {
        self.hf_classes[if has_window { self.hf_classes.len() - 1 } else { 0 }]
    }

    /// The `model_type` a configuration of this architecture carries.
    pub(crate) fn hf_model_type(&self, has_window: bool) -> &'static str {
        self.hf_model_types[if has_window { self.hf_model_types.len() - 1 } else { 0 }]
    }

    /// The activation's name in a configuration of this architecture.
    pub(crate) fn hf_activation(&self) -> &'static str {
        match self.activation {
            Activation::Silu => "silu",
            Activation::GeluTanh => "gelu_pytorch_tanh",
        }
    }

    /// Every tensor a model of this architecture and size may have, with its shape.
    pub(crate) fn slots(&self, spec: &ModelSpec) -> Vec<Slot> {
        let (d, n_vocab) = (spec.d_model, spec.n_vocab);
        let mut slots = vec![
            Slot { role: Role::TokenEmbed, rows: n_vocab, cols: d, presence: Presence::Required },
            Slot { role: Role::OutputNorm, rows: 1, cols: d, presence: Presence::Required },
            Slot { role: Role::Output, rows: n_vocab, cols: d, presence: Presence::Optional },
        ];
        for layer in 0..spec.n_layers {
            slots.extend(LayerRole::ALL.into_iter().map(|role| {
                let (rows, cols) = layer_shape(spec, role);
                let presence = self.presence(role);
                Slot { role: Role::Layer(layer, role), rows, cols, presence }
            }));
        }
        slots.retain(|slot| slot.presence != Presence::Absent);
        slots
    }

    fn presence(&self, role: LayerRole) -> Presence {
        match role {
            LayerRole::QBias | LayerRole::KBias | LayerRole::VBias => self.qkv_bias,
            LayerRole::OBias => Presence::Optional,
            LayerRole::QNorm | LayerRole::KNorm => self.qk_norm,
            LayerRole::PostAttnNorm | LayerRole::PostFfnNorm => self.post_norms,
            _ => Presence::Required,
        }
    }
}

fn layer_shape(spec: &ModelSpec, role: LayerRole) -> (usize, usize) {
    let (d, q, kv, ff) = (spec.d_model, spec.q_dim(), spec.kv_dim(), spec.d_ff);
    match role {
        LayerRole::AttnNorm
        | LayerRole::PostAttnNorm
        | LayerRole::FfnNorm
        | LayerRole::PostFfnNorm
        | LayerRole::OBias => (1, d),
        LayerRole::QNorm | LayerRole::KNorm => (1, spec.head_dim),
        LayerRole::Q => (q, d),
        LayerRole::QBias => (1, q),
        LayerRole::K | LayerRole::V => (kv, d),
        LayerRole::KBias | LayerRole::VBias => (1, kv),
        LayerRole::O => (d, q),
        LayerRole::Gate | LayerRole::Up => (ff, d),
        LayerRole::Down => (d, ff),
    }
}
