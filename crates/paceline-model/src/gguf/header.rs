//! Reads the bytes before the tensor data: counts, metadata, tensor table.

use super::metadata::{Array, Metadata, Value};
use crate::error::ModelError;

type Result<T> = std::result::Result<T, ModelError>;

/// Arrays of arrays of arrays have no use; deeper nesting only serves to exhaust the stack.
const MAX_ARRAY_DEPTH: usize = 3;

/// The least bytes a metadata entry takes: key length, value type, a one-byte value.
const MIN_ENTRY_BYTES: usize = 8 + 4 + 1;

/// The least bytes a tensor entry takes: name length, dimension count, one dimension, type, offset.
const MIN_TENSOR_BYTES: usize = 8 + 4 + 8 + 4 + 8;

/// The header as it stands in the file; the tensor table is not yet checked.
pub(super) struct Header {
    pub(super) version: u32,
    pub(super) metadata: Metadata,
    pub(super) tensors: Vec<RawTensor>,
    /// Where the header ends; the data begins at the next aligned offset.
    pub(super) end: usize,
}

/// One entry of the tensor table.
pub(super) struct RawTensor {
    pub(super) name: String,
    pub(super) dims: Vec<u64>,
    pub(super) type_id: u32,
    /// From the start of the data.
    pub(super) offset: u64,
}

pub(super) fn parse(bytes: &[u8]) -> Result<Header> {
    let mut cursor = Cursor { bytes, at: 0 };
    let version = parse_version(&mut cursor)?;
    let n_tensors = cursor.u64("the tensor count")?;
    let n_entries = cursor.u64("the metadata count")?;
    let n_entries = cursor.count(n_entries, MIN_ENTRY_BYTES, "the metadata")?;
    let mut metadata = Metadata::default();
    for _ in 0..n_entries {
        let key = cursor.string("a metadata key")?;
        let type_id = cursor.u32("a metadata type")?;
        let value = parse_value(&mut cursor, &key, type_id)?;
        metadata.add(key, value)?;
    }
    let n_tensors = cursor.count(n_tensors, MIN_TENSOR_BYTES, "the tensor table")?;
    let mut tensors = Vec::with_capacity(n_tensors);
    for _ in 0..n_tensors {
        tensors.push(parse_tensor(&mut cursor)?);
    }
    Ok(Header {
        version,
        metadata,
        tensors,
        end: cursor.at,
    })
}

fn parse_version(cursor: &mut Cursor<'_>) -> Result<u32> {
    let magic = &cursor.bytes[..cursor.bytes.len().min(4)];
    match magic {
        b"GGUF" => {}
        b"FUGG" => return Err(ModelError::BigEndian),
        other => {
            return Err(ModelError::NotGguf {
                found: other.to_vec(),
            });
        }
    }
    cursor.at = 4;
    match cursor.u32("the version")? {
        version @ (2 | 3) => Ok(version),
        version if matches!(version.swap_bytes(), 1..=3) => Err(ModelError::BigEndian),
        version => Err(ModelError::GgufVersion(version)),
    }
}

fn parse_value(cursor: &mut Cursor<'_>, key: &str, type_id: u32) -> Result<Value> {
    const WHAT: &str = "a metadata value";
    Ok(match type_id {
        0 => Value::U8(u8::from_le_bytes(cursor.array(WHAT)?)),
        1 => Value::I8(i8::from_le_bytes(cursor.array(WHAT)?)),
        2 => Value::U16(u16::from_le_bytes(cursor.array(WHAT)?)),
        3 => Value::I16(i16::from_le_bytes(cursor.array(WHAT)?)),
        4 => Value::U32(u32::from_le_bytes(cursor.array(WHAT)?)),
        5 => Value::I32(i32::from_le_bytes(cursor.array(WHAT)?)),
        6 => Value::F32(f32::from_le_bytes(cursor.array(WHAT)?)),
        7 => Value::Bool(parse_bool(cursor, key)?),
        8 => Value::String(cursor.string(WHAT)?),
        9 => Value::Array(parse_array(cursor, key, 1)?),
        10 => Value::U64(u64::from_le_bytes(cursor.array(WHAT)?)),
        11 => Value::I64(i64::from_le_bytes(cursor.array(WHAT)?)),
        12 => Value::F64(f64::from_le_bytes(cursor.array(WHAT)?)),
        id => {
            return Err(ModelError::UnknownValueType {
                key: key.to_owned(),
                id,
            });
        }
    })
}

