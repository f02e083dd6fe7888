//! What tells users of settings beside the schema: the tables of docs/config.md, which are made
//! from the settings, and the comments of the presets.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::*;

const WRITE: &str = "TOOLTUNE_WRITE_GUIDE";
const BEGIN: &str = "<!-- settings of ";
const END: &str = "<!-- end of settings -->";

/// Every table with the keys of its settings, by its path; that at the top has an empty one.
fn all_tables() -> BTreeMap<String, &'static Json> {
    fn add(path: &str, table: &'static Json, tables: &mut BTreeMap<String, &'static Json>) {
        for key in schema::keys(table) {
            let setting = schema::target(&table["properties"][key]);
            let items = schema::target(&setting["items"]);
            let dot = if path.is_empty() { "" } else { "." };
            // One of several forms may be a table, too.
            let forms = items["anyOf"].as_array().into_iter().flatten();
            let forms = forms.map(schema::target);
            for inner in [setting, items].into_iter().chain(forms) {
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

/// The guide with the tables of settings as they are made now.
fn with_tables(guide: &str) -> String {
    let tables = all_tables();
    let mut made = String::new();
    let mut told = Vec::new();
    let mut rest = guide;
    while let Some((before, after)) = rest.split_once(BEGIN) {
        let (path, after) = after.split_once(" -->").expect("an open marker");
        let (_, after) = after.split_once(END).expect("a table without its end");
        let path = if path == "the top" { "" } else { path };
        let table = tables.get(path);
        let table = table.unwrap_or_else(|| panic!("{path} is no table of the config"));
        let rows = rows(table, guide);
        let name = if path.is_empty() { "the top" } else { path };
        made.push_str(&format!("{before}{BEGIN}{name} -->\n{rows}{END}"));
        told.push(*table);
        rest = after;
    }
    for (path, table) in &tables {
        assert!(told.contains(table), "docs/config.md has no table {path}");
    }
    made + rest
}

fn rows(table: &Json, guide: &str) -> String {
    let settings = table["properties"].as_object().expect("a table");
    // What has keys has a section of its own.
    let at_top = |schema: &Json| table.get("$defs").is_some() && schema.get("$ref").is_some();
    let mut rows = "| key | default | value | meaning |\n|---|---|---|---|\n".to_owned();
    for (key, setting) in settings.iter().filter(|(_, setting)| !at_top(setting)) {
        let meaning = setting["description"].as_str().expect("a description");
        let meaning = meaning.replace('\n', " ");
        let mut forms: Vec<String> = names(setting);
        forms.push(value(setting, setting["x-kind"].as_str(), guide));
        let value = forms.join(" or ");
        let default = default(&setting["default"]);
        rows.push_str(&format!("| `{key}` | {default} | {value} | {meaning} |\n"));
    }
    rows
}

/// What is built in and goes by a name.
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

/// What a setting may be, in words.
fn value(setting: &Json, kind: Option<&str>, guide: &str) -> String {
    let schema = target_of(setting);
    if let Some(forms) = schema["anyOf"].as_array() {
        let forms: Vec<String> = forms.iter().map(|form| value(form, kind, guide)).collect();
        return forms.join(" or ");
    }
    if let Some(words) = read::words(schema) {
        let words: Vec<String> = words.iter().map(|word| format!("`{word:?}`")).collect();
        return words.join(", ");
    }
    match (schema["type"].as_str(), kind) {
        (Some("boolean"), _) => "`true`, `false`".to_owned(),
        (Some("integer"), _) => format!("whole number{}", range(schema)),
        (Some("number"), _) => format!("number{}", range(schema)),
        (Some("array"), _) => match value(&schema["items"], kind, guide).as_str() {
            one @ ("path" | "text") => format!("list of {one}s"),
            items => format!("list of {items}"),
        },
        (Some("object"), _) if schema.get("properties").is_some() => section(schema, guide),
        (Some("object"), _) => "table".to_owned(),
        (_, Some("path")) => "path".to_owned(),
        (_, Some("output")) => "folder".to_owned(),
        (_, Some("day")) => "day".to_owned(),
        _ => "text".to_owned(),
    }
}

/// A link to the section that tells the keys of a table.
fn section(table: &Json, guide: &str) -> String {
    let tables = all_tables();
    let mut paths = tables.iter().filter(|(_, other)| **other == table);
    let heading = paths.find_map(|(path, _)| {
        let headings = ["Keys of", "Entries of"].map(|begin| format!("{begin} {path}"));
        headings
            .into_iter()
            .find(|heading| guide.contains(&format!("### {heading}\n")))
    });
    let heading = heading.unwrap_or_else(|| panic!("no section tells the keys of {table}"));
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
        limit("exclusiveMaximum").map(|below| format!("below {below}")),
    ];
    let bounds: Vec<String> = bounds.into_iter().flatten().collect();
    if bounds.is_empty() {
        String::new()
    } else {
        format!(", {}", bounds.join(", "))
    }
}

#[test]
fn the_tables_of_the_guide_are_made_from_the_settings() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/config.md");
    let guide = fs::read_to_string(&path).expect("the guide");
    let made = with_tables(&guide);
    if std::env::var_os(WRITE).is_some() {
        fs::write(&path, &made).expect("the guide is written");
        return;
    }
    let differs = guide
        .lines()
        .zip(made.lines())
        .find(|(ours, made)| ours != made);
    assert!(
        guide == made,
        "docs/config.md: run scripts/docs: {differs:?}"
    );
}

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
    let mut told: Vec<&str> = line
        .expect("the line")
        .split('`')
        .skip(1)
        .step_by(2)
        .collect();
    let mut marked: Vec<String> = keys.into_iter().chain(tables).collect();
    marked
        .iter_mut()
        .for_each(|path| *path = path.trim_matches('`').to_owned());
    told.sort_unstable();
    marked.sort_unstable();
    assert_eq!(told, marked);
}

#[test]
fn comments_of_presets_offer_words_that_their_setting_takes() {
    let tables = all_tables();
    let mut n_checked = 0;
    for preset in presets() {
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
fn settings_that_presets_hold_in_comments_can_be_used() {
    for preset in presets() {
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
        good(&uncommented, &[]);
    }
}

fn presets() -> [Preset; 5] {
    [
        Preset::Slot,
        Preset::Sft,
        Preset::Goat,
        Preset::Retriever,
        Preset::Joint,
    ]
}
