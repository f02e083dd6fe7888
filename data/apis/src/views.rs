//! Representations of an API document for the retriever, the prompt and the chat template.
//!
//! White space in descriptions is collapsed, because specifications contain whole Markdown pages.
//! Each representation has one fixed layout without options: changing it would invalidate indexes
//! and trained models.

use serde_json::{Map, Value, json};

use super::document::{ApiDocument, ApiParameter};
use super::output_description::{describe_output, list_output_fields};
use super::parameter_schema::ParameterSchema;

impl ApiDocument {
    /// The text that the retriever embeds.
    ///
    /// ```text
    /// Category, Tool, Api: Description. Returns: output. Required: a (STRING) text; b (NUMBER)
    /// text. Optional: c (STRING) text.
    /// ```
    ///
    /// Empty parts are omitted together with their labels. The names of the response schema's
    /// fields follow the response description. The method is omitted: if it distinguishes two APIs,
    /// as in OpenAPI, it is part of the API name.
    pub fn retriever_text(&self) -> String {
        let names = [&self.category_name, &self.tool_name, &self.api_name];
        let names: Vec<String> = names
            .iter()
            .map(|name| collapse_white_space(name))
            .collect();
        let names: Vec<&str> = names
            .iter()
            .map(String::as_str)
            .filter(|s| !s.is_empty())
            .collect();
        let mut text = names.join(", ");
        for (lead, part) in [
            (": ", collapse_white_space(&self.api_description)),
            (" Returns: ", list_output_fields(self)),
            (" Required: ", format_parameters(&self.required_parameters)),
            (" Optional: ", format_parameters(&self.optional_parameters)),
        ] {
            if part.is_empty() {
                continue;
            }
            if lead != ": " && !text.ends_with(['.', '!', '?']) {
                text.push('.');
            }
            text.push_str(lead);
            text.push_str(&part);
        }
        text
    }

    /// The prompt's representation: `{"name", "description", "parameters": {name: {"type",
    /// "description", "required"}}}`.
    ///
    /// The name is the call name, the type is the source's own type name, and `required` is present
    /// only if true. `parameters` is always present; an empty type or description is omitted.
    /// `schema` contains the part of a list's or object's schema that the type does not express.
    /// The description ends with the output in words: the response description and the fields of
    /// its schema.
    pub fn prompt_value(&self) -> Value {
        let mut parameters = Map::new();
        for parameter in &self.required_parameters {
            let mut schema = describe_with_schema(parameter);
            schema.insert("required".to_owned(), Value::Bool(true));
            parameters.insert(parameter.name.clone(), Value::Object(schema));
        }
        for parameter in &self.optional_parameters {
            let schema = describe_with_schema(parameter);
            parameters
                .entry(parameter.name.clone())
                .or_insert(Value::Object(schema));
        }
        json!({
            "name": self.call_name(),
            "description": self.full_description(),
            "parameters": parameters,
        })
    }

    /// The tool as chat templates expect it: `{"type": "function", "function": {"name",
    /// "description", "parameters"}}` with a JSON Schema for the parameters.
    ///
    /// Types are converted to the seven JSON Schema types by [`ApiParameter::schema_type`], unless
    /// the parameter has its own schema.
    pub fn tool_spec(&self) -> Value {
        let mut properties = Map::new();
        for parameter in self.parameters() {
            properties
                .entry(parameter.name.clone())
                .or_insert_with(|| parameter.schema_with_description());
        }
        let required: Vec<&str> = self
            .required_parameters
            .iter()
            .map(|parameter| parameter.name.as_str())
            .collect();
        json!({"type": "function", "function": {
            "name": self.call_name(),
            "description": self.full_description(),
            "parameters": {"type": "object", "properties": properties, "required": required},
        }})
    }

    fn full_description(&self) -> String {
        let description = collapse_white_space(&self.api_description);
        let output = describe_output(self);
        match (description.is_empty(), output.is_empty()) {
            (_, true) => description,
            (true, false) => format!("Returns: {output}"),
            (false, false) => {
                let stop = if description.ends_with(['.', '!', '?']) {
                    ""
                } else {
                    "."
                };
                format!("{description}{stop} Returns: {output}")
            }
        }
    }
}

impl ApiParameter {
    /// JSON Schema of the values with the parameter's description, as shown in tools.
    pub fn schema_with_description(&self) -> Value {
        let mut result = describe(self, self.schema_type());
        match self.schema.as_ref().map(ParameterSchema::value) {
            Some(Value::Object(schema)) => {
                if !schema.contains_key("type") {
                    result.shift_remove("type");
                }
                result.extend(schema.clone());
            }
            // `true` and `false` cannot have a description.
            Some(schema) => return schema.clone(),
            None => {}
        }
        Value::Object(result)
    }

    /// The JSON Schema type; unknown names give `string`.
    ///
    /// Names are compared without case, up to a bracket or white space: `NUMBER`, `float` and
    /// `double` are `number`, `int` and `long` are `integer`, `bool` is `boolean`, `list` and
    /// `tuple` are `array`, `dict` and `map` are `object`.
    pub fn schema_type(&self) -> &'static str {
        let lower = self.kind.trim().to_lowercase();
        let type_name = lower.split(['(', '[', '<', ' ']).next().unwrap_or("");
        match type_name {
            "number" | "float" | "double" | "decimal" => "number",
            "integer" | "int" | "int32" | "int64" | "long" => "integer",
            "boolean" | "bool" => "boolean",
            "array" | "list" | "tuple" | "set" => "array",
            "object" | "dict" | "map" | "json" => "object",
            _ => "string",
        }
    }
}

