//! Fields of a record: a path of keys, or any JMESPath expression.

use std::borrow::Cow;

use serde_json::Value;
use tooltune_agents::truncation::{FilterError, check_filter, filter};

use super::read_keys::read_keys;

/// A field, written as a JMESPath expression. A plain path of keys is followed without JMESPath, with
/// the same result.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum FieldPath {
    /// Keys from the outermost object on.
    Keys(Vec<String>),
    /// Any other expression.
    Expression(String),
}

impl FieldPath {
    /// Parses an expression.
    ///
    /// # Errors
    ///
    /// It is not JMESPath.
    pub(super) fn parse(expression: &str) -> Result<Self, FilterError> {
        check_filter(expression)?;
        Ok(match parse_keys(expression) {
            Some(keys) => Self::Keys(keys),
            None => Self::Expression(expression.to_owned()),
        })
    }

    /// The value of the field; null if it is missing or the expression fails.
    pub(super) fn get(&self, value: &Value) -> Value {
        self.look_up(value).into_owned()
    }

    /// Same as [`get`](Self::get), without a copy for a plain path.
    pub(super) fn look_up<'v>(&self, value: &'v Value) -> Cow<'v, Value> {
        match self {
            Self::Keys(keys) => follow(keys, value).map_or(Cow::Owned(Value::Null), Cow::Borrowed),
            Self::Expression(expression) => {
                Cow::Owned(filter(expression, value).unwrap_or(Value::Null))
            }
        }
    }

    /// The keys, if the field is a plain path.
    pub(super) fn keys(&self) -> Option<&[String]> {
        match self {
            Self::Keys(keys) => Some(keys),
            Self::Expression(_) => None,
        }
    }

    /// The paths of keys that the field reads, relative to its record; lists add no key.
    pub(super) fn read_keys(&self) -> Vec<Vec<String>> {
        match self {
            Self::Keys(keys) => vec![keys.clone()],
            Self::Expression(expression) => read_keys(expression),
        }
    }
}

/// The value at a path of keys of objects.
pub(super) fn follow<'v>(keys: &[String], value: &'v Value) -> Option<&'v Value> {
    keys.iter()
        .try_fold(value, |value, key| value.as_object()?.get(key))
}

/// The value at a path of keys of objects, to be changed.
pub(super) fn follow_mut<'v>(keys: &[String], value: &'v mut Value) -> Option<&'v mut Value> {
    keys.iter()
        .try_fold(value, |value, key| value.as_object_mut()?.get_mut(key))
}

/// Writes keys as a JMESPath expression: `data."odd key"`, or `@` without keys.
pub(super) fn expression_of(keys: &[String]) -> String {
    if keys.is_empty() {
        return "@".to_owned();
    }
    let written = keys.iter().map(|key| {
        if is_identifier(key) {
            key.clone()
        } else {
            Value::from(key.as_str()).to_string()
        }
    });
    written.collect::<Vec<_>>().join(".")
}

fn is_identifier(key: &str) -> bool {
    let mut chars = key.chars();
    let is_start = |c: char| c.is_ascii_alphabetic() || c == '_';
    chars.next().is_some_and(is_start) && chars.all(|c| is_start(c) || c.is_ascii_digit())
}

/// The keys of an expression that consists only of keys.
fn parse_keys(expression: &str) -> Option<Vec<String>> {
    if expression == "@" {
        return Some(Vec::new());
    }
    let mut keys = Vec::new();
    let mut rest = expression;
    loop {
        let end = if rest.starts_with('"') {
            let mut is_escaped = false;
            let close = rest.char_indices().skip(1).find(|(_, c)| {
                let closes = *c == '"' && !is_escaped;
                is_escaped = *c == '\\' && !is_escaped;
                closes
            });
            close?.0 + 1
        } else {
            rest.find('.').unwrap_or(rest.len())
        };
        let (key, after) = rest.split_at(end);
        keys.push(if key.starts_with('"') {
            serde_json::from_str(key).ok()?
        } else {
            is_identifier(key).then(|| key.to_owned())?
        });
        match after.strip_prefix('.') {
            Some(after) => rest = after,
            None if after.is_empty() => return Some(keys),
            None => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_of_keys_equal_their_jmespath_expressions() {
        let value = json!({"a": {"b c": {"d.e": 5, "\"q\\": true}}, "list": [{"a": 1}]});
        for expression in [
            "a",
            "a.\"b c\"",
            "a.\"b c\".\"d.e\"",
            "a.\"b c\".\"\\\"q\\\\\"",
            "a.x.y",
            "list.a",
        ] {
            let path = FieldPath::parse(expression).expect(expression);
            let keys = path.keys().expect(expression);
            assert_eq!(
                path.get(&value),
                filter(expression, &value).unwrap(),
                "{expression}"
            );
            assert_eq!(expression_of(keys), expression);
        }
        for expression in ["a[0]", "list[].a", "a || b", "length(a)", "*.a"] {
            assert!(
                FieldPath::parse(expression)
                    .expect(expression)
                    .keys()
                    .is_none()
            );
        }
        assert!(FieldPath::parse("a..b").is_err());
        assert!(FieldPath::parse("").is_err());
        let sum = FieldPath::parse("sum(list[].a)").expect("an expression");
        assert_eq!(sum.get(&value), json!(1.0));
        assert_eq!(sum.read_keys(), [["list", "a"]]);
    }
}
