//! Ids and texts against those of the reference packages (`testdata/make_tokenizer_fixtures.py`).

use std::fs;
use std::io::Read;
use std::path::PathBuf;

use serde_json::Value;

use super::*;
use crate::gguf::Gguf;
use crate::pull::ScratchDir;

pub(crate) fn testdata(name: &str) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.join("../../testdata/tokenizer").join(name)
}

pub(crate) fn rows(name: &str) -> Vec<Value> {
    let text = fs::read_to_string(testdata(name)).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// The vocabulary in a zipped GGUF file.
pub(crate) fn vocab(name: &str) -> GgufVocab {
    let zipped = fs::File::open(testdata(&format!("{name}.zip"))).unwrap();
    let mut archive = zip::ZipArchive::new(zipped).unwrap();
    let mut bytes = Vec::new();
    archive.by_index(0).unwrap().read_to_end(&mut bytes).unwrap();
    GgufVocab::from_metadata(Gguf::parse(bytes).unwrap().metadata()).unwrap()
}

pub(crate) fn tokenizer(name: &str) -> Tokenizer {
    Tokenizer::from_vocab(vocab(name)).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

fn check_cases(tokenizer: &Tokenizer, name: &str) {
    for row in rows(name) {
        let text = row["text"].as_str().unwrap();
        let parsed = tokenizer.encode(text, SpecialTokens::Parse).unwrap();
        assert_eq!(parsed, ids(&row["parse"]), "{name} parsing {text:?}");
        assert_eq!(tokenizer.decode(&parsed), row["decoded"].as_str().unwrap(), "{text:?}");

        let literal = tokenizer.encode(text, SpecialTokens::AsText).unwrap();
        assert_eq!(literal, ids(&row["as_text"]), "{name} as text {text:?}");
        assert!(literal.iter().all(|&id| !tokenizer.is_special(id)), "{text:?}");
        assert_eq!(tokenizer.decode(&literal), text, "round trip of {text:?}");
    }
}

#[test]
fn a_checkpoint_gives_the_reference_ids() {
    let tokenizer = Tokenizer::from_dir(&testdata("bitnet-tiny")).unwrap();
    check_cases(&tokenizer, "bitnet-tiny.cases.json");
    assert_eq!(tokenizer.n_vocab(), 8192);
    assert_eq!(tokenizer.bos(), Some(1));
    assert_eq!(tokenizer.eos_tokens(), [0, 2]);
    assert!(tokenizer.chat_template().unwrap().contains("<|im_start|>"));
}

#[test]
fn the_same_vocabulary_from_gguf_gives_the_same_ids() {
    let tokenizer = tokenizer("bitnet-tiny");
    check_cases(&tokenizer, "bitnet-tiny.cases.json");
    let checkpoint = Tokenizer::from_dir(&testdata("bitnet-tiny")).unwrap();
    assert_eq!(tokenizer.chat_template(), checkpoint.chat_template());
    assert_eq!(tokenizer.eos_tokens(), checkpoint.eos_tokens());
    for id in 0..tokenizer.n_vocab() as u32 {
        assert_eq!(tokenizer.token_bytes(id), checkpoint.token_bytes(id), "token {id}");
        assert_eq!(tokenizer.is_special(id), checkpoint.is_special(id), "token {id}");
    }
}

#[test]
fn smollm2_gives_the_reference_ids() {
    let tokenizer = tokenizer("smollm2");
    check_cases(&tokenizer, "smollm2.cases.json");
    assert_eq!(tokenizer.n_vocab(), 49152);
    assert_eq!(tokenizer.eos_tokens(), [0, 2]);
    assert_eq!(tokenizer.token_id("<|im_end|>"), Some(2));
}

#[test]
fn smollm2_gives_the_ids_of_the_golden_prompts() {
    let tokenizer = tokenizer("smollm2");
    for row in rows("smollm2.golden.json") {
        let prompt = row["prompt"].as_str().unwrap();
        let encoded = tokenizer.encode_prompt(prompt, SpecialTokens::Parse).unwrap();
        assert_eq!(encoded, ids(&row["prompt_token_ids"]), "{}", row["name"]);
    }
}

#[test]
fn every_pre_tokeniser_cuts_as_its_pattern_says() {
    let text = fs::read_to_string(testdata("smollm2.patterns.json")).unwrap();
    let patterns: HashMap<String, Vec<Vec<u32>>> = serde_json::from_str(&text).unwrap();
    let strings = rows("smollm2.cases.json");
    for (name, expected) in patterns {
        let mut vocab = vocab("smollm2");
        vocab.pre = Some(name.clone());
        let tokenizer = Tokenizer::from_vocab(vocab).unwrap();
        for (row, expected) in strings.iter().zip(expected) {
            let text = row["text"].as_str().unwrap();
            let encoded = tokenizer.encode(text, SpecialTokens::AsText).unwrap();
            assert_eq!(encoded, expected, "{name}: {text:?}");
        }
    }
}

#[test]
fn sentencepiece_gives_the_reference_ids() {
    let tokenizer = tokenizer("sentencepiece");
    for row in rows("sentencepiece.cases.json") {
        let text = row["text"].as_str().unwrap();
        let encoded = tokenizer.encode(text, SpecialTokens::AsText).unwrap();
        assert_eq!(encoded, ids(&row["ids"]), "{text:?}");
        assert_eq!(tokenizer.decode(&encoded), row["decoded"].as_str().unwrap(), "{text:?}");
    }
}

#[test]
fn sentencepiece_puts_a_space_before_each_stretch_of_text() {
    let tokenizer = tokenizer("sentencepiece");
    let plain = tokenizer.encode("the", SpecialTokens::Parse).unwrap();
    let turn = tokenizer.encode("<|user|>the<|end|>", SpecialTokens::Parse).unwrap();
    let (user, end) = (tokenizer.token_id("<|user|>"), tokenizer.token_id("<|end|>"));
    let expected = [&[user.unwrap()], plain.as_slice(), &[end.unwrap()]].concat();
    assert_eq!(turn, expected);
}

#[test]
fn a_prompt_gets_bos_once_where_the_file_wants_it() {
    let sentencepiece = tokenizer("sentencepiece");
    let bos = sentencepiece.bos().unwrap();
    let bare = sentencepiece.encode("the", SpecialTokens::Parse).unwrap();
    let prompt = sentencepiece.encode_prompt("the", SpecialTokens::Parse).unwrap();
    assert_eq!(prompt, [&[bos], bare.as_slice()].concat());
    let spelled = sentencepiece.encode_prompt("<s>the", SpecialTokens::Parse).unwrap();
    assert_eq!(spelled, prompt);

    // This file has a BOS and says not to add it.
    let smollm2 = tokenizer("smollm2");
    assert_eq!(smollm2.bos(), Some(1));
    assert_eq!(smollm2.encode_prompt("The", SpecialTokens::Parse).unwrap(), [504]);

    let mut vocab = vocab("smollm2");
    (vocab.pre, vocab.add_bos, vocab.add_eos) = (Some("llama-bpe".into()), None, Some(true));
    let llama3 = Tokenizer::from_vocab(vocab).unwrap();
    assert_eq!(llama3.encode_prompt("The", SpecialTokens::Parse).unwrap(), [1, 504, 2]);
}

#[test]
fn a_checkpoints_post_processor_decides_about_bos() {
    let dir = edited_checkpoint("bos", |json| {
        json["post_processor"] = serde_json::json!({
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [],
            "special_tokens": {
                "<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]},
            },
        });
    });
    let tokenizer = Tokenizer::from_dir(dir.path()).unwrap();
    let bare = tokenizer.encode("The", SpecialTokens::Parse).unwrap();
    let prompt = tokenizer.encode_prompt("The", SpecialTokens::Parse).unwrap();
    assert_eq!(prompt, [&[1], bare.as_slice()].concat());
}

/// A copy of the checkpoint fixture with its tokenizer.json changed.
fn edited_checkpoint(name: &str, edit: impl FnOnce(&mut Value)) -> ScratchDir {
    let dir = ScratchDir::new_in(&std::env::temp_dir(), name).unwrap();
    let text = fs::read_to_string(testdata("bitnet-tiny/tokenizer.json")).unwrap();
    let mut json: Value = serde_json::from_str(&text).unwrap();
    edit(&mut json);
    fs::write(dir.path().join("tokenizer.json"), json.to_string()).unwrap();
    dir
}

#[test]
fn the_other_files_of_a_checkpoint_name_ends_and_template() {
    let dir = edited_checkpoint("ends", |_| {});
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    write("generation_config.json", r#"{"eos_token_id": [7, 9, 4000000]}"#);
    write("config.json", r#"{"bos_token_id": 1, "eos_token_id": 2}"#);
    write(
        "tokenizer_config.json",
        r#"{"eos_token": {"content": "<|endoftext|>"}, "chat_template": [
            {"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]}"#,
    );
    let tokenizer = Tokenizer::from_dir(dir.path()).unwrap();
    assert_eq!(tokenizer.eos_tokens(), [0, 2, 7, 9]);
    assert_eq!(tokenizer.bos(), Some(1));
    assert_eq!(tokenizer.chat_template(), Some("D"));

    write("chat_template.jinja", "FILE");
    let tokenizer = Tokenizer::from_dir(dir.path()).unwrap();
    assert_eq!(tokenizer.chat_template(), Some("FILE"));
}

#[test]
fn dropout_truncation_and_padding_in_a_file_have_no_effect() {
    let dir = edited_checkpoint("dropout", |json| {
        json["model"]["dropout"] = 0.9.into();
        json["truncation"] = serde_json::json!({
            "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0,
        });
        json["padding"] = serde_json::json!({
            "strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": null,
            "pad_id": 0, "pad_type_id": 0, "pad_token": "<|endoftext|>",
        });
    });
    let tokenizer = Tokenizer::from_dir(dir.path()).unwrap();
    check_cases(&tokenizer, "bitnet-tiny.cases.json");
}

#[test]
fn broken_checkpoints_are_refused_with_a_reason() {
    type Edit = fn(&mut Value);
    let edits: [(&str, Edit, &str); 5] = [
        ("type", |json| json["model"]["type"] = "Nonsense".into(), "not valid"),
        // Longer than any token: the `tokenizers` crate would panic on this one.
        (
            "merge",
            |json| json["model"]["merges"][0] = serde_json::json!(["!".repeat(500), "b"]),
            "merge 0",
        ),
        ("pair", |json| json["model"]["merges"][3] = "nospace".into(), "merge 3"),
        ("id", |json| json["model"]["vocab"]["!"] = 4_000_000_000u64.into(), "beyond"),
        ("model", |json| json["model"] = Value::Null, "not valid"),
    ];
    for (name, edit, words) in edits {
        let dir = edited_checkpoint(name, edit);
        let error = Tokenizer::from_dir(dir.path()).unwrap_err().to_string();
        assert!(error.contains(words), "{name}: {error}");
    }
    let empty = ScratchDir::new_in(&std::env::temp_dir(), "empty").unwrap();
    let error = Tokenizer::from_dir(empty.path()).unwrap_err();
    assert!(matches!(error, TokenizerError::NoTokenizerJson { .. }), "{error}");
    fs::write(empty.path().join("tokenizer.json"), "{").unwrap();
    let error = Tokenizer::from_dir(empty.path()).unwrap_err();
    assert!(matches!(error, TokenizerError::Invalid(_)), "{error}");
}

#[test]
fn broken_gguf_vocabularies_are_refused_with_a_reason() {
    type Edit = fn(&mut GgufVocab);
    let edits: [(&str, Edit, &str); 7] = [
        ("sentencepiece", |v| v.model = "bert".into(), "kind `bert`"),
        ("sentencepiece", |v| v.scores.clear(), "tokenizer.ggml.scores"),
        ("sentencepiece", |v| v.scores[9] = f32::NAN, "score of token 9"),
        ("sentencepiece", |v| v.tokens[300] = "x".repeat(2000), "token 300 has 2000 bytes"),
        ("sentencepiece", |v| v.types.truncate(5), "tokenizer.ggml.token_type"),
        ("bitnet-tiny", |v| v.merges[2] = "nospace".into(), "merge 2"),
        ("bitnet-tiny", |v| (v.tokens, v.types) = (vec![], vec![]), "empty"),
    ];
    for (name, edit, words) in edits {
        let mut vocab = vocab(name);
        edit(&mut vocab);
        let error = Tokenizer::from_vocab(vocab).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn odd_gguf_vocabularies_still_work() {
    let mut vocab = vocab("bitnet-tiny");
    vocab.pre = Some("a-name-of-tomorrow".into());
    vocab.merges.push("ThisIs Unknown".into());
    vocab.eos = Some(u32::MAX);
    vocab.tokens[100] = vocab.tokens[99].clone();
    let tokenizer = Tokenizer::from_vocab(vocab).unwrap();
    let ids = tokenizer.encode("plain words", SpecialTokens::Parse).unwrap();
    assert_eq!(tokenizer.decode(&ids), "plain words");
    assert_eq!(tokenizer.eos_tokens(), [0, 2]);
    assert_eq!(tokenizer.token_bytes(u32::MAX).as_ref(), b"");
    assert!(!tokenizer.is_special(u32::MAX));
}

#[test]
fn user_defined_tokens_are_found_in_any_text_and_are_no_specials() {
    let mut vocab = vocab("bitnet-tiny");
    let id = vocab.tokens.len() as u32;
    vocab.tokens.push("<tool café>".into());
    vocab.types.push(4);
    let tokenizer = Tokenizer::from_vocab(vocab).unwrap();
    let text = "a <tool café> b";
    for special in [SpecialTokens::Parse, SpecialTokens::AsText] {
        let ids = tokenizer.encode(text, special).unwrap();
        assert!(ids.contains(&id));
        assert_eq!(tokenizer.decode(&ids), text);
    }
}

#[test]
fn a_text_beyond_the_limit_is_refused() {
    let tokenizer = tokenizer("bitnet-tiny");
    let long = "a".repeat(MAX_TEXT_BYTES + 1);
    let error = tokenizer.encode(&long, SpecialTokens::Parse).unwrap_err();
    assert!(matches!(error, TokenizerError::TextTooLong { .. }), "{error}");
}

#[test]
fn long_runs_of_one_character_are_cut_as_short_ones() {
    let tokenizer = tokenizer("smollm2");
    for unit in [" ", "\n", "a", "9", "!", "é", " a"] {
        let text = unit.repeat(300_000 / unit.len());
        let ids = tokenizer.encode(&text, SpecialTokens::AsText).unwrap();
        assert_eq!(tokenizer.decode(&ids), text, "{unit:?}");
    }
    let text = format!("{}x 1", " ".repeat(MAX_SPACE_RUN));
    let ids = tokenizer.encode(&text, SpecialTokens::AsText).unwrap();
    let tail = tokenizer.encode(" x 1", SpecialTokens::AsText).unwrap();
    assert!(ids.ends_with(&tail));
    let error = tokenizer.encode(&format!(" {text}"), SpecialTokens::AsText).unwrap_err();
    assert!(matches!(error, TokenizerError::SpaceRunTooLong { .. }), "{error}");
}

#[test]
fn threads_share_one_tokenizer() {
    let tokenizer = tokenizer("bitnet-tiny");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| check_cases(&tokenizer, "bitnet-tiny.cases.json"));
        }
    });
}
