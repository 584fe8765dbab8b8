//! Metadata values and typed access to them.

use std::collections::BTreeMap;

use crate::error::ModelError;

/// One metadata value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    String(String),
    Array(Array),
}

/// An array: all elements have one type.
#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    Bool(Vec<bool>),
    String(Vec<String>),
    Array(Vec<Array>),
}

/// All metadata of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    values: BTreeMap<String, Value>,
}

impl Metadata {
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// The value as a `T` (an integer, `f32`, `bool`, `&str`, `&[String]`, or a `Vec` of numbers);
    /// `None` when the key is absent, an error when it holds something else.
    pub fn optional<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<Option<T>, ModelError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match T::from_value(value) {
            Some(value) => Ok(Some(value)),
            None => Err(ModelError::WrongKeyType {
                key: key.to_owned(),
                expected: T::EXPECTED,
                found: value.describe(),
            }),
        }
    }

    /// As [`optional`](Self::optional), but the key must be there.
    pub fn required<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<T, ModelError> {
        self.optional(key)?
            .ok_or_else(|| ModelError::MissingKey(key.to_owned()))
    }

    /// Keys and values, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.values.iter().map(|(key, value)| (key.as_str(), value))
    }

    pub fn len(&self) -> usize {
        self.values.len()
    }

    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Sets a key, replacing what it held.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<Value>) {
        self.values.insert(key.into(), value.into());
    }

    /// Adds a key that must be new.
    pub(super) fn add(&mut self, key: String, value: Value) -> Result<(), ModelError> {
        if self.values.contains_key(&key) {
            return Err(ModelError::DuplicateKey(key));
        }
        self.values.insert(key, value);
        Ok(())
    }
}

impl Value {
    /// Any integer type, when it is one.
    fn as_integer(&self) -> Option<i128> {
        match *self {
            Self::U8(v) => Some(v.into()),
            Self::I8(v) => Some(v.into()),
            Self::U16(v) => Some(v.into()),
            Self::I16(v) => Some(v.into()),
            Self::U32(v) => Some(v.into()),
            Self::I32(v) => Some(v.into()),
            Self::U64(v) => Some(v.into()),
            Self::I64(v) => Some(v.into()),
            _ => None,
        }
    }

    /// What it is, in the words of an error message.
    fn describe(&self) -> String {
        match self {
            Self::F32(v) => format!("the number {v}"),
            Self::F64(v) => format!("the number {v}"),
            Self::Bool(v) => format!("the bool {v}"),
            Self::String(_) => "a string".to_owned(),
            Self::Array(array) => format!("an array of {} {}", array.len(), array.element_name()),
            integer => format!("the integer {}", integer.as_integer().unwrap_or_default()),
        }
    }
}

impl Array {
    pub fn len(&self) -> usize {
        match self {
            Self::U8(v) => v.len(),
            Self::I8(v) => v.len(),
            Self::U16(v) => v.len(),
            Self::I16(v) => v.len(),
            Self::U32(v) => v.len(),
            Self::I32(v) => v.len(),
            Self::U64(v) => v.len(),
            Self::I64(v) => v.len(),
            Self::F32(v) => v.len(),
            Self::F64(v) => v.len(),
            Self::Bool(v) => v.len(),
            Self::String(v) => v.len(),
            Self::Array(v) => v.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn element_name(&self) -> &'static str {
        match self {
            Self::F32(_) | Self::F64(_) => "floats",
            Self::Bool(_) => "bools",
            Self::String(_) => "strings",
            Self::Array(_) => "arrays",
            _ => "integers",
        }
    }

    /// The elements of any integer type as `T`, when all fit.
    fn integers<T>(&self) -> Option<Vec<T>>
    where
        T: TryFrom<u8> + TryFrom<i8> + TryFrom<u16> + TryFrom<i16>,
        T: TryFrom<u32> + TryFrom<i32> + TryFrom<u64> + TryFrom<i64>,
    {
        fn convert<S: Copy, T: TryFrom<S>>(from: &[S]) -> Option<Vec<T>> {
            from.iter().map(|&v| T::try_from(v).ok()).collect()
        }
        match self {
            Self::U8(v) => convert(v),
            Self::I8(v) => convert(v),
            Self::U16(v) => convert(v),
            Self::I16(v) => convert(v),
            Self::U32(v) => convert(v),
            Self::I32(v) => convert(v),
            Self::U64(v) => convert(v),
            Self::I64(v) => convert(v),
            _ => None,
        }
    }
}

/// Types a metadata value can be read as. Integers of any width convert when they fit.
pub trait FromValue<'a>: Sized {
    /// What a value must be, in the words of an error message.
    const EXPECTED: &'static str;

