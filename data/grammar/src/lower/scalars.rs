//! Lowers conditions on numbers and strings, and constant values.

use std::borrow::Cow;

use serde_json::{Map, Number, Value, json};

use super::{Draft, SchemaLocation};
use crate::error::GrammarError;
use crate::options::Formats;

/// Integers below 2^53 are distinct as 64-bit floats, which llguidance uses for bounds.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;
/// Up to this bound, multiples with a few decimals are distinct as 64-bit floats.
const MAX_MULTIPLE: f64 = 999_999_999_999.0;
/// Maximum enforced `minLength`.
const MAX_MIN_LENGTH: u64 = 10_000;
/// llguidance counts repetitions in 32 bits.
const MAX_MAX_LENGTH: u64 = 1_000_000_000;

/// Formats that llguidance defines exactly.
const ENFORCED_FORMATS: [&str; 5] = ["duration", "ipv4", "ipv6", "uri", "uuid"];
/// Other formats that JSON Schema defines.
pub(crate) const UNENFORCED_FORMATS: [&str; 8] = [
    "idn-email",
    "idn-hostname",
    "iri",
    "iri-reference",
    "regex",
    "uri-reference",
    "uri-template",
    "url",
];

/// A JSON pointer (RFC 6901).
const POINTER: &str = "(/([^/~]|~[01])*)*";

/// An existing date, with Gregorian leap years.
const DATE: &str = "([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))|([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)";
/// An RFC 1123 host name of at most 251 characters. It has up to 4 labels, each with up to 3 words
/// separated by hyphens.
const HOSTNAME: &str = "LABEL(\\.LABEL){0,3}";
const LABEL: &str = "[A-Za-z0-9]{1,32}(-[A-Za-z0-9]{1,14}){0,2}";
/// The unquoted part of an email address before the @, of at most 64 characters.
const MAILBOX: &str =
    "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,32}(\\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,15}){0,2}";
/// An RFC 3339 time without leap seconds, which occur on only a few days.
const TIME: &str = "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?([zZ]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";

pub(super) fn numbers(
    draft: Draft,
    location: &SchemaLocation<'_>,
    fields: &Map<String, Value>,
    lowered: &mut Map<String, Value>,
) -> Result<(), GrammarError> {
    for (bound, exclusive) in [
        ("minimum", "exclusiveMinimum"),
        ("maximum", "exclusiveMaximum"),
    ] {
        let inclusive = number(location, fields, bound)?;
        match fields.get(exclusive) {
            Some(Value::Bool(is_exclusive)) if draft == Draft::Draft4 => {
                let key = if *is_exclusive { exclusive } else { bound };
                lowered.extend(inclusive.map(|value| (key.to_owned(), json!(value))));
            }
            _ => {
                lowered.extend(inclusive.map(|value| (bound.to_owned(), json!(value))));
                let value = number(location, fields, exclusive)?;
                lowered.extend(value.map(|value| (exclusive.to_owned(), json!(value))));
            }
        }
    }
    let Some(step) = number(location, fields, "multipleOf")? else {
        return Ok(());
    };
    let size = step.as_f64().unwrap_or_default();
    // Two steps of an allOf are multiplied in 32 bits.
    if size <= 0.0 || size > 10_000.0 || (size * 10_000.0).fract() != 0.0 {
        return Err(location.unsupported(
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
    location: &SchemaLocation<'_>,
    fields: &'s Map<String, Value>,
    keyword: &str,
) -> Result<Option<&'s Number>, GrammarError> {
    match fields.get(keyword) {
        None => Ok(None),
        Some(Value::Number(number)) => {
            refuse_inexact(location, keyword, number)?;
            Ok(Some(number))
        }
        Some(other) => {
            Err(location.unsupported(keyword, format!("is {other}, which is not a number")))
        }
    }
}

fn refuse_inexact(
    location: &SchemaLocation<'_>,
    keyword: &str,
    number: &Number,
) -> Result<(), GrammarError> {
    let size = number.as_f64().map_or(f64::INFINITY, f64::abs);
    if size < MAX_EXACT {
        return Ok(());
    }
    Err(location.unsupported(
        keyword,
        format!("{number} is not below 2^53, from where numbers are not exact"),
    ))
}

/// A count such as `maxLength`, at most `limit`.
pub(super) fn count(
    location: &SchemaLocation<'_>,
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
            Err(location.unsupported(keyword, format!("is {count}; the limit is {limit}")))
        }
        None => Err(location.unsupported(keyword, format!("is {value}, which is not a count"))),
    }
}

