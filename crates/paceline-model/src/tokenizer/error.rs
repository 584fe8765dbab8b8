//! What can go wrong while a tokenizer is built or used.

use std::path::PathBuf;

use crate::error::ModelError;

/// Why a tokenizer could not be built, or a text not be encoded.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path} is larger than {limit} bytes, which no tokenizer file is")]
    FileTooLarge { path: PathBuf, limit: u64 },
    #[error(transparent)]
    Metadata(#[from] ModelError),
    #[error("there is no tokenizer.json in {dir}; the checkpoint needs one beside its weights")]
    NoTokenizerJson { dir: PathBuf },
    #[error("the tokenizer definition is not valid: {0}")]
    Invalid(String),
    #[error(
        "tokenizers of the kind `{0}` are not supported; byte-level BPE (`gpt2`) and \
         SentencePiece BPE (`llama`) are"
    )]
    UnsupportedKind(String),
    #[error("token id {id} is beyond the {limit} tokens a vocabulary may have")]
    VocabularyTooLarge { id: u64, limit: usize },
    #[error("the vocabulary is empty")]
    EmptyVocabulary,
    #[error("merge {index} (`{merge}`) is not two pieces with a space between them")]
    BadMerge { index: usize, merge: String },
    #[error("`{field}` has {found} entries but there are {expected} tokens")]
    LengthMismatch { field: &'static str, found: usize, expected: usize },
    #[error("the score of token {0} is not a number")]
    BadScore(usize),
    #[error("token {id} has {len} bytes; pieces of at most {limit} can be merged")]
    PieceTooLong { id: usize, len: usize, limit: usize },
    #[error("the text has {len} bytes; at most {limit} can be tokenised at once")]
    TextTooLong { len: usize, limit: usize },
    #[error("the text has {len} whitespace characters in a row; at most {limit} can be tokenised")]
    SpaceRunTooLong { len: usize, limit: usize },
    #[error("the text could not be tokenised: {0}")]
    Encode(String),
}
