//! Small specifications. Each contains one typical cause of import errors.

use serde_json::{Value, json};

use super::{RequestBodies, import_openapi};
use crate::{ApiDocument, ToolsError};

fn import(spec: &Value) -> Result<Vec<ApiDocument>, ToolsError> {
    Ok(import_openapi(&spec.to_string(), RequestBodies::AsParameters)?.documents)
}

fn spec(paths: Value, components: Value) -> Value {
    json!({
        "openapi": "3.0.3", "info": {"title": "Library", "version": "1"},
        "paths": paths, "components": components,
    })
}

/// Names of the required and the optional parameters.
fn names(document: &ApiDocument) -> (Vec<&str>, Vec<&str>) {
    let required = document.required_parameters.iter().map(|p| p.name.as_str());
    let optional = document.optional_parameters.iter().map(|p| p.name.as_str());
    (required.collect(), optional.collect())
}

fn library() -> Value {
    spec(
        json!({"/books/{id}": {
            "parameters": [
                {"$ref": "#/components/parameters/BookId"},
                {"name": "lang", "in": "query", "schema": {"type": "string"}, "description": "Path level."},
            ],
            "get": {
                "summary": "Get a book", "description": "All that is known of it.",
                "tags": ["Books", "Reading"],
                "parameters": [
                    {"name": "lang", "in": "query", "required": "true",
                     "schema": {"type": "string", "enum": ["en", "de"], "description": "Of the schema."}},
                    {"name": "Accept", "in": "header", "schema": {"type": "string"}},
                ],
                "responses": {"404": {"description": "None."}, "200": {"$ref": "#/components/responses/Book"}},
            },
            "put": {
                "summary": "Change a book.",
                "requestBody": {"content": {
                    "text/plain": {"schema": {"type": "string"}},
                    "application/json": {"schema": {"$ref": "#/components/schemas/Book"}},
                }},
                "responses": {},
            },
            "x-note": {"parameters": "not ours"},
        }}),
        json!({
            "parameters": {"BookId": {"name": "id", "in": "path", "required": true,
                "schema": {"type": ["integer", "null"], "default": 1}, "description": "Number of the book."}},
            "responses": {"Book": {"description": "A book."}},
            "schemas": {
                "Named": {"type": "object", "required": ["title", "ghost"], "properties": {
                    "title": {"type": "string"}, "created": {"type": "string", "readOnly": true}}},
                "Book": {"allOf": [
                    {"$ref": "#/components/schemas/Named"},
                    {"properties": {"id": {"type": "string"}, "sequel": {"$ref": "#/components/schemas/Book"},
                        "tags": {"items": {"type": "string"}, "description": "Words."}}},
                ]},
            },
        }),
    )
}

#[test]
fn an_operation_is_a_document_with_the_parameters_of_its_path() {
    let documents = import(&library()).expect("imports");
    let calls: Vec<String> = documents.iter().map(ApiDocument::call_name).collect();
    assert_eq!(calls, ["GET /books/{id}", "PUT /books/{id}"]);
    let get = &documents[0];
    assert_eq!(names(get), (vec!["id", "lang"], vec![]));
    assert_eq!(get.category_name, "Books, Reading");
    assert_eq!(get.api_description, "Get a book. All that is known of it.");
    assert_eq!(get.output_description, "A book.");
    assert_eq!(get.method, "GET");
    let id = get.parameter("id").expect("id");
    assert_eq!((id.kind.as_str(), &id.default), ("integer", &json!(1)));
    let lang = get.parameter("lang").expect("lang");
    assert_eq!(lang.description, "Of the schema. One of: en, de.");
}

#[test]
fn body_fields_are_parameters_unless_they_are_left_out() {
    let documents = import(&library()).expect("imports");
    let put = &documents[1];
    assert_eq!(
        names(put),
        (vec!["id", "title"], vec!["lang", "sequel", "tags"])
    );
    assert_eq!(put.category_name, "Library");
    assert_eq!(
        put.parameter("id").expect("id").kind,
        "integer",
        "the path's id wins"
    );
    assert_eq!(put.parameter("tags").expect("tags").kind, "array");
    let left_out = import_openapi(&library().to_string(), RequestBodies::LeftOut);
    let put = &left_out.expect("imports").documents[1];
    assert_eq!(names(put), (vec!["id"], vec!["lang"]));
}

