//! Imports an OpenAPI 3 document as one [`ApiDocument`] per operation.
//!
//! The API name is the `operationId`, or `METHOD /path/{x}` as in RestBench's reference paths;
//! `tool_name` is empty ([`OperationNames`]). [`RequestBodies`] selects whether body fields become
//! parameters. A model needs them to create a playlist, for example, but published parameter counts
//! exclude them.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::Path;

use serde_json::Value;

use super::body::{body_fields, schema_kind};
use super::discarded::LeftOut;
use super::listing::{ListedOperation, METHODS, PathItem, SpecText, operations};
use super::reference::{ImportState, Part, STEP_BYTES, Spec};
use super::schema::{Direction, convert_schema};
use crate::document::{ApiDocument, ApiParameter};
use crate::error::ToolsError;
use crate::parameter_schema::ParameterSchema;
use crate::source::read_text;

/// Bytes of a parameter without its strings.
const PARAMETER_BYTES: usize = 64;

/// Number of bytes that can be searched in the time that copying one byte takes.
const SEARCHED_BYTES_PER_COPIED: usize = 64;

/// Whether request body fields become parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestBodies {
    /// Body fields become parameters unless a path or query parameter has the same name.
    AsParameters,
    /// Body fields are omitted, as in the published parameter counts of RestBench: TMDB 145,
    /// Spotify 81.
    LeftOut,
}

/// How operations are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OperationNames {
    /// `operationId`; `METHOD /path` if there is none or it is not unique.
    #[default]
    Ids,
    /// `METHOD /path`.
    Paths,
}

/// Options of the import.
#[derive(Clone, Copy)]
pub struct OpenApiOptions<'w> {
    /// Whether request body fields become parameters.
    pub bodies: RequestBodies,
    /// How operations are named.
    pub names: OperationNames,
    /// Progress callback, called before each operation with the number done and the total.
    pub watch: &'w dyn Fn(usize, usize),
}

impl fmt::Debug for OpenApiOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenApiOptions")
            .field("bodies", &self.bodies)
            .field("names", &self.names)
            .finish_non_exhaustive()
    }
}

impl From<RequestBodies> for OpenApiOptions<'_> {
    fn from(bodies: RequestBodies) -> Self {
        Self {
            bodies,
            names: OperationNames::default(),
            watch: &|_, _| {},
        }
    }
}

/// Imported documents and the discarded information.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ImportedApis {
    /// The documents, in source order.
    pub documents: Vec<ApiDocument>,
    /// Information that documents cannot represent.
    pub left_out: LeftOut,
}

/// Reads a specification file in JSON or YAML, optionally gzip-compressed.
///
/// # Errors
///
/// - the file cannot be read
/// - the errors of [`import_openapi`]
pub fn import_openapi_file<'w>(
    path: &Path,
    options: impl Into<OpenApiOptions<'w>>,
) -> Result<ImportedApis, ToolsError> {
    import_openapi(&read_text(path)?, options).map_err(|error| error.at(path.display().to_string()))
}

/// Reads a specification, as JSON if it starts with `{`, otherwise as YAML.
///
/// Returns one document per operation, in source order:
///
/// - `api_name` is the `operationId`, or `METHOD /path` ([`OperationNames`]); `tool_name` is empty
///   and `method` is the method
/// - `category_name` is the operation's tags, or the title of the specification
/// - `api_description` is summary and description
/// - the parameters are first the path item's, overridden by the operation's, and then the fields
///   of the request body. Each name occurs once; the order of precedence is path, query, header,
///   cookie, body. Header names are compared without case. The headers `Accept`, `Content-Type` and
///   `Authorization` are omitted, as OpenAPI specifies
/// - path parameters are required; other parameters are required if the specification marks them so
/// - allowed values are appended to a parameter's description; its schema is kept, with references
///   expanded, if it contains more than the type
/// - `output_description` is the description of the first 2xx response and `output_schema` its JSON
///   Schema. The schema is `{"type": "null"}` if this response has no content but other responses
///   of the specification have some
///
/// # Errors
///
/// - the source is not JSON or YAML, not an object, or not OpenAPI 3
/// - a `$ref` does not resolve, refers to another document, or is circular; the error gives its
///   JSON pointer
/// - a parameter has no name or an invalid location
/// - there are no operations
pub fn import_openapi<'w>(
    text: &str,
    options: impl Into<OpenApiOptions<'w>>,
) -> Result<ImportedApis, ToolsError> {
    import_parsed(&SpecText::parse(text)?, &options.into())
}