fn parse_array(cursor: &mut Cursor<'_>, key: &str, depth: usize) -> Result<Array> {
    if depth > MAX_ARRAY_DEPTH {
        return Err(ModelError::NestedTooDeep {
            key: key.to_owned(),
            limit: MAX_ARRAY_DEPTH,
        });
    }
    let type_id = cursor.u32("an array's type")?;
    let len = cursor.u64("an array's length")?;
    Ok(match type_id {
        0 => Array::U8(cursor.numbers(len, u8::from_le_bytes)?),
        1 => Array::I8(cursor.numbers(len, i8::from_le_bytes)?),
        2 => Array::U16(cursor.numbers(len, u16::from_le_bytes)?),
        3 => Array::I16(cursor.numbers(len, i16::from_le_bytes)?),
        4 => Array::U32(cursor.numbers(len, u32::from_le_bytes)?),
        5 => Array::I32(cursor.numbers(len, i32::from_le_bytes)?),
        6 => Array::F32(cursor.numbers(len, f32::from_le_bytes)?),
        7 => Array::Bool(cursor.items(len, 1, |cursor| parse_bool(cursor, key))?),
        8 => Array::String(cursor.items(len, 8, |cursor| cursor.string("an array's string"))?),
        9 => Array::Array(cursor.items(len, 12, |cursor| parse_array(cursor, key, depth + 1))?),
        10 => Array::U64(cursor.numbers(len, u64::from_le_bytes)?),
        11 => Array::I64(cursor.numbers(len, i64::from_le_bytes)?),
        12 => Array::F64(cursor.numbers(len, f64::from_le_bytes)?),
        id => {
            return Err(ModelError::UnknownValueType {
                key: key.to_owned(),
                id,
            });
        }
    })
}

fn parse_bool(cursor: &mut Cursor<'_>, key: &str) -> Result<bool> {
    match cursor.array("a bool")? {
        [0] => Ok(false),
        [1] => Ok(true),
        [byte] => Err(ModelError::BadBool {
            key: key.to_owned(),
            byte,
        }),
    }
}

fn parse_tensor(cursor: &mut Cursor<'_>) -> Result<RawTensor> {
    let name = cursor.string("a tensor's name")?;
    let n_dims = cursor.u32("a tensor's dimension count")?;
    if !(1..=4).contains(&n_dims) {
        return Err(ModelError::BadDimCount { name, n_dims });
    }
    let dims = (0..n_dims)
        .map(|_| cursor.u64("a tensor's dimension"))
        .collect::<Result<_>>()?;
    let type_id = cursor.u32("a tensor's type")?;
    let offset = cursor.u64("a tensor's offset")?;
    Ok(RawTensor {
        name,
        dims,
        type_id,
        offset,
    })
}

/// A place in the bytes; every read checks what is left.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    fn take(&mut self, n: u64, what: &'static str) -> Result<&'a [u8]> {
        let left = self.left();
        let truncated = || ModelError::Truncated {
            what,
            offset: self.at,
            needed: n,
            left,
        };
        let len = usize::try_from(n)
            .ok()
            .filter(|&n| n <= left)
            .ok_or_else(truncated)?;
        let taken = &self.bytes[self.at..][..len];
        self.at += len;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64, what)?);
        Ok(array)
    }

    fn u32(&mut self, what: &'static str) -> Result<u32> {
        self.array(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: &'static str) -> Result<u64> {
        self.array(what).map(u64::from_le_bytes)
    }

    fn string(&mut self, what: &'static str) -> Result<String> {
        let len = self.u64(what)?;
        let offset = self.at;
        let bytes = self.take(len, what)?;
        let text = str::from_utf8(bytes).map_err(|_| ModelError::NotUtf8 { what, offset })?;
        Ok(text.to_owned())
    }

    /// Accepts a count only when that many items of at least `min_bytes` can still follow, so
    /// memory reserved for them is in proportion to the file.
    fn count(&self, count: u64, min_bytes: usize, what: &'static str) -> Result<usize> {
        let most = self.left() / min_bytes;
        usize::try_from(count)
            .ok()
            .filter(|&count| count <= most)
            .ok_or_else(|| {
                let needed = count.saturating_mul(min_bytes as u64);
                ModelError::Truncated {
                    what,
                    offset: self.at,
                    needed,
                    left: self.left(),
                }
            })
    }

    fn items<T>(
        &mut self,
        len: u64,
        min_bytes: usize,
        read: impl Fn(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        let len = self.count(len, min_bytes, "an array")?;
        let mut items = Vec::with_capacity(len);
        for _ in 0..len {
            items.push(read(self)?);
        }
        Ok(items)
    }

    fn numbers<const N: usize, T>(&mut self, len: u64, read: fn([u8; N]) -> T) -> Result<Vec<T>> {
        let len = self.count(len, N, "an array")?;
        let bytes = self.take((len * N) as u64, "an array")?;
        Ok(bytes
            .as_chunks::<N>()
            .0
            .iter()
            .map(|chunk| read(*chunk))
            .collect())
    }
}