#[test]
fn a_non_object_body_is_one_parameter() {
    let body = json!({"required": true, "description": "Titles.", "content": {"application/json":
        {"schema": {"type": "array", "items": {"type": "string"}}}}});
    let spec = spec(json!({"/list": {"post": {"requestBody": body}}}), json!({}));
    let documents = import(&spec).expect("imports");
    let body = &documents[0].required_parameters[0];
    assert_eq!((body.name.as_str(), body.kind.as_str()), ("body", "array"));
    assert_eq!(body.description, "Titles.");
}

#[test]
fn fields_of_alternative_schemas_are_optional() {
    let body = json!({"content": {"application/json": {"schema": {"oneOf": [
        {"required": ["a"], "properties": {"a": {"type": "string"}}},
        {"required": ["b"], "properties": {"b": {"anyOf": [{"type": "null"}, {"type": "integer"}]}}},
    ]}}}});
    let spec = spec(json!({"/x": {"post": {"requestBody": body}}}), json!({}));
    let documents = import(&spec).expect("imports");
    assert_eq!(names(&documents[0]), (vec![], vec!["a", "b"]));
    assert_eq!(documents[0].parameter("b").expect("b").kind, "integer");
}

#[test]
fn yaml_and_json_specifications_import_equally() {
    let yaml = r##"
openapi: 3.0.3
info: {title: Library, version: "1"}
paths:
  /books/{id}:
    get:
      summary: Get a book
      parameters:
        - {name: id, in: path, required: true, schema: {type: integer}}
        - name: answer
          in: query
          schema: {type: string, enum: [yes, no]}
          description: Either.
      responses:
        200: {description: A book.}
"##;
    let documents = import_openapi(yaml, RequestBodies::AsParameters).expect("imports");
    let documents = documents.documents;
    assert_eq!(documents[0].call_name(), "GET /books/{id}");
    assert_eq!(documents[0].output_description, "A book.");
    assert_eq!(names(&documents[0]), (vec!["id"], vec!["answer"]));
    let answer = documents[0].parameter("answer").expect("answer");
    assert_eq!(answer.description, "Either. One of: yes, no.");
    let error = import_openapi("a: [1", RequestBodies::LeftOut).expect_err("broken");
    assert!(error.to_string().contains("not valid YAML"), "{error}");
}

#[test]
fn an_unresolvable_reference_is_an_error_with_its_pointer() {
    let with = |reference: &str| {
        spec(
            json!({"/a/{b}": {"get": {"parameters": [{"$ref": reference}]}}}),
            json!({"parameters": {
                "Loop": {"$ref": "#/components/parameters/Pool"},
                "Pool": {"$ref": "#/components/parameters/Loop"},
                "In {brackets}": {"name": "b", "in": "path"},
            }}),
        )
    };
    for (reference, expected) in [
        ("#/components/parameters/None", "does not exist"),
        ("other.yaml#/Id", "refers to another document"),
        ("#/components/parameters/Loop", "refers to itself"),
    ] {
        let error = import(&with(reference)).expect_err(reference);
        assert!(error.to_string().contains(expected), "{error}");
        let ToolsError::UnresolvedReference { pointer, .. } = error.fault() else {
            panic!("{error}");
        };
        if !expected.contains("itself") {
            assert_eq!(pointer, "/paths/~1a~1{b}/get/parameters/0");
        }
    }
    let good = import(&with("#/components/parameters/In%20%7Bbrackets%7D")).expect("imports");
    assert_eq!(names(&good[0]), (vec!["b"], vec![]));
}

