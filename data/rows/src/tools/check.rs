//! Whether a trajectory says something that can be learned: its APIs exist and take its arguments,
//! and what is derived comes from the output of a call made before.

use serde_json::{Map, Value};

use super::catalogue::ApiCatalogue;
use super::declared::{DeclaredBy, DeclaredNames, listed};
use super::document::ApiDocument;
use super::error::ToolsError;
use super::trajectory::{Trajectory, TrajectoryCall};

impl Trajectory {
    /// Checks what the trajectory says against the APIs that exist.
    ///
    /// # Errors
    ///
    /// - the query is empty, or there are no calls
    /// - a call names an API that is not in `catalogue`
    /// - a derived argument is not among the arguments of its call
    /// - an argument is derived from its own call, a later one, or one that does not exist;
    ///   derivations that form a cycle are found by this, since one of them must point forward
    /// - the earlier output has nothing where the argument is said to come from; what is inside of
    ///   a text is not known, so that it may be there
    /// - a call has an argument that its API does not take, or lacks one that the API requires
    ///   and has no default for
    /// - an argument cannot be of the type that its API declares, or breaks its JSON Schema
    pub fn check(&self, catalogue: &ApiCatalogue) -> Result<(), ToolsError> {
        self.check_meaning(catalogue)
            .map_err(|error| match self.id.as_str() {
                "" => error,
                id => error.at(id),
            })
    }

    /// As [`Trajectory::check`], for the row that stands at `place` of a file.
    pub(super) fn check_at(&self, place: &str, catalogue: &ApiCatalogue) -> Result<(), ToolsError> {
        self.check_meaning(catalogue).map_err(|error| {
            if self.id.is_empty() || self.id == place {
                return error.at(place);
            }
            error.at(format!("{place}: {}", self.id))
        })
    }

    fn check_meaning(&self, catalogue: &ApiCatalogue) -> Result<(), ToolsError> {
        if self.query.trim().is_empty() {
            return Err(ToolsError::EmptyField {
                field: "query".to_owned(),
                needed: "a trajectory answers a query",
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
            document.check_values(&call.arguments, &field)?;
        }
        Ok(())
    }

    fn check_derived(&self, i: usize, call: &TrajectoryCall) -> Result<(), ToolsError> {
        for (argument, origin) in &call.derived {
            let field = format!("calls[{i}].derived.{argument}");
            if !call.arguments.contains_key(argument) {
                let arguments = listed(call.arguments.keys().map(String::as_str));
                return Err(ToolsError::DerivedWithoutArgument { field, arguments });
            }
            let reason = match origin.call {
                from if from < i => {
                    let path = origin.path.trim();
                    if leads_somewhere(&self.calls[from].output, path) {
                        continue;
                    }
                    let path = path.to_owned();
                    return Err(ToolsError::DerivedFromNothing { field, from, path });
                }
                from if from == i => "which is the call itself",
                from if from < self.calls.len() => "which is made later",
                _ => "which does not exist",
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
    /// Checks the arguments of a call, which stand at `field`, against the parameters.
    ///
    /// # Errors
    ///
    /// - there is no parameter of an argument's name
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

/// Whether a path such as `results[].currency` may lead to something in `value`.
///
/// Keys are parted by points and may hold some themselves; `[]` is any item of a list, `[2]` one,
/// and a list without brackets is gone through item by item. Nothing is known of the inside of a
/// text, which may be an output that was cut.
fn leads_somewhere(value: &Value, path: &str) -> bool {
    if path.is_empty() {
        return true;
    }
    match value {
        Value::String(_) => true,
        Value::Array(items) => {
            let bracketed = path.strip_prefix('[').and_then(|path| path.split_once(']'));
            let Some((index, rest)) = bracketed else {
                return items.iter().any(|item| leads_somewhere(item, path));
            };
            let rest = rest.strip_prefix('.').unwrap_or(rest);
            let mut items = items.iter();
            match index.parse::<usize>() {
                Ok(index) => items
                    .nth(index)
                    .is_some_and(|item| leads_somewhere(item, rest)),
                Err(_) => items.any(|item| leads_somewhere(item, rest)),
            }
        }
        Value::Object(map) => map.iter().any(|(key, value)| {
            let rest = path.strip_prefix(key.as_str()).and_then(behind_key);
            rest.is_some_and(|rest| leads_somewhere(value, rest))
        }),
        _ => false,
    }
}

/// What follows a key in a path, if the key ends there.
fn behind_key(rest: &str) -> Option<&str> {
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
    fn a_sound_trajectory_passes() {
        let row = Trajectory::try_from(trajectory(0)).expect("a trajectory");
        row.check(&catalogue()).expect("sound");
    }

    #[test]
    fn an_unknown_api_is_named_with_the_one_that_was_meant() {
        let mut row = trajectory(0);
        row["calls"][1]["name"] = json!("Tune/Singers");
        assert_eq!(
            fault(row),
            "r1: calls[1].name: no API is called \"Tune/Singers\", did you mean \"Tune/Singer\"?; \
             the API must be in the documents"
        );
    }

    #[test]
    fn a_derivation_must_come_from_an_earlier_call() {
        for (from, reason) in [
            (1, "which is the call itself"),
            (2, "which is made later"),
            (3, "which does not exist"),
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
    fn an_argument_must_be_a_parameter_and_a_required_one_must_be_there() {
        let mut row = trajectory(0);
        row["calls"][1]["arguments"] = json!({"id": 3, "lmit": 2});
        assert_eq!(
            fault(row),
            "r1: calls[1].arguments.lmit: Tune/Singer has no such parameter, did you mean \
             \"limit\"?; it has id, lang, q, limit; fix the call or the API's document"
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
            "r1: calls[0].arguments.id is the text \"three\", but Tune/Singer declares it as NUMBER; \
             fix the call or the type in the API's document"
        );
        let said = check(json!([3])).expect_err("a list");
        assert!(said.contains("arguments.id is a list, but"), "{said}");
    }

    #[test]
    fn a_derived_argument_must_come_from_something_in_the_output() {
        let output = json!({"results": [{"a.b": 1}, {"id": 3, "tags": ["x", "y"]}], "none": [],
            "cut": "{\"id\": 3, ..."});
        for (path, is_there) in [
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
            if is_there {
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
