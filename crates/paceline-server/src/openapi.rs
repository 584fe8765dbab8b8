//! `GET /openapi.json`: what the routes take and give, for programs.
//!
//! The document is written by hand (`openapi.json` beside this file); tests hold it to the router,
//! and send each of its examples.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use crate::error::ApiError;
use crate::json::json_response;

const DOCUMENT: &str = include_str!("openapi.json");

pub(crate) async fn handle() -> Response {
    match document() {
        Ok(document) => json_response(StatusCode::OK, &document),
        // A test reads the same bytes; this is the net under it.
        Err(error) => ApiError::internal(error.to_string()).into_response(),
    }
}

fn document() -> serde_json::Result<Value> {
    let mut document: Value = serde_json::from_str(DOCUMENT)?;
    document["info"]["version"] = env!("CARGO_PKG_VERSION").into();
    Ok(document)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::router::routes;

    /// `{*name}` matches slashes too, which OpenAPI has no word for.
    fn shown(path: &str) -> String {
        path.replace("{*", "{")
    }

    #[test]
    fn every_route_is_described_and_nothing_else() {
        let document = document().unwrap();
        let routes: BTreeSet<(String, String)> = routes()
            .iter()
            .map(|route| (shown(route.path), route.method.as_str().to_ascii_lowercase()))
            .collect();
        let paths = document["paths"].as_object().unwrap();
        let described: BTreeSet<(String, String)> = paths
            .iter()
            .flat_map(|(path, methods)| {
                let methods = methods.as_object().unwrap().keys();
                methods.map(move |method| (path.clone(), method.clone()))
            })
            .collect();
        assert_eq!(routes, described);
    }

    #[test]
    fn references_lead_somewhere_and_names_are_unique() {
        let document = document().unwrap();
        let mut names = BTreeSet::new();
        let mut rest = vec![&document];
        while let Some(value) = rest.pop() {
            if let Some(name) = value["operationId"].as_str() {
                assert!(names.insert(name), "{name} is there twice");
            }
            if let Some(to) = value["$ref"].as_str() {
                let to = to.strip_prefix('#').unwrap();
                assert!(document.pointer(to).is_some(), "{to} is nowhere");
            }
            match value {
                Value::Object(map) => rest.extend(map.values()),
                Value::Array(list) => rest.extend(list),
                _ => {}
            }
        }
        assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    }
}
