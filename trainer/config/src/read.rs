//! Converts a document to a config and reports unknown keys, wrong types and values out of range.
//!
//! The document is compared with the schema of [`Config`]. Valid values are passed to serde.
//! Invalid values are reported with their position and replaced by their defaults, so that the rest
//! is also checked.

use serde_json::{Map, Value as Json};
use tooltune_template::{TemplateDate, TemplateKwargError};

use super::diagnostics::Problem;
use super::did_you_mean::{self, Tables};
use super::document::{Entry, Node, Table, Value};
use super::enums::Device;
use super::findings::Findings;
use super::schema::{keys, other_names, root, setting_of, target};
use super::tables::Config;
use crate::budgets::EXPLAINED_KEYS;

/// Reads a whole document.
pub(crate) fn read_document(document: &Table) -> (Config, Findings) {
    let tables = Tables::new(
        root()["properties"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(table, schema)| (table.as_str(), keys(target(schema)))),
        other_names(),
    );
    let mut reader = Reader {
        tables,
        findings: Findings::default(),
    };
    let settings = reader.table(document, root(), "");
    let mut findings = reader.findings;
    let config = serde_json::from_value(Json::Object(settings)).unwrap_or_else(|error| {
        findings.problems.push(Problem {
            message: format!("the settings cannot be used: {error}"),
            help: "`tooltune schema` describes every setting".to_owned(),
            span: None,
        });
        Config::default()
    });
    (config, findings)
}

/// A position in the config with its schema; `kind` describes strings (`x-kind`).
struct Expected<'a> {
    path: &'a str,
    schema: &'static Json,
    kind: Option<&'static str>,
}

struct Reader {
    tables: Tables<'static>,
    findings: Findings,
}

impl Reader {
    fn table(&mut self, table: &Table, schema: &'static Json, path: &str) -> Map<String, Json> {
        self.unknown_keys(table, &keys(schema), path);
        let properties = schema["properties"].as_object().into_iter().flatten();
        let mut settings = Map::new();
        for (key, schema) in properties {
            let Some(entry) = table.get(key) else {
                continue;
            };
            let path = join_path(path, key);
            let span = match entry.node.value {
                Value::Table(_) => entry.key_span,
                _ => entry.node.span,
            };
            self.findings.spans.insert(path.clone(), span);
            let kind = schema["x-kind"].as_str();
            let setting = Expected {
                path: &path,
                schema,
                kind,
            };
            match self.value(&entry.node, &setting) {
                Some(value) => drop(settings.insert(key.clone(), value)),
                None => drop(self.findings.unreadable.insert(path)),
            }
        }
        settings
    }

    fn unknown_keys(&mut self, table: &Table, known: &[&str], path: &str) {
        for entry in &table.entries {
            if known.contains(&entry.key.as_str()) {
                continue;
            }
            self.findings.n_unknown += 1;
            // Searching the nearest name takes time, and only the first mistakes are displayed.
            let unknown = if self.findings.n_unknown <= EXPLAINED_KEYS {
                did_you_mean::explain_unknown(path, &entry.key, known, &self.tables)
            } else {
                did_you_mean::unknown_without_help(path, &entry.key)
            };
            // A key meant for another table may also be set there; both are reported together.
            let intended = unknown.intended.as_deref().filter(|meant| {
                let key = meant.rsplit('.').next();
                key == Some(&*entry.key) && *meant != entry.key
            });
            if let Some(intended) = intended {
                let schema = setting_of(intended);
                let setting = Expected {
                    path: intended,
                    schema,
                    kind: schema["x-kind"].as_str(),
                };
                self.value(&entry.node, &setting);
            }
            self.findings.misnamed.extend(unknown.intended);
            self.findings.problems.push(Problem {
                message: unknown.message,
                help: unknown.help,
                span: Some(entry.key_span),
            });
        }
    }

