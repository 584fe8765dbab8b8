//! Which files of a repository make up a model.

use super::error::PullError;

/// Files of a checkpoint that are fetched where they exist, beside the weights.
const COMPANIONS: [&str; 5] = [
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
];
const INDEX: &str = "model.safetensors.index.json";

/// Quantisations in the order in which one is preferred when nobody has chosen.
const PREFERRED: [&str; 14] = [
    "Q4_K_M", "Q4_1", "Q4_K_S", "Q4_0", "Q5_K_M", "Q5_K_S", "Q5_1", "Q5_0", "Q8_0", "Q6_K", "BF16",
    "F16", "F32", "Q3_K_M",
];

/// What to fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// One GGUF file.
    Gguf(String),
    /// A safetensors checkpoint: weights and what belongs to them.
    Checkpoint(Vec<String>),
}

/// Chooses among a repository's files.
pub(super) fn choose(repo: &str, files: &[String]) -> Result<Choice, PullError> {
    let ggufs: Vec<&String> = files.iter().filter(|file| is_whole_gguf(file)).collect();
    if let [only] = ggufs[..] {
        return Ok(Choice::Gguf(only.clone()));
    }
    for quantisation in PREFERRED {
        if let Some(file) = ggufs.iter().find(|file| names(file, quantisation)) {
            return Ok(Choice::Gguf((*file).clone()));
        }
    }
    if !ggufs.is_empty() {
        let names: Vec<&str> = ggufs.iter().map(|file| file.as_str()).collect();
        return Err(PullError::Ambiguous { repo: repo.to_owned(), files: names.join(", ") });
    }
    checkpoint(files).ok_or_else(|| PullError::NoModelInRepo { repo: repo.to_owned() })
}

/// A GGUF that is a model by itself: no part of a split one, no image projector, no matrix of
/// importances.
fn is_whole_gguf(file: &str) -> bool {
    let lower = file.to_ascii_lowercase();
    lower.ends_with(".gguf")
        && !lower.contains("mmproj")
        && !lower.contains("imatrix")
        && !lower.contains("-of-")
}

/// Whether a file name has the word in it, not only as a part of another.
fn names(file: &str, word: &str) -> bool {
    let upper = file.to_ascii_uppercase();
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    upper.match_indices(word).any(|(at, _)| {
        let before = upper[..at].chars().next_back();
        let after = upper[at + word.len()..].chars().next();
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

fn checkpoint(files: &[String]) -> Option<Choice> {
    let has = |name: &str| files.iter().any(|file| file == name);
    if !has("config.json") {
        return None;
    }
    let mut chosen: Vec<String> = files.iter().filter(|file| is_shard(file)).cloned().collect();
    if has("model.safetensors") {
        chosen = vec!["model.safetensors".to_owned()];
    } else if has(INDEX) && !chosen.is_empty() {
        chosen.push(INDEX.to_owned());
    } else {
        return None;
    }
    let companions = COMPANIONS.iter().filter(|name| has(name));
    // Small files first: what is missing shows before the long download.
    Some(Choice::Checkpoint(companions.map(|&name| name.to_owned()).chain(chosen).collect()))
}

fn is_shard(file: &str) -> bool {
    file.starts_with("model-") && file.ends_with(".safetensors") && file.contains("-of-")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(files: &[&str]) -> Result<Choice, PullError> {
        let files: Vec<String> = files.iter().map(|&file| file.to_owned()).collect();
        choose("org/repo", &files)
    }

    #[test]
    fn a_gguf_is_chosen_by_quantisation() {
        let gguf = |name: &str| Choice::Gguf(name.to_owned());
        let cases: [(&[&str], &str); 5] = [
            (&["README.md", "only.gguf"], "only.gguf"),
            (&["m.Q8_0.gguf", "m.Q4_K_M.gguf", "m.F16.gguf"], "m.Q4_K_M.gguf"),
            (&["m-q8_0.gguf", "m-f16.gguf"], "m-q8_0.gguf"),
            (&["m.Q4_K_M_L.gguf", "m.Q8_0.gguf"], "m.Q8_0.gguf"),
            (&["mmproj-F16.gguf", "m-Q4_K_M-00001-of-00002.gguf", "m-f32.gguf"], "m-f32.gguf"),
        ];
        for (files, expected) in cases {
            assert_eq!(chosen(files).unwrap(), gguf(expected), "{files:?}");
        }
        let error = chosen(&["a.gguf", "b.gguf"]).unwrap_err().to_string();
        assert!(error.contains("a.gguf, b.gguf"), "{error}");
    }

    #[test]
    fn a_checkpoint_is_weights_with_their_companions() {
        let sharded = chosen(&[
            "config.json",
            "tokenizer.json",
            "onnx/model.onnx",
            "model.safetensors.index.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "pytorch_model.bin",
        ]);
        let expected = [
            "config.json",
            "tokenizer.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
        ];
        assert_eq!(sharded.unwrap(), Choice::Checkpoint(expected.map(str::to_owned).to_vec()));
        for files in [&["README.md"][..], &["model.safetensors"], &["config.json", "x.bin"]] {
            let error = chosen(files).unwrap_err();
            assert!(matches!(error, PullError::NoModelInRepo { .. }), "{error}");
        }
    }
}
