//! What each format calls a tensor.

use super::{Arch, Presence};
use crate::tensor::{LayerRole, Role};

pub(crate) fn gguf_name(role: Role) -> String {
    match role {
        Role::TokenEmbed => "token_embd.weight".to_owned(),
        Role::OutputNorm => "output_norm.weight".to_owned(),
        Role::Output => "output.weight".to_owned(),
        Role::Layer(layer, role) => format!("blk.{layer}.{}", gguf_layer_name(role)),
    }
}

fn gguf_layer_name(role: LayerRole) -> &'static str {
    match role {
        LayerRole::AttnNorm => "attn_norm.weight",
        LayerRole::Q => "attn_q.weight",
        LayerRole::QBias => "attn_q.bias",
        LayerRole::QNorm => "attn_q_norm.weight",
        LayerRole::K => "attn_k.weight",
        LayerRole::KBias => "attn_k.bias",
        LayerRole::KNorm => "attn_k_norm.weight",
        LayerRole::V => "attn_v.weight",
        LayerRole::VBias => "attn_v.bias",
        LayerRole::O => "attn_output.weight",
        LayerRole::OBias => "attn_output.bias",
        LayerRole::PostAttnNorm => "post_attention_norm.weight",
        LayerRole::FfnNorm => "ffn_norm.weight",
        LayerRole::Gate => "ffn_gate.weight",
        LayerRole::Up => "ffn_up.weight",
        LayerRole::Down => "ffn_down.weight",
        LayerRole::PostFfnNorm => "post_ffw_norm.weight",
    }
}

pub(crate) fn hf_name(arch: &Arch, role: Role) -> String {
    match role {
        Role::TokenEmbed => "model.embed_tokens.weight".to_owned(),
        Role::OutputNorm => "model.norm.weight".to_owned(),
        Role::Output => "lm_head.weight".to_owned(),
        Role::Layer(layer, role) => format!("model.layers.{layer}.{}", hf_layer_name(arch, role)),
    }
}

/// `post_attention_layernorm` is the norm before the feed-forward, except where there is a norm
/// after the attention as well, which then has the name to itself.
fn hf_layer_name(arch: &Arch, role: LayerRole) -> &'static str {
    match role {
        LayerRole::AttnNorm => "input_layernorm.weight",
        LayerRole::Q => "self_attn.q_proj.weight",
        LayerRole::QBias => "self_attn.q_proj.bias",
        LayerRole::QNorm => "self_attn.q_norm.weight",
        LayerRole::K => "self_attn.k_proj.weight",
        LayerRole::KBias => "self_attn.k_proj.bias",
        LayerRole::KNorm => "self_attn.k_norm.weight",
        LayerRole::V => "self_attn.v_proj.weight",
        LayerRole::VBias => "self_attn.v_proj.bias",
        LayerRole::O => "self_attn.o_proj.weight",
        LayerRole::OBias => "self_attn.o_proj.bias",
        LayerRole::PostAttnNorm => "post_attention_layernorm.weight",
        LayerRole::FfnNorm if arch.post_norms == Presence::Required => {
            "pre_feedforward_layernorm.weight"
        }
        LayerRole::FfnNorm => "post_attention_layernorm.weight",
        LayerRole::Gate => "mlp.gate_proj.weight",
        LayerRole::Up => "mlp.up_proj.weight",
        LayerRole::Down => "mlp.down_proj.weight",
        LayerRole::PostFfnNorm => "post_feedforward_layernorm.weight",
    }
}

/// Tensors without a role that change nothing: rope tables, which the spec already holds.
pub(crate) fn is_ignored(name: &str) -> bool {
    name == ROPE_DIVISORS || name.ends_with("rotary_emb.inv_freq")
}

/// Divisors of the rope frequencies, as llama 3.1 files carry them.
pub(super) const ROPE_DIVISORS: &str = "rope_freqs.weight";
