//! A first look at an input: which lines there are, which have run already, and in what order the
//! rest should run. Keeps places of lines, not lines.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use anyhow::{Context, Result, bail};
use paceline_jobs::line::{BodyHead, ResultHead};
use paceline_jobs::lines::{Line, Lines, Span};
use paceline_jobs::order::{PrefixKey, by_prefix};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::cli::LineFormat;

/// Lines that have a result.
#[derive(Debug, Default)]
pub(super) struct Done {
    ids: HashSet<String>,
    /// Of those without an id.
    indices: HashSet<u64>,
}

impl Done {
    pub(super) fn add(&mut self, head: ResultHead) {
        match (head.custom_id, head.index) {
            (Some(id), _) => _ = self.ids.insert(id),
            (None, Some(index)) => _ = self.indices.insert(index),
            (None, None) => {}
        }
    }

    pub(super) fn has(&self, custom_id: Option<&str>, index: u64) -> bool {
        match custom_id {
            Some(id) => self.ids.contains(id),
            None => self.indices.contains(&index),
        }
    }
}

/// A line that is to run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Todo {
    /// Its line in the input, from 0.
    pub(super) index: u64,
    pub(super) span: Span,
}

/// What an input asks for.
#[derive(Debug)]
pub(super) struct Survey {
    /// In the order to run in.
    pub(super) todo: Vec<Todo>,
    /// Lines of the input that are not blank.
    pub(super) n_lines: u64,
}

/// Looks through a file. Two lines with one id could not be told apart later.
pub(super) fn survey(
    path: &Path,
    format: LineFormat,
    done: &Done,
    shuffle_by_prefix: bool,
) -> Result<Survey> {
    let context = || format!("cannot read {}", path.display());
    let mut lines = Lines::new(BufReader::new(File::open(path).with_context(context)?));
    let (mut todo, mut keys) = (Vec::new(), Vec::new());
    let mut line_of_id: HashMap<String, u64> = HashMap::new();
    let (mut index, mut n_lines) = (0, 0);
    while let Some((span, line)) = lines.next_line().with_context(context)? {
        if line != Line::Blank {
            n_lines += 1;
            let text = if let Line::Text(text) = &line { text } else { "" };
            let glance = Glance::at(text, format);
            if !done.has(glance.custom_id.as_deref(), index) {
                todo.push(Todo { index, span });
                keys.push(glance.key);
            }
            if let Some(id) = glance.custom_id
                && let Some(first) = line_of_id.insert(id, index)
            {
                let (first, second, path) = (first + 1, index + 1, path.display());
                bail!("lines {first} and {second} of {path} have the same custom_id");
            }
        }
        index += 1;
    }
    if shuffle_by_prefix {
        todo = by_prefix(&keys).into_iter().map(|place| todo[place as usize]).collect();
    }
    Ok(Survey { todo, n_lines })
}

/// What is seen of a line without reading all of it.
#[derive(Debug, Default)]
pub(super) struct Glance {
    pub(super) custom_id: Option<String>,
    key: PrefixKey,
}

#[derive(Deserialize)]
struct Signs<'a> {
    custom_id: Option<String>,
    #[serde(borrow)]
    prompt: Option<&'a RawValue>,
    #[serde(borrow)]
    messages: Option<&'a RawValue>,
    #[serde(borrow)]
    prompt_token_ids: Option<&'a RawValue>,
    #[serde(borrow)]
    body: Option<&'a RawValue>,
}

impl Glance {
    pub(super) fn at(text: &str, format: LineFormat) -> Glance {
        if format == LineFormat::Text {
            return Glance { custom_id: None, key: PrefixKey::of(text) };
        }
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let Ok(signs) = serde_json::from_str::<Signs<'_>>(text) else {
            return Glance::default();
        };
        let of_body = || BodyHead::parse(signs.body?.get()).ok().map(|head| head.prompt_text());
        let plain = signs.prompt.or(signs.messages).or(signs.prompt_token_ids);
        let prompt = plain.map(RawValue::get).or_else(of_body).unwrap_or_default();
        Glance { custom_id: signs.custom_id, key: PrefixKey::of(prompt) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn survey_of(text: &str, done: &Done) -> Result<(Vec<u64>, u64)> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("in.jsonl");
        std::fs::write(&path, text).unwrap();
        let survey = survey(&path, LineFormat::Jsonl, done, true)?;
        Ok((survey.todo.iter().map(|todo| todo.index).collect(), survey.n_lines))
    }

    #[test]
    fn what_is_done_is_not_to_do() {
        let mut done = Done::default();
        let head = |id: Option<&str>, index| ResultHead {
            custom_id: id.map(str::to_owned),
            index: Some(index),
            ..ResultHead::default()
        };
        done.add(head(Some("b"), 77));
        done.add(head(None, 4));
        let text =
            "{\"custom_id\":\"a\",\"prompt\":\"x\"}\n\n{\"custom_id\":\"b\"}\nbroken\nbroken\n";
        assert_eq!(survey_of(text, &done).unwrap(), (vec![0, 3], 4));
        assert_eq!(survey_of(text, &Done::default()).unwrap(), (vec![0, 2, 3, 4], 4));
    }

    #[test]
    fn ids_that_come_twice_are_refused() {
        let error = survey_of("{\"custom_id\":\"a\"}\n\n{\"custom_id\":\"a\"}", &Done::default());
        assert!(error.unwrap_err().to_string().starts_with("lines 1 and 3 of"));
    }

    #[test]
    fn lines_that_begin_alike_run_together() {
        let line = |start: &str| format!("{{\"prompt\":\"{}\"}}\n", start.repeat(300));
        let text = [line("a"), line("b"), line("a"), line("b")].concat();
        assert_eq!(survey_of(&text, &Done::default()).unwrap().0, [0, 2, 1, 3]);
    }
}
