//! What a sequence may say next, where somebody outside decides that: a grammar, a schema, a list.
//!
//! The engine knows no grammar. It asks for a mask before a token is chosen and tells which one
//! was; both follow the tokens known, not the KV computed, so preemption changes nothing.

use std::fmt;
use std::sync::Arc;

use crate::ids::Token;
use crate::request::TokenMask;

/// The rules of one sequence, and how far it has come in them. Masks must be a function of the
/// tokens accepted alone, or batches would change answers.
pub trait Constraint: fmt::Debug + Send {
    /// Sets the bits of the tokens that may come next and clears all others. Where none is set,
    /// the sequence fails.
    fn fill(&mut self, mask: &mut TokenMask);

    /// Takes the token that was chosen.
    fn accept(&mut self, token: Token) -> Progress;

    /// A copy in the same state that goes its own way.
    fn fork(&self) -> Box<dyn Constraint>;
}

/// Where a sequence is in its rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Something may follow.
    Open,
    /// Nothing can follow; the sequence ends here.
    Complete,
}

impl Clone for Box<dyn Constraint> {
    fn clone(&self) -> Self {
        self.fork()
    }
}

/// A sequence's constraint with the memory for its masks.
#[derive(Debug)]
pub(crate) struct Guide {
    constraint: Box<dyn Constraint>,
    /// What may come next, and after each of the step's drafts.
    masks: Vec<Arc<TokenMask>>,
    /// Scratch.
    again: TokenMask,
}

impl Guide {
    pub(crate) fn new(constraint: Box<dyn Constraint>) -> Self {
        Self { constraint, masks: vec![Arc::default()], again: TokenMask::default() }
    }

    /// Finds what may come next and after each of the leading drafts that the rules allow, and how
    /// many those are. What would end the sequence is none of them: nothing follows there.
    pub(crate) fn look(&mut self, drafts: &[Token]) -> usize {
        fill(&mut *self.constraint, &mut self.masks[0]);
        let mut ahead = (!drafts.is_empty()).then(|| self.constraint.fork());
        let mut n_allowed = 0;
        while let (Some(ahead), Some(&draft)) = (&mut ahead, drafts.get(n_allowed)) {
            if !self.masks[n_allowed].allows(draft) || ahead.accept(draft) == Progress::Complete {
                break;
            }
            n_allowed += 1;
            if self.masks.len() == n_allowed {
                self.masks.push(Arc::default());
            }
            fill(&mut **ahead, &mut self.masks[n_allowed]);
        }
        n_allowed
    }

    /// What may come after the first `n` drafts, as found last.
    pub(crate) fn mask(&self, n: usize) -> Arc<TokenMask> {
        Arc::clone(&self.masks[n])
    }

    pub(crate) fn accept(&mut self, token: Token) -> Progress {
        self.constraint.accept(token)
    }

    /// The token accepted last was drafted, and the next is chosen by the mask found ahead.
    /// Finding masks uses up what a constraint may use in all, so it is found here, too: rules that
    /// become too much for their limits do so at the same token, with drafts or without.
    pub(crate) fn catch_up(&mut self) {
        self.constraint.fill(&mut self.again);
    }
}

/// The memory is used again, unless the last mask is still held.
fn fill(constraint: &mut dyn Constraint, mask: &mut Arc<TokenMask>) {
    constraint.fill(Arc::make_mut(mask));
}

impl Clone for Guide {
    fn clone(&self) -> Self {
        Self::new(self.constraint.fork())
    }
}
