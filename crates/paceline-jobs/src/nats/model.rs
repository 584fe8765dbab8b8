//! Which model a line is for, and which one workers have; and with which arithmetic, since answers
//! depend on both.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::{JobsError, failed_to};

/// What is read of a file at its start and at its end. A model's head has all names and shapes.
const N_READ: u64 = 1 << 20;

/// How a description of a queue's workers begins.
const TAG: &str = "model ";

/// A model: what people call it, and what its answers depend on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelId {
    pub name: String,
    /// The same for the same files, wherever they are, and the same arithmetic.
    pub fingerprint: String,
}

impl ModelId {
    /// Looks at the sizes of a model's files and at the start and the end of each: enough to tell
    /// models apart, and done in milliseconds. `arithmetic` names how it is computed, where that
    /// changes bits.
    pub fn of_files(name: &str, path: &Path, arithmetic: &str) -> Result<ModelId, JobsError> {
        let mut hash = Sha256::new();
        hash.update((arithmetic.len() as u64).to_le_bytes());
        hash.update(arithmetic);
        for file in files(path).map_err(failed_to("read", path))? {
            add(&mut hash, &file).map_err(failed_to("read", &file))?;
        }
        let digest = hash.finalize();
        let fingerprint = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        Ok(ModelId { name: name.to_owned(), fingerprint })
    }

    /// As it stands beside a queue's workers.
    pub(super) fn tag(&self) -> String {
        let name: String = self.name.chars().take(200).collect();
        format!("{TAG}{} {name}", self.fingerprint)
    }

    /// What a tag says. `None` for any other text.
    pub(super) fn of_tag(tag: &str) -> Option<ModelId> {
        let (fingerprint, name) = tag.strip_prefix(TAG)?.split_once(' ')?;
        Some(ModelId { name: name.to_owned(), fingerprint: fingerprint.to_owned() })
    }
}

impl fmt::Display for ModelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} ({})", self.name, self.fingerprint)
    }
}

/// One file, or those of a directory that say what the model is, by name.
fn files(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path)? {
        let file = entry?.path();
        let ext = file.extension().and_then(|ext| ext.to_str()).unwrap_or_default();
        if file.is_file() && ["safetensors", "json", "gguf", "model"].contains(&ext) {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

fn add(hash: &mut Sha256, path: &Path) -> io::Result<()> {
    let mut file = File::open(path)?;
    let len = file.metadata()?.len();
    hash.update(len.to_le_bytes());
    let mut bytes = Vec::new();
    Read::by_ref(&mut file).take(N_READ).read_to_end(&mut bytes)?;
    hash.update(&bytes);
    bytes.clear();
    file.seek(SeekFrom::Start(len.saturating_sub(N_READ)))?;
    file.take(N_READ).read_to_end(&mut bytes)?;
    hash.update(&bytes);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_differ_anywhere_it_looks_are_other_models() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.gguf");
        let of = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            ModelId::of_files("a", &path, "bf16").unwrap()
        };
        let large = vec![1; 3 << 20];
        let same = of(&large);
        assert_eq!(same, of(&large));
        assert_eq!(same.fingerprint.len(), 16);
        let changed = |place: usize| {
            let mut bytes = large.clone();
            bytes[place] = 2;
            bytes
        };
        let others = [changed(0), changed(large.len() - 1), vec![1; (3 << 20) + 1], Vec::new()];
        assert!(others.iter().all(|bytes| of(bytes) != same));
        let whole = ModelId::of_files("a", dir.path(), "bf16").unwrap();
        assert_ne!(ModelId::of_files("a", dir.path(), "int12").unwrap(), whole);
        fs::write(dir.path().join("config.json"), "{}").unwrap();
        assert_ne!(ModelId::of_files("a", dir.path(), "bf16").unwrap(), whole);
        assert!(ModelId::of_files("a", &dir.path().join("none"), "bf16").is_err());
    }

    #[test]
    fn tags_are_read_back() {
        let model = ModelId { name: "org/a model".to_owned(), fingerprint: "ab12".to_owned() };
        assert_eq!(ModelId::of_tag(&model.tag()), Some(model));
        assert_eq!(ModelId::of_tag("something else"), None);
    }
}
