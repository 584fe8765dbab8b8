//! A model's figures from a Hugging Face `config.json`.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::Arch;
use super::build::{Figures, RopeFigures, Sliding, build};
use super::rope::{Scaling, yarn_magnitude};
use crate::error::ModelError;
use crate::spec::{Activation, ModelSpec, RopeStyle};

/// What an opened configuration says beside the spec.
#[derive(Debug)]
pub(crate) struct HfModel {
    pub(crate) arch: &'static Arch,
    pub(crate) spec: ModelSpec,
    /// Whether the head is the embedding; `None` when the configuration does not say.
    pub(crate) tied: Option<bool>,
}

/// The architecture and figures of a `config.json`.
pub(crate) fn spec_from_config(json: &[u8]) -> Result<HfModel, ModelError> {
    let value: Value = parse_json(json)?;
    let class = value.pointer("/architectures/0").and_then(Value::as_str);
    let arch = Arch::by_hf(class, value.get("model_type").and_then(Value::as_str))?;
    if value.get("quantization_config").is_some_and(|config| !config.is_null()) {
        let what = "a quantised safetensors checkpoint (quantization_config)".to_owned();
        return Err(ModelError::Unsupported(what));
    }
    let config: Config = from_value(value)?;
    let tied = config.tie_word_embeddings;
    let spec = build(arch, figures(arch, config)?)?;
    Ok(HfModel { arch, spec, tied })
}

#[derive(Deserialize)]
struct Config {
    #[serde(rename = "_name_or_path")]
    name: Option<String>,
    hidden_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    intermediate_size: usize,
    vocab_size: usize,
    max_position_embeddings: usize,
    rms_norm_eps: f32,
    rope_theta: Option<f64>,
    rope_local_base_freq: Option<f64>,
    rope_scaling: Option<RopeConfig>,
    /// Newer configurations keep everything about the rope here.
    rope_parameters: Option<RopeParameters>,
    partial_rotary_factor: Option<f64>,
    hidden_act: Option<String>,
    hidden_activation: Option<String>,
    sliding_window: Option<u32>,
    use_sliding_window: Option<bool>,
    max_window_layers: Option<usize>,
    sliding_window_pattern: Option<usize>,
    layer_types: Option<Vec<String>>,
    query_pre_attn_scalar: Option<f32>,
    attn_logit_softcapping: Option<f32>,
    final_logit_softcapping: Option<f32>,
    tie_word_embeddings: Option<bool>,
}

