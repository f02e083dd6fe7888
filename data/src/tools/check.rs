//! Whether a trajectory says something that can be learned: its APIs exist, and what is derived
//! comes from a call made before.

use super::catalogue::ApiCatalogue;
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
    pub fn check(&self, catalogue: &ApiCatalogue) -> Result<(), ToolsError> {
        self.check_meaning(catalogue)
            .map_err(|error| match self.id.as_str() {
                "" => error,
                id => error.at(id),
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
            if catalogue.get(&call.name).is_none() {
                return Err(ToolsError::UnknownApi {
                    field: format!("calls[{i}].name"),
                    name: call.name.clone(),
                    hint: catalogue.hint(&call.name),
                });
            }
            self.check_derived(i, call)?;
        }
        Ok(())
    }

    fn check_derived(&self, i: usize, call: &TrajectoryCall) -> Result<(), ToolsError> {
        for (argument, origin) in &call.derived {
            let field = format!("calls[{i}].derived.{argument}");
            if !call.arguments.contains_key(argument) {
                let names: Vec<&str> = call.arguments.keys().map(String::as_str).collect();
                let arguments = if names.is_empty() {
                    "none".to_owned()
                } else {
                    names.join(", ")
                };
                return Err(ToolsError::DerivedWithoutArgument { field, arguments });
            }
            let reason = match origin.call {
                from if from < i => continue,
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::tools::ApiDocument;

    fn catalogue() -> ApiCatalogue {
        let names = ["Find", "Singer"];
        ApiCatalogue::new(names.map(|name| ApiDocument::new("Tune", name)).to_vec())
            .expect("two names")
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
}
