//! Which column holds the values of a field exactly.
//!
//! A column has one type. Where the values of a field have one, and every value can be told from the
//! column again, the column has it; otherwise it holds JSON texts, by Parquet's and Arrow's own type
//! for them, so that nothing is lost.

use std::sync::Arc;

use arrow_array::{
    ArrayRef, BooleanArray, Float64Array, Int64Array, ListArray, StringArray, StructArray,
};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_schema::extension::Json;
use arrow_schema::{DataType, Field, Fields};
use serde_json::{Map, Value};
use tooltune_rows::json::{Style, dumps};

/// Fields that a struct may have; more are data, such as the properties of schemas.
const MOST_FIELDS: usize = 100;

/// What the values of a field have been so far.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Shape {
    /// Nothing but null, or no value at all.
    Nothing,
    Bool,
    Integer,
    Float,
    Text,
    List(Box<Shape>),
    /// Keys in the order in which every value has them.
    Struct(Vec<(String, Shape)>),
    /// Values that no column has exactly.
    Json,
}

impl Shape {
    /// The shape of what was seen and of a further value.
    pub(crate) fn with(self, value: &Value) -> Self {
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
        match items.iter().fold(inner, Self::with) {
            Self::Json => Self::Json,
            inner => Self::List(Box::new(inner)),
        }
    }

    /// A struct is told again from its column where no field is null, none is missing that others have
    /// in another order, and there is a field at all.
    fn record(mut known: Vec<(String, Self)>, fields: &Map<String, Value>) -> Self {
        if fields.is_empty() || fields.values().any(Value::is_null) {
            return Self::Json;
        }
        let mut next = 0;
        for (key, value) in fields {
            match known.iter().position(|(name, _)| name == key) {
                Some(at) if at < next => return Self::Json,
                Some(at) => next = at,
                None => known.insert(next, (key.clone(), Self::Nothing)),
            }
            let shape = std::mem::replace(&mut known[next].1, Self::Nothing);
            known[next].1 = shape.with(value);
            if known[next].1 == Self::Json || known.len() > MOST_FIELDS {
                return Self::Json;
            }
            next += 1;
        }
        Self::Struct(known)
    }

    /// Whether some part was never seen with a value, so that it has no type.
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

/// The values of a column of this shape; every value has it.
fn array(shape: &Shape, values: &[Option<&Value>]) -> ArrayRef {
    let each = values
        .iter()
        .map(|value| value.filter(|value| !value.is_null()));
    match shape {
        Shape::Bool => Arc::new(
            each.map(|v| v.and_then(Value::as_bool))
                .collect::<BooleanArray>(),
        ),
        Shape::Integer => Arc::new(
            each.map(|v| v.and_then(Value::as_i64))
                .collect::<Int64Array>(),
        ),
        Shape::Float => Arc::new(
            each.map(|v| v.and_then(Value::as_f64))
                .collect::<Float64Array>(),
        ),
        Shape::Text => Arc::new(
            each.map(|v| v.and_then(Value::as_str))
                .collect::<StringArray>(),
        ),
        Shape::Json | Shape::Nothing => {
            let texts = each.map(|value| value.map(|value| dumps(value, Style::Python)));
            Arc::new(texts.collect::<StringArray>())
        }
        Shape::List(inner) => {
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
        Shape::Struct(fields) => {
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

/// The columns of rows, in the order in which their fields came first.
#[derive(Debug, Default)]
pub(crate) struct Columns {
    columns: Vec<Column>,
}

#[derive(Debug)]
struct Column {
    name: String,
    shape: Shape,
    n_null: usize,
}

impl Columns {
    /// Takes a further row into account.
    pub(crate) fn add(&mut self, row: &Map<String, Value>) {
        for (name, value) in row {
            let place = self.columns.iter().position(|column| column.name == *name);
            let place = place.unwrap_or_else(|| {
                self.columns.push(Column {
                    name: name.clone(),
                    shape: Shape::Nothing,
                    n_null: 0,
                });
                self.columns.len() - 1
            });
            let column = &mut self.columns[place];
            column.n_null += usize::from(value.is_null());
            let shape = std::mem::replace(&mut column.shape, Shape::Nothing);
            column.shape = shape.with(value);
        }
    }

    /// A name for each column that holds JSON texts.
    pub(crate) fn json_texts(&self) -> impl Iterator<Item = &str> {
        let texts = self.columns.iter().filter(|column| column.is_json_text());
        texts.map(|column| column.name.as_str())
    }

    /// What of the rows is not in the columns, in sentences.
    pub(crate) fn losses(&self) -> Vec<String> {
        let with_null = self.columns.iter().filter(|column| column.n_null > 0);
        with_null
            .map(|Column { name, shape, n_null }| match shape {
                Shape::Nothing => format!(
                    "the field {name:?} is null in every row that has it ({n_null}); there is no \
                     column of it"
                ),
                _ => format!(
                    "the field {name:?} is null in {n_null} rows; columns cannot tell that from rows \
                     without it, which is how it is read again"
                ),
            })
            .collect()
    }

    /// The columns of some rows, as [`Columns::schema`] names them.
    pub(crate) fn arrays(&self, rows: &[Map<String, Value>]) -> Vec<ArrayRef> {
        let known = self.columns.iter();
        let known = known.filter(|column| column.shape != Shape::Nothing);
        known
            .map(|column| {
                let values: Vec<_> = rows.iter().map(|row| row.get(&column.name)).collect();
                match column.is_json_text() {
                    true => array(&Shape::Json, &values),
                    false => array(&column.shape, &values),
                }
            })
            .collect()
    }

    pub(crate) fn schema(&self) -> arrow_schema::Schema {
        let known = self.columns.iter();
        let known = known.filter(|column| column.shape != Shape::Nothing);
        let fields = known.map(|column| match column.is_json_text() {
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
            Shape::Nothing => false,
            Shape::Json => true,
            ref shape => shape.is_open(),
        }
    }
}
