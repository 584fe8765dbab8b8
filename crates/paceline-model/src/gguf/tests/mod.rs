mod bad_files;
mod raw;

use paceline_cpu::quant::{TensorType, dequantize_row};

use super::*;

fn values(gguf: &Gguf, name: &str) -> Vec<f32> {
    let view = gguf.tensor(name).unwrap();
    let mut out = vec![f32::NAN; view.rows * view.cols];
    dequantize_row(view.ty, view.data, &mut out);
    out
}

/// One of every value, nested arrays included.
fn sample_metadata() -> Metadata {
    let mut metadata = Metadata::default();
    metadata.set("a.u8", Value::U8(200));
    metadata.set("a.i8", Value::I8(-100));
    metadata.set("a.u16", Value::U16(60_000));
    metadata.set("a.i16", Value::I16(-30_000));
    metadata.set("a.u32", u32::MAX);
    metadata.set("a.i32", Value::I32(i32::MIN));
    metadata.set("a.u64", u64::MAX);
    metadata.set("a.i64", Value::I64(i64::MIN));
    metadata.set("a.f32", 0.1f32);
    metadata.set("a.f64", Value::F64(0.1));
    metadata.set("a.bool", true);
    metadata.set("a.string", "Zürich 🚴");
    metadata.set("a.strings", vec![String::new(), "b".to_owned()]);
    metadata.set("a.f32s", vec![0.5f32, -1.5]);
    metadata.set("a.bools", vec![true, false]);
    for (i, array) in [
        Array::U8(vec![1, 255]),
        Array::I8(vec![-1, 1]),
        Array::U16(vec![7]),
        Array::I16(vec![-7]),
        Array::U32(vec![1, 2, 3]),
        Array::I32(vec![-1]),
        Array::U64(vec![u64::MAX]),
        Array::I64(vec![i64::MIN, 4]),
        Array::F64(vec![0.25]),
        Array::Array(vec![
            Array::I32(vec![1, 2]),
            Array::String(vec!["x".to_owned()]),
        ]),
        Array::U32(Vec::new()),
    ]
    .into_iter()
    .enumerate()
    {
        metadata.set(format!("arrays.{i:02}"), array);
    }
    metadata
}

/// A small valid file with three tensors. The last one fills its padding, so that no cut of the
/// file goes unnoticed.
fn sample_file() -> Vec<u8> {
    let mut writer = GgufWriter::new(sample_metadata());
    writer.add_tensor("norm", TensorType::F32, &[5]).unwrap();
    writer
        .add_tensor("matrix", TensorType::Q4_0, &[64, 3])
        .unwrap();
    writer
        .add_tensor("cube", TensorType::F16, &[4, 2, 2])
        .unwrap();
    let mut bytes = Vec::new();
    let mut next = 0u8;
    writer
        .write_to(&mut bytes, |head, out| {
            next += 1;
            out.write_all(&vec![next; head.n_bytes])
        })
        .unwrap();
    bytes
}

#[test]
fn what_is_written_is_read_back() {
    let gguf = Gguf::parse(sample_file()).unwrap();
    assert_eq!(gguf.version(), 3);
    assert_eq!(gguf.metadata(), &sample_metadata());
    let shapes: Vec<_> = gguf
        .tensors()
        .iter()
        .map(|t| (t.name.as_str(), t.ty, t.rows(), t.cols()))
        .collect();
    assert_eq!(
        shapes,
        [
            ("norm", TensorType::F32, 1, 5),
            ("matrix", TensorType::Q4_0, 3, 64),
            ("cube", TensorType::F16, 4, 4),
        ]
    );
    for (i, tensor) in gguf.tensors().iter().enumerate() {
        let view = gguf.view(tensor);
        assert_eq!(
            view.data,
            vec![i as u8 + 1; tensor.n_bytes()],
            "{}",
            tensor.name
        );
        assert_eq!(view.row(view.rows - 1).len(), view.data.len() / view.rows);
    }
    assert!(gguf.tensor("absent").is_none());
}

#[test]
fn a_writer_that_is_given_too_little_data_fails() {
    let mut writer = GgufWriter::default();
    writer.add_tensor("t", TensorType::F32, &[4]).unwrap();
    let error = writer
        .write_to(&mut Vec::new(), |_, out| out.write_all(&[0; 15]))
        .unwrap_err();
    assert_eq!(error.to_string(), "15 bytes written for \"t\", not 16");
    assert!(writer.add_tensor("u", TensorType::Q8_0, &[33]).is_err());
    assert!(
        writer
            .add_tensor("v", TensorType::F32, &[usize::MAX / 8, 3])
            .is_err()
    );
}

