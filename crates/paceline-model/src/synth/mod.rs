//! Synthetic models: seeded random weights in any supported architecture, size and tensor type,
//! as a GGUF file or a Hugging Face directory, with a vocabulary that can spell any text.
//!
//! The two formats of one [`SynthSpec`] compute the same function to the bit, which is how tests
//! compare the readers.

mod config;
mod presets;
mod vocab;
mod weights;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use ::safetensors::{Dtype, tensor::TensorView as StView};
use paceline_cpu::quant::TensorType;

use crate::arch::{self, Arch, HfModel, Presence, Slot, WindowRule};
use crate::error::ModelError;
use crate::gguf::GgufWriter;
use crate::tensor::Role;
use vocab::Vocab;
use weights::{Order, Weights};

/// What model to make.
#[derive(Clone, Debug)]
pub struct SynthSpec {
    /// As GGUF names it: `llama`, `qwen2`, …
    pub arch: String,
    pub n_layers: usize,
    pub d_model: usize,
    pub n_heads: usize,
    pub n_kv_heads: usize,
    pub head_dim: usize,
    pub d_ff: usize,
    pub n_vocab: usize,
    pub context: usize,
    pub rope_base: f32,
    /// The sliding window; `None` is the architecture's default.
    pub window: Option<u32>,
    /// Type of the matrices; norms and biases are F32.
    pub ty: TensorType,
    /// Use the embedding as the head.
    pub tied: bool,
    pub seed: u64,
}

impl SynthSpec {
    /// A model that runs in a blink and yet has every feature of its architecture: grouped heads,
    /// windows shorter than its context, and enough layers for each kind to occur. Its rows are
    /// whole blocks of every type.
    pub fn tiny(arch: &str) -> Self {
        let has_windows = Arch::by_name(arch).is_ok_and(|arch| arch.has_default_window());
        Self {
            arch: arch.to_owned(),
            n_layers: if has_windows { 6 } else { 2 },
            d_model: 256,
            n_heads: 4,
            n_kv_heads: 2,
            head_dim: 64,
            d_ff: 512,
            n_vocab: 320,
            context: 1024,
            rope_base: 100_000.0,
            window: has_windows.then_some(16),
            ty: TensorType::F32,
            tied: true,
            seed: 1,
        }
    }

    /// The names [`SynthSpec::arch`] can have.
    pub fn architectures() -> Vec<&'static str> {
        arch::names().collect()
    }
}

/// Writes the model as a GGUF file.
pub fn write_gguf(spec: &SynthSpec, path: &Path) -> Result<(), ModelError> {
    write_gguf_watched(spec, path, &mut |_| Ok(()))
}

/// [`write_gguf`], telling `watch` how far it is. An error from it ends the writing, and nothing is
/// left.
pub fn write_gguf_watched(
    spec: &SynthSpec,
    path: &Path,
    watch: &mut dyn FnMut(Written) -> io::Result<()>,
) -> Result<(), ModelError> {
    let model = Model::new(spec)?;
    let writer = model.gguf_writer()?;
    let total = writer.n_data_bytes();
    let write = |out: &mut dyn Write| {
        let mut out = Watched { out, bytes: 0, total, watch };
        model.write_gguf(&writer, &mut out)
    };
    write_whole(path, write).map_err(|error| error.at(path))
}

/// How much of a file is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    pub bytes: u64,
    /// Bytes of all tensors; the file has a little more.
    pub total: u64,
}

struct Watched<'a> {
    out: &'a mut dyn Write,
    bytes: u64,
    total: u64,
    watch: &'a mut dyn FnMut(Written) -> io::Result<()>,
}

impl Write for Watched<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.out.write(bytes)?;
        self.bytes += n as u64;
        let written = Written { bytes: self.bytes.min(self.total), total: self.total };
        // Of another kind than "interrupted", after which a writer would try again.
        (self.watch)(written).map_err(io::Error::other)?;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// The bytes [`write_gguf`] writes.
pub fn gguf_bytes(spec: &SynthSpec) -> Result<Vec<u8>, ModelError> {
    let model = Model::new(spec)?;
    let mut bytes = Vec::new();
    model.write_gguf(&model.gguf_writer()?, &mut bytes)?;
    Ok(bytes)
}

