//! Guesses at a sequence's next tokens, from what it has said or was told before, and from what
//! [others have said](said).
//!
//! Where the last few tokens stood earlier, what followed then is likely to follow again. Such
//! drafts are computed as rows beside the sequence's own; the model's choice at each row says
//! whether the next draft was right. A wrong draft costs its row and never changes an answer,
//! since a row's result depends on its own sequence alone.
//!
//! Which drafts are worth their rows depends on how likely they are and on what rows cost. The
//! first is learned from every token, also while nothing is drafted; the second is told by the
//! caller.

mod said;

use crate::config::Drafts;
use crate::ids::Token;

pub(crate) use said::{Said, Tail};

/// Tokens at the end of a sequence that are compared: more alike than this says nothing more.
const MAX_MATCH: usize = 8;
/// How far back they are looked for.
const LOOK_BACK: usize = 4096;
/// Compared at once with the last token.
const CHUNK: usize = 16;
/// How likely a draft is to be right before anything is known of a sequence, by the number of
/// tokens that were alike (1, 2, ...).
const FIRST_LUCK: [f32; 4] = [0.15, 0.3, 0.5, 0.7];
/// How fast what is seen replaces that.
const LEARN: f32 = 0.1;
/// What is less likely than this is never worth its row.
const LEAST_LIKELY: f32 = 0.05;
/// What a draft's row costs of what a sequence's own row does: keys and values are read once for
/// all rows of a sequence.
const DRAFT_COST: f32 = 0.75;

/// Where the end of a sequence has been seen before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Match {
    /// Place of the token that followed there.
    next: usize,
    /// Tokens before it that are the same, up to [`MAX_MATCH`].
    pub(crate) length: usize,
}

/// A guess at a token, and how likely it and all before it are to be right.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Guess {
    pub(crate) token: Token,
    pub(crate) likely: f32,
}

/// How often guesses at one sequence's tokens are right.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Luck {
    by_length: [f32; FIRST_LUCK.len()],
}

impl Match {
    /// The longest one there is; of several, the latest.
    pub(crate) fn find(tokens: &[Token]) -> Option<Match> {
        let (&last, before) = tokens.split_last()?;
        let start = before.len().saturating_sub(LOOK_BACK);
        let mut end = before.len();
        let mut best: Option<Match> = None;
        for chunk in before[start..].rchunks(CHUNK) {
            end -= chunk.len();
            // Without a way out, so that it is compared as vectors.
            if !chunk.iter().fold(false, |has, &token| has | (token == last)) {
                continue;
            }
            for next in (end + 1..=end + chunk.len()).rev() {
                let length = common_end(tokens, next);
                if length > best.map_or(0, |best| best.length) {
                    best = Some(Match { next, length });
                }
                if length == MAX_MATCH {
                    return best;
                }
            }
        }
        best
    }

    /// The tokens that followed. Where the sequence's end is reached they go on with themselves:
    /// what repeats does so in a loop.
    fn following(self, tokens: &[Token]) -> impl Iterator<Item = Token> {
        tokens[self.next..].iter().copied().cycle()
    }

    /// Learns from the sequence's next token whether the match is one still, and which it is then.
    pub(crate) fn meet(self, tokens: &[Token], next: Token, luck: &mut Luck) -> Option<Match> {
        let is_right = tokens[self.next] == next;
        luck.learn(self.length, is_right);
        is_right.then(|| Match { next: self.next + 1, length: self.length + 1 })
    }
}

/// How many of the last tokens are the same as those before `next`.
fn common_end(tokens: &[Token], next: usize) -> usize {
    let pairs = tokens[..next].iter().rev().zip(tokens.iter().rev());
    pairs.take(MAX_MATCH).take_while(|(a, b)| a == b).count()
}

impl Default for Luck {
    fn default() -> Self {
        Self { by_length: FIRST_LUCK }
    }
}

impl Luck {
    /// How likely a guess is to be right.
    fn of(&self, length: usize) -> f32 {
        self.by_length[class(length)]
    }

