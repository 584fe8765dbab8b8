//! Safetensors checkpoints: one file, or shards that an index lists. Mapped, never copied.
//!
//! The header's own rules (ranges in the file, sizes that match shapes, no holes) are checked by
//! the `safetensors` crate; this module adds what it leaves open. Knows no tensor's meaning.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::ops::Range;
use std::path::Path;

use paceline_cpu::quant::TensorType;
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use crate::bytes::FileBytes;
use crate::error::ModelError;
use crate::tensor::TensorView;

/// A header describes thousands of tensors in some hundred kilobytes.
const MAX_HEADER_BYTES: u64 = 16 << 20;
const MAX_INDEX_BYTES: u64 = 64 << 20;

/// The tensors of a checkpoint.
#[derive(Debug, Default)]
pub struct Safetensors {
    files: Vec<FileBytes>,
    tensors: Vec<Tensor>,
    by_name: HashMap<String, usize>,
}

#[derive(Debug)]
struct Tensor {
    name: String,
    ty: TensorType,
    rows: usize,
    cols: usize,
    file: usize,
    range: Range<usize>,
}

impl Safetensors {
    /// Opens one `.safetensors` file.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let mut this = Self::default();
        this.add_file(path, |_| true)?;
        Ok(this)
    }

    /// Opens the shards that `index_path` (a `model.safetensors.index.json`) lists beside it.
    pub fn open_sharded(index_path: &Path) -> Result<Self, ModelError> {
        let index = read_capped(index_path, "the shard index", MAX_INDEX_BYTES)?;
        let bad = |source| ModelError::BadJson {
            what: "the shard index",
            source,
        };
        let index: Index = serde_json::from_slice(&index)
            .map_err(bad)
            .map_err(|error| error.at(index_path))?;
        let dir = index_path.parent().unwrap_or(Path::new("."));
        let mut this = Self::default();
        for shard in index.weight_map.values().collect::<BTreeSet<_>>() {
            check_shard_name(shard).map_err(|error| error.at(index_path))?;
            this.add_file(&dir.join(shard), |name| {
                index.weight_map.get(name) == Some(shard)
            })?;
        }
        this.check_complete(&index)
            .map_err(|error| error.at(index_path))?;
        Ok(this)
    }

    /// A file that is already in memory.
    pub fn parse(bytes: Vec<u8>) -> Result<Self, ModelError> {
        let mut this = Self::default();
        this.add_bytes(FileBytes::Owned(bytes), |_| true)?;
        Ok(this)
    }

    pub fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        self.by_name.get(name).map(|&i| self.view(&self.tensors[i]))
    }

    /// All tensors, in name order within each file.
    pub fn tensors(&self) -> impl Iterator<Item = TensorView<'_>> {
        self.tensors.iter().map(|tensor| self.view(tensor))
    }

    fn view<'a>(&'a self, tensor: &'a Tensor) -> TensorView<'a> {
        TensorView {
            name: &tensor.name,
            ty: tensor.ty,
            rows: tensor.rows,
            cols: tensor.cols,
            data: &self.files[tensor.file][tensor.range.clone()],
        }
    }

    fn add_file(&mut self, path: &Path, wanted: impl Fn(&str) -> bool) -> Result<(), ModelError> {
        let mut add = || self.add_bytes(FileBytes::map(&File::open(path)?)?, &wanted);
        add().map_err(|error| error.at(path))
    }

    fn add_bytes(
        &mut self,
        bytes: FileBytes,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<(), ModelError> {
        check_header(&bytes)?;
        let parsed = SafeTensors::deserialize(&bytes)
            .map_err(|error| ModelError::BadSafetensors(error.to_string()))?;
        let mut tensors = parsed.tensors();
        tensors.retain(|(name, _)| wanted(name));
        tensors.sort_by(|a, b| a.0.cmp(&b.0));
        for (name, view) in tensors {
            let (rows, cols) = matrix_shape(&name, view.shape())?;
            let ty = tensor_type(&name, view.dtype())?;
            // The view borrows from the map; what is kept is where in it.
            let start = view.data().as_ptr() as usize - bytes.as_ptr() as usize;
            let range = start..start + view.data().len();
            self.by_name.insert(name.clone(), self.tensors.len());
            self.tensors.push(Tensor {
                name,
                ty,
                rows,
                cols,
                file: self.files.len(),
                range,
            });
        }
        self.files.push(bytes);
        Ok(())
    }

    fn check_complete(&self, index: &Index) -> Result<(), ModelError> {
        for (name, shard) in &index.weight_map {
            if !self.by_name.contains_key(name) {
                let (name, shard) = (name.clone(), shard.clone());
                return Err(ModelError::NotInShard { name, shard });
            }
        }
        Ok(())
    }
}