/// Writes the model as a Hugging Face directory: config, weights, tokenizer. The directory is made
/// when it is not there. Only float types have a place in safetensors.
pub fn write_hf(spec: &SynthSpec, dir: &Path) -> Result<(), ModelError> {
    let model = Model::new(spec)?;
    if !spec.ty.is_float() {
        return Err(ModelError::Unsupported(format!("{} in a safetensors file", spec.ty)));
    }
    let write = || {
        fs::create_dir_all(dir)?;
        let put = |name: &str, bytes: &[u8]| {
            write_whole(&dir.join(name), |out| Ok(out.write_all(bytes)?))
        };
        put("config.json", config::hf_config(spec, model.hf.arch).to_string().as_bytes())?;
        put("tokenizer.json", model.vocab.tokenizer_json().to_string().as_bytes())?;
        put("tokenizer_config.json", model.vocab.tokenizer_config().to_string().as_bytes())?;
        put("model.safetensors", &model.safetensors()?)
    };
    write().map_err(|error: ModelError| error.at(dir))
}

/// A spec that passed its checks, with all that follows from it.
struct Model<'a> {
    synth: &'a SynthSpec,
    hf: HfModel,
    slots: Vec<Slot>,
    weights: Weights,
    vocab: Vocab,
}

impl<'a> Model<'a> {
    fn new(synth: &'a SynthSpec) -> Result<Self, ModelError> {
        let arch = Arch::by_name(&synth.arch)?;
        if synth.window.is_some() && arch.windows == WindowRule::OptIn {
            // Its GGUF files have no key for it, so the formats could not agree.
            let what = format!("a sliding window in a synthetic {}", arch.name);
            return Err(ModelError::Unsupported(what));
        }
        // The configuration goes through the reader, which checks every figure.
        let hf = arch::spec_from_config(config::hf_config(synth, arch).to_string().as_bytes())?;
        let mut slots = arch.slots(&hf.spec);
        slots.retain(|slot| match slot.role {
            Role::Output => !synth.tied,
            _ => slot.presence == Presence::Required,
        });
        let weights = Weights::new(synth);
        Ok(Self { synth, hf, slots, weights, vocab: Vocab::new(synth.n_vocab)? })
    }

    fn gguf_writer(&self) -> Result<GgufWriter, ModelError> {
        let mut metadata = config::gguf_metadata(self.synth, &self.hf.spec);
        self.vocab.add_to(&mut metadata);
        let mut writer = GgufWriter::new(metadata);
        for slot in &self.slots {
            let (name, ty) = (arch::gguf_name(slot.role), self.weights.ty(slot.role));
            let dims = [slot.cols, slot.rows];
            let n_dims = if slot.rows == 1 { 1 } else { 2 };
            writer.add_tensor(name, ty, &dims[..n_dims])?;
        }
        Ok(writer)
    }

    fn write_gguf(&self, writer: &GgufWriter, out: &mut dyn Write) -> Result<(), ModelError> {
        let mut slots = self.slots.iter();
        let order = Order::Gguf(self.hf.arch.gguf_rope);
        writer.write_to(out, |_, out| match slots.next() {
            Some(slot) => self.weights.write(slot, order, out),
            None => Ok(()),
        })?;
        Ok(())
    }

    fn safetensors(&self) -> Result<Vec<u8>, ModelError> {
        let offset = self.hf.arch.hf_norm_offset;
        let mut data = BTreeMap::new();
        for slot in &self.slots {
            let mut bytes = Vec::new();
            self.weights.write(slot, Order::Hf { norm_offset: offset }, &mut bytes)?;
            data.insert(arch::hf_name(self.hf.arch, slot.role), (slot, bytes));
        }
        let view = |slot: &Slot, bytes| {
            let shape = if slot.rows == 1 { vec![slot.cols] } else { vec![slot.rows, slot.cols] };
            StView::new(dtype(self.weights.ty(slot.role)), shape, bytes)
        };
        let views: BTreeMap<_, _> = data
            .iter()
            .map(|(name, (slot, bytes))| Ok((name, view(slot, bytes)?)))
            .collect::<Result<_, ::safetensors::SafeTensorError>>()
            .map_err(|error| ModelError::BadSafetensors(error.to_string()))?;
        ::safetensors::serialize(views, None)
            .map_err(|error| ModelError::BadSafetensors(error.to_string()))
    }
}

fn dtype(ty: TensorType) -> Dtype {
    match ty {
        TensorType::F16 => Dtype::F16,
        TensorType::BF16 => Dtype::BF16,
        _ => Dtype::F32,
    }
}

/// Writes beside the target and renames, so that a failure leaves nothing that looks like a model.
fn write_whole(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> Result<(), ModelError>,
) -> Result<(), ModelError> {
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let part = Path::new(&part);
    let result = File::create(part).map_err(ModelError::from).and_then(|file| {
        let mut out = BufWriter::new(file);
        write(&mut out)?;
        out.into_inner().map_err(io::Error::from)?.sync_all()?;
        Ok(fs::rename(part, path)?)
    });
    if result.is_err() {
        // The error to report is the first one.
        let _ = fs::remove_file(part);
    }
    result
}
