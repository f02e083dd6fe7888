//! Imports the `tools/list` result of an MCP server as [`ApiDocument`]s.
//!
//! The API name is the tool's name; `tool_name` is empty because the list does not name its server.

use std::path::Path;

use serde_json::Value;

use super::body::object_fields;
use super::openapi::ImportedApis;
use super::reference::{ImportState, Part, Spec};
use super::schema::{Direction, convert_schema};
use crate::document::ApiDocument;
use crate::error::ToolsError;
use crate::fields::Fields;
use crate::source::read_json;

const LAYOUT: &str =
    "a tool needs name and inputSchema, as in the tools/list result of an MCP server";

/// Reads tools from a JSON file, optionally gzip-compressed. `watch` is called after each tool with
/// the number of tools read so far and the total.
///
/// # Errors
///
/// - the file cannot be read
/// - the errors of [`import_mcp_tools`]
pub fn import_mcp_file(
    path: &Path,
    watch: &dyn Fn(usize, usize),
) -> Result<ImportedApis, ToolsError> {
    let import = || import_tools(&read_json(path)?, watch);
    import().map_err(|error| error.at(path.display().to_string()))
}

/// Reads the result of `tools/list`, `{"tools": [...]}`, a whole response that contains it as
/// `result`, or only the list.
///
/// Each property of a tool's `inputSchema` becomes a parameter with its schema, as in
/// [`import_openapi`](super::import_openapi); `outputSchema` becomes `output_schema`.
///
/// # Errors
///
/// - the value has none of these layouts, or has no tools
/// - the list is incomplete because it has a `nextCursor`; an empty `nextCursor`, which some
///   servers send on the last page, is only reported
/// - a tool has no name, or its `inputSchema` is not an object
/// - a `$ref` does not resolve, refers to another document, or is circular
pub fn import_mcp_tools(value: &Value) -> Result<ImportedApis, ToolsError> {
    import_tools(value, &|_, _| {})
}

fn import_tools(value: &Value, watch: &dyn Fn(usize, usize)) -> Result<ImportedApis, ToolsError> {
    let result = value.get("result").unwrap_or(value);
    let is_end = |cursor: &Value| cursor.is_null() || cursor == "";
    let cursor = result.get("nextCursor");
    if cursor.is_some_and(|cursor| !is_end(cursor)) {
        return Err(ToolsError::MoreTools);
    }
    let tools = match result {
        Value::Array(tools) => tools.as_slice(),
        result => Fields::new(result, "", "a list of tools needs tools")?.list("tools")?,
    };
    if tools.is_empty() {
        return Err(ToolsError::Empty { what: "tools" });
    }
    let state = ImportState::default();
    if cursor.is_some_and(|cursor| cursor == "") {
        let what = "an empty nextCursor: tools may be missing; use --command to fetch the list \
                    from the server";
        Spec::new(value, &state).report(what, "nextCursor");
    }
    let mut documents = Vec::with_capacity(tools.len());
    for (tool_idx, tool) in tools.iter().enumerate() {
        let path = format!("tools[{tool_idx}]");
        let fields = Fields::new(tool, &path, LAYOUT)?;
        let name = fields.text("name")?;
        let document = document(&fields, name, &state);
        documents.push(document.map_err(|error| error.at(format!("tool {name:?}")))?);
        watch(documents.len(), tools.len());
    }
    Ok(ImportedApis {
        documents,
        left_out: state.into_discarded(),
    })
}

