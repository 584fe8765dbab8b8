//! Which route a line is a request to.

use std::fmt;
use std::str::FromStr;

/// The routes that batches may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    ChatCompletions,
    Completions,
    Embeddings,
    Responses,
}

impl Endpoint {
    const ALL: [Endpoint; 4] = [
        Endpoint::ChatCompletions,
        Endpoint::Completions,
        Endpoint::Embeddings,
        Endpoint::Responses,
    ];

    pub fn path(self) -> &'static str {
        match self {
            Endpoint::ChatCompletions => "/v1/chat/completions",
            Endpoint::Completions => "/v1/completions",
            Endpoint::Embeddings => "/v1/embeddings",
            Endpoint::Responses => "/v1/responses",
        }
    }
}

/// A path that is no batch endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no endpoint of batches; there are /v1/chat/completions, /v1/completions, \
     /v1/embeddings and /v1/responses"
)]
pub struct UnknownEndpoint(String);

impl FromStr for Endpoint {
    type Err = UnknownEndpoint;

    fn from_str(path: &str) -> Result<Endpoint, UnknownEndpoint> {
        let found = Endpoint::ALL.into_iter().find(|endpoint| endpoint.path() == path);
        found.ok_or_else(|| UnknownEndpoint(path.chars().take(100).collect()))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.path())
    }
}
