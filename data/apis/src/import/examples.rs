//! Example responses of an OpenAPI 3 document, one per operation.
//!
//! An example of the response is preferred, then an example of its schema, then an example
//! assembled from the examples of the schema's parts. An optional part without an example is
//! omitted. If a required part has no example, the response has none either, because a made-up
//! value could be mistaken for the API's output.

use std::path::Path;

use serde_json::{Map, Value};
use tooltune_json as json;

use super::body::schema_kind;
use super::listing::{SpecText, operations};
use super::openapi::{OperationNames, success_response};
use super::reference::{ImportState, Part, STEP_BYTES, Spec};
use crate::budgets::SCHEMA_BYTES;
use crate::error::ToolsError;
use crate::source::read_text;

/// Maximum number of schemas visited per response example; a larger response gets no example.
const MAX_SCHEMAS: usize = SCHEMA_BYTES / STEP_BYTES;

/// Example responses by operation name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ExampleResponses {
    /// Operations with an example, in document order.
    pub responses: Vec<(String, Value)>,
    /// Operations in `responses` that return nothing; their response is null.
    pub n_empty: usize,
    /// Operations without an example.
    pub without: Vec<String>,
}

/// Reads the examples from a specification file in JSON or YAML, optionally gzip-compressed.
///
/// # Errors
///
/// - the file cannot be read
/// - the errors of [`import_openapi_examples`]
pub fn import_openapi_examples_file(
    path: &Path,
    names: OperationNames,
) -> Result<ExampleResponses, ToolsError> {
    import_openapi_examples(&read_text(path)?, names)
        .map_err(|error| error.at(path.display().to_string()))
}

/// Reads the examples from a specification. Names are as in
/// [`import_openapi`](super::import_openapi).
///
/// # Errors
///
/// - the source is not a specification, or has no operations
/// - the examples copy more than `SPEC_BYTES`
pub fn import_openapi_examples(
    text: &str,
    names: OperationNames,
) -> Result<ExampleResponses, ToolsError> {
    let parsed = SpecText::parse(text)?;
    let state = ImportState::default();
    let spec = Spec::new(&parsed.root, &state).with_source_texts(parsed.source_texts.as_ref());
    let root = parsed.root_part();
    let has_contents = spec.has_contents(&root);
    let mut examples = ExampleResponses::default();
    for operation in operations(spec, &root, names)? {
        spec.enter(&operation.endpoint());
        match example(spec, operation.method, &operation.operation, has_contents)? {
            Some(example) => {
                examples.n_empty += usize::from(example.is_null());
                examples.responses.push((operation.name, example));
            }
            None => examples.without.push(operation.name),
        }
    }
    Ok(examples)
}

/// The example response of an operation; null if it returns nothing.
fn example<'a>(
    spec: Spec<'a>,
    method: &str,
    operation: &Part<'a>,
    has_contents: bool,
) -> Result<Option<Value>, ToolsError> {
    let Some((code, response)) = success_response(operation) else {
        return Ok(None);
    };
    let response = spec.resolve(response)?;
    let contents = response.members("content");
    if code == "204" || method == "head" || (contents.is_empty() && has_contents) {
        return Ok(Some(Value::Null));
    }
    let is_json = |kind: &str| kind.contains("json") || kind == "*/*";
    let (are_json, others): (Vec<_>, Vec<_>) =
        contents.into_iter().partition(|(kind, _)| is_json(kind));
    for (kind, content) in are_json.into_iter().chain(others) {
        if let Some(example) = content_example(spec, &content)? {
            // Some specifications write the JSON example as a string.
            return Ok(Some(match example {
                Value::String(text) if is_json(kind) => {
                    json::parse(&text).unwrap_or(Value::String(text))
                }
                example => example,
            }));
        }
    }
    Ok(None)
}

