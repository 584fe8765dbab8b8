//! Tokens to text, one at a time.
//!
//! Owns the bytes of a character that has not fully arrived. Knows nothing of the text before
//! them: the cost of a token does not grow with the length of what was already said.

use std::fmt;
use std::sync::Arc;

use crate::tokenizer::{Tokenizer, Vocabulary};

/// How a sequence is turned into text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DetokenizeOptions {
    /// Leave special tokens out of the text.
    pub skip_special: bool,
    /// The tokens follow others (a prompt), so a leading space is part of the text and not the
    /// one that SentencePiece puts before every text.
    pub continuation: bool,
}

impl Default for DetokenizeOptions {
    fn default() -> Self {
        Self { skip_special: true, continuation: false }
    }
}

/// Turns the tokens of one sequence into text as they come, and never shows half a character.
///
/// What all calls return, concatenated, is the text of the whole sequence: bytes that are no
/// UTF-8 come out as U+FFFD, exactly as if they had been decoded at once.
pub struct Detokenizer {
    vocab: Arc<Vocabulary>,
    skip_special: bool,
    /// The next text byte is the first one and may be a space to drop.
    strip_next_space: bool,
    /// The start of a character whose other bytes are still to come: at most three bytes.
    pending: Vec<u8>,
    text: String,
}

impl Detokenizer {
    pub fn new(tokenizer: &Tokenizer, options: DetokenizeOptions) -> Self {
        let vocab = Arc::clone(tokenizer.vocab());
        Self {
            strip_next_space: vocab.strips_leading_space() && !options.continuation,
            skip_special: options.skip_special,
            vocab,
            pending: Vec::new(),
            text: String::new(),
        }
    }

    /// The text that became complete with this token; empty while a character is still open.
    pub fn push(&mut self, token: u32) -> &str {
        self.text.clear();
        if !(self.skip_special && self.vocab.is_special(token)) {
            let mut bytes = self.vocab.bytes(token);
            if self.strip_next_space && !bytes.is_empty() {
                bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
                self.strip_next_space = false;
            }
            self.pending.extend_from_slice(bytes);
            take_complete(&mut self.pending, &mut self.text);
        }
        &self.text
    }

    /// Whether bytes of an unfinished character are held back.
    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Ends the sequence: a character that never became complete turns into U+FFFD.
    pub fn finish(&mut self) -> &str {
        self.text.clear();
        if !self.pending.is_empty() {
            self.pending.clear();
            self.text.push(char::REPLACEMENT_CHARACTER);
        }
        &self.text
    }
}

impl fmt::Debug for Detokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Detokenizer").field("pending", &self.pending).finish_non_exhaustive()
    }
}

/// Moves everything but an unfinished last character from `pending` to `text`.
fn take_complete(pending: &mut Vec<u8>, text: &mut String) {
    let mut rest = pending.as_slice();
    loop {
        match std::str::from_utf8(rest) {
            Ok(valid) => {
                text.push_str(valid);
                rest = &[];
                break;
            }
            Err(error) => {
                let (valid, bad) = rest.split_at(error.valid_up_to());
                text.push_str(std::str::from_utf8(valid).unwrap_or_default());
                rest = bad;
                let Some(len) = error.error_len() else { break };
                text.push(char::REPLACEMENT_CHARACTER);
                rest = &rest[len..];
            }
        }
    }
    let done = pending.len() - rest.len();
    pending.drain(..done);
}

#[cfg(test)]
mod tests;
