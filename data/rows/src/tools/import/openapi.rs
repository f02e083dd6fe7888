//! An OpenAPI 3 document as one [`ApiDocument`] for each operation.
//!
//! The API is called `METHOD /path/{x}` and belongs to no tool, as RestBench writes its gold
//! paths. The decision to question is [`RequestBodies`]: a model that is to create a playlist
//! needs the body's fields, but published counts of parameters leave them out.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::path::Path;

use serde_json::Value;

use super::body::{body_fields, schema_kind};
use super::left_out::LeftOut;
use super::reference::{Copied, Part, STEP_BYTES, Spec};
use super::schema::{Direction, held_schema};
use crate::json;
use crate::tools::document::{ApiDocument, ApiParameter};
use crate::tools::error::ToolsError;
use crate::tools::parameter_schema::ParameterSchema;
use crate::tools::source::read_text;
use crate::tools::views::one_line;

/// Bytes of a parameter beside its texts.
const PARAMETER_BYTES: usize = 64;

/// Bytes that a search goes through in the time in which one is copied.
const SEARCHED_AT_ONCE: usize = 64;

const METHODS: [&str; 8] = [
    "get", "put", "post", "delete", "options", "head", "patch", "trace",
];

/// What becomes of the fields of request bodies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestBodies {
    /// They are parameters like those of path and query, unless one of that name is there.
    AsParameters,
    /// They are left out, as in the published counts of RestBench's parameters: TMDB 145,
    /// Spotify 81.
    LeftOut,
}

/// Documents, and what the source says beside them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ImportedApis {
    /// The documents, in the order of the source.
    pub documents: Vec<ApiDocument>,
    /// What they cannot hold.
    pub left_out: LeftOut,
}

/// Reads a specification from a file of JSON or YAML, gzip-compressed or not.
///
/// # Errors
///
/// - the file cannot be read
/// - those of [`import_openapi`]
pub fn import_openapi_file(path: &Path, bodies: RequestBodies) -> Result<ImportedApis, ToolsError> {
    import_openapi(&read_text(path)?, bodies).map_err(|error| error.at(path.display().to_string()))
}

/// Reads a specification from a text, which is JSON if it begins with `{`, else YAML.
///
/// One document for each operation, in the order of the text:
///
/// - `api_name` is `METHOD /path`, `tool_name` is empty, `method` is the method
/// - `category_name` is the operation's tags, or the title of the specification
/// - `api_description` is summary and description
/// - parameters are those of the path item, overridden by those of the operation, then the
///   fields of the request body; a name comes once, path before query before header before
///   cookie before body, and the headers `Accept`, `Content-Type` and `Authorization` are left
///   out, as OpenAPI says
/// - parameters of a path are required, others where the specification says so
/// - values that a parameter may take are added to its description, and its schema is kept where
///   it says more than the type, with what it refers to in its place
/// - `output_description` is the description of the first response of the 2xx, `output_schema` its
///   JSON Schema; it is `{"type": "null"}` where such a response has no content while others of the
///   specification have some
///
/// # Errors
///
/// - the text is not JSON or YAML, not an object, or not OpenAPI 3
/// - a `$ref` that is followed leads nowhere, out of the document, or back to itself; the error
///   names its JSON pointer
/// - a parameter has no name, or a place that does not exist
/// - there are no operations
pub fn import_openapi(text: &str, bodies: RequestBodies) -> Result<ImportedApis, ToolsError> {
    let root = parse(text)?;
    let copied = Copied::default();
    let spec = Spec::new(&root, &copied);
    let whole = Part {
        value: &root,
        pointer: String::new(),
    };
    check_version(&whole)?;
    for name in ["security", "webhooks"] {
        if whole.value.get(name).is_some() {
            spec.tell(&format!("{name} of a specification"), &format!("/{name}"));
        }
    }
    let mut documents = Vec::new();
    let has_contents = spec.has_contents(&whole);
    for (path, item) in whole.members("paths") {
        if !path.starts_with('/') {
            continue;
        }
        let item = spec.resolve(item)?;
        let Some(members) = item.value.as_object() else {
            return Err(item.bad("a path must be an object of operations"));
        };
        let methods = members.keys().filter(|key| METHODS.contains(&key.as_str()));
        for method in methods {
            let operation = item.child(method).expect("a member that was just listed");
            let name = format!("{} {path}", method.to_uppercase());
            spec.enter(&name);
            let mut document = document(spec, &item, &operation, bodies)?;
            document.method = method.to_uppercase();
            document.output_schema = output_schema(spec, method, &operation, has_contents)?;
            document.api_name = name;
            documents.push(document);
        }
    }
    if documents.is_empty() {
        let what = "operations under /paths";
        return Err(ToolsError::Empty { what });
    }
    Ok(ImportedApis {
        documents,
        left_out: copied.into_left_out(),
    })
}