/// The example of a media type, or of its schema.
fn content_example<'a>(spec: Spec<'a>, content: &Part<'a>) -> Result<Option<Value>, ToolsError> {
    if let Some(example) = content.child("example") {
        return copy_value(spec, &example).map(Some);
    }
    for (_, example) in content.members("examples") {
        if let Some(value) = spec.resolve(example)?.child("value") {
            return copy_value(spec, &value).map(Some);
        }
    }
    match content.child("schema") {
        Some(schema) => {
            let mut search = Search {
                spec,
                enclosing: Vec::new(),
                n_left: MAX_SCHEMAS,
            };
            let example = search.schema_example(schema)?;
            Ok(example.filter(|_| search.n_left > 0))
        }
        None => Ok(None),
    }
}

/// The example given in a schema itself.
fn own_example<'a>(schema: &Part<'a>) -> Option<Part<'a>> {
    let first_element = |name: &str| schema.elements(name).into_iter().next();
    schema
        .child("example")
        .or_else(|| first_element("examples"))
        .or_else(|| schema.child("const"))
        .or_else(|| schema.child("default"))
        .or_else(|| first_element("enum"))
}

fn copy_value(spec: Spec<'_>, part: &Part<'_>) -> Result<Value, ToolsError> {
    spec.charge(part.value.to_string().len(), part)?;
    Ok(part.value.clone())
}

/// Searches for an example of one response schema.
struct Search<'a> {
    spec: Spec<'a>,
    /// Enclosing schemas; a recursive schema gets no example.
    enclosing: Vec<String>,
    n_left: usize,
}

impl<'a> Search<'a> {
    /// The example of a schema, or an example assembled from the examples of its parts.
    fn schema_example(&mut self, reference: Part<'a>) -> Result<Option<Value>, ToolsError> {
        let schema = self.spec.resolve(reference.clone())?;
        self.spec.charge(STEP_BYTES, &schema)?;
        self.n_left = self.n_left.saturating_sub(1);
        if self.n_left == 0 || self.enclosing.contains(&schema.pointer) {
            return Ok(None);
        }
        // Keywords next to a reference apply to the same value as the keywords of its target.
        if let Some(example) = own_example(&reference).or_else(|| own_example(&schema)) {
            let text = self.spec.as_text(example.value, &example.pointer);
            return match text {
                Some(text) if schema_kind(self.spec, &schema)? == "string" => {
                    Ok(Some(Value::from(text)))
                }
                _ => copy_value(self.spec, &example).map(Some),
            };
        }
        self.enclosing.push(schema.pointer.clone());
        let example = self.parts_example(&schema);
        self.enclosing.pop();
        example
    }

    fn parts_example(&mut self, schema: &Part<'a>) -> Result<Option<Value>, ToolsError> {
        for choice in ["oneOf", "anyOf"] {
            for part in schema.elements(choice) {
                if let Some(example) = self.schema_example(part)? {
                    return Ok(Some(example));
                }
            }
        }
        if let Some(items) = schema.child("items") {
            let item = self.schema_example(items)?;
            return Ok(item.map(|item| Value::Array(vec![item])));
        }
        self.object_example(schema)
    }

