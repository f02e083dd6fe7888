//! Tests of WebNLG's XML.

use serde_json::json;

use super::*;
use crate::import::import_webnlg;

fn entry(category: &str, triples: &[&str], texts: &str) -> String {
    let triples: String = triples
        .iter()
        .map(|triple| format!("<mtriple>{triple}</mtriple>"))
        .collect();
    format!(
        "<entry category=\"{category}\" eid=\"1\"><originaltripleset><otriple>a | b | c</otriple>\
         </originaltripleset><modifiedtripleset>{triples}</modifiedtripleset>{texts}</entry>"
    )
}

fn file(entries: &[String]) -> String {
    format!(
        "<benchmark><entries>\n{}\n</entries></benchmark>",
        entries.join("\n")
    )
}

#[test]
fn an_entry_becomes_its_first_good_text_and_its_triple_objects() {
    let folder = folder();
    let first_entry = entry(
        "Bridge",
        &[
            "Old_Weir | river | Ems",
            "Ems | mouth | \"North Sea\"",
            "Old_Weir | builder | Ada_&amp;_Sons",
            "Old_Weir | builder | Kurt_Ohm",
        ],
        "<lex comment=\"bad\">No.</lex><lex comment=\"good\">The Old Weir &lt;1&gt; spans the Ems.</lex>",
    );
    let second = entry(
        "Bridge",
        &["Pier_9 | length | 12.0"],
        "<lex comment=\"\">Pier 9 is 12 m long.</lex><lex>Second.</lex>",
    );
    write(folder.path(), "2triples/B.xml", &file(&[second]));
    write(folder.path(), "1triples/A.xml", &file(&[first_entry]));
    write(folder.path(), "notes.txt", "not read");
    let imported = import_webnlg(&[folder.path().to_owned()]).expect("imports");
    let expected = json!({"category": "Bridge", "subject": "Old Weir", "properties": {
        "river": "Ems", "mouth": "North Sea", "builder": ["Ada & Sons", "Kurt Ohm"],
    }});
    let other =
        json!({"category": "Bridge", "subject": "Pier 9", "properties": {"length": "12.0"}});
    assert_eq!(
        row_texts(&imported),
        [
            ("The Old Weir <1> spans the Ems.", &expected),
            ("Pier 9 is 12 m long.", &other),
        ]
    );
    let schema = &imported.rows[0].json_schema;
    assert_eq!(
        schema["properties"]["properties"],
        json!({
            "type": "object",
            "properties": {
                "river": {"type": "string"},
                "mouth": {"type": "string"},
                "builder": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["river", "mouth", "builder"],
            "additionalProperties": false,
        })
    );
    assert!(
        imported.rows[0].id.ends_with("A.xml:2"),
        "{}",
        imported.rows[0].id
    );
}

#[test]
fn entries_without_text_or_triples_are_counted() {
    let folder = folder();
    let entries = [
        entry("A", &["a | b | c"], ""),
        entry("A", &[], "<lex comment=\"good\">Text.</lex>"),
        entry("A", &["a | b | c"], "<lex comment=\"good\">Text.</lex>"),
    ];
    let path = write(folder.path(), "t.xml", &file(&entries));
    let imported = import_webnlg(&[path]).expect("imports");
    assert_eq!(imported.counts.n_entries, 3);
    assert_eq!(imported.rows.len(), 1);
    assert_eq!(
        skipped_counts(&imported.counts.dropped),
        [
            ("the entry has no text", 1),
            ("the entry has no triples", 1)
        ]
    );
}

#[test]
fn a_malformed_file_is_an_error_with_its_location() {
    let folder = folder();
    let message = |text: &str| {
        let path = write(folder.path(), "x.xml", text);
        import_webnlg(&[path]).expect_err("malformed").to_string()
    };
    let lex = "<lex comment=\"good\">T.</lex>";
    let triple = message(&file(&[
        entry("A", &["a | b | c"], lex),
        entry("A", &["a | b"], lex),
    ]));
    assert!(
        triple.contains("x.xml:3: \"a | b\" is not a triple"),
        "{triple}"
    );
    assert!(message("<a><entry></a>").contains("x.xml: "));
    assert!(message(&file(&["<entry/>".to_owned()])).contains("has no category"));
    // An entity bomb and extreme nesting are rejected or parsed without recursion.
    message("<!DOCTYPE a [<!ENTITY b \"&c;\"><!ENTITY c \"&b;\">]><a>&b;</a>");
    message(&"<a>".repeat(100_000));
    let empty = tempfile::tempdir().expect("a folder");
    let no_files = import_webnlg(&[empty.path().to_owned()]).expect_err("no files");
    assert!(no_files.to_string().contains("no .xml file"), "{no_files}");
}
