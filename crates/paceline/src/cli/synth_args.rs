//! Flags of `paceline synth`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use paceline_cpu::quant::TensorType;
use paceline_model::synth::SynthSpec;

use super::UsageError;

#[derive(Args, Debug)]
pub(crate) struct SynthArgs {
    /// The file to write [default: the shape's name and the type, as in smollm2-135m.Q4_0.gguf]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Replace the file if it exists
    #[arg(long)]
    pub(crate) force: bool,

    /// The shape of a well-known model
    #[arg(long, value_name = "NAME", default_value = "smollm2-135m")]
    like: String,

    /// Type of the weights: F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K
    #[arg(long, value_name = "TYPE", default_value = "Q4_0")]
    r#type: String,

    /// What the weights are drawn from
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Architecture: llama, qwen2, qwen3, gemma2 or gemma3
    #[arg(long, value_name = "NAME", help_heading = "Shape")]
    arch: Option<String>,

    #[arg(long, value_name = "N", help_heading = "Shape")]
    layers: Option<usize>,

    /// Width of the model
    #[arg(long, value_name = "N", help_heading = "Shape")]
    d_model: Option<usize>,

    /// Query heads
    #[arg(long, value_name = "N", help_heading = "Shape")]
    heads: Option<usize>,

    /// Heads of keys and values
    #[arg(long, value_name = "N", help_heading = "Shape")]
    kv_heads: Option<usize>,

    /// Size of a head
    #[arg(long, value_name = "N", help_heading = "Shape")]
    head_dim: Option<usize>,

    /// Width of the feed-forward part
    #[arg(long, value_name = "N", help_heading = "Shape")]
    d_ff: Option<usize>,

    /// Tokens of the vocabulary
    #[arg(long, value_name = "N", help_heading = "Shape")]
    vocab: Option<usize>,

    /// Longest sequence
    #[arg(long, value_name = "TOKENS", help_heading = "Shape")]
    context: Option<usize>,

    /// Whether the embedding is also the head
    #[arg(long, value_name = "true|false", help_heading = "Shape")]
    tied: Option<bool>,
}

impl SynthArgs {
    /// The model asked for. Whether its figures fit together is checked when it is made.
    pub(crate) fn spec(&self) -> Result<SynthSpec> {
        let base = SynthSpec::like(&self.like).ok_or_else(|| {
            let names: Vec<&str> = SynthSpec::known_names().collect();
            UsageError(format!("--like knows {}, not {:?}", names.join(", "), self.like))
        })?;
        let ty = TensorType::from_name(&self.r#type).ok_or_else(|| {
            let names: Vec<&str> = TensorType::ALL.iter().map(|ty| ty.name()).collect();
            UsageError(format!("--type knows {}, not {:?}", names.join(", "), self.r#type))
        })?;
        // A window is part of the known shape, not of another architecture.
        let window = if self.arch.is_none() { base.window } else { None };
        Ok(SynthSpec {
            arch: self.arch.clone().unwrap_or(base.arch),
            n_layers: self.layers.unwrap_or(base.n_layers),
            d_model: self.d_model.unwrap_or(base.d_model),
            n_heads: self.heads.unwrap_or(base.n_heads),
            n_kv_heads: self.kv_heads.unwrap_or(base.n_kv_heads),
            head_dim: self.head_dim.unwrap_or(base.head_dim),
            d_ff: self.d_ff.unwrap_or(base.d_ff),
            n_vocab: self.vocab.unwrap_or(base.n_vocab),
            context: self.context.unwrap_or(base.context),
            tied: self.tied.unwrap_or(base.tied),
            window,
            ty,
            seed: self.seed,
            ..base
        })
    }

    pub(crate) fn output(&self, spec: &SynthSpec) -> PathBuf {
        let name = || format!("{}.{}.gguf", self.like.to_ascii_lowercase(), spec.ty.name()).into();
        self.output.clone().unwrap_or_else(name)
    }
}
