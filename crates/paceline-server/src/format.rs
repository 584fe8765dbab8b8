//! The fields that say what form an answer must have: OpenAI's `response_format`, vLLM's
//! `guided_*`.

use paceline_grammar::Source;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::error::ApiError;
use crate::json::{Fields, Shape, Short, parse};

const RESPONSE_FORMAT: &str = "response_format";
const MAX_CHOICES: usize = 10_000;

/// A form that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    /// The field that asked; errors name it.
    pub(crate) param: &'static str,
    pub(crate) source: Source,
}

/// Both of OpenAI's shapes: the chat's has the schema one level deeper.
#[derive(Debug, Deserialize)]
struct WireFormat<'a> {
    r#type: String,
    #[serde(borrow, default)]
    json_schema: Option<WireSchema<'a>>,
    #[serde(borrow, default)]
    schema: Option<&'a RawValue>,
    #[serde(default)]
    strict: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct WireSchema<'a> {
    #[serde(borrow, default)]
    schema: Option<&'a RawValue>,
    #[serde(default)]
    strict: Option<bool>,
}

impl Format {
    /// The form that the fields ask for; at most one may.
    pub(crate) fn read(fields: &mut Fields<'_>) -> Result<Option<Format>, ApiError> {
        let read = [
            read_format(RESPONSE_FORMAT, fields.take(RESPONSE_FORMAT)?)?,
            read_json(fields)?,
            read_text(fields, "guided_regex", Source::Regex)?,
            read_choice(fields)?,
            read_text(fields, "guided_grammar", Source::Lark)?,
        ];
        let mut read = read.into_iter().flatten();
        let first = read.next();
        match (&first, read.next()) {
            (Some(first), Some(second)) => {
                let message = format!("{} and {} exclude each other", first.param, second.param);
                Err(ApiError::invalid(second.param, message))
            }
            _ => Ok(first),
        }
    }

    /// OpenAI's word for it.
    pub(crate) fn kind(&self) -> &'static str {
        match self.source {
            Source::JsonObject => "json_object",
            Source::JsonSchema { .. } => "json_schema",
            _ => "text",
        }
    }

    /// The `text` of a response: `{"format": {...}}`.
    pub(crate) fn read_response_text(fields: &mut Fields<'_>) -> Result<Option<Format>, ApiError> {
        #[derive(Deserialize)]
        struct Text<'a> {
            #[serde(borrow, default)]
            format: Option<WireFormat<'a>>,
        }
        let text: Option<Text<'_>> = fields.take("text")?;
        read_format("text", text.and_then(|text| text.format))
    }
}

fn read_format(
    param: &'static str,
    format: Option<WireFormat<'_>>,
) -> Result<Option<Format>, ApiError> {
    let Some(format) = format else {
        return Ok(None);
    };
    let source = match format.r#type.as_str() {
        "text" => return Ok(None),
        "json_object" => Source::JsonObject,
        "json_schema" => {
            let own = WireSchema { schema: format.schema, strict: format.strict };
            let wire = format.json_schema.unwrap_or(own);
            let missing = || ApiError::invalid(param, format!("{param} has no schema"));
            let schema = wire.schema.ok_or_else(missing)?.get().to_owned();
            Source::JsonSchema { schema, is_strict: wire.strict.unwrap_or(false) }
        }
        other => {
            let other: String = other.chars().take(40).collect();
            let message = format!(
                "{param}: the type {other:?} is not known; text, json_object and json_schema are"
            );
            return Err(ApiError::invalid(param, message));
        }
    };
    Ok(Some(Format { param, source }))
}

/// A schema, as an object or as a text that holds one.
fn read_json(fields: &mut Fields<'_>) -> Result<Option<Format>, ApiError> {
    const NAME: &str = "guided_json";
    let Some((shape, raw)) = fields.take_raw(NAME) else {
        return Ok(None);
    };
    let schema = match shape {
        Shape::Text => parse(NAME, raw)?,
        _ => raw.get().to_owned(),
    };
    Ok(Some(Format { param: NAME, source: Source::JsonSchema { schema, is_strict: false } }))
}

fn read_choice(fields: &mut Fields<'_>) -> Result<Option<Format>, ApiError> {
    const NAME: &str = "guided_choice";
    let choices: Option<Short<String, MAX_CHOICES>> = fields.take(NAME)?;
    Ok(choices.map(|Short(choices)| Format { param: NAME, source: Source::Choice(choices) }))
}

fn read_text(
    fields: &mut Fields<'_>,
    param: &'static str,
    source: fn(String) -> Source,
) -> Result<Option<Format>, ApiError> {
    Ok(fields.take(param)?.map(|text| Format { param, source: source(text) }))
}