    /// The value for serde; `None` after reporting a mistake.
    fn value(&mut self, node: &Node, setting: &Expected<'_>) -> Option<Json> {
        let schema = branch(node, setting.schema);
        if let Some(words) = words(schema) {
            return self.choice(node, setting, &words);
        }
        match schema["type"].as_str() {
            Some("object") if schema.get("properties").is_some() => {
                self.inner_table(node, schema, setting.path)
            }
            Some("object") => self.map(node, schema, setting.path),
            Some("array") => self.list(node, &schema["items"], setting),
            Some("boolean") => match node.value {
                Value::Bool(value) => Some(value.into()),
                _ => self.report_wrong_type(node, setting.path, "true or false"),
            },
            Some("integer") => self.integer(node, schema, setting.path),
            Some("number") => self.number(node, schema, setting.path),
            _ => self.text(node, setting),
        }
    }

    fn inner_table(&mut self, node: &Node, schema: &'static Json, path: &str) -> Option<Json> {
        let Value::Table(table) = &node.value else {
            let message = format!("`{path}` must be a table, not {}", node.value.describe());
            let help = format!("its keys are {}", did_you_mean::list(&keys(schema)));
            return self.report_wrong(node, message, help);
        };
        let settings = self.table(table, schema, path);
        let required = schema["required"].as_array().into_iter().flatten();
        let mut is_whole = true;
        for key in required.filter_map(Json::as_str) {
            is_whole &= settings.contains_key(key);
            let key_path = join_path(path, key);
            if self.findings.is_in_source(&key_path) || self.findings.is_misnamed(&key_path) {
                continue;
            }
            let meaning = schema["properties"][key]["description"].as_str();
            let meaning = meaning.unwrap_or_default().trim_start_matches("Required. ");
            let help = format!("add `{key}`: {meaning}");
            self.report_wrong(node, format!("`{key_path}` is missing"), help);
        }
        is_whole.then_some(Json::Object(settings))
    }

    /// A table with user-defined keys.
    fn map(&mut self, node: &Node, schema: &'static Json, path: &str) -> Option<Json> {
        let Value::Table(table) = &node.value else {
            let message = format!("`{path}` must be a table, not {}", node.value.describe());
            return self.report_wrong(
                node,
                message,
                "write names with their values: { name = value }",
            );
        };
        let values = &schema["additionalProperties"];
        let mut read = Map::new();
        for entry in &table.entries {
            let path = join_path(path, &entry.key);
            self.findings.spans.insert(path.clone(), entry.node.span);
            let value = match values {
                Json::Bool(_) => self.template_variable(entry, &path),
                _ => self.value(
                    &entry.node,
                    &Expected {
                        path: &path,
                        schema: values,
                        kind: None,
                    },
                ),
            };
            read.extend(value.map(|value| (entry.key.clone(), value)));
        }
        (read.len() == table.entries.len()).then_some(Json::Object(read))
    }

    fn template_variable(&mut self, entry: &Entry, path: &str) -> Option<Json> {
        let Err(error) = TemplateKwargError::check_name(&entry.key) else {
            return self.any(&entry.node, path);
        };
        let table = path
            .strip_suffix(&entry.key)
            .unwrap_or(path)
            .trim_end_matches('.');
        let message = format!("`{table}` cannot have the key `{}`", entry.key);
        self.report_wrong(&entry.node, message, error.to_string())
    }

    fn list(&mut self, node: &Node, items: &'static Json, setting: &Expected<'_>) -> Option<Json> {
        let path = setting.path;
        let Value::List(nodes) = &node.value else {
            let message = format!("`{path}` must be a list, not {}", node.value.describe());
            let help = match (&node.value, words(target(items))) {
                (Value::Text(text), Some(words)) if !words.contains(&text.as_str()) => {
                    let words: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
                    format!(
                        "it is a list of {}, and {text:?} is not one of them",
                        words.join(", ")
                    )
                }
                (Value::Text(text), _) => format!("put it in brackets: [{text:?}]"),
                _ => "write its items in brackets, with commas between them".to_owned(),
            };
            return self.report_wrong(node, message, help);
        };
        // All items are read first, so that all mistakes in them are reported.
        let read: Vec<Option<Json>> = nodes
            .iter()
            .enumerate()
            .map(|(index, item)| {
                let item_setting = Expected {
                    path: &format!("{path}[{index}]"),
                    schema: items,
                    kind: setting.kind,
                };
                self.value(item, &item_setting)
            })
            .collect();
        read.into_iter().collect::<Option<Vec<_>>>().map(Json::from)
    }