/// Like [`import_openapi`], for a parsed document.
pub(super) fn import_parsed(
    parsed: &SpecText,
    options: &OpenApiOptions<'_>,
) -> Result<ImportedApis, ToolsError> {
    import_with(parsed, options, ImportState::default())
}

/// Like [`import_parsed`]; adds the resource usage to `state`.
pub(super) fn import_with(
    parsed: &SpecText,
    options: &OpenApiOptions<'_>,
    state: ImportState,
) -> Result<ImportedApis, ToolsError> {
    let spec = Spec::new(&parsed.root, &state).with_source_texts(parsed.source_texts.as_ref());
    let root = parsed.root_part();
    for name in ["security", "webhooks"] {
        if root.value.get(name).is_some() {
            spec.report(&format!("{name} of a specification"), &format!("/{name}"));
        }
    }
    let listed = operations(spec, &root, options.names)?;
    let has_contents = spec.has_contents(&root);
    let mut documents = Vec::with_capacity(listed.len());
    for (n_read, one) in listed.iter().enumerate() {
        (options.watch)(n_read, listed.len());
        spec.enter(&one.endpoint());
        let mut document = document(spec, one, options.bodies)?;
        document.method = one.method.to_uppercase();
        document.output_schema = output_schema(spec, one.method, &one.operation, has_contents)?;
        document.api_name.clone_from(&one.name);
        documents.push(document);
    }
    Ok(ImportedApis {
        documents,
        left_out: state.into_discarded(),
    })
}

/// The document of an operation without its name.
fn document<'a>(
    spec: Spec<'a>,
    listed: &ListedOperation<'a>,
    bodies: RequestBodies,
) -> Result<ApiDocument, ToolsError> {
    let ListedOperation {
        item, operation, ..
    } = listed;
    if !operation.value.is_object() {
        return Err(operation.invalid("an operation must be an object"));
    }
    let mut document = ApiDocument {
        category_name: category(spec, operation),
        api_description: description(operation.text("summary"), operation.text("description")),
        output_description: output(spec, operation)?,
        operation_id: operation.text("operationId").to_owned(),
        ..ApiDocument::new("", "")
    };
    for name in ["callbacks", "security", "servers"] {
        if operation.value.get(name).is_some() {
            spec.report(&format!("{name} of operations"), "");
        }
    }
    // Count these copies, because many operations may share a path item, title or response.
    let texts = [
        &document.category_name,
        &document.api_description,
        &document.output_description,
    ];
    spec.charge(texts.map(String::len).iter().sum(), operation)?;
    let mut names = HashSet::new();
    for (_, found) in located_parameters(spec, item, operation)? {
        names.insert(found.parameter.name.clone());
        document.add(found.parameter, found.is_required);
    }
    if bodies == RequestBodies::AsParameters {
        for field in body_fields(spec, operation)? {
            if names.insert(field.parameter.name.clone()) {
                document.add(field.parameter, field.is_required);
            } else {
                let what =
                    "body fields that have the same name as a parameter, which calls cannot use";
                spec.report(what, &format!("field {}", field.parameter.name));
            }
        }
    }
    Ok(document)
}

impl ApiDocument {
    pub(super) fn add(&mut self, parameter: ApiParameter, is_required: bool) {
        if is_required {
            self.required_parameters.push(parameter);
        } else {
            self.optional_parameters.push(parameter);
        }
    }
}

