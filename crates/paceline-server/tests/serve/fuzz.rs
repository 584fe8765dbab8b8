//! Random requests: some are right, most are not, none may do harm.
//!
//! Bodies that each route takes are changed a little, as trees and as bytes. Every answer must be
//! a result or OpenAI's error object with a 4xx; a panic would close the connection, and the test
//! would see that. `PACELINE_FUZZ_COUNT` and `PACELINE_FUZZ_SEED` make it longer or repeat it.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::client::{Exchange, post_bytes};
use crate::harness::TestServer;

const DEFAULT_COUNT: u64 = 4000;

/// `SplitMix64`.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }

    fn one_of<'a, T: ?Sized>(&mut self, all: &[&'a T]) -> &'a T {
        all[self.below(all.len())]
    }

    fn value(&mut self, depth: usize) -> Value {
        const WORDS: [&str; 9] =
            ["", "high", "text", "the", "\u{1f600}\u{0}", "json_schema", "1", "user", "-1e400"];
        match self.below(if depth == 0 { 7 } else { 9 }) {
            0 => Value::Null,
            1 => json!(self.below(2) == 0),
            2 => json!(self.below(40) as i64 - 20),
            3 => json!((self.below(1000) as f64 - 500.0) / 7.0),
            4 => json!(u64::MAX - self.below(3) as u64),
            5 => json!(f64::MAX / (1 + self.below(9)) as f64),
            6 => json!(self.one_of(&WORDS)),
            7 => (0..self.below(4)).map(|_| self.value(depth - 1)).collect(),
            _ => {
                let n = self.below(4);
                let entry = |r: &mut Random| (r.one_of(&FIELDS).to_owned(), r.value(depth - 1));
                Value::Object((0..n).map(|_| entry(self)).collect())
            }
        }
    }
}

/// Names that mean something somewhere.
const FIELDS: [&str; 44] = [
    "model",
    "prompt",
    "prompts",
    "messages",
    "input",
    "instructions",
    "max_tokens",
    "tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "min_tokens",
    "seed",
    "n",
    "best_of",
    "logprobs",
    "top_logprobs",
    "prompt_logprobs",
    "echo",
    "suffix",
    "priority",
    "stream",
    "stream_options",
    "include_usage",
    "response_format",
    "tools",
    "tool_choice",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "type",
    "role",
    "content",
    "text",
];

/// Each route with a body it takes.
fn seeds() -> Vec<(&'static str, Value)> {
    let sampling = json!({"max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "top_k": 5,
                          "seed": 1, "stop": ["zz"], "logit_bias": {"40": 1.5}});
    let with = |own: Value| {
        let mut body = sampling.clone();
        for (name, value) in own.as_object().unwrap() {
            body[name] = value.clone();
        }
        body
    };
    let messages = json!([{"role": "system", "content": "be short"},
                          {"role": "user", "content": [{"type": "text", "text": "on"}]}]);
    vec![
        ("/v1/completions", with(json!({"prompt": ["on", "the"], "logprobs": 2, "n": 2}))),
        ("/v1/completions", with(json!({"prompt": [[5, 6], [7]], "echo": true, "stream": true}))),
        ("/v1/chat/completions", with(json!({"messages": messages, "logprobs": true}))),
        (
            "/v1/chat/completions",
            with(json!({"messages": messages, "stream": true,
                        "stream_options": {"include_usage": true}})),
        ),
        ("/v1/responses", json!({"input": messages, "instructions": "b", "max_output_tokens": 3})),
        ("/generate", with(json!({"prompt": "on"}))),
        (
            "/generate/batch",
            with(json!({"prompts": ["a", [5], {"prompt": "in", "max_tokens": 2, "seed": 4}]})),
        ),
        ("/tokenize", json!({"prompt": "in the", "return_token_strs": true})),
        ("/tokenize", json!({"messages": messages})),
        ("/detokenize", json!({"tokens": [4, 5, 6]})),
    ]
}