#[test]
fn recursive_schemas_are_cut() {
    let spec = spec(
        json!({"/x": {"post": {"requestBody": {"content": {"application/json":
            {"schema": {"$ref": "#/components/schemas/Node"}}}}}}}),
        json!({"schemas": {"Node": {
            "allOf": [{"$ref": "#/components/schemas/Node"}, {"$ref": "#/components/schemas/Other"}],
            "properties": {"child": {"allOf": [{"$ref": "#/components/schemas/Knot"}]}},
        }, "Other": {"anyOf": [{"$ref": "#/components/schemas/Node"}]},
        "Knot": {"allOf": [{"$ref": "#/components/schemas/Knot"}]}}}),
    );
    let documents = import(&spec).expect("imports");
    assert_eq!(names(&documents[0]), (vec![], vec!["child"]));
    assert_eq!(documents[0].parameter("child").expect("child").kind, "");
}

#[test]
fn an_invalid_specification_is_rejected_with_the_reason() {
    let parameter = |parameter: Value| {
        spec(
            json!({"/a": {"get": {"parameters": [parameter]}}}),
            json!({}),
        )
    };
    let cases = [
        (
            json!({"swagger": "1.2", "paths": {}}),
            "convert Swagger 1 to OpenAPI 3",
        ),
        (json!({"openapi": "4.0"}), "openapi must be 3.x"),
        (spec(json!({}), json!({})), "no operations under /paths"),
        (
            spec(json!({"/a": []}), json!({})),
            "/paths/~1a: a path must be an object",
        ),
        (
            spec(json!({"/a": {"get": 1}}), json!({})),
            "/paths/~1a/get: an operation must be",
        ),
        (
            parameter(json!({"in": "query"})),
            "parameters/0: a parameter needs a name",
        ),
        (
            parameter(json!({"name": "q", "in": "body"})),
            "`in` of a parameter must be",
        ),
        (
            parameter(json!({"name": "q", "in": "query", "required": "yes"})),
            "required must be true or false",
        ),
    ];
    for (value, expected) in cases {
        let message = import(&value).expect_err(expected).to_string();
        assert!(message.contains(expected), "{message}");
    }
    let error = import_openapi("{\"openapi\": ", RequestBodies::LeftOut).expect_err("cut");
    assert!(error.to_string().contains("not valid JSON"), "{error}");
}

/// Builds `n_paths` paths that contain the same operation.
fn repeat_operation(n_paths: usize, operation: &Value) -> Value {
    let path = |i: usize| (format!("/{i}"), json!({"post": operation}));
    Value::Object((0..n_paths).map(path).collect())
}

#[test]
fn shared_components_are_copied_up_to_a_limit() {
    let long = "x".repeat(1_000_000);
    let shared = json!({
        "schemas": {
            "text": {"type": "string", "description": long},
            "default": {"type": "string", "default": long},
            "choice": {"type": "string", "enum": [long]},
        },
        "responses": {"good": {"description": long}},
    });
    let parameter = |schema: &str| {
        let schema = json!({"$ref": format!("#/components/schemas/{schema}")});
        json!({"parameters": [{"name": "q", "in": "query", "schema": schema}]})
    };
    let body = json!({"requestBody": {"content": {"application/json": {"schema": {
        "properties": {"q": {"$ref": "#/components/schemas/text"}}}}}}});
    let answer = json!({"responses": {"200": {"$ref": "#/components/responses/good"}}});
    let operations = [
        parameter("text"),
        parameter("default"),
        parameter("choice"),
        body,
        answer,
    ];
    for operation in operations {
        let few = import(&spec(repeat_operation(20, &operation), shared.clone()));
        assert_eq!(few.expect("20 MB").len(), 20);
        let error = import(&spec(repeat_operation(5_000, &operation), shared.clone()));
        let error = error.expect_err("5 GB").to_string();
        assert!(error.contains("SPEC_BYTES in docs/limits.md"), "{error}");
    }
}

#[test]
fn a_hundred_thousand_fields_of_a_body_are_read() {
    let field = |i: usize| (format!("field{i}"), json!({"type": "string"}));
    let fields: serde_json::Map<String, Value> = (0..100_000).map(field).collect();
    let names: Vec<&String> = fields.keys().collect();
    let schema = json!({"properties": fields, "required": names});
    let operation = json!({"requestBody": {"content": {"application/json": {"schema": schema}}}});
    let start = std::time::Instant::now();
    let documents = import(&spec(repeat_operation(1, &operation), json!({}))).expect("reads");
    assert_eq!(documents[0].required_parameters.len(), 100_000);
    assert!(start.elapsed().as_secs() < 60, "{:?}", start.elapsed());
}

