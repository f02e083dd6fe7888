//! ToTTo's tables.

use serde_json::json;

use super::*;
use crate::import::import_totto;

fn cell(value: &str, is_header: bool, spans: (usize, usize)) -> Value {
    let (column_span, row_span) = spans;
    json!({"value": value, "is_header": is_header, "column_span": column_span, "row_span": row_span})
}

fn head(value: &str) -> Value {
    cell(value, true, (1, 1))
}

fn data(value: &str) -> Value {
    cell(value, false, (1, 1))
}

fn table(rows: Value, highlighted: &[(usize, usize)], sentence: &str) -> Value {
    json!({
        "table": rows, "table_page_title": "Ida Brandt", "highlighted_cells": highlighted,
        "sentence_annotations": [{"final_sentence": sentence}, {"final_sentence": "Other."}],
    })
}

fn imported(tables: &[Value]) -> Imported {
    let folder = folder();
    let lines: String = tables.iter().map(|table| format!("{table}\n")).collect();
    import_totto(&write(folder.path(), "t.jsonl", &lines)).expect("imports")
}

#[test]
fn cells_that_the_sentence_says_stand_under_their_headers() {
    let rows = json!([
        [head("Year"), head("Play"), head("Seats")],
        [
            cell("2015", false, (1, 2)),
            data("The Twelve"),
            data("7,230")
        ],
        [data("Dawn"), data("40")],
    ]);
    let sentence = "In 2015, Ida Brandt played The Twelve and Dawn before 40 people.";
    let all = [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1)];
    let imported = imported(&[table(rows, &all, sentence)]);
    let gold = json!({
        "page_title": "Ida Brandt", "Year": 2015, "Play": ["The Twelve", "Dawn"], "Seats": 40,
    });
    assert_eq!(shown(&imported), [(sentence, &gold)]);
    assert_eq!(
        counted(&imported.counts.left_out),
        [("a cell that is not in the sentence", 1)]
    );
}

#[test]
fn the_nearest_header_speaks_for_a_cell_across_spans_and_to_its_left() {
    let rows = json!([
        [cell("Race", true, (2, 1)), head("Place")],
        [head("Heat"), head("Time"), data("x")],
        [data("3"), data("53.08"), data("4")],
        [head("Best"), data("51")],
        [data("loose")],
    ]);
    let sentence = "Third heat 3, 53.08 and 4; best 51, loose.";
    let all = [(2, 0), (2, 1), (2, 2), (3, 1), (4, 0)];
    let imported = imported(&[table(rows, &all, sentence)]);
    let gold = json!({"Heat": 3, "Time": ["53.08", "51"], "Place": 4, "Best": "loose"});
    assert_eq!(shown(&imported), [(sentence, &gold)]);
}

#[test]
fn tables_without_certain_cells_are_counted() {
    let rows = json!([[data("4"), head("H")], [data("x"), data("4")]]);
    let found = imported(&[
        table(rows.clone(), &[(1, 1)], "There were 14 of them."),
        table(rows.clone(), &[(0, 0)], "There were 4 of them."),
        json!({"table": rows, "table_page_title": "T", "highlighted_cells": []}),
    ]);
    assert_eq!(found.rows, []);
    assert_eq!(
        counted(&found.counts.dropped),
        [
            ("no highlighted cell is in the sentence", 2),
            ("the table has no sentence", 1),
        ]
    );
    assert_eq!(
        counted(&found.counts.left_out),
        [
            ("a cell that is not in the sentence", 1),
            ("a cell without a header", 1)
        ]
    );
}

#[test]
fn a_cell_outside_the_table_and_a_foreign_line_are_errors() {
    let folder = folder();
    let huge = json!([[cell("a", true, (usize::MAX, usize::MAX))], [data("a")]]);
    for (line, reason) in [
        (
            table(json!([]), &[(0, 7)], "S."),
            "[0, 7] is not in the table",
        ),
        (json!({"table": 1}), "invalid type"),
    ] {
        let path = write(folder.path(), "t.jsonl", &line.to_string());
        let message = import_totto(&path).expect_err("malformed").to_string();
        assert!(
            message.contains("t.jsonl:1: ") && message.contains(reason),
            "{message}"
        );
    }
    assert_eq!(imported(&[table(huge, &[(1, 0)], "a")]).counts.n_entries, 1);
}