fn document(
    fields: &Fields<'_>,
    name: &str,
    state: &ImportState,
) -> Result<ApiDocument, ToolsError> {
    if name.trim().is_empty() {
        return Err(ToolsError::EmptyField {
            field: fields.path("name"),
            needed: LAYOUT,
        });
    }
    fields.object("inputSchema")?;
    let input = fields
        .get("inputSchema")
        .ok_or_else(|| fields.missing("inputSchema"))?;
    let spec = Spec::new(input, state);
    spec.enter(name);
    for key in ["annotations", "execution", "icons", "_meta"] {
        if fields.get(key).is_some() {
            spec.report(&format!("{key} of tools"), "");
        }
    }
    let text =
        |key| Ok::<_, ToolsError>(fields.optional_text(key)?.unwrap_or("").trim().to_owned());
    let mut description = text("description")?;
    if description.is_empty() {
        description = text("title")?;
    }
    let mut document = ApiDocument {
        api_description: description,
        ..ApiDocument::new("", name.trim())
    };
    let others = input.get("additionalProperties");
    if others.is_some_and(|others| *others != Value::Bool(false)) {
        spec.report(
            "schemas that allow undeclared arguments, which calls cannot use",
            "",
        );
    }
    let root = Part {
        value: input,
        pointer: String::new(),
    };
    for field in object_fields(spec, root, false)? {
        document.add(field.parameter, field.is_required);
    }
    fields.object("outputSchema")?;
    if let Some(output) = fields.get("outputSchema") {
        let spec = Spec::new(output, state);
        let root = Part {
            value: output,
            pointer: String::new(),
        };
        let schema = convert_schema(spec, &root, "outputSchema", Direction::Response)?;
        document.output_schema = schema;
    }
    Ok(document)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tools() -> Value {
        json!([
            {"name": "book", "title": "Book a room", "annotations": {"readOnlyHint": false},
             "inputSchema": {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object",
                "$defs": {"Guest": {"type": "object", "properties": {"name": {"type": "string"}}}},
                "properties": {"guest": {"$ref": "#/$defs/Guest"}, "nights": {"type": "integer"}},
                "required": ["guest"]},
             "outputSchema": {"type": "object", "properties": {"id": {"type": "string"}}}},
            {"name": "now", "description": "The time.", "inputSchema": {"type": "object"}},
        ])
    }

    #[test]
    fn tools_are_documents_with_their_schemas() {
        let list = tools();
        let all = [
            list.clone(),
            json!({"tools": list, "nextCursor": null}),
            json!({"jsonrpc": "2.0", "id": 1, "result": {"tools": list}}),
        ];
        for value in all {
            let imported = import_mcp_tools(&value).expect("reads");
            let [book, now] = imported.documents.as_slice() else {
                panic!("{:?}", imported.documents);
            };
            assert_eq!(book.call_name(), "book");
            assert_eq!(book.api_description, "Book a room");
            let guest = &book.required_parameters[0];
            assert_eq!(
                (guest.name.as_str(), guest.kind.as_str()),
                ("guest", "object")
            );
            assert_eq!(
                guest.schema.as_ref().expect("a schema").value(),
                &json!({"type": "object", "properties": {"name": {"type": "string"}}})
            );
            assert_eq!(guest.location, "");
            assert_eq!(book.optional_parameters[0].schema, None);
            assert_eq!(
                book.output_schema,
                Some(json!({"type": "object", "properties": {"id": {"type": "string"}}}))
            );
            assert_eq!(
                (now.api_description.as_str(), now.parameters().count()),
                ("The time.", 0)
            );
            assert_eq!(imported.left_out.lines(), ["1 annotations of tools: book"]);
        }
    }

    #[test]
    fn progress_is_reported_after_each_tool() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tools.json");
        std::fs::write(&path, json!({"tools": tools()}).to_string()).expect("written");
        let seen = std::cell::RefCell::new(Vec::new());
        let watch = |n_read, n_all| seen.borrow_mut().push((n_read, n_all));
        import_mcp_file(&path, &watch).expect("reads");
        assert_eq!(*seen.borrow(), [(1, 2), (2, 2)]);
    }

    #[test]
    fn an_empty_cursor_is_reported_and_loses_no_tool() {
        let imported = import_mcp_tools(&json!({"tools": tools(), "nextCursor": ""}));
        let imported = imported.expect("reads");
        assert_eq!(imported.documents.len(), 2);
        let lines = imported.left_out.lines();
        assert!(lines[0].contains("an empty nextCursor"), "{lines:#?}");
    }

    #[test]
    fn keywords_next_to_a_reference_apply_and_references_resolve_within_their_tool() {
        let tool = |name: &str, kind: &str| {
            json!({"name": name, "inputSchema": {"type": "object",
                "$defs": {"Q": {"type": kind, "description": "Any."}},
                "properties": {
                    "plain": {"$ref": "#/$defs/Q"},
                    "more": {"$ref": "#/$defs/Q", "default": "red", "description": "The colour."}}}})
        };
        let tools = json!([tool("a", "string"), tool("b", "integer")]);
        let documents = import_mcp_tools(&tools).expect("reads").documents;
        for (document, kind) in documents.iter().zip(["string", "integer"]) {
            let plain = document.parameter("plain").expect("plain");
            assert_eq!(
                (plain.kind.as_str(), plain.description.as_str()),
                (kind, "Any.")
            );
            let more = document.parameter("more").expect("more");
            assert_eq!(more.kind, kind);
            assert_eq!(more.description, "The colour.");
            assert_eq!(more.default, json!("red"));
        }
    }

    #[test]
    fn an_invalid_list_of_tools_is_rejected_with_its_path() {
        for (value, expected) in [
            (json!({"tools": []}), "has no tools"),
            (json!(3), "the row is a number"),
            (
                json!({"tools": [{"inputSchema": {}}]}),
                "\"tools[0].name\" is missing",
            ),
            (
                json!({"tools": [{"name": "a"}]}),
                "tool \"a\": field \"tools[0].inputSchema\" is missing",
            ),
            (
                json!([{"name": "a", "inputSchema": []}]),
                "tools[0].inputSchema is a list",
            ),
            (json!({"tools": tools(), "nextCursor": "x"}), "nextCursor"),
            (
                json!([{"name": "a", "inputSchema": {"properties": {"q": {"$ref": "#/$defs/Q"}}}}]),
                "tool \"a\": /properties/q: $ref \"#/$defs/Q\" does not exist",
            ),
        ] {
            let message = import_mcp_tools(&value).expect_err(expected).to_string();
            assert!(message.contains(expected), "{message}");
        }
    }
}
