//! What a client is told when something is wrong: one enum, one place that turns it into a status
//! and OpenAI's error object.

use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use paceline_engine::SubmitError;
use paceline_jobs::JobsError;
use paceline_model::stop::StopError;
use paceline_model::template::TemplateError;
use paceline_model::tokenizer::TokenizerError;
use serde_json::{Value, json};

use crate::json::json_response;

/// Any answer that is not a result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ApiError {
    /// A field's value is wrong, or a field is missing.
    #[error("{message}")]
    Invalid { message: String, param: Option<&'static str>, code: Option<&'static str> },
    #[error("the model {name:?} is not served here; /v1/models lists what is")]
    UnknownModel { name: String },
    #[error("there is nothing at {path}")]
    UnknownPath { path: String },
    #[error("there is no {what} {id:?}")]
    Unknown { what: &'static str, id: String },
    #[error("this server keeps no files and batches; start it with --data-dir DIR to have them")]
    NoDataDir,
    #[error("{path} does not take {method}")]
    WrongMethod { method: String, path: String },
    #[error("this server needs an API key: send it as `Authorization: Bearer KEY`")]
    Unauthorized,
    #[error("the body has more than the {limit} bytes that are taken")]
    BodyTooLarge { limit: usize },
    #[error("the body did not arrive within {} seconds", .limit.as_secs())]
    BodyTimeout { limit: Duration },
    #[error("the request took longer than this server allows")]
    Timeout,
    /// Too much is going on; worth another try.
    #[error("{message}")]
    Overloaded { message: String, code: &'static str, retry_after: Duration },
    /// Loading or draining.
    #[error("{message}")]
    Unavailable { message: String },
    /// Our fault.
    #[error("{message}")]
    Internal { message: String },
}

impl ApiError {
    pub(crate) fn invalid(param: &'static str, message: impl Into<String>) -> ApiError {
        ApiError::Invalid { message: message.into(), param: Some(param), code: None }
    }

    pub(crate) fn internal(message: impl Into<String>) -> ApiError {
        ApiError::Internal { message: message.into() }
    }

    pub(crate) fn unavailable(message: impl Into<String>) -> ApiError {
        ApiError::Unavailable { message: message.into() }
    }

    pub(crate) fn status(&self) -> StatusCode {
        match self {
            ApiError::Invalid { .. } => StatusCode::BAD_REQUEST,
            ApiError::UnknownModel { .. }
            | ApiError::UnknownPath { .. }
            | ApiError::Unknown { .. }
            | ApiError::NoDataDir => StatusCode::NOT_FOUND,
            ApiError::WrongMethod { .. } => StatusCode::METHOD_NOT_ALLOWED,
            ApiError::Unauthorized => StatusCode::UNAUTHORIZED,
            ApiError::BodyTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            ApiError::BodyTimeout { .. } | ApiError::Timeout => StatusCode::REQUEST_TIMEOUT,
            ApiError::Overloaded { .. } => StatusCode::TOO_MANY_REQUESTS,
            ApiError::Unavailable { .. } => StatusCode::SERVICE_UNAVAILABLE,
            ApiError::Internal { .. } => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// OpenAI's names for kinds of errors.
    fn kind(&self) -> &'static str {
        match self {
            ApiError::Unauthorized => "authentication_error",
            ApiError::Overloaded { .. } => "rate_limit_error",
            ApiError::Unavailable { .. } => "unavailable_error",
            ApiError::Internal { .. } => "server_error",
            _ => "invalid_request_error",
        }
    }

    fn code(&self) -> Option<&'static str> {
        match self {
            ApiError::Invalid { code, .. } => *code,
            ApiError::UnknownModel { .. } => Some("model_not_found"),
            ApiError::Unauthorized => Some("invalid_api_key"),
            ApiError::Unknown { .. } => Some("not_found"),
            ApiError::NoDataDir => Some("no_data_dir"),
            ApiError::Overloaded { code, .. } => Some(code),
            _ => None,
        }
    }

    fn param(&self) -> Option<&'static str> {
        match self {
            ApiError::Invalid { param, .. } => *param,
            ApiError::UnknownModel { .. } => Some("model"),
            _ => None,
        }
    }

    /// The object clients look for, in a response's body or in a stream.
    pub(crate) fn body(&self) -> Value {
        json!({"error": {
            "message": self.to_string(),
            "type": self.kind(),
            "param": self.param(),
            "code": self.code(),
        }})
    }

    /// When to come back, if coming back makes sense.
    fn retry_after(&self) -> Option<Duration> {
        match self {
            ApiError::Overloaded { retry_after, .. } => Some(*retry_after),
            ApiError::Unavailable { .. } => Some(Duration::from_secs(1)),
            _ => None,
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = json_response(self.status(), &self.body());
        let headers = response.headers_mut();
        if let Some(wait) = self.retry_after() {
            // Whole seconds, and never none: the header has no fractions.
            let seconds = wait.as_millis().div_ceil(1000).max(1);
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds as u64));
            headers.insert("x-should-retry", HeaderValue::from_static("true"));
        }
        if self == ApiError::Unauthorized {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<JobsError> for ApiError {
    /// Paths are the operator's business: they go to the log alone.
    fn from(error: JobsError) -> ApiError {
        tracing::error!(%error, "the job store failed");
        ApiError::internal(match error {
            JobsError::Io { what, source, .. } => {
                format!("the server could not {what} a file: {source}")
            }
            _ => "the server's job store failed".to_owned(),
        })
    }
}

impl From<StopError> for ApiError {
    fn from(error: StopError) -> ApiError {
        ApiError::invalid("stop", error.to_string())
    }
}

impl From<TokenizerError> for ApiError {
    fn from(error: TokenizerError) -> ApiError {
        ApiError::Invalid { message: error.to_string(), param: None, code: None }
    }
}

impl From<TemplateError> for ApiError {
    fn from(error: TemplateError) -> ApiError {
        ApiError::invalid("messages", error.to_string())
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> ApiError {
        let message = error.to_string();
        let (param, code) = match error {
            SubmitError::QueueFull { .. } => {
                let retry_after = Duration::from_secs(1);
                return ApiError::Overloaded { message, code: "queue_full", retry_after };
            }
            SubmitError::PromptTooLong { .. } => (Some("prompt"), Some("context_length_exceeded")),
            SubmitError::EmptyPrompt | SubmitError::UnknownToken { .. } => (Some("prompt"), None),
            SubmitError::NeverFits { .. } => (Some("max_tokens"), None),
            SubmitError::InvalidParams(error) => (Some(error.name()), None),
        };
        ApiError::Invalid { message, param, code }
    }
}
