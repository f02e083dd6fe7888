//! The tools of an MCP server as [`ApiDocument`]s: what its `tools/list` says.
//!
//! A document is called as its tool and belongs to none, since a file of tools does not say whose
//! they are.

use std::path::Path;

use serde_json::Value;

use super::body::object_fields;
use super::openapi::ImportedApis;
use super::reference::{Copied, Part, Spec};
use super::schema::{Direction, held_schema};
use crate::tools::document::ApiDocument;
use crate::tools::error::ToolsError;
use crate::tools::fields::Fields;
use crate::tools::source::read_json;

const LAYOUT: &str = "a tool needs name and inputSchema, as an MCP server's tools/list gives it";

/// Reads tools from a JSON file, gzip-compressed or not.
///
/// # Errors
///
/// - the file cannot be read
/// - those of [`import_mcp_tools`]
pub fn import_mcp_file(path: &Path) -> Result<ImportedApis, ToolsError> {
    let read = || import_mcp_tools(&read_json(path)?);
    read().map_err(|error| error.at(path.display().to_string()))
}

/// Reads the result of `tools/list`, `{"tools": [...]}`, the whole answer that holds it as `result`,
/// or the list alone.
///
/// Each property of a tool's `inputSchema` is a parameter with its schema, as in
/// [`import_openapi`](super::import_openapi); `outputSchema` is the document's `output_schema`.
///
/// # Errors
///
/// - the value is none of these, holds no tools, or has a `nextCursor`, so that tools are missing
/// - a tool has no name or no object as `inputSchema`
/// - a `$ref` that is followed leads nowhere, out of the schema, or back to itself
pub fn import_mcp_tools(value: &Value) -> Result<ImportedApis, ToolsError> {
    let result = value.get("result").unwrap_or(value);
    if result
        .get("nextCursor")
        .is_some_and(|cursor| !cursor.is_null())
    {
        return Err(ToolsError::MoreTools);
    }
    let tools = match result {
        Value::Array(tools) => tools.as_slice(),
        result => Fields::new(result, "", "a list of tools needs tools")?.list("tools")?,
    };
    if tools.is_empty() {
        return Err(ToolsError::Empty { what: "tools" });
    }
    let copied = Copied::default();
    let mut documents = Vec::with_capacity(tools.len());
    for (tool_idx, tool) in tools.iter().enumerate() {
        let place = format!("tools[{tool_idx}]");
        let fields = Fields::new(tool, &place, LAYOUT)?;
        let name = fields.text("name")?;
        let document = document(&fields, name, &copied);
        documents.push(document.map_err(|error| error.at(format!("tool {name:?}")))?);
    }
    Ok(ImportedApis {
        documents,
        left_out: copied.into_left_out(),
    })
}

fn document(fields: &Fields<'_>, name: &str, copied: &Copied) -> Result<ApiDocument, ToolsError> {
    if name.trim().is_empty() {
        return Err(ToolsError::EmptyField {
            field: fields.place("name"),
            needed: LAYOUT,
        });
    }
    fields.object("inputSchema")?;
    let input = fields
        .get("inputSchema")
        .ok_or_else(|| fields.missing("inputSchema"))?;
    let spec = Spec::new(input, copied);
    spec.enter(name);
    for key in ["annotations", "execution", "icons", "_meta"] {
        if fields.get(key).is_some() {
            spec.tell(&format!("{key} of tools"), "");
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
        spec.tell(
            "arguments beside the declared ones, which a call cannot give",
            "",
        );
    }
    let whole = Part {
        value: input,
        pointer: String::new(),
    };
    for field in object_fields(spec, whole, false)? {
        document.add(field.parameter, field.is_required);
    }
    fields.object("outputSchema")?;
    if let Some(output) = fields.get("outputSchema") {
        let spec = Spec::new(output, copied);
        let whole = Part {
            value: output,
            pointer: String::new(),
        };
        let held = held_schema(spec, &whole, "outputSchema", Direction::Response)?;
        document.output_schema = held;
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
    fn what_is_no_list_of_tools_is_refused_with_its_place() {
        for (value, expected) in [
            (json!({"tools": []}), "holds no tools"),
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
                "tool \"a\": /properties/q: $ref \"#/$defs/Q\" leads nowhere",
            ),
        ] {
            let message = import_mcp_tools(&value).expect_err(expected).to_string();
            assert!(message.contains(expected), "{message}");
        }
    }
}