fn category(spec: Spec<'_>, operation: &Part<'_>) -> String {
    let tags = operation.elements("tags");
    let tags: Vec<&str> = tags.iter().filter_map(|tag| tag.value.as_str()).collect();
    if tags.is_empty() {
        let title = spec.root.pointer("/info/title").and_then(Value::as_str);
        return title.unwrap_or("").trim().to_owned();
    }
    tags.join(", ")
}

/// Summary and description; the summary is not repeated.
fn description(summary: &str, text: &str) -> String {
    if summary.is_empty() || text.starts_with(summary) {
        return text.to_owned();
    }
    if text.is_empty() {
        return summary.to_owned();
    }
    let stop = if summary.ends_with(['.', '!', '?']) {
        ""
    } else {
        "."
    };
    format!("{summary}{stop} {text}")
}

fn output(spec: Spec<'_>, operation: &Part<'_>) -> Result<String, ToolsError> {
    match success_response(operation) {
        None => Ok(String::new()),
        Some((_, response)) => {
            let resolved = spec.resolve(response.clone())?;
            Ok(response
                .text_with_override(&resolved, "description")
                .to_owned())
        }
    }
}

/// The first 2xx response, with its status code.
pub(super) fn success_response<'a>(operation: &Part<'a>) -> Option<(&'a str, Part<'a>)> {
    let mut responses = operation.members("responses").into_iter();
    responses.find(|(code, _)| code.starts_with('2'))
}

impl<'a> Spec<'a> {
    /// Whether any operation declares response content. If none does, missing content has no
    /// meaning.
    pub(super) fn has_contents(&self, root: &Part<'a>) -> bool {
        let items = root.members("paths").into_iter();
        let items = items.filter_map(|(_, item)| self.resolve(item).ok());
        let operations = items.flat_map(|item| {
            let methods = METHODS.iter();
            methods
                .filter_map(|method| item.child(method))
                .collect::<Vec<_>>()
        });
        let mut responses = operations.filter_map(|operation| success_response(&operation));
        responses.any(|(_, response)| {
            let response = self.resolve(response);
            response.is_ok_and(|response| !response.members("content").is_empty())
        })
    }
}

/// The response schema of an operation; `None` if the specification has none.
fn output_schema<'a>(
    spec: Spec<'a>,
    method: &str,
    operation: &Part<'a>,
    has_contents: bool,
) -> Result<Option<Value>, ToolsError> {
    let n_responses = operation.members("responses").len();
    let Some((code, response)) = success_response(operation) else {
        return Ok(None);
    };
    if n_responses > 1 {
        spec.report(
            "operations with more than one response, of which the first 2xx is imported",
            "",
        );
    }
    let response = spec.resolve(response)?;
    for name in ["headers", "links"] {
        if !response.members(name).is_empty() {
            spec.report(&format!("{name} of responses"), "");
        }
    }
    let null_schema = Value::from_iter([("type", "null")]);
    let contents = response.members("content");
    let is_json = |(kind, _): &&(&str, Part<'a>)| kind.contains("json") || *kind == "*/*";
    let content = match contents.iter().find(is_json) {
        _ if code == "204" || method == "head" => return Ok(Some(null_schema)),
        None if contents.is_empty() => return Ok(has_contents.then_some(null_schema)),
        None => {
            spec.report("responses that are not JSON", "");
            return Ok(None);
        }
        Some((_, content)) => content,
    };
    match content.child("schema") {
        Some(schema) => convert_schema(spec, &schema, "response", Direction::Response),
        None => {
            spec.report("responses without a schema", "");
            Ok(None)
        }
    }
}

struct FoundParameter {
    parameter: ApiParameter,
    is_required: bool,
}

/// The name for comparing parameters; header names are case-insensitive.
pub(super) fn parameter_key(location: &str, name: &str) -> String {
    if location == "header" {
        name.to_lowercase()
    } else {
        name.to_owned()
    }
}

/// Parameters of path item and operation with their locations; each name occurs once.
fn located_parameters<'a>(
    spec: Spec<'a>,
    item: &PathItem<'a>,
    operation: &Part<'a>,
) -> Result<Vec<(usize, FoundParameter)>, ToolsError> {
    let mut parameters: Vec<(usize, FoundParameter)> = Vec::new();
    let mut indices_by_key: HashMap<String, usize> = HashMap::new();
    let mut parts = item.parameters();
    parts.extend(operation.elements("parameters"));
    for part in parts {
        let Some((location, parameter)) = locate_parameter(spec, part)? else {
            continue;
        };
        let key = parameter_key(&parameter.parameter.location, &parameter.parameter.name);
        match indices_by_key.entry(key) {
            Entry::Vacant(entry) => {
                entry.insert(parameters.len());
                parameters.push((location, parameter));
            }
            Entry::Occupied(entry) => {
                let earlier = &mut parameters[*entry.get()];
                if location != earlier.0 {
                    let what = "parameters whose name also occurs in another part of the request";
                    spec.report(what, &parameter.parameter.name);
                }
                if location <= earlier.0 {
                    *earlier = (location, parameter);
                }
            }
        }
    }
    Ok(parameters)
}

