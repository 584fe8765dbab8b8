//! What sequences have said, for guesses at what others will say.
//!
//! Whoever asks the same of many texts gets answers that are alike: the same first words, the same
//! names of fields, the same phrases. For the last few tokens of a sequence the table knows what
//! followed them last, in whichever sequence of the same tenant, and how often it did. It has a
//! fixed size; what nobody says again makes room.

use crate::ids::Token;

/// Tokens that are compared, the longer first: they say more, and are known less often.
const CONTEXTS: [usize; 2] = [4, 2];
/// Places, each of 12 bytes.
const N_ENTRIES: usize = 1 << 17;
/// A context's own past counts as much as what is known of all of its length after so many times.
const PRIOR_WEIGHT: f32 = 2.0;
/// How fast that is learned.
const LEARN: f32 = 0.02;
/// Of what was seen this often, half is forgotten.
const MOST_SEEN: u16 = 16;

/// What has followed the sequences' tokens.
#[derive(Debug)]
pub(crate) struct Said {
    /// A power of two, or none at all.
    entries: Vec<Entry>,
    /// How likely a token is to follow where it did once, for each length of context.
    prior: [f32; CONTEXTS.len()],
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// Of the context; 0 is nobody's.
    tag: u32,
    next: Token,
    /// How often the context was met since `next` is here, and how often `next` followed.
    n_met: u16,
    n_right: u16,
}

/// The end of a sequence, as far as it is looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tail {
    tenant: u64,
    tokens: [Token; CONTEXTS[0]],
    len: usize,
}

impl Tail {
    pub(crate) fn of(tenant: u64, tokens: &[Token]) -> Tail {
        let mut tail = Tail { tenant, tokens: [0; CONTEXTS[0]], len: 0 };
        let start = tokens.len().saturating_sub(CONTEXTS[0]);
        tokens[start..].iter().for_each(|&token| tail.push(token));
        tail
    }

    pub(crate) fn push(&mut self, token: Token) {
        self.tokens.rotate_left(1);
        self.tokens[CONTEXTS[0] - 1] = token;
        self.len = CONTEXTS[0].min(self.len + 1);
    }

    /// Of the last `n` tokens, if there are so many. A tenant's are told by nobody else's.
    fn hash(&self, n: usize) -> Option<u64> {
        let tokens = (n <= self.len).then(|| &self.tokens[CONTEXTS[0] - n..])?;
        let first = mixed(self.tenant ^ (n as u64) << 56);
        Some(tokens.iter().fold(first, |hash, &token| mixed(hash ^ u64::from(token))))
    }
}

impl Said {
    pub(crate) fn new(is_used: bool) -> Said {
        let n_entries = if is_used { N_ENTRIES } else { 0 };
        Said { entries: vec![Entry::default(); n_entries], prior: [0.5; CONTEXTS.len()] }
    }

    /// What is likely to follow, and how likely it is.
    pub(crate) fn guess(&self, tail: &Tail) -> Option<(Token, f32)> {
        CONTEXTS.iter().zip(self.prior).find_map(|(&n, prior)| {
            let (place, tag) = self.place(tail.hash(n)?)?;
            let entry = self.entries[place];
            (entry.tag == tag).then(|| (entry.next, entry.likely(prior)))
        })
    }

    /// Takes what has followed.
    pub(crate) fn learn(&mut self, tail: &Tail, next: Token) {
        for (i, &n) in CONTEXTS.iter().enumerate() {
            let Some((place, tag)) = tail.hash(n).and_then(|hash| self.place(hash)) else {
                continue;
            };
            let entry = &mut self.entries[place];
            if entry.tag != tag {
                entry.give_way(tag, next);
                continue;
            }
            if entry.n_met == 0 {
                let right = f32::from(u8::from(entry.next == next));
                self.prior[i] += LEARN * (right - self.prior[i]);
            }
            entry.meet(next);
        }
    }

    /// Where a context is kept, and how it is told from others there.
    fn place(&self, hash: u64) -> Option<(usize, u32)> {
        let last = self.entries.len().checked_sub(1)?;
        Some((hash as usize & last, (hash >> 32) as u32 | 1))
    }
}

