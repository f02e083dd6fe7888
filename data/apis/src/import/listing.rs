//! Parses OpenAPI 3 or Swagger 2 documents and lists their operations by name.

use std::collections::HashMap;

use serde_json::Value;
use tooltune_json as json;
use tooltune_json::yaml;

use super::openapi::OperationNames;
use super::reference::{Part, Spec};
use super::swagger;
use crate::error::ToolsError;

pub(super) const METHODS: [&str; 8] = [
    "get", "put", "post", "delete", "options", "head", "patch", "trace",
];

/// A parsed specification.
#[derive(Debug)]
pub(super) struct SpecText {
    pub(super) root: Value,
    /// Source text of scalars, for YAML.
    pub(super) source_texts: Option<HashMap<String, String>>,
}

impl SpecText {
    /// Parses a document as JSON if it starts with `{`, otherwise as YAML.
    ///
    /// # Errors
    ///
    /// - the source is neither JSON nor YAML, or neither OpenAPI 3 nor Swagger 2
    pub(super) fn parse(text: &str) -> Result<Self, ToolsError> {
        let parsed = if text.trim_start().starts_with('{') {
            Self {
                root: json::parse(text).map_err(|error| ToolsError::NotJson { error })?,
                source_texts: None,
            }
        } else {
            let read = yaml::parse_document(text);
            let document = read.map_err(|error| ToolsError::NotYaml { error })?;
            Self {
                root: document.value,
                source_texts: Some(document.source_texts),
            }
        };
        let parsed = match swagger::is_swagger(&parsed.root) {
            true => Self {
                root: swagger::to_openapi(parsed.root),
                ..parsed
            },
            false => parsed,
        };
        check_version(&parsed.root_part())?;
        Ok(parsed)
    }

    /// The whole specification as a part.
    pub(super) fn root_part(&self) -> Part<'_> {
        Part {
            value: &self.root,
            pointer: String::new(),
        }
    }
}

fn check_version(root: &Part<'_>) -> Result<(), ToolsError> {
    if root.value.get("swagger").is_some() {
        return Err(root.invalid("swagger must be 2.0; convert Swagger 1 to OpenAPI 3 first"));
    }
    let version = match root.value.get("openapi") {
        Some(Value::String(version)) => version.clone(),
        Some(Value::Number(version)) => version.to_string(),
        _ => String::new(),
    };
    if version != "3" && !version.starts_with("3.") {
        return Err(
            root.invalid("openapi must be 3.x, or swagger 2.0; is this an OpenAPI document?")
        );
    }
    Ok(())
}

/// An operation, located by path and method.
pub(super) struct ListedOperation<'a> {
    /// Name in calls.
    pub(super) name: String,
    /// Method in lower case.
    pub(super) method: &'a str,
    pub(super) path: &'a str,
    pub(super) item: PathItem<'a>,
    pub(super) operation: Part<'a>,
}

impl ListedOperation<'_> {
    /// `METHOD /path`.
    pub(super) fn endpoint(&self) -> String {
        endpoint(self.method, self.path)
    }
}

fn endpoint(method: &str, path: &str) -> String {
    format!("{} {path}", method.to_uppercase())
}

/// Definitions shared by all operations of a path, from the path item and from the path item that
/// it references.
#[derive(Clone)]
pub(super) struct PathItem<'a> {
    /// If the path item has both a reference and its own keys, its own keys are the first part.
    parts: Vec<Part<'a>>,
}

impl<'a> PathItem<'a> {
    fn new(spec: Spec<'a>, item: Part<'a>) -> Result<Self, ToolsError> {
        let resolved = spec.resolve(item.clone())?;
        if !resolved.value.is_object() {
            return Err(resolved.invalid("a path must be an object of operations"));
        }
        let has_more = |part: &Part<'a>| part.value.as_object().is_some_and(|all| all.len() > 1);
        let is_reference = item.value.get("$ref").is_some();
        let own_part = (is_reference && has_more(&item)).then_some(item);
        Ok(Self {
            parts: own_part.into_iter().chain([resolved]).collect(),
        })
    }

    /// The operations in source order, starting with the operations of the path item itself.
    fn operations(&self) -> Vec<(&'a str, Part<'a>)> {
        let mut operations: Vec<(&'a str, Part<'a>)> = Vec::new();
        for part in &self.parts {
            let fields = part.value.as_object();
            let keys = fields.into_iter().flat_map(|fields| fields.keys());
            for key in keys.filter(|key| METHODS.contains(&key.as_str())) {
                let is_known = operations.iter().any(|(known, _)| known == key);
                if let Some(operation) = part.child(key).filter(|_| !is_known) {
                    operations.push((key, operation));
                }
            }
        }
        operations
    }

    /// Parameters shared by all operations; a later one overrides an earlier one with the same
    /// name.
    pub(super) fn parameters(&self) -> Vec<Part<'a>> {
        let parts = self.parts.iter().rev();
        parts.flat_map(|part| part.elements("parameters")).collect()
    }
}

/// The operations of a specification in source order.
///
/// # Errors
///
/// - a path reference does not resolve, or is not an object of operations
/// - there are no operations
pub(super) fn operations<'a>(
    spec: Spec<'a>,
    root: &Part<'a>,
    names: OperationNames,
) -> Result<Vec<ListedOperation<'a>>, ToolsError> {
    let mut all_operations = Vec::new();
    for (path, item) in root.members("paths") {
        if !path.starts_with('/') {
            continue;
        }
        let item = PathItem::new(spec, item)?;
        for (method, operation) in item.operations() {
            all_operations.push(ListedOperation {
                name: endpoint(method, path),
                method,
                path,
                item: item.clone(),
                operation,
            });
        }
    }
    if all_operations.is_empty() {
        let what = "operations under /paths";
        return Err(ToolsError::Empty { what });
    }
    if names == OperationNames::Ids {
        name_by_ids(spec, &mut all_operations);
    }
    Ok(all_operations)
}

/// Names operations by `operationId` if it is unique.
fn name_by_ids(spec: Spec<'_>, operations: &mut [ListedOperation<'_>]) {
    let mut n_of: HashMap<&str, usize> = HashMap::new();
    for one in operations.iter() {
        *n_of.entry(one.operation.text("operationId")).or_default() += 1;
    }
    let n_without = n_of.remove("").unwrap_or_default();
    let mut n_repeated = 0;
    for one in operations.iter_mut() {
        let id = one.operation.text("operationId");
        match n_of.get(id) {
            Some(1) => id.clone_into(&mut one.name),
            Some(_) => {
                n_repeated += 1;
                spec.enter(&one.endpoint());
                let what = "operations with a duplicate operationId, named by method and path";
                spec.report(what, &format!("operationId {id}"));
            }
            None => {}
        }
    }
    // If no operation has an id, naming by path is expected and not reported.
    if n_without > 0 && n_without + n_repeated < operations.len() {
        for one in operations.iter() {
            if one.operation.text("operationId").is_empty() {
                spec.enter(&one.endpoint());
                let what = "operations without an operationId, named by method and path";
                spec.report(what, "");
            }
        }
    }
    spec.enter("");
}
