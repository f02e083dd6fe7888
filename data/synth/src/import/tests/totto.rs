//! Tests of ToTTo's tables.

use serde_json::json;

use super::*;
use crate::import::import_totto;

fn cell(value: &str, is_header: bool, spans: (usize, usize)) -> Value {
    let (column_span, row_span) = spans;
    json!({"value": value, "is_header": is_header, "column_span": column_span, "row_span": row_span})
}

fn header_cell(value: &str) -> Value {
    cell(value, true, (1, 1))
}

fn data_cell(value: &str) -> Value {
    cell(value, false, (1, 1))
}

fn table(rows: Value, highlighted: &[(usize, usize)], sentence: &str) -> Value {
    json!({
        "table": rows, "table_page_title": "Ida Brandt", "highlighted_cells": highlighted,
        "sentence_annotations": [{"final_sentence": sentence}, {"final_sentence": "Other."}],
    })
}

fn import_tables(tables: &[Value]) -> Imported {
    let folder = folder();
    let lines: String = tables.iter().map(|table| format!("{table}\n")).collect();
    import_totto(&write(folder.path(), "t.jsonl", &lines)).expect("imports")
}

#[test]
fn cells_in_the_sentence_become_values_of_their_headers() {
    let rows = json!([
        [
            header_cell("Year"),
            header_cell("Play"),
            header_cell("Seats")
        ],
        [
            cell("2015", false, (1, 2)),
            data_cell("The Twelve"),
            data_cell("7,230")
        ],
        [data_cell("Dawn"), data_cell("40")],
    ]);
    let sentence = "In 2015, Ida Brandt played The Twelve and Dawn before 40 people.";
    let all_cells = [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1)];
    let imported = import_tables(&[table(rows, &all_cells, sentence)]);
    let gold = json!({
        "page_title": "Ida Brandt", "Year": 2015, "Play": ["The Twelve", "Dawn"], "Seats": 40,
    });
    assert_eq!(row_texts(&imported), [(sentence, &gold)]);
    assert_eq!(
        skipped_counts(&imported.counts.left_out),
        [("a cell that is not in the sentence", 1)]
    );
}

#[test]
fn the_nearest_header_above_or_left_names_a_cell_across_spans() {
    let rows = json!([
        [cell("Race", true, (2, 1)), header_cell("Place")],
        [header_cell("Heat"), header_cell("Time"), data_cell("x")],
        [data_cell("3"), data_cell("53.08"), data_cell("4")],
        [header_cell("Best"), data_cell("51")],
        [data_cell("loose")],
    ]);
    let sentence = "Third heat 3, 53.08 and 4; best 51, loose.";
    let all_cells = [(2, 0), (2, 1), (2, 2), (3, 1), (4, 0)];
    let imported = import_tables(&[table(rows, &all_cells, sentence)]);
    let gold = json!({"Heat": 3, "Time": ["53.08", "51"], "Place": 4, "Best": "loose"});
    assert_eq!(row_texts(&imported), [(sentence, &gold)]);
}

#[test]
fn tables_without_cells_from_the_sentence_are_counted() {
    let rows = json!([
        [data_cell("4"), header_cell("H")],
        [data_cell("x"), data_cell("4")]
    ]);
    let result = import_tables(&[
        table(rows.clone(), &[(1, 1)], "There were 14 of them."),
        table(rows.clone(), &[(0, 0)], "There were 4 of them."),
        json!({"table": rows, "table_page_title": "T", "highlighted_cells": []}),
    ]);
    assert_eq!(result.rows, []);
    assert_eq!(
        skipped_counts(&result.counts.dropped),
        [
            ("no highlighted cell is in the sentence", 2),
            ("the table has no sentence", 1),
        ]
    );
    assert_eq!(
        skipped_counts(&result.counts.left_out),
        [
            ("a cell that is not in the sentence", 1),
            ("a cell without a header", 1)
        ]
    );
}

#[test]
fn a_cell_outside_the_table_and_a_foreign_line_are_errors() {
    let folder = folder();
    let huge = json!([
        [cell("a", true, (usize::MAX, usize::MAX))],
        [data_cell("a")]
    ]);
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
    assert_eq!(
        import_tables(&[table(huge, &[(1, 0)], "a")])
            .counts
            .n_entries,
        1
    );
}
