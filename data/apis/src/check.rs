//! Checks that a trajectory is usable for training: its APIs exist and accept its arguments, and
//! each derived argument refers to the output of an earlier call.

use serde_json::{Map, Value};
use tooltune_json::json_schema::FormatRule;

use super::catalogue::ApiCatalogue;
use super::declared::{DeclaredBy, DeclaredNames, list_names};
use super::document::ApiDocument;
use super::error::ToolsError;
use super::trajectory::{Trajectory, TrajectoryCall};

impl Trajectory {
    /// Checks the trajectory against `catalogue`.
    ///
    /// # Errors
    ///
    /// - the query is empty, or there are no calls
    /// - a call names an API that is not in `catalogue`
    /// - a derived argument is not an argument of its call
    /// - an argument is derived from its own call, from a later call, or from a call that does not
    ///   exist. This also finds cycles, because a cycle contains a forward reference
    /// - the earlier output has no value at the given path; paths into a string are accepted,
    ///   because its contents are unknown
    /// - a call has an argument that its API does not declare, or lacks a required one that has no
    ///   default
    /// - an argument cannot have the type that its API declares, or violates its JSON Schema,
    ///   including its formats
    pub fn check(&self, catalogue: &ApiCatalogue) -> Result<(), ToolsError> {
        self.check_meaning(catalogue, FormatRule::Asserted)
            .map_err(|error| match self.id.as_str() {
                "" => error,
                id => error.at(id),
            })
    }

    /// Like [`Trajectory::check`], for the row at `location` of a file; `formats` selects whether
    /// formats are asserted.
    pub(super) fn check_at(
        &self,
        location: &str,
        catalogue: &ApiCatalogue,
        formats: FormatRule,
    ) -> Result<(), ToolsError> {
        self.check_meaning(catalogue, formats).map_err(|error| {
            if self.id.is_empty() || self.id == location {
                return error.at(location);
            }
            error.at(format!("{location}: {}", self.id))
        })
    }

    fn check_meaning(
        &self,
        catalogue: &ApiCatalogue,
        formats: FormatRule,
    ) -> Result<(), ToolsError> {
        if self.query.trim().is_empty() {
            return Err(ToolsError::EmptyField {
                field: "query".to_owned(),
                needed: "write the user's query",
            });
        }
        if self.calls.is_empty() {
            return Err(ToolsError::NoCalls);
        }
        for (i, call) in self.calls.iter().enumerate() {
            let Some(document) = catalogue.get(&call.name) else {
                return Err(catalogue.unknown_api(&format!("calls[{i}].name"), &call.name));
            };
            self.check_derived(i, call)?;
            let field = format!("calls[{i}].arguments");
            document.check_arguments(&call.arguments, &field)?;
            document.check_values(&call.arguments, &field, formats)?;
        }
        Ok(())
    }

    fn check_derived(&self, i: usize, call: &TrajectoryCall) -> Result<(), ToolsError> {
        for (argument, origin) in &call.derived {
            let field = format!("calls[{i}].derived.{argument}");
            if !call.arguments.contains_key(argument) {
                let arguments = list_names(call.arguments.keys().map(String::as_str));
                return Err(ToolsError::DerivedWithoutArgument { field, arguments });
            }
            let reason = match origin.call {
                from if from < i => {
                    let path = origin.path.trim();
                    if path_matches(&self.calls[from].output, path) {
                        continue;
                    }
                    let path = path.to_owned();
                    return Err(ToolsError::DerivedFromNothing { field, from, path });
                }
                from if from == i => "the same call",
                from if from < self.calls.len() => "a later call",
                _ => "a call that does not exist",
            };
            return Err(ToolsError::DerivedFromTheFuture {
                field,
                from: origin.call,
                reason,
            });
        }
        Ok(())
    }
}

impl ApiDocument {
    /// Checks the arguments of the call at `field` against the parameters.
    ///
    /// # Errors
    ///
    /// - no parameter has the argument's name
    /// - a required parameter without a default has no argument
    pub fn check_arguments(
        &self,
        arguments: &Map<String, Value>,
        field: &str,
    ) -> Result<(), ToolsError> {
        let has_default = |default: &Value| !default.is_null() && default.as_str() != Some("");
        let required = self.required_parameters.iter();
        DeclaredNames {
            called: &self.call_name(),
            only: Some(self.parameters().map(|p| p.name.as_str()).collect()),
            required: required
                .filter(|parameter| !has_default(&parameter.default))
                .map(|parameter| parameter.name.as_str())
                .collect(),
            by: DeclaredBy::Documents,
        }
        .check(arguments, field)
    }
}

