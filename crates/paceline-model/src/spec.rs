//! What a model is, in figures: everything the forward pass needs to know beside the weights.
//!
//! A [`ModelSpec`] that passed [`ModelSpec::check`] is within bounds that keep any product of two
//! of its sizes far from overflow. Where the figures come from is `arch`'s business.

use crate::error::ModelError;

/// The figures of one model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    pub arch: String,
    pub name: Option<String>,
    pub n_layers: usize,
    pub d_model: usize,
    pub n_heads: usize,
    pub n_kv_heads: usize,
    pub head_dim: usize,
    pub d_ff: usize,
    pub n_vocab: usize,
    pub max_context: usize,
    pub norm_eps: f32,
    pub rope: RopeSpec,
    pub activation: Activation,
    /// The sliding window of each layer; `None` sees everything.
    pub windows: Vec<Option<u32>>,
    /// Multiplies query-key products.
    pub attn_scale: f32,
    /// `cap * tanh(x / cap)` on query-key products.
    pub attn_softcap: Option<f32>,
    /// Likewise on the logits.
    pub final_softcap: Option<f32>,
    /// Multiplies the token embeddings.
    pub embed_scale: f32,
}

/// Rotary position embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    pub style: RopeStyle,
    /// Dimensions of each head that are rotated; the rest pass through.
    pub dim: usize,
    /// `dim / 2` angles per position, scaling applied.
    pub inv_freq: Vec<f32>,
    /// The angles of sliding-window layers, where they differ.
    pub local_inv_freq: Option<Vec<f32>>,
    /// Multiplies sine and cosine.
    pub magnitude: f32,
}

/// Which two dimensions turn together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// `2i` and `2i + 1`.
    Interleaved,
    /// `i` and `i + dim / 2`.
    Neox,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    Silu,
    /// The tanh approximation of GELU.
    GeluTanh,
}

const MAX_LAYERS: usize = 1024;
const MAX_HEADS: usize = 1024;
const MAX_HEAD_DIM: usize = 512;
const MAX_D_MODEL: usize = 1 << 16;
const MAX_D_FF: usize = 1 << 20;
const MAX_VOCAB: usize = 1 << 22;
const MAX_CONTEXT: usize = 1 << 27;

impl ModelSpec {
    /// Width of all query heads together.
    pub fn q_dim(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Width of all key (or value) heads together.
    pub fn kv_dim(&self) -> usize {
        self.n_kv_heads * self.head_dim
    }

    /// Checks every figure against its bounds and against the others.
    pub fn check(&self) -> Result<(), ModelError> {
        self.check_sizes()?;
        positive("the norm's epsilon", self.norm_eps)?;
        positive("the attention scale", self.attn_scale)?;
        positive("the embedding scale", self.embed_scale)?;
        self.attn_softcap
            .map_or(Ok(()), |cap| positive("the attention soft cap", cap))?;
        self.final_softcap
            .map_or(Ok(()), |cap| positive("the logit soft cap", cap))?;
        self.check_windows()?;
        self.rope.check()
    }

    /// Checks what the lengths of the tables depend on.
    pub(crate) fn check_sizes(&self) -> Result<(), ModelError> {
        within("the number of layers", self.n_layers, MAX_LAYERS)?;
        within("the model width", self.d_model, MAX_D_MODEL)?;
        within("the number of heads", self.n_heads, MAX_HEADS)?;
        within(
            "the number of key-value heads",
            self.n_kv_heads,
            self.n_heads,
        )?;
        within("the head size", self.head_dim, MAX_HEAD_DIM)?;
        within("the feed-forward width", self.d_ff, MAX_D_FF)?;
        within("the vocabulary size", self.n_vocab, MAX_VOCAB)?;
        within("the context length", self.max_context, MAX_CONTEXT)?;
        if !self.n_heads.is_multiple_of(self.n_kv_heads) {
            let message = format!("a divisor of the {} heads", self.n_heads);
            return bad("the number of key-value heads", self.n_kv_heads, message);
        }
        if !self.head_dim.is_multiple_of(2) {
            return bad("the head size", self.head_dim, "even");
        }
        let rope_dim = self.rope.dim;
        if rope_dim == 0 || rope_dim > self.head_dim || !rope_dim.is_multiple_of(2) {
            let message = format!("even and between 2 and the head size {}", self.head_dim);
            return bad("the number of rotated dimensions", rope_dim, message);
        }
        Ok(())
    }

    fn check_windows(&self) -> Result<(), ModelError> {
        if self.windows.len() != self.n_layers {
            return bad(
                "the number of window entries",
                self.windows.len(),
                "one for each layer",
            );
        }
        match self.windows.contains(&Some(0)) {
            true => bad("the sliding window", 0, "at least 1"),
            false => Ok(()),
        }
    }
}

impl RopeSpec {
    fn check(&self) -> Result<(), ModelError> {
        for inv_freq in [Some(&self.inv_freq), self.local_inv_freq.as_ref()]
            .into_iter()
            .flatten()
        {
            if inv_freq.len() != self.dim / 2 {
                let message = format!("{}, half the rotated dimensions", self.dim / 2);
                return bad("the number of rope frequencies", inv_freq.len(), message);
            }
            inv_freq
                .iter()
                .try_for_each(|&f| positive("a rope frequency", f))?;
        }
        positive("the rope magnitude", self.magnitude)
    }
}

fn within(what: &'static str, found: usize, max: usize) -> Result<(), ModelError> {
    match (1..=max).contains(&found) {
        true => Ok(()),
        false => bad(what, found, format!("between 1 and {max}")),
    }
}

fn positive(what: &'static str, found: f32) -> Result<(), ModelError> {
    match found.is_finite() && found > 0.0 {
        true => Ok(()),
        false => bad(what, found, "a positive number"),
    }
}

fn bad<T>(
    what: &'static str,
    found: impl ToString,
    expected: impl Into<String>,
) -> Result<T, ModelError> {
    let (found, expected) = (found.to_string(), expected.into());
    Err(ModelError::BadFigure {
        what,
        found,
        expected,
    })
}
