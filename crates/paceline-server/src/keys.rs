//! Who may use the server.
//!
//! Every key is a tenant of the engine: its own salt in the prefix cache, so that nobody can learn
//! from timing what others have asked.

use std::sync::Arc;

use axum::http::{HeaderMap, header};
use paceline_engine::Priority;
use subtle::{Choice, ConstantTimeEq};

use crate::error::ApiError;

/// One API key and what its holder may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRule {
    /// What the log calls its holder.
    pub name: String,
    pub secret: String,
}

impl KeyRule {
    pub fn new(name: impl Into<String>, secret: impl Into<String>) -> KeyRule {
        KeyRule { name: name.into(), secret: secret.into() }
    }

    /// Reads a file of keys: on each line `NAME KEY`. Blank lines and lines that begin with `#` are
    /// skipped.
    pub fn parse_file(text: &str) -> Result<Vec<KeyRule>, KeyFileError> {
        let lines = (1..).zip(text.lines().map(str::trim));
        let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        lines.map(|(number, line)| parse_line(number, line)).collect()
    }
}

fn parse_line(line: usize, text: &str) -> Result<KeyRule, KeyFileError> {
    let mut words = text.split_whitespace();
    let (Some(name), Some(secret)) = (words.next(), words.next()) else {
        return Err(KeyFileError::NoSecret { line });
    };
    Ok(KeyRule::new(name, secret))
}

/// What is wrong with a file of keys. Never shows a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyFileError {
    #[error("line {line} has no key after the name")]
    NoSecret { line: usize },
}

/// Who sent a request.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) name: String,
    pub(crate) tenant: u64,
    /// The highest class its requests may have.
    pub(crate) least_priority: Priority,
    secret: String,
}

#[derive(Debug)]
pub(crate) struct Keys {
    callers: Vec<Arc<Caller>>,
    anybody: Arc<Caller>,
}

impl Keys {
    pub(crate) fn new(rules: &[KeyRule]) -> Keys {
        let caller = |(tenant, rule): (u64, &KeyRule)| {
            Arc::new(Caller {
                name: rule.name.clone(),
                tenant,
                least_priority: Priority::High,
                secret: rule.secret.clone(),
            })
        };
        let anybody = KeyRule { name: String::new(), secret: String::new() };
        Keys { callers: (1..).zip(rules).map(caller).collect(), anybody: caller((0, &anybody)) }
    }

    /// Whose key the headers carry. Takes as long for a wrong key as for a right one.
    pub(crate) fn caller(&self, headers: &HeaderMap) -> Result<Arc<Caller>, ApiError> {
        if self.callers.is_empty() {
            return Ok(Arc::clone(&self.anybody));
        }
        let value = headers.get(header::AUTHORIZATION).map_or(&b""[..], |value| value.as_bytes());
        let given = value.strip_prefix(b"Bearer ").unwrap_or_default();
        let mut found = None;
        for caller in &self.callers {
            if bool::from(is_equal(caller.secret.as_bytes(), given)) {
                found = Some(caller);
            }
        }
        found.cloned().ok_or(ApiError::Unauthorized)
    }
}

/// Whether two secrets are one, in a time that depends on the length of the known one alone.
fn is_equal(known: &[u8], given: &[u8]) -> Choice {
    let mut is_same = known.len().ct_eq(&given.len());
    for (i, byte) in known.iter().enumerate() {
        is_same &= byte.ct_eq(given.get(i).unwrap_or(&0));
    }
    is_same
}