fn describe(parameter: &ApiParameter, kind: &str) -> Map<String, Value> {
    let mut fields = Map::new();
    if !kind.is_empty() {
        fields.insert("type".to_owned(), Value::from(kind));
    }
    let description = collapse_white_space(&parameter.description);
    if !description.is_empty() {
        fields.insert("description".to_owned(), Value::from(description));
    }
    fields
}

fn describe_with_schema(parameter: &ApiParameter) -> Map<String, Value> {
    let mut fields = describe(parameter, parameter.kind.trim());
    let schema = parameter.schema.as_ref().map(ParameterSchema::value);
    let Some(Value::Object(schema)) = schema else {
        return fields;
    };
    // The values and formats of scalars are in their descriptions, so only nested schemas are kept.
    let inner = ["properties", "items", "prefixItems", "additionalProperties"];
    let forms = ["allOf", "anyOf", "oneOf"];
    let has_parts = inner
        .iter()
        .chain(&forms)
        .any(|key| schema.contains_key(*key));
    if has_parts {
        let mut schema = schema.clone();
        if schema.get("type").and_then(Value::as_str) == Some(parameter.kind.trim()) {
            schema.shift_remove("type");
        }
        fields.insert("schema".to_owned(), Value::Object(schema));
    }
    fields
}

/// Formats parameters as `a (STRING) text; b (NUMBER) text.`
fn format_parameters(parameters: &[ApiParameter]) -> String {
    let one = |parameter: &ApiParameter| {
        let mut text = parameter.name.clone();
        let kind = collapse_white_space(&parameter.kind);
        if !kind.is_empty() {
            text.push_str(&format!(" ({kind})"));
        }
        let description = collapse_white_space(&parameter.description);
        if !description.is_empty() {
            text.push(' ');
            text.push_str(description.trim_end_matches('.'));
        }
        text
    };
    let all: Vec<String> = parameters.iter().map(one).collect();
    if all.is_empty() {
        return String::new();
    }
    all.join("; ") + "."
}

/// Collapses each run of white space to one space and trims both ends.
pub(crate) fn collapse_white_space(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameter(name: &str, kind: &str, description: &str) -> ApiParameter {
        ApiParameter {
            kind: kind.to_owned(),
            description: description.to_owned(),
            ..ApiParameter::new(name)
        }
    }

    fn search() -> ApiDocument {
        ApiDocument {
            category_name: "Films".to_owned(),
            api_description: "Search films\n by  title".to_owned(),
            required_parameters: vec![parameter("query", "STRING", "Part of the title.")],
            optional_parameters: vec![parameter("limit", "NUMBER", ""), parameter("x", "", "")],
            output_description: "A list.".to_owned(),
            ..ApiDocument::new("Cine", "Search")
        }
    }

    #[test]
    fn the_retriever_reads_names_description_output_and_parameters() {
        assert_eq!(
            search().retriever_text(),
            "Films, Cine, Search: Search films by title. Returns: A list. Required: query (STRING) \
             Part of the title. Optional: limit (NUMBER); x."
        );
        assert_eq!(ApiDocument::new("", "GET /me").retriever_text(), "GET /me");
    }

    #[test]
    fn a_prompt_shows_types_as_the_source_spells_them() {
        assert_eq!(
            search().prompt_value().to_string(),
            r#"{"name":"Cine/Search","description":"Search films by title. Returns: A list.","#
                .to_owned()
                + r#""parameters":{"query":{"type":"STRING","description":"Part of the title.","#
                + r#""required":true},"limit":{"type":"NUMBER"},"x":{}}}"#
        );
        let bare = ApiDocument::new("", "Now").prompt_value();
        assert_eq!(
            bare,
            json!({"name": "Now", "description": "", "parameters": {}})
        );
    }

    #[test]
    fn a_tool_is_a_function_with_a_json_schema() {
        let spec = search().tool_spec();
        assert_eq!(spec["type"], "function");
        assert_eq!(spec["function"]["name"], "Cine/Search");
        assert_eq!(
            spec["function"]["parameters"],
            json!({
                "type": "object",
                "properties": {
                    "query": {"type": "string", "description": "Part of the title."},
                    "limit": {"type": "number"},
                    "x": {"type": "string"},
                },
                "required": ["query"],
            })
        );
        jsonschema::validator_for(&spec["function"]["parameters"]).expect("a usable schema");
    }

    #[test]
    fn types_of_every_source_become_those_of_json_schema() {
        for (kind, expected) in [
            ("STRING", "string"),
            ("str", "string"),
            ("ENUM", "string"),
            ("DATE (YYYY-MM-DD)", "string"),
            ("NUMBER", "number"),
            ("float", "number"),
            ("int", "integer"),
            ("BOOLEAN", "boolean"),
            ("bool", "boolean"),
            ("list(str)", "array"),
            ("List[dict]", "array"),
            ("OBJECT", "object"),
            ("", "string"),
        ] {
            assert_eq!(parameter("p", kind, "").schema_type(), expected, "{kind}");
        }
    }

    #[test]
    fn a_parameter_named_twice_is_required_once() {
        let document = ApiDocument {
            required_parameters: vec![parameter("ids", "STRING", "first")],
            optional_parameters: vec![parameter("ids", "ARRAY", "second")],
            ..ApiDocument::new("", "DELETE /albums")
        };
        assert_eq!(
            document.prompt_value()["parameters"]["ids"],
            json!({"type": "STRING", "description": "first", "required": true})
        );
        assert_eq!(
            document.tool_spec()["function"]["parameters"]["properties"]["ids"]["type"],
            "string"
        );
    }
}
