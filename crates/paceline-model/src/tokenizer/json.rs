//! A tokenizer from the files of a Hugging Face checkpoint.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;
use tokenizers::{AddedToken, ModelWrapper};

use super::error::TokenizerError;
use super::vocab::{MAX_VOCAB, Piece, PieceForm, Vocabulary, piece_bytes};
use super::{Ends, Parts, invalid};

/// The largest tokenizer.json files are around 35 MB.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// The parts of `tokenizer_config.json` that matter here.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TokenizerConfig {
    chat_template: Option<Value>,
    bos_token: Option<Value>,
    eos_token: Option<Value>,
    add_bos_token: Option<bool>,
}

/// The parts of `config.json` and `generation_config.json` that matter here.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct EndIds {
    bos_token_id: Option<Value>,
    eos_token_id: Option<Value>,
}

pub(super) fn read_dir(dir: &Path) -> Result<Parts, TokenizerError> {
    let json = read_file(&dir.join("tokenizer.json"))?
        .ok_or_else(|| TokenizerError::NoTokenizerJson { dir: dir.to_path_buf() })?;
    let config: TokenizerConfig = read_json(&dir.join("tokenizer_config.json"))?;
    let generation: EndIds = read_json(&dir.join("generation_config.json"))?;
    let model: EndIds = read_json(&dir.join("config.json"))?;
    let template_file = read_file(&dir.join("chat_template.jinja"))?;
    let template_file = template_file.and_then(|bytes| String::from_utf8(bytes).ok());

    let mut parts = read_tokenizer(&json, &config, &[generation, model])?;
    parts.chat_template = template_file.or_else(|| default_template(config.chat_template));
    Ok(parts)
}

/// The contents of a file; `None` where there is no such file.
fn read_file(path: &Path) -> Result<Option<Vec<u8>>, TokenizerError> {
    let read_error = |source| TokenizerError::Read { path: path.to_path_buf(), source };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(read_error(error)),
    };
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(read_error)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(TokenizerError::FileTooLarge {
            path: path.to_path_buf(),
            limit: MAX_FILE_BYTES,
        });
    }
    Ok(Some(bytes))
}

fn read_json<T: Default + for<'a> Deserialize<'a>>(path: &Path) -> Result<T, TokenizerError> {
    let Some(bytes) = read_file(path)? else {
        return Ok(T::default());
    };
    serde_json::from_slice(&bytes)
        .map_err(|error| TokenizerError::Invalid(format!("{}: {error}", path.display())))
}

fn read_tokenizer(
    json: &[u8],
    config: &TokenizerConfig,
    end_ids: &[EndIds],
) -> Result<Parts, TokenizerError> {
    let definition: Value =
        serde_json::from_slice(json).map_err(|error| TokenizerError::Invalid(error.to_string()))?;
    check_merges(&definition["model"])?;
    let (form, strips_space) = piece_form(&definition["decoder"]);
    drop(definition);

    let mut loaded = tokenizers::Tokenizer::from_bytes(json).map_err(invalid)?;
    // A prompt is never cut or padded behind the caller's back.
    loaded.with_truncation(None).map_err(invalid)?;
    loaded.with_padding(None);
    let model = without_dropout(loaded.get_model());
    let added = added_tokens(&loaded);
    let vocab = vocabulary(&loaded, &added, form, strips_space)?;
    let ends = ends(&loaded, config, end_ids)?;
    Ok(Parts {
        model,
        normalizer: loaded.get_normalizer().cloned(),
        pre_tokenizer: loaded.get_pre_tokenizer().cloned(),
        added,
        vocab,
        ends,
        chat_template: None,
    })
}

/// Dropout makes encoding random. It is a training device that some files still carry.
fn without_dropout(model: &ModelWrapper) -> ModelWrapper {
    let mut model = model.clone();
    if let ModelWrapper::BPE(bpe) = &mut model {
        bpe.dropout = None;
    }
    model
}

/// Checks what the `tokenizers` crate takes on trust: that merges join tokens into tokens.
fn check_merges(model: &Value) -> Result<(), TokenizerError> {
    let (Some(merges), Some(vocab)) = (model["merges"].as_array(), model["vocab"].as_object())
    else {
        return Ok(());
    };
    let prefix = model["continuing_subword_prefix"].as_str().unwrap_or("");
    for (index, merge) in merges.iter().enumerate() {
        let joined = merge_parts(merge).and_then(|(left, right)| {
            let both = vocab.contains_key(left) && vocab.contains_key(right);
            let tail = right.strip_prefix(prefix).filter(|_| both)?;
            Some(format!("{left}{tail}"))
        });
        if !joined.is_some_and(|joined| vocab.contains_key(&joined)) {
            return Err(TokenizerError::BadMerge { index, merge: merge.to_string() });
        }
    }
    Ok(())
}

