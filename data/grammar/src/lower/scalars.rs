//! Conditions on numbers and strings, and values that are given as they are.

use std::borrow::Cow;

use serde_json::{Map, Number, Value, json};

use super::{Draft, SchemaLocation};
use crate::error::GrammarError;
use crate::options::Formats;

/// Integers below this are told apart as 64-bit floats, in which llguidance holds bounds: 2^53.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;
/// Up to here, multiples with a few decimals are told apart as 64-bit floats.
const MAX_MULTIPLE: f64 = 999_999_999_999.0;
/// A string of more characters than this is not asked for.
const MAX_MIN_LENGTH: u64 = 10_000;
/// Repetitions are counted in 32 bits.
const MAX_MAX_LENGTH: u64 = 1_000_000_000;

/// Formats whose definition by llguidance is exact.
const ENFORCED_FORMATS: [&str; 5] = ["duration", "ipv4", "ipv6", "uri", "uuid"];
/// Formats that JSON Schema defines beyond those.
const UNENFORCED_FORMATS: [&str; 10] = [
    "idn-email",
    "idn-hostname",
    "iri",
    "iri-reference",
    "json-pointer",
    "regex",
    "relative-json-pointer",
    "uri-reference",
    "uri-template",
    "url",
];

/// A day that exists, leap years by the Gregorian rule.
const DATE: &str = "([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))|([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)";
/// A name of RFC 1123 with up to 4 labels, of up to 3 words between hyphens each; at most 251
/// characters.
const HOSTNAME: &str = "LABEL(\\.LABEL){0,3}";
const LABEL: &str = "[A-Za-z0-9]{1,32}(-[A-Za-z0-9]{1,14}){0,2}";
/// What stands before the @ of an address, unquoted, of at most 64 characters.
const MAILBOX: &str =
    "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,32}(\\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,15}){0,2}";
/// A time of RFC 3339 without leap seconds, which exist on few days.
const TIME: &str = "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?([zZ]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";

pub(super) fn numbers(
    draft: Draft,
    place: &SchemaLocation<'_>,
    fields: &Map<String, Value>,
    lowered: &mut Map<String, Value>,
) -> Result<(), GrammarError> {
    for (bound, exclusive) in [
        ("minimum", "exclusiveMinimum"),
        ("maximum", "exclusiveMaximum"),
    ] {
        let inclusive = number(place, fields, bound)?;
        match fields.get(exclusive) {
            Some(Value::Bool(is_exclusive)) if draft == Draft::Draft4 => {
                let key = if *is_exclusive { exclusive } else { bound };
                lowered.extend(inclusive.map(|value| (key.to_owned(), json!(value))));
            }
            _ => {
                lowered.extend(inclusive.map(|value| (bound.to_owned(), json!(value))));
                let value = number(place, fields, exclusive)?;
                lowered.extend(value.map(|value| (exclusive.to_owned(), json!(value))));
            }
        }
    }
    let Some(step) = number(place, fields, "multipleOf")? else {
        return Ok(());
    };
    let size = step.as_f64().unwrap_or_default();
    // Two steps of an allOf are multiplied in 32 bits.
    if size <= 0.0 || size > 10_000.0 || (size * 10_000.0).fract() != 0.0 {
        return Err(place.refused(
            "multipleOf",
            format!(
                "is {step}; only steps from 0.0001 to 10000 with up to 4 decimals are enforced"
            ),
        ));
    }
    lowered.insert("multipleOf".to_owned(), json!(step));
    for (bounds, bound) in [
        (["minimum", "exclusiveMinimum"], -MAX_MULTIPLE),
        (["maximum", "exclusiveMaximum"], MAX_MULTIPLE),
    ] {
        if !bounds.iter().any(|keyword| lowered.contains_key(*keyword)) {
            lowered.insert(bounds[0].to_owned(), json!(bound));
        }
    }
    Ok(())
}

fn number<'s>(
    place: &SchemaLocation<'_>,
    fields: &'s Map<String, Value>,
    keyword: &str,
) -> Result<Option<&'s Number>, GrammarError> {
    match fields.get(keyword) {
        None => Ok(None),
        Some(Value::Number(number)) => {
            refuse_inexact(place, keyword, number)?;
            Ok(Some(number))
        }
        Some(other) => Err(place.refused(keyword, format!("is {other}, which is no number"))),
    }
}

fn refuse_inexact(
    place: &SchemaLocation<'_>,
    keyword: &str,
    number: &Number,
) -> Result<(), GrammarError> {
    let size = number.as_f64().map_or(f64::INFINITY, f64::abs);
    if size < MAX_EXACT {
        return Ok(());
    }
    Err(place.refused(
        keyword,
        format!("{number} is not below 2^53, from where numbers are not exact"),
    ))
}

