//! Rules without a grammar, for tests: every third token, which third depends on the tokens so far.

use crate::constraint::{Constraint, Progress};
use crate::ids::Token;
use crate::request::TokenMask;

#[derive(Clone, Debug)]
pub struct FakeConstraint {
    n_vocab: u32,
    state: u64,
    /// Tokens after which it is complete.
    n_left: u32,
}

impl FakeConstraint {
    pub fn new(n_vocab: u32, n_tokens: u32) -> Self {
        Self { n_vocab, state: 1, n_left: n_tokens }
    }

    pub fn allows(&self, token: Token) -> bool {
        (self.state + u64::from(token)).is_multiple_of(3)
    }
}

impl Constraint for FakeConstraint {
    fn fill(&mut self, mask: &mut TokenMask) {
        mask.words.clear();
        mask.words.resize(self.n_vocab.div_ceil(64) as usize, 0);
        for token in (0..self.n_vocab).filter(|&token| self.allows(token)) {
            mask.words[token as usize / 64] |= 1 << (token % 64);
        }
    }

    fn accept(&mut self, token: Token) -> Progress {
        self.state = (self.state * 31 + u64::from(token)) % 1_000_003;
        self.n_left = self.n_left.saturating_sub(1);
        if self.n_left == 0 { Progress::Complete } else { Progress::Open }
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}
