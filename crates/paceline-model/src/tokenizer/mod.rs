//! Text to token ids and back.
//!
//! Owns: building a tokenizer from what a model ships (tokenizer.json, or GGUF metadata), exact
//! ids for a text, the bytes of each token, and which tokens begin and end texts. Encoding is the
//! `tokenizers` crate's; decoding works on bytes, see [`crate::detokenize`]. Refuses to know: chat
//! templates beyond handing out their source, sequences, and what a model does with ids.

mod error;
mod gguf;
mod json;
mod model;
mod pretokenize;
mod vocab;

#[cfg(test)]
pub(crate) mod tests;

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use tokenizers::{
    AddedToken, DecoderWrapper, ModelWrapper, NormalizerWrapper, PostProcessorWrapper,
    PreTokenizerWrapper, TokenizerImpl,
};

pub use error::TokenizerError;
pub use gguf::GgufVocab;

pub(crate) use vocab::Vocabulary;

use crate::detokenize::{DetokenizeOptions, Detokenizer};
use crate::gguf::Metadata;
use model::SharedModel;

/// The longest text that is tokenised in one go: far beyond any context, small enough that its
/// working memory (some 30 bytes per byte) stays harmless.
pub const MAX_TEXT_BYTES: usize = 16 << 20;

/// The longest run of whitespace that is tokenised. The patterns that cut text look back over such
/// runs and give up, silently, at about a million characters.
pub const MAX_SPACE_RUN: usize = 1 << 19;

/// Special tokens that end a turn or a text in the models' own vocabularies, whatever else the
/// files declare.
const END_TOKENS: &[&str] = &[
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<EOT>",
    "[EOT]",
    "<｜end▁of▁sentence｜>",
];

type Pipeline = TokenizerImpl<
    SharedModel,
    NormalizerWrapper,
    PreTokenizerWrapper,
    PostProcessorWrapper,
    DecoderWrapper,
>;

/// What to do with text that spells a special token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialTokens {
    /// It becomes that token: for rendered templates and prompts written by hand.
    Parse,
    /// It stays plain characters: for text from people who must not forge turns.
    AsText,
}

/// A model's tokenizer. Cheap to share between threads behind an [`Arc`].
pub struct Tokenizer {
    parsing: Pipeline,
    literal: Pipeline,
    vocab: Arc<Vocabulary>,
    ends: Ends,
    chat_template: Option<String>,
}

/// The tokens around a text.
#[derive(Clone, Debug, Default)]
struct Ends {
    bos: Option<u32>,
    /// Declared ones first, until they are completed and sorted.
    eos: Vec<u32>,
    /// The declared one.
    main_eos: Option<u32>,
    /// What a prompt starts with (BOS, where the model wants it).
    prefix: Vec<u32>,
    /// What a prompt ends with (almost always nothing).
    suffix: Vec<u32>,
}

/// What the two builders hand over.
struct Parts {
    model: ModelWrapper,
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
    added: Vec<(u32, AddedToken)>,
    vocab: Vocabulary,
    ends: Ends,
    chat_template: Option<String>,
}

impl Tokenizer {
    /// Reads `tokenizer.json` in a checkpoint's directory, and where they exist
    /// `tokenizer_config.json`, `generation_config.json`, `config.json` and
    /// `chat_template.jinja` beside it.
    pub fn from_dir(dir: &Path) -> Result<Self, TokenizerError> {
        Self::assemble(json::read_dir(dir)?)
    }