/// One parameter with the rank of its location; `None` for headers that are not parameters.
fn locate_parameter<'a>(
    spec: Spec<'a>,
    reference: Part<'a>,
) -> Result<Option<(usize, FoundParameter)>, ToolsError> {
    const LOCATIONS: [&str; 4] = ["path", "query", "header", "cookie"];
    let part = spec.resolve(reference.clone())?;
    let name = part.text("name");
    if name.is_empty() {
        return Err(part.invalid("a parameter needs a name"));
    }
    let location_name = part.text("in");
    let Some(location) = LOCATIONS.iter().position(|known| *known == location_name) else {
        return Err(part.invalid("`in` of a parameter must be path, query, header or cookie"));
    };
    let is_protocol_header =
        ["accept", "content-type", "authorization"].contains(&name.to_lowercase().as_str());
    if location_name == "header" && is_protocol_header {
        return Ok(None);
    }
    let content = part.members("content").into_iter().next();
    let content_schema = content.and_then(|(_, content)| content.child("schema"));
    let schema = part.child("schema").or(content_schema);
    let schema = schema.unwrap_or_else(|| part.clone());
    let text = reference.text_with_override(&part, "description");
    let parameter = describe_parameter(spec, name, text, &schema)?;
    let found = FoundParameter {
        parameter: ApiParameter {
            location: location_name.to_owned(),
            ..parameter
        },
        is_required: location_name == "path" || part.flag("required")? == Some(true),
    };
    Ok(Some((location, found)))
}

/// Creates a parameter from a schema; `text` precedes the schema's own description.
///
/// References are expanded first, so keywords next to a reference apply here as they do in nested
/// schemas.
pub(super) fn describe_parameter<'a>(
    spec: Spec<'a>,
    name: &str,
    text: &str,
    schema: &Part<'a>,
) -> Result<ApiParameter, ToolsError> {
    let resolved = spec.resolve(schema.clone())?;
    // A parameter without a `schema` field contains its schema keywords itself.
    let is_parameter = schema.value.get("in").is_some() && schema.value.get("name").is_some();
    let converted = if is_parameter {
        None
    } else {
        convert_schema(spec, schema, name, Direction::Request)?
    };
    // A schema that is too large to keep still provides its description.
    let readable_schema = converted.as_ref().unwrap_or(resolved.value);
    let text_of = |key: &str| {
        readable_schema
            .get(key)
            .and_then(Value::as_str)
            .unwrap_or("")
            .trim()
    };
    let texts = [text, text_of("description"), text_of("title")];
    let text = texts.into_iter().find(|text| !text.is_empty());
    let text = text.unwrap_or("");
    let default = readable_schema.get("default");
    let n_bytes = name.len() + text.len() + default.map_or(0, n_bytes);
    spec.charge(PARAMETER_BYTES + n_bytes, schema)?;
    let mut description = text.to_owned();
    if let Some(choices) = choices(spec, &resolved, readable_schema, &description)? {
        let stop = if description.is_empty() || description.ends_with('.') {
            ""
        } else {
            "."
        };
        let gap = if description.is_empty() { "" } else { " " };
        description.push_str(&format!("{stop}{gap}One of: {choices}."));
    }
    let kind = match converted.as_ref().and_then(resolved_type) {
        Some(kind) => kind,
        None => schema_kind(spec, &resolved)?,
    };
    let default = default.cloned().unwrap_or_else(|| Value::from(""));
    Ok(ApiParameter {
        description,
        default,
        schema: converted.and_then(|converted| informative_schema(converted, &kind)),
        kind,
        ..ApiParameter::new(name)
    })
}