    /// The examples of an object's properties and of its `allOf` schemas.
    fn object_example(&mut self, schema: &Part<'a>) -> Result<Option<Value>, ToolsError> {
        let mut members = Map::new();
        for part in schema.elements("allOf") {
            match self.schema_example(part)? {
                Some(Value::Object(part)) => members.extend(part),
                Some(other) => return Ok(Some(other)),
                None => {}
            }
        }
        for (name, property) in schema.members("properties") {
            if let Some(example) = self.schema_example(property)? {
                members.insert(name.to_owned(), example);
            }
        }
        let required = schema.elements("required");
        let mut required = required.iter().filter_map(|name| name.value.as_str());
        let has_all_required = required.all(|name| members.contains_key(name));
        Ok((has_all_required && !members.is_empty()).then_some(Value::Object(members)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const SPEC: &str = r##"
openapi: 3.1.0
paths:
  /named:
    get:
      responses:
        "404": {description: none, content: {application/json: {example: never}}}
        "200":
          description: ok
          content:
            text/csv: {example: "a,b"}
            application/json: {example: {id: 1}, examples: {other: {value: {id: 2}}}}
    post:
      responses:
        "201": {description: ok, content: {application/json: {examples: {far: {externalValue: "http://x"}, near: {$ref: "#/components/examples/near"}}}}}
    delete: {responses: {"204": {description: gone}}}
  /schema:
    get: {responses: {"200": {description: ok, content: {application/json: {schema: {$ref: "#/components/schemas/Page"}}}}}}
    put: {responses: {"200": {description: ok, content: {application/json: {schema: {type: object, required: [a, b], properties: {a: {example: 1}, b: {type: string}}}}}}}}
    patch: {responses: {"200": {description: ok, content: {application/json: {schema: {$ref: "#/components/schemas/Loop"}}}}}}
    head: {responses: {"200": {description: ok, content: {application/json: {example: 1}}}}}
  /text:
    get: {responses: {"2XX": {description: ok, content: {text/plain: {schema: {type: string, examples: [noon]}}}}}}
    post: {responses: {default: {description: fault}}}
components:
  examples:
    near: {value: "{\"id\": 3}"}
  schemas:
    Page:
      allOf:
        - {type: object, properties: {total: {type: integer, example: 9}}}
      type: object
      required: [items]
      properties:
        items: {type: array, items: {$ref: "#/components/schemas/Item"}}
        note: {type: string}
        self: {$ref: "#/components/schemas/Page"}
    Item: {oneOf: [{type: string}, {type: object, properties: {kind: {enum: [book, film]}, size: {default: 2}, v: {const: x}}}]}
    Loop: {type: object, required: [next], properties: {id: {example: 1}, next: {$ref: "#/components/schemas/Loop"}}}
"##;

    #[test]
    fn response_examples_precede_schema_examples_and_operations_without_either_are_listed() {
        let examples = import_openapi_examples(SPEC, OperationNames::Ids).expect("reads");
        let named = |name: &str| {
            let mut all = examples.responses.iter();
            all.find(|(known, _)| known == name)
                .map(|(_, value)| value.clone())
        };
        assert_eq!(named("GET /named"), Some(json!({"id": 1})));
        assert_eq!(named("POST /named"), Some(json!({"id": 3})));
        assert_eq!(named("DELETE /named"), Some(Value::Null));
        assert_eq!(named("HEAD /schema"), Some(Value::Null));
        assert_eq!(named("GET /text"), Some(json!("noon")));
        let page = named("GET /schema").expect("made of its parts");
        let item = json!({"kind": "book", "size": 2, "v": "x"});
        // A page nested in a page has no example, because the schema is recursive.
        assert_eq!(page, json!({"total": 9, "items": [item]}));
        assert_eq!(examples.n_empty, 2);
        assert_eq!(
            examples.without,
            ["PUT /schema", "PATCH /schema", "POST /text"]
        );
    }

    #[test]
    fn schemas_that_multiply_get_no_example() {
        let mut schemas = Map::new();
        for level in 0..40 {
            let next = json!({"$ref": format!("#/components/schemas/S{}", level + 1)});
            let both = json!({"type": "object", "properties": {"a": next, "b": next}});
            schemas.insert(format!("S{level}"), both);
        }
        schemas.insert("S40".to_owned(), json!({"example": "x"}));
        let content = |n: usize| {
            let schema = json!({"$ref": format!("#/components/schemas/S{n}")});
            json!({"responses": {"200":
                {"description": "", "content": {"application/json": {"schema": schema}}}}})
        };
        let spec = json!({
            "openapi": "3.0.0", "components": {"schemas": schemas},
            "paths": {"/x": {"get": content(0), "put": content(38)}},
        });
        let examples =
            import_openapi_examples(&spec.to_string(), OperationNames::Ids).expect("reads");
        assert_eq!(examples.without, ["GET /x"]);
        let pair = json!({"a": "x", "b": "x"});
        let response = ("PUT /x".to_owned(), json!({"a": pair, "b": pair}));
        assert_eq!(examples.responses, [response]);
    }
}
