//! The engine's view of a grammar in use.

use std::fmt;

use llguidance::Matcher;
use paceline_engine::{Constraint, Progress, Token, TokenMask};

/// One sequence's place in its grammar. Shares nothing with others, not even caches: a limit that
/// another sequence has used up would decide about this one.
pub(super) struct Guide {
    matcher: Matcher,
}

impl Guide {
    pub(super) fn new(matcher: Matcher) -> Self {
        Self { matcher }
    }
}

impl fmt::Debug for Guide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guide").field("stop", &self.matcher.stop_reason()).finish_non_exhaustive()
    }
}

impl Constraint for Guide {
    /// A grammar that has become too complex allows nothing.
    fn fill(&mut self, mask: &mut TokenMask) {
        mask.words.clear();
        if let Ok(allowed) = self.matcher.compute_mask_or_eos() {
            let pairs = allowed.as_slice().chunks(2);
            let high = |pair: &[u32]| pair.get(1).map_or(0, |&word| u64::from(word) << 32);
            mask.words.extend(pairs.map(|pair| u64::from(pair[0]) | high(pair)));
        }
    }

    fn accept(&mut self, token: Token) -> Progress {
        match self.matcher.consume_token(token) {
            Ok(()) if self.matcher.is_stopped() && self.matcher.stop_reason().is_ok() => {
                Progress::Complete
            }
            // After an error the next mask is empty, and the sequence fails with it.
            _ => Progress::Open,
        }
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(Self::new(self.matcher.deep_clone()))
    }
}
