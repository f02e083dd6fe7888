//! Builds values from parser events, with an explicit stack.

use std::collections::HashMap;

use granit_parser::{Event, Marker, Options, Parser, ScalarStyle, Tag};
use indexmap::IndexMap;
use serde_json::{Map, Value};

use super::YamlDocument;
use super::error::{YamlError, too_many_levels};
use super::scalar::{Plain, resolve_plain_scalar, resolve_tagged_scalar};
use crate::MAX_LEVELS;
use crate::budgets::{JSON_VALUES, YAML_ALIAS_BYTES};

const MERGE_KEY: &str = "<<";

/// A value with the source text of its scalars.
#[derive(Debug, Clone)]
enum Node {
    /// The source text, kept if JSON writes the value differently.
    Scalar(Value, Option<Box<str>>),
    List(Vec<Node>),
    Mapping(IndexMap<String, Node>),
}

/// A node that aliases may repeat.
struct Anchored {
    node: Node,
    n_values: usize,
    n_bytes: usize,
    n_levels: usize,
}

/// A collection that is still open.
struct OpenCollection {
    node: Node,
    /// The key of the next value.
    key: Option<Key>,
    anchor: usize,
    start: Marker,
    /// The totals before this collection.
    before: Totals,
    /// Levels below this one.
    n_levels: usize,
    /// Merged mappings. Their keys are used unless the mapping itself has a key of the same name.
    merged: Vec<(String, Node)>,
}

struct Key {
    text: String,
    is_merge: bool,
}

/// Totals of the values built so far.
#[derive(Debug, Clone, Copy, Default)]
struct Totals {
    n_values: usize,
    n_bytes: usize,
}

#[derive(Default)]
struct Reader {
    open: Vec<OpenCollection>,
    anchors: HashMap<usize, Anchored>,
    totals: Totals,
    /// Bytes of text that aliases repeated.
    n_alias_bytes: usize,
    root: Option<Node>,
}

pub(super) fn read(text: &str) -> Result<YamlDocument, YamlError> {
    let mut options = Options::default();
    options.set_emit_comments(false);
    options.block_nesting_limit = MAX_LEVELS;
    options.flow_nesting_limit = MAX_LEVELS;
    let mut parser = Parser::new_from_str_with_options(text, options);
    let mut reader = Reader::default();
    let mut n_documents = 0;
    while let Some(event) = parser.next_event() {
        let (event, span) = event.map_err(|error| YamlError::from_scan_error(&error, text))?;
        if matches!(event, Event::DocumentStart(..)) {
            n_documents += 1;
            if n_documents > 1 {
                let reason = "a second document begins; use one document per file";
                return Err(YamlError::at_marker(&span.start, reason));
            }
        }
        reader.event(event, &span.start)?;
    }
    let mut source_texts = HashMap::new();
    let value = match reader.root {
        Some(node) => node.into_value(&mut String::new(), &mut source_texts),
        None => Value::Null,
    };
    Ok(YamlDocument {
        value,
        source_texts,
    })
}

