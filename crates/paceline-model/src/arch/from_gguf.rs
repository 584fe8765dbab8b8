//! A model's figures from GGUF metadata.

use paceline_cpu::quant::{TensorType, dequantize_row};

use super::build::{Figures, RopeFigures, Sliding, build};
use super::names::{ROPE_DIVISORS, gguf_name};
use super::rope::{Scaling, yarn_magnitude};
use super::{Arch, WindowRule};
use crate::error::ModelError;
use crate::gguf::{FromValue, Gguf, Metadata};
use crate::spec::ModelSpec;
use crate::tensor::Role;

/// The architecture and figures of a GGUF file.
pub(crate) fn spec_from_gguf(gguf: &Gguf) -> Result<(&'static Arch, ModelSpec), ModelError> {
    let metadata = gguf.metadata();
    let arch = Arch::by_name(metadata.required("general.architecture")?)?;
    let keys = Keys {
        metadata,
        prefix: arch.name,
    };
    let embed_name = gguf_name(Role::TokenEmbed);
    let embed = gguf
        .tensor(&embed_name)
        .ok_or(ModelError::MissingTensor(embed_name))?;
    let (n_layers, d_model) = (
        keys.required("block_count")?,
        keys.required("embedding_length")?,
    );
    let n_heads = keys.required("attention.head_count")?;
    let head_dim = head_dim(&keys)?;
    let max_context = keys.required("context_length")?;
    let figures = Figures {
        name: metadata
            .optional::<&str>("general.name")?
            .map(str::to_owned),
        n_layers,
        d_model,
        n_heads,
        n_kv_heads: keys.optional("attention.head_count_kv")?,
        head_dim,
        d_ff: keys.required("feed_forward_length")?,
        // What the embedding has rows for is what tokens can be; the key may be absent.
        n_vocab: embed.rows,
        max_context,
        norm_eps: keys.required("attention.layer_norm_rms_epsilon")?,
        rope: RopeFigures {
            style: arch.gguf_rope,
            dim: keys.optional("rope.dimension_count")?,
            base: f64::from(keys.optional::<f32>("rope.freq_base")?.unwrap_or(10_000.0)),
            local_base: keys.optional::<f32>("rope.freq_base_swa")?.map(f64::from),
            scaling: scaling(&keys, max_context)?,
            divisors: divisors(gguf)?,
        },
        activation: None,
        window: keys
            .optional("attention.sliding_window")?
            .filter(|&window| window > 0),
        sliding: sliding(arch, &keys)?,
        attn_scale: attn_scale(arch, &keys, n_layers, d_model, n_heads)?,
        attn_softcap: keys.optional("attn_logit_softcapping")?,
        final_softcap: keys.optional("final_logit_softcapping")?,
    };
    Ok((arch, build(arch, figures)?))
}

/// Metadata under the architecture's own prefix.
struct Keys<'a> {
    metadata: &'a Metadata,
    prefix: &'static str,
}

impl<'a> Keys<'a> {
    fn optional<T: FromValue<'a>>(&self, key: &str) -> Result<Option<T>, ModelError> {
        self.metadata.optional(&format!("{}.{key}", self.prefix))
    }

    fn required<T: FromValue<'a>>(&self, key: &str) -> Result<T, ModelError> {
        self.metadata.required(&format!("{}.{key}", self.prefix))
    }
}

fn head_dim(keys: &Keys<'_>) -> Result<Option<usize>, ModelError> {
    let key: Option<usize> = keys.optional("attention.key_length")?;
    let value: Option<usize> = keys.optional("attention.value_length")?;
    match (key, value) {
        (Some(key), Some(value)) if key != value => {
            let what = format!("a model whose keys ({key}) and values ({value}) differ in size");
            Err(ModelError::Unsupported(what))
        }
        _ => Ok(key),
    }
}

fn scaling(keys: &Keys<'_>, max_context: usize) -> Result<Scaling, ModelError> {
    // An old name for the linear factor, from before there were other types.
    let old_factor: Option<f32> = keys.optional("rope.scale_linear")?;
    let kind: Option<&str> = keys.optional("rope.scaling.type")?;
    let factor = keys
        .optional("rope.scaling.factor")?
        .or(old_factor)
        .map_or(1.0, f64::from);
    match kind.unwrap_or(if old_factor.is_some() {
        "linear"
    } else {
        "none"
    }) {
        "none" => Ok(Scaling::None),
        "linear" => Ok(Scaling::Linear { factor }),
        "yarn" => yarn(keys, factor, max_context),
        other => Err(ModelError::Unsupported(format!(
            "rope scaling of the type {other:?}"
        ))),
    }
}

fn yarn(keys: &Keys<'_>, factor: f64, max_context: usize) -> Result<Scaling, ModelError> {
    let number = |key: &str, default: f64| -> Result<f64, ModelError> {
        Ok(keys.optional::<f32>(key)?.map_or(default, f64::from))
    };
    let attn_factor = number("rope.scaling.attn_factor", 1.0)?;
    Ok(Scaling::Yarn {
        factor,
        original_context: number("rope.scaling.original_context_length", max_context as f64)?,
        beta_fast: number("rope.scaling.yarn_beta_fast", 32.0)?,
        beta_slow: number("rope.scaling.yarn_beta_slow", 1.0)?,
        magnitude: attn_factor * yarn_magnitude(factor, 1.0),
    })
}

fn divisors(gguf: &Gguf) -> Result<Option<Vec<f32>>, ModelError> {
    let Some(tensor) = gguf.tensor(ROPE_DIVISORS) else {
        return Ok(None);
    };
    if tensor.ty != TensorType::F32 || tensor.rows != 1 {
        let what = format!(
            "{ROPE_DIVISORS:?} as a {} of {} rows",
            tensor.ty, tensor.rows
        );
        return Err(ModelError::Unsupported(what));
    }
    let mut values = vec![0.0; tensor.cols];
    dequantize_row(tensor.ty, tensor.data, &mut values);
    Ok(Some(values))
}

fn sliding(arch: &Arch, keys: &Keys<'_>) -> Result<Sliding, ModelError> {
    let WindowRule::AllBut(_) = arch.windows else {
        return Ok(Sliding::Default);
    };
    const KEY: &str = "attention.sliding_window_pattern";
    if let Ok(Some(layers)) = keys.optional::<Vec<bool>>(KEY) {
        return Ok(Sliding::Listed(layers));
    }
    Ok(keys
        .optional(KEY)?
        .map_or(Sliding::Default, Sliding::AllBut))
}

fn attn_scale(
    arch: &Arch,
    keys: &Keys<'_>,
    n_layers: usize,
    d_model: usize,
    n_heads: usize,
) -> Result<Option<f32>, ModelError> {
    let given: Option<f32> = keys.optional("attention.scale")?;
    let by_width = arch.scaled_by_width_at == Some(n_layers);
    Ok(given.or(by_width.then(|| 1.0 / (d_model as f32 / n_heads as f32).sqrt())))
}
