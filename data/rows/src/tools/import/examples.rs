//! The responses that an OpenAPI 3 document gives as examples, one for each operation.
//!
//! An example of the response itself comes first, then one of its schema, then one that the examples
//! of the schema's parts make up. The decision to question: a part of a schema without an example is
//! left out where it is optional, and leaves the whole without one where it is required, because an
//! invented value would pass for the API's.

use std::path::Path;

use serde_json::{Map, Value};

use super::openapi::{RequestBodies, good_response, import_openapi, parse};
use super::reference::{Copied, Part, STEP_BYTES, Spec};
use crate::budgets::SCHEMA_BYTES;
use crate::json;
use crate::tools::error::ToolsError;
use crate::tools::source::read_text;

/// Schemas that are looked at for the example of one response; one that takes more has none.
const MOST_SCHEMAS: usize = SCHEMA_BYTES / STEP_BYTES;

/// Responses by the names of operations.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ExampleResponses {
    /// The operations that have one, in the order of the document.
    pub responses: Vec<(String, Value)>,
    /// Of these, those that return nothing, so that the response is null.
    pub n_empty: usize,
    /// The operations that have none.
    pub without: Vec<String>,
}

/// Reads the examples of a specification from a file of JSON or YAML, gzip-compressed or not.
///
/// # Errors
///
/// - the file cannot be read
/// - those of [`import_openapi_examples`]
pub fn import_openapi_examples_file(path: &Path) -> Result<ExampleResponses, ToolsError> {
    import_openapi_examples(&read_text(path)?).map_err(|error| error.at(path.display().to_string()))
}

/// Reads the examples of a specification; the names are those of [`import_openapi`].
///
/// # Errors
///
/// - those of [`import_openapi`]
/// - the examples copy more than `SPEC_BYTES`
pub fn import_openapi_examples(text: &str) -> Result<ExampleResponses, ToolsError> {
    let documents = import_openapi(text, RequestBodies::LeftOut)?.documents;
    let root = parse(text)?;
    let copied = Copied::default();
    let spec = Spec::new(&root, &copied);
    let whole = Part {
        value: &root,
        pointer: String::new(),
    };
    let has_contents = spec.has_contents(&whole);
    let mut found = ExampleResponses::default();
    for document in documents {
        let name = document.api_name;
        let (method, path) = name.split_once(' ').unwrap_or_default();
        let item = whole.child("paths").and_then(|paths| paths.child(path));
        let item = item.map(|item| spec.resolve(item)).transpose()?;
        let method = method.to_lowercase();
        let operation = item.and_then(|item| item.child(&method));
        let example = match operation {
            Some(operation) => example(spec, &method, &operation, has_contents)?,
            None => None,
        };
        match example {
            Some(example) => {
                found.n_empty += usize::from(example.is_null());
                found.responses.push((name, example));
            }
            None => found.without.push(name),
        }
    }
    Ok(found)
}

/// The example of an operation's response; null where it returns nothing.
fn example<'a>(
    spec: Spec<'a>,
    method: &str,
    operation: &Part<'a>,
    has_contents: bool,
) -> Result<Option<Value>, ToolsError> {
    let Some((code, response)) = good_response(operation) else {
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
        if let Some(example) = of_content(spec, &content)? {
            // Some write the JSON as a text.
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
fn of_content<'a>(spec: Spec<'a>, content: &Part<'a>) -> Result<Option<Value>, ToolsError> {
    if let Some(example) = content.child("example") {
        return copied(spec, &example).map(Some);
    }
    for (_, example) in content.members("examples") {
        if let Some(value) = spec.resolve(example)?.child("value") {
            return copied(spec, &value).map(Some);
        }
    }
    match content.child("schema") {
        Some(schema) => {
            let mut search = Search {
                spec,
                within: Vec::new(),
                n_left: MOST_SCHEMAS,
            };
            let example = search.of_schema(schema)?;
            Ok(example.filter(|_| search.n_left > 0))
        }
        None => Ok(None),
    }
}

fn copied(spec: Spec<'_>, part: &Part<'_>) -> Result<Value, ToolsError> {
    spec.take(part.value.to_string().len(), part)?;
    Ok(part.value.clone())
}

/// The search for the example of one response's schema.
struct Search<'a> {
    spec: Spec<'a>,
    /// The schemas that the one which is looked at stands in; within itself a schema has none.
    within: Vec<String>,
    n_left: usize,
}

impl<'a> Search<'a> {
    /// The example of a schema, or one that the examples of its parts make up.
    fn of_schema(&mut self, schema: Part<'a>) -> Result<Option<Value>, ToolsError> {
        let schema = self.spec.resolve(schema)?;
        self.spec.take(STEP_BYTES, &schema)?;
        self.n_left = self.n_left.saturating_sub(1);
        if self.n_left == 0 || self.within.contains(&schema.pointer) {
            return Ok(None);
        }
        let listed = |name: &str| schema.elements(name).into_iter().next();
        let own = schema
            .child("example")
            .or_else(|| listed("examples"))
            .or_else(|| schema.child("const"))
            .or_else(|| schema.child("default"))
            .or_else(|| listed("enum"));
        if let Some(example) = own {
            return copied(self.spec, &example).map(Some);
        }
        self.within.push(schema.pointer.clone());
        let example = self.of_parts(&schema);
        self.within.pop();
        example
    }

    fn of_parts(&mut self, schema: &Part<'a>) -> Result<Option<Value>, ToolsError> {
        for choice in ["oneOf", "anyOf"] {
            for part in schema.elements(choice) {
                if let Some(example) = self.of_schema(part)? {
                    return Ok(Some(example));
                }
            }
        }
        if let Some(items) = schema.child("items") {
            let item = self.of_schema(items)?;
            return Ok(item.map(|item| Value::Array(vec![item])));
        }
        self.of_object(schema)
    }

    /// The examples of an object's properties, and of the schemas that it is to fit as well.
    fn of_object(&mut self, schema: &Part<'a>) -> Result<Option<Value>, ToolsError> {
        let mut members = Map::new();
        for part in schema.elements("allOf") {
            match self.of_schema(part)? {
                Some(Value::Object(part)) => members.extend(part),
                Some(other) => return Ok(Some(other)),
                None => {}
            }
        }
        for (name, property) in schema.members("properties") {
            if let Some(example) = self.of_schema(property)? {
                members.insert(name.to_owned(), example);
            }
        }
        let required = schema.elements("required");
        let mut required = required.iter().filter_map(|name| name.value.as_str());
        let is_whole = required.all(|name| members.contains_key(name));
        Ok((is_whole && !members.is_empty()).then_some(Value::Object(members)))
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
    fn examples_of_responses_come_before_those_of_schemas_and_what_has_none_is_named() {
        let found = import_openapi_examples(SPEC).expect("reads");
        let named = |name: &str| {
            let mut all = found.responses.iter();
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
        // A page within itself has none.
        assert_eq!(page, json!({"total": 9, "items": [item]}));
        assert_eq!(found.n_empty, 2);
        assert_eq!(
            found.without,
            ["PUT /schema", "PATCH /schema", "POST /text"]
        );
    }

    #[test]
    fn schemas_that_multiply_end_in_no_example() {
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
        let found = import_openapi_examples(&spec.to_string()).expect("reads");
        assert_eq!(found.without, ["GET /x"]);
        let pair = json!({"a": "x", "b": "x"});
        let response = ("PUT /x".to_owned(), json!({"a": pair, "b": pair}));
        assert_eq!(found.responses, [response]);
    }
}