impl Reader {
    fn event(&mut self, event: Event<'_>, at: &Marker) -> Result<(), YamlError> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let tag = tag.as_deref();
                if self.expects_key() {
                    let is_merge =
                        text == MERGE_KEY && style == ScalarStyle::Plain && tag.is_none();
                    return self.key(text.into_owned(), is_merge, at);
                }
                let n_bytes = text.len();
                let node = scalar(&text, style, tag, at)?;
                self.charge(1, n_bytes, at)?;
                if anchor != 0 {
                    let anchored = Anchored {
                        node: node.clone(),
                        n_values: 1,
                        n_bytes,
                        n_levels: 0,
                    };
                    self.anchors.insert(anchor, anchored);
                }
                self.add_node(node, 0, at)
            }
            Event::SequenceStart(_, anchor, tag) => {
                check_tag(tag.as_deref(), "seq", at)?;
                self.open_collection(Node::List(Vec::new()), anchor, at)
            }
            Event::MappingStart(_, anchor, tag) => {
                check_tag(tag.as_deref(), "map", at)?;
                self.open_collection(Node::Mapping(IndexMap::new()), anchor, at)
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            Event::Alias(anchor) => self.alias(anchor, at),
            _ => Ok(()),
        }
    }

    fn expects_key(&self) -> bool {
        let open = self.open.last();
        open.is_some_and(|open| matches!(open.node, Node::Mapping(_)) && open.key.is_none())
    }

    fn key(&mut self, text: String, is_merge: bool, at: &Marker) -> Result<(), YamlError> {
        self.charge(0, text.len(), at)?;
        let Some(open) = self.open.last_mut() else {
            return Ok(());
        };
        let is_repeated = |fields: &IndexMap<String, Node>| fields.contains_key(&text);
        if matches!(&open.node, Node::Mapping(fields) if !is_merge && is_repeated(fields)) {
            let reason = format!("the key {text:?} occurs twice; delete one of the two");
            return Err(YamlError::at_marker(at, reason));
        }
        open.key = Some(Key { text, is_merge });
        Ok(())
    }

    fn open_collection(&mut self, node: Node, anchor: usize, at: &Marker) -> Result<(), YamlError> {
        if self.expects_key() {
            return Err(not_a_key(at));
        }
        if self.open.len() == MAX_LEVELS {
            return Err(YamlError::at_marker(at, too_many_levels()));
        }
        let totals_before = self.totals;
        self.charge(1, 0, at)?;
        self.open.push(OpenCollection {
            node,
            key: None,
            anchor,
            start: *at,
            before: totals_before,
            n_levels: 0,
            merged: Vec::new(),
        });
        Ok(())
    }

    fn end(&mut self) -> Result<(), YamlError> {
        let Some(open) = self.open.pop() else {
            return Ok(());
        };
        let at = open.start;
        let mut node = open.node;
        if let Node::Mapping(fields) = &mut node {
            // The mapping's own keys take precedence, then the keys of the first merged mapping.
            for (key, node) in open.merged {
                fields.entry(key).or_insert(node);
            }
        }
        let n_levels = open.n_levels + 1;
        if open.anchor != 0 {
            let anchored = Anchored {
                node: node.clone(),
                n_values: self.totals.n_values - open.before.n_values,
                n_bytes: self.totals.n_bytes - open.before.n_bytes,
                n_levels,
            };
            // An alias repeats its node as a separate copy, whose values are also charged.
            self.charge(anchored.n_values, 0, &at)?;
            self.anchors.insert(open.anchor, anchored);
        }
        self.add_node(node, n_levels, &at)
    }

    fn alias(&mut self, anchor: usize, at: &Marker) -> Result<(), YamlError> {
        let Some(anchored) = self.anchors.get(&anchor) else {
            let reason = "the anchor contains itself; write the value out";
            return Err(YamlError::at_marker(at, reason));
        };
        let (n_values, n_bytes) = (anchored.n_values, anchored.n_bytes);
        let n_levels = anchored.n_levels;
        if self.expects_key() {
            return match &self.anchors[&anchor].node {
                Node::Scalar(Value::String(text), _) => {
                    let text = text.clone();
                    self.key(text, false, at)
                }
                _ => Err(not_a_key(at)),
            };
        }
        if self.open.len() + n_levels > MAX_LEVELS {
            return Err(YamlError::at_marker(at, too_many_levels()));
        }
        self.n_alias_bytes = self.n_alias_bytes.saturating_add(n_bytes);
        if self.n_alias_bytes > YAML_ALIAS_BYTES {
            let reason = format!(
                "aliases repeat more than {YAML_ALIAS_BYTES} bytes of text, the limit \
                 (YAML_ALIAS_BYTES in docs/limits.md); shorten the repeated text"
            );
            return Err(YamlError::at_marker(at, reason));
        }
        self.charge(n_values, n_bytes, at)?;
        let node = self.anchors[&anchor].node.clone();
        self.add_node(node, n_levels, at)
    }

    /// Adds a node to the innermost open collection.
    fn add_node(&mut self, node: Node, n_levels: usize, at: &Marker) -> Result<(), YamlError> {
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        open.n_levels = open.n_levels.max(n_levels);
        match (&mut open.node, open.key.take()) {
            (Node::Mapping(_), Some(key)) if key.is_merge => {
                let merged_fields = match node {
                    Node::Mapping(fields) => Some(fields.into_iter().collect()),
                    Node::List(items) => mappings(items),
                    Node::Scalar(..) => None,
                };
                let reason = "a merge key needs a mapping or a list of mappings";
                let merged_fields =
                    merged_fields.ok_or_else(|| YamlError::at_marker(at, reason))?;
                open.merged.extend(merged_fields);
            }
            (Node::Mapping(fields), Some(key)) => {
                fields.insert(key.text, node);
            }
            (Node::List(items), _) => items.push(node),
            _ => {}
        }
        Ok(())
    }

    fn charge(&mut self, n_values: usize, n_bytes: usize, at: &Marker) -> Result<(), YamlError> {
        self.totals.n_values = self.totals.n_values.saturating_add(n_values);
        self.totals.n_bytes = self.totals.n_bytes.saturating_add(n_bytes);
        let max_values = JSON_VALUES.max_values();
        if self.totals.n_values > max_values {
            let reason = format!(
                "the document has more than {max_values} values, including aliases, the limit \
                 (JSON_VALUES in docs/limits.md); split it"
            );
            return Err(YamlError::at_marker(at, reason));
        }
        Ok(())
    }
}

