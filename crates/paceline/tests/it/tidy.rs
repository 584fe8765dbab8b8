//! House rules that a compiler does not check.

use std::path::{Path, PathBuf};

const MAX_FILE_LINES: usize = 600;
const MAX_COLUMNS: usize = 100;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every file below `dir` with one of these endings.
fn files(dir: &Path, endings: &[&str], found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, endings, found);
        } else if path.extension().is_some_and(|e| endings.contains(&e.to_str().unwrap())) {
            found.push(path);
        }
    }
}

#[test]
fn files_are_short_and_narrow() {
    let mut sources = Vec::new();
    files(&root().join("crates"), &["rs", "js", "css", "html", "py"], &mut sources);
    assert!(sources.len() > 50, "the sources are somewhere else");
    for path in sources {
        let text = std::fs::read_to_string(&path).unwrap();
        let is_test = path.components().any(|c| c.as_os_str() == "tests");
        let n_lines = text.lines().count();
        assert!(is_test || n_lines <= MAX_FILE_LINES, "{} has {n_lines} lines", path.display());
        for (i, line) in text.lines().enumerate() {
            let width = line.chars().count();
            assert!(width <= MAX_COLUMNS, "{}:{}: {width} columns", path.display(), i + 1);
            let is_unfinished = line.contains(concat!("TO", "DO"));
            assert!(!is_unfinished, "{}:{}: unfinished", path.display(), i + 1);
        }
    }
}

#[test]
fn every_crate_has_its_place_in_the_architecture() {
    let architecture = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    for entry in std::fs::read_dir(root().join("crates")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(architecture.contains(&format!("`{name}`")), "{name} is not in ARCHITECTURE.md");
    }
}
