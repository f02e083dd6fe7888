//! Groups the samples of an evaluation by a property, such as the called tool.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::bootstrap::Estimate;
use crate::markdown::{markdown_table, percent};
use crate::registry::{SampleScores, SuiteInfo, field};

/// A property of samples, computed from a line of predictions.
#[derive(Debug, Clone, Copy)]
pub struct GroupKey {
    /// The name on the command line and in `metrics.json`.
    pub name: &'static str,
    /// Description of the groups.
    pub about: &'static str,
    /// The groups of a line. A line that calls two tools is in both groups.
    values: fn(&Value) -> Vec<String>,
}

/// The suite has no such groups.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.message())]
pub struct UnknownGroupKey {
    /// The unknown key.
    pub key: String,
    /// The lines, such as `slot`.
    pub of: &'static str,
    /// The keys of the suite.
    pub known: Vec<&'static str>,
}

impl UnknownGroupKey {
    fn message(&self) -> String {
        let Self { key, of, known } = self;
        match known.as_slice() {
            [] => format!("--by {key}: the suite {of} has no groups; omit --by"),
            known => format!(
                "--by {key}: the suite {of} has the groups {}",
                known.join(", ")
            ),
        }
    }
}

/// The metrics of the samples of a group.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupMeans {
    /// Name of the group.
    pub group: String,
    /// Number of samples.
    pub n: usize,
    /// Means by metric key, in table order.
    pub means: Vec<(&'static str, Estimate)>,
}

impl GroupKey {
    pub(crate) const fn new(
        name: &'static str,
        about: &'static str,
        values: fn(&Value) -> Vec<String>,
    ) -> Self {
        Self {
            name,
            about,
            values,
        }
    }

    /// The file of a sample, from the field `file` or from an id such as `dev.jsonl:3`.
    pub(crate) const FILE: Self = Self::new("file", "file of the sample", |line| {
        let of_id = || {
            let id = line.get("id")?.as_str()?;
            let (file, row) = id.rsplit_once(':')?;
            row.starts_with(|c: char| c.is_ascii_digit())
                .then_some(file)
        };
        let file = line.get("file").and_then(Value::as_str).or_else(of_id);
        vec![file.unwrap_or(UNKNOWN).to_owned()]
    });

    /// The different groups of a line.
    pub fn groups_of(&self, line: &Value) -> BTreeSet<String> {
        (self.values)(line).into_iter().collect()
    }
}

/// The group of samples without the property.
const UNKNOWN: &str = "unknown";

/// The number or string in a field of the line's score.
pub(crate) fn score_text(line: &Value, name: &str) -> Vec<String> {
    vec![field(line, name).map_or_else(|| UNKNOWN.to_owned(), plain_text)]
}

/// The strings or numbers in the field `name` of the objects in a list.
pub(crate) fn texts_of_items(items: Option<&Value>, name: &str) -> Vec<String> {
    let items = items.and_then(Value::as_array).into_iter().flatten();
    items
        .map(|item| {
            item.get(name)
                .map_or_else(|| UNKNOWN.to_owned(), plain_text)
        })
        .collect()
}

fn plain_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => UNKNOWN.to_owned(),
        other => other.to_string(),
    }
}

impl SuiteInfo {
    /// A group key of any lines of the suite.
    ///
    /// # Errors
    ///
    /// The suite has no such key; the error lists its keys.
    pub fn group_key(&self, name: &str) -> Result<&'static GroupKey, UnknownGroupKey> {
        let keys = self.samples.iter().flat_map(|form| form.groups);
        find_key(keys, name, self.name)
    }
}

fn find_key(
    keys: impl Iterator<Item = &'static GroupKey> + Clone,
    name: &str,
    of: &'static str,
) -> Result<&'static GroupKey, UnknownGroupKey> {
    let found = keys.clone().find(|key| key.name == name);
    found.ok_or_else(|| UnknownGroupKey {
        key: name.to_owned(),
        of,
        known: keys.map(|key| key.name).collect(),
    })
}

impl SampleScores {
    /// A group key of the lines.
    ///
    /// # Errors
    ///
    /// The lines have no such key; the error lists the known keys.
    pub fn group_key(&self, name: &str) -> Result<&'static GroupKey, UnknownGroupKey> {
        find_key(self.groups.iter(), name, self.of)
    }

    /// The metrics of each group of lines. Groups that are numbers are in ascending order, other
    /// groups start with the largest.
    pub fn group_means(&self, key: &GroupKey, lines: &[Value]) -> Vec<GroupMeans> {
        let mut groups: BTreeMap<String, Vec<&Value>> = BTreeMap::new();
        for line in lines {
            for group in key.groups_of(line) {
                groups.entry(group).or_default().push(line);
            }
        }
        let groups = groups.into_iter().map(|(group, lines)| GroupMeans {
            group,
            n: lines.len(),
            means: self.means(&lines),
        });
        let mut groups: Vec<GroupMeans> = groups.collect();
        sort_groups(&mut groups, |group| (group.group.as_str(), group.n));
        groups
    }
}

/// Sorts groups by number if all are numbers (unknown ones last), otherwise by size.
pub fn sort_groups<G>(groups: &mut [G], name_and_size: impl Fn(&G) -> (&str, usize)) {
    let number = |group: &G| name_and_size(group).0.parse::<u64>().ok();
    let is_unknown = |group: &G| name_and_size(group).0 == UNKNOWN;
    if groups
        .iter()
        .all(|group| number(group).is_some() || is_unknown(group))
    {
        groups.sort_by_key(|group| (is_unknown(group), number(group)));
    } else {
        groups.sort_by_key(|group| Reverse(name_and_size(group).1));
    }
}

