//! Documentation of settings: the generated tables of docs/config.md, and the comments of the
//! presets.

use std::collections::BTreeMap;
use std::io::Write as _;

use clap::ValueEnum as _;
use serde_json::Value as Json;

use super::*;

const WRITE: &str = "TOOLTUNE_WRITE_GUIDE";
const BEGIN: &str = "<!-- settings of ";
const END: &str = "<!-- end of settings -->";

/// Every table with its settings, by path; the path of the top level is empty.
fn all_tables() -> BTreeMap<String, &'static Json> {
    fn add(path: &str, table: &'static Json, tables: &mut BTreeMap<String, &'static Json>) {
        for key in schema::keys(table) {
            let setting = schema::target(&table["properties"][key]);
            let items = schema::target(&setting["items"]);
            let dot = if path.is_empty() { "" } else { "." };
            // An alternative may also be a table.
            let alternatives = items["anyOf"].as_array().into_iter().flatten();
            let alternatives = alternatives.map(schema::target);
            for inner in [setting, items].into_iter().chain(alternatives) {
                if inner.get("properties").is_some() {
                    add(&format!("{path}{dot}{key}"), inner, tables);
                }
            }
        }
        tables.insert(path.to_owned(), table);
    }
    let mut tables = BTreeMap::new();
    add("", schema::root(), &mut tables);
    tables
}

/// Adds the sections that the guide lacks, each after the last table of its parent, and returns
/// their headings.
fn add_sections(guide: &mut String) -> Vec<String> {
    let tables = all_tables();
    let mut added = Vec::new();
    for (path, table) in tables.iter().filter(|(path, _)| !path.is_empty()) {
        // Tables with the same keys need only one section.
        let mut same = tables.iter().filter(|(_, other)| *other == table);
        if same.any(|(path, _)| guide.contains(&format!("{BEGIN}{path} -->"))) {
            continue;
        }
        let (parent, heading) = match path.rsplit_once('.') {
            Some((parent, _)) => (parent, format!("### Keys of {path}")),
            None => ("", format!("## [{path}]")),
        };
        let last = guide.rfind(&format!("{BEGIN}{parent}"));
        let last = last.unwrap_or_else(|| panic!("docs/config.md has no table {parent}"));
        let next = ["\n## ", "\n### "].map(|start| guide[last..].find(start));
        let next = next.into_iter().flatten().min();
        let next = next.map_or(guide.len(), |length| last + length + 1);
        let section = format!("{heading}\n\n{BEGIN}{path} -->\n{END}\n\n");
        guide.insert_str(next, &section);
        added.push(heading);
    }
    added
}

/// The guide with regenerated tables of settings.
fn with_tables(guide: &str) -> String {
    let tables = all_tables();
    let mut new_guide = String::new();
    let mut tables_seen = Vec::new();
    let mut rest = guide;
    while let Some((before, after)) = rest.split_once(BEGIN) {
        let (path, after) = after.split_once(" -->").expect("an open marker");
        let (_, after) = after.split_once(END).expect("a table without its end");
        let path = if path == "the top" { "" } else { path };
        let table = tables.get(path);
        let table = table.unwrap_or_else(|| panic!("{path} is not a table of the config"));
        let rows = rows(table, guide);
        let name = if path.is_empty() { "the top" } else { path };
        new_guide.push_str(&format!("{before}{BEGIN}{name} -->\n{rows}{END}"));
        tables_seen.push(*table);
        rest = after;
    }
    for (path, table) in &tables {
        assert!(
            tables_seen.contains(table),
            "docs/config.md has no table {path}"
        );
    }
    new_guide + rest
}

fn rows(table: &Json, guide: &str) -> String {
    let settings = table["properties"].as_object().expect("a table");
    // A setting with keys has a separate section.
    let at_top = |schema: &Json| table.get("$defs").is_some() && schema.get("$ref").is_some();
    let mut rows = "| key | default | value | meaning |\n|---|---|---|---|\n".to_owned();
    for (key, setting) in settings.iter().filter(|(_, setting)| !at_top(setting)) {
        let meaning = setting["description"].as_str().expect("a description");
        let meaning = meaning.replace('\n', " ").replace('|', "\\|");
        let mut values: Vec<String> = names(setting);
        values.push(value(setting, setting["x-kind"].as_str(), guide));
        let value = values.join(" or ");
        let default = default(&setting["default"]);
        rows.push_str(&format!("| `{key}` | {default} | {value} | {meaning} |\n"));
    }
    rows
}

