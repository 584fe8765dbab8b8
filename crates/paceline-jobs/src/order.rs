//! The order lines run in: those that begin alike one after another, so that the engine's prefix
//! cache still has what they share.
//!
//! Only hashes of beginnings are kept, not texts. A file whose lines share nothing keeps its order.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Lengths in bytes at which beginnings are compared.
const LEVELS: [usize; 4] = [128, 512, 2048, 8192];

/// How a text begins: a hash for each level it reaches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixKey([Option<u64>; LEVELS.len()]);

impl PrefixKey {
    pub fn of(text: &str) -> PrefixKey {
        PrefixKey(LEVELS.map(|level| {
            text.as_bytes().get(..level).map(|start| {
                let mut hasher = DefaultHasher::new();
                start.hash(&mut hasher);
                hasher.finish()
            })
        }))
    }
}

/// The places `0..keys.len()`, grouped by how the texts begin, longest common beginnings closest;
/// groups come in the order of their first members.
pub fn by_prefix(keys: &[PrefixKey]) -> Vec<u32> {
    let mut first_seen: HashMap<(usize, u64), u32> = HashMap::new();
    let mut places: Vec<([u32; LEVELS.len()], u32)> = Vec::with_capacity(keys.len());
    for (place, key) in (0u32..).zip(keys) {
        let mut group = [place; LEVELS.len()];
        for (level, hash) in key.0.iter().enumerate() {
            if let Some(hash) = hash {
                group[level] = *first_seen.entry((level, *hash)).or_insert(place);
            }
        }
        places.push((group, place));
    }
    places.sort_unstable();
    places.into_iter().map(|(_, place)| place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_beginnings_come_together() {
        let long = |start: char, then: char, n: usize| {
            let mut text = start.to_string().repeat(200);
            text.push_str(&then.to_string().repeat(n));
            text
        };
        let texts = [
            long('a', 'x', 400),
            long('b', 'x', 400),
            "short".to_owned(),
            long('a', 'y', 400),
            long('b', 'x', 500),
            long('a', 'x', 401),
            "short".to_owned(),
        ];
        let keys: Vec<PrefixKey> = texts.iter().map(|text| PrefixKey::of(text)).collect();
        assert_eq!(by_prefix(&keys), [0, 5, 3, 1, 4, 2, 6]);
        assert!(by_prefix(&[]).is_empty());
    }

    #[test]
    fn nothing_shared_keeps_its_order() {
        let keys: Vec<PrefixKey> = (0..500).map(|i| PrefixKey::of(&format!("{i:0200}"))).collect();
        assert!(by_prefix(&keys).into_iter().eq(0..500));
    }
}
