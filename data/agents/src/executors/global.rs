//! Two functions that complement the APIs of every domain: `global/compare` returns the similarity
//! of two numbers, and `global/difference` the greater of them.
//!
//! The paper only gives their names and purpose; parameters, outputs and descriptions are ours.
//!
//! # Source
//!
//! GOAT, appendix D.

use serde_json::{Map, Value, json};
use tooltune_apis::{ApiCatalogue, ApiDocument, ApiParameter, ToolsError};

use super::{CallResult, Executor};

const TOOL: &str = "global";
const COMPARE: &str = "compare";
const DIFFERENCE: &str = "difference";
const FIRST: &str = "first";
const SECOND: &str = "second";

/// Results are rounded to multiples of 1 / `ROUNDING`, so that 0.3 - 0.1 is 0.2.
const ROUNDING: f64 = 1e6;
/// Integers below this limit are exact, and are written without a decimal point.
const MAX_EXACT_INTEGER: f64 = 9e15;

/// The documents of the global functions.
pub fn global_functions() -> Vec<ApiDocument> {
    let document = |name: &str, purpose: &str, returns: &str| ApiDocument {
        category_name: "Global".to_owned(),
        api_description: purpose.to_owned(),
        required_parameters: vec![parameter(FIRST), parameter(SECOND)],
        output_description: returns.to_owned(),
        ..ApiDocument::new(TOOL, name)
    };
    vec![
        document(
            COMPARE,
            "Says how near two numbers of the same kind are to each other.",
            "The distance between the numbers, and their similarity from 0 to 1, which is 1 where \
             they are equal.",
        ),
        document(
            DIFFERENCE,
            "Says which of two numbers of the same kind is greater.",
            "Whether the first or the second number is greater, or neither, the greater number, and \
             by how much it is greater.",
        ),
    ]
}

fn parameter(which: &str) -> ApiParameter {
    ApiParameter {
        kind: "NUMBER".to_owned(),
        description: format!(
            "The {which} number, such as a price, a rating, a count, a year or a duration that \
             another API returned."
        ),
        ..ApiParameter::new(which)
    }
}

/// The documents without the global functions, and whether they contained any.
///
/// # Errors
///
/// As for [`ApiCatalogue::new`].
pub fn without_global_functions(
    catalogue: &ApiCatalogue,
) -> Result<(ApiCatalogue, bool), ToolsError> {
    let builtin = global_functions();
    let other_documents: Vec<ApiDocument> = catalogue
        .iter()
        .filter(|document| !builtin.contains(document))
        .cloned()
        .collect();
    let has_some = other_documents.len() < catalogue.len();
    Ok((ApiCatalogue::new(other_documents)?, has_some))
}

/// An executor that also implements the global functions.
pub struct WithGlobalFunctions {
    fallback: Box<dyn Executor>,
}

impl std::fmt::Debug for WithGlobalFunctions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WithGlobalFunctions")
            .finish_non_exhaustive()
    }
}

impl WithGlobalFunctions {
    /// Executes the global functions, and passes all other calls to `fallback`.
    pub fn with_fallback(fallback: Box<dyn Executor>) -> Self {
        Self { fallback }
    }
}

/// The global function with this name.
fn function(name: &str) -> Option<fn(f64, f64) -> Value> {
    let function = name.trim().strip_prefix(TOOL);
    match function.and_then(|suffix| suffix.strip_prefix('/')) {
        Some(COMPARE) => Some(compare),
        Some(DIFFERENCE) => Some(difference),
        _ => None,
    }
}

impl Executor for WithGlobalFunctions {
    fn refusal(&self, name: &str) -> Option<String> {
        match function(name) {
            Some(_) => None,
            None => self.fallback.refusal(name),
        }
    }

    fn fault(&self) -> Option<String> {
        self.fallback.fault()
    }

    fn call(&mut self, name: &str, arguments: &Map<String, Value>) -> CallResult {
        let Some(compute) = function(name) else {
            return self.fallback.call(name, arguments);
        };
        let numbers =
            number(arguments, FIRST).and_then(|first| Ok((first, number(arguments, SECOND)?)));
        match numbers {
            Ok((first, second)) => CallResult::success(compute(first, second)),
            Err(reason) => CallResult::failure(reason),
        }
    }
}

