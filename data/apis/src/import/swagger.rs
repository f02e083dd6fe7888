//! Converts Swagger 2 documents to OpenAPI 3, so that one importer reads both.
//!
//! The conversion moves definitions. The type of a parameter becomes its schema, body and form
//! parameters become request bodies, and the media types in `consumes` and `produces` become
//! content entries. Definitions and shared responses keep their location, so references still
//! resolve.
//!
//! # Source
//!
//! Swagger 2.0 and OpenAPI 3.0.4.

use serde_json::{Map, Value, json};

use super::listing::METHODS;

/// Keys of a parameter that are not part of its schema.
const PARAMETER_KEYS: [&str; 7] = [
    "name",
    "in",
    "description",
    "required",
    "allowEmptyValue",
    "collectionFormat",
    "schema",
];

const JSON: &str = "application/json";
const FORM: &str = "application/x-www-form-urlencoded";
const MULTIPART: &str = "multipart/form-data";

/// Whether a specification is Swagger 2.
pub(super) fn is_swagger(root: &Value) -> bool {
    match root.get("swagger") {
        Some(Value::String(version)) => version == "2" || version.starts_with("2."),
        Some(Value::Number(version)) => version.as_f64() == Some(2.0),
        _ => false,
    }
}

/// Converts a Swagger 2 document to OpenAPI 3.
pub(super) fn to_openapi(mut root: Value) -> Value {
    let shared = root.get("parameters").cloned().unwrap_or_default();
    let media = DefaultMediaTypes {
        consumes: media_types(&root, "consumes"),
        produces: media_types(&root, "produces"),
    };
    if let Some(responses) = root.get_mut("responses").and_then(Value::as_object_mut) {
        responses
            .values_mut()
            .for_each(|response| convert_response(response, &media.produces));
    }
    let paths = root.get_mut("paths").and_then(Value::as_object_mut);
    for item in paths.into_iter().flat_map(Map::values_mut) {
        convert_item(item, &shared, &media);
    }
    if let Some(fields) = root.as_object_mut() {
        fields.shift_remove("swagger");
        fields.insert("openapi".to_owned(), json!("3.0.3"));
    }
    root
}

/// Media types declared for the whole document.
struct DefaultMediaTypes {
    consumes: Vec<String>,
    produces: Vec<String>,
}

fn media_types(part: &Value, key: &str) -> Vec<String> {
    let types = part.get(key).and_then(Value::as_array);
    let types = types.into_iter().flatten().filter_map(Value::as_str);
    types.map(str::to_owned).collect()
}

fn convert_item(item: &mut Value, shared: &Value, media: &DefaultMediaTypes) {
    let Some(fields) = item.as_object_mut() else {
        return;
    };
    let path_parameters = fields.get("parameters").cloned().unwrap_or_default();
    let path_parameters = resolve_parameters(&path_parameters, shared);
    let (parameters, bodies): (Vec<Value>, Vec<Value>) = path_parameters
        .into_iter()
        .partition(|one| !is_body_parameter(one));
    for method in METHODS {
        if let Some(operation) = fields.get_mut(method).and_then(Value::as_object_mut) {
            convert_operation(operation, &bodies, shared, media);
        }
    }
    if fields.contains_key("parameters") {
        let parameters = parameters.into_iter().map(convert_parameter).collect();
        fields.insert("parameters".to_owned(), parameters);
    }
}

fn convert_operation(
    operation: &mut Map<String, Value>,
    bodies_of_path: &[Value],
    shared: &Value,
    media: &DefaultMediaTypes,
) {
    let types_or = |operation: &Map<String, Value>, key: &str, all: &[String]| {
        let operation_types = media_types(&Value::Object(operation.clone()), key);
        match operation.contains_key(key) {
            true => operation_types,
            false => all.to_vec(),
        }
    };
    let consumes = types_or(operation, "consumes", &media.consumes);
    let produces = types_or(operation, "produces", &media.produces);
    let own_parameters = operation.get("parameters").cloned().unwrap_or_default();
    let (parameters, own_bodies): (Vec<Value>, Vec<Value>) =
        resolve_parameters(&own_parameters, shared)
            .into_iter()
            .partition(|one| !is_body_parameter(one));
    let is_same = |a: &Value, b: &Value| a["name"] == b["name"] && a["in"] == b["in"];
    let mut bodies: Vec<Value> = bodies_of_path
        .iter()
        .filter(|shared_body| {
            !own_bodies
                .iter()
                .any(|own_body| is_same(own_body, shared_body))
        })
        .cloned()
        .collect();
    bodies.extend(own_bodies);
    if let Some(body) = request_body(bodies, &consumes) {
        operation.insert("requestBody".to_owned(), body);
    }
    if operation.contains_key("parameters") {
        let parameters = parameters.into_iter().map(convert_parameter).collect();
        operation.insert("parameters".to_owned(), parameters);
    }
    let responses = operation.get_mut("responses");
    let responses = responses.and_then(Value::as_object_mut);
    for response in responses.into_iter().flat_map(Map::values_mut) {
        convert_response(response, &produces);
    }
    operation.shift_remove("consumes");
    operation.shift_remove("produces");
}

