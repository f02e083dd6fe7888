//! Checks each setting with values generated from its schema.

use serde_json::{Value, json};

use super::written::configs;
use super::*;
use crate::read::words;

type Settings = Vec<(String, &'static Value)>;

/// All settings by path, with their schemas. A table that several settings have, such as an
/// executor, is listed once.
fn settings() -> Settings {
    fn add(path: &str, table: &'static Value, settings: &mut Settings, tables: &mut Vec<String>) {
        for (key, field) in table["properties"].as_object().into_iter().flatten() {
            let path = if path.is_empty() {
                key.clone()
            } else {
                format!("{path}.{key}")
            };
            let inner = schema::target(field);
            let name = field["$ref"].as_str().unwrap_or_default().to_owned();
            if !inner["properties"].is_object() {
                settings.push((path, field));
            } else if !tables.contains(&name) {
                tables.push(name);
                add(&path, inner, settings, tables);
            }
        }
    }
    let mut settings = Vec::new();
    add("", schema::root(), &mut settings, &mut Vec::new());
    settings
}

/// Values that the schema of a setting allows.
fn examples(field: &'static Value) -> Vec<Value> {
    if !field["x-example"].is_null() {
        return vec![field["x-example"].clone()];
    }
    let schema = schema::target(field);
    if let Some(variants) = schema["anyOf"].as_array() {
        return variants.iter().flat_map(examples).collect();
    }
    if let Some(words) = words(schema) {
        return words.into_iter().map(Value::from).collect();
    }
    let limit = |keywords: [&str; 2]| keywords.into_iter().find_map(|word| schema[word].as_f64());
    let least = limit(["minimum", "exclusiveMinimum"]).unwrap_or(0.0);
    let most = limit(["maximum", "exclusiveMaximum"]).unwrap_or(least + 8.0);
    match schema["type"].as_str() {
        Some("boolean") => vec![json!(true), json!(false)],
        Some("integer") => vec![json!(least as u64 + 1), json!(least as u64)],
        Some("number") => vec![json!(least + (most - least) / 4.0)],
        Some("array") => examples(&schema["items"])
            .into_iter()
            .map(|item| json!([item]))
            .collect(),
        Some("object") if schema["properties"].is_object() => {
            let fields = schema["properties"].as_object().into_iter().flatten();
            let first = |(key, field): (&String, &'static Value)| {
                Some((key.clone(), examples(field).into_iter().next()?))
            };
            vec![Value::Object(fields.filter_map(first).collect())]
        }
        Some("object") => match &schema["additionalProperties"] {
            Value::Bool(_) => vec![json!({"name": true})],
            values => examples(values)
                .into_iter()
                .map(|value| json!({"name": value}))
                .collect(),
        },
        _ => match field["x-kind"].as_str() {
            Some("day") => vec![json!("2026-01-31")],
            Some("device") => vec![json!("cuda:1")],
            _ => schema::built_in(field)
                .into_iter()
                .chain(["x"])
                .map(Value::from)
                .collect(),
        },
    }
}

/// The text of an override.
fn override_of(path: &str, value: &Value) -> String {
    let value = toml::Value::try_from(value).unwrap_or_else(|error| panic!("{path}: {error}"));
    format!("{path}={value}")
}

/// Overrides that give a setting its effect, from `x-only-with`.
fn needed_overrides(path: &str, field: &'static Value) -> Vec<String> {
    let (table, _) = path.rsplit_once('.').unwrap_or(("", path));
    let needs = field["x-only-with"].as_object().into_iter().flatten();
    let one = |(other, allowed): (&String, &'static Value)| {
        let path = format!("{table}.{other}");
        let value = match schema::strings(allowed).first() {
            Some(word) => json!(word),
            None => examples(schema::setting_of(&path))[0].clone(),
        };
        override_of(&path, &value)
    };
    needs.map(one).collect()
}

/// Parses a config with overrides, if it is valid.
fn config_of(text: &str, overrides: &[&str], more: &[String]) -> Option<Config> {
    let more = more.iter().map(String::as_str);
    let overrides: Vec<&str> = overrides.iter().copied().chain(more).collect();
    Some(parse("c.toml", text, &overrides).ok()?.config)
}

/// The first config in which a generated value of the setting has an effect, without and with that
/// value. If no value has an effect, a config that sets the setting, twice.
fn with_and_without(path: &str, field: &'static Value) -> Option<(Config, Config)> {
    let needed = needed_overrides(path, field);
    for (text, overrides) in configs() {
        let Some(without) = config_of(text, overrides, &needed) else {
            continue;
        };
        for value in examples(field) {
            let mut more = needed.clone();
            more.push(override_of(path, &value));
            if let Some(with) = config_of(text, overrides, &more)
                && flat(&with) != flat(&without)
            {
                return Some((without, with));
            }
        }
    }
    configs().into_iter().find_map(|(text, overrides)| {
        let loaded = parse("c.toml", text, overrides).ok()?;
        let sets_it = loaded.origin(path) != "default";
        sets_it.then(|| (loaded.config.clone(), loaded.config))
    })
}

/// Invariant: The resolved config contains each setting and is equivalent.
#[test]
fn every_setting_is_kept_in_the_resolved_config() {
    let mut unset = Vec::new();
    for (path, field) in settings() {
        let Some((without, with)) = with_and_without(&path, field) else {
            unset.push(path);
            continue;
        };
        let resolved = with.to_toml().unwrap_or_else(|error| panic!("{error}"));
        let again = parse_valid(&resolved, &[]);
        assert_eq!(again, with, "{path}:\n{resolved}");
        assert_eq!(again.to_toml(), Ok(resolved), "{path}");
        assert_eq!(again.resume_digest(), with.resume_digest(), "{path}");
        let changes = diff(&without, &with);
        let is_safe = |change: &Change| change.on_resume == OnResume::Safe;
        let has_same_digest = without.resume_digest() == with.resume_digest();
        assert_eq!(changes.iter().all(is_safe), has_same_digest, "{path}");
    }
    assert_eq!(
        unset,
        Vec::<String>::new(),
        "no config in tests/written.rs accepts a generated value: give the field an `x-example`, or \
         `x-only-with` for the settings that it needs"
    );
}

/// Invariant: Numbers out of the range of their setting are refused.
#[test]
fn every_range_is_checked() {
    for (path, field) in settings() {
        let schema = schema::target(field);
        let is_number = |name: &&str| schema["type"] == **name;
        if !["integer", "number"].iter().any(is_number) {
            continue;
        }
        let limit = |keyword: &str| schema[keyword].as_f64();
        let out_of_range = [
            limit("minimum").map(|least| least - 1.0),
            limit("exclusiveMinimum"),
            limit("maximum").map(|most| most + 1.0),
            limit("exclusiveMaximum"),
        ];
        for value in out_of_range.into_iter().flatten() {
            let set = format!("{path}={value}");
            let problems = mistakes(MINIMAL, &[&set]);
            let is_found = |line: &String| {
                line.starts_with("--set:1:") && line.contains(&format!("`{path}` "))
            };
            assert!(problems.iter().any(is_found), "{set}: {problems:#?}");
        }
    }
}

/// Invariant: A setting is refused if it has no effect because another setting is missing or has
/// another value.
#[test]
fn every_setting_without_effect_is_refused() {
    let mut n_checked = 0;
    for (path, field) in settings() {
        let needs = field["x-only-with"].as_object().into_iter().flatten();
        for (other, allowed) in needs {
            let (table, _) = path.rsplit_once('.').expect("a table");
            let other = format!("{table}.{other}");
            let allowed = schema::strings(allowed);
            let set = override_of(&path, &examples(field)[0]);
            let message = format!("`{path}` has no effect: `{other}` is ");
            let is_found = |overrides: &[&str]| {
                let problems = mistakes(MINIMAL, overrides);
                problems.iter().any(|line| line.contains(&message))
            };
            if allowed.is_empty() {
                assert!(is_found(&[&set]), "{message}");
                n_checked += 1;
            }
            let words = words(schema::target(schema::setting_of(&other))).unwrap_or_default();
            for word in words.into_iter().filter(|_| !allowed.is_empty()) {
                let other = format!("{other}={word}");
                assert_eq!(
                    is_found(&[&set, &other]),
                    !allowed.contains(&word),
                    "{other}"
                );
                n_checked += 1;
            }
        }
    }
    assert!(n_checked > 0);
}
