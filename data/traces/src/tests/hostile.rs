//! Broken, large and malicious files.

use std::time::Instant;

use serde_json::{Value, json};

use super::{count, import, import_with, lines};
use crate::budgets::SESSION_BRANCHES;
use crate::{TraceOptions, TraceSource};

const GOOD: &str =
    r#"{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}]}"#;

/// Imports bytes; the message of the error, if it is one.
fn import_bytes(bytes: &[u8]) -> Result<(Vec<Value>, crate::TraceReport), String> {
    import_with(&[("t.jsonl", bytes)], &TraceOptions::default()).map_err(|error| error.to_string())
}

#[test]
fn broken_lines_are_counted_and_the_others_read() {
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let file = [
        GOOD.as_bytes(),
        b"\n{\"messages\": [{\"role\": \"user\"\n",
        b"{\"messages\": [], \"messages\": []}\n",
        b"{\"messages\": \"\xff\xfe\"}\n",
        format!("{{\"messages\": {deep}}}\n").as_bytes(),
        b"{\"messages\": [], \"n\": 123456789012345678901234567890}\n",
        b"7\n\"x\"\nnull\n{}\n",
    ]
    .concat();
    let (rows, report) = import_bytes(&file).expect("imported");
    assert_eq!((rows.len(), report.n_entries), (1, 10));
    for (reason, expected) in [
        ("not JSON, or is cut off", (1, "t.jsonl:2")),
        ("a key twice", (1, "t.jsonl:3")),
        ("not UTF-8", (1, "t.jsonl:4")),
        ("nested deeper than 127", (1, "t.jsonl:5")),
        ("beyond 64 bits", (1, "t.jsonl:6")),
    ] {
        assert_eq!(count(&report.dropped, reason), Some(expected), "{reason}");
    }
    assert_eq!(
        count(&report.left_out, "without messages"),
        Some((4, "t.jsonl:7"))
    );
}

#[test]
fn a_first_line_that_is_cut_off_does_not_hide_the_others() {
    let (rows, report) = import(&format!("{{\"messages\": [\n{GOOD}\n"));
    assert_eq!(rows.len(), 1);
    assert_eq!(count(&report.dropped, "cut off"), Some((1, "t.jsonl:1")));
}

#[test]
fn files_without_traces_are_errors() {
    for (bytes, part) in [
        (&b"{\"a\": 1}\n"[..], "t.jsonl:1"),
        (b"", "no entry has a known layout"),
        (b"[]", "no entry has a known layout"),
        (b"question,answer\n1,2\n", "is CSV"),
        (b"[{\"a\": 1}", "has no end"),
        (b"\x1f\x8bxx", "cannot read"),
        (b"\xff\xfe{\0", "UTF-16"),
    ] {
        let message = import_bytes(bytes).expect_err("refused");
        assert!(message.contains(part), "{bytes:?}: {message}");
    }
    let none = import_with(&[], &TraceOptions::default()).expect_err("no file");
    assert!(
        none.to_string().contains("name the layout with --source"),
        "{none}"
    );
}

#[test]
fn compressed_files_are_read() {
    use std::io::Write;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    let pretty = serde_json::to_string_pretty(&serde_json::from_str::<Value>(GOOD).expect("JSON"));
    encoder
        .write_all(pretty.expect("JSON").as_bytes())
        .expect("written");
    let document = encoder.finish().expect("written");
    assert_eq!(import_bytes(&document).expect("imported").0.len(), 1);
}