/// Parameters with `#/parameters/...` references expanded; other references are unchanged.
fn resolve_parameters(parameters: &Value, shared: &Value) -> Vec<Value> {
    let parameters = parameters.as_array().into_iter().flatten();
    let resolve = |parameter: &Value| {
        let reference = parameter.get("$ref").and_then(Value::as_str);
        let name = reference.and_then(|text| text.strip_prefix("#/parameters/"));
        let shared_parameter =
            name.and_then(|name| shared.get(name.replace("~1", "/").replace("~0", "~")));
        shared_parameter.unwrap_or(parameter).clone()
    };
    parameters.map(resolve).collect()
}

fn is_body_parameter(parameter: &Value) -> bool {
    parameter["in"] == "body" || parameter["in"] == "formData"
}

/// A parameter whose value keywords are moved into its schema.
fn convert_parameter(parameter: Value) -> Value {
    let Value::Object(fields) = parameter else {
        return parameter;
    };
    if fields.contains_key("$ref") || fields.contains_key("schema") {
        return Value::Object(fields);
    }
    let location = fields.get("in").and_then(Value::as_str).unwrap_or_default();
    let is_in_query = location == "query";
    let (style, explode) = match fields.get("collectionFormat").and_then(Value::as_str) {
        Some("multi") => ("form", true),
        Some("ssv") => ("spaceDelimited", false),
        Some("tsv") => ("tabDelimited", false),
        Some("pipes") => ("pipeDelimited", false),
        _ if is_in_query => ("form", false),
        _ => ("simple", false),
    };
    let is_list = fields.get("type").is_some_and(|kind| kind == "array");
    let (mut parameter_fields, schema): (Map<String, Value>, Map<String, Value>) = fields
        .into_iter()
        .partition(|(key, _)| PARAMETER_KEYS.contains(&key.as_str()) || key.starts_with("x-"));
    parameter_fields.shift_remove("collectionFormat");
    if is_list {
        parameter_fields.insert("style".to_owned(), json!(style));
        parameter_fields.insert("explode".to_owned(), json!(explode));
    }
    parameter_fields.insert("schema".to_owned(), Value::Object(schema));
    Value::Object(parameter_fields)
}

/// Builds the request body from body or form parameters.
fn request_body(parameters: Vec<Value>, consumes: &[String]) -> Option<Value> {
    if let Some(body) = parameters.iter().find(|one| one["in"] == "body") {
        let media = preferred_type(consumes, JSON);
        return Some(json!({
            "description": body.get("description").cloned().unwrap_or_default(),
            "required": body.get("required") == Some(&json!(true)),
            "content": {media: {"schema": body.get("schema").cloned().unwrap_or_default()}},
        }));
    }
    let mut properties = Map::new();
    let mut required = Vec::new();
    let mut has_file = false;
    for parameter in parameters {
        let name = parameter["name"].as_str().unwrap_or_default().to_owned();
        has_file |= parameter["type"] == "file";
        if parameter["required"] == true {
            required.push(json!(name));
        }
        let description = parameter.get("description").cloned();
        let mut schema = convert_parameter(parameter)["schema"].take();
        if let (Some(fields), Some(description)) = (schema.as_object_mut(), description) {
            fields.insert("description".to_owned(), description);
        }
        properties.insert(name, schema);
    }
    if properties.is_empty() {
        return None;
    }
    let is_multipart = has_file || preferred_type(consumes, FORM) == MULTIPART;
    let media = if is_multipart { MULTIPART } else { FORM };
    Some(json!({
        "required": !required.is_empty(),
        "content": {media: {"schema":
            {"type": "object", "properties": properties, "required": required}}},
    }))
}

/// JSON if it is listed, otherwise the first listed type, otherwise the default.
fn preferred_type(types: &[String], default: &str) -> String {
    let json = types.iter().find(|kind| kind.contains("json"));
    let first = json.or_else(|| types.first());
    first.cloned().unwrap_or_else(|| default.to_owned())
}

/// A response whose schema and examples are moved into its media types.
fn convert_response(response: &mut Value, produces: &[String]) {
    let Some(fields) = response.as_object_mut() else {
        return;
    };
    let schema = fields.shift_remove("schema");
    let examples = fields.shift_remove("examples");
    let examples = examples.as_ref().and_then(Value::as_object);
    if schema.is_none() && examples.is_none() {
        return;
    }
    let mut content = Map::new();
    let mut add = |kind: &str, example: Option<&Value>| {
        let mut media = Map::new();
        media.extend(schema.clone().map(|schema| ("schema".to_owned(), schema)));
        media.extend(example.map(|example| ("example".to_owned(), example.clone())));
        content.insert(kind.to_owned(), Value::Object(media));
    };
    add(&preferred_type(produces, JSON), None);
    for (kind, example) in examples.into_iter().flatten() {
        add(kind, Some(example));
    }
    fields.insert("content".to_owned(), Value::Object(content));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        OperationNames, ParameterLocation, ParameterStyle, RequestBodies, import_openapi,
        import_openapi_examples, import_openapi_operations,
    };

    const SPEC: &str = r##"
