//! A model's tokens as `llguidance` wants them.

use std::sync::Arc;

use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use paceline_model::tokenizer::Tokenizer;

/// Every token's bytes. Special tokens are marked, so that no text spells one; tokens without
/// bytes are never allowed.
pub(super) fn token_env(tokenizer: &Tokenizer) -> Result<TokEnv, String> {
    let n_vocab = u32::try_from(tokenizer.n_vocab()).map_err(|_| "it is too large")?;
    let mut words: Vec<Vec<u8>> = (0..n_vocab).map(|token| word(tokenizer, token)).collect();
    let mut ends = tokenizer.eos_tokens().to_vec();
    if ends.is_empty() {
        // A token that does not exist: such a model ends where its grammar does, and not before.
        ends.push(n_vocab);
        words.push(Vec::new());
    }
    let info = TokRxInfo::new(words.len() as u32, ends[0]);
    let trie = TokTrie::from(&info, &words).with_eos_tokens(&ends);
    Ok(Arc::new(ApproximateTokEnv::new(trie)))
}

fn word(tokenizer: &Tokenizer, token: u32) -> Vec<u8> {
    let bytes = tokenizer.token_bytes(token);
    if tokenizer.is_special(token) {
        [&[TokTrie::SPECIAL_TOKEN_MARKER], &*bytes].concat()
    } else {
        bytes.into_owned()
    }
}
