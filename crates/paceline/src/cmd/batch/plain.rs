//! Plain lines: prompts, with parameters from the line and from the flags.

use paceline::{GenerateParams, Input, Message};
use paceline_engine::derive_seed;

use super::input::{Raw, Unreadable};
use super::line::{Parsed, Work, parse};
use crate::cli::LineFormat;

/// One prompt of the input.
#[derive(Debug)]
pub(super) struct Entry {
    /// Its place among the prompts.
    pub(super) order: u64,
    /// Its line in the input, from 0.
    pub(super) index: u64,
    pub(super) custom_id: Option<String>,
    /// What to do, or why it cannot be done.
    pub(super) work: Result<Work, String>,
}

/// How lines become prompts.
#[derive(Clone, Debug)]
pub(super) struct PlainLines {
    pub(super) format: LineFormat,
    /// Put plain prompts into the chat template.
    pub(super) chat: bool,
    pub(super) system: Option<String>,
    pub(super) defaults: GenerateParams,
}

impl PlainLines {
    pub(super) fn entry(&self, raw: Raw) -> Entry {
        let Raw { order, index, text } = raw;
        let parsed = match text {
            Ok(text) => self.parse(&text, index),
            Err(Unreadable { custom_id, why }) => Parsed { custom_id, work: Err(why) },
        };
        Entry { order, index, custom_id: parsed.custom_id, work: parsed.work }
    }

    fn parse(&self, text: &str, index: u64) -> Parsed {
        let mut defaults = self.defaults.clone();
        defaults.sampling.seed = line_seed(defaults.sampling.seed, index);
        let mut parsed = match self.format {
            LineFormat::Text => Parsed {
                custom_id: None,
                work: Ok(Work { input: Input::Text(text.to_owned()), params: defaults }),
            },
            LineFormat::Jsonl | LineFormat::Openai => parse(text, defaults),
        };
        if self.chat {
            parsed.work = parsed.work.map(|work| self.as_chat(work));
        }
        parsed
    }

    /// Plain text becomes a user's question.
    fn as_chat(&self, work: Work) -> Work {
        let Input::Text(text) = work.input else { return work };
        let system = self.system.iter().map(|system| Message::new("system", system));
        let messages = system.chain([Message::new("user", text)]).collect();
        Work { input: Input::Chat(messages), ..work }
    }
}

/// Equal prompts on different lines shall not get equal answers. Two steps, because the engine
/// takes one for each of a prompt's `n` answers.
fn line_seed(seed: u64, index: u64) -> u64 {
    let line = u32::try_from(index).unwrap_or(u32::MAX).saturating_add(1);
    derive_seed(derive_seed(seed, 1), line)
}
