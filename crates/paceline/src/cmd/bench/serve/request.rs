//! One request: what is sent, and what is noted while its answer comes.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use paceline_server::client::{Client, ClientError, Response};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::dataset::{Asked, Prompt};
use super::events::EventLines;
use crate::cli::{DataArgs, Endpoint};

/// A request that is ready to be sent.
#[derive(Clone, Debug)]
pub(super) struct Prepared {
    pub(super) path: &'static str,
    pub(super) body: Bytes,
    /// What the prompt was made for; the server's own count is preferred.
    n_input: u32,
}

/// What came of a request. Times count from when it was sent.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    /// When it was sent, from the start of the run.
    pub(super) start: Duration,
    pub(super) latency: Duration,
    /// When each event with text came.
    pub(super) texts: Vec<Duration>,
    pub(super) n_input: u32,
    pub(super) n_output: u32,
    pub(super) error: Option<String>,
}

impl Outcome {
    pub(super) fn ttft(&self) -> Duration {
        self.texts.first().copied().unwrap_or(self.latency)
    }

    /// Mean seconds per token after the first; `None` where there is no second.
    pub(super) fn tpot(&self) -> Option<f64> {
        let n_gaps = self.n_output.checked_sub(1).filter(|&n| n > 0)?;
        let seconds = self.latency.saturating_sub(self.ttft()).as_secs_f64();
        Some(seconds / f64::from(n_gaps))
    }

    /// Seconds between events with text.
    pub(super) fn gaps(&self) -> impl Iterator<Item = f64> {
        self.texts.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64())
    }
}

impl Prepared {
    pub(super) fn new(endpoint: Endpoint, model: &str, asked: &Asked, data: &DataArgs) -> Prepared {
        let mut body = Map::new();
        let mut set = |name: &str, value: Value| body.insert(name.to_owned(), value);
        set("model", json!(model));
        match endpoint {
            Endpoint::Completions => {
                set("prompt", asked.prompt.json());
                set("max_tokens", json!(asked.output_len));
            }
            Endpoint::Chat => {
                set("messages", json!([{"role": "user", "content": asked.prompt.json()}]));
                set("max_completion_tokens", json!(asked.output_len));
            }
        }
        set("temperature", json!(data.temperature));
        set("stream", json!(true));
        set("stream_options", json!({"include_usage": true}));
        if data.ignore_eos {
            set("ignore_eos", json!(true));
        }
        body.extend(data.extra_body.clone().unwrap_or_default());
        Prepared {
            path: endpoint.path(),
            body: Value::Object(body).to_string().into(),
            n_input: asked.n_input,
        }
    }

    /// Sends the request and reads its answer to the end. Never fails: that is an outcome too.
    pub(super) async fn send(
        &self,
        client: &Client,
        timeout: Duration,
        origin: Instant,
    ) -> Outcome {
        let start = Instant::now();
        let mut heard = Heard { start, ..Heard::new() };
        let exchange = self.exchange(client, &mut heard);
        let result = match tokio::time::timeout(timeout, exchange).await {
            Ok(result) => result,
            Err(_) => Err(anyhow::anyhow!("no answer within {} s", timeout.as_secs())),
        };
        let usage = heard.usage.unwrap_or_default();
        let n_texts = heard.texts.len() as u32;
        Outcome {
            start: start - origin,
            latency: start.elapsed(),
            n_input: usage.prompt_tokens.unwrap_or(self.n_input),
            n_output: usage.completion_tokens.unwrap_or(n_texts),
            texts: heard.texts,
            error: result.err().map(|error| format!("{error:#}")),
        }
    }

    async fn exchange(&self, client: &Client, heard: &mut Heard) -> Result<()> {
        let mut response = client.post(self.path, self.body.clone()).await?;
        if response.status() != 200 {
            bail!(refusal(response).await?);
        }
        let mut lines = EventLines::default();
        while let Some(bytes) = response.chunk().await? {
            if !lines.push(&bytes, |event| heard.event(event)) {
                bail!("an event has no end");
            }
        }
        if let Some(error) = heard.error.take() {
            bail!(error);
        }
        if !heard.is_done {
            bail!("the stream broke off");
        }
        Ok(())
    }
}