    /// A value of any JSON type.
    fn any(&mut self, node: &Node, path: &str) -> Option<Json> {
        let json = match &node.value {
            Value::Bool(value) => Some(Json::from(*value)),
            Value::Integer(value) => i64::try_from(*value).ok().map(Json::from),
            Value::Float(value) if value.is_finite() => Some(Json::from(*value)),
            Value::Text(text) => Some(Json::from(text.as_str())),
            Value::List(items) => {
                let items = items.iter().enumerate();
                let items = items.map(|(idx, item)| self.any(item, &format!("{path}[{idx}]")));
                return items.collect::<Option<Vec<_>>>().map(Json::from);
            }
            Value::Table(table) => {
                let fields = table.entries.iter().map(|entry| {
                    let value = self.any(&entry.node, &join_path(path, &entry.key))?;
                    Some((entry.key.clone(), value))
                });
                return fields.collect::<Option<Map<_, _>>>().map(Json::from);
            }
            Value::Null | Value::Float(_) | Value::Date(_) => None,
        };
        json.or_else(|| {
            let message = format!("`{path}` cannot be {}", node.value.describe());
            let help = "write a quoted string, a number of at most 64 bits, true, false, a list or \
                        a table, or remove the key";
            self.report_wrong(node, message, help)
        })
    }

    fn choice(&mut self, node: &Node, setting: &Expected<'_>, words: &[&str]) -> Option<Json> {
        if let Value::Text(word) = &node.value
            && words.contains(&word.as_str())
        {
            return Some(Json::from(word.as_str()));
        }
        let allowed: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
        let allowed = allowed.join(", ");
        let word_for = |on: bool| setting.schema["x-bool"][usize::from(on)].as_str();
        let help = match &node.value {
            Value::Text(word) => match did_you_mean::nearest(word, words) {
                Some(nearest) => format!("did you mean {nearest:?}? It can be {allowed}"),
                None => format!("it can be {allowed}"),
            },
            Value::Bool(on) if word_for(*on).is_some() => {
                format!("write {:?} for {on}", word_for(*on).unwrap_or_default())
            }
            _ => format!("it can be {allowed}"),
        };
        let message = format!("`{}` cannot be {}", setting.path, node.value.describe());
        self.report_wrong(node, message, help)
    }

    fn integer(&mut self, node: &Node, schema: &Json, path: &str) -> Option<Json> {
        let read = match node.value {
            Value::Integer(value) if value <= LARGEST => u64::try_from(value).ok(),
            _ => None,
        };
        let Some(value) = read else {
            return self.report_wrong_type(node, path, "a whole number that is not negative");
        };
        let (least, most) = (schema["minimum"].as_u64(), schema["maximum"].as_u64());
        let least = least.unwrap_or(0);
        if value < least || most.is_some_and(|most| value > most) {
            let help = match most {
                Some(most) => format!("it must be from {least} to {most}"),
                None => format!("it must be at least {least}"),
            };
            self.report_wrong(node, format!("`{path}` is {value}"), help);
        }
        Some(value.into())
    }

    fn number(&mut self, node: &Node, schema: &Json, path: &str) -> Option<Json> {
        let value = match node.value {
            Value::Float(value) if value.is_finite() => value,
            // Exact below 2^53; settings are far smaller, and ranges refuse larger numbers.
            Value::Integer(value) => value as f64,
            _ => return self.report_wrong_type(node, path, "a finite number"),
        };
        let limit = |keyword: &str| schema[keyword].as_f64();
        let (least, most) = (limit("minimum"), limit("maximum"));
        let (above, upper) = (limit("exclusiveMinimum"), limit("exclusiveMaximum"));
        let help = match (least, most) {
            _ if above.is_some_and(|above| value <= above) => {
                format!("it must be above {}", above.unwrap_or_default())
            }
            (Some(least), _) if upper.is_some_and(|upper| value < least || value >= upper) => {
                format!(
                    "it must be at least {least} and below {}",
                    upper.unwrap_or_default()
                )
            }
            (None, _) if upper.is_some_and(|upper| value >= upper) => {
                format!("it must be below {}", upper.unwrap_or_default())
            }
            (Some(least), Some(most)) if !(least..=most).contains(&value) => {
                format!("it must be from {least:?} to {most:?}")
            }
            (Some(least), None) if value < least => format!("it must be at least {least:?}"),
            (None, Some(most)) if value > most => format!("it must be at most {most:?}"),
            _ => return Some(value.into()),
        };
        self.report_wrong(node, format!("`{path}` is {value:?}"), help);
        Some(value.into())
    }