swagger: "2.0"
info: {title: Shop, version: "1"}
host: api.example.org
basePath: /v1
consumes: [application/json]
parameters:
  Limit: {name: limit, in: query, type: integer, maximum: 9, default: 3}
  Order: {name: order, in: body, required: true, description: The order., schema: {$ref: "#/definitions/Order"}}
responses:
  Made: {description: OK, schema: {$ref: "#/definitions/Order"}}
definitions:
  Order: {type: object, required: [sku], properties: {id: {type: integer, readOnly: true}, sku: {type: string}}}
paths:
  /orders/{id}:
    parameters:
      - {name: id, in: path, required: true, type: string, format: uuid}
    get:
      operationId: readOrder
      parameters:
        - {$ref: "#/parameters/Limit"}
        - {name: tags, in: query, type: array, items: {type: string, enum: [a, b]}, collectionFormat: multi}
        - {name: codes, in: query, type: array, items: {type: integer}}
        - {name: X-Trace, in: header, type: string}
      responses:
        "200": {description: One., schema: {$ref: "#/definitions/Order"}, examples: {application/json: {id: 1, sku: x}}}
    post:
      operationId: writeOrder
      parameters: [{$ref: "#/parameters/Order"}]
      responses: {"201": {$ref: "#/responses/Made"}}
    put:
      operationId: sendForm
      consumes: [application/x-www-form-urlencoded]
      parameters:
        - {name: note, in: formData, type: string, required: true, description: A note.}
        - {name: n, in: formData, type: integer}
      responses: {"204": {description: Gone.}}
    patch:
      operationId: sendFile
      parameters: [{name: file, in: formData, type: file}]
      responses: {}
"##;

    #[test]
    fn a_swagger_2_document_gives_the_same_operations_as_openapi_3() {
        let operations = import_openapi_operations(SPEC, RequestBodies::AsParameters);
        let operations = operations.expect("imports");
        let [read, write, form, file] = operations.as_slice() else {
            panic!("{operations:?}");
        };
        let names: Vec<String> = operations
            .iter()
            .map(|one| one.document.call_name())
            .collect();
        assert_eq!(names, ["readOrder", "writeOrder", "sendForm", "sendFile"]);
        let limit = read.document.parameter("limit").expect("limit");
        assert_eq!(
            (limit.kind.as_str(), &limit.default),
            ("integer", &json!(3))
        );
        assert_eq!(read.document.required_parameters[0].name, "id");
        let explodes = |name: &str| {
            let parameter = read
                .parameters
                .iter()
                .find(|parameter| parameter.name == name);
            match parameter.map(|parameter| (parameter.location, &parameter.style)) {
                Some((ParameterLocation::Query, ParameterStyle::Named { style, explode, .. })) => {
                    assert_eq!(style, "form");
                    *explode
                }
                other => panic!("{name}: {other:?}"),
            }
        };
        assert!(explodes("tags") && !explodes("codes"));
        let tags = read.document.parameter("tags").expect("tags");
        assert_eq!(tags.description, "One of: a, b.");
        assert!(read.document.parameter("X-Trace").is_some());
        let returned = read.document.output_schema.as_ref().expect("a schema");
        assert_eq!(returned["properties"]["sku"], json!({"type": "string"}));

        let body = |operation: &crate::ApiOperation| {
            let body = operation.body.as_ref().expect("a body");
            (body.media_type.clone(), body.is_required)
        };
        assert_eq!(body(write), (JSON.to_owned(), true));
        assert_eq!(
            write.document.parameter("sku").expect("sku").location,
            "body"
        );
        assert!(write.document.parameter("id").expect("id").location == "path");
        assert_eq!(
            write.document.output_schema.as_ref().expect("a schema")["required"],
            json!(["sku"])
        );
        assert_eq!(body(form), (FORM.to_owned(), true));
        let note = form.document.parameter("note").expect("note");
        assert_eq!(note.description, "A note.");
        assert_eq!(form.document.optional_parameters[0].name, "n");
        assert_eq!(body(file).0, MULTIPART);
        let notes = import_openapi(SPEC, RequestBodies::AsParameters).expect("imports");
        let notes = notes.left_out.lines();
        assert!(
            notes
                .iter()
                .any(|line| line.contains("bodies of type multipart/form-data")),
            "{notes:#?}"
        );
        let examples = import_openapi_examples(SPEC, OperationNames::Paths).expect("reads");
        assert_eq!(examples.responses[0].1, json!({"id": 1, "sku": "x"}));
    }
}
