//! Where a queue is.

use std::fmt;
use std::str::FromStr;

use async_nats::ServerAddr;

/// The queue's name where none is given.
const DEFAULT_NAME: &str = "paceline";

const MAX_NAME: usize = 64;

/// `nats://[USER:PASSWORD@]HOST[:PORT][/NAME]`, or `tls://…`.
#[derive(Clone)]
pub struct Address {
    pub(super) server: ServerAddr,
    /// Queues with different names share nothing.
    pub(super) name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    #[error("a queue is nats://HOST:PORT, or nats://HOST:PORT/NAME, or tls:// instead of nats://")]
    Url,
    #[error("the name of a queue has 1 to {MAX_NAME} letters, digits, '-' and '_'")]
    Name,
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Address, AddressError> {
        let (scheme, rest) = text.split_once("://").ok_or(AddressError::Url)?;
        if !matches!(scheme, "nats" | "tls") {
            return Err(AddressError::Url);
        }
        let (host, name) = rest.split_once('/').unwrap_or((rest, DEFAULT_NAME));
        let server: ServerAddr =
            format!("{scheme}://{host}").parse().map_err(|_| AddressError::Url)?;
        if host.is_empty() || server.host().is_empty() {
            return Err(AddressError::Url);
        }
        let name = if name.is_empty() { DEFAULT_NAME } else { name };
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        match name.len() <= MAX_NAME && name.chars().all(is_plain) {
            true => Ok(Address { server, name: name.to_owned() }),
            false => Err(AddressError::Name),
        }
    }
}

/// Without the password: this goes to logs.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}/{}", self.server.host(), self.server.port(), self.name)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_what_is_none() {
        let long = format!("nats://h/{}", "x".repeat(65));
        let cases = [
            ("nats://localhost:4222", Ok("localhost:4222/paceline")),
            ("nats://10.0.0.1", Ok("10.0.0.1:4222/paceline")),
            ("nats://h:1/", Ok("h:1/paceline")),
            ("nats://user:secret@h:1/my-queue_2", Ok("h:1/my-queue_2")),
            ("tls://h", Ok("h:4222/paceline")),
            ("localhost:4222", Err(AddressError::Url)),
            ("http://h:1", Err(AddressError::Url)),
            ("nats://", Err(AddressError::Url)),
            ("nats://h:99999", Err(AddressError::Url)),
            ("nats://h/a.b", Err(AddressError::Name)),
            ("nats://h/a/b", Err(AddressError::Name)),
            (&long, Err(AddressError::Name)),
        ];
        for (text, expected) in cases {
            let parsed = text.parse::<Address>().map(|address| address.to_string());
            assert_eq!(parsed, expected.map(str::to_owned), "{text}");
        }
    }
}