/// Number of groups in a table or in `metrics.json`.
const MAX_SHOWN_GROUPS: usize = 100;

/// The groups for `metrics.json`: `[{KEY: group, "n", METRIC: {"value", "low", "high"}, ..}, ..]`.
pub fn groups_as_json(key: &GroupKey, groups: &[GroupMeans]) -> Value {
    let group = |group: &GroupMeans| {
        let mut fields = Map::new();
        fields.insert(key.name.to_owned(), json!(group.group));
        fields.insert("n".to_owned(), json!(group.n));
        for (metric, mean) in &group.means {
            fields.insert((*metric).to_owned(), json!(mean));
        }
        Value::Object(fields)
    };
    groups.iter().take(MAX_SHOWN_GROUPS).map(group).collect()
}

/// A Markdown table with one line per group, in per cent.
pub fn groups_table(key: &GroupKey, groups: &[GroupMeans]) -> String {
    let mut metrics: Vec<&'static str> = Vec::new();
    for (metric, _) in groups.iter().flat_map(|group| &group.means) {
        if !metrics.contains(metric) {
            metrics.push(metric);
        }
    }
    let names: String = metrics
        .iter()
        .map(|metric| format!(" | {metric} %"))
        .collect();
    let line = |group: &GroupMeans| {
        let mean = |metric: &&str| {
            let mut means = group.means.iter();
            means
                .find(|(name, _)| name == metric)
                .map(|(_, mean)| *mean)
        };
        let cells = metrics.iter().map(|metric| percent(mean(metric)));
        let first = [group.group.replace('|', "\\|"), group.n.to_string()];
        first.into_iter().chain(cells).collect::<Vec<String>>()
    };
    let lines = groups.iter().take(MAX_SHOWN_GROUPS).map(line);
    let mut table = markdown_table(&format!("{} | n{names}", key.name), lines);
    let n_more = groups.len().saturating_sub(MAX_SHOWN_GROUPS);
    if n_more > 0 {
        table.push_str(&format!("\n{n_more} more groups are not shown.\n"));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_key_lists_the_keys_of_the_suite() {
        let calls = SuiteInfo::from_name("calls").expect("a suite");
        let error = calls.group_key("colour").expect_err("an unknown key");
        assert_eq!(
            error.to_string(),
            "--by colour: the suite calls has the groups tool, n_calls, depth, file"
        );
        let retrieval = SuiteInfo::from_name("retrieval").expect("a suite");
        let error = retrieval.group_key("tool").expect_err("no groups");
        assert_eq!(
            error.to_string(),
            "--by tool: the suite retrieval has no groups; omit --by"
        );
    }

    /// A line of the calls suite with the expected tools.
    fn line(id: &str, tools: &[&str], right: bool) -> Value {
        let calls: Vec<Value> = tools
            .iter()
            .map(|tool| {
                json!({"tool": tool, "depth": 1, "name": right, "n_arguments": 1,
                               "n_right_arguments": u8::from(right), "exact": right})
            })
            .collect();
        json!({"suite": "calls", "type": "turn", "id": id, "score": {
            "n_wanted": tools.len(), "n_made": tools.len(), "right": right, "exact": right,
            "calls": calls}})
    }

    #[test]
    fn a_line_is_in_the_group_of_each_of_its_tools() {
        let calls = SuiteInfo::from_name("calls").expect("a suite");
        let form = calls.form("turn").expect("a form");
        let lines = [
            line("a.jsonl:1#1", &["tide"], true),
            line("a.jsonl:2#1", &["tide", "berth", "tide"], false),
            line("b.jsonl:1#1", &["tide"], true),
        ];
        let values = |key: &str| -> Vec<(String, usize, f64)> {
            let key = calls.group_key(key).expect("a key");
            let groups = form.group_means(key, &lines).into_iter();
            groups
                .map(|group| (group.group, group.n, group.means[0].1.value))
                .collect()
        };
        let of = |group: &str, n, value| (group.to_owned(), n, value);
        assert_eq!(
            values("tool"),
            [of("tide", 3, 2.0 / 3.0), of("berth", 1, 0.0)]
        );
        assert_eq!(values("n_calls"), [of("1", 2, 1.0), of("3", 1, 0.0)]);
        assert_eq!(
            values("file"),
            [of("a.jsonl", 2, 0.5), of("b.jsonl", 1, 1.0)]
        );
        let key = calls.group_key("tool").expect("a key");
        let groups = form.group_means(key, &lines);
        let written = groups_as_json(key, &groups);
        assert_eq!(written[0]["tool"], "tide");
        assert_eq!(written[0]["right"]["value"], json!(2.0 / 3.0));
        let table = groups_table(key, &groups);
        assert!(
            table.starts_with("| tool | n | right % | exact %"),
            "{table}"
        );
        assert!(table.contains("| berth | 1 | 0.0 [0.0, 79.3] |"), "{table}");
    }

    #[test]
    fn numbers_are_in_order_and_unknown_is_last() {
        let mut groups = vec![("10", 1), ("unknown", 9), ("2", 5)];
        sort_groups(&mut groups, |group| *group);
        assert_eq!(groups, [("2", 5), ("10", 1), ("unknown", 9)]);
        let mut groups = vec![("a", 1), ("2", 5)];
        sort_groups(&mut groups, |group| *group);
        assert_eq!(groups, [("2", 5), ("a", 1)]);
    }
}