#[derive(Clone, Default, Deserialize)]
struct RopeConfig {
    #[serde(alias = "type")]
    rope_type: Option<String>,
    rope_theta: Option<f64>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
    beta_fast: Option<f64>,
    beta_slow: Option<f64>,
    attention_factor: Option<f64>,
    mscale: Option<f64>,
    mscale_all_dim: Option<f64>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum RopeParameters {
    ByLayerType { full_attention: RopeConfig, sliding_attention: RopeConfig },
    Same(RopeConfig),
}

fn figures(arch: &Arch, config: Config) -> Result<Figures, ModelError> {
    let rope = rope(&config)?;
    Ok(Figures {
        n_layers: config.num_hidden_layers,
        d_model: config.hidden_size,
        n_heads: config.num_attention_heads,
        n_kv_heads: config.num_key_value_heads,
        head_dim: config.head_dim,
        d_ff: config.intermediate_size,
        n_vocab: config.vocab_size,
        max_context: config.max_position_embeddings,
        norm_eps: config.rms_norm_eps,
        rope,
        activation: activation(&config)?,
        window: config.sliding_window.filter(|&window| window > 0),
        sliding: sliding(&config)?,
        attn_scale: config
            .query_pre_attn_scalar
            .or(arch.hf_query_scalar)
            .map(|scalar| 1.0 / scalar.sqrt()),
        attn_softcap: config.attn_logit_softcapping,
        final_softcap: config.final_logit_softcapping,
        name: config.name,
    })
}

fn activation(config: &Config) -> Result<Option<Activation>, ModelError> {
    // Where both are given, the longer name is the newer and the one that counts.
    let Some(name) = config.hidden_activation.as_deref().or(config.hidden_act.as_deref()) else {
        return Ok(None);
    };
    match name {
        "silu" | "swish" => Ok(Some(Activation::Silu)),
        "gelu_pytorch_tanh" | "gelu_new" => Ok(Some(Activation::GeluTanh)),
        other => Err(ModelError::Unsupported(format!("the activation {other:?}"))),
    }
}

fn sliding(config: &Config) -> Result<Sliding, ModelError> {
    let layer_slides = |ty: &String| match ty.as_str() {
        "sliding_attention" => Ok(true),
        "full_attention" => Ok(false),
        other => Err(ModelError::Unsupported(format!("a layer of the type {other:?}"))),
    };
    if let Some(types) = &config.layer_types {
        let layers: Vec<bool> = types.iter().map(layer_slides).collect::<Result<_, _>>()?;
        if layers.len() != config.num_hidden_layers {
            return Err(ModelError::BadFigure {
                what: "the number of layer types",
                found: layers.len().to_string(),
                expected: format!("{}, the number of layers", config.num_hidden_layers),
            });
        }
        return Ok(Sliding::Listed(layers));
    }
    Ok(match (config.use_sliding_window, config.sliding_window_pattern) {
        (Some(true), _) => Sliding::From(config.max_window_layers.unwrap_or(0)),
        (_, Some(period)) => Sliding::AllBut(period),
        _ => Sliding::Default,
    })
}

fn rope(config: &Config) -> Result<RopeFigures, ModelError> {
    let (global, local) = match &config.rope_parameters {
        Some(RopeParameters::Same(rope)) => (rope.clone(), None),
        Some(RopeParameters::ByLayerType { full_attention, sliding_attention }) => {
            (full_attention.clone(), sliding_attention.rope_theta)
        }
        None => (config.rope_scaling.clone().unwrap_or_default(), None),
    };
    let head_dim =
        config.head_dim.unwrap_or(config.hidden_size / config.num_attention_heads.max(1));
    let rotated = |factor: f64| (head_dim as f64 * factor) as usize;
    Ok(RopeFigures {
        style: RopeStyle::Neox,
        dim: config.partial_rotary_factor.map(rotated),
        base: global.rope_theta.or(config.rope_theta).unwrap_or(10_000.0),
        local_base: local.or(config.rope_local_base_freq),
        scaling: scaling(&global, config.max_position_embeddings)?,
        divisors: None,
    })
}

fn scaling(rope: &RopeConfig, max_context: usize) -> Result<Scaling, ModelError> {
    let needed = |value: Option<f64>, key: &str| {
        value.ok_or_else(|| ModelError::MissingKey(format!("rope_scaling.{key}")))
    };
    let original_context = rope.original_max_position_embeddings;
    match rope.rope_type.as_deref().unwrap_or("default") {
        "default" => Ok(Scaling::None),
        "linear" => Ok(Scaling::Linear { factor: needed(rope.factor, "factor")? }),
        "llama3" => Ok(Scaling::Llama3 {
            factor: needed(rope.factor, "factor")?,
            low: needed(rope.low_freq_factor, "low_freq_factor")?,
            high: needed(rope.high_freq_factor, "high_freq_factor")?,
            original_context: needed(original_context, "original_max_position_embeddings")?,
        }),
        "yarn" => {
            let factor = needed(rope.factor, "factor")?;
            Ok(Scaling::Yarn {
                factor,
                original_context: original_context.unwrap_or(max_context as f64),
                beta_fast: rope.beta_fast.unwrap_or(32.0),
                beta_slow: rope.beta_slow.unwrap_or(1.0),
                magnitude: rope.attention_factor.unwrap_or_else(|| magnitude(rope, factor)),
            })
        }
        other => Err(ModelError::Unsupported(format!("rope scaling of the type {other:?}"))),
    }
}

fn magnitude(rope: &RopeConfig, factor: f64) -> f64 {
    match (rope.mscale, rope.mscale_all_dim) {
        (Some(one), Some(all)) if one != 0.0 && all != 0.0 => {
            yarn_magnitude(factor, one) / yarn_magnitude(factor, all)
        }
        _ => yarn_magnitude(factor, 1.0),
    }
}

fn parse_json<T: DeserializeOwned>(json: &[u8]) -> Result<T, ModelError> {
    serde_json::from_slice(json).map_err(bad_config)
}

fn from_value<T: DeserializeOwned>(value: Value) -> Result<T, ModelError> {
    serde_json::from_value(value).map_err(bad_config)
}

fn bad_config(source: serde_json::Error) -> ModelError {
    ModelError::BadJson { what: "config.json", source }
}