    fn from_value(value: &'a Value) -> Option<Self>;
}

macro_rules! integers_from_value {
    ($($ty:ty, $one:literal, $many:literal;)*) => {$(
        impl FromValue<'_> for $ty {
            const EXPECTED: &'static str = $one;

            fn from_value(value: &Value) -> Option<Self> {
                value.as_integer()?.try_into().ok()
            }
        }

        impl FromValue<'_> for Vec<$ty> {
            const EXPECTED: &'static str = $many;

            fn from_value(value: &Value) -> Option<Self> {
                match value {
                    Value::Array(array) => array.integers(),
                    _ => None,
                }
            }
        }
    )*};
}

integers_from_value! {
    u32, "an unsigned 32-bit integer", "an array of unsigned 32-bit integers";
    i32, "a 32-bit integer", "an array of 32-bit integers";
    u64, "an unsigned integer", "an array of unsigned integers";
    usize, "an unsigned integer", "an array of unsigned integers";
}

impl FromValue<'_> for f32 {
    const EXPECTED: &'static str = "a number";

    fn from_value(value: &Value) -> Option<Self> {
        match *value {
            Value::F32(v) => Some(v),
            Value::F64(v) => Some(v as f32),
            _ => value.as_integer().map(|v| v as f32),
        }
    }
}

impl FromValue<'_> for bool {
    const EXPECTED: &'static str = "a bool";

    fn from_value(value: &Value) -> Option<Self> {
        match *value {
            Value::Bool(v) => Some(v),
            _ => None,
        }
    }
}

impl<'a> FromValue<'a> for &'a str {
    const EXPECTED: &'static str = "a string";

    fn from_value(value: &'a Value) -> Option<Self> {
        match value {
            Value::String(v) => Some(v),
            _ => None,
        }
    }
}

impl<'a> FromValue<'a> for &'a [String] {
    const EXPECTED: &'static str = "an array of strings";

    fn from_value(value: &'a Value) -> Option<Self> {
        match value {
            Value::Array(Array::String(v)) => Some(v),
            _ => None,
        }
    }
}

impl FromValue<'_> for Vec<f32> {
    const EXPECTED: &'static str = "an array of numbers";

    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Array(Array::F32(v)) => Some(v.clone()),
            Value::Array(Array::F64(v)) => Some(v.iter().map(|&v| v as f32).collect()),
            _ => None,
        }
    }
}

impl FromValue<'_> for Vec<bool> {
    const EXPECTED: &'static str = "an array of bools";

    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Array(Array::Bool(v)) => Some(v.clone()),
            _ => None,
        }
    }
}

macro_rules! into_value {
    ($($ty:ty => $make:expr;)*) => {$(
        impl From<$ty> for Value {
            fn from(value: $ty) -> Self {
                $make(value)
            }
        }
    )*};
}

into_value! {
    u32 => Value::U32;
    u64 => Value::U64;
    f32 => Value::F32;
    bool => Value::Bool;
    String => Value::String;
    &str => |v: &str| Value::String(v.to_owned());
    Array => Value::Array;
    Vec<String> => |v| Value::Array(Array::String(v));
    Vec<i32> => |v| Value::Array(Array::I32(v));
    Vec<u32> => |v| Value::Array(Array::U32(v));
    Vec<f32> => |v| Value::Array(Array::F32(v));
    Vec<bool> => |v| Value::Array(Array::Bool(v));
}