#[test]
fn every_layout_survives_every_shape() {
    let shapes = [
        json!(null),
        json!(1),
        json!("x"),
        json!([]),
        json!({}),
        json!([[]]),
        json!([{}]),
        json!([null]),
        json!({"role": 1}),
        json!({"role": "user"}),
        json!([{"role": "assistant", "content": [{}]}]),
        json!([{"type": "tool_result"}]),
        json!({"values": [1, {"key": 1, "value": {}}]}),
    ];
    let names = [
        "resourceSpans",
        "resourceLogs",
        "messages",
        "choices",
        "request",
        "response",
        "custom_id",
        "body",
        "data",
        "object",
        "type",
        "payload",
        "message",
        "uuid",
        "parentUuid",
        "values",
        "content",
        "tools",
    ];
    let mut entries = Vec::new();
    for name in names {
        for other in names {
            for shape in &shapes {
                entries.push(json!({name: shape, other: "user"}));
                entries.push(json!({other: "assistant", name: shape, "message": shape}));
                entries.push(json!({"type": "response_item", name: shape, "payload": {"type": "message", "role": "user", name: shape}}));
                entries.push(json!({"resourceSpans": [{"scopeSpans": [{"spans": [{name: shape, "events": shape,
                    "attributes": [{"key": "gen_ai.input.messages", "value": {"stringValue": shape.to_string()}}]}]}]}]}));
            }
        }
    }
    let file = lines(&entries);
    let sources = [
        None,
        Some(TraceSource::Otlp),
        Some(TraceSource::Requests),
        Some(TraceSource::ClaudeCode),
        Some(TraceSource::Codex),
        Some(TraceSource::Langchain),
    ];
    for source in sources {
        let options = TraceOptions {
            source,
            ..TraceOptions::default()
        };
        let (_, report) = import_with(&[("t", file.as_bytes())], &options).expect("imported");
        assert_eq!(report.n_entries, entries.len(), "{source:?}");
    }
}

#[test]
fn sessions_with_many_branches_and_broken_parents_end() {
    let line = |uuid: String, parent: &str, kind: &str, text: &str| {
        json!({"type": kind, "uuid": uuid, "parentUuid": parent, "sessionId": "s",
            "message": {"role": kind, "content": [{"type": "text", "text": text}]}})
    };
    let mut all = vec![line("root".to_owned(), "root", "user", "Hi")];
    for n in 0..SESSION_BRANCHES + 5 {
        all.push(line(format!("b{n}"), "root", "assistant", &n.to_string()));
    }
    // A parent that comes later, and none at all.
    all.push(line("x".to_owned(), "y", "user", "?"));
    all.push(line("y".to_owned(), "x", "assistant", "!"));
    let (rows, report) = import(&lines(&all));
    assert_eq!(rows.len(), SESSION_BRANCHES);
    assert_eq!(
        count(&report.left_out, "SESSION_BRANCHES"),
        Some((6, "t.jsonl:102"))
    );
}

#[test]
fn redaction_of_long_strings_takes_linear_time() {
    let patterns = [
        "-----BEGIN PRIVATE KEY-----",
        "a@",
        "a@a.",
        "eyJaaaaaaaa.",
        "password=",
        "+1 2 ",
        "4111 ",
        "/home/",
        "DE89 3704 ",
        "bearer ",
        "http://a:",
        "1.1.1.",
        "a:",
        "sk-",
        "secret'",
        "(030) ",
    ];
    for part in patterns {
        let time = |n_bytes: usize| {
            let text = part.repeat(n_bytes / part.len());
            let entry = json!({"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "Yes"}]});
            let file = lines(&[entry]);
            let options = TraceOptions {
                also: vec!["ipv4".to_owned(), "ipv6".to_owned()],
                ..TraceOptions::default()
            };
            let start = Instant::now();
            import_with(&[("t", file.as_bytes())], &options).expect("imported");
            start.elapsed().as_secs_f64()
        };
        let (short, long) = (time(20_000), time(200_000));
        // Quadratic time would be a factor of 100.
        assert!(
            long < 40.0 * short.max(0.02),
            "{part:?}: {short} s, {long} s"
        );
    }
}

#[test]
fn wide_attribute_names_stay_bounded() {
    let attributes: Vec<Value> = (0..20_000)
        .map(|n| json!({"key": format!("gen_ai.prompt.{n}.{}", "a.".repeat(n % 40)), "value": {"intValue": "1"}}))
        .collect();
    let spans = json!({"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "t", "attributes": attributes}]}]}]});
    let (rows, report) = import(&lines(&[spans]));
    assert!(rows.is_empty());
    assert_eq!(report.n_conversations, 1, "{report:?}");
}