impl Entry {
    fn likely(self, prior: f32) -> f32 {
        let n_right = f32::from(self.n_right) + PRIOR_WEIGHT * prior;
        n_right / (f32::from(self.n_met) + PRIOR_WEIGHT)
    }

    /// The same context again.
    fn meet(&mut self, next: Token) {
        self.n_met += 1;
        self.n_right += u16::from(self.next == next);
        if self.n_right * 2 < self.n_met {
            *self = Entry { tag: self.tag, next, ..Entry::default() };
        }
        if self.n_met == MOST_SEEN {
            self.n_met /= 2;
            self.n_right /= 2;
        }
    }

    /// Another context: takes the place, unless what is there was right more often than others
    /// have asked for it since.
    fn give_way(&mut self, tag: u32, next: Token) {
        if self.n_right > 0 {
            self.n_right -= 1;
            self.n_met -= 1;
        } else {
            *self = Entry { tag, next, ..Entry::default() };
        }
    }
}

/// Every bit depends on all below and above it.
fn mixed(bits: u64) -> u64 {
    let bits = (bits ^ bits >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits ^ bits >> 29
}

#[cfg(test)]
mod tests {
    use super::*;

    fn say(said: &mut Said, tenant: u64, tokens: &[Token]) {
        for i in 1..tokens.len() {
            said.learn(&Tail::of(tenant, &tokens[..i]), tokens[i]);
        }
    }

    fn guess(said: &Said, tenant: u64, tokens: &[Token]) -> Option<Token> {
        said.guess(&Tail::of(tenant, tokens)).map(|(token, _)| token)
    }

    #[test]
    fn what_one_has_said_is_guessed_for_another_of_the_same_tenant() {
        let mut said = Said::new(true);
        say(&mut said, 1, &[10, 11, 12, 13, 14, 15]);
        assert_eq!(guess(&said, 1, &[7, 11, 12]), Some(13), "two tokens are alike");
        assert_eq!(guess(&said, 1, &[10, 11, 12, 13]), Some(14));
        assert_eq!(guess(&said, 1, &[12]), None, "one is not enough");
        assert_eq!(guess(&said, 2, &[10, 11, 12, 13]), None, "somebody else's");
    }

    #[test]
    fn more_tokens_that_are_alike_count_before_fewer() {
        let mut said = Said::new(true);
        say(&mut said, 0, &[1, 2, 3, 4, 5]);
        say(&mut said, 0, &[8, 9, 3, 4, 6]);
        assert_eq!(guess(&said, 0, &[1, 2, 3, 4]), Some(5));
        assert_eq!(guess(&said, 0, &[3, 4]), Some(6), "the latest");
    }

    #[test]
    fn what_is_right_again_and_again_is_likely_and_what_changes_is_not() {
        let mut said = Said::new(true);
        for i in 0..40 {
            say(&mut said, 0, &[1, 2, 3]);
            say(&mut said, 0, &[4, 5, 100 + i]);
        }
        let likely = |tokens: &[Token]| said.guess(&Tail::of(0, tokens)).unwrap().1;
        assert!(likely(&[1, 2]) > 0.9, "{}", likely(&[1, 2]));
        assert!(likely(&[4, 5]) < 0.6, "{}", likely(&[4, 5]));
    }

    #[test]
    fn what_was_right_often_keeps_its_place_for_a_while() {
        let mut entry = Entry { tag: 1, next: 5, ..Entry::default() };
        (0..3).for_each(|_| entry.meet(5));
        (0..3).for_each(|_| entry.give_way(9, 6));
        assert_eq!((entry.tag, entry.next), (1, 5));
        entry.give_way(9, 6);
        assert_eq!((entry.tag, entry.next), (9, 6));
    }

    #[test]
    fn any_number_of_tokens_fits() {
        let mut said = Said::new(true);
        for i in 0..3 * N_ENTRIES as Token {
            said.learn(&Tail::of(0, &[i, i + 1, i + 2, i + 3]), i);
        }
        assert_eq!(said.entries.len(), N_ENTRIES);
        let mut none = Said::new(false);
        say(&mut none, 0, &[1, 2, 3]);
        assert_eq!(guess(&none, 0, &[1, 2]), None);
    }
}
