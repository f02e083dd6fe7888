//! Tests of the benchmark features: different values, held-out tools, and human verdicts.

use std::collections::BTreeSet;

use serde_json::json;
use tooltune_apis::read_checked_trajectories;
use tooltune_json::faults::collect_rows;

use super::*;

impl Work {
    fn run_with_options(
        &self,
        options: GoatOptions,
        out: &str,
    ) -> Result<GoatOutcome, PipelineError> {
        self.run_with(options, out, usize::MAX, Limits::default(), None)
    }

    fn rows(&self, file: &str) -> Vec<Trajectory> {
        let path = self.dir.path().join(file);
        let catalogue = ApiCatalogue::read(&self.options().documents).unwrap();
        collect_rows(read_checked_trajectories(&path, &catalogue).unwrap()).unwrap()
    }
}

fn apis(row: &Trajectory) -> Vec<&str> {
    row.calls.iter().map(|call| call.name.as_str()).collect()
}

#[test]
fn rows_are_regenerated_from_the_same_sub_graphs_with_other_values() {
    let work = Work::new();
    work.run_all("run");
    let redo_options = GoatOptions {
        seen_from: Some(work.dir.path().join("run")),
        rows: 25,
        seed: 8,
        ..work.options()
    };
    let plans = GoatPipeline::read(redo_options.clone(), None).unwrap();
    let plans = plans
        .plan(&work.dir.path().join("seen"), &work.model)
        .unwrap();
    assert!(
        plans
            .iter()
            .all(|plan| plan.stage != PARSE && plan.stage != EXECUTE)
    );
    let outcome = work.run_with_options(redo_options.clone(), "seen").unwrap();
    let calls = outcome.report.stage(CALLS).unwrap();
    let bound = plans.iter().find(|plan| plan.stage == CALLS).unwrap();
    assert!(calls.requests.n_replies <= bound.n_requests + calls.requests.n_asked_again);
    assert!(outcome.report.stage(PARSE).is_none());

    let (training_rows, redone) = (
        work.rows("run/train.jsonl"),
        work.rows("seen/test_seen.jsonl"),
    );
    assert!(redone.len() > 10, "{:?}", outcome.report);
    assert_eq!(outcome.data_set.unwrap().splits.test_seen, redone);
    let queries: BTreeSet<&String> = training_rows.iter().map(|row| &row.query).collect();
    for row in &redone {
        let earlier = training_rows
            .iter()
            .find(|earlier| earlier.id == row.id)
            .unwrap();
        assert_eq!(apis(row), apis(earlier));
        let arguments = |row: &Trajectory| -> Vec<_> {
            row.calls
                .iter()
                .map(|call| call.arguments.clone())
                .collect()
        };
        assert_ne!(arguments(row), arguments(earlier));
        assert!(!queries.contains(&row.query));
    }
    let (files, n_asked) = (work.files("seen"), work.model.n_asked.get());
    work.run_with_options(redo_options, "seen").unwrap();
    assert_eq!(
        (work.files("seen"), work.model.n_asked.get()),
        (files, n_asked)
    );

    let seen_options = GoatOptions {
        seen_from: Some(work.dir.path().join("seen")),
        ..work.options()
    };
    let message = work
        .run_with_options(seen_options, "third")
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("not a completed run of `data goat`"),
        "{message}"
    );
}

#[test]
fn listed_tools_are_held_out_and_global_functions_get_api_results() {
    let work = Work::new();
    let options = GoatOptions {
        hold_out: vec!["RoomKey".to_owned()],
        ..work.options()
    };
    let data_set = work
        .run_with_options(options.clone(), "held")
        .unwrap()
        .data_set
        .unwrap();
    let is_unseen = |row: &Trajectory| apis(row).iter().any(|api| api.starts_with("RoomKey/"));
    for (name, rows) in data_set.splits.named_splits() {
        assert!(!rows.is_empty(), "{name}");
        assert!(
            rows.iter()
                .all(|row| is_unseen(row) == (name == "test_unseen")),
            "{name}"
        );
    }
    for (hold_out, expected) in [
        (vec!["RoomKye".to_owned()], "unknown tool or API"),
        (
            work.names.iter().cloned().collect(),
            "leaves none for training",
        ),
    ] {
        let options = GoatOptions {
            hold_out,
            ..options.clone()
        };
        let message = GoatPipeline::read(options, None).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }

    let options = GoatOptions {
        has_global_functions: true,
        ..work.options()
    };
    let pipeline = GoatPipeline::read(options, None).unwrap();
    let n_apis = work.names.len();
    assert_eq!(pipeline.catalogue().len(), n_apis + 2);
    assert!(pipeline.catalogue().get("global/compare").is_some());
}