#[test]
fn reads_what_the_python_package_wrote() {
    let bytes = include_bytes!("../../../../../testdata/gguf/python.gguf").to_vec();
    let gguf = Gguf::parse(bytes).unwrap();
    let metadata = gguf.metadata();
    let expected = [
        ("general.architecture", Value::from("llama")),
        ("t.u8", Value::U8(200)),
        ("t.i8", Value::I8(-100)),
        ("t.u16", Value::U16(60_000)),
        ("t.i16", Value::I16(-30_000)),
        ("t.u32", Value::U32(4_000_000_000)),
        ("t.i32", Value::I32(-2_000_000_000)),
        ("t.u64", Value::U64((1 << 63) + 5)),
        ("t.i64", Value::I64(-(1 << 62))),
        ("t.f32", Value::F32(0.1)),
        ("t.f64", Value::F64(0.1)),
        ("t.bool", Value::Bool(true)),
        ("t.string", Value::from("Zürich 🚴")),
        (
            "t.strings",
            vec!["a".to_owned(), String::new(), "Ġthe".to_owned()].into(),
        ),
        ("t.i32s", vec![1i32, -2, 3].into()),
        ("t.f32s", vec![0.5f32, -1.5].into()),
        ("t.bools", vec![true, false].into()),
        (
            "t.nested",
            Array::Array(vec![Array::I32(vec![1, 2]), Array::I32(vec![3])]).into(),
        ),
    ];
    for (key, value) in &expected {
        assert_eq!(metadata.get(key), Some(value), "{key}");
    }
    assert_eq!(metadata.len(), expected.len());
    assert_eq!(values(&gguf, "plain"), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    assert_eq!(values(&gguf, "half"), [1.5, -2.25, 65504.0]);
    assert_eq!(values(&gguf, "cube").len(), 24);
    let q8 = gguf.tensor("q8").unwrap();
    assert_eq!((q8.ty, q8.rows, q8.cols), (TensorType::Q8_0, 3, 64));
}

#[test]
fn values_convert_when_they_fit() {
    let metadata = sample_metadata();
    assert_eq!(metadata.required::<u32>("a.u8").unwrap(), 200);
    assert_eq!(
        metadata.required::<usize>("a.u32").unwrap(),
        u32::MAX as usize
    );
    assert_eq!(metadata.required::<u64>("a.u64").unwrap(), u64::MAX);
    assert_eq!(metadata.required::<i32>("a.i16").unwrap(), -30_000);
    assert_eq!(metadata.required::<f32>("a.u8").unwrap(), 200.0);
    assert_eq!(metadata.required::<f32>("a.f64").unwrap(), 0.1);
    assert_eq!(metadata.required::<&str>("a.string").unwrap(), "Zürich 🚴");
    assert_eq!(
        metadata.required::<&[String]>("a.strings").unwrap().len(),
        2
    );
    assert_eq!(
        metadata.required::<Vec<u32>>("arrays.00").unwrap(),
        [1, 255]
    );
    assert_eq!(
        metadata.required::<Vec<f32>>("a.f32s").unwrap(),
        [0.5, -1.5]
    );
    assert_eq!(
        metadata.required::<Vec<bool>>("a.bools").unwrap(),
        [true, false]
    );
    assert_eq!(metadata.optional::<u32>("absent").unwrap(), None);
}

#[test]
fn wrong_types_are_named_with_their_key() {
    let metadata = sample_metadata();
    let messages = [
        (
            metadata.required::<u32>("absent").unwrap_err(),
            "no metadata key \"absent\"",
        ),
        (
            metadata.required::<u32>("a.i8").unwrap_err(),
            "\"a.i8\" should be an unsigned 32-bit",
        ),
        (
            metadata.required::<u32>("a.u64").unwrap_err(),
            "is the integer 18446744073709551615",
        ),
        (
            metadata.required::<i32>("a.u32").unwrap_err(),
            "should be a 32-bit integer",
        ),
        (
            metadata.required::<bool>("a.u8").unwrap_err(),
            "should be a bool, but is the integer",
        ),
        (
            metadata.required::<&str>("a.bool").unwrap_err(),
            "a string, but is the bool true",
        ),
        (
            metadata.required::<Vec<u32>>("a.f32s").unwrap_err(),
            "but is an array of 2 floats",
        ),
        (
            metadata.required::<Vec<u32>>("arrays.01").unwrap_err(),
            "but is an array of 2 integers",
        ),
        (
            metadata.required::<f32>("a.string").unwrap_err(),
            "a number, but is a string",
        ),
        (
            metadata.required::<&[String]>("a.bools").unwrap_err(),
            "an array of 2 bools",
        ),
    ];
    for (error, part) in messages {
        assert!(error.to_string().contains(part), "{error}");
    }
}