/// Whether a path such as `results[].currency` can match in `value`.
///
/// Keys are separated by dots and may contain dots themselves. `[]` matches any item of a list, and
/// `[2]` matches the item at index 2. If a path has no brackets for a list, every item is searched.
/// Any path matches inside a string, which may be a truncated output.
fn path_matches(value: &Value, path: &str) -> bool {
    if path.is_empty() {
        return true;
    }
    match value {
        Value::String(_) => true,
        Value::Array(items) => {
            let bracketed = path.strip_prefix('[').and_then(|path| path.split_once(']'));
            let Some((index, rest)) = bracketed else {
                return items.iter().any(|item| path_matches(item, path));
            };
            let rest = rest.strip_prefix('.').unwrap_or(rest);
            let mut items = items.iter();
            match index.parse::<usize>() {
                Ok(index) => items
                    .nth(index)
                    .is_some_and(|item| path_matches(item, rest)),
                Err(_) => items.any(|item| path_matches(item, rest)),
            }
        }
        Value::Object(map) => map.iter().any(|(key, value)| {
            let rest = path.strip_prefix(key.as_str()).and_then(rest_after_key);
            rest.is_some_and(|rest| path_matches(value, rest))
        }),
        _ => false,
    }
}

/// The rest of a path after a key; `None` if the key does not end there.
fn rest_after_key(rest: &str) -> Option<&str> {
    match rest.strip_prefix('.') {
        Some(rest) => Some(rest),
        None => (rest.is_empty() || rest.starts_with('[')).then_some(rest),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn catalogue() -> ApiCatalogue {
        let api = |name: &str, required: Value| {
            let document = json!({"tool_name": "Tune", "api_name": name,
                "required_parameters": required,
                "optional_parameters": [{"name": "q"}, {"name": "limit"}]});
            ApiDocument::try_from(document).expect("a document")
        };
        let required = json!([{"name": "id"}, {"name": "lang", "default": "en"}]);
        let documents = vec![api("Find", json!([])), api("Singer", required)];
        ApiCatalogue::new(documents).expect("two names")
    }

    fn trajectory(derived_from: usize) -> Value {
        json!({"id": "r1", "query": "Who sings?", "response": "Ann.", "calls": [
            {"sub_query": "Find it.", "name": "Tune/Find", "arguments": {}, "output": {"id": 3}},
            {"sub_query": "Its singer.", "name": "Tune/Singer", "arguments": {"id": 3}, "output": 1,
             "derived": {"id": {"call": derived_from, "path": "id"}}},
            {"sub_query": "Again.", "name": "Tune/Find", "arguments": {}, "output": 1},
        ]})
    }

    fn fault(value: Value) -> String {
        let row = Trajectory::try_from(value).expect("a trajectory");
        row.check(&catalogue()).expect_err("a fault").to_string()
    }

    #[test]
    fn a_valid_trajectory_passes() {
        let row = Trajectory::try_from(trajectory(0)).expect("a trajectory");
        row.check(&catalogue()).expect("sound");
    }

    #[test]
    fn an_unknown_api_error_suggests_the_nearest_name() {
        let mut row = trajectory(0);
        row["calls"][1]["name"] = json!("Tune/Singers");
        assert_eq!(
            fault(row),
            "r1: calls[1].name: no API is called \"Tune/Singers\", did you mean \"Tune/Singer\"? \
             Add it to the API documents or correct the name"
        );
    }

    #[test]
    fn a_derivation_must_come_from_an_earlier_call() {
        for (from, reason) in [
            (1, "the same call"),
            (2, "a later call"),
            (3, "a call that does not exist"),
        ] {
            let message = fault(trajectory(from));
            let expected =
                format!("calls[1].derived.id takes its value from calls[{from}], {reason}");
            assert!(message.contains(&expected), "{message}");
        }
    }

    #[test]
    fn derivations_that_form_a_cycle_are_refused() {
        let mut row = trajectory(0);
        row["calls"][0]["arguments"] = json!({"q": 1});
        row["calls"][0]["derived"] = json!({"q": {"call": 1, "path": "x"}});
        assert!(fault(row).contains("calls[0].derived.q takes its value from calls[1]"));
    }

    #[test]
    fn a_derived_argument_must_be_an_argument() {
        let mut row = trajectory(0);
        row["calls"][1]["derived"] = json!({"ids": {"call": 0, "path": "id"}});
        let message = fault(row);
        assert!(
            message.contains("calls[1].derived.ids: the call has no argument"),
            "{message}"
        );
        assert!(message.contains("it has id"), "{message}");
    }

    #[test]
    fn a_trajectory_without_query_or_calls_is_refused() {
        let mut row = trajectory(0);
        row["query"] = json!(" ");
        assert!(fault(row).contains("r1: query is empty"));
        let mut row = trajectory(0);
        row["calls"] = json!([]);
        assert!(fault(row).contains("calls is empty"));
    }

    #[test]
    fn arguments_must_be_parameters_and_required_ones_must_be_given() {
        let mut row = trajectory(0);
        row["calls"][1]["arguments"] = json!({"id": 3, "lmit": 2});
        assert_eq!(
            fault(row),
            "r1: calls[1].arguments.lmit: Tune/Singer has no such parameter, did you mean \
             \"limit\"? Known parameters: id, lang, q, limit; fix the call or the API's document"
        );
        let mut row = trajectory(0);
        row["calls"][1]["arguments"] = json!({"q": 3, "lang": "de"});
        row["calls"][1]["derived"] = json!({});
        let message = fault(row.clone());
        let expected = "calls[1].arguments: Tune/Singer requires \"id\", which has no default";
        assert!(message.contains(expected), "{message}");
        row["calls"][1]["arguments"] = json!({"id": 3});
        let row = Trajectory::try_from(row).expect("a trajectory");
        row.check(&catalogue()).expect("lang has a default");
    }

    #[test]
    fn an_argument_must_be_of_the_type_that_its_api_declares() {
        let parameters = json!([{"name": "id", "type": "NUMBER"}, {"name": "lang"}]);
        let document = json!({"tool_name": "Tune", "api_name": "Singer",
            "required_parameters": parameters});
        let document = ApiDocument::try_from(document).expect("a document");
        let catalogue = ApiCatalogue::new(vec![document]).expect("one name");
        let check = |id: Value| {
            let row = json!({"id": "r1", "query": "Who?", "response": "Ann.", "calls": [
                {"sub_query": "Singer.", "name": "Tune/Singer", "output": 1,
                 "arguments": {"id": id, "lang": ["any", "value"]}}]});
            let row = Trajectory::try_from(row).expect("a trajectory");
            row.check(&catalogue).map_err(|error| error.to_string())
        };
        assert_eq!(check(json!(3)), Ok(()));
        assert_eq!(check(json!("3")), Ok(()));
        assert_eq!(
            check(json!("three")).expect_err("no number"),
            "r1: calls[0].arguments.id is the string \"three\", but Tune/Singer declares it as NUMBER; \
             fix the call or the type in the API's document"
        );
        let message = check(json!([3])).expect_err("a list");
        assert!(message.contains("arguments.id is a list, but"), "{message}");
    }

    #[test]
    fn a_derivation_path_must_match_the_output() {
        let output = json!({"results": [{"a.b": 1}, {"id": 3, "tags": ["x", "y"]}], "none": [],
            "cut": "{\"id\": 3, ..."});
        for (path, is_match) in [
            ("", true),
            ("results", true),
            ("results[]", true),
            ("results[].id", true),
            ("results[1].id", true),
            ("results.id", true),
            ("results[].a.b", true),
            ("results[].tags[1]", true),
            ("cut.id", true),
            ("results[0].id", false),
            ("results[2].id", false),
            ("results[].tags[2]", false),
            ("results[].ids", false),
            ("result", false),
            ("resultsid", false),
            ("none[].id", false),
            ("results[].id.x", false),
            ("[].id", false),
        ] {
            let mut row = trajectory(0);
            row["calls"][0]["output"] = output.clone();
            row["calls"][1]["derived"]["id"]["path"] = json!(path);
            if is_match {
                let row = Trajectory::try_from(row).expect("a trajectory");
                row.check(&catalogue()).expect(path);
                continue;
            }
            let message = fault(row);
            let expected = format!("the output of calls[0] has nothing at {path:?}");
            assert!(message.contains(&expected), "{message}");
        }
    }
}
