//! The Python values that JSON and simple functions produce, and their equality.

use indexmap::IndexMap;
use num_bigint::BigInt;
use serde_json::Value;

use super::json::dumps;
use super::number::Number;

/// A dictionary with string keys, in insertion order; equality ignores the order.
pub type PyDict = IndexMap<String, PyValue>;

/// A Python value.
///
/// There is no `PartialEq`, because the caller decides whether `True` equals 1: see
/// [`PyValue::equals`].
#[derive(Debug, Clone, Default)]
pub enum PyValue {
    /// `None`.
    #[default]
    None,
    /// `True` or `False`.
    Bool(bool),
    /// An integer of any size.
    Int(BigInt),
    /// A 64-bit float, including NaN and the infinities.
    Float(f64),
    /// A string. Lone surrogates, which Python allows, are U+FFFD here.
    Text(String),
    /// A list.
    List(Vec<PyValue>),
    /// A tuple; it never equals a list.
    Tuple(Vec<PyValue>),
    /// A dictionary with string keys.
    Dict(PyDict),
    /// Any other object, as its `repr`; it equals nothing.
    Other(String),
}

/// Whether `True` equals the number 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Booleans {
    /// As in Python: `True == 1` and `False == 0.0`.
    AreNumbers,
    /// A boolean equals only booleans.
    AreApart,
}

impl PyValue {
    /// Whether two values are equal under Python's `==`, with the given rule for booleans.
    ///
    /// NaN equals nothing. Integers and floats are compared by their exact values.
    pub fn equals(&self, other: &Self, booleans: Booleans) -> bool {
        let all_equal = |left: &[Self], right: &[Self]| {
            let mut pairs = left.iter().zip(right);
            left.len() == right.len() && pairs.all(|(left, right)| left.equals(right, booleans))
        };
        match (self, other) {
            (Self::None, Self::None) => true,
            (Self::Bool(left), Self::Bool(right)) => left == right,
            (Self::Bool(_), _) | (_, Self::Bool(_)) if booleans == Booleans::AreApart => false,
            (Self::Text(left), Self::Text(right)) => left == right,
            (Self::List(left), Self::List(right)) | (Self::Tuple(left), Self::Tuple(right)) => {
                all_equal(left, right)
            }
            (Self::Dict(left), Self::Dict(right)) => {
                let has_equal = |(key, left): (&String, &Self)| {
                    let right = right.get(key);
                    right.is_some_and(|right| left.equals(right, booleans))
                };
                left.len() == right.len() && left.iter().all(has_equal)
            }
            _ => match (self.number(), other.number()) {
                (Some(left), Some(right)) => left.equals(&right),
                _ => false,
            },
        }
    }

    /// The value as a number; booleans are 0 and 1.
    pub fn number(&self) -> Option<Number> {
        match self {
            Self::Bool(holds) => Some(Number::Int(BigInt::from(u8::from(*holds)))),
            Self::Int(integer) => Some(Number::Int(integer.clone())),
            Self::Float(float) => Some(Number::Float(*float)),
            _ => None,
        }
    }

    /// The value if it is a string.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The items if it is a list.
    pub fn as_list(&self) -> Option<&[Self]> {
        match self {
            Self::List(items) => Some(items),
            _ => None,
        }
    }

    /// The fields if it is a dictionary.
    pub fn as_dict(&self) -> Option<&PyDict> {
        match self {
            Self::Dict(fields) => Some(fields),
            _ => None,
        }
    }

    /// A field of a dictionary.
    pub fn get(&self, key: &str) -> Option<&Self> {
        self.as_dict()?.get(key)
    }

    /// The value as JSON; `None` if it contains NaN, an infinity or another value without JSON.
    pub fn to_json(&self) -> Option<Value> {
        crate::parse(&dumps(self)).ok()
    }

    /// Python's name of the type: `int`, `NoneType`.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::None => "NoneType",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Float(_) => "float",
            Self::Text(_) => "str",
            Self::List(_) => "list",
            Self::Tuple(_) => "tuple",
            Self::Dict(_) => "dict",
            Self::Other(_) => "object",
        }
    }
}

impl From<Number> for PyValue {
    fn from(number: Number) -> Self {
        match number {
            Number::Int(integer) => Self::Int(integer),
            Number::Float(float) => Self::Float(float),
        }
    }
}

impl From<&Value> for PyValue {
    /// Numbers that `serde_json` stores as integers become integers, all others floats.
    fn from(value: &Value) -> Self {
        match value {
            Value::Null => Self::None,
            Value::Bool(holds) => Self::Bool(*holds),
            Value::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
                (Some(integer), _, _) => Self::Int(integer.into()),
                (_, Some(integer), _) => Self::Int(integer.into()),
                (_, _, Some(float)) => Self::Float(float),
                _ => Self::Other(number.to_string()),
            },
            Value::String(text) => Self::Text(text.clone()),
            Value::Array(items) => Self::List(items.iter().map(Self::from).collect()),
            Value::Object(fields) => Self::Dict(
                fields
                    .iter()
                    .map(|(key, field)| (key.clone(), field.into()))
                    .collect(),
            ),
        }
    }
}