#[test]
fn a_review_keeps_accepted_rows_and_edits_only_texts() {
    let work = Work::new();
    work.run_all("run");
    let catalogue = ApiCatalogue::read(&work.options().documents).unwrap();
    let rows = work.rows("run/train.jsonl");
    let path = work.dir.path().join("review.jsonl");
    let apply = |lines: &[Value]| {
        let lines: Vec<String> = lines.iter().map(Value::to_string).collect();
        std::fs::write(&path, lines.join("\n")).unwrap();
        apply_review(rows.clone(), &catalogue, &path)
    };
    let mut lines: Vec<Value> = review_lines(&rows).iter().map(|line| json!(line)).collect();
    let untouched = apply(&lines).unwrap();
    assert_eq!(
        (untouched.rows.len(), untouched.n_without_verdict),
        (0, rows.len())
    );

    for line in &mut lines {
        line["verdict"] = json!("accept");
    }
    lines[0]["verdict"] = json!("reject");
    lines[0]["reason"] = json!("unrealistic request");
    // A query that states a value of an earlier output removes the argument's origin.
    let row_idx = rows
        .iter()
        .position(|row| {
            row.id != rows[0].id && row.calls.iter().any(|call| !call.derived.is_empty())
        })
        .unwrap();
    let origins = rows[row_idx]
        .calls
        .iter()
        .find(|call| !call.derived.is_empty())
        .unwrap();
    let parameter = origins.derived.keys().next().unwrap();
    let value = &origins.arguments[parameter];
    lines[row_idx]["verdict"] = json!("edit");
    lines[row_idx]["query"] = json!(format!(
        "What about {}?",
        value.as_str().map_or(value.to_string(), str::to_owned)
    ));
    let reviewed = apply(&lines).unwrap();
    assert_eq!(
        (reviewed.n_accepted, reviewed.n_edited),
        (rows.len() - 2, 1)
    );
    assert_eq!(reviewed.rejected["unrealistic request"], 1);
    let edited = reviewed
        .rows
        .iter()
        .find(|row| row.id == rows[row_idx].id)
        .unwrap();
    let call = edited
        .calls
        .iter()
        .find(|call| call.arguments == origins.arguments);
    assert!(!call.unwrap().derived.contains_key(parameter));
    assert!(edited.query.starts_with("What about"));
    assert_eq!(reviewed.rows.len(), rows.len() - 1);

    let id = &rows[0].id;
    let calls = json!(["RoomKey/Find Inn {}"]);
    for (line, expected) in [
        (
            json!({"id": id, "verdict": "keep"}),
            "\"keep\"; use \"accept\"",
        ),
        (
            json!({"id": "other", "verdict": "accept"}),
            "no row has the id",
        ),
        (
            json!({"id": id, "verdict": "edit"}),
            "but nothing is changed",
        ),
        (
            json!({"id": id, "verdict": "accept", "query": "Else?"}),
            "use \"edit\"",
        ),
        (
            json!({"id": id, "verdict": "edit", "query": " "}),
            "is empty",
        ),
        (
            json!({"id": id, "verdict": "edit", "sub_queries": []}),
            "0 sub_queries",
        ),
        (
            json!({"id": id, "verdict": "edit", "calls": calls}),
            "the calls of",
        ),
        (
            json!({"id": id, "verdikt": "accept"}),
            "unknown field `verdikt`",
        ),
    ] {
        let message = apply(&[line]).unwrap_err().to_string();
        assert!(
            message.contains(expected) && message.contains("review.jsonl:1"),
            "{message}"
        );
    }
    let duplicate = json!({"id": id, "verdict": "accept"});
    let message = apply(&[duplicate.clone(), duplicate])
        .unwrap_err()
        .to_string();
    assert!(message.contains("reviews the same row"), "{message}");
}