pub(super) fn lower_strings(
    formats: Formats,
    location: &SchemaLocation<'_>,
    fields: &Map<String, Value>,
    lowered: &mut Map<String, Value>,
) -> Result<(), GrammarError> {
    for (keyword, limit) in [("minLength", MAX_MIN_LENGTH), ("maxLength", MAX_MAX_LENGTH)] {
        let length = count(location, fields, keyword, limit)?;
        lowered.extend(length.map(|length| (keyword.to_owned(), json!(length))));
    }
    match fields.get("pattern") {
        None => {}
        Some(Value::String(pattern)) => {
            let pattern = expand_character_classes(minimize_last_repetition(pattern));
            lowered.insert("pattern".to_owned(), json!(pattern));
        }
        Some(other) => {
            return Err(
                location.unsupported("pattern", format!("is {other}, which is not a string"))
            );
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
        "json-pointer" => format!("^{POINTER}$"),
        "relative-json-pointer" => format!("^(0|[1-9][0-9]{{0,8}})(#|{POINTER})$"),
        enforced if ENFORCED_FORMATS.contains(&enforced) => {
            lowered.insert("format".to_owned(), json!(enforced));
            return Ok(());
        }
        unenforced if formats == Formats::Asserted && UNENFORCED_FORMATS.contains(&unenforced) => {
            return Err(location.unsupported("format", format!("{unenforced:?} is not enforced")));
        }
        _ => return Ok(()),
    };
    // This applies in addition to a pattern of the schema itself.
    lowered.insert(
        "allOf".to_owned(),
        json!([{"anyOf": [
            {"type": ["null", "boolean", "number", "array", "object"]},
            {"type": "string", "pattern": pattern},
        ]}]),
    );
    Ok(())
}

/// Expands ECMAScript's character classes. Unlike in validators, `\s` in a grammar would include
/// U+0085 and exclude U+FEFF. Patterns that cannot be translated are unchanged, and the grammar
/// refuses them.
fn expand_character_classes(pattern: &str) -> Cow<'_, str> {
    jsonschema_regex::to_rust_regex(pattern).unwrap_or(Cow::Borrowed(pattern))
}

/// Reduces a repetition at the end of a pattern to its minimum. Anything may follow `[a-z]{1,255}`,
/// so it is equivalent to `[a-z]{1}`. The automaton of the latter has two states instead of sets of
/// 255 counters.
fn minimize_last_repetition(pattern: &str) -> &str {
    let Some((before, counts)) = pattern.strip_suffix('}').and_then(|p| p.rsplit_once('{')) else {
        return pattern;
    };
    let is_count = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    // An odd number of backslashes escapes the brace.
    let n_backslashes = before.len() - before.trim_end_matches('\\').len();
    match counts.split_once(',') {
        Some(("1", most)) if is_count(most) && n_backslashes.is_multiple_of(2) => before,
        _ => pattern,
    }
}

/// Lowers `enum` and `const`.
pub(super) fn constants(
    draft: Draft,
    location: &SchemaLocation<'_>,
    fields: &Map<String, Value>,
    lowered: &mut Map<String, Value>,
) -> Result<(), GrammarError> {
    if let Some(values) = fields.get("enum") {
        if !values.is_array() {
            return Err(location.unsupported("enum", "is not a list"));
        }
        refuse_unwritable(location, "enum", values)?;
        lowered.insert("enum".to_owned(), values.clone());
    }
    // Draft 4 has no `const`.
    if let Some(value) = fields.get("const").filter(|_| draft > Draft::Draft4) {
        refuse_unwritable(location, "const", value)?;
        lowered.insert("const".to_owned(), value.clone());
    }
    Ok(())
}

/// Refuses numbers that are too large to be exact, because the grammar cannot distinguish adjacent
/// numbers.
fn refuse_unwritable(
    location: &SchemaLocation<'_>,
    keyword: &str,
    value: &Value,
) -> Result<(), GrammarError> {
    match value {
        // A float is exactly the value that it was parsed to, even if it is large.
        Value::Number(number) if number.is_f64() => Ok(()),
        Value::Number(number) => refuse_inexact(location, keyword, number),
        Value::Array(items) => items
            .iter()
            .try_for_each(|item| refuse_unwritable(location, keyword, item)),
        Value::Object(fields) => fields
            .values()
            .try_for_each(|field| refuse_unwritable(location, keyword, field)),
        _ => Ok(()),
    }
}
