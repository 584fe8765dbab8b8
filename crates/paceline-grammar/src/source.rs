//! What a grammar is made of, as it was sent.

use llguidance::api::TopLevelGrammar;
use serde_json::{Map, Value, json};

use crate::GrammarError;

/// The longest source that is taken; the largest schemas in use have about a tenth of it.
pub const MAX_SOURCE_BYTES: usize = 256 << 10;

/// White space between JSON's parts. Small models love to go on with it for ever.
const JSON_SPACE: &str = r"[\x20\x0A\x0D\x09]{1,32}";

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
}

impl Source {
    /// Bytes that were sent.
    fn len(&self) -> usize {
        match self {
            Self::JsonObject => 0,
            Self::JsonSchema { schema: text, .. } | Self::Regex(text) | Self::Lark(text) => {
                text.len()
            }
            Self::Choice(texts) => texts.iter().map(|text| text.len() + 1).sum(),
        }
    }

    pub(crate) fn to_grammar(&self) -> Result<TopLevelGrammar, GrammarError> {
        if self.len() > MAX_SOURCE_BYTES {
            return Err(GrammarError::TooLarge { len: self.len() });
        }
        Ok(match self {
            Self::JsonObject => {
                TopLevelGrammar::from_json_schema(with_options(object(), false))
            }
            Self::JsonSchema { schema, is_strict } => {
                TopLevelGrammar::from_json_schema(with_options(parse_schema(schema)?, *is_strict))
            }
            Self::Regex(regex) => TopLevelGrammar::from_regex(without_anchors(regex)),
            Self::Choice(choices) => TopLevelGrammar::from_lark(choice(choices)?),
            Self::Lark(grammar) => TopLevelGrammar::from_lark(grammar.clone()),
        })
    }

    /// A JSON schema as part of a Lark grammar: what follows `%json`.
    pub fn embedded_schema(schema: Map<String, Value>, is_strict: bool) -> String {
        Value::Object(with_options(schema, is_strict)).to_string()
    }
}

fn object() -> Map<String, Value> {
    Map::from_iter([("type".to_owned(), "object".into())])
}

fn parse_schema(text: &str) -> Result<Map<String, Value>, GrammarError> {
    match serde_json::from_str(text) {
        Ok(Value::Object(schema)) => Ok(schema),
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
