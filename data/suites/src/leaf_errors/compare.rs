//! Compares two values leaf by leaf.

use std::collections::{HashMap, VecDeque};

use serde_json::Value;
use tooltune_json::{Style, dumps, kind_of};

use super::{ComparedLeaf, LeafErrorKind};
use crate::leaves::scalar_text;

/// Levels that are compared. Deeper containers are leaves; parsed JSON has at most 128 levels.
const MAX_DEPTH: usize = 200;

/// Length of a displayed path, in characters.
const MAX_PATH: usize = 200;

/// A key or an index of a path.
#[derive(Debug, Clone, Copy)]
enum Step<'v> {
    Key(&'v str),
    Index,
}

/// A node of the paths of both values; equal paths share their nodes.
struct Node<'v> {
    parent: usize,
    step: Step<'v>,
    /// Number of the last key of the path, the same for equal keys.
    last_key: Option<usize>,
    /// Number of steps from the root.
    depth: usize,
    /// One more than the position of the last reference leaf below whose path the prediction has.
    last_in_place: usize,
}

/// A reference leaf whose path the prediction lacks.
struct Absent<'v> {
    /// Index among the compared leaves.
    leaf: usize,
    node: usize,
    value: &'v Value,
    /// Number of leading steps of the path that lead to containers of the right type.
    n_present: usize,
}

/// A leaf of the prediction whose path the reference lacks.
struct Surplus<'v> {
    node: usize,
    value: &'v Value,
    /// Whether it is part of a value of the wrong type, which is reported at the reference leaf.
    is_reported: bool,
    is_matched: bool,
}

