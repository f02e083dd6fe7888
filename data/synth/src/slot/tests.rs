//! Tests of the tables and of thousands of rows.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use serde_json::{Value, json};

use super::draft::{Draft, KeyStyle};
use super::families::{DOMAINS, FILES, families_in_split};
use super::field::{Domain, Family, Field, Kind};
use super::vocabulary::{self, Vocabulary};
use super::*;
use crate::table::{TableFile, example, table_errors};

const SPLITS: [Split; 3] = [Split::Train, Split::Dev, Split::Test];

fn rows(n_rows: usize, seed: u64, split: Split) -> Vec<SynthRow> {
    generate(&SlotSynthOptions {
        rows: n_rows,
        seed,
        split,
    })
    .collect()
}

fn all_families() -> impl Iterator<Item = &'static Family> {
    DOMAINS.iter().flat_map(|domain| &domain.families)
}

fn all_fields(family: &'static Family) -> impl Iterator<Item = &'static Field> {
    family
        .fields
        .iter()
        .chain(&family.group.fields)
        .chain(&family.items.fields)
}

fn json_depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(json_depth).max().unwrap_or(0),
        Value::Object(map) => 1 + map.values().map(json_depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// All object schemas inside `schema`, including itself.
fn object_schemas(schema: &Value) -> Vec<&Value> {
    let inner = match (&schema["properties"], &schema["items"]) {
        (Value::Object(properties), _) => properties.values().collect(),
        (_, Value::Null) => vec![],
        (_, items) => vec![items],
    };
    let own_schema = schema["type"] == "object";
    own_schema
        .then_some(schema)
        .into_iter()
        .chain(inner.into_iter().flat_map(object_schemas))
        .collect()
}

#[test]
fn every_table_file_is_read_and_parses() {
    let mut problems = table_errors::<Domain>("slot/families", &FILES);
    problems.extend(table_errors::<Vocabulary>("slot", &[vocabulary::FILE]));
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn the_example_of_a_family_parses() {
    let text = format!(
        "name = 'sport'\n{}",
        example(include_str!("families/mod.rs"))
    );
    let domain: Domain = toml::from_str(&text).unwrap();
    assert_eq!(domain.families.len(), 1);
}

/// Typos in a field, with the expected error at its file and line.
#[test]
fn an_error_in_a_table_has_a_location() {
    let problem_of = |text: &'static str| {
        let path = "slot/families/sport.toml";
        let problem = TableFile { path, text }.parse::<Field>().err();
        problem.map(|problem| problem.to_string())
    };
    let valid_table = "name = 'lessons'\nkind.int = [4, 24]\nsay = 'There are {} lessons.'\n";
    assert_eq!(problem_of(valid_table), None);
    for (text, line, rule) in [
        ("name = 'lessons'\nkind.int = [4, 24\n", 2, "unclosed array"),
        (
            "name = 'lessons'\nunti = 'h'\nkind.int = [4, 24]\n",
            2,
            "unknown field `unti`",
        ),
        (
            "name = 'lessons'\nkind = 'persona'\n",
            2,
            "unknown variant `persona`",
        ),
        ("name = 'lessons'\nkind.int = [4, 24, 30]\n", 2, "length 2"),
        ("name = 'lessons'\nkind.int = [4, -24]\n", 2, "expected u32"),
        (
            "name = 'lessons'\nkind.text = ['a', 1]\n",
            2,
            "expected a string",
        ),
        (
            "name = 'lessons'\nkind.int = [4, 24]\nkind.code = 'A'\n",
            2,
            "exactly 1 element",
        ),
        ("kind = 'person'\n", 1, "missing field `name`"),
    ] {
        let problem = problem_of(text).expect(text);
        let location = "data/synth/src/slot/families/sport.toml: TOML parse error at line";
        assert!(
            problem.starts_with(&format!("{location} {line},")),
            "{problem}"
        );
        assert!(problem.contains(rule), "{problem}");
    }
}

#[test]
fn there_are_forty_families_over_ten_domains() {
    let names: BTreeSet<&str> = all_families().map(|family| family.name.as_str()).collect();
    assert_eq!(names.len(), all_families().count(), "names must be unique");
    assert!(names.len() >= 40, "{}", names.len());
    let domains: BTreeSet<&str> = DOMAINS.iter().map(|domain| domain.name.as_str()).collect();
    assert_eq!(domains.len(), 10);
    assert!(DOMAINS.iter().all(|domain| domain.families.len() >= 4));
}

#[test]
fn splits_share_no_family_and_every_domain_is_in_the_test_split() {
    let names = |split| -> BTreeSet<&str> {
        rows(2_000, 3, split)
            .iter()
            .map(|row| row.metadata.family)
            .collect()
    };
    let [train, dev, test] = SPLITS.map(names);
    assert!(train.is_disjoint(&test) && train.is_disjoint(&dev) && dev.is_disjoint(&test));
    assert_eq!(
        train.len() + dev.len() + test.len(),
        all_families().count(),
        "not all are drawn"
    );
    for domain in DOMAINS.iter() {
        let has = |split| domain.families.iter().any(|family| family.split == split);
        assert!(has(Split::Train) && has(Split::Test), "{}", domain.name);
    }
}

#[test]
fn every_part_of_a_table_has_names_and_clauses() {
    for family in all_families() {
        let outer = family.fields.iter().map(|field| &field.name);
        let parts = [
            &family.group.name,
            &family.list.name,
            &family.items.plural,
            &family.name,
        ];
        let words: Vec<&String> = outer.chain(parts).collect();
        let different: BTreeSet<&&String> = words.iter().collect();
        assert_eq!(
            different.len(),
            words.len(),
            "{}: a key would be declared twice",
            family.name
        );
        for fields in [&family.fields, &family.group.fields, &family.items.fields] {
            let names: BTreeSet<&String> = fields.iter().map(|field| &field.name).collect();
            assert_eq!(names.len(), fields.len(), "{}", family.name);
        }
        assert!(family.fields.len() >= 7 && family.group.fields.len() == 3);
        assert!(family.items.fields.len() >= 2 && family.list.values.len() >= 3);
        let plain = |words: &str| words.chars().all(|c| c.is_ascii_alphanumeric() || c == ' ');
        assert!(words.iter().all(|words| plain(words)), "{words:?}");
        for field in all_fields(family) {
            assert!(plain(&field.name), "{}", field.name);
            assert!(field.say.is_empty() || field.say.matches("{}").count() == 1);
            assert!(field.say.is_empty() || field.say.ends_with(['.', '!']));
            if let Kind::Int(low, high) | Kind::Tenths(low, high) = &field.kind {
                assert!(low < high, "{}", field.name);
            }
        }
    }
}

#[test]
fn the_clauses_of_a_flag_are_distinguishable() {
    for family in all_families() {
        for field in all_fields(family) {
            if let Kind::Flag(yes, no) = &field.kind {
                assert!(!yes.contains(no) && !no.contains(yes), "{yes} / {no}");
                let negations = ["not ", "no ", "nobody ", "cannot "];
                let negates = |clause: &str| {
                    let clause = format!(" {clause}");
                    negations
                        .iter()
                        .any(|negation| clause.contains(&format!(" {negation}")))
                };
                assert!(negates(no) && !negates(yes), "{yes} / {no}");
            }
        }
        let is_flag = |field: &&Field| matches!(field.kind, Kind::Flag(..));
        let nested = family.group.fields.iter().chain(&family.items.fields);
        assert_eq!(nested.filter(is_flag).count(), 0, "{}", family.name);
        assert_eq!(
            family.fields.iter().filter(is_flag).count(),
            1,
            "{}",
            family.name
        );
    }
}

/// `generate` checks each row against its schema and its text, and panics on an error.
#[test]
fn thousands_of_rows_are_valid_and_inferable() {
    for split in SPLITS {
        for seed in [1, 2] {
            assert_eq!(rows(2_000, seed, split).len(), 2_000);
        }
    }
}

/// The check rejects a valid row if any leaf is changed.
#[test]
fn a_row_with_a_changed_value_is_refused() {
    let families = families_in_split(Split::Train);
    let mut n_changed = 0;
    for stream in 0..300 {
        let mut random = SeededRandom::new(5, stream);
        let draft = draft::draw(&families, &mut random);
        check::check(&draft).unwrap();
        for leaf_idx in 0..check::leaves(&draft.row.gold).len() {
            let mut gold = draft.row.gold.clone();
            change_leaf(&mut gold, &mut { leaf_idx });
            let row = SynthRow {
                gold,
                ..draft.row.clone()
            };
            let changed_draft = Draft {
                row,
                facts: draft.facts.clone(),
            };
            assert!(check::check(&changed_draft).is_err(), "{changed_draft:#?}");
            n_changed += 1;
        }
    }
    assert!(n_changed > 1_000);
}

fn change_leaf(value: &mut Value, countdown: &mut usize) {
    match value {
        Value::Array(items) => items
            .iter_mut()
            .for_each(|item| change_leaf(item, countdown)),
        Value::Object(map) => map
            .values_mut()
            .for_each(|item| change_leaf(item, countdown)),
        leaf => {
            if *countdown == 0 {
                *leaf = match &*leaf {
                    Value::String(text) => json!(format!("{text}x")),
                    Value::Number(number) => json!(number.as_f64().unwrap_or(0.0) + 1_000_000.0),
                    Value::Bool(value) => json!(!*value),
                    other => other.clone(),
                };
            }
            *countdown = countdown.wrapping_sub(1);
        }
    }
}

#[test]
fn equal_options_give_equal_bytes() {
    let bytes = |split| -> String {
        rows(50, 17, split)
            .iter()
            .map(|row| serde_json::to_string(row).unwrap() + "\n")
            .collect()
    };
    assert_eq!(bytes(Split::Train), bytes(Split::Train));
    assert_eq!(rows(20, 17, Split::Test), rows(50, 17, Split::Test)[..20]);
    assert_ne!(rows(20, 17, Split::Test), rows(20, 18, Split::Test));
}

#[test]
fn a_line_has_text_schema_gold_and_metadata() {
    let row = &rows(1, 1, Split::Train)[0];
    let line: Value = serde_json::to_value(row).unwrap();
    let keys: Vec<&String> = line.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["input_text", "json_schema", "gold", "metadata"]);
    let metadata = line["metadata"].as_object().unwrap().keys();
    assert_eq!(metadata.collect::<Vec<_>>(), ["family", "depth", "style"]);
}

#[test]
fn written_rows_are_read_back_unchanged() {
    let written_rows = rows(300, 4, Split::Train);
    let mut file = tempfile::NamedTempFile::new().unwrap();
    for row in &written_rows {
        writeln!(file, "{}", serde_json::to_string(row).unwrap()).unwrap();
    }
    let read_rows =
        tooltune_rows::text::read_rows(file.path(), tooltune_rows::text::DataFormat::Slot).unwrap();
    let read_rows: Vec<_> = read_rows.map(|row| row.unwrap().slot.unwrap()).collect();
    assert_eq!(read_rows.len(), written_rows.len());
    for (read_rows, written_rows) in read_rows.iter().zip(&written_rows) {
        assert_eq!(read_rows.input_text, written_rows.input_text);
        assert_eq!(
            read_rows.json_schema.to_string(),
            written_rows.json_schema.to_string()
        );
        assert_eq!(read_rows.gold.to_string(), written_rows.gold.to_string());
    }
}

#[test]
fn depths_and_styles_have_the_expected_shares() {
    let rows = rows(4_000, 9, Split::Train);
    let mut depths: BTreeMap<usize, usize> = BTreeMap::new();
    let mut styles: BTreeMap<Style, usize> = BTreeMap::new();
    for row in &rows {
        assert_eq!(json_depth(&row.gold), row.metadata.depth, "{row:#?}");
        *depths.entry(row.metadata.depth).or_default() += 1;
        *styles.entry(row.metadata.style).or_default() += 1;
    }
    let expected = BTreeMap::from([(1, 2_200), (2, 1_200), (3, 400), (4, 200)]);
    assert_eq!(depths.len(), 4);
    for (depth, count) in depths {
        assert!(
            count.abs_diff(expected[&depth]) < 120,
            "depth {depth}: {count}"
        );
    }
    assert_eq!(styles.len(), 5);
    assert!(
        styles.values().all(|count| count.abs_diff(800) < 120),
        "{styles:?}"
    );
}

#[test]
fn schemas_are_closed_and_nearly_all_declared_keys_are_stated() {
    let rows = rows(4_000, 11, Split::Test);
    let (mut n_absent, mut n_optional) = (0, 0);
    for row in &rows {
        for schema in object_schemas(&row.json_schema) {
            assert_eq!(schema["additionalProperties"], false);
            let declared = schema["properties"].as_object().unwrap().len();
            n_optional += declared - schema["required"].as_array().unwrap().len();
        }
        let text = row.gold.to_string();
        let keys = object_schemas(&row.json_schema);
        let declared = keys
            .iter()
            .flat_map(|s| s["properties"].as_object().unwrap().keys());
        n_absent += usize::from(
            declared
                .clone()
                .any(|key| !text.contains(&format!("\"{key}\":"))),
        );
    }
    assert!(
        n_absent > 10 && n_absent * 100 < 3 * rows.len(),
        "{n_absent}"
    );
    assert!(n_optional > 1_000, "{n_optional}");
}

#[test]
fn all_scalar_types_enums_and_arrays_occur() {
    let schemas: String = rows(300, 1, Split::Test)
        .iter()
        .map(|row| row.json_schema.to_string())
        .collect();
    for part in ["integer", "number", "boolean", "string", "array"] {
        assert!(schemas.contains(&format!("\"type\":\"{part}\"")), "{part}");
    }
    assert!(schemas.contains("\"enum\":[") && schemas.contains("\"items\":{\"type\":\"object\""));
}

#[test]
fn schemas_rarely_repeat() {
    let rows = rows(2_000, 1, Split::Train);
    let schemas: BTreeSet<String> = rows.iter().map(|row| row.json_schema.to_string()).collect();
    assert!(schemas.len() > 1_980, "{}", schemas.len());
}

#[test]
fn texts_state_more_facts_than_the_schema_requests() {
    let families = families_in_split(Split::Train);
    let n_with_distractor = (0..1_000)
        .filter(|stream| {
            let draft = draft::draw(&families, &mut SeededRandom::new(2, *stream));
            let family = all_families()
                .find(|family| family.name == draft.row.metadata.family)
                .unwrap();
            let asked_schema = draft.row.json_schema.to_string();
            let other = |field: &&Field| {
                !KeyStyle::ALL
                    .iter()
                    .any(|s| asked_schema.contains(&format!("\"{}\"", s.key(&field.name))))
            };
            let is_told = |field: &Field| {
                let words = [field.name.clone(), field.name.replace(' ', "_")];
                let text = draft.row.input_text.to_lowercase();
                words.iter().any(|words| text.contains(words.as_str()))
            };
            family.fields.iter().filter(other).any(is_told)
        })
        .count();
    assert!(n_with_distractor > 400, "{n_with_distractor}");
}

#[test]
fn keys_follow_their_style() {
    let keys = KeyStyle::ALL.map(|style| style.key("first stop name"));
    assert_eq!(
        keys,
        [
            "first_stop_name",
            "firstStopName",
            "first-stop-name",
            "First Stop Name"
        ]
    );
}

#[test]
fn a_token_is_not_found_inside_another() {
    for (text, phrase, is_found) in [
        ("It takes 12 minutes.", "12", true),
        ("It takes 12.", "12", true),
        ("It takes 12.5 minutes.", "12", false),
        ("It takes 12.5 minutes.", "5", false),
        ("On 2021-12-04.", "12", false),
        ("At 09:12.", "12", false),
        ("In Ashford.", "Ash", false),
        ("seats=12", "12", true),
        ("A, B and C.", "B", true),
    ] {
        assert_eq!(
            render::contains_token(text, phrase),
            is_found,
            "{text} / {phrase}"
        );
    }
}
