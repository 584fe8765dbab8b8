//! JSON in and out.
//!
//! A request's fields are read one by one, so that an error can name its field, and from slices of
//! the body, so that a large array costs no tree of values first.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::error::ApiError;

/// The fields of a request that have not been looked at yet.
#[derive(Debug)]
pub(crate) struct Fields<'a>(HashMap<Cow<'a, str>, &'a RawValue>);

impl<'a> Fields<'a> {
    pub(crate) fn parse(body: &'a [u8]) -> Result<Fields<'a>, ApiError> {
        let fields = serde_json::from_slice(body).map_err(|error| {
            let message = format!("the body must be a JSON object: {error}");
            ApiError::Invalid { message, param: None, code: None }
        })?;
        Ok(Fields(fields))
    }

    /// A field's value; `None` if it is absent or null.
    pub(crate) fn take<T: Deserialize<'a>>(
        &mut self,
        name: &'static str,
    ) -> Result<Option<T>, ApiError> {
        match self.0.remove(name) {
            Some(raw) => parse(name, raw),
            None => Ok(None),
        }
    }

    /// A field whose type depends on how it is written; see [`Shape`]. Serde's own way, an untagged
    /// enum, would first build a tree of everything, which a hostile list makes ten times its size.
    pub(crate) fn take_raw(&mut self, name: &'static str) -> Option<(Shape, &'a RawValue)> {
        let raw = self.0.remove(name)?;
        Shape::of(raw).map(|shape| (shape, raw))
    }

    /// A field as it was sent, left where it is.
    pub(crate) fn look(&self, name: &str) -> Option<&'a RawValue> {
        self.0.get(name).copied()
    }

    /// One string, or a list of at most `MAX`.
    pub(crate) fn take_strings<const MAX: usize>(
        &mut self,
        name: &'static str,
    ) -> Result<Vec<String>, ApiError> {
        Ok(match self.take_raw(name) {
            None => Vec::new(),
            Some((Shape::Text, raw)) => vec![parse(name, raw)?],
            Some((_, raw)) => parse::<Short<String, MAX>>(name, raw)?.0,
        })
    }

    /// A field that must be there.
    pub(crate) fn require<T: Deserialize<'a>>(
        &mut self,
        name: &'static str,
    ) -> Result<T, ApiError> {
        let missing = || ApiError::invalid(name, format!("the field {name} is missing"));
        self.take(name)?.ok_or_else(missing)
    }

    /// Whether a field is there and not null.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|raw| raw.get() != "null")
    }
}

/// Reads a field's value; an error names the field.
pub(crate) fn parse<'a, T: Deserialize<'a>>(
    name: &'static str,
    raw: &'a RawValue,
) -> Result<T, ApiError> {
    serde_json::from_str(raw.get())
        .map_err(|error| ApiError::invalid(name, format!("{name}: {error}")))
}

/// How a value begins, which is enough to tell the forms of a field apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Text,
    Object,
    /// A list of numbers, or an empty one.
    Numbers,
    Texts,
    Lists,
    Objects,
    /// A number or a truth value.
    Scalar,
}

impl Shape {
    /// `None` for null.
    pub(crate) fn of(raw: &RawValue) -> Option<Shape> {
        let mut rest = raw.get().bytes().filter(|byte| !byte.is_ascii_whitespace());
        Some(match (rest.next(), rest.next()) {
            (Some(b'n'), _) => return None,
            (Some(b'"'), _) => Shape::Text,
            (Some(b'{'), _) => Shape::Object,
            (Some(b'['), Some(b'"')) => Shape::Texts,
            (Some(b'['), Some(b'[')) => Shape::Lists,
            (Some(b'['), Some(b'{')) => Shape::Objects,
            (Some(b'['), _) => Shape::Numbers,
            _ => Shape::Scalar,
        })
    }
}

/// A list of at most `MAX` entries. Longer ones are refused while they are read, not after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Short<T, const MAX: usize>(pub(crate) Vec<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for Short<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ShortVisitor(PhantomData))
    }
}

struct ShortVisitor<T, const MAX: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for ShortVisitor<T, MAX> {
    type Value = Short<T, MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {MAX} entries")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = seq.next_element()? {
            if entries.len() == MAX {
                return Err(de::Error::invalid_length(MAX + 1, &self));
            }
            entries.push(entry);
        }
        Ok(Short(entries))
    }
}

/// A map of at most `MAX` entries, in the order they were written.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ShortMap<T, const MAX: usize>(pub(crate) Vec<(String, T)>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for ShortMap<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ShortMapVisitor(PhantomData))
    }
}

struct ShortMapVisitor<T, const MAX: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for ShortMapVisitor<T, MAX> {
    type Value = ShortMap<T, MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object of at most {MAX} entries")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            if entries.len() == MAX {
                return Err(de::Error::invalid_length(MAX + 1, &self));
            }
            entries.push(entry);
        }
        Ok(ShortMap(entries))
    }
}

pub(crate) fn json_response(status: StatusCode, body: &impl Serialize) -> Response {
    let (status, bytes) = match serde_json::to_vec(body) {
        Ok(bytes) => (status, bytes),
        // Our types have string keys and finite numbers; this is the net under that.
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string().into_bytes()),
    };
    let mut response = Response::new(Body::from(bytes));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}