/// Built-in names.
fn names(setting: &Json) -> Vec<String> {
    let names = setting["x-names"].as_array().into_iter().flatten();
    names.map(|name| format!("`{name}`")).collect()
}

fn default(default: &Json) -> String {
    match default {
        Json::Null => "-".to_owned(),
        Json::Array(items) => {
            let items: Vec<String> = items.iter().map(Json::to_string).collect();
            format!("`[{}]`", items.join(", "))
        }
        default => format!("`{default}`"),
    }
}

/// Allowed values of a setting, as text.
fn value(setting: &Json, kind: Option<&str>, guide: &str) -> String {
    let schema = target_of(setting);
    if let Some(schemas) = schema["anyOf"].as_array() {
        let values: Vec<String> = schemas.iter().map(|one| value(one, kind, guide)).collect();
        return values.join(" or ");
    }
    if let Some(words) = read::words(schema) {
        let words: Vec<String> = words.iter().map(|word| format!("`{word:?}`")).collect();
        return words.join(", ");
    }
    match (schema["type"].as_str(), kind) {
        (Some("boolean"), _) => "`true`, `false`".to_owned(),
        (Some("integer"), _) => format!("integer{}", range(schema)),
        (Some("number"), _) => format!("number{}", range(schema)),
        (Some("array"), _) => match value(&schema["items"], kind, guide).as_str() {
            one @ ("path" | "string") => format!("list of {one}s"),
            items => format!("list of {items}"),
        },
        (Some("object"), _) if schema.get("properties").is_some() => section(schema, guide),
        (Some("object"), _) => "table".to_owned(),
        (_, Some("path")) => "path".to_owned(),
        (_, Some("output")) => "folder".to_owned(),
        (_, Some("day")) => "day".to_owned(),
        _ => "string".to_owned(),
    }
}

/// Link to the section with the keys of a table.
fn section(table: &Json, guide: &str) -> String {
    let tables = all_tables();
    let mut paths = tables.iter().filter(|(_, other)| **other == table);
    let heading = paths.find_map(|(path, _)| {
        let headings = ["Keys of", "Entries of"].map(|begin| format!("{begin} {path}"));
        headings
            .into_iter()
            .find(|heading| guide.contains(&format!("### {heading}\n")))
    });
    let heading = heading.unwrap_or_else(|| {
        let path = tables.iter().find(|(_, other)| **other == table);
        let path = path.map_or("", |(path, _)| path.as_str());
        panic!("docs/config.md: add the heading `### Keys of {path}` above `{BEGIN}{path} -->`")
    });
    let anchor = heading.to_lowercase().replace('.', "").replace(' ', "-");
    format!("[table](#{anchor})")
}

fn target_of(schema: &Json) -> &Json {
    let name = schema["$ref"]
        .as_str()
        .and_then(|path| path.strip_prefix('#'));
    let target = name.and_then(|path| schema::root().pointer(path));
    target.unwrap_or(schema)
}

fn range(schema: &Json) -> String {
    let limit = |keyword: &str| schema.get(keyword).and_then(Json::as_f64);
    let is_whole = schema["type"] == "integer";
    let least = limit("minimum").filter(|least| !is_whole || *least > 0.0);
    let bounds = [
        least.map(|least| format!("at least {least}")),
        limit("exclusiveMinimum").map(|above| format!("above {above}")),
        limit("maximum").map(|most| format!("at most {most}")),
        limit("exclusiveMaximum").map(|limit_value| format!("below {limit_value}")),
    ];
    let bounds: Vec<String> = bounds.into_iter().flatten().collect();
    if bounds.is_empty() {
        String::new()
    } else {
        format!(", {}", bounds.join(", "))
    }
}

/// Invariant: docs/config.md matches the settings in the code.
#[test]
fn the_tables_of_the_guide_match_the_settings() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/config.md");
    let guide = fs::read_to_string(&path).expect("the guide");
    let mut regenerated = guide.clone();
    let added = add_sections(&mut regenerated);
    regenerated = with_tables(&regenerated);
    if std::env::var_os(WRITE).is_some() {
        fs::write(&path, &regenerated).expect("the guide is written");
        for heading in added {
            // Passing tests print only what is written directly.
            let mut stderr = std::io::stderr();
            writeln!(
                stderr,
                "docs/config.md: added `{heading}`; describe it there"
            )
            .expect("standard error");
        }
        return;
    }
    assert!(
        added.is_empty(),
        "docs/config.md lacks {added:?}: run scripts/docs, then describe them there"
    );
    let differs = guide
        .lines()
        .zip(regenerated.lines())
        .find(|(ours, regenerated)| ours != regenerated);
    assert!(
        guide == regenerated,
        "docs/config.md: run scripts/docs: {differs:?}"
    );
}

