//! Divides rows into splits without common sub-graphs: training, checkpoint selection, a test on
//! the training tools, and a test in which every row calls a tool that no other split calls.

use std::collections::{BTreeMap, BTreeSet};

use tooltune_apis::{ApiCatalogue, Trajectory};
use tooltune_rows::batches::SeededRandom;

/// Random stream for splitting; other uses of the seed have their own streams.
const SPLIT_STREAM: u64 = 0x676F_6174_6C6D_0002;

/// Maximum fractions of the rows in the splits other than training, from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SplitShares {
    /// Split for checkpoint selection.
    pub dev: f64,
    /// Test split on the training tools.
    pub test_seen: f64,
    /// Test split on unseen tools.
    pub test_unseen: f64,
}

impl Default for SplitShares {
    fn default() -> Self {
        Self {
            dev: 0.05,
            test_seen: 0.1,
            test_unseen: 0.1,
        }
    }
}

/// The rows of each split.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Splits {
    /// Training rows.
    pub train: Vec<Trajectory>,
    /// Rows for checkpoint selection.
    pub dev: Vec<Trajectory>,
    /// Test rows on the training tools.
    pub test_seen: Vec<Trajectory>,
    /// Test rows, each with a tool of `choose_held_out`.
    pub test_unseen: Vec<Trajectory>,
    /// Tools that only `test_unseen` calls; APIs if all rows use a single tool.
    pub held_out: Vec<String>,
}

