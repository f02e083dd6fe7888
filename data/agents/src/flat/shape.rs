//! Parses an inlined schema into a tree of objects, lists and leaves.
//!
//! Both directions walk this tree, so a single function decides what is flattened: objects whose
//! keys are all declared, and lists of such objects. Unions, type lists, free-form objects and
//! lists of scalars are leaves, which are kept verbatim.

use crate::budgets::{FLAT_BYTES, FLAT_LEAVES};
use serde_json::{Map, Value};
use tooltune_json::PathStep;

use super::error::FlatError;
use super::extent::{n_bytes, path_bytes, too_many_bytes};

/// The shape of a part of a schema.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Shape {
    /// An object that is flattened.
    Object(Vec<Field>),
    /// A list of objects that is flattened into numbered copies.
    List {
        /// The fields of an item.
        item: Vec<Field>,
        /// Number of copies, at least 1.
        n_slots: usize,
        /// Minimum number of items of a valid list.
        min_items: usize,
    },
    /// A part that is unchanged.
    Leaf(Value),
}

/// A property of an object.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Field {
    pub(super) name: String,
    pub(super) is_required: bool,
    pub(super) shape: Shape,
}

/// The fields of the root, which must describe an object.
///
/// Undeclared keys have no flat form, even if the root allows them.
///
/// # Errors
///
/// - the schema does not describe an object
/// - `required`, `minItems` or `maxItems` is malformed, or they contradict each other
pub(super) fn root_fields(schema: &Value, slots: usize) -> Result<Vec<Field>, FlatError> {
    let bad_schema = |reason| FlatError::BadSchema {
        pointer: String::new(),
        reason,
    };
    let is_object = match schema.get("type") {
        None => schema.get("properties").is_some(),
        Some(kind) => kind == "object",
    };
    if !is_object {
        return Err(bad_schema(
            "only a schema of type \"object\" has a flat form",
        ));
    }
    match schema.get("properties") {
        None => Ok(Vec::new()),
        Some(Value::Object(properties)) => ShapeBuilder { slots }.fields(schema, properties, ""),
        Some(_) => Err(bad_schema("properties must be an object")),
    }
}

struct ShapeBuilder {
    slots: usize,
}

impl ShapeBuilder {
    fn fields(
        &self,
        schema: &Value,
        properties: &Map<String, Value>,
        pointer: &str,
    ) -> Result<Vec<Field>, FlatError> {
        let required = required_names(schema, pointer)?;
        let field = |(name, property): (&String, &Value)| {
            let pointer = format!("{pointer}/properties/{name}");
            Ok(Field {
                name: name.clone(),
                is_required: required.contains(&name.as_str()),
                shape: self.shape(property, &pointer)?,
            })
        };
        properties.iter().map(field).collect()
    }

    fn shape(&self, schema: &Value, pointer: &str) -> Result<Shape, FlatError> {
        if let Some(properties) = declared_properties(schema) {
            let fields = self.fields(schema, properties, pointer)?;
            return Ok(Shape::Object(fields));
        }
        let is_list = schema.get("type").is_some_and(|kind| kind == "array");
        let Some(item) = schema.get("items").filter(|_| is_list) else {
            return Ok(Shape::Leaf(schema.clone()));
        };
        let min_items = read_count(schema, "minItems", pointer)?.unwrap_or(0);
        let max_items = read_count(schema, "maxItems", pointer)?.unwrap_or(usize::MAX);
        if min_items > max_items {
            return Err(FlatError::Contradiction {
                pointer: pointer.to_owned(),
                reason: format!("minItems {min_items} is above maxItems {max_items}"),
            });
        }
        let n_slots = self.slots.min(max_items);
        match declared_properties(item) {
            Some(properties) if n_slots > 0 => Ok(Shape::List {
                item: self.fields(item, properties, &format!("{pointer}/items"))?,
                n_slots,
                min_items,
            }),
            _ => Ok(Shape::Leaf(schema.clone())),
        }
    }
}

/// The properties of an object that can be flattened.
fn declared_properties(schema: &Value) -> Option<&Map<String, Value>> {
    let is_object = schema.get("type")? == "object";
    let is_closed = matches!(
        schema.get("additionalProperties"),
        None | Some(Value::Bool(false))
    );
    let has_patterns = schema.get("patternProperties").is_some();
    let properties = schema.get("properties")?.as_object()?;
    (is_object && is_closed && !has_patterns && !properties.is_empty()).then_some(properties)
}

