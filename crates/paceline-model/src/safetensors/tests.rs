use super::*;

const VALID: &str = r#"{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}"#;

fn file(header: &str, n_data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + n_data, 0);
    bytes
}

/// A file of 16 bytes of data that are one tensor.
fn one(tensor: &str) -> Vec<u8> {
    file(&format!("{{\"t\":{tensor}}}"), 16)
}

fn refused(bytes: Vec<u8>, part: &str) {
    let message = Safetensors::parse(bytes).expect_err(part).to_string();
    assert!(message.contains(part), "{message:?} does not say {part:?}");
}

#[test]
fn shapes_are_rows_of_contiguous_columns() {
    let shapes = [
        ("[2,2]", 2, 2),
        ("[4]", 1, 4),
        ("[2,1,2]", 2, 2),
        ("[1,4]", 1, 4),
    ];
    for (shape, rows, cols) in shapes {
        let tensors = Safetensors::parse(one(&VALID.replace("[2,2]", shape))).unwrap();
        let view = tensors.tensor("t").unwrap();
        assert_eq!(
            (view.rows, view.cols, view.data.len()),
            (rows, cols, 16),
            "{shape}"
        );
    }
}

#[test]
fn every_truncation_is_an_error() {
    let file = one(VALID);
    for len in 0..file.len() {
        assert!(
            Safetensors::parse(file[..len].to_vec()).is_err(),
            "cut at {len}"
        );
    }
}

#[test]
fn bad_headers() {
    refused(Vec::new(), "the header's length");
    refused(
        [u64::MAX.to_le_bytes().as_slice(), b"{}"].concat(),
        "more than 16777216 are not",
    );
    refused(
        [100u64.to_le_bytes().as_slice(), b"{}"].concat(),
        "in the middle of the header",
    );
    refused(file("{", 0), "the safetensors header is not valid");
    refused(file("[1]", 0), "the safetensors header is not valid");
    refused(
        file(&format!("{{\"t\":{VALID},\"t\":{VALID}}}"), 16),
        "\"t\" occurs twice",
    );
}

#[test]
fn bad_tensors() {
    const INVALID: &str = "not a valid safetensors";
    refused(one(&VALID.replace("F32", "F99")), INVALID);
    refused(one(&VALID.replace("[2,2]", "[5]")), INVALID);
    refused(
        one(&VALID.replace("[2,2]", "[4294967296,4294967296]")),
        INVALID,
    );
    refused(one(&VALID.replace("[0,16]", "[16,0]")), INVALID);
    refused(
        one(&VALID.replace("[2,2]", "[8]").replace("16", "32")),
        INVALID,
    );
    refused(
        one(&VALID.replace("[2,2]", "[2]").replace("16", "8")),
        INVALID,
    );
    refused(
        one(&VALID.replace("F32", "I64").replace("[2,2]", "[2]")),
        "has type I64",
    );
    let empty = r#"{"t":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}"#;
    refused(file(empty, 0), "impossible shape [0]");
    let scalar = r#"{"t":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}"#;
    refused(file(scalar, 4), "has 0 dimensions");
}

#[test]
fn overlapping_tensors() {
    let twice = |second: &str| format!("{{\"a\":{VALID},\"b\":{second}}}");
    refused(file(&twice(VALID), 16), "not a valid safetensors");
    refused(
        file(&twice(&VALID.replace("[0,16]", "[8,24]")), 24),
        "not a valid safetensors",
    );
    assert!(Safetensors::parse(file(&twice(&VALID.replace("[0,16]", "[16,32]")), 32)).is_ok());
}