    /// Builds the tokenizer a GGUF file describes in its metadata.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self, TokenizerError> {
        Self::from_vocab(GgufVocab::from_metadata(metadata)?)
    }

    /// Builds a tokenizer from a vocabulary as GGUF files describe it.
    pub fn from_vocab(vocab: GgufVocab) -> Result<Self, TokenizerError> {
        Self::assemble(gguf::read(vocab)?)
    }

    fn assemble(parts: Parts) -> Result<Self, TokenizerError> {
        // Requests are tokenised on their own threads; a second pool would fight the kernels'.
        tokenizers::parallelism::set_parallelism(false);
        let added_ids: HashMap<String, u32> =
            parts.added.iter().map(|(id, token)| (token.content.clone(), *id)).collect();
        let model = SharedModel::new(parts.model, added_ids);
        let added: Vec<AddedToken> = parts.added.into_iter().map(|(_, token)| token).collect();
        let pipeline = |as_text: bool| -> Result<Pipeline, TokenizerError> {
            let mut pipeline = Pipeline::new(model.clone());
            pipeline
                .with_normalizer(parts.normalizer.clone())
                .map_err(invalid)?
                .with_pre_tokenizer(parts.pre_tokenizer.clone());
            pipeline.add_tokens(added.iter().cloned()).map_err(invalid)?;
            pipeline.set_encode_special_tokens(as_text);
            Ok(pipeline)
        };
        let mut tokenizer = Self {
            parsing: pipeline(false)?,
            literal: pipeline(true)?,
            vocab: Arc::new(parts.vocab),
            ends: parts.ends,
            chat_template: parts.chat_template,
        };
        tokenizer.complete_ends();
        Ok(tokenizer)
    }

    /// Adds the well-known end tokens, drops ids that do not exist, and sorts.
    fn complete_ends(&mut self) {
        let known = END_TOKENS
            .iter()
            .filter_map(|name| self.parsing.token_to_id(name))
            .filter(|&id| self.vocab.is_special(id));
        let mut eos = std::mem::take(&mut self.ends.eos);
        eos.retain(|&id| (id as usize) < self.vocab.len());
        self.ends.main_eos = eos.first().copied();
        eos.extend(known);
        eos.sort_unstable();
        eos.dedup();
        self.ends.eos = eos;
        self.ends.bos = self.ends.bos.filter(|&id| (id as usize) < self.vocab.len());
    }

    /// The ids of a text, with nothing added around it.
    pub fn encode(&self, text: &str, special: SpecialTokens) -> Result<Vec<u32>, TokenizerError> {
        if text.len() > MAX_TEXT_BYTES {
            return Err(TokenizerError::TextTooLong { len: text.len(), limit: MAX_TEXT_BYTES });
        }
        let run = longest_space_run(text);
        if run > MAX_SPACE_RUN {
            return Err(TokenizerError::SpaceRunTooLong { len: run, limit: MAX_SPACE_RUN });
        }
        let pipeline = match special {
            SpecialTokens::Parse => &self.parsing,
            SpecialTokens::AsText => &self.literal,
        };
        let encoding = pipeline
            .encode_fast(text, false)
            .map_err(|error| TokenizerError::Encode(error.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The ids of a whole prompt: as [`Self::encode`], with BOS in front where the model wants
    /// one and the text does not spell it already.
    pub fn encode_prompt(
        &self,
        text: &str,
        special: SpecialTokens,
    ) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = self.encode(text, special)?;
        if !ids.starts_with(&self.ends.prefix) {
            ids.splice(0..0, self.ends.prefix.iter().copied());
        }
        if !ids.ends_with(&self.ends.suffix) {
            ids.extend_from_slice(&self.ends.suffix);
        }
        Ok(ids)
    }

    /// The text of a whole sequence, special tokens left out. Bytes that are no UTF-8 become
    /// U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut detokenizer = Detokenizer::new(self, DetokenizeOptions::default());
        let mut text = String::new();
        for &id in ids {
            text.push_str(detokenizer.push(id));
        }
        text.push_str(detokenizer.finish());
        text
    }

    /// The bytes a token stands for: possibly a part of a character, and none for an id outside
    /// the vocabulary.
    pub fn token_bytes(&self, id: u32) -> Cow<'_, [u8]> {
        Cow::Borrowed(self.vocab.bytes(id))
    }

    /// Whether a token is a mark of the format (BOS, turn ends, …) and no text.
    pub fn is_special(&self, id: u32) -> bool {
        self.vocab.is_special(id)
    }

    /// The id of a token by its exact name.
    pub fn token_id(&self, name: &str) -> Option<u32> {
        self.parsing.token_to_id(name)
    }

    /// The tokens that end a generation, in rising order.
    pub fn eos_tokens(&self) -> &[u32] {
        &self.ends.eos
    }

    /// The one end token that the files call EOS.
    pub fn eos(&self) -> Option<u32> {
        self.ends.main_eos
    }

    /// The token that begins a text, if the model has one. Whether prompts get it is decided by
    /// [`Self::encode_prompt`].
    pub fn bos(&self) -> Option<u32> {
        self.ends.bos
    }

    /// One more than the highest token id. The model's embedding may have more rows.
    pub fn n_vocab(&self) -> usize {
        self.vocab.len()
    }

    /// The source of the model's chat template.
    pub fn chat_template(&self) -> Option<&str> {
        self.chat_template.as_deref()
    }

    pub(crate) fn vocab(&self) -> &Arc<Vocabulary> {
        &self.vocab
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("n_vocab", &self.n_vocab())
            .field("ends", &self.ends)
            .finish_non_exhaustive()
    }
}

fn longest_space_run(text: &str) -> usize {
    // Most texts are shorter than the limit and need no look at all.
    if text.len() <= MAX_SPACE_RUN {
        return 0;
    }
    let words = text.split(|c: char| !c.is_whitespace());
    words.map(|run| run.chars().count()).max().unwrap_or(0)
}

fn invalid(error: tokenizers::Error) -> TokenizerError {
    TokenizerError::Invalid(error.to_string())
}
