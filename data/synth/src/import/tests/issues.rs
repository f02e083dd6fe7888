//! Tests of issues and forms.

use serde_json::json;

use super::*;
use crate::import::{FormFieldKind, IssueForm, import_issues};

const FORM: &str = "
name: Leak report
description: For pumps.
body:
  - type: markdown
    attributes:
      value: Thanks!
  - type: input
    id: site
    attributes:
      label: Site
  - type: textarea
    attributes:
      label: What happened (in short)?
      description: Say it.
    validations:
      required: true
  - type: dropdown
    attributes:
      label: Parts
      multiple: true
      options: [Valve, 7, \"no\"]
  - type: checkboxes
    attributes:
      label: Checks
      options:
        - label: I drained it
          required: true
        - label: I drained it (twice)
";

const BODY: &str = "### Site\r\n\r\nPlant 4\r\n\r\n### What happened (in short)?\r\n\r\nIt leaked.\r\n\r\n\
    ### Site\r\nnot a field again\r\n\r\n### Parts\r\n\r\nValve, 7\r\n\r\n### Checks\r\n\r\n\
    - [X] I drained it\r\n- [ ] I drained it (twice)\r\n";

#[test]
fn a_filled_form_becomes_its_answers() {
    let folder = folder();
    let form_path = write(folder.path(), "form.yml", FORM);
    let issue = json!({"title": "Leak", "body": BODY, "pull_request": null});
    let issues = write(folder.path(), "issues.json", &json!([issue]).to_string());
    let imported = import_issues(&form_path, &issues).expect("imports");
    let gold = json!({
        "issue_title": "Leak",
        "site": "Plant 4",
        "what_happened": "It leaked.\n\n### Site\nnot a field again",
        "parts": ["Valve", "7"],
        "checks": {"i_drained_it": true, "i_drained_it_2": false},
    });
    let text = format!("## Leak\n\n{}", BODY.replace("\r\n", "\n"));
    assert_eq!(row_texts(&imported), [(text.as_str(), &gold)]);
    assert!(imported.counts.left_out.is_empty());
}

#[test]
fn issues_that_do_not_follow_the_form_are_counted() {
    let folder = folder();
    let form_path = write(folder.path(), "form.yml", FORM);
    let issues = [
        json!({"title": "a", "body": "It leaks."}),
        json!({"title": "b", "body": "Hello\n\n### Site\n\nx"}),
        json!({"title": "c", "body": null}),
        json!({"title": "d", "body": BODY, "pull_request": {"url": "u"}}),
        json!({"title": "e", "body": "### Site\n\n_No response_\n"}),
        json!({"title": "f", "body": "### Parts\n\nValve\n\n### Checks\n\n- [x] other\n"}),
    ];
    let lines: String = issues.iter().map(|issue| format!("{issue}\n")).collect();
    let path = write(folder.path(), "issues.jsonl", &lines);
    let imported = import_issues(&form_path, &path).expect("imports");
    let gold = json!({"issue_title": "f", "parts": ["Valve"]});
    assert_eq!(
        row_texts(&imported)
            .into_iter()
            .map(|(_, gold)| gold)
            .collect::<Vec<_>>(),
        [&gold]
    );
    assert_eq!(
        skipped_counts(&imported.counts.dropped),
        [
            ("it is a pull request", 1),
            ("no field of the form is answered", 1),
            ("the text does not follow the form", 3),
        ]
    );
    assert_eq!(
        skipped_counts(&imported.counts.left_out),
        [("a field without an answer", 3)]
    );
}

#[test]
fn the_fields_of_a_form_have_distinct_keys() {
    let folder = folder();
    let issue_form = IssueForm::read(&write(folder.path(), "form.yml", FORM)).expect("a form");
    let keys: Vec<&str> = issue_form
        .fields
        .iter()
        .map(|field| field.key.as_str())
        .collect();
    assert_eq!(keys, ["site", "what_happened", "parts", "checks"]);
    assert_eq!(issue_form.fields[0].kind, FormFieldKind::Text);
    assert_eq!(issue_form.fields[2].kind, FormFieldKind::Choices);
}

#[test]
fn an_invalid_form_or_issue_is_an_error() {
    let folder = folder();
    for (text, reason) in [
        ("name: x", "body"),
        ("body: []", "has no fields"),
        ("body: [{type: input}]", "has no label"),
        (
            "body: [{type: slider, attributes: {label: l}}]",
            "unknown field type",
        ),
        (
            "body: [{type: checkboxes, attributes: {label: l}}]",
            "no options",
        ),
        ("body: [", ""),
    ] {
        let path = write(folder.path(), "form.yml", text);
        let message = IssueForm::read(&path).expect_err(text).to_string();
        assert!(
            message.contains("form.yml: ") && message.contains(reason),
            "{message}"
        );
    }
    let form_path = write(folder.path(), "form.yml", FORM);
    for text in ["[1]", "[{\"body\": \"b\"}]"] {
        let issues = write(folder.path(), "issues.json", text);
        let message = import_issues(&form_path, &issues)
            .expect_err(text)
            .to_string();
        assert!(message.contains("issues.json[0]: it "), "{message}");
    }
}
