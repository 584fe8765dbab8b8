//! The vocabulary of synthetic models: byte-level BPE with all bytes, a few merges and specials.

use serde_json::{Map, Value, json};

use crate::error::ModelError;
use crate::gguf::Metadata;

const SPECIALS: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
const BOS: u32 = 0;
const EOS: u32 = 2;

/// Common English pairs, each of tokens that exist before it. `Ġ` is how byte-level BPE spells a
/// space.
const MERGES: [(&str, &str); 12] = [
    ("Ġ", "t"),
    ("Ġ", "a"),
    ("h", "e"),
    ("i", "n"),
    ("r", "e"),
    ("o", "n"),
    ("Ġt", "he"),
    ("e", "r"),
    ("Ġ", "s"),
    ("a", "t"),
    ("in", "g"),
    ("Ġa", "n"),
];

const CHAT_TEMPLATE: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + \
    '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}\
    {{ '<|im_start|>assistant\n' }}{% endif %}";

/// Token kinds as GGUF numbers them.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const UNUSED: i32 = 5;

pub(super) struct Vocab {
    tokens: Vec<String>,
    kinds: Vec<i32>,
}

impl Vocab {
    /// A vocabulary of exactly `n_vocab` tokens; those beyond the useful ones are fillers.
    pub(super) fn new(n_vocab: usize) -> Result<Self, ModelError> {
        let mut tokens: Vec<String> = SPECIALS.iter().map(|&token| token.to_owned()).collect();
        tokens.extend(byte_letters().map(String::from));
        tokens.extend(MERGES.iter().map(|(left, right)| format!("{left}{right}")));
        if n_vocab < tokens.len() {
            return Err(ModelError::BadFigure {
                what: "the vocabulary size",
                found: n_vocab.to_string(),
                expected: format!("at least {} in a synthetic model", tokens.len()),
            });
        }
        let mut kinds = vec![NORMAL; tokens.len()];
        kinds[..SPECIALS.len()].fill(CONTROL);
        tokens.extend((tokens.len()..n_vocab).map(|i| format!("<|unused_{i}|>")));
        kinds.resize(n_vocab, UNUSED);
        Ok(Self { tokens, kinds })
    }

    pub(super) fn add_to(&self, metadata: &mut Metadata) {
        let merges: Vec<String> = MERGES.iter().map(|(l, r)| format!("{l} {r}")).collect();
        metadata.set("tokenizer.ggml.model", "gpt2");
        metadata.set("tokenizer.ggml.pre", "gpt-2");
        metadata.set("tokenizer.ggml.tokens", self.tokens.clone());
        metadata.set("tokenizer.ggml.token_type", self.kinds.clone());
        metadata.set("tokenizer.ggml.merges", merges);
        metadata.set("tokenizer.ggml.bos_token_id", BOS);
        metadata.set("tokenizer.ggml.eos_token_id", EOS);
        metadata.set("tokenizer.ggml.add_bos_token", false);
        metadata.set("tokenizer.chat_template", CHAT_TEMPLATE);
    }

    pub(super) fn tokenizer_json(&self) -> Value {
        let ids = || self.tokens.iter().enumerate();
        let vocab: Map<String, Value> = ids().map(|(i, t)| (t.clone(), i.into())).collect();
        let added: Vec<Value> = ids()
            .filter(|(i, _)| self.kinds[*i] != NORMAL)
            .map(|(id, content)| {
                json!({"id": id, "content": content, "single_word": false, "lstrip": false,
                       "rstrip": false, "normalized": false, "special": true})
            })
            .collect();
        let merges: Vec<Value> = MERGES
            .iter()
            .map(|(left, right)| json!([left, right]))
            .collect();
        let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false,
                                "trim_offsets": true, "use_regex": true});
        json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": added,
            "normalizer": null,
            "pre_tokenizer": byte_level.clone(),
            "post_processor": null,
            "decoder": byte_level,
            "model": {"type": "BPE", "dropout": null, "unk_token": null,
                      "continuing_subword_prefix": null, "end_of_word_suffix": null,
                      "fuse_unk": false, "byte_fallback": false,
                      "vocab": vocab, "merges": merges},
        })
    }

    pub(super) fn tokenizer_config(&self) -> Value {
        json!({
            "bos_token": SPECIALS[BOS as usize],
            "eos_token": SPECIALS[EOS as usize],
            "add_bos_token": false,
            "chat_template": CHAT_TEMPLATE,
        })
    }
}

/// The letter byte-level BPE writes each byte as: printable bytes stand for themselves, the others
/// for the code points from 256 on, in order.
fn byte_letters() -> impl Iterator<Item = char> {
    let mut next = 256;
    (0..=255u8).map(move |byte| match byte {
        33..=126 | 161..=172 | 174..=255 => char::from(byte),
        _ => {
            next += 1;
            char::from_u32(next - 1).unwrap_or(char::REPLACEMENT_CHARACTER)
        }
    })
}
