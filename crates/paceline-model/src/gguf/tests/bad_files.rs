//! Files that must be refused, each with its own sentence.

use std::fs;
use std::path::Path;

use super::raw::{Raw, array, entry, string, tensor};
use super::sample_file;
use crate::error::ModelError;
use crate::gguf::Gguf;

/// Asserts that the bytes are refused with a message that has `part` in it.
fn refused(bytes: Vec<u8>, part: &str) {
    let error = Gguf::parse(bytes).expect_err(part);
    assert!(
        error.to_string().contains(part),
        "{error:?} does not say {part:?}"
    );
}

#[test]
fn the_raw_builder_makes_valid_files() {
    assert_eq!(
        Gguf::parse(Raw::valid().bytes()).unwrap().tensors()[0].n_bytes(),
        32
    );
    assert!(
        Gguf::parse(
            Raw {
                version: 2,
                ..Raw::valid()
            }
            .bytes()
        )
        .is_ok()
    );
    assert!(Gguf::parse(Raw::entries(vec![entry("k", 0, &[1])]).bytes()).is_ok());
}

#[test]
fn every_truncation_is_an_error() {
    let file = sample_file();
    assert!(Gguf::parse(file.clone()).is_ok());
    for len in 0..file.len() {
        let error = Gguf::parse(file[..len].to_vec()).expect_err("a truncated file");
        let expected = matches!(
            error,
            ModelError::NotGguf { .. }
                | ModelError::Truncated { .. }
                | ModelError::TensorOutOfFile { .. }
        );
        assert!(expected, "cut at {len}: {error}");
    }
}

#[test]
fn bad_heads() {
    let raw = Raw::valid;
    refused(b"".to_vec(), "not a GGUF file");
    refused(b"PK\x03\x04 a zip file".to_vec(), "not a GGUF file");
    refused(
        Raw {
            magic: *b"FUGG",
            ..raw()
        }
        .bytes(),
        "big-endian",
    );
    refused(
        Raw {
            version: 3u32.swap_bytes(),
            ..raw()
        }
        .bytes(),
        "big-endian",
    );
    refused(
        Raw {
            version: 1,
            ..raw()
        }
        .bytes(),
        "version 1 is not supported",
    );
    refused(
        Raw {
            version: 4,
            ..raw()
        }
        .bytes(),
        "version 4 is not supported",
    );
}

#[test]
fn counts_beyond_the_file() {
    for huge in [100, 1 << 32, u64::MAX / 13, u64::MAX] {
        refused(
            Raw {
                n_tensors: huge,
                ..Raw::valid()
            }
            .bytes(),
            "the tensor table",
        );
        refused(
            Raw {
                n_entries: huge,
                ..Raw::valid()
            }
            .bytes(),
            "the metadata",
        );
        let long = [&huge.to_le_bytes()[..], b"k"].concat();
        refused(
            Raw {
                n_entries: 1,
                ..Raw::entries(vec![long])
            }
            .bytes(),
            "a metadata",
        );
        for type_id in 0..=12 {
            let entries = vec![entry("k", 9, &array(type_id, huge, b"abc"))];
            refused(Raw::entries(entries).bytes(), "an array");
        }
        let text = entry("k", 8, &huge.to_le_bytes());
        refused(Raw::entries(vec![text]).bytes(), "a metadata value");
    }
}

#[test]
fn bad_metadata() {
    let one = |entry| Raw::entries(vec![entry]).bytes();
    refused(
        one(entry("k", 13, &[0])),
        "type 13, which GGUF does not define",
    );
    refused(
        one(entry("k", 9, &array(99, 1, &[0]))),
        "type 99, which GGUF does not define",
    );
    refused(one(entry("k", 7, &[2])), "bool with the value 2");
    refused(
        one(entry("k", 9, &array(7, 1, &[9]))),
        "bool with the value 9",
    );
    refused(one(entry("k", 8, &string(b"\xff\xfe"))), "not valid UTF-8");
    let twice = vec![entry("k", 0, &[1]), entry("k", 0, &[1])];
    refused(Raw::entries(twice).bytes(), "\"k\" occurs twice");
    let nested = (0..3).fold(array(0, 1, &[7]), |inner, _| array(9, 1, &inner));
    refused(one(entry("k", 9, &nested)), "nests arrays more than 3 deep");
    let endless = array(9, 1, &[]).repeat(10_000);
    refused(
        one(entry("k", 9, &endless)),
        "nests arrays more than 3 deep",
    );
}

