//! Chooses a column type that stores the values of a field exactly.
//!
//! A column has one type. If all values of a field have one type and can be restored exactly from
//! the column, the column has that type. Otherwise it stores JSON strings, marked by Parquet's and
//! Arrow's own types, so nothing is lost.

use std::sync::Arc;

use arrow_array::{
    ArrayRef, BooleanArray, Float64Array, Int64Array, ListArray, StringArray, StructArray,
};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_schema::extension::Json;
use arrow_schema::{DataType, Field, Fields};
use serde_json::{Map, Value};
use tooltune_json::{Style, dumps};

/// Maximum fields of a struct; objects with more are treated as data, such as the properties of
/// schemas.
const MAX_FIELDS: usize = 100;

/// The values of a field so far.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum FieldShape {
    /// Only nulls, or no value at all.
    Nothing,
    Bool,
    Integer,
    Float,
    Text,
    List(Box<FieldShape>),
    /// The keys in the order that every value has.
    Struct(Vec<(String, FieldShape)>),
    /// Values that no column type stores exactly.
    Json,
}

impl FieldShape {
    /// The shape after adding a value.
    pub(crate) fn merge_value(self, value: &Value) -> Self {
        match (self, value) {
            (Self::Json, _) => Self::Json,
            (shape, Value::Null) => shape,
            (Self::Nothing | Self::Bool, Value::Bool(_)) => Self::Bool,
            (Self::Nothing | Self::Integer, Value::Number(number)) if number.is_i64() => {
                Self::Integer
            }
            (Self::Nothing | Self::Float, Value::Number(number)) if number.is_f64() => Self::Float,
            (Self::Nothing | Self::Text, Value::String(_)) => Self::Text,
            (Self::Nothing, Value::Array(items)) => Self::list(Self::Nothing, items),
            (Self::List(inner), Value::Array(items)) => Self::list(*inner, items),
            (Self::Nothing, Value::Object(fields)) => Self::record(Vec::new(), fields),
            (Self::Struct(known), Value::Object(fields)) => Self::record(known, fields),
            _ => Self::Json,
        }
    }

    fn list(inner: Self, items: &[Value]) -> Self {
        match items.iter().fold(inner, Self::merge_value) {
            Self::Json => Self::Json,
            inner => Self::List(Box::new(inner)),
        }
    }

    /// A struct can be restored from its column if it has at least one field, no field is null, and
    /// no missing field would change the order of the others.
    fn record(mut shapes: Vec<(String, Self)>, fields: &Map<String, Value>) -> Self {
        if fields.is_empty() || fields.values().any(Value::is_null) {
            return Self::Json;
        }
        let mut next = 0;
        for (key, value) in fields {
            match shapes.iter().position(|(name, _)| name == key) {
                Some(at) if at < next => return Self::Json,
                Some(at) => next = at,
                None => shapes.insert(next, (key.clone(), Self::Nothing)),
            }
            let shape = std::mem::replace(&mut shapes[next].1, Self::Nothing);
            shapes[next].1 = shape.merge_value(value);
            if shapes[next].1 == Self::Json || shapes.len() > MAX_FIELDS {
                return Self::Json;
            }
            next += 1;
        }
        Self::Struct(shapes)
    }

    /// Whether some part has no value yet and therefore no type.
    fn is_open(&self) -> bool {
        match self {
            Self::Nothing => true,
            Self::List(inner) => inner.is_open(),
            Self::Struct(fields) => fields.iter().any(|(_, shape)| shape.is_open()),
            Self::Bool | Self::Integer | Self::Float | Self::Text | Self::Json => false,
        }
    }

    fn data_type(&self) -> DataType {
        match self {
            Self::Bool => DataType::Boolean,
            Self::Integer => DataType::Int64,
            Self::Float => DataType::Float64,
            Self::Text | Self::Json | Self::Nothing => DataType::Utf8,
            Self::List(inner) => {
                DataType::List(Arc::new(Field::new("item", inner.data_type(), true)))
            }
            Self::Struct(fields) => {
                let fields = fields.iter();
                let fields = fields.map(|(name, shape)| Field::new(name, shape.data_type(), true));
                DataType::Struct(fields.collect::<Fields>())
            }
        }
    }
}