pub(super) fn parse(text: &str) -> Result<Value, ToolsError> {
    if text.trim_start().starts_with('{') {
        return json::parse(text).map_err(|error| ToolsError::NotJson { error });
    }
    let options = serde_saphyr::options! { strict_booleans: true };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| ToolsError::NotYaml {
        reason: one_line(&error.to_string()),
    })
}

fn check_version(whole: &Part<'_>) -> Result<(), ToolsError> {
    if whole.value.get("swagger").is_some() {
        return Err(whole.bad("this is Swagger 2; convert it to OpenAPI 3 first"));
    }
    let version = match whole.value.get("openapi") {
        Some(Value::String(version)) => version.clone(),
        Some(Value::Number(version)) => version.to_string(),
        _ => String::new(),
    };
    if version != "3" && !version.starts_with("3.") {
        return Err(whole.bad("openapi must be 3.x; is this an OpenAPI 3 document?"));
    }
    Ok(())
}

/// The document of an operation, but for its name.
fn document<'a>(
    spec: Spec<'a>,
    item: &Part<'a>,
    operation: &Part<'a>,
    bodies: RequestBodies,
) -> Result<ApiDocument, ToolsError> {
    if !operation.value.is_object() {
        return Err(operation.bad("an operation must be an object"));
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
            spec.tell(&format!("{name} of operations"), "");
        }
    }
    // One path item may stand under many paths, and one title or response for many operations.
    let texts = [
        &document.category_name,
        &document.api_description,
        &document.output_description,
    ];
    spec.take(texts.map(String::len).iter().sum(), operation)?;
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
                    "fields of bodies with the name of a parameter, which a call cannot give";
                spec.tell(what, &format!("field {}", field.parameter.name));
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

/// Summary and description, the summary once.
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
    match good_response(operation) {
        None => Ok(String::new()),
        Some((_, response)) => Ok(spec.resolve(response)?.text("description").to_owned()),
    }
}

/// The first response of the 2xx, with its code.
pub(super) fn good_response<'a>(operation: &Part<'a>) -> Option<(&'a str, Part<'a>)> {
    let mut responses = operation.members("responses").into_iter();
    responses.find(|(code, _)| code.starts_with('2'))
}

impl<'a> Spec<'a> {
    /// Whether some operation says what a response holds; where none does, silence says nothing.
    pub(super) fn has_contents(&self, whole: &Part<'a>) -> bool {
        let items = whole.members("paths").into_iter();
        let items = items.filter_map(|(_, item)| self.resolve(item).ok());
        let operations = items.flat_map(|item| {
            let methods = METHODS.iter();
            methods
                .filter_map(|method| item.child(method))
                .collect::<Vec<_>>()
        });
        let mut responses = operations.filter_map(|operation| good_response(&operation));
        responses.any(|(_, response)| {
            let response = self.resolve(response);
            response.is_ok_and(|response| !response.members("content").is_empty())
        })
    }
}

/// The schema of what an operation returns; none where nobody says.
fn output_schema<'a>(
    spec: Spec<'a>,
    method: &str,
    operation: &Part<'a>,
    has_contents: bool,
) -> Result<Option<Value>, ToolsError> {
    let n_responses = operation.members("responses").len();
    let Some((code, response)) = good_response(operation) else {
        return Ok(None);
    };
    if n_responses > 1 {
        spec.tell("operations with responses beside the first of the 2xx", "");
    }
    let response = spec.resolve(response)?;
    for name in ["headers", "links"] {
        if !response.members(name).is_empty() {
            spec.tell(&format!("{name} of responses"), "");
        }
    }
    let nothing = Value::from_iter([("type", "null")]);
    let contents = response.members("content");
    let is_json = |(kind, _): &&(&str, Part<'a>)| kind.contains("json") || *kind == "*/*";
    let content = match contents.iter().find(is_json) {
        _ if code == "204" || method == "head" => return Ok(Some(nothing)),
        None if contents.is_empty() => return Ok(has_contents.then_some(nothing)),
        None => {
            spec.tell("responses that are no JSON", "");
            return Ok(None);
        }
        Some((_, content)) => content,
    };
    match content.child("schema") {
        Some(schema) => held_schema(spec, &schema, "response", Direction::Response),
        None => {
            spec.tell("responses without a schema", "");
            Ok(None)
        }
    }
}

struct FoundParameter {
    parameter: ApiParameter,
    is_required: bool,
}

/// Parameters of path item and operation with their location, each name once.
fn located_parameters<'a>(
    spec: Spec<'a>,
    item: &Part<'a>,
    operation: &Part<'a>,
) -> Result<Vec<(usize, FoundParameter)>, ToolsError> {
    let mut found: Vec<(usize, FoundParameter)> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    let mut parts = item.elements("parameters");
    parts.extend(operation.elements("parameters"));
    for part in parts {
        let part = spec.resolve(part)?;
        let Some((location, parameter)) = located(spec, &part)? else {
            continue;
        };
        match places.entry(parameter.parameter.name.clone()) {
            Entry::Vacant(place) => {
                place.insert(found.len());
                found.push((location, parameter));
            }
            Entry::Occupied(place) => {
                let known = &mut found[*place.get()];
                if location != known.0 {
                    let what = "parameters with a name that another part of the request has, too";
                    spec.tell(what, &parameter.parameter.name);
                }
                if location <= known.0 {
                    *known = (location, parameter);
                }
            }
        }
    }
    Ok(found)
}

