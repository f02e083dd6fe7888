//! Rows in, splits out that share no sub-graph: one for training, one for choosing a checkpoint, one
//! on the tools of training, and one whose every row calls a tool that no other split calls.

use std::collections::{BTreeMap, BTreeSet};

use tooltune_rows::batches::SeededRandom;
use tooltune_rows::tools::{ApiCatalogue, Trajectory};

/// Stream of the draws; other uses of a seed have streams of their own.
const SPLIT_STREAM: u64 = 0x676F_6174_6C6D_0002;

/// How many of all rows the splits beside that of training may have, from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SplitShares {
    /// For choosing a checkpoint.
    pub dev: f64,
    /// On the tools of training.
    pub test_seen: f64,
    /// On tools of its own.
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
    /// To learn from.
    pub train: Vec<Trajectory>,
    /// To choose a checkpoint by.
    pub dev: Vec<Trajectory>,
    /// To report, on the tools of training.
    pub test_seen: Vec<Trajectory>,
    /// To report, each row with a tool of `held_out`.
    pub test_unseen: Vec<Trajectory>,
    /// The tools that `test_unseen` alone calls; APIs, where all are of one tool.
    pub held_out: Vec<String>,
}

impl Splits {
    /// The splits by their names.
    pub fn named(&self) -> [(&'static str, &[Trajectory]); 4] {
        [
            ("train", &self.train),
            ("dev", &self.dev),
            ("test_seen", &self.test_seen),
            ("test_unseen", &self.test_unseen),
        ]
    }
}

/// Parts rows, each into one split; a function of the rows, the shares and the seed.
///
/// A split has at most its share. The tools of `hold_out` are held out whatever their rows are; where
/// there are none, tools are held out one after the other while their rows fit. A sub-graph is held
/// out as a whole, and only where training keeps a row with each of its tools.
pub fn split(
    rows: Vec<Trajectory>,
    catalogue: &ApiCatalogue,
    shares: SplitShares,
    hold_out: &[String],
    seed: u64,
) -> Splits {
    let mut random = SeededRandom::new(seed, SPLIT_STREAM);
    let most = |share: f64| (share * rows.len() as f64).floor() as usize;
    let (n_dev, n_seen, n_unseen) = (
        most(shares.dev),
        most(shares.test_seen),
        most(shares.test_unseen),
    );
    let units: Vec<BTreeSet<String>> = units(&rows, catalogue, hold_out);
    let held_out = match hold_out {
        [] => held_out(&units, n_unseen, &mut random),
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
        let is_known_without = units.iter().all(|unit| n_groups[unit] > 1);
        let fits = |split: &[Trajectory], most: usize| split.len() + group.len() <= most;
        let split = if is_known_without && fits(&splits.dev, n_dev) {
            &mut splits.dev
        } else if is_known_without && fits(&splits.test_seen, n_seen) {
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

/// The tools that each row calls; the APIs, where all rows are of one tool. An API that is held out by
/// its own name stands for itself.
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
    let of_row = |row: &Trajectory| -> BTreeSet<String> {
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
    rows.iter().map(of_row).collect()
}

/// Units in an order of chance, each that fits beside those before it.
fn held_out(
    units: &[BTreeSet<String>],
    most: usize,
    random: &mut SeededRandom,
) -> BTreeSet<String> {
    let all: BTreeSet<&String> = units.iter().flatten().collect();
    let mut order: Vec<&String> = all.into_iter().collect();
    random.shuffle(&mut order);
    let mut held_out: BTreeSet<String> = BTreeSet::new();
    let mut n_taken = 0;
    for unit in order {
        let is_taken = |row: &BTreeSet<String>| row.iter().any(|unit| held_out.contains(unit));
        let new = units
            .iter()
            .filter(|row| row.contains(unit) && !is_taken(row));
        let n_new = new.count();
        if n_new > 0 && n_taken + n_new <= most {
            n_taken += n_new;
            held_out.insert(unit.clone());
        }
    }
    held_out
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tooltune_rows::tools::TrajectoryCall;
    use tooltune_synth::goat::{self, GoatSplit, GoatSynthOptions};

    use super::*;

    #[test]
    fn splits_share_no_sub_graph_and_unseen_tools_are_nowhere_else() {
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
        let n_rows: usize = splits.named().iter().map(|(_, rows)| rows.len()).sum();
        assert_eq!(n_rows, 600);
        for (n, most) in [
            (splits.dev.len(), 30),
            (splits.test_seen.len(), 60),
            (splits.test_unseen.len(), 60),
        ] {
            assert!((most / 2..=most).contains(&n), "{n} of {most}");
        }
        let sets = |rows: &[Trajectory]| -> BTreeSet<BTreeSet<String>> {
            let set = |row: &Trajectory| row.calls.iter().map(|call| call.name.clone()).collect();
            rows.iter().map(set).collect()
        };
        let tools = |rows: &[Trajectory]| -> BTreeSet<String> {
            units(rows, &catalogue, &[]).into_iter().flatten().collect()
        };
        let named = splits.named();
        for (at, (_, rows)) in named.iter().enumerate() {
            for (_, others) in &named[at + 1..] {
                assert!(sets(rows).is_disjoint(&sets(others)));
            }
        }
        let held_out: BTreeSet<String> = splits.held_out.iter().cloned().collect();
        assert!(!held_out.is_empty());
        for (_, rows) in &named[..3] {
            assert!(tools(rows).is_disjoint(&held_out));
            assert!(tools(rows).is_subset(&tools(&splits.train)));
        }
        let named = ["RoomKey".to_owned(), "ClockBox/Arrival Time".to_owned()];
        let by_name = split(rows, &catalogue, shares, &named, 4);
        let is_held_out =
            |call: &TrajectoryCall| call.name.starts_with("RoomKey/") || call.name == named[1];
        for (name, rows) in by_name.named() {
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
    fn apis_are_held_out_where_all_are_of_one_tool() {
        let row = |id: usize, name: &str| {
            let call = json!({"sub_query": "", "name": name, "arguments": {}, "output": 1});
            let row = json!({"id": id, "query": "q", "calls": [call], "response": "r"});
            Trajectory::try_from(row).expect("a row")
        };
        let rows = vec![row(1, "A"), row(2, "B"), row(3, "B"), row(4, "B")];
        let documents = ["A", "B"].map(|name| {
            let mut document = tooltune_rows::tools::ApiDocument::new("", name);
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
        // Without its only sub-graph training would not know B.
        assert_eq!((splits.train.len(), splits.dev.len()), (3, 0));
    }
}
