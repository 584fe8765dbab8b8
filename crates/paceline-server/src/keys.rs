//! Who may use the server, and how much of it.
//!
//! Every key is a tenant of the engine: its own share of the steps, and its own salt in the prefix
//! cache, so that nobody can learn from timing what others have asked.

mod limits;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::http::{HeaderMap, header};
use paceline_engine::Priority;
use subtle::{Choice, ConstantTimeEq};

use crate::error::ApiError;
use limits::Limiter;
pub(crate) use limits::Share;

/// One API key and what its holder may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRule {
    /// What the log calls its holder.
    pub name: String,
    pub secret: String,
    /// Prompts that may be waiting or running at once.
    pub max_concurrent: Option<u32>,
    /// Prompt and generated tokens, on average.
    pub tokens_per_minute: Option<u32>,
    /// The highest class its requests may have; they are put there if they ask for more.
    pub highest_priority: Priority,
}

/// What is wrong with a file of keys. Never shows a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyFileError {
    #[error("line {line} has no key after the name")]
    NoSecret { line: usize },
    #[error(
        "line {line}: {name:?} is no limit; there are max_concurrent=N, tokens_per_minute=N and \
         priority=high|normal|low|batch"
    )]
    UnknownLimit { line: usize, name: String },
    #[error("line {line}: the value of {name} is not understood")]
    BadValue { line: usize, name: String },
    #[error("lines {first} and {second} have the same key")]
    Twice { first: usize, second: usize },
}

impl KeyRule {
    /// A key without limits.
    pub fn new(name: impl Into<String>, secret: impl Into<String>) -> KeyRule {
        KeyRule {
            name: name.into(),
            secret: secret.into(),
            max_concurrent: None,
            tokens_per_minute: None,
            highest_priority: Priority::High,
        }
    }

    /// Reads a file of keys: on each line `NAME KEY`, and after that any of `max_concurrent=N`,
    /// `tokens_per_minute=N` and `priority=CLASS`. Blank lines and lines that begin with `#` are
    /// skipped.
    pub fn parse_file(text: &str) -> Result<Vec<KeyRule>, KeyFileError> {
        let mut rules: Vec<(usize, KeyRule)> = Vec::new();
        for (line, text) in (1..).zip(text.lines().map(str::trim)) {
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            let rule = parse_line(line, text)?;
            if let Some((first, _)) = rules.iter().find(|(_, known)| known.secret == rule.secret) {
                return Err(KeyFileError::Twice { first: *first, second: line });
            }
            rules.push((line, rule));
        }
        Ok(rules.into_iter().map(|(_, rule)| rule).collect())
    }
}

fn parse_line(line: usize, text: &str) -> Result<KeyRule, KeyFileError> {
    let mut words = text.split_whitespace();
    let (Some(name), Some(secret)) = (words.next(), words.next()) else {
        return Err(KeyFileError::NoSecret { line });
    };
    let mut rule = KeyRule::new(name, secret);
    for word in words {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        let bad = || KeyFileError::BadValue { line, name: name.to_owned() };
        let number = || value.parse().ok().filter(|&n: &u32| n > 0).ok_or_else(bad);
        match name {
            "max_concurrent" => rule.max_concurrent = Some(number()?),
            "tokens_per_minute" => rule.tokens_per_minute = Some(number()?),
            "priority" => rule.highest_priority = value.parse().map_err(|_| bad())?,
            _ => return Err(KeyFileError::UnknownLimit { line, name: name.to_owned() }),
        }
    }
    Ok(rule)
}

/// Who sent a request.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) name: String,
    pub(crate) tenant: u64,
    pub(crate) highest_priority: Priority,
    secret: String,
    limiter: Limiter,
}

impl Caller {
    fn new(tenant: u64, rule: &KeyRule) -> Arc<Caller> {
        Arc::new(Caller {
            name: rule.name.clone(),
            tenant,
            highest_priority: rule.highest_priority,
            secret: rule.secret.clone(),
            limiter: Limiter::new(rule.max_concurrent, rule.tokens_per_minute),
        })
    }

    /// Whether another request has a chance: asked before its body is read.
    pub(crate) fn check(&self) -> Result<(), ApiError> {
        self.limiter.check()
    }

    /// Prompts it may have under way at once.
    pub(crate) fn max_concurrent(&self) -> Option<u32> {
        self.limiter.max_concurrent()
    }

    /// Takes a share for so many prompts with so many tokens.
    pub(crate) fn enter(
        self: &Arc<Caller>,
        n_prompts: u32,
        n_tokens: u64,
    ) -> Result<Share, ApiError> {
        self.limiter.enter(n_prompts, n_tokens)?;
        Ok(Share::new(Arc::clone(self), n_prompts))
    }
}

#[derive(Debug)]
pub(crate) struct Keys {
    callers: Vec<Arc<Caller>>,
    anybody: Arc<Caller>,
}

impl Keys {
    pub(crate) fn new(rules: &[KeyRule]) -> Keys {
        Keys {
            callers: (1..).zip(rules).map(|(tenant, rule)| Caller::new(tenant, rule)).collect(),
            anybody: Caller::new(0, &KeyRule::new("", "")),
        }
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

impl Keys {
    /// Whose files and jobs a caller sees; `None` is everybody's, on a server without keys.
    pub(crate) fn scope<'a>(&self, caller: &'a Caller) -> Option<&'a str> {
        (!self.callers.is_empty()).then_some(caller.name.as_str())
    }

    /// The holder of a job; `None` if its key is gone.
    pub(crate) fn holder(&self, name: &str) -> Option<Arc<Caller>> {
        match self.callers.is_empty() {
            true => Some(Arc::clone(&self.anybody)),
            false => self.callers.iter().find(|caller| caller.name == name).cloned(),
        }
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
