//! The tools of a row to the JSON Schema of sequences of their calls.

use serde_json::{Map, Value, json};

use super::row::{NestfulRow, ToolSpec};

impl NestfulRow {
    /// The schema of a list of calls `{"name", "label", "arguments"}` of the tools on offer.
    ///
    /// Arguments called `arg_0`, `arg_1`, .. are held to their names and order. Those of other tools
    /// are any object: specifications list them by the alphabet, calls are scored by the order of
    /// the function, and a grammar that enforced the one would break the other. Values are free, as
    /// each may be a reference.
    pub fn calls_schema(&self) -> Value {
        let calls: Vec<Value> = self.tools.iter().map(ToolSpec::call_schema).collect();
        json!({"type": "array", "items": {"anyOf": calls}, "minItems": 1})
    }
}

impl ToolSpec {
    fn call_schema(&self) -> Value {
        let is_numbered =
            |(i, name): (usize, &String)| name.strip_prefix("arg_") == Some(&i.to_string());
        let arguments = match self.parameters.iter().enumerate().all(is_numbered) {
            true => {
                let free = self.parameters.iter().map(|name| (name.clone(), json!({})));
                let properties: Map<String, Value> = free.collect();
                json!({"type": "object", "properties": properties, "additionalProperties": false})
            }
            false => json!({"type": "object"}),
        };
        json!({
            "type": "object",
            "properties": {
                "name": {"const": self.name},
                "label": {"type": "string", "pattern": r"^\$var_?[0-9]{1,3}$"},
                "arguments": arguments,
            },
            "required": ["name", "label", "arguments"],
            "additionalProperties": false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::python::loads;

    #[test]
    fn calls_of_the_tools_on_offer_are_valid() {
        let spec = |name: &str, parameters: &str| {
            format!(
                r#"{{"name": "{name}", "parameters": {{{parameters}}}, "output_parameters": {{"o": {{}}}}}}"#
            )
        };
        let row = format!(
            r#"{{"sample_id": "s", "input": "q", "gold_answer": 1, "tools": [{}, {}],
            "output": [{{"name": "add", "label": "$var_1", "arguments": {{}}}}]}}"#,
            spec("add", r#""arg_0": {}, "arg_1": {}"#),
            spec("nth", r#""k": {}, "nums": {}"#),
        );
        let row = NestfulRow::new(&loads(&row).unwrap()).unwrap();
        let validator = jsonschema::validator_for(&row.calls_schema()).unwrap();
        for (calls, is_valid) in [
            (
                r#"[{"name": "add", "label": "$var_1", "arguments": {"arg_0": 1, "arg_1": "$var_0.o$"}}]"#,
                true,
            ),
            (
                r#"[{"name": "nth", "label": "$var2", "arguments": {"nums": [1], "k": 0}}]"#,
                true,
            ),
            (
                r#"[{"name": "add", "label": "$var_1", "arguments": {"left": 1}}]"#,
                false,
            ),
            (
                r#"[{"name": "sub", "label": "$var_1", "arguments": {}}]"#,
                false,
            ),
            (
                r#"[{"name": "add", "label": "first", "arguments": {}}]"#,
                false,
            ),
            (r#"[{"name": "add", "arguments": {}}]"#, false),
            ("[]", false),
        ] {
            let calls: Value = serde_json::from_str(calls).unwrap();
            assert_eq!(validator.is_valid(&calls), is_valid, "{calls}");
        }
    }
}
