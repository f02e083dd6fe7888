//! The tools of a row, as what calls are held to.

use serde_json::{Map, Value};
use tooltune_rows::text::DeclaredTool;

/// Schemas within each other that are looked into, and references that lead from one to the next.
const MAX_LEVELS: usize = 16;

/// Schemas that are looked at for one question. Branches that lead back to each other multiply.
const MAX_LOOKS: usize = 1_000;

/// The tools that a model may call.
///
/// Of two tools of one name the first counts.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ToolSet {
    tools: Vec<DeclaredTool>,
    /// Whether a name could not be read, so that a call of no known name may be of that tool.
    has_unread: bool,
}

impl ToolSet {
    /// Reads the `tools` of a row, in OpenAI's form or the inner objects alone.
    pub fn new(tools: &[Value]) -> Self {
        let read: Vec<DeclaredTool> = tools.iter().filter_map(DeclaredTool::of).collect();
        Self {
            has_unread: read.len() < tools.len(),
            tools: read,
        }
    }

    /// The tool of that name.
    pub(super) fn named(&self, name: &str) -> Option<&DeclaredTool> {
        self.tools.iter().find(|tool| tool.name == name)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.tools.iter().map(|tool| tool.name.as_str())
    }

    /// Whether no tool has the name.
    pub(super) fn is_invented(&self, name: &str) -> bool {
        !self.has_unread && self.named(name).is_none()
    }

    /// Levels of objects and lists in the arguments of a tool: 1 where all are scalars, and 2 where
    /// one is a list of them. None where the tool or its schema is not known.
    pub(super) fn depth(&self, name: &str) -> Option<usize> {
        let schema = self.named(name)?.parameters.as_ref()?;
        Some(depth(Schema::whole(schema), 0, &mut { MAX_LOOKS }).max(1))
    }
}

/// A part of a schema, and the whole that its references lead into.
#[derive(Debug, Clone, Copy)]
pub(super) struct Schema<'s> {
    root: &'s Value,
    at: &'s Value,
}

impl<'s> Schema<'s> {
    pub(super) fn whole(root: &'s Value) -> Self {
        Self { root, at: root }
    }

    fn part(self, at: &'s Value) -> Self {
        Self { at, ..self }
    }

    /// What the schema says of the value of a key, itself or in its branches.
    pub(super) fn property(self, key: &str) -> Option<Self> {
        self.find(&|schema| {
            schema
                .at
                .get("properties")?
                .get(key)
                .map(|at| schema.part(at))
        })
    }

    /// What the schema says of an item of a list.
    pub(super) fn item(self, idx: usize) -> Option<Self> {
        self.find(&|schema| {
            let first = schema
                .at
                .get("prefixItems")
                .and_then(|first| first.get(idx));
            first
                .or_else(|| schema.at.get("items"))
                .map(|at| schema.part(at))
        })
    }

    /// The value that counts where none is given.
    pub(super) fn default(self) -> Option<&'s Value> {
        let given = self.find(&|schema| Some(schema.part(schema.at.get("default")?)));
        given.map(|default| default.at)
    }

    /// Whether the schema names a type among those that a value may have.
    pub(super) fn has_type(self, word: &str) -> bool {
        let is_named = |schema: Self| match schema.at.get("type")? {
            Value::String(only) => (only == word).then_some(schema),
            Value::Array(several) => several.iter().any(|one| one == word).then_some(schema),
            _ => None,
        };
        self.find(&is_named).is_some()
    }

    /// The first answer of the schema and its branches.
    fn find(self, found: &dyn Fn(Self) -> Option<Self>) -> Option<Self> {
        self.find_within(0, &mut { MAX_LOOKS }, found)
    }

    fn find_within(
        self,
        level: usize,
        n_looks: &mut usize,
        found: &dyn Fn(Self) -> Option<Self>,
    ) -> Option<Self> {
        if level == MAX_LEVELS || *n_looks == 0 {
            return None;
        }
        *n_looks -= 1;
        found(self).or_else(|| {
            let mut branches = self.branches();
            branches.find_map(|branch| branch.find_within(level + 1, n_looks, found))
        })
    }

    /// What its reference leads to within the whole, and its alternatives.
    fn branches(self) -> impl Iterator<Item = Self> {
        let target = self.at.get("$ref").and_then(Value::as_str);
        let target = target.and_then(|target| self.root.pointer(target.strip_prefix('#')?));
        let lists = ["allOf", "anyOf", "oneOf"].map(|keyword| self.at.get(keyword));
        let lists = lists.into_iter().flatten().filter_map(Value::as_array);
        let all = target.into_iter().chain(lists.flatten());
        all.map(move |at| self.part(at))
    }
}

fn depth(schema: Schema<'_>, level: usize, n_looks: &mut usize) -> usize {
    if level == MAX_LEVELS || *n_looks == 0 {
        return 0;
    }
    *n_looks -= 1;
    let properties = schema.at.get("properties").and_then(Value::as_object);
    let properties = properties.into_iter().flat_map(Map::values);
    let first = schema.at.get("prefixItems").and_then(Value::as_array);
    let items = schema.at.get("items").into_iter();
    let items = items.chain(first.into_iter().flatten());
    let below = properties
        .chain(items)
        .map(|part| 1 + depth(schema.part(part), level + 1, n_looks));
    let below = below.max().unwrap_or(0);
    let bare = usize::from(schema.has_type("object") || schema.has_type("array"));
    let branches = schema.branches();
    let branches = branches.map(|branch| depth(branch, level + 1, n_looks));
    branches.max().unwrap_or(0).max(below).max(bare)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn depth_of(parameters: Value) -> Option<usize> {
        ToolSet::new(&[json!({"name": "f", "parameters": parameters})]).depth("f")
    }

    #[test]
    fn depth_counts_objects_and_lists() {
        let scalar = json!({"type": "integer"});
        for (parameters, levels) in [
            (json!({"type": "object", "properties": {}}), 1),
            (json!({"type": "dict", "properties": {"n": scalar}}), 1),
            (
                json!({"type": "object", "properties": {"l": {"type": "list", "items": scalar}}}),
                2,
            ),
            (
                json!({"type": "object", "properties": {"o": {"type": "object"}}}),
                2,
            ),
            (
                json!({"type": "object", "properties": {"l": {"type": "array", "items":
                    {"type": "object", "properties": {"n": scalar}}}}}),
                3,
            ),
            (
                json!({"type": "object", "properties": {"p": {"anyOf": [{"$ref": "#/$defs/p"},
                    {"type": "null"}]}}, "$defs": {"p": {"properties": {"x": scalar}}}}),
                2,
            ),
        ] {
            assert_eq!(depth_of(parameters.clone()), Some(levels), "{parameters}");
        }
        assert_eq!(
            depth_of(json!({"city": {"type": "string"}, "days": 3})),
            None
        );
        let circle = json!({"properties": {"next": {"$ref": "#"}}});
        assert_eq!(depth_of(circle), Some(MAX_LEVELS / 2));
        let lost = json!({"properties": {"a": {"$ref": "#/$defs/none"}}});
        assert_eq!(depth_of(lost), Some(1));
    }

    #[test]
    fn a_tool_without_a_readable_name_may_be_meant_by_any_call() {
        let named = json!({"type": "function", "function": {"name": "f"}});
        assert!(ToolSet::new(std::slice::from_ref(&named)).is_invented("g"));
        assert!(!ToolSet::new(&[named.clone(), json!({"function": {}})]).is_invented("g"));
        assert!(!ToolSet::new(&[named]).is_invented("f"));
    }
}
