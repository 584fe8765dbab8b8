//! Numbers nobody can guess, without a dependency: the standard library seeds its hash maps from
//! the system's randomness.

use std::hash::{BuildHasher, RandomState};

pub(crate) fn number() -> u64 {
    RandomState::new().hash_one(0u8)
}

/// A name for a request or a response.
pub(crate) fn id() -> String {
    format!("{:016x}{:016x}", number(), number())
}

#[cfg(test)]
mod tests {
    #[test]
    fn ids_differ_and_have_one_length() {
        let ids: std::collections::HashSet<String> = (0..1000).map(|_| super::id()).collect();
        assert_eq!(ids.len(), 1000);
        assert!(ids.iter().all(|id| id.len() == 32));
    }
}