/// A merge is `"a b"` in older files and `["a", "b"]` in newer ones.
fn merge_parts(merge: &Value) -> Option<(&str, &str)> {
    match merge {
        Value::String(line) => line.split_once(' '),
        Value::Array(pair) if pair.len() == 2 => Some((pair[0].as_str()?, pair[1].as_str()?)),
        _ => None,
    }
}

/// How pieces spell bytes, and whether decoding drops the space the encoder put in front: both
/// are told by the decoder.
fn piece_form(decoder: &Value) -> (PieceForm, bool) {
    let mut form = PieceForm::Plain;
    let mut strips_space = false;
    let steps = decoder["decoders"].as_array().map_or(std::slice::from_ref(decoder), Vec::as_slice);
    for step in steps {
        match step["type"].as_str() {
            Some("ByteLevel") => form = PieceForm::ByteLevel,
            Some("ByteFallback") => form = PieceForm::SentencePiece,
            Some("Replace") if step["pattern"]["String"] == "▁" => {
                form = PieceForm::SentencePiece
            }
            Some("Metaspace") => {
                form = PieceForm::SentencePiece;
                strips_space = step["prepend_scheme"] != "never";
            }
            Some("Strip") => strips_space = step["start"].as_u64().unwrap_or(0) > 0,
            _ => {}
        }
    }
    (form, strips_space)
}

fn added_tokens(loaded: &tokenizers::Tokenizer) -> Vec<(u32, AddedToken)> {
    let mut added: Vec<_> = loaded.get_added_tokens_decoder().into_iter().collect();
    added.sort_by_key(|(id, _)| *id);
    added
}

fn vocabulary(
    loaded: &tokenizers::Tokenizer,
    added: &[(u32, AddedToken)],
    form: PieceForm,
    strips_space: bool,
) -> Result<Vocabulary, TokenizerError> {
    let tokens = loaded.get_vocab(true);
    let last = tokens.values().copied().max().ok_or(TokenizerError::EmptyVocabulary)?;
    if last as usize >= MAX_VOCAB {
        return Err(TokenizerError::VocabularyTooLarge { id: u64::from(last), limit: MAX_VOCAB });
    }
    let mut pieces = vec![Piece::default(); last as usize + 1];
    for (text, id) in &tokens {
        pieces[*id as usize].bytes = piece_bytes(text, form);
    }
    for (id, token) in added {
        pieces[*id as usize] =
            Piece { bytes: token.content.as_bytes().to_vec(), special: token.special };
    }
    Vocabulary::new(&pieces, strips_space)
}

fn ends(
    loaded: &tokenizers::Tokenizer,
    config: &TokenizerConfig,
    end_ids: &[EndIds],
) -> Result<Ends, TokenizerError> {
    let named = |token: &Option<Value>| {
        let name = token.as_ref().and_then(token_name)?;
        loaded.token_to_id(name)
    };
    let mut eos: Vec<u32> = named(&config.eos_token).into_iter().collect();
    for ids in end_ids {
        eos.extend(numbers(ids.eos_token_id.as_ref()));
    }
    let declared = || end_ids.iter().flat_map(|ids| numbers(ids.bos_token_id.as_ref())).next();
    let bos = named(&config.bos_token).or_else(declared);
    let (mut prefix, suffix) = surroundings(loaded)?;
    if prefix.is_empty() && config.add_bos_token == Some(true) {
        prefix.extend(bos);
    }
    Ok(Ends { bos, eos, prefix, suffix, ..Ends::default() })
}

/// What the file's post-processor puts around a text, seen by letting it do so.
fn surroundings(loaded: &tokenizers::Tokenizer) -> Result<(Vec<u32>, Vec<u32>), TokenizerError> {
    let encode = |add| loaded.encode_fast("a", add).map_err(invalid);
    let (bare, full) = (encode(false)?, encode(true)?);
    let (bare, full) = (bare.get_ids(), full.get_ids());
    let at = full.windows(bare.len().max(1)).position(|window| window == bare);
    Ok(match at {
        Some(at) => (full[..at].to_vec(), full[at + bare.len()..].to_vec()),
        None => (Vec::new(), Vec::new()),
    })
}

/// A special token is a string, or an object with the string in `content`.
fn token_name(token: &Value) -> Option<&str> {
    token.as_str().or_else(|| token["content"].as_str())
}

/// An id, or a list of ids.
fn numbers(value: Option<&Value>) -> Vec<u32> {
    let values = match value {
        Some(Value::Array(values)) => values.as_slice(),
        Some(value) => std::slice::from_ref(value),
        None => &[],
    };
    let mut seen = HashSet::new();
    let ids = values.iter().filter_map(Value::as_u64);
    ids.filter_map(|id| u32::try_from(id).ok()).filter(|id| seen.insert(*id)).collect()
}

/// The template is a string, or a list of named ones among which `default` counts.
fn default_template(value: Option<Value>) -> Option<String> {
    match value? {
        Value::String(template) => Some(template),
        Value::Array(named) => named
            .iter()
            .find(|entry| entry["name"] == "default")
            .and_then(|entry| entry["template"].as_str())
            .map(str::to_owned),
        _ => None,
    }
}