    fn learn(&mut self, length: usize, is_right: bool) {
        let luck = &mut self.by_length[class(length)];
        *luck += LEARN * (f32::from(u8::from(is_right)) - *luck);
    }
}

/// A sequence, as far as guesses at its next tokens need it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Speaker<'a> {
    pub(crate) tenant: u64,
    pub(crate) tokens: &'a [Token],
    /// Tokens after which nothing is said.
    pub(crate) ends: &'a [Token],
    pub(crate) found: Option<Match>,
    pub(crate) luck: Luck,
}

impl Speaker<'_> {
    /// The likeliest way on, up to `most` tokens: each by the sequence's own past or by what others
    /// have said, whichever is likelier.
    pub(crate) fn guess(self, said: &Said, most: usize, guesses: &mut Vec<Guess>) {
        let mut tail = Tail::of(self.tenant, self.tokens);
        let mut own = self.found.map(|found| found.following(self.tokens).zip(found.length..));
        let mut likely = 1.0;
        for _ in 0..most {
            let next = own.as_mut().and_then(Iterator::next);
            let next = next.map(|(token, length)| (token, self.luck.of(length)));
            let Some((token, chance)) = likelier(next, said.guess(&tail)) else { return };
            likely *= chance;
            if likely < LEAST_LIKELY || self.ends.contains(&token) {
                return;
            }
            guesses.push(Guess { token, likely });
            tail.push(token);
            if next.is_some_and(|(own, _)| own != token) {
                own = None;
            }
        }
    }
}

/// The first, unless the other is likelier.
fn likelier(a: Option<(Token, f32)>, b: Option<(Token, f32)>) -> Option<(Token, f32)> {
    match (a, b) {
        (Some(a), Some(b)) => Some(if b.1 > a.1 { b } else { a }),
        _ => a.or(b),
    }
}

impl Drafts {
    /// How many of the likeliest drafts a step of `n_rows` should have: as many as bring the most
    /// tokens for its time. `likely` falls from the first to the last.
    pub(crate) fn best_count(self, n_rows: usize, likely: &[f32]) -> usize {
        let n_tokens = n_rows as f32;
        let (mut best, mut best_rate) = (0, n_tokens / self.cost(n_rows, 0));
        let mut gain = 0.0;
        for (count, likely) in (1..).zip(likely) {
            gain += likely;
            let rate = (n_tokens + gain) / self.cost(n_rows, count);
            if rate > best_rate {
                (best, best_rate) = (count, rate);
            }
        }
        best
    }

    /// What a step with drafts takes, in rows. Half of a draft's part comes with the tile of rows
    /// it lies in, for all of them at once.
    fn cost(self, n_rows: usize, n_drafts: usize) -> f32 {
        let tile = self.tile_rows.max(1) as usize;
        let in_tiles = (n_rows + n_drafts).next_multiple_of(tile) - n_rows.next_multiple_of(tile);
        let drafts = 0.5 * (n_drafts + in_tiles) as f32;
        self.base_rows as f32 + n_rows as f32 + DRAFT_COST * drafts
    }
}

