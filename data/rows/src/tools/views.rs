//! What others see of an API document: the retriever's text, the prompt's value, the chat
//! template's tool.
//!
//! Descriptions are shown with runs of white space made one blank, since specifications carry
//! whole Markdown pages. The decision to question: each view has one layout and no options,
//! because an index and the prompts of a trained model are worth nothing once it changes.

use serde_json::{Map, Value, json};

use super::document::{ApiDocument, ApiParameter};
use super::parameter_schema::ParameterSchema;

impl ApiDocument {
    /// The text that the retriever embeds.
    ///
    /// ```text
    /// Category, Tool, Api: Description. Returns: output. Required: a (STRING) text; b (NUMBER)
    /// text. Optional: c (STRING) text.
    /// ```
    ///
    /// What is empty is left out, with the words that lead to it. A method is not named: where
    /// it tells two APIs apart, as in OpenAPI, it stands in the API's name.
    pub fn retriever_text(&self) -> String {
        let names = [&self.category_name, &self.tool_name, &self.api_name];
        let names: Vec<String> = names.iter().map(|name| one_line(name)).collect();
        let names: Vec<&str> = names
            .iter()
            .map(String::as_str)
            .filter(|s| !s.is_empty())
            .collect();
        let mut text = names.join(", ");
        for (lead, part) in [
            (": ", one_line(&self.api_description)),
            (" Returns: ", one_line(&self.output_description)),
            (" Required: ", listed(&self.required_parameters)),
            (" Optional: ", listed(&self.optional_parameters)),
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

    /// What a prompt shows: `{"name", "description", "parameters": {name: {"type", "description",
    /// "required"}}}`.
    ///
    /// The name is the call name, the type is the source's own word, and `required` stands only
    /// where it is true. `parameters` is always there, so that no model has to wonder; an empty
    /// type or description is left out. What the schema of a list or an object says beside that
    /// stands in `schema`.
    pub fn prompt_value(&self) -> Value {
        let mut parameters = Map::new();
        for parameter in &self.required_parameters {
            let mut shown = described_with_schema(parameter);
            shown.insert("required".to_owned(), Value::Bool(true));
            parameters.insert(parameter.name.clone(), Value::Object(shown));
        }
        for parameter in &self.optional_parameters {
            let shown = described_with_schema(parameter);
            parameters
                .entry(parameter.name.clone())
                .or_insert(Value::Object(shown));
        }
        json!({
            "name": self.call_name(),
            "description": self.full_description(),
            "parameters": parameters,
        })
    }

    /// The tool as chat templates take it: `{"type": "function", "function": {"name",
    /// "description", "parameters"}}` with a JSON schema for the parameters.
    ///
    /// Types become the seven of JSON schema by [`ApiParameter::schema_type`], unless the parameter
    /// has a schema of its own.
    pub fn tool_spec(&self) -> Value {
        let mut properties = Map::new();
        for parameter in self.parameters() {
            properties
                .entry(parameter.name.clone())
                .or_insert_with(|| parameter.described_schema());
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
        let description = one_line(&self.api_description);
        let output = one_line(&self.output_description);
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
    /// The JSON Schema of the values with the description, as tools show it.
    pub fn described_schema(&self) -> Value {
        let mut shown = described(self, self.schema_type());
        match self.schema.as_ref().map(ParameterSchema::value) {
            Some(Value::Object(schema)) => {
                if !schema.contains_key("type") {
                    shown.shift_remove("type");
                }
                shown.extend(schema.clone());
            }
            // `true` and `false` have no room for a description.
            Some(schema) => return schema.clone(),
            None => {}
        }
        Value::Object(shown)
    }

    /// The type in the words of JSON schema; what is not known is a `string`.
    ///
    /// Read without case, up to a bracket or blank: `NUMBER`, `float` and `double` are `number`,
    /// `int` and `long` are `integer`, `bool` is `boolean`, `list` and `tuple` are `array`,
    /// `dict` and `map` are `object`.
    pub fn schema_type(&self) -> &'static str {
        let lower = self.kind.trim().to_lowercase();
        let word = lower.split(['(', '[', '<', ' ']).next().unwrap_or("");
        match word {
            "number" | "float" | "double" | "decimal" => "number",
            "integer" | "int" | "int32" | "int64" | "long" => "integer",
            "boolean" | "bool" => "boolean",
            "array" | "list" | "tuple" | "set" => "array",
            "object" | "dict" | "map" | "json" => "object",
            _ => "string",
        }
    }
}

fn described(parameter: &ApiParameter, kind: &str) -> Map<String, Value> {
    let mut shown = Map::new();
    if !kind.is_empty() {
        shown.insert("type".to_owned(), Value::from(kind));
    }
    let description = one_line(&parameter.description);
    if !description.is_empty() {
        shown.insert("description".to_owned(), Value::from(description));
    }
    shown
}

fn described_with_schema(parameter: &ApiParameter) -> Map<String, Value> {
    let mut shown = described(parameter, parameter.kind.trim());
    let schema = parameter.schema.as_ref().map(ParameterSchema::value);
    let Some(Value::Object(schema)) = schema else {
        return shown;
    };
    // The values and forms of scalars are told by their descriptions.
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
        shown.insert("schema".to_owned(), Value::Object(schema));
    }
    shown
}

/// `a (STRING) text; b (NUMBER) text.`
fn listed(parameters: &[ApiParameter]) -> String {
    let one = |parameter: &ApiParameter| {
        let mut text = parameter.name.clone();
        let kind = one_line(&parameter.kind);
        if !kind.is_empty() {
            text.push_str(&format!(" ({kind})"));
        }
        let description = one_line(&parameter.description);
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

/// The text with every run of white space as one blank, and none at either end.
pub(crate) fn one_line(text: &str) -> String {
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
