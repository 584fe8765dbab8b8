//! `POST /v1/embeddings`: the served model's hidden states as vectors of length 1.

use axum::http::StatusCode;
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use paceline_engine::Token;
use serde::{Deserialize, Serialize};

use crate::asked::read_priority;
use crate::call::Call;
use crate::error::ApiError;
use crate::json::json_response;
use crate::model::Model;
use crate::prompts::read_prompts;

const INPUT: &str = "input";

/// How vectors are written.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Encoding {
    #[default]
    Float,
    /// 32-bit floats, lowest byte first.
    Base64,
}

#[derive(Serialize)]
struct Body {
    object: &'static str,
    data: Vec<Embedding>,
    model: String,
    usage: Usage,
}

#[derive(Serialize)]
struct Embedding {
    object: &'static str,
    index: usize,
    embedding: Vector,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Vector {
    Float(Vec<f32>),
    Base64(String),
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
}

/// What a request gets, however it came.
pub(crate) async fn answer(call: Call) -> Result<Response, ApiError> {
    let opened = call.open();
    let (mut fields, name) = opened.fields()?;
    let model = &opened.ready.model;
    let encoding: Encoding = fields.take("encoding_format")?.unwrap_or_default();
    check_dimensions(fields.take("dimensions")?, model)?;
    let priority = read_priority(&mut fields)?.unwrap_or_default();
    let prompts = read_prompts(&mut fields, INPUT, model, call.max_prompts())?;
    let prompts: Vec<Vec<Token>> = prompts.into_iter().map(|prompt| prompt.tokens).collect();
    if prompts.is_empty() {
        return Err(ApiError::invalid(INPUT, "input is empty"));
    }
    let n_tokens = prompts.iter().map(Vec::len).sum();
    let vectors = call.pool(prompts, priority).await.map_err(about_input)?;
    let embedding = |(index, vector): (usize, Vec<f32>)| {
        let embedding = encoding.write(normalised(vector));
        Embedding { object: "embedding", index, embedding }
    };
    let answer = Body {
        object: "list",
        data: vectors.into_iter().enumerate().map(embedding).collect(),
        model: name,
        usage: Usage { prompt_tokens: n_tokens, total_tokens: n_tokens },
    };
    Ok(json_response(StatusCode::OK, &answer))
}

/// Vectors cannot be made shorter: nothing says which part of them would do.
fn check_dimensions(asked: Option<usize>, model: &Model) -> Result<(), ApiError> {
    let n = model.served.embedding.n_dims;
    match asked {
        Some(asked) if asked != n => Err(ApiError::invalid(
            "dimensions",
            format!("dimensions is {asked}, but this model's embeddings have {n}"),
        )),
        _ => Ok(()),
    }
}

/// What other routes call the prompt is the input here.
fn about_input(error: ApiError) -> ApiError {
    match error {
        ApiError::Invalid { message, param: Some("prompt"), code } => {
            ApiError::Invalid { message, param: Some(INPUT), code }
        }
        other => other,
    }
}

/// The vector at length 1. One of zeros stays as it is.
fn normalised(mut vector: Vec<f32>) -> Vec<f32> {
    let length = vector.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
    }
    vector
}

impl Encoding {
    fn write(self, vector: Vec<f32>) -> Vector {
        match self {
            Encoding::Float => Vector::Float(vector),
            Encoding::Base64 => {
                let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
                Vector::Base64(STANDARD.encode(bytes))
            }
        }
    }
}
