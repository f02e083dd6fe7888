//! Tests of keywords next to references, the number of visited parts, and operation names.

use std::time::Instant;

use serde_json::{Map, Value, json};

use super::listing::SpecText;
use super::openapi::import_with;
use super::reference::ImportState;
use super::{
    OpenApiOptions, OperationNames, RequestBodies, import_openapi, import_openapi_examples,
};
use crate::{ApiDocument, ApiParameter};

fn import_spec(spec: &Value) -> super::ImportedApis {
    import_openapi(&spec.to_string(), RequestBodies::AsParameters).expect("imports")
}

fn spec(version: &str, paths: Value, components: Value) -> Value {
    json!({"openapi": version, "info": {"title": "T", "version": "1"}, "paths": paths,
        "components": components})
}

fn parameter_schema(parameter: &ApiParameter) -> Value {
    let schema = parameter.schema.as_ref();
    schema.map_or(Value::Null, |schema| schema.value().clone())
}

fn parameter<'d>(document: &'d ApiDocument, name: &str) -> &'d ApiParameter {
    document.parameter(name).expect(name)
}

#[test]
fn keywords_next_to_a_reference_apply_at_every_level() {
    let color = |more: Value| {
        let mut color = json!({"$ref": "#/components/schemas/Color"});
        let fields = color.as_object_mut().expect("an object");
        fields.extend(more.as_object().expect("an object").clone());
        color
    };
    let query = |name: &str, schema: Value| json!({"name": name, "in": "query", "schema": schema});
    let count = json!({"$ref": "#/components/schemas/N", "maximum": 3, "default": 1});
    let colors = json!({"type": "array", "items": color(json!({"enum": ["red"]}))});
    let body = json!({"requestBody": {"content": {"application/json": {"schema": {
        "type": "object", "properties": {
            "color": color(json!({"default": "blue", "description": "The colour."})),
            "n": count, "colors": colors,
            "inner": {"type": "object", "properties": {"n": count}}}}}}}});
    let get = json!({"parameters": [
        query("color", color(json!({"default": "red", "description": "the colour"}))),
        query("limit", json!({"$ref": "#/components/schemas/N", "maximum": 10})),
        query("k", json!({"$ref": "#/components/schemas/N", "enum": [1, 2]})),
        query("plain", json!({"$ref": "#/components/schemas/Color"})),
    ]});
    let components = json!({"schemas": {
        "Color": {"type": "string", "enum": ["red", "blue"], "description": "Any."},
        "N": {"type": "integer", "minimum": 0}}});
    for version in ["3.1.0", "3.0.3"] {
        let spec = spec(
            version,
            json!({"/a": {"get": get, "post": body}}),
            components.clone(),
        );
        let documents = import_spec(&spec).documents;
        let [get, post] = documents.as_slice() else {
            panic!("{documents:?}");
        };
        let color = parameter(get, "color");
        assert_eq!(color.kind, "string");
        assert_eq!(color.default, json!("red"));
        assert_eq!(color.description, "the colour. One of: red, blue.");
        assert_eq!(
            parameter_schema(color),
            json!({"type": "string", "enum": ["red", "blue"]})
        );
        let limit = parameter_schema(parameter(get, "limit"));
        assert_eq!(
            limit,
            json!({"maximum": 10, "type": "integer", "minimum": 0})
        );
        let k = parameter(get, "k");
        assert_eq!(k.description, "One of: 1, 2.");
        assert_eq!(
            parameter_schema(k),
            json!({"enum": [1, 2], "type": "integer", "minimum": 0})
        );
        assert_eq!(
            parameter(get, "plain").description,
            "Any. One of: red, blue."
        );
        assert_eq!(parameter(post, "color").default, json!("blue"));
        assert_eq!(
            parameter(post, "color").description,
            "The colour. One of: red, blue."
        );
        let n = parameter(post, "n");
        assert_eq!((n.kind.as_str(), &n.default), ("integer", &json!(1)));
        assert_eq!(
            parameter_schema(n),
            json!({"maximum": 3, "type": "integer", "minimum": 0})
        );
        let inner = parameter_schema(parameter(post, "inner"));
        assert_eq!(
            inner["properties"]["n"],
            json!({"maximum": 3, "default": 1, "type": "integer", "minimum": 0})
        );
        assert_eq!(parameter(post, "colors").description, "One of: red.");
    }
}

