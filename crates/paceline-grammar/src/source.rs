//! What a grammar is made of, as it was sent.

use llguidance::api::TopLevelGrammar;
use serde_json::{Map, Value, json};

use crate::GrammarError;

/// Schemas in use have some kilobytes, a few some tens of them.
const MAX_SCHEMA_BYTES: usize = 64 << 10;
/// The memory for masks grows with the square of what can be left out, as in `a?a?a?...`.
const MAX_REGEX_BYTES: usize = 4 << 10;
const MAX_LARK_BYTES: usize = 16 << 10;
const MAX_CHOICE_BYTES: usize = 64 << 10;

/// The greatest step between numbers.
const MAX_STEP: f64 = 1e6;

/// White space between JSON's parts: a space, or a new line and its indent. Small models love to go
/// on with it for ever.
const JSON_SPACE: &str = r"\x20|\x0A[\x20\x09]{0,16}";

/// What the output must be.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// Any JSON object.
    JsonObject,
    /// JSON that a schema, given as text, allows. Strict: keywords that cannot be kept are errors;
    /// otherwise they are ignored.
    JsonSchema { schema: String, is_strict: bool },
    /// A text that a regular expression matches as a whole.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A text of a grammar in Lark's form, from its rule `start`.
    Lark(String),
    /// The same, but written by ourselves around [schemas](Source::embedded_schema).
    Composed(String),
}

impl Source {
    fn check_len(&self) -> Result<(), GrammarError> {
        let of_choices = |texts: &[String]| texts.iter().map(|text| text.len() + 1).sum();
        let (what, len, max) = match self {
            Self::JsonObject => return Ok(()),
            Self::JsonSchema { schema, .. } => ("the schema", schema.len(), MAX_SCHEMA_BYTES),
            Self::Regex(regex) => ("the regular expression", regex.len(), MAX_REGEX_BYTES),
            Self::Choice(texts) => ("the list", of_choices(texts), MAX_CHOICE_BYTES),
            Self::Lark(grammar) => ("the grammar", grammar.len(), MAX_LARK_BYTES),
            Self::Composed(grammar) => ("all together", grammar.len(), MAX_SCHEMA_BYTES),
        };
        too_large(what, len, max)
    }

    pub(crate) fn to_grammar(&self) -> Result<TopLevelGrammar, GrammarError> {
        self.check_len()?;
        Ok(match self {
            Self::JsonObject => TopLevelGrammar::from_json_schema(with_options(object(), false)),
            Self::JsonSchema { schema, is_strict } => {
                TopLevelGrammar::from_json_schema(with_options(parse_schema(schema)?, *is_strict))
            }
            Self::Regex(regex) => TopLevelGrammar::from_regex(without_anchors(regex)),
            Self::Choice(choices) => TopLevelGrammar::from_lark(choice(choices)?),
            Self::Lark(grammar) | Self::Composed(grammar) => {
                TopLevelGrammar::from_lark(grammar.clone())
            }
        })
    }

    /// A JSON schema as part of a Lark grammar: what follows `%json`.
    pub fn embedded_schema(
        schema: Map<String, Value>,
        is_strict: bool,
    ) -> Result<String, GrammarError> {
        check_fields(&schema)?;
        Ok(Value::Object(with_options(schema, is_strict)).to_string())
    }
}

fn too_large(what: &'static str, len: usize, max: usize) -> Result<(), GrammarError> {
    if len <= max { Ok(()) } else { Err(GrammarError::TooLarge { what, len, max }) }
}

/// Looks at every string, for any may be a pattern, and at every `multipleOf`, whose remainders
/// are states. A schema that was parsed is not deep.
fn check_schema(value: &Value) -> Result<(), GrammarError> {
    match value {
        Value::String(text) => too_large("a text in the schema", text.len(), MAX_REGEX_BYTES),
        Value::Array(values) => values.iter().try_for_each(check_schema),
        Value::Object(fields) => check_fields(fields),
        _ => Ok(()),
    }
}

fn check_fields(fields: &Map<String, Value>) -> Result<(), GrammarError> {
    fields.iter().try_for_each(|(name, value)| {
        too_large("a name in the schema", name.len(), MAX_REGEX_BYTES)?;
        if name == "multipleOf" && value.as_f64().is_some_and(|step| step.abs() > MAX_STEP) {
            let message = format!("multipleOf is {value}; it may be at most {MAX_STEP}");
            return Err(GrammarError::Invalid(message));
        }
        check_schema(value)
    })
}

fn object() -> Map<String, Value> {
    Map::from_iter([("type".to_owned(), "object".into())])
}

fn parse_schema(text: &str) -> Result<Map<String, Value>, GrammarError> {
    match serde_json::from_str(text) {
        Ok(Value::Object(schema)) => {
            check_fields(&schema)?;
            Ok(schema)
        }
        Ok(_) => Err(GrammarError::Invalid("a schema must be a JSON object".to_owned())),
        Err(error) => Err(GrammarError::Invalid(format!("the schema is no JSON: {error}"))),
    }
}

/// `llguidance` takes its options from inside the schema; a stranger's are replaced.
fn with_options<S: From<Map<String, Value>>>(mut schema: Map<String, Value>, is_strict: bool) -> S {
    let options = json!({"whitespace_pattern": JSON_SPACE, "lenient": !is_strict});
    schema.insert("x-guidance".to_owned(), options);
    schema.into()
}

/// The whole text must match in any case; anchors that say so are not needed.
fn without_anchors(regex: &str) -> &str {
    let regex = regex.strip_prefix('^').unwrap_or(regex);
    match regex.strip_suffix('$') {
        Some(rest) if (rest.len() - rest.trim_end_matches('\\').len()) % 2 == 0 => rest,
        _ => regex,
    }
}

fn choice(choices: &[String]) -> Result<String, GrammarError> {
    if choices.is_empty() {
        return Err(GrammarError::Invalid("there is nothing to choose from".to_owned()));
    }
    // Lark's strings are written like JSON's.
    let quoted: Vec<String> =
        choices.iter().map(|choice| Value::from(choice.as_str()).to_string()).collect();
    Ok(format!("start: {}", quoted.join(" | ")))
}
