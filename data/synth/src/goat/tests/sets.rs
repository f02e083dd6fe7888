//! Tests of whole data sets.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::super::partition;
use super::*;
use crate::slot::contains_token;

fn text(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

fn tools_of(rows: &[Trajectory]) -> BTreeSet<&str> {
    let calls = rows.iter().flat_map(|row| &row.calls);
    calls
        .map(|call| call.name.split('/').next().unwrap())
        .collect()
}

fn sequence(row: &Trajectory) -> String {
    partition::sequence(
        row.calls
            .iter()
            .map(|call| (&call.name[..], &call.arguments)),
    )
}

fn lines(rows: &[Trajectory]) -> String {
    let lines = rows.iter().map(|row| serde_json::to_string(row).unwrap());
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn equal_options_give_equal_bytes_and_smaller_sets_are_prefixes() {
    let rows = draw_rows(GoatSplit::Train, 60, 5);
    assert_eq!(lines(&rows), lines(&draw_rows(GoatSplit::Train, 60, 5)));
    assert_eq!(rows[..25], draw_rows(GoatSplit::Train, 25, 5));
    assert_ne!(rows[..25], draw_rows(GoatSplit::Train, 25, 6));
    let documents_twice = [documents(), documents()].map(|d| serde_json::to_string(&d).unwrap());
    assert_eq!(documents_twice[0], documents_twice[1]);
}

#[test]
fn splits_have_their_sizes_and_share_no_query_and_no_sequence() {
    let (mut queries, mut sequences) = (BTreeSet::new(), BTreeSet::new());
    for split in GoatSplit::ALL {
        assert_eq!(default_set(split).len(), split.default_rows());
    }
    for row in default_rows() {
        assert!(queries.insert(&row.query), "{}", row.query);
        assert!(sequences.insert(sequence(row)), "{}", row.query);
    }
}

/// A row's split depends only on the row, so the size and seed of a split do not matter.
#[test]
fn splits_of_any_seed_and_size_are_disjoint() {
    let train: BTreeSet<String> = default_set(GoatSplit::Train)
        .iter()
        .flat_map(|row| [row.query.clone(), sequence(row)])
        .collect();
    for split in [GoatSplit::Dev, GoatSplit::TestSeen, GoatSplit::TestUnseen] {
        for row in draw_rows(split, 150, 99) {
            assert!(!train.contains(&row.query) && !train.contains(&sequence(&row)));
        }
    }
}

#[test]
fn held_out_tools_are_called_in_every_unseen_row_and_in_no_other() {
    let held_out: BTreeSet<&str> = held_out_tools().into_iter().collect();
    for split in [GoatSplit::Train, GoatSplit::Dev, GoatSplit::TestSeen] {
        assert!(
            tools_of(default_set(split)).is_disjoint(&held_out),
            "{split:?}"
        );
    }
    let unseen = default_set(GoatSplit::TestUnseen);
    for row in unseen {
        let tools = tools_of(std::slice::from_ref(row));
        assert!(!tools.is_disjoint(&held_out), "{}", row.query);
    }
    assert!(held_out.is_subset(&tools_of(unseen)));
}

#[test]
fn the_seen_test_has_only_api_sets_of_training() {
    let subgraphs = |rows: &'static [Trajectory]| -> BTreeSet<&Vec<String>> {
        rows.iter().map(|row| &row.subgraph).collect()
    };
    let train = subgraphs(default_set(GoatSplit::Train));
    assert!(subgraphs(default_set(GoatSplit::TestSeen)).is_subset(&train));
    assert!(subgraphs(default_set(GoatSplit::Dev)).is_subset(&train));
    // A training set with as many rows as the test set covers nearly all of its API sets.
    let small_set: BTreeSet<&Vec<String>> = default_set(GoatSplit::Train)[..300]
        .iter()
        .map(|row| &row.subgraph)
        .collect();
    let tested = default_set(GoatSplit::TestSeen).iter();
    let n_met = tested
        .filter(|row| small_set.contains(&row.subgraph))
        .count();
    assert!(n_met >= 270, "{n_met}");
}

#[test]
fn every_value_without_an_origin_is_in_the_query() {
    let mut n_fixed = 0;
    for row in default_rows() {
        for call in &row.calls {
            for (name, value) in &call.arguments {
                if !call.derived.contains_key(name) {
                    assert!(contains_token(&row.query, &text(value)), "{row:#?}");
                    n_fixed += 1;
                }
            }
        }
    }
    assert!(n_fixed > 3_700, "{n_fixed}");
}

/// The value at `path` of an output, selected by `pick`.
fn pick_value(output: &Value, path: &str, pick: &str) -> Value {
    let Some((list, column)) = path.split_once("[].") else {
        return output[path].clone();
    };
    let rows = output[list].as_array().unwrap();
    let number = |row: &Value, by: &str| row[by].as_f64().unwrap();
    let row = match pick.split_once(':') {
        None if pick == "first" => rows.first(),
        None => rows.last(),
        Some(("min", by)) => rows
            .iter()
            .min_by(|a, b| number(a, by).total_cmp(&number(b, by))),
        Some((_, by)) => rows
            .iter()
            .max_by(|a, b| number(a, by).total_cmp(&number(b, by))),
    };
    row.unwrap()[column].clone()
}

#[test]
fn derived_arguments_equal_the_value_at_their_path() {
    let mut picks: BTreeMap<String, usize> = BTreeMap::new();
    for row in default_rows() {
        for (i, call) in row.calls.iter().enumerate() {
            for (name, derived_origin) in &call.derived {
                assert!(derived_origin.call < i, "{row:#?}");
                let origin = &row.calls[derived_origin.call].output;
                let value = pick_value(origin, &derived_origin.path, &derived_origin.pick);
                assert_eq!(value, call.arguments[name], "{row:#?}");
                let kind = derived_origin.pick.split(':').next().unwrap();
                *picks.entry(kind.to_owned()).or_default() += 1;
            }
        }
    }
    assert!(
        ["first", "last", "max", "min"]
            .iter()
            .all(|pick| picks[*pick] > 30),
        "{picks:?}"
    );
}

#[test]
fn a_choice_with_a_tie_or_without_alternatives_is_refused() {
    use super::super::api::By;
    use super::super::binding::choose_row;
    let rows = |values: &[i64]| -> Vec<Value> {
        values.iter().map(|v| serde_json::json!({"v": v})).collect()
    };
    let (min, max) = (|| By::Min("v".to_owned()), || By::Max("v".to_owned()));
    for (values, by, expected) in [
        (&[3, 1, 2][..], min(), Some(1)),
        (&[3, 1, 2], max(), Some(3)),
        (&[3, 1, 2], By::First, Some(3)),
        (&[3, 1, 2], By::Last, Some(2)),
        (&[3, 1, 3], max(), None),
        (&[3, 1, 3], min(), Some(1)),
        (&[3], By::First, None),
        (&[3], min(), None),
        (&[], By::Last, None),
    ] {
        let rows = rows(values);
        let value = choose_row(&by, &rows).map(|row| row["v"].as_i64().unwrap());
        assert_eq!(value, expected, "{values:?} {by:?}");
    }
}

#[test]
fn every_row_has_facts_and_its_response_states_them() {
    for row in default_rows() {
        assert!(!row.facts.is_empty());
        for fact in &row.facts {
            assert!(contains_token(&row.response, fact), "{row:#?}");
        }
        let outputs: String = row
            .calls
            .iter()
            .map(|call| call.output.to_string())
            .collect();
        assert!(
            row.facts.iter().all(|fact| outputs.contains(fact)),
            "{row:#?}"
        );
    }
}

#[test]
fn rows_are_short_enough_for_a_small_model() {
    for row in default_rows() {
        assert!((1..=3).contains(&row.calls.len()));
        assert!(row.query.split_whitespace().count() <= 40, "{}", row.query);
        assert!(
            row.calls
                .iter()
                .all(|call| call.output.to_string().len() <= 320)
        );
        let plain = |text: &str| !text.contains(['{', '}', '[', ']']);
        assert!(plain(&row.query) && plain(&row.response));
        assert!(row.calls.iter().all(|call| plain(&call.sub_query)));
    }
}

#[test]
fn only_last_calls_have_optional_arguments() {
    let documents = documents();
    let mut n_optional = 0;
    let mut n_possible = 0;
    for row in default_set(GoatSplit::Train) {
        for (i, call) in row.calls.iter().enumerate() {
            let document = documents
                .iter()
                .find(|d| d.call_name() == call.name)
                .unwrap();
            let later = row.calls.iter().flat_map(|call| call.derived.values());
            let is_sink = !later.clone().any(|origin| origin.call == i);
            for parameter in &document.optional_parameters {
                let is_set = call.arguments.contains_key(&parameter.name);
                assert!(is_sink || !is_set, "{row:#?}");
                n_possible += usize::from(is_sink);
                n_optional += usize::from(is_set);
            }
        }
    }
    let percent = n_optional * 100 / n_possible;
    assert!((12..=30).contains(&percent), "{n_optional} of {n_possible}");
}

#[test]
fn wordings_vary() {
    let train = default_set(GoatSplit::Train);
    let beginnings: BTreeSet<String> = train
        .iter()
        .map(|row| {
            row.query
                .split_whitespace()
                .take(2)
                .collect::<Vec<_>>()
                .join(" ")
        })
        .collect();
    assert!(beginnings.len() >= 60, "{}", beginnings.len());
    let n_questions = train.iter().filter(|row| row.query.contains('?')).count();
    assert!((600..2_400).contains(&n_questions), "{n_questions}");
}

/// Ambiguous wording would be noise that a model cannot learn.
#[test]
fn each_wording_belongs_to_one_set_of_apis() {
    let mut meanings: BTreeMap<String, &Vec<String>> = BTreeMap::new();
    for row in default_rows() {
        let mut wording = row.query.clone();
        for call in &row.calls {
            for (name, value) in &call.arguments {
                if !call.derived.contains_key(name) {
                    wording = wording.replacen(&text(value), "@", 1);
                }
            }
        }
        let first_meaning = meanings.entry(wording).or_insert(&row.subgraph);
        assert_eq!(*first_meaning, &row.subgraph, "{}", row.query);
    }
    assert!(meanings.len() > 2_500, "{}", meanings.len());
}

/// Invalid rows are rejected, so the tests above can rely on the check.
#[test]
fn texts_without_a_value_or_a_fact_are_refused() {
    use super::super::{binding, check::check, language, rows};
    let executor = GoatExecutor::new();
    let mut random = tooltune_rows::batches::SeededRandom::new(8, 8);
    let mut n_checked = 0;
    for set in rows::sets_of(&executor, 2, GoatSplit::Train) {
        let Ok(calls) = binding::draw_calls(&executor, &set, &mut random) else {
            continue;
        };
        let texts = language::write_texts(executor.catalogue(), &calls, &mut random);
        if check(&calls, &texts).is_err() {
            continue;
        }
        let is_refused = |change: fn(&mut language::RowTexts)| {
            let mut is_refused = texts.clone();
            change(&mut is_refused);
            check(&calls, &is_refused).is_err()
        };
        assert!(is_refused(|texts| texts.query = "Tell me more.".to_owned()));
        assert!(is_refused(|texts| texts.response = "Done.".to_owned()));
        assert!(is_refused(|texts| texts
            .facts
            .push("no such fact".to_owned())));
        assert!(is_refused(|texts| texts.query += &" please".repeat(40)));
        assert!(is_refused(|texts| texts.response += &" indeed".repeat(60)));
        n_checked += 1;
    }
    assert!(n_checked > 30, "{n_checked}");
}

#[test]
fn statistics_count_rows_calls_tools_and_pairs() {
    let train = default_set(GoatSplit::Train);
    let train_statistics = statistics(train);
    assert_eq!(train_statistics.n_rows, 3_000);
    assert_eq!(train_statistics.n_by_calls.values().sum::<usize>(), 3_000);
    assert_eq!(
        train_statistics
            .n_by_calls
            .keys()
            .copied()
            .collect::<Vec<_>>(),
        [1, 2, 3]
    );
    let n_calls: usize = train_statistics
        .n_by_calls
        .iter()
        .map(|(calls, rows)| calls * rows)
        .sum();
    assert_eq!(
        train_statistics.n_pairs, n_calls,
        "each API is called once per row"
    );
    assert!((train_statistics.mean_calls - n_calls as f64 / 3_000.0).abs() < 1e-12);
    assert!(
        train_statistics.n_tools >= 9 && train_statistics.n_apis >= 50,
        "{train_statistics:?}"
    );
    assert!(train_statistics.n_single_tool > 500 && train_statistics.n_single_tool < 2_900);
    assert!(train_statistics.n_derived > 2_000);
    assert_eq!(statistics(&[]).mean_calls, 0.0);
}

#[test]
fn rows_with_four_calls_are_generated_on_request() {
    let options = GoatSynthOptions {
        rows: 120,
        max_calls: 4,
        ..GoatSynthOptions::new(GoatSplit::Train, 3)
    };
    let statistics_of_four = statistics(&generate(&options).unwrap());
    assert!(
        statistics_of_four.n_by_calls[&4] >= 15,
        "{statistics_of_four:?}"
    );
    for max_calls in [0, 5] {
        let error = generate(&GoatSynthOptions {
            max_calls,
            ..options
        });
        assert_eq!(error, Err(GoatSynthError::MaxCalls(max_calls)));
    }
}

#[test]
fn requesting_too_many_rows_is_an_error_with_the_available_number() {
    let options = |rows| GoatSynthOptions {
        rows,
        max_calls: 1,
        ..GoatSynthOptions::new(GoatSplit::TestUnseen, 3)
    };
    let error = generate(&options(100_000)).unwrap_err();
    let GoatSynthError::TooMany { found, .. } = error else {
        panic!("{error}");
    };
    assert!(found > 20);
    assert_eq!(generate(&options(found)).unwrap().len(), found);
    assert!(generate(&options(found + 1)).is_err());
}
