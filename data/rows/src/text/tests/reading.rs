//! Files of rows: formats, and errors with file, line and field.

use std::io::Write;
use tooltune_template::{ChatTemplate, GenerationPrompt, SpecialTokens, Turns};

use serde_json::json;
use tempfile::NamedTempFile;
use tooltune_json::json_schema::FormatRule;
use tooltune_json::lines::{FileLines, open_text};

use super::*;

pub(super) fn file(content: &[u8]) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(content).unwrap();
    file
}

fn read(content: &str, format: DataFormat) -> Vec<Result<Row, DataError>> {
    read_rows(file(content.as_bytes()).path(), format)
        .unwrap()
        .collect()
}

pub(super) fn only_row(content: &str, format: DataFormat) -> Row {
    let mut rows = read(content, format);
    assert_eq!(rows.len(), 1);
    rows.remove(0).unwrap()
}

/// The error of the only row, without the file name.
fn only_fault(content: &str, format: DataFormat) -> String {
    let mut rows = read(content, format);
    assert_eq!(rows.len(), 1);
    let error = rows.remove(0).unwrap_err();
    let DataError::At { id, .. } = &error else {
        panic!("{error} has no location")
    };
    assert!(id.ends_with(":1"), "{id}");
    error.fault().to_string()
}

pub(super) const SLOT: &str = r#"{"input_text": "Ann is 7.", "json_schema": {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name"]}, "gold": {"age": 7, "name": "Änn"}}"#;

