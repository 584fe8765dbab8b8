//! `POST /tokenize` and `POST /detokenize`, in vLLM's form.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use paceline_engine::Token;
use paceline_model::tokenizer::SpecialTokens;
use serde_json::json;

use crate::app::App;
use crate::call::Call;
use crate::error::ApiError;
use crate::json::json_response;
use crate::messages::read_messages;
use crate::tools::{ToolForm, Tools};

pub(crate) async fn tokenize(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let call = Call::read_light(app, request).await?;
    let opened = call.open();
    let (mut fields, _) = opened.fields()?;
    let model = &opened.ready.model;
    let tokens = if fields.has("messages") {
        let tools = Tools::read(&mut fields, ToolForm::Nested)?;
        let definitions = tools.map(|tools| tools.definitions()).unwrap_or_default();
        model.encode_chat(&read_messages(&mut fields)?, &definitions)?
    } else {
        let text: String = fields.require("prompt")?;
        match fields.take("add_special_tokens")?.unwrap_or(true) {
            true => model.encode(&text)?,
            false => model.tokenizer().encode(&text, SpecialTokens::Parse)?,
        }
    };
    let wants_texts = fields.take("return_token_strs")?.unwrap_or(false);
    let texts = wants_texts
        .then(|| tokens.iter().map(|&token| model.token_text(token)).collect::<Vec<_>>());
    let answer = json!({
        "count": tokens.len(),
        "max_model_len": model.limits.max_model_len,
        "tokens": tokens,
        "token_strs": texts,
    });
    Ok(json_response(StatusCode::OK, &answer))
}

pub(crate) async fn detokenize(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let call = Call::read_light(app, request).await?;
    let opened = call.open();
    let (mut fields, _) = opened.fields()?;
    let model = &opened.ready.model;
    let tokens: Vec<Token> = fields.require("tokens")?;
    let n_vocab = model.limits.n_vocab;
    if let Some(token) = tokens.iter().find(|&&token| token >= n_vocab) {
        let message = format!("the vocabulary has {n_vocab} tokens, so there is no token {token}");
        return Err(ApiError::invalid("tokens", message));
    }
    Ok(json_response(StatusCode::OK, &json!({"prompt": model.tokenizer().decode(&tokens)})))
}
