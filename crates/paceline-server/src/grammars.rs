//! Grammars on demand: compiled off the threads that speak HTTP, a few at a time, within a time
//! limit, and kept for the next who asks.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use paceline_engine::Constraint;
use paceline_grammar::{Compiler, Grammar, GrammarError, Source};
use paceline_model::tokenizer::Tokenizer;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::error::ApiError;
use crate::format::Format;

/// Grammars that are kept.
const MAX_KEPT: usize = 64;
/// Grammars that are compiled at once: the engine needs the other cores.
const MAX_COMPILING: usize = 2;

/// The grammars of one model.
#[derive(Debug)]
pub(crate) struct Grammars {
    shared: Arc<Shared>,
    compiling: Arc<Semaphore>,
    time_limit: Duration,
}

#[derive(Debug)]
struct Shared {
    tokenizer: Arc<Tokenizer>,
    /// Built with the first grammar: most servers never see one.
    compiler: OnceLock<Result<Compiler, GrammarError>>,
    kept: Mutex<Kept>,
}

impl Grammars {
    pub(crate) fn new(tokenizer: Arc<Tokenizer>, time_limit: Duration) -> Grammars {
        let shared = Shared { tokenizer, compiler: OnceLock::new(), kept: Mutex::default() };
        let compiling = Arc::new(Semaphore::new(MAX_COMPILING));
        Grammars { shared: Arc::new(shared), compiling, time_limit }
    }

    /// A constraint in its first state. What takes too long goes on by itself, up to the
    /// compiler's own limits, and keeps its place among those that are compiled at once.
    pub(crate) async fn constraint(
        &self,
        format: &Format,
    ) -> Result<Box<dyn Constraint>, ApiError> {
        if let Some(grammar) = self.shared.find(&format.source) {
            return Ok(grammar.constraint());
        }
        let place = timeout(self.time_limit, Arc::clone(&self.compiling).acquire_owned()).await;
        let Ok(Ok(place)) = place else {
            return Err(ApiError::Overloaded {
                message: "too many grammars are being compiled; try again later".to_owned(),
                code: "queue_full",
                retry_after: Duration::from_secs(1),
            });
        };
        let (shared, source) = (Arc::clone(&self.shared), format.source.clone());
        let compile = tokio::task::spawn_blocking(move || {
            let _place = place;
            shared.compile(source)
        });
        match timeout(self.time_limit, compile).await {
            Ok(Ok(Ok(grammar))) => Ok(grammar.constraint()),
            Ok(Ok(Err(error))) => Err(refusal(format.param, &error)),
            Ok(Err(_)) => Err(ApiError::internal("the grammar could not be compiled")),
            Err(_) => Err(ApiError::Invalid {
                message: format!(
                    "{}: compiling it takes longer than {} seconds; make it simpler",
                    format.param,
                    self.time_limit.as_secs_f32()
                ),
                param: Some(format.param),
                code: Some("grammar_too_complex"),
            }),
        }
    }
}

fn refusal(param: &'static str, error: &GrammarError) -> ApiError {
    match error {
        GrammarError::Vocabulary(_) => ApiError::internal(error.to_string()),
        _ => ApiError::invalid(param, format!("{param}: {error}")),
    }
}

impl Shared {
    fn find(&self, source: &Source) -> Option<Arc<Grammar>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).find(source)
    }

    fn compile(&self, source: Source) -> Result<Arc<Grammar>, GrammarError> {
        // Somebody may have asked for the same while this one waited.
        if let Some(grammar) = self.find(&source) {
            return Ok(grammar);
        }
        let compiler = self.compiler.get_or_init(|| Compiler::new(&self.tokenizer));
        let grammar = Arc::new(compiler.as_ref().map_err(Clone::clone)?.compile(&source)?);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.keep(source, Arc::clone(&grammar));
        Ok(grammar)
    }
}

/// The grammars that were asked for last.
#[derive(Debug, Default)]
struct Kept {
    /// Each with the time it was last asked for, counted in questions.
    grammars: HashMap<Source, (Arc<Grammar>, u64)>,
    now: u64,
}

impl Kept {
    fn find(&mut self, source: &Source) -> Option<Arc<Grammar>> {
        self.now += 1;
        let (grammar, asked) = self.grammars.get_mut(source)?;
        *asked = self.now;
        Some(Arc::clone(grammar))
    }

    fn keep(&mut self, source: Source, grammar: Arc<Grammar>) {
        if self.grammars.len() >= MAX_KEPT {
            let oldest = self.grammars.iter().min_by_key(|(_, (_, asked))| *asked);
            if let Some(oldest) = oldest.map(|(source, _)| source.clone()) {
                self.grammars.remove(&oldest);
            }
        }
        self.grammars.insert(source, (grammar, self.now));
    }
}
