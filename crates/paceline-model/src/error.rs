//! What can be wrong with a model's files.

use std::io;
use std::path::{Path, PathBuf};

use paceline_cpu::quant::TensorType;

/// Why a model could not be read. Each message is a sentence for the user; [`ModelError::At`]
/// names the file.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error("{}: {source}", path.display())]
    At {
        path: PathBuf,
        source: Box<ModelError>,
    },
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),

    #[error("this is not a GGUF file: it begins with {found:02x?} instead of \"GGUF\"")]
    NotGguf { found: Vec<u8> },
    #[error("this GGUF file is big-endian; only little-endian files are supported")]
    BigEndian,
    #[error("GGUF version {0} is not supported; convert the file to version 2 or 3")]
    GgufVersion(u32),
    #[error(
        "the file ends in the middle of {what}: {needed} bytes needed at offset {offset}, \
         {left} left; it may be truncated, so download it again"
    )]
    Truncated {
        what: &'static str,
        offset: usize,
        needed: u64,
        left: usize,
    },
    #[error("{what} at offset {offset} is not valid UTF-8")]
    NotUtf8 { what: &'static str, offset: usize },
    #[error("metadata key {key:?} has type {id}, which GGUF does not define")]
    UnknownValueType { key: String, id: u32 },
    #[error("metadata key {key:?} has a bool with the value {byte}")]
    BadBool { key: String, byte: u8 },
    #[error("metadata key {key:?} nests arrays more than {limit} deep")]
    NestedTooDeep { key: String, limit: usize },
    #[error("metadata key {0:?} occurs twice")]
    DuplicateKey(String),
    #[error("the file has no metadata key {0:?}, which this model needs")]
    MissingKey(String),
    #[error("metadata key {key:?} should be {expected}, but is {found}")]
    WrongKeyType {
        key: String,
        expected: &'static str,
        found: String,
    },
    #[error("general.alignment is {0}; it must be a power of two no larger than 65536")]
    BadAlignment(u64),

    #[error("tensor {0:?} occurs twice")]
    DuplicateTensor(String),
    #[error("tensor {name:?} has {n_dims} dimensions; 1 to 4 are possible")]
    BadDimCount { name: String, n_dims: u32 },
    #[error("tensor {name:?} has the impossible shape {dims:?}")]
    BadDims { name: String, dims: Vec<u64> },
    #[error(
        "tensor {name:?} has type {ty}, which is not supported; supported are {}",
        supported()
    )]
    UnknownTensorType { name: String, ty: String },
    #[error("tensor {name:?} has rows of {n_cols} values, which are not whole blocks of {ty}")]
    PartialBlock {
        name: String,
        ty: TensorType,
        n_cols: usize,
    },
    #[error("tensor {name:?} starts at {offset}, which is not a multiple of {alignment}")]
    MisalignedTensor {
        name: String,
        offset: u64,
        alignment: u64,
    },
    #[error(
        "tensor {name:?} lies outside the file ({n_bytes} bytes at data offset {offset}); the \
         file may be truncated, so download it again"
    )]
    TensorOutOfFile {
        name: String,
        offset: u64,
        n_bytes: u64,
    },
    #[error("tensors {first:?} and {second:?} overlap")]
    OverlappingTensors { first: String, second: String },

    #[error("{what} is not valid: {source}")]
    BadJson {
        what: &'static str,
        source: serde_json::Error,
    },
    #[error("{what} has {found} bytes; more than {limit} are not accepted")]
    TooLarge {
        what: &'static str,
        found: u64,
        limit: u64,
    },
    #[error("this is not a valid safetensors file: {0}")]
    BadSafetensors(String),
    #[error("the index names the shard {0:?}, which is not a plain .safetensors file name")]
    BadShardName(String),
    #[error("the index says that tensor {name:?} is in {shard:?}, but it is not there")]
    NotInShard { name: String, shard: String },

    #[error("the architecture {found:?} is not supported; supported are {}", supported.join(", "))]
    UnknownArch {
        found: String,
        supported: Vec<&'static str>,
    },
    #[error("{0} is not supported")]
    Unsupported(String),
    #[error("{what} is {found}; it must be {expected}")]
    BadFigure {
        what: &'static str,
        found: String,
        expected: String,
    },
    #[error("the model has no tensor {0:?}, which its architecture needs")]
    MissingTensor(String),
    #[error("tensor {name:?} is {found_rows} x {found_cols}; it must be {rows} x {cols}")]
    WrongShape {
        name: String,
        found_rows: usize,
        found_cols: usize,
        rows: usize,
        cols: usize,
    },
    #[error("tensor {name:?} has no place in the architecture {arch:?}, so results would be wrong")]
    UnexpectedTensor { name: String, arch: &'static str },
    #[error(
        "this directory holds no model: it needs config.json with .safetensors files, or one \
         .gguf file"
    )]
    NoModel,
    #[error("this directory holds several .gguf files ({}); name one of them", .0.join(", "))]
    SeveralModels(Vec<String>),
}

impl ModelError {
    /// Adds the file the error is about, unless it already names one.
    pub fn at(self, path: &Path) -> Self {
        match self {
            Self::At { .. } => self,
            other => Self::At {
                path: path.to_owned(),
                source: Box::new(other),
            },
        }
    }

    /// The error itself, without the file name around it.
    pub fn kind(&self) -> &ModelError {
        match self {
            Self::At { source, .. } => source.kind(),
            other => other,
        }
    }
}

fn supported() -> String {
    TensorType::ALL.map(TensorType::name).join(", ")
}
