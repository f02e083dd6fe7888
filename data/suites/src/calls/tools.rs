//! The tools of a row, against which calls are checked.

use serde_json::{Map, Value};
use tooltune_rows::text::DeclaredTool;

/// Maximum nesting depth of schemas, and maximum length of reference chains, to search.
const MAX_LEVELS: usize = 16;

/// Maximum number of schemas visited per query, because recursive branches multiply.
const MAX_VISITS: usize = 1_000;

/// The tools that a model may call.
///
/// If two tools have the same name, the first is used.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ToolSet {
    tools: Vec<DeclaredTool>,
    /// Whether the name of a tool could not be parsed, so that an unknown name may refer to that
    /// tool.
    has_unnamed_tools: bool,
}

impl ToolSet {
    /// Parses the `tools` of a row, in OpenAI format or as bare function objects.
    pub fn new(tools: &[Value]) -> Self {
        let declared: Vec<DeclaredTool> =
            tools.iter().filter_map(DeclaredTool::from_value).collect();
        Self {
            has_unnamed_tools: declared.len() < tools.len(),
            tools: declared,
        }
    }

    /// The tool with this name.
    pub(super) fn find_tool(&self, name: &str) -> Option<&DeclaredTool> {
        self.tools.iter().find(|tool| tool.name == name)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.tools.iter().map(|tool| tool.name.as_str())
    }

    /// Whether no tool has this name.
    pub(super) fn is_unknown(&self, name: &str) -> bool {
        !self.has_unnamed_tools && self.find_tool(name).is_none()
    }

    /// Levels of objects and lists in the arguments of a tool: 1 if all arguments are scalars, 2 if
    /// an argument is a list of scalars. `None` if the tool or its schema is unknown.
    pub(super) fn depth(&self, name: &str) -> Option<usize> {
        let schema = self.find_tool(name)?.parameters.as_ref()?;
        Some(depth(Schema::from_root(schema), 0, &mut { MAX_VISITS }).max(1))
    }
}

/// A part of a schema, and the root schema for its references.
#[derive(Debug, Clone, Copy)]
pub(super) struct Schema<'s> {
    root: &'s Value,
    at: &'s Value,
}

impl<'s> Schema<'s> {
    pub(super) fn from_root(root: &'s Value) -> Self {
        Self { root, at: root }
    }

    fn with_node(self, value: &'s Value) -> Self {
        Self { at: value, ..self }
    }

    /// The schema of a key's value, from the schema itself or its branches.
    pub(super) fn property(self, key: &str) -> Option<Self> {
        self.find_in_branches(&|schema| {
            schema
                .at
                .get("properties")?
                .get(key)
                .map(|at| schema.with_node(at))
        })
    }

    /// The schema of a list item.
    pub(super) fn item(self, idx: usize) -> Option<Self> {
        self.find_in_branches(&|schema| {
            let first_item = schema
                .at
                .get("prefixItems")
                .and_then(|first_item| first_item.get(idx));
            first_item
                .or_else(|| schema.at.get("items"))
                .map(|at| schema.with_node(at))
        })
    }

    /// The default value.
    pub(super) fn default(self) -> Option<&'s Value> {
        let default_value =
            self.find_in_branches(&|schema| Some(schema.with_node(schema.at.get("default")?)));
        default_value.map(|default| default.at)
    }

    /// Whether the schema allows a type by name.
    pub(super) fn has_type(self, type_name: &str) -> bool {
        let is_named = |schema: Self| match schema.at.get("type")? {
            Value::String(name) => (name == type_name).then_some(schema),
            Value::Array(several) => several.iter().any(|one| one == type_name).then_some(schema),
            _ => None,
        };
        self.find_in_branches(&is_named).is_some()
    }

    /// Whether the schema lists this string among its allowed values.
    pub(super) fn has_choice(self, text: &str) -> bool {
        let is_named = |schema: Self| {
            let choices = schema.at.get("enum").and_then(Value::as_array);
            let mut literals = choices.into_iter().flatten().chain(schema.at.get("const"));
            literals.any(|choice| choice == text).then_some(schema)
        };
        self.find_in_branches(&is_named).is_some()
    }

    /// The first result of `select` for the schema and its branches.
    fn find_in_branches(self, select: &dyn Fn(Self) -> Option<Self>) -> Option<Self> {
        self.find_within(0, &mut { MAX_VISITS }, select)
    }

    fn find_within(
        self,
        level: usize,
        n_visits_left: &mut usize,
        select: &dyn Fn(Self) -> Option<Self>,
    ) -> Option<Self> {
        if level == MAX_LEVELS || *n_visits_left == 0 {
            return None;
        }
        *n_visits_left -= 1;
        select(self).or_else(|| {
            let mut branches = self.branches();
            branches.find_map(|branch| branch.find_within(level + 1, n_visits_left, select))
        })
    }

    /// The target of its reference, and its alternatives.
    fn branches(self) -> impl Iterator<Item = Self> {
        let target = self.at.get("$ref").and_then(Value::as_str);
        let target = target.and_then(|target| self.root.pointer(target.strip_prefix('#')?));
        let lists = ["allOf", "anyOf", "oneOf"].map(|keyword| self.at.get(keyword));
        let lists = lists.into_iter().flatten().filter_map(Value::as_array);
        let subschemas = target.into_iter().chain(lists.flatten());
        subschemas.map(move |at| self.with_node(at))
    }
}

fn depth(schema: Schema<'_>, level: usize, n_visits_left: &mut usize) -> usize {
    if level == MAX_LEVELS || *n_visits_left == 0 {
        return 0;
    }
    *n_visits_left -= 1;
    let properties = schema.at.get("properties").and_then(Value::as_object);
    let properties = properties.into_iter().flat_map(Map::values);
    let first_item = schema.at.get("prefixItems").and_then(Value::as_array);
    let items = schema.at.get("items").into_iter();
    let items = items.chain(first_item.into_iter().flatten());
    let child_depth = properties
        .chain(items)
        .map(|part| 1 + depth(schema.with_node(part), level + 1, n_visits_left));
    let child_depth = child_depth.max().unwrap_or(0);
    let own_depth = usize::from(schema.has_type("object") || schema.has_type("array"));
    let branches = schema.branches();
    let branches = branches.map(|branch| depth(branch, level + 1, n_visits_left));
    branches.max().unwrap_or(0).max(child_depth).max(own_depth)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn depth_of(parameters: Value) -> Option<usize> {
        ToolSet::new(&[json!({"name": "f", "parameters": parameters})]).depth("f")
    }

    #[test]
    fn schema_depth_counts_objects_and_lists() {
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
        let dangling = json!({"properties": {"a": {"$ref": "#/$defs/none"}}});
        assert_eq!(depth_of(dangling), Some(1));
    }

    #[test]
    fn any_call_may_refer_to_a_tool_without_a_readable_name() {
        let named_tool = json!({"type": "function", "function": {"name": "f"}});
        assert!(ToolSet::new(std::slice::from_ref(&named_tool)).is_unknown("g"));
        assert!(!ToolSet::new(&[named_tool.clone(), json!({"function": {}})]).is_unknown("g"));
        assert!(!ToolSet::new(&[named_tool]).is_unknown("f"));
    }
}