fn shop() -> Value {
    let line = json!({"type": "object", "required": ["sku"], "properties": {
        "sku": {"type": "string"}, "quantity": {"type": "integer", "minimum": 0, "exclusiveMinimum": true}}});
    spec(
        json!({
            "/orders": {"post": {
                "operationId": "createOrder",
                "requestBody": {"required": true, "content": {"application/json": {"schema":
                    {"$ref": "#/components/schemas/Order"}}}},
                "responses": {"201": {"description": "Made.", "content": {"application/json":
                    {"schema": {"allOf": [{"$ref": "#/components/schemas/Order"},
                        {"properties": {"state": {"type": "string", "enum": ["new", "paid"]}}}]}}}},
                    "400": {"description": "Wrong."}},
            }},
            "/orders/{id}": {"delete": {
                "parameters": [{"name": "id", "in": "path", "schema": {"type": "string", "format": "uuid"}}],
                "responses": {"200": {"description": "Cancelled"}},
            }},
        }),
        json!({"schemas": {
            "Order": {"type": "object", "required": ["customer", "items", "id"], "properties": {
                "id": {"type": "integer", "readOnly": true},
                "customer": {"allOf": [{"$ref": "#/components/schemas/Person"}], "description": "Who."},
                "items": {"type": "array", "items": line},
                "note": {"type": "string", "nullable": true, "x-order": 1},
                "parent": {"$ref": "#/components/schemas/Order"}}},
            "Person": {"type": "object", "required": ["name"], "properties": {
                "name": {"type": "string"},
                "address": {"type": "object", "properties": {"city": {"type": "string"}}}}},
        }}),
    )
}

#[test]
fn schemas_of_bodies_and_responses_are_kept_with_references_expanded() {
    let imported = import_openapi(&shop().to_string(), RequestBodies::AsParameters).expect("reads");
    let [post, delete] = imported.documents.as_slice() else {
        panic!("{:?}", imported.documents);
    };
    assert_eq!(
        names(post),
        (vec!["customer", "items"], vec!["note", "parent"])
    );
    assert_eq!(post.operation_id, "createOrder");
    let schema = |name: &str| {
        let parameter = post.parameter(name).expect(name);
        assert_eq!(parameter.location, "body");
        parameter
            .schema
            .as_ref()
            .map(|schema| schema.value().clone())
    };
    let person = json!({"type": "object", "properties": {
        "name": {"type": "string"},
        "address": {"type": "object", "properties": {"city": {"type": "string"}}}},
        "required": ["name"]});
    assert_eq!(schema("customer"), Some(person.clone()));
    assert_eq!(post.parameter("customer").expect("it").description, "Who.");
    assert_eq!(
        schema("items"),
        Some(
            json!({"type": "array", "items": {"type": "object", "properties": {
            "sku": {"type": "string"}, "quantity": {"type": "integer", "exclusiveMinimum": 0}},
            "required": ["sku"]}})
        )
    );
    assert_eq!(schema("note"), Some(json!({"type": ["string", "null"]})));
    let parent = schema("parent").expect("an order");
    assert_eq!(
        parent["required"],
        json!(["customer", "items"]),
        "the server fills id in"
    );
    assert_eq!(
        parent["properties"]["parent"],
        json!({"type": "object"}),
        "it ends"
    );
    let schema_of_response = post.output_schema.as_ref().expect("a response");
    assert_eq!(
        schema_of_response["properties"]["id"],
        json!({"type": "integer"})
    );
    assert_eq!(
        schema_of_response["properties"]["state"]["enum"],
        json!(["new", "paid"])
    );
    let mut described = person;
    described["description"] = json!("Who.");
    assert_eq!(schema_of_response["properties"]["customer"], described);
    let id = delete.parameter("id").expect("id");
    assert_eq!((id.location.as_str(), id.kind.as_str()), ("path", "string"));
    let id = id.schema.as_ref().map(|schema| schema.value().clone());
    assert_eq!(id, Some(json!({"type": "string", "format": "uuid"})));
    assert_eq!(delete.output_schema, Some(json!({"type": "null"})));
    let written = serde_json::to_value(post).expect("written");
    assert_eq!(ApiDocument::try_from(written).expect("reads"), *post);
}

