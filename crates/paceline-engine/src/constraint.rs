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
    /// What may come next, and after each of the drafts.
    masks: Vec<Arc<TokenMask>>,
    /// The step's drafts, as far as the rules allow them, and the constraint's copy that has taken
    /// them all.
    drafts: Vec<Token>,
    ahead: Option<Box<dyn Constraint>>,
    /// How many of them were accepted since.
    n_right: usize,
    /// Scratch.
    again: TokenMask,
}

impl Guide {
    pub(crate) fn new(constraint: Box<dyn Constraint>) -> Self {
        Self {
            constraint,
            masks: vec![Arc::default()],
            drafts: Vec::new(),
            ahead: None,
            n_right: 0,
            again: TokenMask::default(),
        }
    }

    /// Finds what may come next and after each of the leading drafts that the rules allow, and how
    /// many those are. What would end the sequence is none of them: nothing follows there.
    pub(crate) fn look(&mut self, drafts: &[Token]) -> usize {
        self.catch_up();
        fill(&mut *self.constraint, &mut self.masks[0]);
        if !drafts.is_empty() {
            self.look_ahead(drafts);
        }
        self.drafts.len()
    }

    fn look_ahead(&mut self, drafts: &[Token]) {
        let mut ahead = self.constraint.fork();
        for (n, &draft) in drafts.iter().enumerate() {
            if !self.masks[n].allows(draft) {
                break;
            }
            if ahead.accept(draft) == Progress::Complete {
                // It has gone too far to be of use.
                return;
            }
            if self.masks.len() == n + 1 {
                self.masks.push(Arc::default());
            }
            fill(&mut *ahead, &mut self.masks[n + 1]);
            self.drafts.push(draft);
        }
        self.ahead = Some(ahead).filter(|_| !self.drafts.is_empty());
    }

    /// What may come after the first `n` drafts, as found last.
    pub(crate) fn mask(&self, n: usize) -> Arc<TokenMask> {
        Arc::clone(&self.masks[n])
    }

    pub(crate) fn accept(&mut self, token: Token) -> Progress {
        if self.drafts.get(self.n_right) == Some(&token) {
            self.n_right += 1;
            return Progress::Open;
        }
        self.catch_up();
        self.constraint.accept(token)
    }

    /// Takes the drafts that were right. What a constraint may use in all, masks use up: where the
    /// copy has not done just what is to be done, masks are found once more, so that rules which
    /// become too much for their limits do so at the same token, with drafts or without.
    fn catch_up(&mut self) {
        let ahead = self.ahead.take().filter(|_| self.n_right == self.drafts.len());
        match ahead {
            Some(ahead) => self.constraint = ahead,
            None => {
                for &draft in &self.drafts[..self.n_right] {
                    self.constraint.accept(draft);
                    self.constraint.fill(&mut self.again);
                }
            }
        }
        self.drafts.clear();
        self.n_right = 0;
    }
}

/// The memory is used again, unless the last mask is still held.
fn fill(constraint: &mut dyn Constraint, mask: &mut Arc<TokenMask>) {
    constraint.fill(Arc::make_mut(mask));
}

impl Clone for Guide {
    /// Of a guide without drafts: sequences fork before they have any.
    fn clone(&self) -> Self {
        Self::new(self.constraint.fork())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Allows even tokens; completes with 8; has a limited number of masks in it.
    #[derive(Clone, Debug)]
    struct Limited {
        n_left: u32,
    }

    impl Constraint for Limited {
        fn fill(&mut self, mask: &mut TokenMask) {
            mask.words = if self.n_left > 0 { vec![0x5555] } else { Vec::new() };
            self.n_left = self.n_left.saturating_sub(1);
        }

        fn accept(&mut self, token: Token) -> Progress {
            if token == 8 { Progress::Complete } else { Progress::Open }
        }

        fn fork(&self) -> Box<dyn Constraint> {
            Box::new(self.clone())
        }
    }

    /// Says 2 again and again, with these drafts in turn; how many until nothing is allowed.
    fn n_said(drafts: &[&[Token]]) -> usize {
        let mut guide = Guide::new(Box::new(Limited { n_left: 20 }));
        let mut n_said = 0;
        for drafts in drafts.iter().cycle() {
            let n_drafts = guide.look(drafts);
            for i in 0..=n_drafts {
                if !guide.mask(i).allows(2) {
                    return n_said;
                }
                assert_eq!(guide.accept(2), Progress::Open);
                n_said += 1;
                if drafts.get(i) != Some(&2) {
                    break;
                }
            }
        }
        n_said
    }

    #[test]
    fn limits_are_reached_at_the_same_token_with_drafts_or_without() {
        assert_eq!(n_said(&[&[]]), 20);
        assert_eq!(n_said(&[&[2, 2, 2]]), 20);
        assert_eq!(n_said(&[&[2, 4, 2], &[], &[4], &[2, 2, 4, 2]]), 20);
        assert_eq!(n_said(&[&[2, 3], &[2, 8, 2], &[8], &[3, 2]]), 20);
    }

    #[test]
    fn drafts_end_before_what_is_not_allowed_or_ends_the_sequence() {
        let mut guide = Guide::new(Box::new(Limited { n_left: 20 }));
        assert_eq!(guide.look(&[2, 4, 3, 2]), 2);
        assert_eq!(guide.look(&[2, 8, 2]), 1);
        assert_eq!(guide.look(&[8]), 0);
        assert_eq!(guide.accept(8), Progress::Complete);
    }
}
