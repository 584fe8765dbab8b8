//! One line of a JSONL input: which prompt, and how to answer it.
//!
//! Fields have their OpenAI or vLLM names. Only the form is checked here; ranges are the engine's.

#[cfg(test)]
mod tests;

use paceline::{GenerateParams, Input, Message, Priority, SamplingParams, Token};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// A prompt and how to answer it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Work {
    pub(super) input: Input,
    pub(super) params: GenerateParams,
}

/// What was on a line.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Parsed {
    pub(super) custom_id: Option<String>,
    /// The work, or a sentence about what is wrong with the line.
    pub(super) work: Result<Work, String>,
}

impl Parsed {
    pub(super) fn failed(why: impl Into<String>) -> Parsed {
        Parsed { custom_id: None, work: Err(why.into()) }
    }
}

/// Reads a line; what it leaves out comes from `defaults`.
pub(super) fn parse(text: &str, defaults: GenerateParams) -> Parsed {
    let mut fields: Map<String, Value> = match serde_json::from_str(text) {
        Ok(Value::Object(fields)) => fields,
        Ok(_) => return Parsed::failed("the line is JSON, but not an object"),
        Err(error) => return Parsed::failed(format!("the line is not valid JSON: {error}")),
    };
    let custom_id = match fields.remove("custom_id") {
        None | Some(Value::Null) => None,
        Some(Value::String(id)) => Some(id),
        Some(_) => return Parsed::failed("custom_id must be a string"),
    };
    Parsed { custom_id, work: parse_work(fields, defaults) }
}

fn parse_work(fields: Map<String, Value>, defaults: GenerateParams) -> Result<Work, String> {
    let mut builder = Builder { inputs: Vec::new(), params: defaults };
    for (name, value) in fields {
        builder.set(&name, value)?;
    }
    let mut inputs = builder.inputs.into_iter();
    match (inputs.next(), inputs.next()) {
        (Some(input), None) => Ok(Work { input, params: builder.params }),
        (None, _) => Err("the line has no prompt, prompt_token_ids or messages".to_owned()),
        (Some(_), Some(_)) => {
            Err("the line has more than one of prompt, prompt_token_ids and messages".to_owned())
        }
    }
}

struct Builder {
    inputs: Vec<Input>,
    params: GenerateParams,
}

impl Builder {
    fn set(&mut self, name: &str, value: Value) -> Result<(), String> {
        if self.set_input(name, &value)? || self.set_param(name, &value)? {
            return Ok(());
        }
        if set_sampling(&mut self.params.sampling, name, &value)? {
            return Ok(());
        }
        Err(format!("unknown field {name:?}; `paceline batch --help` lists the known ones"))
    }

    /// False if the field is no input. A field that is null counts as left out.
    fn set_input(&mut self, name: &str, value: &Value) -> Result<bool, String> {
        let input = match name {
            "prompt" => read(name, value)?.map(Input::Text),
            "prompt_token_ids" => read(name, value)?.map(Input::Tokens),
            "messages" => read(name, value)?.map(chat),
            _ => return Ok(false),
        };
        self.inputs.extend(input);
        Ok(true)
    }

    fn set_param(&mut self, name: &str, value: &Value) -> Result<bool, String> {
        let params = &mut self.params;
        match name {
            "stop" => put(&mut params.stop, read(name, value)?.map(Strings::into_vec)),
            "include_stop_str_in_output" => put(&mut params.include_stop, read(name, value)?),
            "skip_special_tokens" => {
                put(&mut params.show_special, read(name, value)?.map(|skip: bool| !skip));
            }
            "priority" => {
                let named = read::<String>(name, value)?.map(|name| name.parse::<Priority>());
                let named = named.transpose().map_err(|error| format!("{name}: {error}"))?;
                put(&mut params.priority, named);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn set_sampling(params: &mut SamplingParams, name: &str, value: &Value) -> Result<bool, String> {
    match name {
        "n" => put(&mut params.n, read(name, value)?),
        "temperature" => put(&mut params.temperature, read(name, value)?),
        "top_k" => put(&mut params.top_k, read(name, value)?.map(TopK::into_count)),
        "top_p" => put(&mut params.top_p, read(name, value)?),
        "min_p" => put(&mut params.min_p, read(name, value)?),
        "typical_p" => put(&mut params.typical_p, read(name, value)?),
        "repetition_penalty" => put(&mut params.repetition_penalty, read(name, value)?),
        "presence_penalty" => put(&mut params.presence_penalty, read(name, value)?),
        "frequency_penalty" => put(&mut params.frequency_penalty, read(name, value)?),
        "logit_bias" => {
            let bias: Option<Map<String, Value>> = read(name, value)?;
            put(&mut params.logit_bias, bias.map(logit_bias).transpose()?);
        }
        "stop_token_ids" => put(&mut params.stop_tokens, read(name, value)?),
        "ignore_eos" => put(&mut params.ignore_eos, read(name, value)?),
        "min_tokens" => put(&mut params.min_tokens, read(name, value)?),
        "max_tokens" => put(&mut params.max_tokens, read(name, value)?),
        "seed" => put(&mut params.seed, read(name, value)?),
        "logprobs" => put(&mut params.logprobs, read(name, value)?.map(Logprobs::into_count)),
        "prompt_logprobs" => {
            put(&mut params.prompt_logprobs, read(name, value)?.map(Logprobs::into_count));
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn put<T>(place: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *place = value;
    }
}

fn read<T: DeserializeOwned>(name: &str, value: &Value) -> Result<Option<T>, String> {
    Option::<T>::deserialize(value).map_err(|error| format!("{name}: {error}"))
}

fn logit_bias(map: Map<String, Value>) -> Result<Vec<(Token, f32)>, String> {
    let entry = |(token, bias): (String, Value)| {
        let id = token.parse::<Token>();
        let id = id.map_err(|_| format!("logit_bias: {token:?} is not a token id"))?;
        let bias = bias.as_f64().ok_or_else(|| format!("logit_bias: {bias} is not a number"))?;
        Ok((id, bias as f32))
    };
    map.into_iter().map(entry).collect()
}

/// A message with nothing in it that would be lost.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlainMessage {
    role: String,
    content: String,
}

fn chat(messages: Vec<PlainMessage>) -> Input {
    Input::Chat(messages.into_iter().map(|m| Message::new(m.role, m.content)).collect())
}

/// One string, or a list of them.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
enum Strings {
    One(String),
    Many(Vec<String>),
}

impl Strings {
    fn into_vec(self) -> Vec<String> {
        match self {
            Strings::One(one) => vec![one],
            Strings::Many(many) => many,
        }
    }
}

/// How many of the likeliest tokens to report; true is the chosen one alone.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a number or a boolean")]
enum Logprobs {
    Asked(bool),
    Top(u32),
}

impl Logprobs {
    fn into_count(self) -> Option<u32> {
        match self {
            Logprobs::Asked(asked) => asked.then_some(0),
            Logprobs::Top(count) => Some(count),
        }
    }
}

/// A count, or -1 for all.
#[derive(Deserialize)]
#[serde(try_from = "i64")]
struct TopK(u32);

impl TryFrom<i64> for TopK {
    type Error = String;

    fn try_from(value: i64) -> Result<TopK, String> {
        let count = if value == -1 { 0 } else { value };
        let count = u32::try_from(count);
        count.map(TopK).map_err(|_| format!("{value} is not a count, nor -1 for all tokens"))
    }
}

impl TopK {
    fn into_count(self) -> u32 {
        self.0
    }
}
