//! OpenAI's lines: one request each on the way in, one result each on the way out.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::Endpoint;

/// Longer ids are refused.
const MAX_ID_CHARS: usize = 512;

/// What is wrong with a line, or why it has no answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    pub code: Cow<'static, str>,
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub param: Option<Cow<'static, str>>,
}

impl Fault {
    pub fn new(code: &'static str, message: impl Into<String>) -> Fault {
        Fault { code: code.into(), message: message.into(), param: None }
    }

    pub fn of_param(param: &'static str, code: &'static str, message: impl Into<String>) -> Fault {
        Fault { param: Some(param.into()), ..Fault::new(code, message) }
    }
}

/// A request as it stands on a line.
#[derive(Clone, Copy, Debug)]
pub struct RequestLine<'a> {
    pub endpoint: Endpoint,
    pub body: &'a RawValue,
}

/// A line's id, as far as it has one, and its request.
#[derive(Clone, Debug)]
pub struct Parsed<'a> {
    pub custom_id: Option<String>,
    pub request: Result<RequestLine<'a>, Fault>,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(default)]
    custom_id: Value,
    #[serde(default)]
    method: Value,
    #[serde(default)]
    url: Value,
    #[serde(default, borrow)]
    body: Option<&'a RawValue>,
}

/// Reads `{"custom_id", "method", "url", "body"}`. What the body says is not looked at.
pub fn parse(text: &str) -> Parsed<'_> {
    let broken = |why: String| {
        let fault = Fault::new("invalid_json_line", format!("the line is not valid JSON: {why}"));
        Parsed { custom_id: None, request: Err(fault) }
    };
    if !text.trim_start().starts_with('{') {
        return broken("it must be an object".to_owned());
    }
    let envelope: Envelope<'_> = match serde_json::from_str(text) {
        Ok(envelope) => envelope,
        Err(error) => return broken(error.to_string()),
    };
    let custom_id = match &envelope.custom_id {
        Value::String(id) if (1..=MAX_ID_CHARS).contains(&id.chars().count()) => Some(id.clone()),
        _ => None,
    };
    let request = match custom_id {
        Some(_) => read_request(&envelope),
        None => Err(Fault::of_param(
            "custom_id",
            "invalid_custom_id",
            format!("custom_id must be a string of 1 to {MAX_ID_CHARS} characters"),
        )),
    };
    Parsed { custom_id, request }
}

fn read_request<'a>(envelope: &Envelope<'a>) -> Result<RequestLine<'a>, Fault> {
    if envelope.method != "POST" {
        return Err(Fault::of_param("method", "invalid_method", "method must be \"POST\""));
    }
    let url = envelope.url.as_str().unwrap_or_default();
    let endpoint = url.parse::<Endpoint>();
    let endpoint = endpoint.map_err(|e| Fault::of_param("url", "invalid_url", e.to_string()))?;
    match envelope.body {
        Some(body) if body.get().starts_with('{') => Ok(RequestLine { endpoint, body }),
        _ => Err(Fault::of_param("body", "invalid_request", "body must be an object")),
    }
}

/// Whether a line looks like a request in an envelope, well formed or not.
pub fn is_envelope(text: &str) -> bool {
    #[derive(Deserialize)]
    struct Signs<'a> {
        #[serde(borrow)]
        url: Option<&'a RawValue>,
        #[serde(borrow)]
        body: Option<&'a RawValue>,
    }
    serde_json::from_str::<Signs<'_>>(text)
        .is_ok_and(|signs| signs.url.is_some() || signs.body.is_some())
}

/// The parts of a body that matter before it runs.
#[derive(Debug, Default, Deserialize)]
pub struct BodyHead<'a> {
    #[serde(default, borrow)]
    pub model: Option<Cow<'a, str>>,
    #[serde(default)]
    pub stream: Option<bool>,
    #[serde(default, borrow)]
    messages: Option<&'a RawValue>,
    #[serde(default, borrow)]
    prompt: Option<&'a RawValue>,
    #[serde(default, borrow)]
    input: Option<&'a RawValue>,
}