fn class(length: usize) -> usize {
    length.clamp(1, FIRST_LUCK.len()) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const TILES: Drafts = Drafts { most: 5, base_rows: 16, tile_rows: 16 };

    #[test]
    fn the_longest_match_is_found_and_of_several_the_latest() {
        assert_eq!(Match::find(&[]), None);
        assert_eq!(Match::find(&[1]), None);
        assert_eq!(Match::find(&[1, 2, 3]), None);
        assert_eq!(Match::find(&[7, 1, 7, 2, 7]), Some(Match { next: 3, length: 1 }));
        assert_eq!(Match::find(&[5, 7, 1, 7, 2, 5, 7]), Some(Match { next: 2, length: 2 }));
        // A loop is as long as can be.
        assert_eq!(Match::find(&[4; 30]), Some(Match { next: 29, length: MAX_MATCH }));
    }

    #[test]
    fn a_match_is_found_wherever_it_is_in_reach() {
        for len in 2..4 * CHUNK {
            for place in 0..len - 1 {
                let mut tokens: Vec<Token> = (0..len as Token).collect();
                tokens[place] = 1000;
                tokens[len - 1] = 1000;
                assert_eq!(Match::find(&tokens), Some(Match { next: place + 1, length: 1 }));
            }
        }
        let mut tokens: Vec<Token> = (0..2 * LOOK_BACK as Token).collect();
        *tokens.last_mut().unwrap() = 5;
        assert_eq!(Match::find(&tokens), None, "too far back");
    }

    #[test]
    fn a_loop_is_expected_to_go_on() {
        let tokens = [9, 1, 2, 3, 1, 2, 3, 1, 2];
        let found = Match::find(&tokens).unwrap();
        let following: Vec<Token> = found.following(&tokens).take(7).collect();
        assert_eq!(following, [3, 1, 2, 3, 1, 2, 3]);
    }

    #[test]
    fn luck_follows_what_is_seen_by_length() {
        let mut luck = Luck::default();
        for _ in 0..50 {
            luck.learn(1, false);
            luck.learn(9, true);
        }
        assert!(luck.of(1) < 0.01 && luck.of(4) > 0.99, "{luck:?}");
        assert_eq!(luck.of(2), FIRST_LUCK[1]);
    }

    #[test]
    fn a_match_lasts_as_long_as_it_is_right() {
        let mut tokens = vec![1, 2, 3, 1, 2];
        let mut luck = Luck::default();
        let mut found = Match::find(&tokens);
        for next in [3, 1, 2, 3] {
            found = found.unwrap().meet(&tokens, next, &mut luck);
            tokens.push(next);
        }
        assert_eq!(found.unwrap().length, 6);
        assert!(luck.of(2) > FIRST_LUCK[1] && luck.of(4) > FIRST_LUCK[3]);
        let before = luck.of(4);
        assert_eq!(found.unwrap().meet(&tokens, 7, &mut luck), None);
        assert!(luck.of(4) < before);
    }

    fn guesses(tokens: &[Token], said: &Said) -> Vec<Guess> {
        let found = Match::find(tokens);
        let speaker = Speaker { tenant: 0, tokens, ends: &[10], found, luck: Luck::default() };
        let mut guesses = Vec::new();
        speaker.guess(said, 5, &mut guesses);
        guesses
    }

    #[test]
    fn guesses_are_of_what_is_likelier_the_own_past_or_what_others_said() {
        let mut said = Said::new(true);
        let own = [1, 2, 3, 4, 5, 9, 2, 3];
        let tokens_of = |guesses: &[Guess]| guesses.iter().map(|g| g.token).collect::<Vec<_>>();
        let alone = guesses(&own, &said);
        assert_eq!(tokens_of(&alone), [4, 5, 9, 2, 3]);
        assert!(alone.iter().zip(&alone[1..]).all(|(a, b)| a.likely >= b.likely), "{alone:?}");
        // Others have said another thing each time, and went on with it.
        for _ in 0..20 {
            let other = [2, 3, 6, 7];
            (1..4).for_each(|i| said.learn(&Tail::of(0, &other[..i]), other[i]));
        }
        assert_eq!(tokens_of(&guesses(&own, &said))[..2], [6, 7]);
        assert_eq!(guesses(&[8], &said), []);
        assert_eq!(guesses(&[2, 10, 3, 2], &said), [], "nothing follows an end");
    }

    #[test]
    fn few_rows_take_what_fills_a_tile_and_many_only_what_is_likely() {
        let alike = |likely: f32, n: usize| vec![likely; n];
        // Alone, a row costs little.
        assert_eq!(TILES.best_count(1, &alike(0.3, 15)), 15);
        // The seventeenth would begin a tile.
        assert_eq!(TILES.best_count(8, &alike(0.3, 20)), 8);
        assert_eq!(TILES.best_count(64, &alike(0.5, 64)), 0);
        assert_eq!(TILES.best_count(64, &alike(0.95, 64)), 64);
        // The likely ones alone, where the others do not pay.
        let mixed = [alike(0.95, 16), alike(0.2, 40)].concat();
        assert_eq!(TILES.best_count(32, &mixed), 16);
        assert_eq!(TILES.best_count(3, &[]), 0);
    }
}