impl Splits {
    /// The splits by name.
    pub fn named_splits(&self) -> [(&'static str, &[Trajectory]); 4] {
        [
            ("train", &self.train),
            ("dev", &self.dev),
            ("test_seen", &self.test_seen),
            ("test_unseen", &self.test_unseen),
        ]
    }
}

/// Assigns each row to one split, depending only on the rows, the shares and the seed.
///
/// A split has at most its share of the rows, except that the tools of `hold_out` are always held
/// out. If `hold_out` is empty, tools are held out one by one while their rows fit. A sub-graph is
/// held out as a whole, and only if training keeps a row with each of its tools.
pub fn split(
    rows: Vec<Trajectory>,
    catalogue: &ApiCatalogue,
    shares: SplitShares,
    hold_out: &[String],
    seed: u64,
) -> Splits {
    let mut random = SeededRandom::new(seed, SPLIT_STREAM);
    let max_rows = |share: f64| (share * rows.len() as f64).floor() as usize;
    let (n_dev, n_seen, n_unseen) = (
        max_rows(shares.dev),
        max_rows(shares.test_seen),
        max_rows(shares.test_unseen),
    );
    let units: Vec<BTreeSet<String>> = units(&rows, catalogue, hold_out);
    let held_out = match hold_out {
        [] => choose_held_out(&units, n_unseen, &mut random),
        named => named.iter().cloned().collect(),
    };
    let mut splits = Splits::default();
    let mut groups: BTreeMap<Vec<String>, Vec<(Trajectory, BTreeSet<String>)>> = BTreeMap::new();
    for (row, units) in rows.into_iter().zip(units) {
        if units.iter().any(|unit| held_out.contains(unit)) {
            splits.test_unseen.push(row);
        } else {
            let apis: BTreeSet<&String> = row.calls.iter().map(|call| &call.name).collect();
            let apis = apis.into_iter().cloned().collect();
            groups.entry(apis).or_default().push((row, units));
        }
    }
    splits.held_out = held_out.into_iter().collect();
    let mut groups: Vec<Vec<(Trajectory, BTreeSet<String>)>> = groups.into_values().collect();
    random.shuffle(&mut groups);
    let mut n_groups: BTreeMap<String, usize> = BTreeMap::new();
    for unit in groups
        .iter()
        .filter_map(|group| group.first())
        .flat_map(|(_, units)| units)
    {
        *n_groups.entry(unit.clone()).or_default() += 1;
    }
    for group in groups {
        let units = group
            .first()
            .map(|(_, units)| units.clone())
            .unwrap_or_default();
        let training_keeps_tools = units.iter().all(|unit| n_groups[unit] > 1);
        let fits = |split: &[Trajectory], max_rows: usize| split.len() + group.len() <= max_rows;
        let split = if training_keeps_tools && fits(&splits.dev, n_dev) {
            &mut splits.dev
        } else if training_keeps_tools && fits(&splits.test_seen, n_seen) {
            &mut splits.test_seen
        } else {
            splits.train.extend(group.into_iter().map(|(row, _)| row));
            continue;
        };
        split.extend(group.into_iter().map(|(row, _)| row));
        for unit in units {
            n_groups.entry(unit).and_modify(|n| *n -= 1);
        }
    }
    for rows in [
        &mut splits.train,
        &mut splits.dev,
        &mut splits.test_seen,
        &mut splits.test_unseen,
    ] {
        rows.sort_by(|a, b| a.id.cmp(&b.id));
    }
    splits
}

/// The tools that each row calls, or the APIs if all rows use a single tool. An API that is held
/// out by name is its own unit.
fn units(
    rows: &[Trajectory],
    catalogue: &ApiCatalogue,
    hold_out: &[String],
) -> Vec<BTreeSet<String>> {
    let tool = |name: &String| {
        let document = catalogue.get(name);
        let tool = document.map(|document| document.tool_name.clone());
        tool.filter(|tool| !tool.is_empty())
            .unwrap_or_else(|| name.clone())
    };
    let calls = rows.iter().flat_map(|row| &row.calls);
    let tools: BTreeSet<String> = calls.map(|call| tool(&call.name)).collect();
    let row_tools = |row: &Trajectory| -> BTreeSet<String> {
        let names = row.calls.iter().map(|call| &call.name);
        names
            .map(|name| {
                let is_by_tool = tools.len() > 1 || !hold_out.is_empty();
                if is_by_tool && !hold_out.contains(name) {
                    tool(name)
                } else {
                    name.clone()
                }
            })
            .collect()
    };
    rows.iter().map(row_tools).collect()
}

/// Draws units in random order, keeping each one that still fits.
fn choose_held_out(
    units: &[BTreeSet<String>],
    max_rows: usize,
    random: &mut SeededRandom,
) -> BTreeSet<String> {
    let all_apis: BTreeSet<&String> = units.iter().flatten().collect();
    let mut order: Vec<&String> = all_apis.into_iter().collect();
    random.shuffle(&mut order);
    let mut held_out: BTreeSet<String> = BTreeSet::new();
    let mut n_held_out = 0;
    for unit in order {
        let is_held_out = |row: &BTreeSet<String>| row.iter().any(|unit| held_out.contains(unit));
        let new = units
            .iter()
            .filter(|row| row.contains(unit) && !is_held_out(row));
        let n_new = new.count();
        if n_new > 0 && n_held_out + n_new <= max_rows {
            n_held_out += n_new;
            held_out.insert(unit.clone());
        }
    }
    held_out
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tooltune_apis::TrajectoryCall;
    use tooltune_synth::goat::{self, GoatSplit, GoatSynthOptions};

    use super::*;

    /// Invariant: Generated splits share no sub-graph, and unseen tools occur only in their own
    /// split.
    #[test]
    fn splits_share_no_sub_graph_and_unseen_tools_are_in_no_other_split() {
        let options = GoatSynthOptions {
            rows: 600,
            max_calls: 4,
            ..GoatSynthOptions::new(GoatSplit::Train, 3)
        };
        let rows = goat::generate(&options).expect("rows");
        let catalogue = ApiCatalogue::new(goat::documents()).expect("documents");
        let shares = SplitShares::default();
        let splits = split(rows.clone(), &catalogue, shares, &[], 4);
        assert_eq!(split(rows.clone(), &catalogue, shares, &[], 4), splits);
        let n_rows: usize = splits
            .named_splits()
            .iter()
            .map(|(_, rows)| rows.len())
            .sum();
        assert_eq!(n_rows, 600);
        for (n, max_rows) in [
            (splits.dev.len(), 30),
            (splits.test_seen.len(), 60),
            (splits.test_unseen.len(), 60),
        ] {
            assert!((max_rows / 2..=max_rows).contains(&n), "{n} of {max_rows}");
        }
        let sets = |rows: &[Trajectory]| -> BTreeSet<BTreeSet<String>> {
            let set = |row: &Trajectory| row.calls.iter().map(|call| call.name.clone()).collect();
            rows.iter().map(set).collect()
        };
        let tools = |rows: &[Trajectory]| -> BTreeSet<String> {
            units(rows, &catalogue, &[]).into_iter().flatten().collect()
        };
        let named_splits = splits.named_splits();
        for (split_idx, (_, rows)) in named_splits.iter().enumerate() {
            for (_, others) in &named_splits[split_idx + 1..] {
                assert!(sets(rows).is_disjoint(&sets(others)));
            }
        }
        let held_out: BTreeSet<String> = splits.held_out.iter().cloned().collect();
        assert!(!held_out.is_empty());
        for (_, rows) in &named_splits[..3] {
            assert!(tools(rows).is_disjoint(&held_out));
            assert!(tools(rows).is_subset(&tools(&splits.train)));
        }
        let named_splits = ["RoomKey".to_owned(), "ClockBox/Arrival Time".to_owned()];
        let by_name = split(rows, &catalogue, shares, &named_splits, 4);
        let is_held_out = |call: &TrajectoryCall| {
            call.name.starts_with("RoomKey/") || call.name == named_splits[1]
        };
        for (name, rows) in by_name.named_splits() {
            let mut unseen = rows.iter().map(|row| row.calls.iter().any(is_held_out));
            assert!(!rows.is_empty() && unseen.all(|unseen| unseen == (name == "test_unseen")));
        }
        let clock = |row: &Trajectory| {
            row.calls
                .iter()
                .any(|call| call.name.starts_with("ClockBox/"))
        };
        assert!(by_name.train.iter().any(clock));
        assert!(
            units(&splits.test_unseen, &catalogue, &[])
                .iter()
                .all(|row| !row.is_disjoint(&held_out))
        );
    }

    #[test]
    fn apis_are_held_out_if_all_belong_to_one_tool() {
        let row = |id: usize, name: &str| {
            let call = json!({"sub_query": "", "name": name, "arguments": {}, "output": 1});
            let row = json!({"id": id, "query": "q", "calls": [call], "response": "r"});
            Trajectory::try_from(row).expect("a row")
        };
        let rows = vec![row(1, "A"), row(2, "B"), row(3, "B"), row(4, "B")];
        let documents = ["A", "B"].map(|name| {
            let mut document = tooltune_apis::ApiDocument::new("", name);
            document.tool_name = String::new();
            document
        });
        let catalogue = ApiCatalogue::new(documents.to_vec()).expect("documents");
        let shares = SplitShares {
            dev: 0.5,
            test_seen: 0.0,
            test_unseen: 0.25,
        };
        let splits = split(rows, &catalogue, shares, &[], 1);
        assert_eq!(splits.held_out, ["A"]);
        // Without its only sub-graph, training would not contain B.
        assert_eq!((splits.train.len(), splits.dev.len()), (3, 0));
    }
}