/// Changes one place of a tree: somewhere below, or here.
fn mutate(value: &mut Value, r: &mut Random) {
    let is_here = r.below(3) == 0;
    match value {
        Value::Object(fields) if !is_here && !fields.is_empty() => {
            let name = fields.keys().nth(r.below(fields.len())).unwrap().clone();
            match r.below(4) {
                0 => _ = fields.remove(&name),
                1 => _ = fields.insert(r.one_of(&FIELDS).to_owned(), r.value(3)),
                _ => mutate(&mut fields[&name], r),
            }
        }
        Value::Array(items) if !is_here && !items.is_empty() => {
            let at = r.below(items.len());
            match r.below(4) {
                0 => _ = items.remove(at),
                1 => {
                    let copy = items[at].clone();
                    items.extend(std::iter::repeat_n(copy, r.below(40)));
                }
                _ => mutate(&mut items[at], r),
            }
        }
        Value::Array(_) | Value::Object(_) if r.below(2) == 0 => mutate_shape(value, r),
        _ => *value = r.value(3),
    }
}

/// Puts a tree into another, or takes one out of it.
fn mutate_shape(value: &mut Value, r: &mut Random) {
    let old = value.take();
    *value = match (old, r.below(2)) {
        (old, 0) => json!([old]),
        (Value::Array(mut items), _) => items.pop().unwrap_or(Value::Null),
        (old, _) => json!({r.one_of(&FIELDS): old}),
    };
}

/// Changes a few bytes: another, one more, one less, some twice, or the end cut off.
fn mutate_bytes(bytes: &mut Vec<u8>, r: &mut Random) {
    const TELLING: &[u8] = b"{}[]\",:\\-+.eE0189 \n\0\x7f\x80\xc3\xff";
    for _ in 0..=r.below(3) {
        let at = r.below(bytes.len().max(1)).min(bytes.len());
        let byte = TELLING[r.below(TELLING.len())];
        match r.below(5) {
            0 => bytes.insert(at, byte),
            1 if at < bytes.len() => _ = bytes.remove(at),
            2 if at < bytes.len() => bytes[at] = byte,
            3 => {
                let piece = bytes[at..(at + r.below(30)).min(bytes.len())].to_vec();
                bytes.splice(at..at, piece);
            }
            _ if r.below(4) == 0 => bytes.truncate(at),
            _ => bytes.push(byte),
        }
    }
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(otherwise)
}

#[test]
fn random_requests_are_answered() {
    let server = TestServer::plain();
    let seeds = seeds();
    let first = number("PACELINE_FUZZ_SEED", 0);
    let mut statuses = BTreeMap::new();
    for seed in first..first + number("PACELINE_FUZZ_COUNT", DEFAULT_COUNT) {
        let mut r = Random(seed);
        let (path, mut body) = seeds[r.below(seeds.len())].clone();
        for _ in 0..r.below(4) {
            mutate(&mut body, &mut r);
        }
        let mut bytes = body.to_string().into_bytes();
        if r.below(4) == 0 {
            mutate_bytes(&mut bytes, &mut r);
        }
        let answer = Exchange::send(server.address, &post_bytes(path, &[], &bytes)).finish();
        let shown = String::from_utf8_lossy(&bytes);
        let is_right = [200, 400, 404].contains(&answer.status);
        assert!(is_right, "seed {seed}: {path} {shown} got {} {}", answer.status, answer.body);
        if answer.status != 200 {
            answer.error();
        }
        *statuses.entry(answer.status).or_insert(0) += 1;
    }
    let least = number("PACELINE_FUZZ_COUNT", DEFAULT_COUNT) / 5;
    assert!(statuses[&200] > least && statuses[&400] > least, "{statuses:?}");
    let well = server.post("/v1/completions", &json!({"prompt": "on", "max_tokens": 2}));
    assert_eq!(well.status, 200);
}