/// A count such as that of `maxLength`, at most `limit`.
pub(super) fn count(
    place: &SchemaLocation<'_>,
    fields: &Map<String, Value>,
    keyword: &str,
    limit: u64,
) -> Result<Option<u64>, GrammarError> {
    let Some(value) = fields.get(keyword) else {
        return Ok(None);
    };
    let float = value.as_f64().filter(|float| float.fract() == 0.0);
    match value.as_u64().or(float
        .filter(|float| (0.0..=MAX_EXACT).contains(float))
        .map(|float| float as u64))
    {
        Some(count) if count <= limit => Ok(Some(count)),
        Some(count) => {
            Err(place.refused(keyword, format!("is {count}; up to {limit} can be counted")))
        }
        None => Err(place.refused(keyword, format!("is {value}, which is no count"))),
    }
}

pub(super) fn strings(
    formats: Formats,
    place: &SchemaLocation<'_>,
    fields: &Map<String, Value>,
    lowered: &mut Map<String, Value>,
) -> Result<(), GrammarError> {
    for (keyword, limit) in [("minLength", MAX_MIN_LENGTH), ("maxLength", MAX_MAX_LENGTH)] {
        let length = count(place, fields, keyword, limit)?;
        lowered.extend(length.map(|length| (keyword.to_owned(), json!(length))));
    }
    match fields.get("pattern") {
        None => {}
        Some(Value::String(pattern)) => {
            let pattern = as_validators_read(least_at_the_end(pattern));
            lowered.insert("pattern".to_owned(), json!(pattern));
        }
        Some(other) => {
            return Err(place.refused("pattern", format!("is {other}, which is no text")));
        }
    }
    if formats == Formats::Annotated {
        return Ok(());
    }
    let Some(format) = fields.get("format").and_then(Value::as_str) else {
        return Ok(());
    };
    let hostname = || HOSTNAME.replace("LABEL", LABEL);
    let pattern = match format {
        "hostname" => format!("^{}$", hostname()),
        "email" => format!("^{MAILBOX}@{}$", hostname()),
        "date" => format!("^{DATE}$"),
        "time" => format!("^{TIME}$"),
        "date-time" => format!("^{DATE}[tT]{TIME}$"),
        enforced if ENFORCED_FORMATS.contains(&enforced) => {
            lowered.insert("format".to_owned(), json!(enforced));
            return Ok(());
        }
        unenforced if UNENFORCED_FORMATS.contains(&unenforced) => {
            return Err(place.refused("format", format!("{unenforced:?} is not enforced")));
        }
        _ => return Ok(()),
    };
    // Beside a pattern of the schema itself.
    lowered.insert(
        "allOf".to_owned(),
        json!([{"anyOf": [
            {"type": ["null", "boolean", "number", "array", "object"]},
            {"type": "string", "pattern": pattern},
        ]}]),
    );
    Ok(())
}

/// A pattern with ECMAScript's classes spelt out: `\s` of a grammar would hold U+0085, which that of
/// validators does not, and lack U+FEFF. What cannot be translated stays, for the grammar to refuse.
fn as_validators_read(pattern: &str) -> Cow<'_, str> {
    jsonschema_regex::to_rust_regex(pattern).unwrap_or(Cow::Borrowed(pattern))
}

/// A pattern whose last part has to be found as often as needed and no more: `[a-z]{1,255}`, after
/// which anything may follow, says the same as `[a-z]{1}` and takes an automaton of two states, not
/// of sets of 255 counters.
fn least_at_the_end(pattern: &str) -> &str {
    let Some((before, counts)) = pattern.strip_suffix('}').and_then(|p| p.rsplit_once('{')) else {
        return pattern;
    };
    let is_count = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    // An odd number of backslashes makes the brace a character.
    let n_backslashes = before.len() - before.trim_end_matches('\\').len();
    match counts.split_once(',') {
        Some(("1", most)) if is_count(most) && n_backslashes.is_multiple_of(2) => before,
        _ => pattern,
    }
}

/// `enum` and `const`.
pub(super) fn constants(
    draft: Draft,
    place: &SchemaLocation<'_>,
    fields: &Map<String, Value>,
    lowered: &mut Map<String, Value>,
) -> Result<(), GrammarError> {
    if let Some(values) = fields.get("enum") {
        if !values.is_array() {
            return Err(place.refused("enum", "is no list"));
        }
        refuse_unwritable(place, "enum", values)?;
        lowered.insert("enum".to_owned(), values.clone());
    }
    // Draft 4 has no `const`.
    if let Some(value) = fields.get("const").filter(|_| draft > Draft::Draft4) {
        refuse_unwritable(place, "const", value)?;
        lowered.insert("const".to_owned(), value.clone());
    }
    Ok(())
}

/// Numbers beyond the exact ones, which the grammar cannot tell apart.
fn refuse_unwritable(
    place: &SchemaLocation<'_>,
    keyword: &str,
    value: &Value,
) -> Result<(), GrammarError> {
    match value {
        // A float is what it is read as, however large.
        Value::Number(number) if number.is_f64() => Ok(()),
        Value::Number(number) => refuse_inexact(place, keyword, number),
        Value::Array(items) => items
            .iter()
            .try_for_each(|item| refuse_unwritable(place, keyword, item)),
        Value::Object(fields) => fields
            .values()
            .try_for_each(|field| refuse_unwritable(place, keyword, field)),
        _ => Ok(()),
    }
}