#[test]
fn discarded_information_is_reported_with_its_location() {
    let imported = import_openapi(&shop().to_string(), RequestBodies::AsParameters).expect("reads");
    let lines = imported.left_out.lines();
    for expected in [
        "recursive schemas, which allow any value of the type where they repeat: POST /orders, parent",
        "extensions (x-...): POST /orders, note",
        "1 operations with more than one response, of which the first 2xx is imported: POST /orders",
    ] {
        assert!(
            lines.iter().any(|line| line.contains(expected)),
            "{expected}: {lines:#?}"
        );
    }
    let clash = import_openapi(&library().to_string(), RequestBodies::AsParameters);
    let lines = clash.expect("reads").left_out.lines();
    let expected = "which calls cannot use: PUT /books/{id}, field id";
    assert!(
        lines.iter().any(|line| line.contains(expected)),
        "{lines:#?}"
    );
    let dangling = json!({"properties": {"q": {"properties": {"a": {"$ref": "#/nowhere"}}}}});
    let body = json!({"requestBody": {"content": {"application/json": {"schema": dangling}}}});
    let dangling = spec(json!({"/x": {"post": body}}), json!({}));
    let imported =
        import_openapi(&dangling.to_string(), RequestBodies::AsParameters).expect("reads");
    let lines = imported.left_out.lines();
    assert!(
        lines[0].contains("\"#/nowhere\" does not exist"),
        "{lines:#?}"
    );
}

#[test]
fn contradictory_all_of_branches_are_not_merged() {
    let schema = json!({"allOf": [
        {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": false},
        {"type": "object", "properties": {"b": {"type": "string"}}},
    ]});
    let wrapped = json!({"properties": {"q": schema}});
    let body = json!({"requestBody": {"content": {"application/json": {"schema": wrapped}}}});
    let documents = import(&spec(json!({"/x": {"post": body}}), json!({}))).expect("reads");
    let imported = documents[0]
        .parameter("q")
        .expect("q")
        .schema
        .as_ref()
        .expect("a schema");
    assert_eq!(
        imported.value()["allOf"],
        schema["allOf"]
            .as_array()
            .map(|all| json!([all[1]]))
            .unwrap()
    );
    assert_eq!(imported.value()["additionalProperties"], json!(false));
}

#[test]
fn an_endless_schema_is_cut_at_the_deepest_level_that_fits() {
    // Each level contains ten references to the next; the full expansion has a billion parts.
    let level = |i: usize| {
        let part = |j: usize| {
            let next = json!({"$ref": format!("#/components/schemas/L{}", i + 1)});
            (format!("part{j}"), next)
        };
        let properties: serde_json::Map<String, Value> = (0..10).map(part).collect();
        (
            format!("L{i}"),
            json!({"type": "object", "properties": properties}),
        )
    };
    let mut schemas: serde_json::Map<String, Value> = (0..9).map(level).collect();
    schemas.insert("L9".to_owned(), json!({"type": "string"}));
    let body = json!({"requestBody": {"content": {"application/json": {"schema":
        {"properties": {"q": {"$ref": "#/components/schemas/L0"}}}}}}});
    let spec = spec(repeat_operation(100, &body), json!({"schemas": schemas}));
    let imported = import_openapi(&spec.to_string(), RequestBodies::AsParameters).expect("reads");
    let schema = imported.documents[0]
        .parameter("q")
        .expect("q")
        .schema
        .as_ref()
        .expect("a schema");
    let deep = schema
        .value()
        .pointer("/properties/part9/properties/part9")
        .expect("two levels");
    assert_eq!(deep["type"], "object");
    let n_bytes = schema.value().to_string().len();
    assert!(n_bytes < 2 * crate::budgets::SCHEMA_BYTES, "{n_bytes}");
    let lines = imported.left_out.lines();
    assert!(
        lines[0].starts_with("100 schemas of more than 65536 bytes"),
        "{lines:#?}"
    );
}