/// What identifies the same leaf at another path: the last key, the type and the text of the value.
type LeafKey = (Option<usize>, &'static str, String);

/// Compares a prediction with a reference. Paths start with `root`.
pub(super) fn compare(root: &str, prediction: &Value, reference: &Value) -> Vec<ComparedLeaf> {
    let mut comparison = Comparison::new(root);
    comparison.visit(reference, prediction, ROOT);
    comparison.find_misplaced();
    comparison.add_invented();
    comparison.leaves
}

/// All leaves of a value with the same error.
pub(super) fn all_wrong(root: &str, value: &Value, kind: LeafErrorKind) -> Vec<ComparedLeaf> {
    let mut comparison = Comparison::new(root);
    comparison.for_each_leaf(value, ROOT, &mut |comparison, node, _| {
        comparison.add(node, Some(kind));
    });
    comparison.leaves
}

/// Index of the root node.
const ROOT: usize = 0;

struct Comparison<'r, 'v> {
    root: &'r str,
    nodes: Vec<Node<'v>>,
    /// Numbers of the keys. Comparing numbers keeps the work linear, however long the keys are.
    key_numbers: HashMap<&'v str, usize>,
    leaves: Vec<ComparedLeaf>,
    absent: Vec<Absent<'v>>,
    surplus: Vec<Surplus<'v>>,
}

/// The number of children of a container; `None` for a leaf.
fn n_children(value: &Value, depth: usize) -> Option<usize> {
    let n = match value {
        Value::Object(fields) => fields.len(),
        Value::Array(items) => items.len(),
        _ => 0,
    };
    (n > 0 && depth < MAX_DEPTH).then_some(n)
}

impl<'r, 'v> Comparison<'r, 'v> {
    fn new(root: &'r str) -> Self {
        Self {
            root,
            nodes: vec![Node {
                parent: ROOT,
                step: Step::Index,
                last_key: None,
                depth: 0,
                last_in_place: 0,
            }],
            key_numbers: HashMap::new(),
            leaves: Vec::new(),
            absent: Vec::new(),
            surplus: Vec::new(),
        }
    }

    fn child(&mut self, parent: usize, step: Step<'v>) -> usize {
        let n_keys = self.key_numbers.len();
        let last_key = match step {
            Step::Key(key) => Some(*self.key_numbers.entry(key).or_insert(n_keys)),
            Step::Index => self.nodes[parent].last_key,
        };
        self.nodes.push(Node {
            parent,
            step,
            last_key,
            depth: self.nodes[parent].depth + 1,
            last_in_place: 0,
        });
        self.nodes.len() - 1
    }

    fn add(&mut self, node: usize, error: Option<LeafErrorKind>) {
        let (path, depth) = (self.path(node), self.nodes[node].depth);
        self.leaves.push(ComparedLeaf {
            path,
            depth,
            error,
            found_at: None,
            tool: None,
        });
    }

    /// Adds a reference leaf whose path the prediction has.
    fn add_in_place(&mut self, node: usize, error: Option<LeafErrorKind>) {
        self.add(node, error);
        self.nodes[node].last_in_place = self.leaves.len();
    }

    /// Compares the values at a path that both have.
    fn visit(&mut self, reference: &'v Value, prediction: &'v Value, node: usize) {
        let depth = self.nodes[node].depth;
        match (reference, prediction) {
            (Value::Object(fields), Value::Object(predicted)) if depth < MAX_DEPTH => {
                if fields.is_empty() {
                    self.add_in_place(node, None);
                }
                for (key, field) in fields {
                    let child = self.child(node, Step::Key(key));
                    match predicted.get(key) {
                        Some(value) => self.visit(field, value, child),
                        None => self.add_absent(field, child, depth, LeafErrorKind::Missing),
                    }
                    self.close(child);
                }
                for (key, value) in predicted {
                    if !fields.contains_key(key) {
                        let child = self.child(node, Step::Key(key));
                        self.add_surplus(value, child, false);
                    }
                }
            }
            (Value::Array(items), Value::Array(predicted)) if depth < MAX_DEPTH => {
                if items.is_empty() {
                    self.add_in_place(node, None);
                }
                for (idx, item) in items.iter().enumerate() {
                    let child = self.child(node, Step::Index);
                    match predicted.get(idx) {
                        Some(value) => self.visit(item, value, child),
                        None => self.add_absent(item, child, depth, LeafErrorKind::Missing),
                    }
                    self.close(child);
                }
                for value in predicted.iter().skip(items.len()) {
                    let child = self.child(node, Step::Index);
                    self.add_surplus(value, child, false);
                }
            }
            _ if n_children(reference, depth).is_none()
                && n_children(prediction, depth).is_none() =>
            {
                let error = match (kind_of(reference), kind_of(prediction)) {
                    _ if is_equal_leaf(reference, prediction) => None,
                    (left, right) if left == right => Some(LeafErrorKind::WrongValue),
                    _ => Some(LeafErrorKind::WrongType),
                };
                self.add_in_place(node, error);
            }
            _ => {
                let n_present = depth.saturating_sub(1);
                self.add_absent(reference, node, n_present, LeafErrorKind::WrongType);
                self.add_surplus(prediction, node, true);
            }
        }
    }

    /// Passes the last leaf in place on to the parent.
    fn close(&mut self, node: usize) {
        let (parent, last) = (self.nodes[node].parent, self.nodes[node].last_in_place);
        let known = &mut self.nodes[parent].last_in_place;
        *known = last.max(*known);
    }

    fn add_absent(&mut self, value: &'v Value, node: usize, n_present: usize, kind: LeafErrorKind) {
        self.for_each_leaf(value, node, &mut |this, node, value| {
            let leaf = this.leaves.len();
            this.add(node, Some(kind));
            this.absent.push(Absent {
                leaf,
                node,
                value,
                n_present,
            });
        });
    }

    fn add_surplus(&mut self, value: &'v Value, node: usize, is_reported: bool) {
        self.for_each_leaf(value, node, &mut |this, node, value| {
            this.surplus.push(Surplus {
                node,
                value,
                is_reported,
                is_matched: false,
            });
        });
    }

    fn for_each_leaf(
        &mut self,
        value: &'v Value,
        node: usize,
        found: &mut dyn FnMut(&mut Self, usize, &'v Value),
    ) {
        match (n_children(value, self.nodes[node].depth), value) {
            (Some(_), Value::Object(fields)) => {
                for (key, field) in fields {
                    let child = self.child(node, Step::Key(key));
                    self.for_each_leaf(field, child, found);
                }
            }
            (Some(_), Value::Array(items)) => {
                for item in items {
                    let child = self.child(node, Step::Index);
                    self.for_each_leaf(item, child, found);
                }
            }
            _ => found(self, node, value),
        }
    }

    /// Pairs absent leaves with equal surplus leaves under the same last key, both in order.
    fn find_misplaced(&mut self) {
        if self.absent.is_empty() || self.surplus.is_empty() {
            return;
        }
        let mut by_key: HashMap<LeafKey, VecDeque<usize>> = HashMap::new();
        for (idx, surplus) in self.surplus.iter().enumerate() {
            let key = self.leaf_key(surplus.node, surplus.value);
            by_key.entry(key).or_default().push_back(idx);
        }
        for absent in std::mem::take(&mut self.absent) {
            let key = self.leaf_key(absent.node, absent.value);
            let Some(surplus) = by_key.get_mut(&key).and_then(VecDeque::pop_front) else {
                continue;
            };
            self.surplus[surplus].is_matched = true;
            let found = self.surplus[surplus].node;
            let kind = self.misplacement(&absent, found);
            let found_at = self.path(found);
            let leaf = &mut self.leaves[absent.leaf];
            leaf.error = Some(kind);
            leaf.found_at = Some(found_at);
        }
    }

    fn add_invented(&mut self) {
        for surplus in std::mem::take(&mut self.surplus) {
            if !surplus.is_matched && !surplus.is_reported {
                self.add(surplus.node, Some(LeafErrorKind::Invented));
            }
        }
    }

    fn leaf_key(&self, node: usize, value: &Value) -> LeafKey {
        let last_key = self.nodes[node].last_key;
        (last_key, kind_of(value), scalar_text(value))
    }

    /// How a leaf came to another path.
    fn misplacement(&self, absent: &Absent<'_>, found: usize) -> LeafErrorKind {
        let (expected, found) = (self.keys(absent.node), self.keys(found));
        let key = |node: usize| self.nodes[node].last_key;
        let is_same = |idx: usize| key(expected[idx]) == key(found[idx]);
        if expected.len() == found.len() && (0..expected.len()).all(is_same) {
            return LeafErrorKind::ArrayConfusion;
        }
        // Both paths have the same last key, so neither is empty here. The wrappers are the keys
        // before it that the other path lacks.
        let (parents, found_parents) = (&expected[..expected.len() - 1], &found[..found.len() - 1]);
        let (mut n_shared, mut wrappers) = (0, Vec::new());
        for &parent in parents {
            match found_parents.get(n_shared) {
                Some(&other) if key(parent) == key(other) => n_shared += 1,
                _ => wrappers.push(parent),
            }
        }
        let (Some(&outer), Some(&inner)) = (wrappers.first(), wrappers.last()) else {
            return LeafErrorKind::WrongLevel;
        };
        if n_shared < found_parents.len() {
            return LeafErrorKind::WrongLevel;
        }
        let exists = |node: usize| self.nodes[node].depth <= absent.n_present;
        let is_closed_before = self.nodes[outer].last_in_place <= absent.leaf;
        match (exists(outer), exists(inner)) {
            (false, _) => LeafErrorKind::MissingWrapper,
            (true, _) if is_closed_before => LeafErrorKind::PrematureClose,
            (true, false) => LeafErrorKind::MissingWrapper,
            (true, true) => LeafErrorKind::WrongLevel,
        }
    }

    /// The nodes of a path from its end to the root, without the root.
    fn steps_up(&self, node: usize) -> impl Iterator<Item = &Node<'v>> {
        let mut next = node;
        std::iter::from_fn(move || {
            let node = (next != ROOT).then(|| &self.nodes[next])?;
            next = node.parent;
            Some(node)
        })
    }

    /// The nodes of a path that are keys, from the root.
    fn keys(&self, node: usize) -> Vec<usize> {
        let (mut keys, mut next) = (Vec::new(), node);
        while next != ROOT {
            if matches!(self.nodes[next].step, Step::Key(_)) {
                keys.push(next);
            }
            next = self.nodes[next].parent;
        }
        keys.reverse();
        keys
    }

    /// The path for people, at most [`MAX_PATH`] characters of its end.
    fn path(&self, node: usize) -> String {
        let mut parts: Vec<String> = Vec::new();
        let mut length = 0;
        for node in self.steps_up(node) {
            let part = match node.step {
                Step::Index => "[]".to_owned(),
                Step::Key(key) => key_text(key),
            };
            length += part.chars().count();
            if length > MAX_PATH {
                parts.push("…".to_owned());
                parts.reverse();
                return parts.concat();
            }
            parts.push(part);
        }
        parts.push(self.root.to_owned());
        parts.reverse();
        parts.concat()
    }
}

/// A key in a path: `.key`, or `["a key"]` if it is not a plain name.
fn key_text(key: &str) -> String {
    /// Length of a displayed key.
    const MAX_KEY: usize = 60;
    let is_plain = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    let shown: String = key.chars().take(MAX_KEY).collect();
    let dots = if shown.len() < key.len() { "…" } else { "" };
    if !shown.is_empty() && shown.chars().all(is_plain) {
        format!(".{shown}{dots}")
    } else {
        let text = dumps(&Value::from(shown + dots), Style::Compact);
        format!("[{text}]")
    }
}

/// Whether two leaves are equal: numbers by value, everything else by type and value.
fn is_equal_leaf(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(_), Value::Number(_)) => scalar_text(left) == scalar_text(right),
        _ => left == right,
    }
}
