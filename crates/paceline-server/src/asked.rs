//! The fields that all generating routes share, read and checked.
//!
//! Names are OpenAI's, with vLLM's additions. What a field may hold is the engine's decision
//! (`SamplingParams::validate`); here only its form is.

use std::sync::Arc;
use std::time::Duration;

use paceline_engine::{Priority, SamplingParams, Token};
use paceline_model::stop::{MAX_STOP_STRINGS, StopMatcher};
use serde::Deserialize;
use serde_json::Number;

use crate::engine::Job;
use crate::error::ApiError;
use crate::format::Format;
use crate::json::{Fields, Shape, Short, ShortMap, parse};
use crate::model::Model;
use crate::reply::TextOptions;

/// How to answer.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// `max_tokens` is set for each prompt, when its length is known.
    pub(crate) sampling: SamplingParams,
    /// The seed was asked for; otherwise each prompt gets one of its own.
    is_seeded: bool,
    /// `None`: as many as fit.
    pub(crate) max_tokens: Option<u32>,
    stop: StopMatcher,
    skip_special: bool,
    pub(crate) priority: Priority,
    pub(crate) stream: bool,
    /// Streams end with a chunk that counts tokens.
    pub(crate) include_usage: bool,
    /// The form that the answer must have.
    pub(crate) format: Option<Format>,
}

#[derive(Debug, Default, Deserialize)]
struct StreamOptions {
    #[serde(default)]
    include_usage: Option<bool>,
}

impl Asked {
    /// Takes the shared fields. Logprobs and lengths have other names on each route and are left
    /// to it.
    pub(crate) fn read(fields: &mut Fields<'_>) -> Result<Asked, ApiError> {
        let defaults = Asked {
            sampling: SamplingParams::default(),
            is_seeded: false,
            max_tokens: None,
            stop: StopMatcher::new(&[], false)?,
            skip_special: true,
            priority: Priority::Normal,
            stream: false,
            include_usage: false,
            format: None,
        };
        defaults.overridden(fields)
    }

    /// The same, but for what these fields say otherwise.
    pub(crate) fn overridden(&self, fields: &mut Fields<'_>) -> Result<Asked, ApiError> {
        let stream_options: StreamOptions = fields.take("stream_options")?.unwrap_or_default();
        let seed = read_seed(fields)?;
        let mut sampling = read_sampling(fields, &self.sampling)?;
        sampling.seed = seed.unwrap_or(sampling.seed);
        Ok(Asked {
            sampling,
            is_seeded: self.is_seeded || seed.is_some(),
            max_tokens: self.max_tokens,
            stop: read_stop(fields)?.unwrap_or_else(|| self.stop.clone()),
            skip_special: fields.take("skip_special_tokens")?.unwrap_or(self.skip_special),
            priority: read_priority(fields)?.unwrap_or(self.priority),
            stream: fields.take("stream")?.unwrap_or(self.stream),
            include_usage: stream_options.include_usage.unwrap_or(self.include_usage),
            format: Format::read(fields)?.or_else(|| self.format.clone()),
        })
    }

    /// Special tokens are shown, for those who look for them.
    pub(crate) fn show_special(&mut self) {
        self.skip_special = false;
    }

    /// The engine's half and the text's half of one prompt.
    pub(crate) fn job(&self, model: &Model, prompt: Vec<Token>) -> Result<Work, ApiError> {
        let mut sampling = self.sampling.clone();
        if !self.is_seeded {
            sampling.seed = crate::random::number();
        }
        let n_left = (model.limits.max_model_len as usize).saturating_sub(prompt.len());
        let n_left = u32::try_from(n_left).unwrap_or(u32::MAX).max(1);
        let is_silent = self.max_tokens == Some(0);
        sampling.max_tokens = self.max_tokens.unwrap_or(n_left).clamp(1, n_left);
        let ends = model.tokenizer().eos_tokens();
        let new_ends = ends.iter().filter(|end| !self.sampling.stop_tokens.contains(end));
        sampling.stop_tokens.extend(new_ends);
        let end_tokens: Arc<[Token]> =
            if sampling.ignore_eos { Arc::new([]) } else { sampling.stop_tokens.as_slice().into() };
        model.check(&prompt, &sampling)?;
        let text = TextOptions {
            stop: self.stop.clone(),
            end_tokens,
            skip_special: self.skip_special,
            n: sampling.n,
            is_silent,
        };
        let params = Arc::new(sampling);
        let format = self.format.clone();
        // Stop strings are found by whoever turns tokens into text, as they come.
        let is_whole = !self.stream && self.stop.is_empty();
        Ok(Work { prompt, params, priority: self.priority, text, format, is_whole })
    }
}

/// One prompt, ready to go.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) prompt: Vec<Token>,
    pub(crate) params: Arc<SamplingParams>,
    priority: Priority,
    pub(crate) text: TextOptions,
    pub(crate) format: Option<Format>,
    is_whole: bool,
}