/// Reads a small file whole, unless it is not small.
pub(crate) fn read_capped(
    path: &Path,
    what: &'static str,
    limit: u64,
) -> Result<Vec<u8>, ModelError> {
    let read = || {
        let mut bytes = Vec::new();
        File::open(path)?.take(limit + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > limit {
            let found = fs::metadata(path)?.len();
            return Err(ModelError::TooLarge { what, found, limit });
        }
        Ok(bytes)
    };
    read().map_err(|error: ModelError| error.at(path))
}

#[derive(Deserialize)]
struct Index {
    /// Which shard each tensor is in.
    weight_map: BTreeMap<String, String>,
}

/// A shard must be a file beside its index: a name with a directory in it could reach any file of
/// the machine.
fn check_shard_name(name: &str) -> Result<(), ModelError> {
    let plain = !name.contains(['/', '\\', ':', '\0']) && name.ends_with(".safetensors");
    if plain {
        Ok(())
    } else {
        Err(ModelError::BadShardName(name.to_owned()))
    }
}

/// Bounds the header before anything parses it, and refuses names that occur twice, of which a
/// parser into a map keeps one without a word.
fn check_header(bytes: &[u8]) -> Result<(), ModelError> {
    let Some((len, rest)) = bytes.split_first_chunk::<8>() else {
        let (needed, left) = (8, bytes.len());
        return Err(ModelError::Truncated {
            what: "the header's length",
            offset: 0,
            needed,
            left,
        });
    };
    let len = u64::from_le_bytes(*len);
    if len > MAX_HEADER_BYTES {
        let (what, limit) = ("the safetensors header", MAX_HEADER_BYTES);
        return Err(ModelError::TooLarge {
            what,
            found: len,
            limit,
        });
    }
    let Some(header) = rest.get(..len as usize) else {
        let (what, left) = ("the header", rest.len());
        return Err(ModelError::Truncated {
            what,
            offset: 8,
            needed: len,
            left,
        });
    };
    let names: UniqueNames =
        serde_json::from_slice(header).map_err(|source| ModelError::BadJson {
            what: "the safetensors header",
            source,
        })?;
    match names.duplicate {
        Some(name) => Err(ModelError::DuplicateTensor(name)),
        None => Ok(()),
    }
}

/// The keys of a JSON object, of which the first that occurs twice is kept.
struct UniqueNames {
    duplicate: Option<String>,
}

impl<'de> Deserialize<'de> for UniqueNames {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(UniqueNamesVisitor)
    }
}

struct UniqueNamesVisitor;

impl<'de> Visitor<'de> for UniqueNamesVisitor {
    type Value = UniqueNames;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors by name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<UniqueNames, A::Error> {
        let mut seen = HashSet::new();
        let mut duplicate = None;
        while let Some((name, IgnoredAny)) = map.next_entry::<String, IgnoredAny>()? {
            if !seen.insert(name.clone()) {
                duplicate.get_or_insert(name);
            }
        }
        Ok(UniqueNames { duplicate })
    }
}

fn matrix_shape(name: &str, shape: &[usize]) -> Result<(usize, usize), ModelError> {
    if !(1..=4).contains(&shape.len()) {
        let (name, n_dims) = (name.to_owned(), shape.len() as u32);
        return Err(ModelError::BadDimCount { name, n_dims });
    }
    if shape.contains(&0) {
        let dims = shape.iter().map(|&d| d as u64).collect();
        return Err(ModelError::BadDims {
            name: name.to_owned(),
            dims,
        });
    }
    // Cannot overflow: the crate has checked the product against the bytes in the file.
    Ok((
        shape[..shape.len() - 1].iter().product(),
        shape[shape.len() - 1],
    ))
}

fn tensor_type(name: &str, dtype: Dtype) -> Result<TensorType, ModelError> {
    match dtype {
        Dtype::F32 => Ok(TensorType::F32),
        Dtype::F16 => Ok(TensorType::F16),
        Dtype::BF16 => Ok(TensorType::BF16),
        other => Err(ModelError::UnknownTensorType {
            name: name.to_owned(),
            ty: format!("{other:?}"),
        }),
    }
}