/// Builds a column of values that all have this shape.
fn array(shape: &FieldShape, values: &[Option<&Value>]) -> ArrayRef {
    let each = values
        .iter()
        .map(|value| value.filter(|value| !value.is_null()));
    match shape {
        FieldShape::Bool => Arc::new(
            each.map(|v| v.and_then(Value::as_bool))
                .collect::<BooleanArray>(),
        ),
        FieldShape::Integer => Arc::new(
            each.map(|v| v.and_then(Value::as_i64))
                .collect::<Int64Array>(),
        ),
        FieldShape::Float => Arc::new(
            each.map(|v| v.and_then(Value::as_f64))
                .collect::<Float64Array>(),
        ),
        FieldShape::Text => Arc::new(
            each.map(|v| v.and_then(Value::as_str))
                .collect::<StringArray>(),
        ),
        FieldShape::Json | FieldShape::Nothing => {
            let texts = each.map(|value| value.map(|value| dumps(value, Style::Python)));
            Arc::new(texts.collect::<StringArray>())
        }
        FieldShape::List(inner) => {
            let lists: Vec<Option<&Vec<Value>>> =
                each.map(|value| value.and_then(Value::as_array)).collect();
            let lengths = lists.iter().map(|list| list.map_or(0, Vec::len));
            let offsets = OffsetBuffer::from_lengths(lengths);
            let nulls: NullBuffer = lists.iter().map(Option::is_some).collect();
            let items: Vec<Option<&Value>> = lists
                .iter()
                .flatten()
                .flat_map(|list| list.iter().map(Some))
                .collect();
            let field = Arc::new(Field::new("item", inner.data_type(), true));
            Arc::new(ListArray::new(
                field,
                offsets,
                array(inner, &items),
                Some(nulls),
            ))
        }
        FieldShape::Struct(fields) => {
            let records: Vec<Option<&Map<String, Value>>> =
                each.map(|value| value.and_then(Value::as_object)).collect();
            let nulls: NullBuffer = records.iter().map(Option::is_some).collect();
            let arrays = fields.iter().map(|(name, shape)| {
                let values = records.iter();
                let values: Vec<Option<&Value>> = values
                    .map(|record| record.and_then(|record| record.get(name)))
                    .collect();
                let field = Arc::new(Field::new(name, shape.data_type(), true));
                (field, array(shape, &values))
            });
            let (fields, arrays): (Vec<_>, Vec<_>) = arrays.unzip();
            Arc::new(StructArray::new(fields.into(), arrays, Some(nulls)))
        }
    }
}

/// The columns of rows, in the order in which their fields first occurred.
#[derive(Debug, Default)]
pub(crate) struct Columns {
    columns: Vec<Column>,
}

#[derive(Debug)]
struct Column {
    name: String,
    shape: FieldShape,
    n_null: usize,
}

impl Columns {
    /// Adds a row.
    pub(crate) fn add(&mut self, row: &Map<String, Value>) {
        for (name, value) in row {
            let idx = self.columns.iter().position(|column| column.name == *name);
            let idx = idx.unwrap_or_else(|| {
                self.columns.push(Column {
                    name: name.clone(),
                    shape: FieldShape::Nothing,
                    n_null: 0,
                });
                self.columns.len() - 1
            });
            let column = &mut self.columns[idx];
            column.n_null += usize::from(value.is_null());
            let shape = std::mem::replace(&mut column.shape, FieldShape::Nothing);
            column.shape = shape.merge_value(value);
        }
    }

    /// The names of columns that store JSON strings.
    pub(crate) fn json_texts(&self) -> impl Iterator<Item = &str> {
        let texts = self.columns.iter().filter(|column| column.is_json_text());
        texts.map(|column| column.name.as_str())
    }

    /// Information that the columns do not store, as sentences.
    pub(crate) fn losses(&self) -> Vec<String> {
        let with_null = self.columns.iter().filter(|column| column.n_null > 0);
        with_null
            .map(|Column { name, shape, n_null }| match shape {
                FieldShape::Nothing => format!(
                    "the field {name:?} is null in every row that has it ({n_null}), so it has no \
                     column"
                ),
                _ => format!(
                    "the field {name:?} is null in {n_null} rows; columns cannot distinguish them from rows \
                     without the field, so these rows are read back without it"
                ),
            })
            .collect()
    }

    /// The columns of some rows, as in [`Columns::schema`].
    pub(crate) fn arrays(&self, rows: &[Map<String, Value>]) -> Vec<ArrayRef> {
        let columns = self.columns.iter();
        let columns = columns.filter(|column| column.shape != FieldShape::Nothing);
        columns
            .map(|column| {
                let values: Vec<_> = rows.iter().map(|row| row.get(&column.name)).collect();
                match column.is_json_text() {
                    true => array(&FieldShape::Json, &values),
                    false => array(&column.shape, &values),
                }
            })
            .collect()
    }

    pub(crate) fn schema(&self) -> arrow_schema::Schema {
        let columns = self.columns.iter();
        let columns = columns.filter(|column| column.shape != FieldShape::Nothing);
        let fields = columns.map(|column| match column.is_json_text() {
            true => {
                Field::new(&column.name, DataType::Utf8, true).with_extension_type(Json::default())
            }
            false => Field::new(&column.name, column.shape.data_type(), true),
        });
        arrow_schema::Schema::new(fields.collect::<Fields>())
    }
}

impl Column {
    fn is_json_text(&self) -> bool {
        match self.shape {
            FieldShape::Nothing => false,
            FieldShape::Json => true,
            ref shape => shape.is_open(),
        }
    }
}
