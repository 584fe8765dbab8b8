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
    mask: Arc<TokenMask>,
}

impl Guide {
    pub(crate) fn new(constraint: Box<dyn Constraint>) -> Self {
        Self { constraint, mask: Arc::default() }
    }

    /// What may come next. The memory is used again, unless the last mask is still held.
    pub(crate) fn mask(&mut self) -> Arc<TokenMask> {
        self.constraint.fill(Arc::make_mut(&mut self.mask));
        Arc::clone(&self.mask)
    }

    pub(crate) fn accept(&mut self, token: Token) -> Progress {
        self.constraint.accept(token)
    }
}

impl Clone for Guide {
    fn clone(&self) -> Self {
        Self::new(self.constraint.fork())
    }
}
