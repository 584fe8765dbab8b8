//! `/v1/models`.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};

use crate::app::App;
use crate::error::ApiError;
use crate::json::json_response;
use crate::model::Model;

pub(crate) async fn list(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let model = &app.ready()?.model;
    let data: Vec<Value> = model.served.names.iter().map(|name| card(model, name)).collect();
    Ok(json_response(StatusCode::OK, &json!({"object": "list", "data": data})))
}

/// Names may contain slashes.
pub(crate) async fn one(
    State(app): State<Arc<App>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let model = &app.ready()?.model;
    let Ok(Path(name)) = name else {
        return Err(ApiError::UnknownModel { name: "?".to_owned() });
    };
    model.check_name(Some(&name))?;
    Ok(json_response(StatusCode::OK, &card(model, &name)))
}

fn card(model: &Model, name: &str) -> Value {
    json!({
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": "paceline",
        "root": model.name(),
        "max_model_len": model.limits.max_model_len,
    })
}
