//! A tokenizer from GGUF metadata.

use std::collections::HashMap;

use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::normalizers::{Prepend, Replace, Sequence};
use tokenizers::{AddedToken, NormalizerWrapper};

use super::error::TokenizerError;
use super::pretokenize::PreTokenizer;
use super::vocab::{MAX_VOCAB, Piece, PieceForm, Vocabulary, piece_bytes};
use super::{Ends, Parts, invalid};
use crate::error::ModelError;
use crate::gguf::Metadata;

/// Trying every split of a piece costs the square of its length.
const MAX_PIECE_BYTES: usize = 1024;

/// What the `tokenizer.*` keys of a GGUF file say.
#[derive(Clone, Debug, Default)]
pub struct GgufVocab {
    /// `tokenizer.ggml.model`: `gpt2` or `llama`.
    pub model: String,
    /// `tokenizer.ggml.pre`: the name of the pre-tokeniser.
    pub pre: Option<String>,
    /// `tokenizer.ggml.tokens`.
    pub tokens: Vec<String>,
    /// `tokenizer.ggml.scores`; empty when the file has none.
    pub scores: Vec<f32>,
    /// `tokenizer.ggml.token_type`; empty when the file has none.
    pub types: Vec<i32>,
    /// `tokenizer.ggml.merges`; empty when the file has none.
    pub merges: Vec<String>,
    /// `tokenizer.ggml.bos_token_id`.
    pub bos: Option<u32>,
    /// `tokenizer.ggml.eos_token_id`.
    pub eos: Option<u32>,
    /// `tokenizer.ggml.eot_token_id`.
    pub eot: Option<u32>,
    /// `tokenizer.ggml.eom_token_id`.
    pub eom: Option<u32>,
    /// `tokenizer.ggml.unknown_token_id`.
    pub unk: Option<u32>,
    /// `tokenizer.ggml.add_bos_token`.
    pub add_bos: Option<bool>,
    /// `tokenizer.ggml.add_eos_token`.
    pub add_eos: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix`.
    pub add_space_prefix: Option<bool>,
    /// `tokenizer.chat_template`.
    pub chat_template: Option<String>,
}

impl GgufVocab {
    /// Picks the tokenizer's keys out of a file's metadata.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self, ModelError> {
        let strings = |key: &str| metadata.optional::<&[String]>(key);
        let text = |key: &str| metadata.optional::<&str>(key);
        let id = |key: &str| metadata.optional::<u32>(key);
        let flag = |key: &str| metadata.optional::<bool>(key);
        Ok(Self {
            model: metadata.required::<&str>("tokenizer.ggml.model")?.to_owned(),
            pre: text("tokenizer.ggml.pre")?.map(str::to_owned),
            tokens: metadata.required::<&[String]>("tokenizer.ggml.tokens")?.to_vec(),
            scores: metadata.optional("tokenizer.ggml.scores")?.unwrap_or_default(),
            types: metadata.optional("tokenizer.ggml.token_type")?.unwrap_or_default(),
            merges: strings("tokenizer.ggml.merges")?.unwrap_or_default().to_vec(),
            bos: id("tokenizer.ggml.bos_token_id")?,
            eos: id("tokenizer.ggml.eos_token_id")?,
            eot: id("tokenizer.ggml.eot_token_id")?,
            eom: id("tokenizer.ggml.eom_token_id")?,
            unk: id("tokenizer.ggml.unknown_token_id")?,
            add_bos: flag("tokenizer.ggml.add_bos_token")?,
            add_eos: flag("tokenizer.ggml.add_eos_token")?,
            add_space_prefix: flag("tokenizer.ggml.add_space_prefix")?,
            chat_template: text("tokenizer.chat_template")?.map(str::to_owned),
        })
    }
}

/// `tokenizer.ggml.token_type`, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TokenType {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

impl TokenType {
    fn from_number(number: i32) -> Self {
        match number {
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => Self::Normal,
        }
    }

    fn is_special(self) -> bool {
        matches!(self, Self::Unknown | Self::Control)
    }

    /// Matched in the text as a whole, before anything else is done to it.
    fn is_added(self) -> bool {
        matches!(self, Self::Unknown | Self::Control | Self::UserDefined)
    }
}

pub(super) fn read(mut file: GgufVocab) -> Result<Parts, TokenizerError> {
    check_lengths(&file)?;
    match file.model.as_str() {
        "gpt2" => byte_level(file),
        "llama" => {
            // What SentencePiece vocabularies have where the file does not say.
            file.bos = file.bos.or(Some(1));
            file.eos = file.eos.or(Some(2));
            file.unk = file.unk.or(Some(0));
            sentence_piece(file)
        }
        other => Err(TokenizerError::UnsupportedKind(other.to_owned())),
    }
}

fn check_lengths(file: &GgufVocab) -> Result<(), TokenizerError> {
    let expected = file.tokens.len();
    if expected > MAX_VOCAB {
        return Err(TokenizerError::VocabularyTooLarge {
            id: expected as u64 - 1,
            limit: MAX_VOCAB,
        });
    }
    let lengths = [
        ("tokenizer.ggml.scores", file.scores.len()),
        ("tokenizer.ggml.token_type", file.types.len()),
    ];
    for (field, found) in lengths {
        if found != 0 && found != expected {
            return Err(TokenizerError::LengthMismatch { field, found, expected });
        }
    }
    Ok(())
}

fn byte_level(file: GgufVocab) -> Result<Parts, TokenizerError> {
    let pre = PreTokenizer::named(file.pre.as_deref());
    let tokens = mergeable(&file, |kind| !kind.is_special());
    let merges = parse_merges(&file.merges, &tokens)?;
    let bpe = BPE::builder()
        .vocab_and_merges(tokens, merges)
        .ignore_merges(pre.ignore_merges)
        .build()
        .map_err(invalid)?;
    Ok(Parts {
        model: bpe.into(),
        normalizer: None,
        pre_tokenizer: Some(pre.build()?),
        added: added_tokens(&file),
        vocab: vocabulary(&file, PieceForm::ByteLevel, false)?,
        ends: ends(&file, pre.adds_bos),
        chat_template: file.chat_template,
    })
}

/// SentencePiece merges the pair whose result has the highest score. Every split of every piece
/// into two others, in falling order of score, is that rule as a list of merges.
///
/// As llama.cpp does, the space before a text is also put before text that follows an added
/// token; the SentencePiece library itself, which knows no turns, puts it before the first only.
fn sentence_piece(file: GgufVocab) -> Result<Parts, TokenizerError> {
    let merging = mergeable(&file, |kind| matches!(kind, TokenType::Normal | TokenType::Byte));
    let merges = merges_from_scores(&file, &merging)?;
    let unk = file.unk.and_then(|id| file.tokens.get(id as usize));
    let mut builder = BPE::builder().byte_fallback(true).fuse_unk(true);
    let mut tokens = merging;
    if let (Some(unk), Some(id)) = (unk, file.unk) {
        tokens.entry(unk.clone()).or_insert(id);
        builder = builder.unk_token(unk.clone());
    }
    let bpe = builder.vocab_and_merges(tokens, merges).build().map_err(invalid)?;
    let adds_space = file.add_space_prefix.unwrap_or(true);
    Ok(Parts {
        model: bpe.into(),
        normalizer: Some(space_normalizer(adds_space)?),
        pre_tokenizer: None,
        added: added_tokens(&file),
        vocab: vocabulary(&file, PieceForm::SentencePiece, adds_space)?,
        ends: ends(&file, true),
        chat_template: file.chat_template,
    })
}

fn space_normalizer(adds_space: bool) -> Result<NormalizerWrapper, TokenizerError> {
    let mut steps: Vec<NormalizerWrapper> = Vec::new();
    if adds_space {
        steps.push(Prepend::new("▁".to_owned()).into());
    }
    steps.push(Replace::new(" ", "▁").map_err(invalid)?.into());
    Ok(Sequence::new(steps).into())
}

fn token_type(file: &GgufVocab, id: usize) -> TokenType {
    file.types.get(id).map_or(TokenType::Normal, |&number| TokenType::from_number(number))
}

fn with_types(file: &GgufVocab) -> impl Iterator<Item = (usize, &String, TokenType)> {
    let tokens = file.tokens.iter().enumerate();
    tokens.map(|(id, text)| (id, text, token_type(file, id)))
}

/// The tokens text can become by merging. Where two have the same name the first one counts.
fn mergeable(file: &GgufVocab, keep: impl Fn(TokenType) -> bool) -> Vocab {
    let mut vocab = Vocab::new();
    for (id, text, kind) in with_types(file) {
        if keep(kind) && !text.is_empty() {
            vocab.entry(text.clone()).or_insert(id as u32);
        }
    }
    vocab
}

/// Merges whose parts or result are not tokens could never be used; they are left out, since the
/// `tokenizers` crate insists on all three.
fn parse_merges(lines: &[String], tokens: &Vocab) -> Result<Merges, TokenizerError> {
    let mut merges = Merges::with_capacity(lines.len());
    for (index, line) in lines.iter().enumerate() {
        let (left, right) = split_merge(line)
            .ok_or_else(|| TokenizerError::BadMerge { index, merge: line.clone() })?;
        let joined = format!("{left}{right}");
        if [left, right, &joined].iter().all(|part| tokens.contains_key(*part)) {
            merges.push((left.to_owned(), right.to_owned()));
        }
    }
    let unusable = lines.len() - merges.len();
    if unusable > 0 {
        tracing::warn!(unusable, "merges that name unknown tokens were left out");
    }
    Ok(merges)
}

/// The space that divides the two halves is the first one after the first character, because the
/// first half may itself be a space in vocabularies that do not escape it.
fn split_merge(line: &str) -> Option<(&str, &str)> {
    let first = line.chars().next()?.len_utf8();
    let at = first + line[first..].find(' ')?;
    let (left, right) = (&line[..at], &line[at + 1..]);
    (!right.is_empty()).then_some((left, right))
}

fn merges_from_scores(file: &GgufVocab, tokens: &Vocab) -> Result<Merges, TokenizerError> {
    if file.scores.is_empty() {
        return Err(TokenizerError::LengthMismatch {
            field: "tokenizer.ggml.scores",
            found: 0,
            expected: file.tokens.len(),
        });
    }
    if let Some(id) = file.scores.iter().position(|score| score.is_nan()) {
        return Err(TokenizerError::BadScore(id));
    }
    let mut scored = Vec::new();
    for (id, text, kind) in with_types(file) {
        if kind != TokenType::Normal {
            continue;
        }
        if text.len() > MAX_PIECE_BYTES {
            return Err(TokenizerError::PieceTooLong {
                id,
                len: text.len(),
                limit: MAX_PIECE_BYTES,
            });
        }
        for (at, _) in text.char_indices().skip(1) {
            let (left, right) = text.split_at(at);
            if tokens.contains_key(left) && tokens.contains_key(right) {
                scored.push((file.scores[id], left.to_owned(), right.to_owned()));
            }
        }
    }
    // A stable sort: among equal scores the lower id goes first.
    scored.sort_by(|a, b| b.0.total_cmp(&a.0));
    Ok(scored.into_iter().map(|(_, left, right)| (left, right)).collect())
}

fn added_tokens(file: &GgufVocab) -> Vec<(u32, AddedToken)> {
    let mut added = Vec::new();
    let mut seen = HashMap::new();
    for (id, text, kind) in with_types(file) {
        if kind.is_added() && !text.is_empty() && seen.insert(text, id).is_none() {
            let token = AddedToken::from(text.clone(), kind.is_special()).normalized(false);
            added.push((id as u32, token));
        }
    }
    added
}

fn vocabulary(
    file: &GgufVocab,
    form: PieceForm,
    strips_leading_space: bool,
) -> Result<Vocabulary, TokenizerError> {
    let pieces: Vec<Piece> = with_types(file)
        .map(|(_, text, kind)| Piece {
            bytes: match (kind.is_added(), form) {
                (true, PieceForm::ByteLevel | PieceForm::Plain) => text.as_bytes().to_vec(),
                _ => piece_bytes(text, form),
            },
            special: kind.is_special(),
        })
        .collect();
    Vocabulary::new(&pieces, strips_leading_space)
}

fn ends(file: &GgufVocab, adds_bos_by_default: bool) -> Ends {
    let exists = |id: &u32| (*id as usize) < file.tokens.len();
    let bos = file.bos.filter(exists);
    let eos = file.eos.filter(exists);
    let prefix = bos.filter(|_| file.add_bos.unwrap_or(adds_bos_by_default));
    let suffix = eos.filter(|_| file.add_eos.unwrap_or(false));
    Ends {
        bos,
        eos: [eos, file.eot, file.eom].into_iter().flatten().collect(),
        prefix: prefix.into_iter().collect(),
        suffix: suffix.into_iter().collect(),
        ..Ends::default()
    }
}
