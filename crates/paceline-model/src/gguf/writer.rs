//! Writes GGUF version 3 files, for tests and synthetic models.

use std::io::{self, Write};

use paceline_cpu::quant::TensorType;

use super::metadata::{Array, Metadata, Value};
use super::tensor_type;
use crate::error::ModelError;

const ALIGNMENT: usize = 32;

/// A file to be: metadata and a table of tensors. The data itself is asked for while writing, so
/// a model need not fit in memory.
#[derive(Debug, Default)]
pub struct GgufWriter {
    pub metadata: Metadata,
    tensors: Vec<TensorHead>,
}

/// A tensor of the file to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorHead {
    pub name: String,
    pub ty: TensorType,
    /// The contiguous dimension first.
    pub dims: Vec<usize>,
    pub n_bytes: usize,
}

impl GgufWriter {
    pub fn new(metadata: Metadata) -> Self {
        Self { metadata, tensors: Vec::new() }
    }

    /// Adds a tensor to the table; `dims` has the contiguous dimension first.
    pub fn add_tensor(
        &mut self,
        name: impl Into<String>,
        ty: TensorType,
        dims: &[usize],
    ) -> Result<(), ModelError> {
        let name = name.into();
        let too_big = || ModelError::BadDims {
            name: name.clone(),
            dims: dims.iter().map(|&d| d as u64).collect(),
        };
        let (&n_cols, outer) = dims.split_first().ok_or_else(too_big)?;
        let Some(row_bytes) = ty.row_bytes(n_cols) else {
            return Err(ModelError::PartialBlock { name, ty, n_cols });
        };
        let n_bytes = outer.iter().try_fold(row_bytes, |n, &d| n.checked_mul(d));
        let n_bytes = n_bytes.ok_or_else(too_big)?;
        self.tensors.push(TensorHead { name, ty, dims: dims.to_vec(), n_bytes });
        Ok(())
    }

    /// Bytes of all tensors together.
    pub fn n_data_bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.n_bytes as u64).sum()
    }

    /// Writes the file. `data` is called once for each tensor, in the order they were added, and
    /// must write exactly its bytes.
    pub fn write_to(
        &self,
        out: &mut dyn Write,
        mut data: impl FnMut(&TensorHead, &mut dyn Write) -> io::Result<()>,
    ) -> io::Result<()> {
        let header = self.header();
        out.write_all(&header)?;
        pad(out, header.len())?;
        for tensor in &self.tensors {
            let mut counted = Counted { out, n_bytes: 0 };
            data(tensor, &mut counted)?;
            let written = counted.n_bytes;
            if written != tensor.n_bytes {
                let (name, wanted) = (&tensor.name, tensor.n_bytes);
                let message = format!("{written} bytes written for {name:?}, not {wanted}");
                return Err(io::Error::new(io::ErrorKind::InvalidData, message));
            }
            pad(out, written)?;
        }
        Ok(())
    }

    fn header(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in self.metadata.iter() {
            put_string(&mut out, key);
            put_value(&mut out, value);
        }
        let mut offset = 0usize;
        for tensor in &self.tensors {
            put_string(&mut out, &tensor.name);
            out.extend((tensor.dims.len() as u32).to_le_bytes());
            for &dim in &tensor.dims {
                out.extend((dim as u64).to_le_bytes());
            }
            out.extend(tensor_type::to_id(tensor.ty).to_le_bytes());
            out.extend((offset as u64).to_le_bytes());
            offset += tensor.n_bytes.next_multiple_of(ALIGNMENT);
        }
        out
    }
}

/// Counts what passes through.
struct Counted<'a> {
    out: &'a mut dyn Write,
    n_bytes: usize,
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.out.write(bytes)?;
        self.n_bytes += n;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn pad(out: &mut dyn Write, len: usize) -> io::Result<()> {
    out.write_all(&[0; ALIGNMENT][..len.next_multiple_of(ALIGNMENT) - len])
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    fn put(out: &mut Vec<u8>, type_id: u32, bytes: &[u8]) {
        out.extend(type_id.to_le_bytes());
        out.extend(bytes);
    }
    match value {
        Value::U8(v) => put(out, 0, &v.to_le_bytes()),
        Value::I8(v) => put(out, 1, &v.to_le_bytes()),
        Value::U16(v) => put(out, 2, &v.to_le_bytes()),
        Value::I16(v) => put(out, 3, &v.to_le_bytes()),
        Value::U32(v) => put(out, 4, &v.to_le_bytes()),
        Value::I32(v) => put(out, 5, &v.to_le_bytes()),
        Value::F32(v) => put(out, 6, &v.to_le_bytes()),
        Value::Bool(v) => put(out, 7, &[u8::from(*v)]),
        Value::String(v) => {
            put(out, 8, &[]);
            put_string(out, v);
        }
        Value::Array(v) => {
            put(out, 9, &[]);
            put_array(out, v);
        }
        Value::U64(v) => put(out, 10, &v.to_le_bytes()),
        Value::I64(v) => put(out, 11, &v.to_le_bytes()),
        Value::F64(v) => put(out, 12, &v.to_le_bytes()),
    }
}

fn put_array(out: &mut Vec<u8>, array: &Array) {
    fn put<T>(out: &mut Vec<u8>, type_id: u32, items: &[T], item: impl Fn(&mut Vec<u8>, &T)) {
        out.extend(type_id.to_le_bytes());
        out.extend((items.len() as u64).to_le_bytes());
        items.iter().for_each(|i| item(out, i));
    }
    match array {
        Array::U8(v) => put(out, 0, v, |out, v| out.extend(v.to_le_bytes())),
        Array::I8(v) => put(out, 1, v, |out, v| out.extend(v.to_le_bytes())),
        Array::U16(v) => put(out, 2, v, |out, v| out.extend(v.to_le_bytes())),
        Array::I16(v) => put(out, 3, v, |out, v| out.extend(v.to_le_bytes())),
        Array::U32(v) => put(out, 4, v, |out, v| out.extend(v.to_le_bytes())),
        Array::I32(v) => put(out, 5, v, |out, v| out.extend(v.to_le_bytes())),
        Array::F32(v) => put(out, 6, v, |out, v| out.extend(v.to_le_bytes())),
        Array::Bool(v) => put(out, 7, v, |out, v| out.push(u8::from(*v))),
        Array::String(v) => put(out, 8, v, |out, v| put_string(out, v)),
        Array::Array(v) => put(out, 9, v, put_array),
        Array::U64(v) => put(out, 10, v, |out, v| out.extend(v.to_le_bytes())),
        Array::I64(v) => put(out, 11, v, |out, v| out.extend(v.to_le_bytes())),
        Array::F64(v) => put(out, 12, v, |out, v| out.extend(v.to_le_bytes())),
    }
}