impl<'a> BodyHead<'a> {
    /// Reads a body; a result cannot be streamed into a file.
    pub fn parse(body: &'a str) -> Result<BodyHead<'a>, Fault> {
        let head: BodyHead<'a> = serde_json::from_str(body)
            .map_err(|error| Fault::of_param("body", "invalid_request", error.to_string()))?;
        match head.stream {
            Some(true) => Err(Fault::of_param(
                "body",
                "invalid_request",
                "a line of a batch cannot be streamed; leave stream out",
            )),
            _ => Ok(head),
        }
    }

    /// The text whose beginning lines may share.
    pub fn prompt_text(&self) -> &'a str {
        let raw = self.messages.or(self.prompt).or(self.input);
        raw.map_or("", RawValue::get)
    }
}

/// A result on its way to a file.
#[derive(Debug, Serialize)]
pub struct ResultLine<'a> {
    pub id: String,
    pub custom_id: Option<&'a str>,
    pub response: Option<Response<'a>>,
    pub error: Option<&'a Fault>,
    /// The line of the input, from 0, where that is how a line is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<u64>,
}

/// What the route would have answered.
#[derive(Debug, Serialize)]
pub struct Response<'a> {
    pub status_code: u16,
    pub request_id: &'a str,
    pub body: &'a RawValue,
}

impl ResultLine<'_> {
    /// The line with its end.
    pub fn to_text(&self) -> String {
        let mut text = serde_json::to_string(self).expect("strings and raw JSON serialise");
        text.push('\n');
        text
    }
}

/// By what a result is known to belong to a line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct ResultHead {
    #[serde(default)]
    pub custom_id: Option<String>,
    #[serde(default)]
    pub index: Option<u64>,
    /// Of several lines that make up one result: which, and how many there are.
    #[serde(default)]
    pub choice: Option<u64>,
    #[serde(default)]
    pub n: Option<u64>,
}

impl ResultHead {
    /// `None` for what is no result.
    pub fn parse(line: &[u8]) -> Option<ResultHead> {
        let head: ResultHead = serde_json::from_slice(line).ok()?;
        (head.custom_id.is_some() || head.index.is_some()).then_some(head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_lines_are_told_apart() {
        let cases = [
            ("{", "invalid_json_line"),
            ("[1]", "invalid_json_line"),
            (r#"{"method":"POST","url":"/v1/completions","body":{}}"#, "invalid_custom_id"),
            (r#"{"custom_id":"","method":"POST"}"#, "invalid_custom_id"),
            (r#"{"custom_id":3,"method":"POST"}"#, "invalid_custom_id"),
            (r#"{"custom_id":"a","method":"GET","url":"/v1/completions"}"#, "invalid_method"),
            (r#"{"custom_id":"a","method":"POST","url":"/v1/images","body":{}}"#, "invalid_url"),
            (r#"{"custom_id":"a","method":"POST","body":{}}"#, "invalid_url"),
            (r#"{"custom_id":"a","method":"POST","url":"/v1/completions"}"#, "invalid_request"),
            (
                r#"{"custom_id":"a","method":"POST","url":"/v1/completions","body":[]}"#,
                "invalid_request",
            ),
        ];
        for (text, code) in cases {
            assert_eq!(parse(text).request.unwrap_err().code, code, "{text}");
        }
    }

    #[test]
    fn a_good_line_has_its_body_untouched() {
        let text = r#"{"custom_id":"a","method":"POST","url":"/v1/chat/completions",
                       "body":{"model":"m", "messages":[{"x":1}]},"more":1}"#;
        let Parsed { custom_id, request } = parse(text);
        let request = request.unwrap();
        assert_eq!(custom_id.as_deref(), Some("a"));
        assert_eq!(request.endpoint, Endpoint::ChatCompletions);
        let head = BodyHead::parse(request.body.get()).unwrap();
        assert_eq!((head.model.as_deref(), head.prompt_text()), (Some("m"), r#"[{"x":1}]"#));
        assert!(BodyHead::parse(r#"{"stream":true}"#).is_err());
        assert!(is_envelope(text) && !is_envelope(r#"{"prompt":"x"}"#) && !is_envelope("hello"));
    }

    #[test]
    fn results_are_known_again() {
        let fault = Fault::new("batch_expired", "late");
        let line = ResultLine {
            id: "batch_req_1".to_owned(),
            custom_id: Some("a\n"),
            response: None,
            error: Some(&fault),
            index: None,
        };
        let text = line.to_text();
        assert_eq!(text.lines().count(), 1);
        let head = ResultHead::parse(text.as_bytes()).unwrap();
        assert_eq!(head.custom_id.as_deref(), Some("a\n"));
        assert_eq!(ResultHead::parse(b"precious"), None);
        assert_eq!(ResultHead::parse(b"{}"), None);
    }
}
