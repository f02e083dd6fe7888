//! Tests of E2E's CSV files.

use serde_json::json;

use super::*;
use crate::import::{E2eRows, import_e2e};

const CLEANED: &str = "\u{feff}mr,ref,fixed,orig_mr\r\n\
    \"name[Café Ohm], eatType[pub], customer rating[5 out of 5]\",\"Café Ohm, a pub, has \"\"5\"\" stars.\",0,x\r\n\
    \"name[Café Ohm], eatType[pub], customer rating[5 out of 5]\",Café Ohm is a pub.,0,x\r\n\
    \"name[Dock 4], near[]\",Dock 4.,1,x\r\n";

#[test]
fn every_line_becomes_a_row_with_its_attributes_in_order() {
    let folder = folder();
    let path = write(folder.path(), "c.csv", CLEANED);
    let imported = import_e2e(&path, E2eRows::Every).expect("imports");
    let gold = json!({"name": "Café Ohm", "eatType": "pub", "customer rating": "5 out of 5"});
    let short = json!({"name": "Dock 4", "near": ""});
    assert_eq!(
        row_texts(&imported),
        [
            ("Café Ohm, a pub, has \"5\" stars.", &gold),
            ("Café Ohm is a pub.", &gold),
            ("Dock 4.", &short),
        ]
    );
    let keys: Vec<&String> = imported.rows[0]
        .gold
        .as_object()
        .expect("an object")
        .keys()
        .collect();
    assert_eq!(keys, ["name", "eatType", "customer rating"]);
    assert_eq!(imported.counts.n_entries, 3);
    assert!(
        imported.rows[2].id.ends_with("c.csv:4"),
        "{}",
        imported.rows[2].id
    );
}

#[test]
fn one_per_meaning_keeps_first_texts_and_mentioned_keeps_complete_ones() {
    let folder = folder();
    let path = write(folder.path(), "c.csv", CLEANED);
    let per_meaning = import_e2e(&path, E2eRows::OnePerMeaning).expect("imports");
    assert_eq!(per_meaning.rows.len(), 2);
    assert_eq!(
        skipped_counts(&per_meaning.counts.dropped),
        [("the meaning representation already had a text", 1)]
    );
    let mentioned = import_e2e(&path, E2eRows::Mentioned).expect("imports");
    let texts: Vec<&str> = row_texts(&mentioned)
        .into_iter()
        .map(|(text, _)| text)
        .collect();
    assert_eq!(texts, ["Café Ohm, a pub, has \"5\" stars.", "Dock 4."]);
    assert_eq!(
        skipped_counts(&mentioned.counts.dropped),
        [("an attribute is not mentioned in the text", 1)]
    );
}

#[test]
fn paraphrased_attributes_are_recognised() {
    let folder = folder();
    let meaning = "name[Ohm], priceRange[cheap], familyFriendly[no]";
    let rows = [
        ("Ohm is AFFORDABLE and no place for children.", true),
        ("Ohm costs £9 and welcomes kids.", true),
        ("Ohm is cheap.", false),
        ("Families love Ohm.", false),
    ];
    let lines: String = rows
        .iter()
        .map(|(text, _)| format!("\"{meaning}\",{text}\n"))
        .collect();
    let path = write(folder.path(), "m.csv", &format!("mr,ref\n{lines}"));
    let imported = import_e2e(&path, E2eRows::Mentioned).expect("imports");
    let texts: Vec<&str> = row_texts(&imported)
        .into_iter()
        .map(|(text, _)| text)
        .collect();
    let kept_texts: Vec<&str> = rows.iter().filter(|row| row.1).map(|row| row.0).collect();
    assert_eq!(texts, kept_texts);
}

#[test]
fn malformed_meanings_are_counted_and_malformed_files_are_errors() {
    let folder = folder();
    let meanings = ["name", "name[a", "[a]", "name[a] x[b]", "name[a[b]]", ""];
    let lines: String = meanings
        .iter()
        .map(|meaning| format!("\"{meaning}\",Text.\n"))
        .collect();
    let text = format!("mr,ref\n{lines}\"name[a]\",\n");
    let imported = import_e2e(&write(folder.path(), "m.csv", &text), E2eRows::Every);
    let imported = imported.expect("imports");
    assert_eq!(imported.rows, []);
    assert_eq!(
        skipped_counts(&imported.counts.dropped),
        [
            ("the meaning representation is empty", 1),
            ("the meaning representation is malformed", 5),
            ("the text is empty", 1),
        ]
    );
    for (text, reason) in [
        ("MR\n\"name[a]\"\n", "no column mr"),
        ("mr\n\"name[a]\"\n", "no column ref"),
        ("mr,ref\n\"name[a]\"\n", "1 fields"),
    ] {
        let path = write(folder.path(), "x.csv", text);
        let message = import_e2e(&path, E2eRows::Every)
            .expect_err(text)
            .to_string();
        assert!(message.contains(reason), "{message}");
    }
}

#[test]
fn the_last_value_of_a_repeated_attribute_is_used() {
    let folder = folder();
    let text = "mr,ref\n\"area[north], name[Ohm], area[south]\",Ohm is in the south.\n";
    let imported = import_e2e(&write(folder.path(), "t.csv", text), E2eRows::Every);
    let imported = imported.expect("imports");
    let gold = json!({"area": "south", "name": "Ohm"});
    assert_eq!(row_texts(&imported), [("Ohm is in the south.", &gold)]);
    assert_eq!(
        skipped_counts(&imported.counts.left_out),
        [("a repeated attribute in its meaning representation", 1)]
    );
}