fn mappings(items: Vec<Node>) -> Option<Vec<(String, Node)>> {
    let mut all = Vec::new();
    for item in items {
        match item {
            Node::Mapping(fields) => all.extend(fields),
            _ => return None,
        }
    }
    Some(all)
}

fn not_a_key(at: &Marker) -> YamlError {
    YamlError::at_marker(at, "a key must be a string, not a list or a mapping")
}

fn scalar(
    text: &str,
    style: ScalarStyle,
    tag: Option<&Tag>,
    at: &Marker,
) -> Result<Node, YamlError> {
    if let Some(tag) = tag {
        // `!` without a name makes a scalar a string.
        let name = match tag.parts() {
            ("!", "") | ("", "!") => "str",
            _ => tag.core_suffix().ok_or_else(|| unknown_tag(tag, at))?,
        };
        let value = resolve_tagged_scalar(name, text).ok_or_else(|| {
            YamlError::at_marker(at, format!("the tag !!{name} does not fit {text:?}"))
        })?;
        return Ok(Node::scalar(value, text));
    }
    if style != ScalarStyle::Plain {
        return Ok(Node::Scalar(Value::from(text), None));
    }
    match resolve_plain_scalar(text) {
        Plain::Value(value) => Ok(Node::scalar(value, text)),
        Plain::NotJson => {
            let reason = format!("JSON has no number for {text:?}; quote it, or remove it");
            Err(YamlError::at_marker(at, reason))
        }
    }
}

fn check_tag(tag: Option<&Tag>, expected: &str, at: &Marker) -> Result<(), YamlError> {
    match tag {
        Some(tag) if !tag.is_yaml_core_schema_tag(expected) => Err(unknown_tag(tag, at)),
        _ => Ok(()),
    }
}

fn unknown_tag(tag: &Tag, at: &Marker) -> YamlError {
    let reason = format!(
        "the tag {} is not supported; write the value itself",
        tag.original()
    );
    YamlError::at_marker(at, reason)
}

impl Node {
    fn scalar(value: Value, text: &str) -> Self {
        let is_as_json = match &value {
            Value::String(_) => true,
            value => serde_json::to_string(value).is_ok_and(|json| json == text),
        };
        Self::Scalar(value, (!is_as_json).then(|| Box::from(text)))
    }

    /// Returns the value, and adds the source texts of its scalars by pointer.
    fn into_value(self, pointer: &mut String, source_texts: &mut HashMap<String, String>) -> Value {
        let n_before = pointer.len();
        match self {
            Self::Scalar(value, text) => {
                if let Some(text) = text {
                    source_texts.insert(pointer.clone(), text.into());
                }
                value
            }
            Self::List(items) => {
                let mut values = Vec::with_capacity(items.len());
                for (at, item) in items.into_iter().enumerate() {
                    pointer.push('/');
                    pointer.push_str(&at.to_string());
                    values.push(item.into_value(pointer, source_texts));
                    pointer.truncate(n_before);
                }
                Value::Array(values)
            }
            Self::Mapping(fields) => {
                let mut map = Map::new();
                for (key, node) in fields {
                    pointer.push('/');
                    pointer.push_str(&key.replace('~', "~0").replace('/', "~1"));
                    map.insert(key, node.into_value(pointer, source_texts));
                    pointer.truncate(n_before);
                }
                Value::Object(map)
            }
        }
    }
}
