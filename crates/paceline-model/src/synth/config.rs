//! The two descriptions of a synthetic model.

use serde_json::{Value, json};

use super::SynthSpec;
use crate::arch::Arch;
use crate::gguf::Metadata;
use crate::spec::ModelSpec;

const NORM_EPS: f32 = 1e-5;

/// What Hugging Face's `config.json` says of it.
pub(super) fn hf_config(synth: &SynthSpec, arch: &Arch) -> Value {
    let mut config = json!({
        "architectures": [arch.hf_class(synth.window.is_some())],
        "model_type": arch.hf_model_type(synth.window.is_some()),
        "hidden_size": synth.d_model,
        "num_hidden_layers": synth.n_layers,
        "num_attention_heads": synth.n_heads,
        "num_key_value_heads": synth.n_kv_heads,
        "head_dim": synth.head_dim,
        "intermediate_size": synth.d_ff,
        "vocab_size": synth.n_vocab,
        "max_position_embeddings": synth.context,
        "rms_norm_eps": NORM_EPS,
        "rope_theta": synth.rope_base,
        "hidden_act": arch.hf_activation(),
        "tie_word_embeddings": synth.tied,
    });
    if let Some(window) = synth.window {
        config["sliding_window"] = window.into();
    }
    if arch.hf_query_scalar.is_some() {
        config["query_pre_attn_scalar"] = synth.head_dim.into();
    }
    config
}

/// What GGUF's metadata says of it.
pub(super) fn gguf_metadata(synth: &SynthSpec, spec: &ModelSpec) -> Metadata {
    let mut metadata = Metadata::default();
    metadata.set("general.architecture", spec.arch.as_str());
    metadata.set("general.name", format!("synthetic {} {}", spec.arch, synth.seed));
    let mut set = |key: &str, value: usize| {
        // Every figure has passed the spec's bounds, which are far below.
        metadata.set(format!("{}.{key}", spec.arch), value as u32);
    };
    set("block_count", spec.n_layers);
    set("embedding_length", spec.d_model);
    set("attention.head_count", spec.n_heads);
    set("attention.head_count_kv", spec.n_kv_heads);
    set("attention.key_length", spec.head_dim);
    set("attention.value_length", spec.head_dim);
    set("rope.dimension_count", spec.rope.dim);
    set("feed_forward_length", spec.d_ff);
    set("vocab_size", spec.n_vocab);
    set("context_length", spec.max_context);
    if let Some(window) = synth.window {
        set("attention.sliding_window", window as usize);
    }
    let mut set = |key: &str, value: f32| metadata.set(format!("{}.{key}", spec.arch), value);
    set("attention.layer_norm_rms_epsilon", spec.norm_eps);
    set("rope.freq_base", synth.rope_base);
    set("attention.scale", spec.attn_scale);
    metadata
}