/// The type of a schema without references.
fn resolved_type(schema: &Value) -> Option<String> {
    const MAX_BRANCHES: usize = 8;
    let mut current = schema;
    for _ in 0..MAX_BRANCHES {
        if let Some(kind) = declared_type(current) {
            return Some(kind);
        }
        let lists = ["allOf", "anyOf", "oneOf"].iter();
        let lists = lists.filter_map(|key| current.get(key)?.as_array());
        let mut branches = lists.flatten();
        current = branches.find(|branch| branch.get("type") != Some(&Value::from("null")))?;
    }
    None
}

/// The schema, if it contains more than type, description and default. The parameter already has
/// these.
fn informative_schema(schema: Value, kind: &str) -> Option<ParameterSchema> {
    let Value::Object(mut keywords) = schema else {
        return None;
    };
    for keyword in ["description", "default"] {
        keywords.shift_remove(keyword);
    }
    let is_known = |(keyword, value): (&String, &Value)| keyword == "type" && value == kind;
    let is_informative = !keywords.iter().all(is_known);
    is_informative.then(|| ParameterSchema::new(Value::Object(keywords)))
}

/// The allowed values of a schema or of its list elements, unless the description already names
/// them all.
fn choices<'a>(
    spec: Spec<'a>,
    resolved: &Part<'a>,
    read: &Value,
    description: &str,
) -> Result<Option<String>, ToolsError> {
    let list = |schema: &Value| {
        let values = schema.get("enum").and_then(Value::as_array);
        values.filter(|values| !values.is_empty()).cloned()
    };
    let mut values = list(read).or_else(|| list(read.get("items")?));
    if values.is_none()
        && let Some(items) = resolved.child("items")
    {
        values = list(spec.resolve(items)?.value);
    }
    let values = values.unwrap_or_default();
    // The description is searched for each value.
    let n_searched = values.len().saturating_mul(description.len()) / SEARCHED_BYTES_PER_COPIED;
    let n_copied: usize = values.iter().map(n_bytes).sum();
    spec.charge(n_copied.saturating_add(n_searched), resolved)?;
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let values: Vec<String> = values.iter().map(text).collect();
    if values
        .iter()
        .all(|value| description.contains(value.as_str()))
    {
        return Ok(None);
    }
    Ok(Some(values.join(", ")))
}

/// Number of bytes that are copied if an operation contains this value.
pub(super) fn n_bytes(value: &Value) -> usize {
    STEP_BYTES
        + match value {
            Value::String(text) => text.len(),
            Value::Array(items) => items.iter().map(n_bytes).sum(),
            Value::Object(fields) => fields
                .iter()
                .map(|(key, field)| key.len() + n_bytes(field))
                .sum(),
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        }
}

/// The type that a schema declares.
pub(super) fn declared_type(schema: &Value) -> Option<String> {
    match schema.get("type") {
        Some(Value::String(kind)) => return Some(kind.clone()),
        Some(Value::Array(kinds)) => {
            let kinds = kinds.iter().filter_map(Value::as_str);
            let kinds: Vec<&str> = kinds.filter(|kind| *kind != "null").collect();
            return Some(kinds.join("|"));
        }
        _ => {}
    }
    let shape = if schema.get("properties").is_some() {
        "object"
    } else if schema.get("items").is_some() {
        "array"
    } else {
        return None;
    };
    Some(shape.to_owned())
}