#[test]
fn a_missing_section_of_the_guide_is_added_after_the_tables_of_its_parent() {
    let guide = include_str!("../../../../docs/config.md");
    // The last section of `[eval]`, because a missing one is added after all others.
    let start = guide.rfind("\n### Keys of eval.").expect("a section") + 1;
    let (before, section) = guide.split_at(start);
    let (section, after) = section.split_once("\n## ").expect("the next section");
    let heading = section.lines().next().expect("a heading");
    let mut without = format!("{before}## {after}");
    assert_eq!(add_sections(&mut without), [heading]);
    assert_eq!(with_tables(&without), with_tables(guide));
}

/// Invariant: docs/config.md matches the settings in the code.
#[test]
fn the_guide_names_the_settings_that_a_run_may_be_resumed_with() {
    let (mut keys, mut tables) = (Vec::new(), Vec::new());
    for (path, table) in all_tables()
        .into_iter()
        .filter(|(path, _)| !path.contains('.'))
    {
        for (key, setting) in table["properties"].as_object().expect("a table") {
            let dot = if path.is_empty() { "" } else { "." };
            let path = format!("{path}{dot}{key}");
            match target_of(setting).get("properties") {
                _ if setting["x-on-resume"] != "safe" => {}
                None => keys.push(format!("`{path}`")),
                Some(_) => tables.push(format!("`[{path}]`")),
            }
        }
    }
    let guide = include_str!("../../../../docs/config.md");
    let line = guide
        .lines()
        .find(|line| line.starts_with("These may differ: "));
    let mut listed: Vec<&str> = line
        .expect("the line")
        .split('`')
        .skip(1)
        .step_by(2)
        .collect();
    let mut marked: Vec<String> = keys.into_iter().chain(tables).collect();
    marked
        .iter_mut()
        .for_each(|path| *path = path.trim_matches('`').to_owned());
    listed.sort_unstable();
    marked.sort_unstable();
    assert_eq!(listed, marked);
}

#[test]
fn comments_of_presets_list_valid_words() {
    let tables = all_tables();
    let mut n_checked = 0;
    for &preset in Preset::value_variants() {
        let mut table = String::new();
        for line in preset.text().lines() {
            let (code, comment) = line.split_once(" # ").unwrap_or((line, ""));
            if let Some(heading) = code.trim().strip_prefix('[') {
                table = heading.trim_end_matches(']').to_owned();
            }
            let Some((key, _)) = code.split_once(" = ") else {
                continue;
            };
            let setting = tables.get(&table).map(|table| &table["properties"][key]);
            let Some(words) = setting.and_then(|setting| read::words(target_of(setting))) else {
                continue;
            };
            let listed: Vec<&str> = comment.split(" | ").map(str::trim).collect();
            if listed.len() > 1 {
                assert_eq!(listed, words, "{preset:?}: {line}");
            }
            for quoted in comment.split('"').skip(1).step_by(2) {
                assert!(words.contains(&quoted), "{preset:?}: {line}");
                n_checked += 1;
            }
        }
    }
    assert!(n_checked > 10, "{n_checked}");
}

#[test]
fn commented_settings_of_presets_are_valid() {
    for &preset in Preset::value_variants() {
        let uncommented: String = preset
            .text()
            .lines()
            .map(|line| {
                let typed = line.strip_prefix("# ").unwrap_or(line);
                let key = typed.split_once(" = ").map_or("", |(key, _)| key);
                let is_key =
                    !key.is_empty() && key.chars().all(|c| c.is_ascii_lowercase() || c == '_');
                let is_setting = is_key || typed.starts_with('[');
                format!("{}\n", if is_setting { typed } else { line })
            })
            .collect();
        assert!(
            uncommented != preset.text() || preset == Preset::Slot,
            "{preset:?}"
        );
        parse_valid(&uncommented, &[]);
    }
}
