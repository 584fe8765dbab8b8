//! An open GGUF file: metadata, and tensors whose ranges have been checked.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::path::Path;

use paceline_cpu::quant::TensorType;

use super::header::{self, RawTensor};
use super::metadata::Metadata;
use super::tensor_type;
use crate::bytes::FileBytes;
use crate::error::ModelError;
use crate::tensor::TensorView;

const DEFAULT_ALIGNMENT: u64 = 32;
const MAX_ALIGNMENT: u64 = 65536;

/// A GGUF file.
#[derive(Debug)]
pub struct Gguf {
    bytes: FileBytes,
    version: u32,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
}

/// One tensor of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    pub name: String,
    pub ty: TensorType,
    /// As the file has them: the contiguous dimension first. One to four, none zero.
    pub dims: Vec<usize>,
    /// Where its data lies in the file.
    range: Range<usize>,
}

impl TensorInfo {
    /// Values in a row: the contiguous dimension.
    pub fn cols(&self) -> usize {
        self.dims[0]
    }

    /// All other dimensions multiplied. Cannot overflow: the data is in the file.
    pub fn rows(&self) -> usize {
        self.dims[1..].iter().product()
    }

    pub fn n_bytes(&self) -> usize {
        self.range.len()
    }
}

impl Gguf {
    /// Maps the file and checks all of its header.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let open = || Self::from_bytes(FileBytes::map(&File::open(path)?)?);
        open().map_err(|error| error.at(path))
    }

    /// A file that is already in memory.
    pub fn parse(bytes: Vec<u8>) -> Result<Self, ModelError> {
        Self::from_bytes(FileBytes::Owned(bytes))
    }

    fn from_bytes(bytes: FileBytes) -> Result<Self, ModelError> {
        let header = header::parse(&bytes)?;
        let layout = DataLayout::new(&header.metadata, header.end, bytes.len())?;
        let mut tensors = Vec::with_capacity(header.tensors.len());
        let mut by_name = HashMap::with_capacity(header.tensors.len());
        for raw in header.tensors {
            let tensor = layout.check(raw)?;
            if by_name.insert(tensor.name.clone(), tensors.len()).is_some() {
                return Err(ModelError::DuplicateTensor(tensor.name));
            }
            tensors.push(tensor);
        }
        check_overlaps(&tensors)?;
        let (version, metadata) = (header.version, header.metadata);
        Ok(Self {
            bytes,
            version,
            metadata,
            tensors,
            by_name,
        })
    }

    /// Version of the format: 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// All tensors, in file order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    pub fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        self.by_name.get(name).map(|&i| self.view(&self.tensors[i]))
    }

    /// A tensor of this file with its bytes.
    pub fn view<'a>(&'a self, tensor: &'a TensorInfo) -> TensorView<'a> {
        TensorView {
            name: &tensor.name,
            ty: tensor.ty,
            rows: tensor.rows(),
            cols: tensor.cols(),
            data: &self.bytes[tensor.range.clone()],
        }
    }
}

/// Where tensor data may lie.
struct DataLayout {
    start: u64,
    file_len: u64,
    alignment: u64,
}

impl DataLayout {
    fn new(metadata: &Metadata, header_end: usize, file_len: usize) -> Result<Self, ModelError> {
        let alignment = metadata
            .optional("general.alignment")?
            .unwrap_or(DEFAULT_ALIGNMENT);
        if !alignment.is_power_of_two() || alignment > MAX_ALIGNMENT {
            return Err(ModelError::BadAlignment(alignment));
        }
        let start = (header_end as u64).next_multiple_of(alignment);
        Ok(Self {
            start,
            file_len: file_len as u64,
            alignment,
        })
    }

    fn check(&self, raw: RawTensor) -> Result<TensorInfo, ModelError> {
        let RawTensor {
            name,
            dims: raw_dims,
            type_id,
            offset,
        } = raw;
        let ty = match tensor_type::from_id(type_id) {
            Ok(ty) => ty,
            Err(ty) => return Err(ModelError::UnknownTensorType { name, ty }),
        };
        let Some((dims, rows)) = check_dims(&raw_dims) else {
            return Err(ModelError::BadDims {
                name,
                dims: raw_dims,
            });
        };
        if !dims[0].is_multiple_of(ty.block_len()) {
            return Err(ModelError::PartialBlock {
                name,
                ty,
                n_cols: dims[0],
            });
        }
        let n_bytes = ty
            .row_bytes(dims[0])
            .and_then(|row_bytes| row_bytes.checked_mul(rows));
        let Some(n_bytes) = n_bytes else {
            return Err(ModelError::BadDims {
                name,
                dims: raw_dims,
            });
        };
        if !offset.is_multiple_of(self.alignment) {
            let alignment = self.alignment;
            return Err(ModelError::MisalignedTensor {
                name,
                offset,
                alignment,
            });
        }
        match self.range(offset, n_bytes as u64) {
            Some(range) => Ok(TensorInfo {
                name,
                ty,
                dims,
                range,
            }),
            None => Err(ModelError::TensorOutOfFile {
                name,
                offset,
                n_bytes: n_bytes as u64,
            }),
        }
    }

    fn range(&self, offset: u64, n_bytes: u64) -> Option<Range<usize>> {
        let start = self.start.checked_add(offset)?;
        let end = start
            .checked_add(n_bytes)
            .filter(|&end| end <= self.file_len)?;
        Some(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
    }
}

/// The dimensions as sizes, and the number of rows; `None` when one is zero or the number of
/// values overflows.
fn check_dims(raw: &[u64]) -> Option<(Vec<usize>, usize)> {
    let dims: Vec<usize> = raw
        .iter()
        .map(|&d| usize::try_from(d).ok())
        .collect::<Option<_>>()?;
    if dims.contains(&0) {
        return None;
    }
    let rows = dims[1..]
        .iter()
        .try_fold(1usize, |rows, &d| rows.checked_mul(d))?;
    rows.checked_mul(dims[0])?;
    Some((dims, rows))
}

fn check_overlaps(tensors: &[TensorInfo]) -> Result<(), ModelError> {
    let mut in_file_order: Vec<&TensorInfo> = tensors.iter().collect();
    in_file_order.sort_by_key(|tensor| tensor.range.start);
    for pair in in_file_order.windows(2) {
        if pair[0].range.end > pair[1].range.start {
            return Err(ModelError::OverlappingTensors {
                first: pair[0].name.clone(),
                second: pair[1].name.clone(),
            });
        }
    }
    Ok(())
}
