//! What must be known of the server before it is loaded: that it is there, the model's name, and
//! its tokens.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use http::{HeaderMap, HeaderValue, header};
use paceline_cpu::quant::Rng;
use paceline_server::client::{Client, Origin};
use serde::Deserialize;
use serde_json::{Value, json};

use super::dataset::{Vocabulary, words};
use crate::cli::{BenchServeArgs, Dataset, Endpoint};

/// Where the key may come from if no flag says it.
const KEY_VARIABLE: &str = "OPENAI_API_KEY";
const MAX_BODY: usize = 64 << 20;
const PAUSE: Duration = Duration::from_millis(200);

pub(super) fn client(args: &BenchServeArgs) -> Result<Client> {
    let origin = Origin::parse(&args.base_url)?;
    // Clients of OpenAI's libraries write /v1 into the address; the endpoint has it too.
    let prefix = origin.prefix().strip_suffix("/v1").unwrap_or(origin.prefix()).to_owned();
    let mut headers = HeaderMap::new();
    let variable = || std::env::var(KEY_VARIABLE).ok().filter(|key| !key.is_empty());
    if let Some(key) = args.api_key.clone().or_else(variable) {
        let value = HeaderValue::from_str(&format!("Bearer {key}"));
        headers.insert(header::AUTHORIZATION, value.context("the API key is no header value")?);
    }
    Ok(Client::new(origin.with_prefix(&prefix), headers))
}

/// Waits until the server lists its models; returns the name to use.
pub(super) async fn model(client: &Client, args: &BenchServeArgs) -> Result<String> {
    let until = Instant::now() + Duration::from_secs(args.ready_check_timeout_sec);
    let listed = loop {
        let asked = tokio::time::timeout(Duration::from_secs(10), list_models(client)).await;
        let trouble = match asked {
            Ok(Ok(Listed::Models(names))) => break names,
            Ok(Ok(Listed::NotYet(status))) => anyhow::anyhow!("status {status} from /v1/models"),
            Ok(Err(error)) => error,
            Err(_) => anyhow::anyhow!("/v1/models does not answer"),
        };
        if Instant::now() >= until {
            return Err(trouble.context("the server is not ready"));
        }
        tokio::time::sleep(PAUSE).await;
    };
    match (&args.model, listed.first()) {
        (Some(name), _) => Ok(name.clone()),
        (None, Some(name)) => Ok(name.clone()),
        (None, None) => bail!("the server lists no model; name one with --model"),
    }
}

enum Listed {
    Models(Vec<String>),
    /// A status that may change by itself.
    NotYet(u16),
}

async fn list_models(client: &Client) -> Result<Listed> {
    let response = client.get("/v1/models").await?;
    match response.status() {
        200 => {}
        // A server without the route can be loaded if the model is named.
        404 => return Ok(Listed::Models(Vec::new())),
        status @ (429 | 500..) => return Ok(Listed::NotYet(status)),
        status => bail!("status {status} from /v1/models; is the API key right?"),
    }
    let body: Value = serde_json::from_slice(&response.bytes(MAX_BODY).await?)?;
    let models = body["data"].as_array().map_or(&[][..], Vec::as_slice);
    let names = models.iter().filter_map(|model| model["id"].as_str().map(str::to_owned));
    Ok(Listed::Models(names.collect()))
}

/// What random prompts can be made of on this server.
pub(super) async fn vocabulary(
    client: &Client,
    args: &BenchServeArgs,
    model: &str,
) -> Result<Vocabulary> {
    const N_WORDS: usize = 512;
    let unknown = Vocabulary { tokens: None, tokens_per_word: 1.0 };
    if args.data.dataset_name == Dataset::File {
        return Ok(unknown);
    }
    let text = words(N_WORDS, &mut Rng::new(1));
    let Some(tokens) = tokenize(client, model, &text).await? else {
        return Ok(unknown);
    };
    let tokens_per_word = tokens.len() as f64 / N_WORDS as f64;
    // Chats are made of text.
    let tokens = (args.endpoint == Endpoint::Completions).then_some(tokens);
    Ok(Vocabulary { tokens, tokens_per_word })
}

/// The tokens of a text, if the server tells them, as vLLM, llama-server and this one do.
async fn tokenize(client: &Client, model: &str, text: &str) -> Result<Option<Vec<u32>>> {
    #[derive(Deserialize)]
    struct Tokens {
        tokens: Vec<u32>,
    }
    let body = json!({
        "model": model, "prompt": text, "content": text, "add_special_tokens": false,
    });
    let response = client.post("/tokenize", body.to_string().into()).await?;
    if response.status() != 200 {
        return Ok(None);
    }
    let body = response.bytes(MAX_BODY).await?;
    let tokens = serde_json::from_slice::<Tokens>(&body).ok().map(|tokens| tokens.tokens);
    Ok(tokens.filter(|tokens| !tokens.is_empty()))
}
