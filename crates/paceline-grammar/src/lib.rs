//! From a JSON schema, a regex, a list or a grammar to the tokens that may come next.
//!
//! Owns the trie of a model's tokens, the limits under which strangers' grammars are compiled, and
//! the engine's [`Constraint`] over them. The parsing itself is `llguidance`'s. Refuses to know
//! HTTP, threads and clocks: compiling blocks, and whoever calls decides where.
#![forbid(unsafe_code)]

mod guide;
mod source;
#[cfg(test)]
mod tests;
mod vocabulary;

use std::sync::Mutex;

use llguidance::api::{GrammarInit, ParserLimits};
use llguidance::toktrie::InferenceCapabilities;
use llguidance::{Matcher, ParserFactory};
use paceline_engine::Constraint;
use paceline_model::tokenizer::Tokenizer;

use guide::Guide;
pub use source::{MAX_SOURCE_BYTES, Source};

/// Errors are shown to those who sent the grammar; a long one is cut.
const MAX_ERROR_CHARS: usize = 600;

/// Why there is no grammar.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    #[error("it has {len} bytes; at most {MAX_SOURCE_BYTES} are taken")]
    TooLarge { len: usize },
    #[error("{0}")]
    Invalid(String),
    #[error("the model's vocabulary cannot be used with grammars: {0}")]
    Vocabulary(String),
}

/// Compiles grammars for one model.
pub struct Compiler {
    factory: ParserFactory,
}

/// A compiled grammar; makes any number of constraints, each in its first state.
pub struct Grammar {
    /// Never moved on: what a sequence has seen must not reach another.
    fresh: Mutex<Matcher>,
}

impl Compiler {
    /// Builds the trie of the tokenizer's tokens, which takes a while for large vocabularies.
    pub fn new(tokenizer: &Tokenizer) -> Result<Self, GrammarError> {
        let env = vocabulary::token_env(tokenizer)
            .map_err(|error| GrammarError::Vocabulary(shown(&error)))?;
        // Tokens of plain text inside JSON strings are most of a vocabulary: masks are put
        // together from slices of it that are known beforehand.
        let slices = llguidance::earley::SlicedBiasComputer::json_slices();
        let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
            .map_err(|error| GrammarError::Vocabulary(shown(&error.to_string())))?;
        factory.quiet();
        *factory.limits_mut() = limits();
        Ok(Self { factory })
    }

    /// Compiles and computes the first mask, so that what can never begin is found here. Work and
    /// memory are bounded; a large grammar takes up to some hundred milliseconds.
    pub fn compile(&self, source: &Source) -> Result<Grammar, GrammarError> {
        let grammar = source.to_grammar()?;
        let compile = || {
            let init = GrammarInit::Serialized(grammar);
            let mut matcher = Matcher::new(self.factory.create_parser_from_init(init, 0, 0));
            match matcher.get_error() {
                Some(error) => Err(error),
                None => {
                    matcher.compute_mask_or_eos().map_err(|error| error.to_string()).map(|_| matcher)
                }
            }
        };
        // What a stranger's grammar trips over must not end the process.
        let compiled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(compile));
        match compiled {
            Ok(Ok(matcher)) => Ok(Grammar { fresh: Mutex::new(matcher) }),
            Ok(Err(error)) => Err(GrammarError::Invalid(shown(&error))),
            Err(_) => Err(GrammarError::Invalid("it cannot be compiled".to_owned())),
        }
    }
}

impl Grammar {
    pub fn constraint(&self) -> Box<dyn Constraint> {
        let fresh = self.fresh.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        Box::new(Guide::new(fresh.deep_clone()))
    }
}

impl std::fmt::Debug for Compiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compiler").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Grammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammar").finish_non_exhaustive()
    }
}

/// Some milliseconds for a mask, some tens for the lexer, some tens of megabytes for a sequence.
fn limits() -> ParserLimits {
    ParserLimits {
        max_grammar_size: 100_000,
        max_lexer_states: 20_000,
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

/// The first part of an error, without the traces that a panic leaves.
fn shown(error: &str) -> String {
    let error = error.split("\n<backtrace>").next().unwrap_or(error).trim();
    error.chars().take(MAX_ERROR_CHARS).collect()
}