/// Reads a number, or a string that contains one, because API outputs have both.
fn number(arguments: &Map<String, Value>, name: &str) -> Result<f64, String> {
    let value = arguments.get(name).unwrap_or(&Value::Null);
    let number = match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    };
    number
        .filter(|number| number.is_finite())
        .ok_or_else(|| format!("{name} is {value}; give a number"))
}

fn compare(first: f64, second: f64) -> Value {
    let greatest = first.abs().max(second.abs());
    let distance = (first - second).abs();
    let similarity = if greatest == 0.0 {
        1.0
    } else {
        (1.0 - distance / greatest).max(0.0)
    };
    json!({"distance": number_value(distance), "similarity": number_value(similarity)})
}

fn difference(first: f64, second: f64) -> Value {
    let greater = if first > second {
        FIRST
    } else if second > first {
        SECOND
    } else {
        "neither"
    };
    json!({
        "greater": greater,
        "value": number_value(first.max(second)),
        "by": number_value((first - second).abs()),
    })
}

/// A JSON number without rounding errors.
fn number_value(number: f64) -> Value {
    let rounded = (number * ROUNDING).round() / ROUNDING;
    if rounded.fract() == 0.0 && rounded.abs() < MAX_EXACT_INTEGER {
        json!(rounded as i64)
    } else if rounded.is_finite() {
        json!(rounded)
    } else {
        json!(number)
    }
}

#[cfg(test)]
mod tests {
    use tooltune_json::json_schema::FormatRule;

    use super::*;

    struct NoExecutor;

    impl Executor for NoExecutor {
        fn call(&mut self, name: &str, _: &Map<String, Value>) -> CallResult {
            CallResult::failure(format!("no {name}"))
        }
    }

    fn answer(name: &str, arguments: Value) -> CallResult {
        let arguments = arguments.as_object().expect("an object");
        WithGlobalFunctions::with_fallback(Box::new(NoExecutor)).call(name, arguments)
    }

    #[test]
    fn global_functions_compare_numbers_with_a_tolerance() {
        for (name, first, second, expected) in [
            (
                COMPARE,
                json!(10),
                json!(8),
                json!({"distance": 2, "similarity": 0.8}),
            ),
            (
                COMPARE,
                json!(0),
                json!(0.0),
                json!({"distance": 0, "similarity": 1}),
            ),
            (
                COMPARE,
                json!(-5),
                json!(5),
                json!({"distance": 10, "similarity": 0}),
            ),
            (
                DIFFERENCE,
                json!(0.3),
                json!("0.1"),
                json!({"greater": "first", "value": 0.3, "by": 0.2}),
            ),
            (
                DIFFERENCE,
                json!(1),
                json!(7),
                json!({"greater": "second", "value": 7, "by": 6}),
            ),
            (
                DIFFERENCE,
                json!(4),
                json!(4),
                json!({"greater": "neither", "value": 4, "by": 0}),
            ),
        ] {
            let result = answer(
                &format!("{TOOL}/{name}"),
                json!({"first": first, "second": second}),
            );
            assert_eq!(result, CallResult::success(expected), "{name}");
        }
    }

    #[test]
    fn invalid_numbers_are_reported_and_other_names_use_the_fallback_executor() {
        for (name, arguments, expected) in [
            ("global/compare", json!({"first": 1}), "second is null"),
            (
                "global/compare",
                json!({"first": "x", "second": 1}),
                "first is \"x\"",
            ),
            (
                "global/compare",
                json!({"first": "inf", "second": 1}),
                "give a number",
            ),
            ("global/other", json!({}), "no global/other"),
            ("globals", json!({}), "no globals"),
        ] {
            let message = answer(name, arguments).exception.expect(expected);
            assert!(message.contains(expected), "{message}");
        }
        let largest = json!({"first": f64::MAX, "second": f64::MIN});
        assert!(answer("global/difference", largest).exception.is_none());
    }

    #[test]
    fn the_documents_declare_the_parameters_of_the_functions() {
        let catalogue = ApiCatalogue::new(global_functions()).expect("two names");
        for document in &catalogue {
            let arguments = json!({"first": 1, "second": 2});
            let arguments = arguments.as_object().expect("an object");
            document
                .check_arguments(arguments, "arguments")
                .expect("names");
            document
                .check_values(arguments, "arguments", FormatRule::Asserted)
                .expect("types");
            assert!(
                answer(&document.call_name(), json!(arguments))
                    .exception
                    .is_none()
            );
        }
        let (other_documents, has_some) = without_global_functions(&catalogue).expect("documents");
        assert!(other_documents.is_empty() && has_some);
    }
}