/// The required keys of an object.
///
/// # Errors
///
/// `required` is not an array of strings.
pub(super) fn required_names<'s>(
    schema: &'s Value,
    pointer: &str,
) -> Result<Vec<&'s str>, FlatError> {
    let Some(required) = schema.get("required") else {
        return Ok(Vec::new());
    };
    let names = required.as_array();
    let names: Option<Vec<&str>> =
        names.and_then(|names| names.iter().map(Value::as_str).collect());
    names.ok_or_else(|| FlatError::BadSchema {
        pointer: format!("{pointer}/required"),
        reason: "required must be an array of property names",
    })
}

fn read_count(schema: &Value, keyword: &str, pointer: &str) -> Result<Option<usize>, FlatError> {
    let Some(value) = schema.get(keyword) else {
        return Ok(None);
    };
    // JSON Schema treats 2.0 as an integer.
    let as_integer = value.as_u64().or_else(|| {
        let float = value.as_f64()?;
        (float >= 0.0 && float.fract() == 0.0).then_some(float as u64)
    });
    match as_integer {
        Some(count) => Ok(Some(usize::try_from(count).unwrap_or(usize::MAX))),
        None => Err(FlatError::BadSchema {
            pointer: format!("{pointer}/{keyword}"),
            reason: "the number of items must be a non-negative integer",
        }),
    }
}

/// Whether `null` may be valid under a leaf's schema.
///
/// `nullable` is OpenAPI's keyword for this.
pub(super) fn allows_null(schema: &Value) -> bool {
    let Value::Object(keywords) = schema else {
        return schema != &Value::Bool(false);
    };
    let is_nullable = keywords.get("nullable") == Some(&Value::Bool(true));
    let typed = match keywords.get("type") {
        Some(Value::String(kind)) => kind == "null" || is_nullable,
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "null") || is_nullable,
        _ => true,
    };
    let branches = |keyword: &str| keywords.get(keyword).and_then(Value::as_array);
    let in_any =
        |keyword| branches(keyword).is_none_or(|subschemas| subschemas.iter().any(allows_null));
    typed
        && keywords.get("const").is_none_or(Value::is_null)
        && branches("enum").is_none_or(|values| values.contains(&Value::Null))
        && in_any("anyOf")
        && in_any("oneOf")
        && branches("allOf").is_none_or(|subschemas| subschemas.iter().all(allows_null))
}

/// A leaf with its path in the nested arguments.
#[derive(Debug)]
pub(super) struct PlacedLeaf<'s> {
    pub(super) path: Vec<PathStep>,
    pub(super) schema: &'s Value,
    /// Whether every step to it is required.
    pub(super) is_required: bool,
}

/// The leaves in document order; the slots of a list follow one another.
///
/// # Errors
///
/// There are more than [`FLAT_LEAVES`], or they and their names take more than [`FLAT_BYTES`].
pub(super) fn placed_leaves<'s>(
    fields: &'s [Field],
    separator: &str,
) -> Result<Vec<PlacedLeaf<'s>>, FlatError> {
    let mut collector = Collector {
        path: Vec::new(),
        leaves: Vec::new(),
        separator_bytes: separator.len(),
        n_bytes: 0,
    };
    collector.collect(fields, true)?;
    Ok(collector.leaves)
}

struct Collector<'s> {
    path: Vec<PathStep>,
    leaves: Vec<PlacedLeaf<'s>>,
    separator_bytes: usize,
    /// Bytes of the names and schemas of the leaves.
    n_bytes: usize,
}

impl<'s> Collector<'s> {
    fn collect(&mut self, fields: &'s [Field], is_required: bool) -> Result<(), FlatError> {
        for field in fields {
            let is_required = is_required && field.is_required;
            self.path.push(PathStep::Key(field.name.clone()));
            match &field.shape {
                Shape::Leaf(schema) => self.push(schema, is_required)?,
                Shape::Object(fields) => self.collect(fields, is_required)?,
                Shape::List {
                    item,
                    n_slots,
                    min_items,
                } => {
                    for slot in 0..*n_slots {
                        self.path.push(PathStep::Index(slot));
                        self.collect(item, is_required && slot < *min_items)?;
                        self.path.pop();
                    }
                }
            }
            self.path.pop();
        }
        Ok(())
    }

    fn push(&mut self, schema: &'s Value, is_required: bool) -> Result<(), FlatError> {
        if self.leaves.len() >= FLAT_LEAVES {
            return Err(FlatError::TooLarge {
                what: "leaves (FLAT_LEAVES in docs/limits.md)",
                max: FLAT_LEAVES,
            });
        }
        let name_bytes = path_bytes(&self.path) + self.separator_bytes * self.path.len();
        self.n_bytes += name_bytes + n_bytes(schema);
        if self.n_bytes > FLAT_BYTES {
            return Err(too_many_bytes());
        }
        self.leaves.push(PlacedLeaf {
            path: self.path.clone(),
            schema,
            is_required,
        });
        Ok(())
    }
}