    fn text(&mut self, node: &Node, setting: &Expected<'_>) -> Option<Json> {
        let path = setting.path;
        let expected = match setting.kind {
            Some("path" | "output") => "a path in quotes",
            Some("day") => "a date such as \"2026-01-31\"",
            _ => "a string in quotes",
        };
        let text = match (&node.value, setting.kind) {
            (Value::Text(text), _) | (Value::Date(text), Some("day")) => text.as_str(),
            _ => return self.report_wrong_type(node, path, expected),
        };
        let cannot_be = || format!("`{path}` cannot be {text:?}");
        match setting.kind {
            Some("path" | "output") if text.is_empty() => {
                let help = "set a file or folder, or delete the line";
                self.report_wrong(node, format!("`{path}` is an empty path"), help)
            }
            Some("day") if text.parse::<TemplateDate>().is_err() => self.report_wrong(
                node,
                cannot_be(),
                "write a valid date, such as \"2026-01-31\"",
            ),
            Some("device") if Device::parse(text).is_none() => {
                let help = "it can be \"cpu\", \"cuda\" or \"cuda:1\"";
                self.report_wrong(node, cannot_be(), help)
            }
            _ => Some(text.into()),
        }
    }

    fn report_wrong_type(&mut self, node: &Node, path: &str, expected: &str) -> Option<Json> {
        let help = match &node.value {
            Value::Text(text)
                if text.parse::<f64>().is_ok() || matches!(&**text, "true" | "false") =>
            {
                format!("remove the quotes: {text}")
            }
            Value::Null => "set a value, or delete the line for the default".to_owned(),
            Value::Float(value) if value.fract() == 0.0 && expected.contains("whole") => {
                format!("write it without decimal point and exponent: {value:.0}")
            }
            Value::Integer(value) if *value > LARGEST => {
                format!("the largest number is {LARGEST}")
            }
            Value::List(_) => "write one value, without the brackets".to_owned(),
            _ => "`tooltune schema` describes every setting".to_owned(),
        };
        let message = format!("`{path}` must be {expected}, not {}", node.value.describe());
        self.report_wrong(node, message, help)
    }

    fn report_wrong(
        &mut self,
        node: &Node,
        message: String,
        help: impl Into<String>,
    ) -> Option<Json> {
        self.findings.problems.push(Problem {
            message,
            help: help.into(),
            span: Some(node.span),
        });
        None
    }
}

/// Largest integer of TOML, so that all numbers can be written again.
const LARGEST: i128 = i64::MAX as i128;

/// Resolves references, and selects the alternative that matches the type of the value, or the
/// first.
fn branch(node: &Node, schema: &'static Json) -> &'static Json {
    let schema = target(schema);
    let Some(alternatives) = schema["anyOf"].as_array() else {
        return schema;
    };
    let fits = |one: &&&Json| match node.value {
        Value::Text(_) => words(one).is_some() || one["type"] == "string",
        Value::Integer(_) => one["type"] == "integer",
        Value::Table(_) => one["type"] == "object",
        _ => false,
    };
    let targets: Vec<&Json> = alternatives.iter().map(target).collect();
    let selected = targets.iter().find(fits).or(targets.first());
    selected.copied().unwrap_or(schema)
}

/// Words allowed by a schema, if it is a choice.
pub(crate) fn words(schema: &Json) -> Option<Vec<&str>> {
    let words = match (schema["enum"].as_array(), schema["oneOf"].as_array()) {
        (Some(words), _) => words.iter().filter_map(Json::as_str).collect(),
        (_, Some(words)) => words
            .iter()
            .filter_map(|word| word["const"].as_str())
            .collect(),
        _ => return None,
    };
    Some(words)
}

fn join_path(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}