/// One parameter with the rank of its location; none where it is a header that is no parameter.
fn located<'a>(
    spec: Spec<'a>,
    part: &Part<'a>,
) -> Result<Option<(usize, FoundParameter)>, ToolsError> {
    const LOCATIONS: [&str; 4] = ["path", "query", "header", "cookie"];
    let name = part.text("name");
    if name.is_empty() {
        return Err(part.bad("a parameter needs a name"));
    }
    let place = part.text("in");
    let Some(location) = LOCATIONS.iter().position(|known| *known == place) else {
        return Err(part.bad("`in` of a parameter must be path, query, header or cookie"));
    };
    let is_ruled_by_protocol =
        ["accept", "content-type", "authorization"].contains(&name.to_lowercase().as_str());
    if place == "header" && is_ruled_by_protocol {
        return Ok(None);
    }
    let content = part.members("content").into_iter().next();
    let content_schema = content.and_then(|(_, content)| content.child("schema"));
    let schema = match part.child("schema").or(content_schema) {
        Some(schema) => spec.resolve(schema)?,
        None => part.clone(),
    };
    let parameter = described(spec, name, part.text("description"), &schema)?;
    let found = FoundParameter {
        parameter: ApiParameter {
            location: place.to_owned(),
            ..parameter
        },
        is_required: place == "path" || part.flag("required")? == Some(true),
    };
    Ok(Some((location, found)))
}

/// A parameter of a resolved schema; `text` comes before the schema's own description.
pub(super) fn described<'a>(
    spec: Spec<'a>,
    name: &str,
    text: &str,
    schema: &Part<'a>,
) -> Result<ApiParameter, ToolsError> {
    let texts = [text, schema.text("description"), schema.text("title")];
    let text = texts
        .into_iter()
        .find(|text| !text.is_empty())
        .unwrap_or("");
    let default = schema.value.get("default");
    let n_bytes = name.len() + text.len() + default.map_or(0, n_bytes);
    spec.take(PARAMETER_BYTES + n_bytes, schema)?;
    let mut description = text.to_owned();
    if let Some(choices) = choices(spec, schema, &description)? {
        let stop = if description.is_empty() || description.ends_with('.') {
            ""
        } else {
            "."
        };
        let gap = if description.is_empty() { "" } else { " " };
        description.push_str(&format!("{stop}{gap}One of: {choices}."));
    }
    let kind = schema_kind(spec, schema)?;
    Ok(ApiParameter {
        description,
        default: default.cloned().unwrap_or_else(|| Value::from("")),
        schema: parameter_schema(spec, name, schema, &kind)?,
        kind,
        ..ApiParameter::new(name)
    })
}

/// The schema of a parameter where it says more than type, description and default, which the
/// parameter has itself.
fn parameter_schema<'a>(
    spec: Spec<'a>,
    name: &str,
    schema: &Part<'a>,
    kind: &str,
) -> Result<Option<ParameterSchema>, ToolsError> {
    // A parameter without a schema is one itself.
    if schema.value.get("in").is_some() && schema.value.get("name").is_some() {
        return Ok(None);
    }
    let held = held_schema(spec, schema, name, Direction::Request)?;
    let Some(Value::Object(mut held)) = held else {
        return Ok(None);
    };
    for keyword in ["description", "default"] {
        held.shift_remove(keyword);
    }
    let is_known = |(keyword, value): (&String, &Value)| keyword == "type" && value == kind;
    let says_more = !held.iter().all(is_known);
    Ok(says_more.then(|| ParameterSchema::new(Value::Object(held))))
}

/// The values that a schema, or the elements of its list, may take, unless the description
/// names them all.
fn choices<'a>(
    spec: Spec<'a>,
    schema: &Part<'a>,
    description: &str,
) -> Result<Option<String>, ToolsError> {
    let list = |schema: &Part<'a>| schema.value.get("enum").and_then(Value::as_array);
    let mut values = list(schema);
    if values.is_none_or(Vec::is_empty)
        && let Some(items) = schema.child("items")
    {
        values = list(&spec.resolve(items)?);
    }
    let values = values.map_or(&[][..], Vec::as_slice);
    // Each is looked for in the description.
    let n_searched = values.len().saturating_mul(description.len()) / SEARCHED_AT_ONCE;
    let n_copied: usize = values.iter().map(n_bytes).sum();
    spec.take(n_copied.saturating_add(n_searched), schema)?;
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

/// Bytes of a value as an operation copies it.
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

/// What a schema says of its own type.
pub(super) fn kind_of(schema: &Value) -> Option<String> {
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