#[test]
fn a_slot_row_has_the_prompt_of_the_paper_and_its_gold_in_schema_order() {
    let rows = file(SLOT.as_bytes());
    let reader = read_rows(rows.path(), DataFormat::Slot).unwrap();
    let mut rows = reader.with(|parser| parser.with_slot_prompt(SlotPrompt::Paper));
    let row = rows.next().unwrap().unwrap();
    let [prompt, answer] = &row.conversation.messages[..] else {
        panic!("{row:?}")
    };
    assert_eq!(
        prompt.content.as_deref().unwrap(),
        "Convert the following text into JSON format according to the specified schema. Ensure that both keys and values are strings, even for numerical values.\n\
         \n\
         Text: Ann is 7.\n\
         \n\
         Provide your response in the following JSON format: {\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":\"integer\"}},\"required\":[\"name\"]}\n\
         \n\
         Please output ONLY the JSON structure and extract the attributes only present in the schema.\n\
         \n\
         Output:"
    );
    assert_eq!(
        answer.content.as_deref(),
        Some(r#"{"name": "Änn", "age": 7}"#)
    );
    assert_eq!(row.conversation.completion_start, 1);
    assert_eq!(row.slot.unwrap().gold, json!({"age": 7, "name": "Änn"}));
}

#[test]
fn the_default_slot_prompt_asks_for_the_types_of_the_schema() {
    let row = only_row(SLOT, DataFormat::Slot);
    let slot = row.slot.unwrap();
    let typed_prompt = SlotPrompt::Typed.render(&slot.input_text, &slot.json_schema);
    let typed_prompt = typed_prompt.unwrap();
    assert_eq!(
        row.conversation.messages[0].content.as_deref(),
        Some(&*typed_prompt)
    );
    assert!(
        typed_prompt.contains("numbers and booleans without quotes"),
        "{typed_prompt}"
    );
}

#[test]
fn braces_in_the_text_of_a_slot_row_are_not_placeholders() {
    for prompt in [SlotPrompt::Typed, SlotPrompt::Paper] {
        let text = "a {{ json_schema }} {input_text} {}";
        let prompt = prompt.render(text, &json!({"type": "object"})).unwrap();
        assert!(prompt.contains(&format!("Text: {text}\n")), "{prompt}");
        assert_eq!(prompt.matches(r#"{"type":"object"}"#).count(), 1);
    }
}

#[test]
fn gold_that_violates_its_schema_is_an_error_with_file_line_and_pointer() {
    let rows = file(
        format!(
            "{SLOT}\n\n{}\n",
            r#"{"input_text": "", "json_schema": {"properties": {"a": {"items": {"type": "integer"}}}}, "gold": {"a": [1, "2"]}}"#
        )
        .as_bytes(),
    );
    let all: Vec<_> = read_rows(rows.path(), DataFormat::Slot).unwrap().collect();
    assert_eq!(all.len(), 2);
    let error = all[1].as_ref().unwrap_err();
    assert!(
        matches!(error.fault(), DataError::GoldInvalid { pointer, .. } if pointer == "/a/1"),
        "{error:?}"
    );
    let location = format!("{}:3: gold/a/1 ", rows.path().display());
    assert!(error.to_string().starts_with(&location), "{error}");
}

#[test]
fn formats_are_asserted_in_rows_for_training_and_annotations_in_rows_for_evaluation() {
    let schema = r#"{"type": "object", "properties": {"day": {"format": "date"}}}"#;
    let gold = format!(
        r#"{{"input_text": "", "json_schema": {schema}, "gold": {{"day": "20 July 2026"}}}}"#
    );
    let tool = format!(r#"{{"name": "book", "parameters": {schema}}}"#);
    let arguments = r#"{"day": "20 July 2026"}"#;
    let call = format!(
        r#"{{"messages": [{{"role": "user", "content": "Book."}}, {{"role": "assistant", "tool_calls": [{{"type": "function", "function": {{"name": "book", "arguments": {arguments}}}}}]}}], "tools": [{tool}]}}"#
    );
    for (row, format, location) in [
        (gold, DataFormat::Slot, ":1: gold/day "),
        (
            call,
            DataFormat::Messages,
            ":1: messages[1].tool_calls[0].arguments.day",
        ),
    ] {
        let rows = file(row.as_bytes());
        let read = || read_rows(rows.path(), format).unwrap();
        let message = read().next().unwrap().unwrap_err().to_string();
        for part in [
            location,
            "\"20 July 2026\" is not a \"date\" (formats are checked: write the value in this \
             format, or remove \"format\" from the schema)",
        ] {
            assert!(message.contains(part), "{message}");
        }
        let annotated = read().with(|parser| parser.with_formats(FormatRule::Annotated));
        assert!(annotated.into_iter().all(|row| row.is_ok()), "{location}");
    }
}

#[test]
fn an_error_in_a_long_reference_is_short() {
    let gold = "x".repeat(100_000);
    let row =
        format!(r#"{{"input_text": "", "json_schema": {{"type": "integer"}}, "gold": "{gold}"}}"#);
    assert!(only_fault(&row, DataFormat::Slot).len() < 400);
}

#[test]
fn an_invalid_schema_is_an_error() {
    for schema in [
        r#"{"type": "strin"}"#,
        r##"{"$ref": "#/$defs/nowhere"}"##,
        r#"{"$ref": "https://example.com/schema.json"}"#,
    ] {
        let row = format!(r#"{{"input_text": "", "json_schema": {schema}, "gold": 1}}"#);
        let fault = only_fault(&row, DataFormat::Slot);
        assert!(fault.contains("is not a usable JSON schema"), "{fault}");
    }
}

#[test]
fn missing_fields_and_wrong_types_name_the_field() {
    use DataFormat::{Messages, PromptCompletion, Slot};
    for (row, format, expected) in [
        (
            r#"{"input_text": "", "json_schema": {}}"#,
            Slot,
            "field \"gold\" is missing",
        ),
        (
            r#"{"json_schema": {}, "gold": 1}"#,
            Slot,
            "field \"input_text\" is missing",
        ),
        (
            r#"{"input_text": 1, "json_schema": {}, "gold": 1}"#,
            Slot,
            "input_text is a number",
        ),
        (
            r#"{"input_text": "", "json_schema": "{}", "gold": 1}"#,
            Slot,
            "json_schema is a string",
        ),
        (r#"1"#, Slot, "the line is a number"),
        (
            r#"{"prompt": "x"}"#,
            PromptCompletion,
            "field \"completion\" is missing",
        ),
        (
            r#"{"prompt": "x", "completion": null}"#,
            PromptCompletion,
            "completion is null",
        ),
        (
            r#"{"prompt": "x", "completion": [{"role": "user", "content": "y"}]}"#,
            PromptCompletion,
            "completion[0].role is user",
        ),
        (
            r#"{"dialogue": []}"#,
            Messages,
            "field \"messages\" is missing",
        ),
        (
            r#"{"messages": []}"#,
            Messages,
            "messages is an empty array",
        ),
        (r#"{"messages": {}}"#, Messages, "messages is an object"),
        (
            r#"{"messages": [{"role": "user"}]}"#,
            Messages,
            "field \"messages[0].content\" is missing",
        ),
        (
            r#"{"messages": [{"content": "x"}]}"#,
            Messages,
            "field \"messages[0].role\" is missing",
        ),
        (
            r#"{"messages": [{"role": "human", "content": "x"}]}"#,
            Messages,
            "messages[0].role is \"human\"",
        ),
        (
            r#"{"messages": [{"role": "user", "content": ["x"]}]}"#,
            Messages,
            "messages[0].content[0] is a string",
        ),
        (
            r#"{"messages": [{"role": "user", "content": "x", "tool_calls": [{"name": "f", "arguments": {}}]}]}"#,
            Messages,
            "messages[0].tool_calls is present",
        ),
        (
            r#"{"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": {}}}]}]}"#,
            Messages,
            "field \"messages[0].tool_calls[0].function.name\" is missing",
        ),
        (
            r#"{"messages": [{"role": "assistant", "tool_calls": [{"name": "f"}]}]}"#,
            Messages,
            "field \"messages[0].tool_calls[0].arguments\" is missing",
        ),
        (
            r#"{"messages": [{"role": "assistant", "tool_calls": [{"name": "f", "arguments": "{\"a\": }"}]}]}"#,
            Messages,
            "messages[0].tool_calls[0].arguments is a string that is not one JSON object",
        ),
        (
            r#"{"messages": [{"role": "assistant", "tool_calls": [{"name": "f", "arguments": "[1]"}]}]}"#,
            Messages,
            "(it is a list)",
        ),
        (
            r#"{"messages": [{"role": "user", "content": "x"}], "tools": {}}"#,
            Messages,
            "tools is an object",
        ),
    ] {
        let fault = only_fault(row, format);
        assert!(fault.contains(expected), "{row}: {fault}");
    }
}

#[test]
fn old_names_of_calls_and_tools_are_refused_with_the_new_ones() {
    use DataFormat::{Messages, PromptCompletion};
    let call = r#"{"name": "f", "arguments": "{}"}"#;
    for (row, format, expected) in [
        (
            format!(
                r#"{{"messages": [{{"role": "user", "content": "x"}}, {{"role": "assistant", "content": "", "function_call": {call}}}]}}"#
            ),
            Messages,
            "messages[1].function_call is an old field name that no template renders; write \
             tool_calls instead: [{\"name\": ..., \"arguments\": {...}}]",
        ),
        (
            format!(
                r#"{{"prompt": "x", "completion": [{{"role": "assistant", "content": null, "function_call": {call}}}]}}"#
            ),
            PromptCompletion,
            "completion[0].function_call is",
        ),
        (
            r#"{"messages": [{"role": "user", "content": "x"}], "functions": [{"name": "f"}]}"#
                .to_owned(),
            Messages,
            "functions is an old field name that no template renders; write tools instead: \
             [{\"type\": \"function\", \"function\": {...}}]",
        ),
    ] {
        let fault = only_fault(&row, format);
        assert!(fault.contains(expected), "{row}: {fault}");
    }
    let none = r#"{"messages": [{"role": "user", "content": "x", "function_call": null}], "functions": []}"#;
    only_row(none, Messages);
}

#[test]
fn arguments_given_as_a_string_become_an_object() {
    let as_text = only_row(
        r#"{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": null, "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"b\": 1, \"a\": [\"é\"]}"}}]}]}"#,
        DataFormat::Messages,
    );
    let as_object = only_row(
        r#"{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [{"id": "c1", "name": "f", "arguments": {"b": 1, "a": ["é"]}}]}]}"#,
        DataFormat::Messages,
    );
    assert_eq!(as_text.conversation, as_object.conversation);
}

#[test]
fn an_integer_beyond_64_bits_is_rejected_with_its_path() {
    use DataFormat::{Messages, Slot};
    let long = "12345678901234567890123";
    let slot = |gold: &str| {
        format!(r#"{{"input_text": "", "json_schema": {{}}, "gold": {gold}, "note": {long}}}"#)
    };
    let messages = |arguments: String| {
        format!(
            r#"{{"messages": [{{"role": "assistant", "tool_calls": [{{"name": "f", "arguments": {arguments}}}]}}]}}"#
        )
    };
    for (row, format, location) in [
        (slot(&format!(r#"{{"a": [0, {long}]}}"#)), Slot, "gold.a[1]"),
        (
            messages(format!(r#"{{"id": {long}}}"#)),
            Messages,
            "messages[0].tool_calls[0].arguments.id",
        ),
        (
            messages(format!(r#""{{\"id\": {long}}}""#)),
            Messages,
            "messages[0].tool_calls[0].arguments.id",
        ),
    ] {
        let fault = only_fault(&row, format);
        let expected = format!("{location} is the integer {long}, which does not fit into 64 bits");
        assert!(fault.starts_with(&expected), "{row}: {fault}");
    }
    // Numbers that are not rendered may be rounded.
    let row = only_row(&slot("[-0, 18446744073709551615]"), Slot);
    let answer = row.conversation.messages[1].content.as_deref();
    assert_eq!(answer, Some("[0, 18446744073709551615]"));
}

#[test]
fn prompt_and_completion_may_be_strings_or_messages() {
    let texts = only_row(
        r#"{"prompt": "x", "completion": "y"}"#,
        DataFormat::PromptCompletion,
    );
    let messages = only_row(
        r#"{"prompt": [{"role": "user", "content": "x"}], "completion": [{"role": "assistant", "content": "y"}]}"#,
        DataFormat::PromptCompletion,
    );
    assert_eq!(texts.conversation, messages.conversation);
    assert_eq!(texts.conversation.completion_start, 1);
}

#[test]
fn other_fields_of_a_message_reach_the_template() {
    let row = only_row(
        r#"{"messages": [{"role": "tool", "content": "x", "name": "f", "tool_call_id": "c"}], "tools": [], "note": 1}"#,
        DataFormat::Messages,
    );
    let source = "{{ messages[0].name }} {{ messages[0].tool_call_id }} {{ tools is none }}";
    let template = ChatTemplate::new(source, SpecialTokens::default()).unwrap();
    let text = template.render(&row.conversation, GenerationPrompt::Omit);
    assert_eq!(text.unwrap(), "f c True");
}

#[test]
fn malformed_json_names_the_line_and_the_column() {
    let rows = read(
        "{\"prompt\": \"x\", \"completion\": \"y\"}\n{\"prompt\": x}\n",
        DataFormat::PromptCompletion,
    );
    assert!(rows[0].is_ok());
    let error = rows[1].as_ref().unwrap_err().to_string();
    assert!(error.contains(":2: not valid JSON: column 12: "), "{error}");
}

#[test]
fn invalid_utf8_names_the_line_and_the_next_line_is_read() {
    let file = file(
        b"{\"prompt\": \"\xff\", \"completion\": \"\"}\n{\"prompt\": \"x\", \"completion\": \"y\"}",
    );
    let rows: Vec<_> = read_rows(file.path(), DataFormat::PromptCompletion)
        .unwrap()
        .collect();
    let error = rows[0].as_ref().unwrap_err().to_string();
    assert!(error.contains(":1: invalid UTF-8 at byte 12"), "{error}");
    assert!(rows[1].is_ok());
    assert_eq!(rows.len(), 2);
}

#[test]
fn a_file_without_rows_is_an_error_once() {
    for content in ["", "\n  \n", "\u{feff}"] {
        let rows = read(content, DataFormat::Messages);
        assert_eq!(rows.len(), 1);
        assert!(
            matches!(rows[0], Err(DataError::EmptyFile { .. })),
            "{rows:?}"
        );
    }
}

#[test]
fn a_missing_file_is_an_error_with_its_path() {
    let error = read_rows(Path::new("no/such.jsonl"), DataFormat::Slot).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("no/such.jsonl: cannot read: "),
        "{error}"
    );
}

#[test]
fn a_byte_order_mark_and_windows_line_ends_are_accepted() {
    let rows = read(
        "\u{feff}{\"prompt\": \"x\", \"completion\": \"y\"}\r\n\r\n",
        DataFormat::PromptCompletion,
    );
    assert_eq!(rows.len(), 1);
    assert!(rows[0].is_ok(), "{rows:?}");
}

#[test]
fn five_megabytes_in_one_line_are_read_and_rendered() {
    let words = "many words in one line ".repeat(5 * 1024 * 1024 / 23);
    let row = json!({"prompt": words, "completion": "y"}).to_string();
    let row = only_row(&row, DataFormat::PromptCompletion);
    let rendered = chatml().render_with_spans(&row.conversation, Turns::Completion);
    let rendered = rendered.unwrap();
    assert_eq!(&rendered.text[rendered.turns[0].start..], "y<|im_end|>\n");
}

#[test]
fn an_endless_word_gives_only_a_length_error() {
    let row = json!({"prompt": "ab".repeat(100_000), "completion": "y"}).to_string();
    let row = only_row(&row, DataFormat::PromptCompletion);
    let fault = fault(&row, &options(&tokenizer()));
    assert!(fault.contains("but max_length is 4096"), "{fault}");
}

#[test]
fn format_names_match_the_configuration() {
    for (format, name) in [
        (DataFormat::Slot, "slot"),
        (DataFormat::PromptCompletion, "prompt-completion"),
        (DataFormat::Messages, "messages"),
    ] {
        assert_eq!(serde_json::to_value(format).unwrap(), name);
        assert_eq!(
            serde_json::from_value::<DataFormat>(json!(name)).unwrap(),
            format
        );
    }
}

#[test]
fn an_endless_line_is_the_last_error() {
    let content = format!("{SLOT}\n{SLOT}{}\n{SLOT}\n", " ".repeat(5_000));
    let file = file(content.as_bytes());
    let mut lines = FileLines::new(file.path(), open_text(file.path()).unwrap());
    lines.max_line_bytes = 1_000;
    let rows: Vec<_> = RowReader::new(Box::new(lines), DataFormat::Slot).collect();
    assert_eq!(rows.len(), 2);
    assert!(rows[0].is_ok());
    let error = rows[1].as_ref().unwrap_err().to_string();
    let expected = ":2: the line has more than 1000 bytes, the limit; write one value";
    assert!(error.contains(expected), "{error}");
}

#[test]
fn duplicate_keys_are_rejected_at_every_level() {
    use DataFormat::{Messages, PromptCompletion, Slot};
    for (row, format, expected) in [
        (
            r#"{"prompt": "x", "completion": "y", "prompt": "z"}"#,
            PromptCompletion,
            "column 43: the key \"prompt\" occurs twice in one object; delete one of the two",
        ),
        (
            r#"{"messages": [{"role": "user", "content": "x", "role": "user"}]}"#,
            Messages,
            "the key \"role\" occurs twice",
        ),
        (
            r#"{"input_text": "", "json_schema": {}, "gold": {"a": {"b": 1, "b": 1}}}"#,
            Slot,
            "the key \"b\" occurs twice",
        ),
        (
            r#"{"messages": [{"role": "assistant", "tool_calls": [{"name": "f", "arguments": "{\"a\": 1, \"a\": 2}"}]}]}"#,
            Messages,
            "messages[0].tool_calls[0].arguments is a string that is not one JSON object (column 12: \
             the key \"a\" occurs twice",
        ),
    ] {
        let fault = only_fault(row, format);
        assert!(fault.contains(expected), "{row}: {fault}");
    }
}

#[test]
fn a_file_that_is_not_utf8_is_named_with_the_command_that_fixes_it() {
    let row = r#"{"prompt": "x", "completion": "y"}"#;
    let units: Vec<u16> = format!("\u{feff}{row}\n{row}\n").encode_utf16().collect();
    let little: Vec<u8> = units.iter().flat_map(|unit| unit.to_le_bytes()).collect();
    let big: Vec<u8> = units.iter().flat_map(|unit| unit.to_be_bytes()).collect();
    for (bytes, what, command) in [
        (little, "UTF-16", "`iconv -f UTF-16 -t UTF-8 "),
        (big, "UTF-16", "`iconv -f UTF-16 -t UTF-8 "),
    ] {
        let file = file(&bytes);
        let path = file.path().display();
        let rows: Vec<_> = read_rows(file.path(), DataFormat::PromptCompletion)
            .unwrap()
            .collect();
        assert_eq!(rows.len(), 1, "{rows:?}");
        let error = rows[0].as_ref().unwrap_err().to_string();
        let begins = format!("{path}: the file is {what}; ");
        assert!(error.starts_with(&begins), "{error}");
        let command = format!("{command}{path} > rows.jsonl` and pass the new file");
        assert!(error.ends_with(&command), "{error}");
    }
}
