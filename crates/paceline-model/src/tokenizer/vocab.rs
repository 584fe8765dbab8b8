//! Token id to bytes, as flat tables.
//!
//! Decoding never goes back to the `tokenizers` crate: a token is a byte string, and a text is
//! the concatenation of those. That is what makes incremental decoding exact and cheap.

use super::error::TokenizerError;

/// The most tokens a vocabulary may have; the largest known ones have about 300,000.
pub(super) const MAX_VOCAB: usize = 1 << 22;

/// How the pieces of a vocabulary spell bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PieceForm {
    /// Every character of a piece stands for one byte (the GPT-2 table).
    ByteLevel,
    /// `▁` is a space and `<0xAB>` a byte.
    SentencePiece,
    /// Pieces are plain text.
    Plain,
}

/// Bytes and kind of every token.
#[derive(Debug)]
pub(crate) struct Vocabulary {
    /// The bytes of all tokens, end to end.
    bytes: Vec<u8>,
    /// Token `i` owns `bytes[starts[i]..starts[i + 1]]`.
    starts: Vec<u32>,
    special: Vec<bool>,
    /// The encoder puts a space before a text; a decoded text drops it again.
    strips_leading_space: bool,
}

impl Vocabulary {
    pub(super) fn new(
        pieces: &[Piece],
        strips_leading_space: bool,
    ) -> Result<Self, TokenizerError> {
        if pieces.is_empty() {
            return Err(TokenizerError::EmptyVocabulary);
        }
        let mut bytes = Vec::new();
        let mut starts = vec![0];
        let mut special = Vec::with_capacity(pieces.len());
        for piece in pieces {
            bytes.extend_from_slice(&piece.bytes);
            let end = u32::try_from(bytes.len())
                .map_err(|_| TokenizerError::Invalid("the vocabulary exceeds 4 GiB".into()))?;
            starts.push(end);
            special.push(piece.special);
        }
        Ok(Self { bytes, starts, special, strips_leading_space })
    }

    pub(crate) fn len(&self) -> usize {
        self.special.len()
    }

    /// The bytes a token stands for; none for an id outside the vocabulary, which models whose
    /// embedding is padded can produce.
    pub(crate) fn bytes(&self, id: u32) -> &[u8] {
        let id = id as usize;
        match (self.starts.get(id), self.starts.get(id + 1)) {
            (Some(&start), Some(&end)) => &self.bytes[start as usize..end as usize],
            _ => &[],
        }
    }

    pub(crate) fn is_special(&self, id: u32) -> bool {
        self.special.get(id as usize).copied().unwrap_or(false)
    }

    pub(crate) fn strips_leading_space(&self) -> bool {
        self.strips_leading_space
    }
}

/// One token on its way into a [`Vocabulary`]. The default stands for an unused id.
#[derive(Clone, Debug, Default)]
pub(super) struct Piece {
    pub(super) bytes: Vec<u8>,
    pub(super) special: bool,
}

/// The bytes of a piece of the model's own vocabulary.
pub(super) fn piece_bytes(text: &str, form: PieceForm) -> Vec<u8> {
    match form {
        PieceForm::ByteLevel => byte_level_bytes(text),
        PieceForm::SentencePiece => match hex_byte(text) {
            Some(byte) => vec![byte],
            None => text.replace('▁', " ").into_bytes(),
        },
        PieceForm::Plain => text.as_bytes().to_vec(),
    }
}

/// Reads `<0xAB>`.
fn hex_byte(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_pair = digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_hexdigit());
    is_pair.then(|| u8::from_str_radix(digits, 16).ok())?
}

/// A piece with a character outside the byte table is taken as the text it is, whole.
fn byte_level_bytes(text: &str) -> Vec<u8> {
    let bytes: Option<Vec<u8>> = text.chars().map(byte_of_char).collect();
    bytes.unwrap_or_else(|| text.as_bytes().to_vec())
}

/// Printable bytes stand for themselves, the other 68 for the characters from U+0100 on.
fn byte_of_char(c: char) -> Option<u8> {
    let code = u32::from(c);
    let byte = match code {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => code,
        0x100..=0x120 => code - 0x100,
        0x121..=0x142 => code - 0x121 + 0x7f,
        0x143 => 0xad,
        _ => return None,
    };
    u8::try_from(byte).ok()
}
