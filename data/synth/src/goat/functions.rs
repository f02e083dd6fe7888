//! Functions of the APIs that compute a result, without tables except for the exchange rates.
//!
//! Money is rounded to two decimals, half away from zero. Integer results are JSON integers, so
//! that every number has one notation.

use serde::Deserialize;
use serde_json::{Value, json};

/// The functions of computing APIs; parameters are in the order of their table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Function {
    /// Marks and a currency code to an amount in that currency.
    Convert,
    /// An amount and a percentage to the total.
    AddTax,
    /// An amount and a number of people to the share of each.
    Split,
    /// A time of day and minutes to the resulting time of day.
    Arrive,
    /// Minutes to hours and minutes.
    HoursAndMinutes,
    /// Two years to the difference.
    YearsBetween,
}

/// Why there is no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoResult {
    #[error("no currency has the code {0}")]
    Currency(String),
    #[error("{0} is not a time of day; write hours and minutes as in 09:25")]
    Clock(String),
    #[error("{0} must be at least {1}")]
    TooSmall(&'static str, i64),
}

/// Larger numbers are rejected, so that sums of minutes or years cannot overflow.
const MAX_NUMBER: f64 = 1e9;

/// A number in canonical JSON: integers without a decimal point.
pub(super) fn number(value: f64) -> Value {
    let rounded = (value * 100.0).round() / 100.0;
    if rounded.fract() == 0.0 && rounded.abs() < 1e15 {
        json!(rounded as i64)
    } else {
        json!(rounded)
    }
}

/// Computes `function` for type-checked `arguments`.
///
/// `rate_of` returns the amount of a currency per mark.
pub(super) fn compute(
    function: Function,
    arguments: &[&Value],
    rate_of: impl Fn(&str) -> Option<f64>,
) -> Result<Value, NoResult> {
    let float = |index: usize| {
        let argument = arguments[index].as_f64().unwrap_or(0.0);
        argument.clamp(-MAX_NUMBER, MAX_NUMBER)
    };
    let text = |index: usize| arguments[index].as_str().unwrap_or_default().trim();
    match function {
        Function::Convert => {
            let code = text(1).to_uppercase();
            let rate = rate_of(&code).ok_or_else(|| NoResult::Currency(code.clone()))?;
            Ok(json!({"converted": number(float(0) * rate), "currency": code}))
        }
        Function::AddTax => Ok(json!({"total": number(float(0) * (100.0 + float(1)) / 100.0)})),
        Function::Split => {
            if float(1) < 1.0 {
                return Err(NoResult::TooSmall("people", 1));
            }
            Ok(json!({"share": number(float(0) / float(1))}))
        }
        Function::Arrive => {
            if float(1) < 0.0 {
                return Err(NoResult::TooSmall("minutes", 0));
            }
            let start =
                clock_minutes(text(0)).ok_or_else(|| NoResult::Clock(text(0).to_owned()))?;
            let end = (start + float(1) as i64) % (24 * 60);
            Ok(json!({"time": format!("{:02}:{:02}", end / 60, end % 60)}))
        }
        Function::HoursAndMinutes => {
            if float(0) < 0.0 {
                return Err(NoResult::TooSmall("minutes", 0));
            }
            let minutes = float(0) as i64;
            Ok(json!({"hours": minutes / 60, "minutes": minutes % 60}))
        }
        Function::YearsBetween => Ok(json!({"years": (float(1) - float(0)) as i64})),
    }
}

/// Minutes since midnight of a time such as `09:25`.
fn clock_minutes(text: &str) -> Option<i64> {
    let (hours, minutes) = text.split_once(':')?;
    let digits = |part: &str| part.len() <= 2 && part.chars().all(|c| c.is_ascii_digit());
    if !digits(hours) || !digits(minutes) {
        return None;
    }
    let (hours, minutes): (i64, i64) = (hours.parse().ok()?, minutes.parse().ok()?);
    (hours < 24 && minutes < 60).then_some(hours * 60 + minutes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(function: Function, arguments: &[Value]) -> Result<Value, NoResult> {
        let arguments: Vec<&Value> = arguments.iter().collect();
        compute(function, &arguments, |code| (code == "VEL").then_some(1.25))
    }

    #[test]
    fn each_function_gives_what_its_name_says() {
        for (function, arguments, expected) in [
            (
                Function::Convert,
                json!([10.5, "vel"]),
                json!({"converted": 13.13, "currency": "VEL"}),
            ),
            (Function::AddTax, json!([80, 5]), json!({"total": 84})),
            (Function::Split, json!([100, 3]), json!({"share": 33.33})),
            (
                Function::Arrive,
                json!(["23:40", 45]),
                json!({"time": "00:25"}),
            ),
            (
                Function::HoursAndMinutes,
                json!([125]),
                json!({"hours": 2, "minutes": 5}),
            ),
            (
                Function::YearsBetween,
                json!([1990, 2030]),
                json!({"years": 40}),
            ),
        ] {
            let arguments = arguments.as_array().unwrap();
            assert_eq!(result(function, arguments).unwrap(), expected);
        }
    }

    #[test]
    fn arguments_without_a_result_are_refused() {
        for (function, arguments) in [
            (Function::Convert, json!([1, "XXX"])),
            (Function::Split, json!([1, 0])),
            (Function::Arrive, json!(["25:00", 3])),
            (Function::Arrive, json!(["noon", 3])),
            (Function::Arrive, json!(["12:00", -3])),
            (Function::HoursAndMinutes, json!([-1])),
        ] {
            let arguments = arguments.as_array().unwrap();
            assert!(result(function, arguments).is_err(), "{function:?}");
        }
    }
}