#[test]
fn bad_alignments() {
    for alignment in [0u32, 3, 48, 1 << 20] {
        let entry = entry("general.alignment", 4, &alignment.to_le_bytes());
        refused(Raw::entries(vec![entry]).bytes(), "power of two");
    }
    let text = entry("general.alignment", 8, &string(b"32"));
    refused(
        Raw::entries(vec![text]).bytes(),
        "should be an unsigned integer, but is a string",
    );
}

#[test]
fn bad_tensors() {
    let one = |tensor| Raw::tensors(vec![tensor], 1024).bytes();
    refused(one(tensor("t", &[], 0, 0)), "0 dimensions");
    refused(one(tensor("t", &[1; 5], 0, 0)), "5 dimensions");
    refused(one(tensor("t", &[0], 0, 0)), "impossible shape [0]");
    refused(one(tensor("t", &[4, 0], 0, 0)), "impossible shape [4, 0]");
    refused(one(tensor("t", &[u64::MAX, 2], 0, 0)), "impossible shape");
    refused(
        one(tensor("t", &[1 << 33, 1 << 33], 0, 0)),
        "impossible shape",
    );
    refused(one(tensor("t", &[1 << 16; 4], 0, 0)), "impossible shape");
    refused(one(tensor("t", &[1 << 62, 1], 0, 0)), "impossible shape");
    refused(one(tensor("t", &[1 << 40], 0, 0)), "lies outside the file");
    refused(one(tensor("t", &[33], 8, 0)), "not whole blocks of Q8_0");
    refused(one(tensor("t", &[32], 4, 0)), "type number 4");
    refused(
        one(tensor("t", &[32], 23, 0)),
        "type IQ4_XS, which is not supported",
    );
    refused(one(tensor("t", &[8], 0, 8)), "not a multiple of 32");
    refused(one(tensor("t", &[8], 0, 1024)), "lies outside the file");
    refused(
        one(tensor("t", &[8], 0, u64::MAX - 31)),
        "lies outside the file",
    );
    refused(one(tensor("t", &[257], 0, 0)), "lies outside the file");
}

#[test]
fn tensors_that_get_in_each_others_way() {
    let two = |a, b| Raw::tensors(vec![a, b], 1024).bytes();
    let first = || tensor("a", &[16], 0, 64);
    refused(two(first(), tensor("a", &[8], 0, 0)), "\"a\" occurs twice");
    refused(
        two(first(), tensor("b", &[8], 0, 64)),
        "\"a\" and \"b\" overlap",
    );
    refused(
        two(first(), tensor("b", &[8], 0, 96)),
        "\"a\" and \"b\" overlap",
    );
    refused(
        two(first(), tensor("b", &[64], 0, 0)),
        "\"b\" and \"a\" overlap",
    );
    assert!(Gguf::parse(two(first(), tensor("b", &[16], 0, 0))).is_ok());
}

#[test]
fn paths_that_cannot_be_read_are_named() {
    let missing = Path::new("no/such/model.gguf");
    let error = Gguf::open(missing).unwrap_err();
    assert!(matches!(error.kind(), ModelError::Io(_)));
    assert!(
        error
            .to_string()
            .starts_with("no/such/model.gguf: it cannot be read"),
        "{error}"
    );
    let error = Gguf::open(Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap_err();
    assert!(matches!(error.kind(), ModelError::Io(_)), "{error}");
}

#[test]
fn a_mapped_file_reads_like_memory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    fs::write(&path, sample_file()).unwrap();
    let (mapped, memory) = (
        Gguf::open(&path).unwrap(),
        Gguf::parse(sample_file()).unwrap(),
    );
    assert_eq!(mapped.metadata(), memory.metadata());
    assert_eq!(
        mapped.tensor("matrix").unwrap().data,
        memory.tensor("matrix").unwrap().data
    );
    fs::write(&path, b"").unwrap();
    assert!(matches!(
        Gguf::open(&path).unwrap_err().kind(),
        ModelError::NotGguf { .. }
    ));
}