#[test]
fn nullable_next_to_a_reference_extends_its_target() {
    let nullable =
        |name: &str| json!({"$ref": format!("#/components/schemas/{name}"), "nullable": true});
    let body = json!({"requestBody": {"content": {"application/json": {"schema": {
        "type": "object", "properties": {
            "text": nullable("Text"), "choice": nullable("Choice"), "either": nullable("Either"),
            "wrapped": {"allOf": [{"$ref": "#/components/schemas/Text"}], "nullable": true},
            "inner": {"type": "object", "properties": {"text": nullable("Text")}}}}}}}});
    let components = json!({"schemas": {
        "Text": {"type": "string"}, "Choice": {"type": "string", "enum": ["a"]},
        "Either": {"oneOf": [{"type": "string"}, {"type": "integer"}]}}});
    let spec = spec("3.0.3", json!({"/a": {"post": body}}), components);
    let post = &import_spec(&spec).documents[0];
    for name in ["text", "choice", "either", "wrapped"] {
        let parameter = parameter(post, name);
        assert!(
            parameter.accepts_null(),
            "{name}: {}",
            parameter_schema(parameter)
        );
        assert_ne!(parameter.kind, "", "{name}");
    }
    assert_eq!(
        parameter_schema(parameter(post, "text")),
        json!({"type": ["string", "null"]})
    );
    assert_eq!(
        parameter_schema(parameter(post, "inner"))["properties"]["text"],
        json!({"type": ["string", "null"]})
    );
}

#[test]
fn descriptions_next_to_a_reference_take_precedence() {
    let operation = json!({
        "parameters": [{"$ref": "#/components/parameters/Id", "description": "Of the order."}],
        "requestBody": {"$ref": "#/components/requestBodies/All", "description": "All lines."},
        "responses": {"200": {"$ref": "#/components/responses/Good", "description": "The order."}},
    });
    let paths = json!({
        "/orders/{id}": {"$ref": "#/components/pathItems/Order",
            "post": operation, "parameters": [{"name": "lang", "in": "query"}]},
        "/plain": {"$ref": "#/components/pathItems/Order"},
    });
    let components = json!({
        "parameters": {"Id": {"name": "id", "in": "path", "required": true,
            "schema": {"type": "string"}, "description": "Any."}},
        "requestBodies": {"All": {"description": "Any.", "content": {"application/json": {"schema":
            {"type": "array", "items": {"type": "string"}}}}}},
        "responses": {"Good": {"description": "Any."}},
        "pathItems": {"Order": {"get": {"summary": "Read."}, "post": {"summary": "Not this."},
            "parameters": [{"name": "trace", "in": "header"}]}},
    });
    let documents = import_spec(&spec("3.1.0", paths, components)).documents;
    let names: Vec<String> = documents.iter().map(ApiDocument::call_name).collect();
    assert_eq!(
        names,
        [
            "POST /orders/{id}",
            "GET /orders/{id}",
            "GET /plain",
            "POST /plain"
        ]
    );
    let post = &documents[0];
    assert_eq!(parameter(post, "id").description, "Of the order.");
    assert_eq!(parameter(post, "body").description, "All lines.");
    assert_eq!(post.output_description, "The order.");
    for document in &documents[..2] {
        assert!(document.parameter("lang").is_some() && document.parameter("trace").is_some());
    }
    assert!(documents[2].parameter("lang").is_none());
}

#[test]
fn header_names_are_case_insensitive() {
    let header =
        |name: &str, kind: &str| json!({"name": name, "in": "header", "schema": {"type": kind}});
    let paths = json!({"/a": {
        "parameters": [header("X-Trace", "string"), {"name": "id", "in": "query"}],
        "get": {"parameters": [header("x-trace", "integer"), {"name": "ID", "in": "query"}]}}});
    let document = &import_spec(&spec("3.0.0", paths, json!({}))).documents[0];
    let names: Vec<&str> = document.parameters().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["x-trace", "id", "ID"]);
    assert_eq!(parameter(document, "x-trace").kind, "integer");
}

