//! What messages say: OpenAI's line one way, OpenAI's result the other.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use super::model::ModelId;
use crate::line::{self, Fault, Response, ResultLine};
use crate::runner::{Line, Outcome, Ticket};

/// The line as a message, with the model it is for if that is known.
pub(super) fn line_text(line: &Line, model: Option<&ModelId>) -> String {
    #[derive(Serialize)]
    struct Envelope<'a> {
        custom_id: &'a str,
        method: &'a str,
        url: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        model: Option<&'a ModelId>,
    }
    let (custom_id, url) = (line.custom_id.as_str(), line.endpoint.path());
    let head = serde_json::to_string(&Envelope { custom_id, method: "POST", url, model });
    let mut text = head.expect("strings serialise");
    // The body is JSON already and goes as it is.
    text.pop();
    text.push_str(",\"body\":");
    text.push_str(&line.body);
    text.push('}');
    text
}

/// The line of a message, which `sequence` tells from others, and the model it is for.
pub(super) fn parse_line(payload: &[u8], sequence: u64) -> Result<(Line, Option<ModelId>), Fault> {
    #[derive(Deserialize)]
    struct For {
        #[serde(default)]
        model: Option<ModelId>,
    }
    let no_line = |why: &str| Fault::new("invalid_json_line", why);
    let text = std::str::from_utf8(payload).map_err(|_| no_line("the line is not UTF-8"))?;
    let parsed = line::parse(text);
    let request = parsed.request?;
    let custom_id = parsed.custom_id.ok_or_else(|| no_line("the line has no custom_id"))?;
    let For { model } = serde_json::from_str(text).map_err(|error| no_line(&error.to_string()))?;
    let line = Line {
        ticket: Ticket { job: 0, line: sequence },
        owner: Arc::from(""),
        endpoint: request.endpoint,
        custom_id,
        body: request.body.get().to_owned(),
    };
    Ok((line, model))
}

/// Names a line by what it says, so that it is known again after a restart, and is another line
/// when it says something else, or to another model.
pub(super) fn key_of(line: &Line, model: Option<&ModelId>) -> String {
    let mut hash = Sha256::new();
    hash.update(line.ticket.job.to_le_bytes());
    for part in [line.endpoint.path(), &line.custom_id, &line.body] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.update(model.map_or("", |model| &model.fingerprint));
    let hash = hash.finalize();
    hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// A result as a message. `None` for a line that has not run.
pub(super) fn result_text(custom_id: Option<&str>, outcome: &Outcome) -> Option<String> {
    let (response, error) = match outcome {
        Outcome::Answered { status, request_id, body } => {
            (Some(Response { status_code: *status, request_id, body }), None)
        }
        Outcome::Broken(fault) => (None, Some(fault)),
        Outcome::Later(_) => return None,
    };
    let id = String::new();
    Some(ResultLine { id, custom_id, response, error, index: None }.to_text())
}

/// What a result says. One that says nothing known is an error of its line.
pub(super) fn parse_result(payload: &[u8]) -> Outcome {
    #[derive(Deserialize)]
    struct Answer {
        status_code: u16,
        #[serde(default)]
        request_id: String,
        body: Box<RawValue>,
    }
    #[derive(Deserialize)]
    struct Result {
        response: Option<Answer>,
        error: Option<Fault>,
    }
    let broken = |why: String| Outcome::Broken(Fault::new("server_error", why));
    match serde_json::from_slice::<Result>(payload) {
        Ok(Result { response: Some(Answer { status_code: status, request_id, body }), .. }) => {
            Outcome::Answered { status, request_id, body }
        }
        Ok(Result { error: Some(fault), .. }) => Outcome::Broken(fault),
        Ok(_) => broken("the worker's result is empty".to_owned()),
        Err(error) => broken(format!("the worker's result cannot be read: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Endpoint;
    use std::time::Duration;

    fn line(body: &str) -> Line {
        Line {
            ticket: Ticket { job: 3, line: 4 },
            owner: Arc::from("ann"),
            endpoint: Endpoint::Completions,
            custom_id: "a\"\n".to_owned(),
            body: body.to_owned(),
        }
    }

    #[test]
    fn lines_arrive_as_they_were_sent() {
        let sent = line(r#"{"prompt": "x",  "n":1}"#);
        let model = ModelId { name: "a \"b\"".to_owned(), fingerprint: "0f".to_owned() };
        let text = line_text(&sent, Some(&model));
        assert_eq!(parse_line(text.as_bytes(), 9).unwrap().1, Some(model));
        let (got, model) = parse_line(line_text(&sent, None).as_bytes(), 9).unwrap();
        assert_eq!(model, None);
        assert_eq!((got.ticket.line, &got.body), (9, &sent.body));
        assert_eq!((&got.custom_id, got.endpoint), (&sent.custom_id, sent.endpoint));
        let bad_model = text.replace("\"0f\"", "7");
        for bad in [b"{}".as_slice(), b"\xff", b"", br#"{"custom_id":"a"}"#, bad_model.as_bytes()] {
            assert!(parse_line(bad, 1).is_err());
        }
    }

    #[test]
    fn keys_tell_lines_apart_and_know_them_again() {
        let other_job = Line { ticket: Ticket { job: 4, line: 4 }, ..line(r#"{"prompt":"x"}"#) };
        let moved = Line { ticket: Ticket { job: 3, line: 77 }, ..line(r#"{"prompt":"x"}"#) };
        let same = line(r#"{"prompt":"x"}"#);
        let key = key_of(&same, None);
        assert_eq!(key, key_of(&moved, None));
        assert_ne!(key, key_of(&other_job, None));
        assert_ne!(key, key_of(&line(r#"{"prompt":"y"}"#), None));
        let model = ModelId { name: "a".to_owned(), fingerprint: "0f".to_owned() };
        assert_ne!(key, key_of(&same, Some(&model)));
        let renamed = ModelId { name: "b".to_owned(), ..model.clone() };
        assert_eq!(key_of(&same, Some(&model)), key_of(&same, Some(&renamed)));
    }

    #[test]
    fn results_arrive_as_they_were_sent() {
        let body = RawValue::from_string(r#"{"a": 1}"#.to_owned()).unwrap();
        let outcome = Outcome::Answered { status: 200, request_id: "r".to_owned(), body };
        let text = result_text(Some("a"), &outcome).unwrap();
        let Outcome::Answered { status, request_id, body } = parse_result(text.as_bytes()) else {
            panic!("{text}");
        };
        assert_eq!((status, &*request_id, body.get()), (200, "r", r#"{"a": 1}"#));
        let fault = Fault::new("server_error", "it broke");
        let text = result_text(None, &Outcome::Broken(fault.clone())).unwrap();
        assert!(matches!(parse_result(text.as_bytes()), Outcome::Broken(got) if got == fault));
        assert!(result_text(None, &Outcome::Later(Duration::ZERO)).is_none());
        for bad in [b"".as_slice(), b"{}", b"[1]", br#"{"response":{"status_code":-1}}"#] {
            assert!(matches!(parse_result(bad), Outcome::Broken(_)));
        }
    }
}
