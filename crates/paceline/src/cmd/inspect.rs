//! `paceline inspect`: what a model is made of, and what of it fits on this machine.
//!
//! Reads the files' headers only: no weight is loaded.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

use anyhow::Result;
use paceline::{KvPlan, read_tokenizer};
use paceline_cpu::KV_BLOCK;
use paceline_model::checkpoint::{Checkpoint, Format};
use paceline_model::pull::{self, Source};
use paceline_model::tokenizer::Tokenizer;
use serde::Serialize;

use crate::cli::{Console, InspectArgs, Outcome};

/// A common length of prompt and answer together.
const USUAL_TOKENS: u32 = 1000;

pub(crate) fn run(args: &InspectArgs, console: &Console) -> Result<Outcome> {
    let source = Source::parse(&args.model)?;
    let options = args.source.pull_options(&source)?;
    let path = pull::resolve(&source, &console.download(), &options)?;
    let checkpoint = Checkpoint::open(&path)?;
    let tokenizer = read_tokenizer(&checkpoint)?;
    let plan = args.memory.options().kv_plan(checkpoint.spec())?;
    let report = Report {
        model: Model::of(&path, &checkpoint),
        tensors: tensors_by_type(&checkpoint),
        tokenizer: TokenizerFacts::of(&tokenizer),
        memory: Memory::of(&checkpoint, plan, args.memory.max_num_seqs),
    };
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
    } else {
        report.print(&mut out)?;
    }
    Ok(Outcome::Done)
}

#[derive(Debug, Serialize)]
struct Report {
    model: Model,
    tensors: Vec<TensorGroup>,
    tokenizer: TokenizerFacts,
    memory: Memory,
}

#[derive(Debug, Serialize)]
struct Model {
    name: Option<String>,
    path: String,
    format: &'static str,
    architecture: String,
    n_parameters: u64,
    n_layers: usize,
    d_model: usize,
    n_heads: usize,
    n_kv_heads: usize,
    head_dim: usize,
    d_ff: usize,
    n_vocab: usize,
    max_context: usize,
    /// The widest sliding window, where there is one.
    sliding_window: Option<u32>,
    n_sliding_layers: usize,
}

/// The tensors of one type.
#[derive(Debug, Serialize)]
struct TensorGroup {
    r#type: &'static str,
    count: usize,
    n_bytes: u64,
}

#[derive(Debug, Serialize)]
struct TokenizerFacts {
    n_tokens: usize,
    bos: Option<TokenName>,
    ends: Vec<TokenName>,
    has_chat_template: bool,
}

#[derive(Debug, Serialize)]
struct TokenName {
    id: u32,
    text: String,
}

#[derive(Debug, Serialize)]
struct Memory {
    weight_bytes: u64,
    kv_dtype: &'static str,
    kv_bytes_per_token: u64,
    kv_block_tokens: u32,
    kv_pool_blocks: u32,
    kv_pool_bytes: u64,
    kv_pool_tokens: u64,
    max_model_len: u32,
    max_num_seqs: u32,
    /// Sequences as long as `max_model_len` that the pool holds.
    full_sequences: u32,
    /// Sequences of a usual length that the pool holds.
    usual_sequences: u32,
    usual_tokens: u32,
}

impl Model {
    fn of(path: &Path, checkpoint: &Checkpoint) -> Model {
        let spec = checkpoint.spec();
        Model {
            name: spec.name.clone(),
            path: path.display().to_string(),
            format: match checkpoint.format() {
                Format::Gguf => "GGUF",
                Format::Safetensors => "safetensors",
            },
            architecture: spec.arch.clone(),
            n_parameters: checkpoint.tensors().map(|t| t.rows as u64 * t.cols as u64).sum(),
            n_layers: spec.n_layers,
            d_model: spec.d_model,
            n_heads: spec.n_heads,
            n_kv_heads: spec.n_kv_heads,
            head_dim: spec.head_dim,
            d_ff: spec.d_ff,
            n_vocab: spec.n_vocab,
            max_context: spec.max_context,
            sliding_window: spec.windows.iter().flatten().max().copied(),
            n_sliding_layers: spec.windows.iter().flatten().count(),
        }
    }
}

fn tensors_by_type(checkpoint: &Checkpoint) -> Vec<TensorGroup> {
    let mut groups: BTreeMap<&'static str, TensorGroup> = BTreeMap::new();
    for tensor in checkpoint.tensors() {
        let name = tensor.ty.name();
        let empty = TensorGroup { r#type: name, count: 0, n_bytes: 0 };
        let group = groups.entry(name).or_insert(empty);
        group.count += 1;
        group.n_bytes += tensor.data.len() as u64;
    }
    let mut groups: Vec<TensorGroup> = groups.into_values().collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.n_bytes));
    groups
}

impl TokenizerFacts {
    fn of(tokenizer: &Tokenizer) -> TokenizerFacts {
        let name = |id: u32| TokenName {
            id,
            text: String::from_utf8_lossy(&tokenizer.token_bytes(id)).into_owned(),
        };
        TokenizerFacts {
            n_tokens: tokenizer.n_vocab(),
            bos: tokenizer.bos().map(name),
            ends: tokenizer.eos_tokens().iter().copied().map(name).collect(),
            has_chat_template: tokenizer.chat_template().is_some(),
        }
    }
}