#[test]
fn yaml_scalars_are_strings_if_the_schema_requires_strings() {
    let yaml = r##"
openapi: 3.0.3
paths:
  /a:
    get:
      parameters:
        - {name: code, in: query, schema: {type: string, default: 007, enum: [007, 1e3, 1.10, yes, true]}}
        - {name: number, in: query, schema: {type: integer, default: 007}}
        - {name: octal, in: query, schema: {type: integer, default: 0o17}}
        - {name: shared, in: query, schema: {$ref: "#/components/schemas/Code", default: 012}}
        - {name: answer, in: query, schema: {type: boolean, default: true}}
      responses:
        200: {description: ok, content: {application/json: {schema: {type: object, properties: {
          code: {type: string, example: 007}, n: {type: integer, example: 007}}}}}}
components:
  schemas:
    Code: {type: string}
"##;
    let documents = import_openapi(yaml, RequestBodies::AsParameters).expect("imports");
    let get = &documents.documents[0];
    let code = parameter(get, "code");
    assert_eq!(code.default, json!("007"));
    assert_eq!(
        parameter_schema(code)["enum"],
        json!(["007", "1e3", "1.10", "yes", "true"])
    );
    for (name, default) in [
        ("number", json!(7)),
        ("octal", json!(15)),
        ("shared", json!("012")),
        ("answer", json!(true)),
    ] {
        assert_eq!(parameter(get, name).default, default, "{name}");
    }
    let examples = import_openapi_examples(yaml, OperationNames::Ids).expect("reads");
    assert_eq!(examples.responses[0].1, json!({"code": "007", "n": 7}));
}

#[test]
fn operations_are_named_by_their_ids_if_these_are_unique() {
    let operation = |id: &str| json!({"operationId": id, "responses": {}});
    let paths = json!({
        "/orders": {"get": operation("listOrders"), "post": operation("twice")},
        "/orders/{id}": {"get": {"responses": {}}, "delete": operation("twice")},
    });
    let spec = spec("3.0.0", paths, json!({}));
    let names = |names: OperationNames| {
        let options = OpenApiOptions {
            names,
            ..RequestBodies::AsParameters.into()
        };
        let imported = import_openapi(&spec.to_string(), options).expect("imports");
        let call_names: Vec<String> = imported
            .documents
            .iter()
            .map(ApiDocument::call_name)
            .collect();
        (call_names, imported.left_out.lines())
    };
    let by_path = [
        "GET /orders",
        "POST /orders",
        "GET /orders/{id}",
        "DELETE /orders/{id}",
    ];
    assert_eq!(names(OperationNames::Paths).0, by_path);
    assert_eq!(names(OperationNames::Paths).1, Vec::<String>::new());
    let (call_names, notes) = names(OperationNames::Ids);
    assert_eq!(call_names[0], "listOrders");
    assert_eq!(call_names[1..], by_path[1..]);
    for expected in [
        "2 operations with a duplicate operationId",
        "1 operations without an operationId",
    ] {
        assert!(
            notes.iter().any(|line| line.contains(expected)),
            "{notes:#?}"
        );
    }
}

#[test]
fn unsupported_request_bodies_are_reported() {
    let body = |kinds: &[&str]| {
        let content: Map<String, Value> = kinds
            .iter()
            .map(|&kind| {
                (
                    kind.to_owned(),
                    json!({"schema": {"properties": {"a": {}}}}),
                )
            })
            .collect();
        json!({"post": {"requestBody": {"content": content}}})
    };
    let paths = json!({
        "/upload": body(&["multipart/form-data"]),
        "/both": body(&["multipart/form-data", "application/x-www-form-urlencoded"]),
        "/xml": body(&["application/xml"]),
    });
    let notes = import_spec(&spec("3.0.0", paths, json!({})))
        .left_out
        .lines();
    for (kind, place) in [
        ("multipart/form-data", "POST /upload"),
        ("application/xml", "POST /xml"),
    ] {
        let expected = format!("1 bodies of type {kind}, which the executor");
        let line = notes.iter().find(|line| line.starts_with(&expected));
        assert!(line.is_some_and(|line| line.ends_with(place)), "{notes:#?}");
    }
}

