//! From a JSON schema, a regex, a list or a grammar to the tokens that may come next.
//!
//! Owns the trie of a model's tokens, the limits under which strangers' grammars are compiled, and
//! the engine's [`Constraint`] over them. The parsing itself is `llguidance`'s. Refuses to know
//! HTTP and clocks: compiling blocks, and whoever calls decides where and for how long to wait.
#![forbid(unsafe_code)]

mod guide;
mod source;
#[cfg(test)]
mod tests;
mod vocabulary;

use std::sync::Mutex;

use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};
use llguidance::toktrie::InferenceCapabilities;
use llguidance::{Matcher, ParserFactory};
use paceline_engine::Constraint;
use paceline_model::tokenizer::Tokenizer;

use guide::Guide;
pub use source::Source;

/// Compiling recurses, at worst once for every few bytes of the source. Of a stack that is not
/// used nothing is ever allocated.
const STACK_BYTES: usize = 512 << 20;

/// Errors are shown to those who sent the grammar; a long one is cut.
const MAX_ERROR_CHARS: usize = 600;

const PANICKED: &str = "it cannot be compiled";

/// Why there is no grammar.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    #[error("{what} has {len} bytes; at most {max} are taken")]
    TooLarge { what: &'static str, len: usize, max: usize },
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
        let compile = || self.matcher(grammar);
        // What a stranger's grammar trips over must not end the process: a stack of its own, and
        // a thread that may panic.
        let outcome = std::thread::scope(|scope| {
            let builder = std::thread::Builder::new().name("grammar".to_owned());
            let worker = builder.stack_size(STACK_BYTES).spawn_scoped(scope, compile);
            worker.map_err(|error| error.to_string())?.join().map_err(|_| PANICKED.to_owned())?
        });
        match outcome {
            Ok(matcher) => Ok(Grammar { fresh: Mutex::new(matcher) }),
            Err(error) => Err(GrammarError::Invalid(shown(&error))),
        }
    }

    fn matcher(&self, grammar: TopLevelGrammar) -> Result<Matcher, String> {
        let init = GrammarInit::Serialized(grammar);
        let mut matcher = Matcher::new(self.factory.create_parser_from_init(init, 0, 0));
        if let Some(error) = matcher.get_error() {
            return Err(error);
        }
        matcher.compute_mask_or_eos().map_err(|error| error.to_string())?;
        Ok(matcher)
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

/// The first part of an error, without the marks and traces that follow it.
fn shown(error: &str) -> String {
    let error = error.split("\n<").next().unwrap_or(error).trim();
    if error.starts_with("NoExtension") {
        return "no text can fulfil it".to_owned();
    }
    error.chars().take(MAX_ERROR_CHARS).collect()
}