impl Memory {
    fn of(checkpoint: &Checkpoint, plan: KvPlan, max_num_seqs: u32) -> Memory {
        let block_tokens = KV_BLOCK as u32;
        let usual_tokens = USUAL_TOKENS.min(plan.max_model_len);
        let fitting = |n_tokens: u32| plan.n_blocks / n_tokens.div_ceil(block_tokens).max(1);
        Memory {
            weight_bytes: checkpoint.tensors().map(|tensor| tensor.data.len() as u64).sum(),
            kv_dtype: plan.dtype.name(),
            kv_bytes_per_token: plan.block_bytes / KV_BLOCK as u64,
            kv_block_tokens: block_tokens,
            kv_pool_blocks: plan.n_blocks,
            kv_pool_bytes: plan.n_bytes,
            kv_pool_tokens: u64::from(plan.n_blocks) * u64::from(block_tokens),
            max_model_len: plan.max_model_len,
            max_num_seqs,
            full_sequences: fitting(plan.max_model_len),
            usual_sequences: fitting(usual_tokens),
            usual_tokens,
        }
    }
}

impl Report {
    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        self.print_model(out)?;
        writeln!(out, "\nTensors")?;
        for TensorGroup { r#type, count, n_bytes } in &self.tensors {
            writeln!(out, "  {type:<14} {count:>6}   {:>10}", size(*n_bytes))?;
        }
        self.print_tokenizer(out)?;
        self.print_memory(out)
    }

    fn print_model(&self, out: &mut dyn Write) -> io::Result<()> {
        let m = &self.model;
        writeln!(out, "{}", m.name.as_deref().unwrap_or("Unnamed model"))?;
        writeln!(out, "  file           {} ({})", m.path, m.format)?;
        writeln!(out, "  architecture   {}", m.architecture)?;
        writeln!(out, "  parameters     {:.1} million", m.n_parameters as f64 / 1e6)?;
        writeln!(out, "  layers         {} of width {}", m.n_layers, m.d_model)?;
        let (heads, kv_heads, dim) = (m.n_heads, m.n_kv_heads, m.head_dim);
        writeln!(out, "  attention      {heads} heads, {kv_heads} for keys and values, of {dim}")?;
        writeln!(out, "  feed-forward   {}", m.d_ff)?;
        writeln!(out, "  vocabulary     {}", m.n_vocab)?;
        writeln!(out, "  context        {} tokens", m.max_context)?;
        if let Some(window) = m.sliding_window {
            let layers = m.n_sliding_layers;
            writeln!(out, "  window         {window} tokens in {layers} layers")?;
        }
        Ok(())
    }

    fn print_tokenizer(&self, out: &mut dyn Write) -> io::Result<()> {
        let TokenizerFacts { n_tokens, bos, ends, has_chat_template } = &self.tokenizer;
        let name = |token: &TokenName| format!("{} ({})", token.text, token.id);
        let ends: Vec<String> = ends.iter().map(name).collect();
        writeln!(out, "\nTokenizer")?;
        writeln!(out, "  tokens         {n_tokens}")?;
        writeln!(out, "  begins with    {}", bos.as_ref().map_or("nothing".into(), name))?;
        writeln!(out, "  ends with      {}", ends.join(", "))?;
        writeln!(out, "  chat template  {}", if *has_chat_template { "yes" } else { "no" })
    }

    fn print_memory(&self, out: &mut dyn Write) -> io::Result<()> {
        let m = &self.memory;
        writeln!(out, "\nMemory on this machine")?;
        writeln!(out, "  weights        {}", size(m.weight_bytes))?;
        let (per_token, dtype) = (size(m.kv_bytes_per_token), m.kv_dtype);
        writeln!(out, "  KV cache       {per_token} for each token, in {dtype}")?;
        let (bytes, blocks, tokens) = (size(m.kv_pool_bytes), m.kv_pool_blocks, m.kv_pool_tokens);
        writeln!(out, "  KV pool        {bytes}: {blocks} blocks, {tokens} tokens")?;
        let (full, len) = (m.full_sequences, m.max_model_len);
        writeln!(out, "  fits           {full} sequences of the full {len} tokens,")?;
        let (usual, len, seqs) = (m.usual_sequences, m.usual_tokens, m.max_num_seqs);
        writeln!(out, "                 {usual} of {len}; at most {seqs} run at once")
    }
}

/// Bytes in the unit that suits them.
fn size(n_bytes: u64) -> String {
    let (unit, name) = match n_bytes {
        0..0x400 => return format!("{n_bytes} B"),
        0x400..0x10_0000 => (0x400, "KiB"),
        0x10_0000..0x4000_0000 => (0x10_0000, "MiB"),
        _ => (0x4000_0000u64, "GiB"),
    };
    format!("{:.1} {name}", n_bytes as f64 / unit as f64)
}