#[test]
fn circular_and_endless_references_are_errors() {
    let query = |schema: &str| {
        json!({"/x": {"get": {"parameters": [{"name": "q", "in": "query",
            "schema": {"$ref": format!("#/components/schemas/{schema}")}}]}}})
    };
    let link = |i: usize| {
        let next = json!({"$ref": format!("#/components/schemas/C{}", i + 1)});
        (format!("C{i}"), next)
    };
    let mut schemas: Map<String, Value> = (0..50_000).map(link).collect();
    schemas.insert("C50000".to_owned(), json!({"type": "string"}));
    schemas.insert("A".to_owned(), json!({"$ref": "#/components/schemas/B"}));
    schemas.insert("B".to_owned(), json!({"$ref": "#/components/schemas/A"}));
    let recursive =
        json!({"type": "object", "properties": {"a": {"$ref": "#/components/schemas/A"}}});
    schemas.insert("Within".to_owned(), recursive);
    let components = json!({"schemas": schemas});
    let start = Instant::now();
    for (schema, expected) in [
        ("A", "refers to itself"),
        ("C0", "is at the end of more than 100 chained references"),
    ] {
        let spec = spec("3.1.0", query(schema), components.clone()).to_string();
        let error = import_openapi(&spec, RequestBodies::AsParameters).expect_err(expected);
        assert!(error.to_string().contains(expected), "{error}");
    }
    let near = import_spec(&spec("3.1.0", query("C49950"), components.clone()));
    assert_eq!(parameter(&near.documents[0], "q").kind, "string");
    let recursive = import_spec(&spec("3.1.0", query("Within"), components));
    let notes = recursive.left_out.lines();
    assert!(
        notes.iter().any(|line| line.contains("refers to itself")),
        "{notes:#?}"
    );
    assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
}

#[test]
fn shared_schemas_are_read_once_and_unshared_ones_are_bounded() {
    let level = |prefix: &str, i: usize| {
        let next = json!({"$ref": format!("#/components/schemas/{prefix}{}", i + 1)});
        let both = json!({"type": "object", "properties": {"a": next, "b": next}});
        (format!("{prefix}{i}"), both)
    };
    let mut schemas: Map<String, Value> = (0..60).map(|i| level("S", i)).collect();
    schemas.insert("S60".to_owned(), json!({"type": "string"}));
    let answer = |schema: &Value| {
        json!({"post": {"responses": {"200": {"description": "OK",
            "content": {"application/json": {"schema": schema}}}}}})
    };
    let paths = |n: usize, schema: &dyn Fn(usize) -> Value| -> Value {
        let path = |i: usize| (format!("/x{i}"), answer(&schema(i)));
        Value::Object((0..n).map(path).collect())
    };
    let start = Instant::now();
    let shared = paths(300, &|_| json!({"$ref": "#/components/schemas/S0"}));
    let documents = import_spec(&spec("3.1.0", shared, json!({"schemas": schemas}))).documents;
    assert_eq!(documents.len(), 300);
    let first = &documents[0].output_schema;
    assert!(documents.iter().all(|one| one.output_schema == *first));
    // All schemas are different, so each is visited.
    let own = paths(1_000, &|i| {
        json!({"type": "object", "description": i.to_string(),
            "properties": {"x": {"$ref": "#/components/schemas/S0"}}})
    });
    let spec = spec("3.1.0", own, json!({"schemas": schemas})).to_string();
    let parsed = SpecText::parse(&spec).expect("parses");
    let seen = std::cell::Cell::new(0);
    let watch = |n_read: usize, n_all: usize| {
        assert_eq!((n_read, n_all), (seen.get(), 1_000));
        seen.set(n_read + 1);
    };
    let options = OpenApiOptions {
        watch: &watch,
        ..RequestBodies::AsParameters.into()
    };
    let error = import_with(&parsed, &options, ImportState::with_limit(100_000));
    let error = error.expect_err("without end").to_string();
    let last = format!("up to \"POST /x{}\"", seen.get() - 1);
    assert!(error.contains(&last), "{error}");
    assert!(error.contains("SPEC_PARTS in docs/limits.md"), "{error}");
    assert!(start.elapsed().as_secs() < 60, "{:?}", start.elapsed());
}

#[test]
fn documents_of_ten_million_numbers_are_refused_before_they_are_built() {
    let numbers = "0,".repeat(10_000_000);
    let text = format!("{{\"openapi\": \"3.0.0\", \"x\": [{numbers}0]}}");
    let error = import_openapi(&text, RequestBodies::LeftOut).expect_err("too many");
    let message = error.to_string();
    assert!(message.contains("more than 5000000 values"), "{message}");
    let yaml = format!("openapi: 3.0.0\nx: [{numbers}0]\n");
    let error = import_openapi(&yaml, RequestBodies::LeftOut).expect_err("too many");
    assert!(error.to_string().contains("JSON_VALUES"), "{error}");
}