/// What a response with another status than 200 says.
async fn refusal(response: Response) -> Result<String, ClientError> {
    const MAX_ERROR: usize = 1 << 20;
    let status = response.status();
    let body = response.bytes(MAX_ERROR).await?;
    let value: Option<Value> = serde_json::from_slice(&body).ok();
    let message = value.as_ref().and_then(|value| value["error"]["message"].as_str());
    let text = message.map_or_else(|| String::from_utf8_lossy(&body).into_owned(), str::to_owned);
    Ok(format!("status {status}: {}", text.chars().take(300).collect::<String>()))
}

/// What has been heard of an answer.
#[derive(Debug)]
struct Heard {
    start: Instant,
    texts: Vec<Duration>,
    usage: Option<Usage>,
    error: Option<String>,
    is_done: bool,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
struct Usage {
    prompt_tokens: Option<u32>,
    completion_tokens: Option<u32>,
}

/// The fields of a chunk that matter here; both routes'.
#[derive(Debug, Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
    error: Option<Value>,
}

#[derive(Debug, Deserialize)]
struct Choice {
    text: Option<String>,
    delta: Option<Delta>,
    finish_reason: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Delta {
    content: Option<String>,
    reasoning_content: Option<String>,
}

impl Choice {
    fn has_text(&self) -> bool {
        let is_some = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        is_some(&self.text)
            || self
                .delta
                .as_ref()
                .is_some_and(|delta| is_some(&delta.content) || is_some(&delta.reasoning_content))
    }
}

impl Heard {
    fn new() -> Heard {
        Heard { start: Instant::now(), texts: Vec::new(), usage: None, error: None, is_done: false }
    }

    fn event(&mut self, event: &[u8]) {
        if event == b"[DONE]" {
            self.is_done = true;
            return;
        }
        let chunk: Chunk = match serde_json::from_slice(event).context("an event is no chunk") {
            Ok(chunk) => chunk,
            Err(error) => {
                self.error.get_or_insert(format!("{error:#}"));
                return;
            }
        };
        if let Some(error) = chunk.error {
            let message =
                error["message"].as_str().map_or_else(|| error.to_string(), str::to_owned);
            self.error.get_or_insert(message);
        }
        if chunk.choices.iter().any(Choice::has_text) {
            self.texts.push(self.start.elapsed());
        }
        // Some servers end a stream without the last word.
        self.is_done |= chunk.choices.iter().any(|choice| choice.finish_reason.is_some());
        self.usage = chunk.usage.or(self.usage);
    }
}

impl Prompt {
    fn json(&self) -> Value {
        match self {
            Prompt::Text(text) => json!(text),
            Prompt::Tokens(tokens) => json!(tokens),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(events: &[&str]) -> Heard {
        let mut heard = Heard::new();
        events.iter().for_each(|event| heard.event(event.as_bytes()));
        heard
    }

    #[test]
    fn text_usage_ends_and_errors_are_heard() {
        let completion = heard(&[
            r#"{"choices": [{"text": "a", "finish_reason": null}], "usage": null}"#,
            r#"{"choices": [{"text": "", "finish_reason": "length"}]}"#,
            r#"{"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 7}}"#,
            "[DONE]",
        ]);
        assert_eq!((completion.texts.len(), completion.is_done), (1, true));
        assert_eq!(completion.usage.unwrap().completion_tokens, Some(7));
        let chat = heard(&[
            r#"{"choices": [{"delta": {"role": "assistant", "content": ""}}]}"#,
            r#"{"choices": [{"delta": {"content": "a"}}]}"#,
            r#"{"choices": [{"delta": {"reasoning_content": "b"}}]}"#,
        ]);
        assert_eq!((chat.texts.len(), chat.is_done, chat.error), (2, false, None));
        let failed = heard(&[r#"{"error": {"message": "broken", "code": null}}"#, "[DONE]"]);
        assert_eq!(failed.error.as_deref(), Some("broken"));
        assert!(heard(&["{"]).error.is_some());
    }

    #[test]
    fn a_token_alone_has_no_pace() {
        let ms = Duration::from_millis;
        let outcome = |n_output, texts: &[u64]| Outcome {
            latency: ms(110),
            texts: texts.iter().copied().map(ms).collect(),
            n_output,
            ..Outcome::default()
        };
        assert_eq!(outcome(1, &[50]).tpot(), None);
        assert_eq!(outcome(4, &[50, 70, 110]).tpot(), Some(0.02));
        assert_eq!(outcome(4, &[]).ttft(), ms(110), "an answer without text");
        assert_eq!(outcome(4, &[50, 70, 110]).gaps().count(), 2);
    }
}