impl Work {
    /// What goes to the engine. Nobody gets into a higher class than its key allows.
    pub(crate) fn into_job(self, tenant: u64, highest: Priority, timeout: Option<Duration>) -> Job {
        let Work { prompt, params, priority, is_whole, .. } = self;
        let priority = priority.max(highest);
        Job { prompt, params, priority, tenant, timeout, constraint: None, is_whole }
    }
}

fn read_stop(fields: &mut Fields<'_>) -> Result<Option<StopMatcher>, ApiError> {
    let include_stop: bool = fields.take("include_stop_str_in_output")?.unwrap_or(false);
    if !fields.has("stop") {
        return Ok(None);
    }
    let stop = fields.take_strings::<MAX_STOP_STRINGS>("stop")?;
    Ok(Some(StopMatcher::new(&stop, include_stop)?))
}

fn read_sampling(
    fields: &mut Fields<'_>,
    defaults: &SamplingParams,
) -> Result<SamplingParams, ApiError> {
    let mut float = |name, default: f32| Ok::<_, ApiError>(fields.take(name)?.unwrap_or(default));
    let params = SamplingParams {
        temperature: float("temperature", defaults.temperature)?,
        top_p: float("top_p", defaults.top_p)?,
        min_p: float("min_p", defaults.min_p)?,
        typical_p: float("typical_p", defaults.typical_p)?,
        repetition_penalty: float("repetition_penalty", defaults.repetition_penalty)?,
        presence_penalty: float("presence_penalty", defaults.presence_penalty)?,
        frequency_penalty: float("frequency_penalty", defaults.frequency_penalty)?,
        ..defaults.clone()
    };
    // -1 is how some clients say "off".
    let top_k = |top_k: i64| u32::try_from(top_k.max(0)).unwrap_or(u32::MAX);
    Ok(SamplingParams {
        n: fields.take("n")?.unwrap_or(defaults.n),
        top_k: fields.take("top_k")?.map_or(defaults.top_k, top_k),
        logit_bias: read_logit_bias(fields)?.unwrap_or(params.logit_bias),
        stop_tokens: read_stop_tokens(fields)?.unwrap_or(params.stop_tokens),
        ignore_eos: fields.take("ignore_eos")?.unwrap_or(defaults.ignore_eos),
        min_tokens: fields.take("min_tokens")?.unwrap_or(defaults.min_tokens),
        ..params
    })
}

/// A name; or a number as vLLM has them, lower first.
pub(crate) fn read_priority(fields: &mut Fields<'_>) -> Result<Option<Priority>, ApiError> {
    const NAME: &str = "priority";
    let Some((shape, raw)) = fields.take_raw(NAME) else {
        return Ok(None);
    };
    Ok(Some(match shape {
        Shape::Text => {
            let named = parse::<String>(NAME, raw)?.parse::<Priority>();
            named.map_err(|error| ApiError::invalid(NAME, format!("{NAME}: {error}")))?
        }
        _ => match parse::<i64>(NAME, raw)? {
            ..0 => Priority::High,
            0 => Priority::Normal,
            1..10 => Priority::Low,
            10.. => Priority::Batch,
        },
    }))
}

/// Any whole number is a seed.
fn read_seed(fields: &mut Fields<'_>) -> Result<Option<u64>, ApiError> {
    let Some(seed) = fields.take::<Number>("seed")? else {
        return Ok(None);
    };
    let whole = seed.as_u64().or_else(|| seed.as_i64().map(|seed| seed as u64));
    whole.map(Some).ok_or_else(|| {
        ApiError::invalid("seed", format!("seed is {seed}, but must be a whole number of 64 bits"))
    })
}

fn read_stop_tokens(fields: &mut Fields<'_>) -> Result<Option<Vec<Token>>, ApiError> {
    const MAX: usize = 32;
    let tokens: Option<Short<Token, MAX>> = fields.take("stop_token_ids")?;
    Ok(tokens.map(|Short(tokens)| tokens))
}

fn read_logit_bias(fields: &mut Fields<'_>) -> Result<Option<Vec<(Token, f32)>>, ApiError> {
    const NAME: &str = "logit_bias";
    const MAX: usize = 1024;
    let Some(ShortMap(bias)) = fields.take::<ShortMap<f32, MAX>>(NAME)? else {
        return Ok(None);
    };
    let mut entries = Vec::with_capacity(bias.len());
    for (token, value) in bias {
        let id = token.parse::<Token>().map_err(|_| {
            let token: String = token.chars().take(40).collect();
            ApiError::invalid(NAME, format!("{NAME}: {token:?} is not a token id"))
        })?;
        entries.push((id, value));
    }
    // A map has no order; sums of biases must not depend on one.
    entries.sort_unstable_by_key(|&(token, _)| token);
    Ok(Some(entries))
}
