//! Compares rows in other programs' formats with those programs, and tests rejected rows.

use std::fs;
use tooltune_template::{ChatTemplate, GenerationPrompt, SpecialTokens};

use serde_json::json;

use super::reading::{file, only_row};
use super::*;

fn folder() -> PathBuf {
    fixtures().join("rows")
}

fn read_json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn template(name: &str) -> ChatTemplate {
    let folder = fixtures().join("chat_templates");
    let tokens = &read_json(&folder.join("cases.json"))["special_tokens"][name];
    let token = |field: &str| tokens[field].as_str().map(str::to_owned);
    let special = SpecialTokens {
        bos_token: token("bos_token"),
        eos_token: token("eos_token"),
        ..SpecialTokens::default()
    };
    let source = fs::read_to_string(folder.join(format!("templates/{name}.jinja"))).unwrap();
    ChatTemplate::new(&source, special).unwrap()
}

fn read(row: &Value, format: DataFormat) -> Result<Row, String> {
    let file = file(format!("{row}\n").as_bytes());
    let row = read_rows(file.path(), format).unwrap().next().unwrap();
    row.map_err(|error| error.fault().to_string())
}

fn recognise_row(row: &Value) -> Result<&'static str, String> {
    let file = file(format!("\n{row}\n").as_bytes());
    match recognise_file(file.path()) {
        Ok(recognised) => {
            assert_eq!(recognised.place, format!("{}:2", file.path().display()));
            Ok(recognised.format.as_str())
        }
        Err(error) => {
            let location = format!("{}:2: ", file.path().display());
            Err(error.to_string().replace(&location, ""))
        }
    }
}

/// Compares with LLaMA-Factory's and TRL's converters and transformers' renderer.
///
/// Invariant: Rows in other trainers' formats render as in those trainers, and unread fields are
/// counted.
#[test]
fn rows_of_other_programs_render_as_those_programs_render_them() {
    let expected = read_json(&folder().join("expected.json"));
    let mut n_texts = 0;
    for (name, format) in [
        ("sharegpt", DataFormat::ShareGpt),
        ("alpaca", DataFormat::Alpaca),
        ("trl-sharegpt", DataFormat::ShareGpt),
        ("tools-text", DataFormat::Messages),
        ("parts", DataFormat::Messages),
    ] {
        let path = folder().join(format!("{name}.jsonl"));
        let recognised = recognise_file(&path).unwrap();
        assert_eq!(recognised.format, RecognisedFormat::Rows(format), "{name}");
        let rows: Vec<Row> = read_rows(&path, format)
            .unwrap()
            .map(Result::unwrap)
            .collect();
        for (template_name, texts) in expected[name].as_object().unwrap() {
            let template = template(template_name);
            let texts = texts.as_array().unwrap();
            assert_eq!(rows.len(), texts.len(), "{name}");
            for (row, text) in rows.iter().zip(texts) {
                let rendered = template.render(&row.conversation, GenerationPrompt::Omit);
                assert_eq!(
                    rendered.ok().as_deref(),
                    text.as_str(),
                    "{template_name}, {}",
                    row.id
                );
                n_texts += 1;
            }
        }
    }
    assert_eq!(n_texts, 30);
}

/// Compares schemas with transformers' `get_json_schema`.
#[test]
fn python_types_are_the_schemas_of_transformers() {
    let types = read_json(&folder().join("types.json"));
    let types = types.as_object().unwrap();
    assert!(types.len() > 20);
    for (hint, schema) in types {
        let row = xlam(json!({"x": {"type": hint}}), json!({"x": null}));
        let conversation = read_unchecked(&row).conversation;
        let parameters = &conversation.tools.unwrap()[0]["function"]["parameters"];
        let mut expected = schema.clone();
        // Types of a union are in hint order here, but sorted by name in transformers.
        let sorted = |schema: &mut Value| {
            if let Some(Value::Array(types)) = schema.get_mut("type") {
                types.sort_by_key(Value::to_string);
            }
        };
        let mut converted = parameters["properties"]["x"].clone();
        for schema in [&mut expected, &mut converted] {
            sorted(schema);
            for inner in ["items", "additionalProperties"] {
                if let Some(inner) = schema.get_mut(inner) {
                    sorted(inner);
                    if let Some(inner) = inner.get_mut("additionalProperties") {
                        sorted(inner);
                    }
                }
            }
        }
        assert_eq!(converted, expected, "{hint}");
    }
}

fn read_unchecked(row: &Value) -> Row {
    let file = file(format!("{row}\n").as_bytes());
    let mut rows = read_rows(file.path(), DataFormat::Xlam)
        .unwrap()
        .with(RowParser::with_unchecked_calls);
    rows.next().unwrap().unwrap()
}

fn xlam(parameters: Value, arguments: Value) -> Value {
    let tools = json!([{"name": "f", "description": "Does f.", "parameters": parameters}]);
    let answers = json!([{"name": "f", "arguments": arguments}]);
    json!({"id": 3, "metadata": {"by": "hand"}, "query": "Do f.", "tools": tools.to_string(),
        "answers": answers.to_string()})
}

/// Invariant: Rows in other trainers' formats render as in those trainers, and unread fields are
/// counted.
#[test]
fn xlam_parameters_become_a_schema_with_required_and_optional_keys() {
    let parameters = json!({
        "harbour": {"description": "Name", "type": "str"},
        "tide": {"type": "str, optional", "description": "low or high", "default": "high"},
        "days": {"type": "List[int]", "description": "Which days", "default": [1]},
        "depth": {"type": "Optional[float]", "description": "In metres"},
        "scale": {"type": "Callable[[float], float]", "description": "Any"},
    });
    let row = xlam(
        parameters,
        json!({"harbour": "Northcove", "scale": "x", "depth": null}),
    );
    let file = file(format!("{row}\n{row}\n").as_bytes());
    let mut reader = read_rows(file.path(), DataFormat::Xlam).unwrap();
    let conversation = reader.next().unwrap().unwrap().conversation;
    let schema = json!({
        "type": "object",
        "properties": {
            "harbour": {"description": "Name", "type": "string"},
            "tide": {"type": "string", "description": "low or high", "default": "high"},
            "days": {"type": "array", "items": {"type": "integer"}, "description": "Which days",
                "default": [1]},
            "depth": {"type": ["number", "null"], "description": "In metres"},
            "scale": {"description": "Any"},
        },
        "required": ["harbour", "scale"],
    });
    let tool = json!({"type": "function", "function":
        {"name": "f", "description": "Does f.", "parameters": schema}});
    // Compares as text, because templates render keys in order.
    assert_eq!(conversation.tools.unwrap()[0].to_string(), tool.to_string());
    assert_eq!(conversation.completion_start, 1);
    let [question, answer] = &conversation.messages[..] else {
        panic!("{:?}", conversation.messages)
    };
    assert_eq!(question.content.as_deref(), Some("Do f."));
    assert_eq!(answer.tool_calls[0].arguments["harbour"], "Northcove");
    reader.next().unwrap().unwrap();
    let location = format!("{}:1", file.path().display());
    assert_eq!(
        reader.notes().lines(),
        [
            format!("the field \"id\" of 2 rows, such as {location}, is not read"),
            format!(
                "the parameter type \"Callable[[float], float]\" in 2 rows, such as {location}, is \
                 unknown: such \
                 parameters accept any value"
            ),
        ]
    );
}

#[test]
fn calls_of_every_format_are_checked_and_errors_have_their_field() {
    let tools = json!([{"name": "f", "parameters": {"type": "object",
        "properties": {"n": {"type": "integer"}}, "required": ["n"]}}]);
    let call = |arguments: Value| json!({"name": "f", "arguments": arguments}).to_string();
    let sharegpt = |value: String| {
        json!({"conversations": [{"from": "human", "value": "Go"},
            {"from": "function_call", "value": value}], "tools": tools.to_string()})
    };
    let schema = json!({"n": {"type": "int", "description": "How many"}});
    for (row, format, expected) in [
        (
            sharegpt(call(json!({"n": "x"}))),
            DataFormat::ShareGpt,
            "conversations[1].value[0].arguments.n",
        ),
        (
            sharegpt(call(json!({"m": 1}))),
            DataFormat::ShareGpt,
            "conversations[1].value[0].arguments",
        ),
        (
            sharegpt("f(1)".to_owned()),
            DataFormat::ShareGpt,
            "conversations[1].value is a string that is not one JSON value",
        ),
        (
            sharegpt("[]".to_owned()),
            DataFormat::ShareGpt,
            "conversations[1].value is an empty list",
        ),
        (
            xlam(schema.clone(), json!({"n": "x"})),
            DataFormat::Xlam,
            "answers[0].arguments.n",
        ),
        (
            xlam(schema.clone(), json!([1])),
            DataFormat::Xlam,
            "answers[0].arguments is a list",
        ),
        (
            json!({"query": "Go", "tools": "[]", "answers": "[]"}),
            DataFormat::Xlam,
            "answers is an empty list",
        ),
        (
            json!({"query": "Go", "tools": "[]", "answers":
                "[{\"name\": \"f\", \"arguments\": {\"n\": 12345678901234567890123}}]"}),
            DataFormat::Xlam,
            "answers[0].arguments.n is the integer 12345678901234567890123",
        ),
        (
            json!({"query": "Go", "tools": "[{\"name\": \"f\", \"name\": \"g\"}]", "answers": "[]"}),
            DataFormat::Xlam,
            "tools is a string that is not one JSON value (column 21: the key \"name\" occurs twice",
        ),
    ] {
        let fault = read(&row, format).unwrap_err();
        assert!(fault.starts_with(expected), "{row}: {fault}");
    }
    read(&sharegpt(call(json!({"n": 1}))), DataFormat::ShareGpt).unwrap();
}

#[test]
fn tools_may_be_a_string_or_a_list_of_strings() {
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {}}});
    let row = |tools: Value| {
        json!({"messages": [{"role": "user", "content": "Go"},
            {"role": "assistant", "content": "No."}], "tools": tools})
    };
    for tools in [
        json!([tool]),
        json!(json!([tool]).to_string()),
        json!([tool.to_string()]),
        json!(json!([tool.to_string()]).to_string()),
    ] {
        let conversation = read(&row(tools), DataFormat::Messages)
            .unwrap()
            .conversation;
        assert_eq!(conversation.tools, Some(vec![tool.clone()]));
    }
    for none in [
        json!(null),
        json!(""),
        json!("null"),
        json!("[]"),
        json!([]),
    ] {
        let conversation = read(&row(none), DataFormat::Messages).unwrap().conversation;
        assert_eq!(conversation.tools, None);
    }
    for (tools, expected) in [
        (
            json!("harbour_depth"),
            "tools is a string that is not one JSON value",
        ),
        (
            json!("{}"),
            "tools is an object, but must be a list of objects",
        ),
        (json!([3]), "tools[0] is a number, but must be an object"),
        (
            json!(["f"]),
            "tools[0] is a string that is not one JSON value",
        ),
    ] {
        let fault = read(&row(tools), DataFormat::Messages).unwrap_err();
        assert!(fault.starts_with(expected), "{fault}");
    }
}

#[test]
fn parts_of_a_content_are_text_or_an_error_that_names_the_type() {
    let row = |content: Value| {
        json!({"messages": [{"role": "user", "content": content},
            {"role": "assistant", "content": "7."}]})
    };
    let text = |text: &str| json!({"type": "text", "text": text});
    let two = read(&row(json!([text("a"), text("b")])), DataFormat::Messages).unwrap();
    assert_eq!(
        two.conversation.messages[0].content.as_deref(),
        Some("a\nb")
    );
    for (content, expected) in [
        (
            json!([text("a"), {"type": "image_url", "image_url": {"url": "x.png"}}]),
            "messages[0].content[1] is a part of the type \"image_url\"",
        ),
        (
            json!([{"text": "a"}]),
            "field \"messages[0].content[0].type\" is missing",
        ),
        (
            json!([{"type": "text", "text": 1}]),
            "messages[0].content[0].text is a number",
        ),
        (json!(["a"]), "messages[0].content[0] is a string"),
        (
            json!(7),
            "messages[0].content is a number, but must be a string, or a list of parts",
        ),
    ] {
        let fault = read(&row(content), DataFormat::Messages).unwrap_err();
        assert!(fault.starts_with(expected), "{fault}");
    }
}

/// Invariant: The row format is recognised by its fields or the file is refused.
#[test]
fn a_row_is_recognised_by_its_fields_and_an_unknown_one_lists_the_expected_fields() {
    let items = json!([{"from": "human", "value": "Hi"}]);
    for (row, format) in [
        (json!({"messages": [], "prompt": "x", "id": 1}), "messages"),
        (json!({"messages": items}), "sharegpt"),
        (json!({"conversations": items, "id": "a"}), "sharegpt"),
        (
            json!({"prompt": "x", "completion": "y", "messages": null}),
            "prompt-completion",
        ),
        (
            json!({"input_text": "", "json_schema": {}, "gold": 1}),
            "slot",
        ),
        (json!({"instruction": "x", "output": "y"}), "alpaca"),
        (
            json!({"query": "x", "tools": "[]", "answers": "[]"}),
            "xlam",
        ),
        (json!({"query": "x", "calls": [], "response": "y"}), "goat"),
    ] {
        assert_eq!(recognise_row(&row), Ok(format), "{row}");
    }
    let several = recognise_row(&json!({"messages": [], "conversations": []})).unwrap_err();
    assert!(
        several.starts_with(
            "the row has the fields of several formats: messages (messages) and sharegpt \
             (conversations); set"
        ),
        "{several}"
    );
    let unknown = json!({"promt": "x", "completion": "y", "conversation": []});
    assert_eq!(
        recognise_row(&unknown).unwrap_err(),
        "the format of the rows is unknown; the first row has \"promt\", \"completion\", \
         \"conversation\". Known formats:\n  \
         messages: needs messages; lacks messages\n  \
         prompt-completion: needs prompt and completion; lacks prompt, did you mean \"promt\"?\n  \
         slot: needs input_text, json_schema and gold; lacks input_text, json_schema, gold\n  \
         sharegpt: needs conversations; lacks conversations, did you mean \"conversation\"?\n  \
         alpaca: needs instruction and output; lacks instruction, output\n  \
         xlam: needs query, tools and answers; lacks query, tools, answers\n  \
         goat: needs query and calls; lacks query, calls"
    );
}

#[test]
fn a_row_of_another_format_is_refused_with_its_line_and_both_formats() {
    let rows = "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}\n\
                {\"prompt\": \"x\", \"completion\": \"y\"}\n";
    let file = file(rows.as_bytes());
    let rows: Vec<_> = read_rows(file.path(), DataFormat::Messages)
        .unwrap()
        .collect();
    assert!(rows[0].is_ok());
    let error = rows[1].as_ref().unwrap_err().to_string();
    let begins = format!(
        "{}:2: the row has the format prompt-completion, but data.format or the rows before it \
         have \
         messages; ",
        file.path().display()
    );
    assert!(error.starts_with(&begins), "{error}");
}

#[test]
fn speakers_and_system_prompts_are_never_guessed() {
    let row = |items: Value| json!({"conversations": items, "system": "Be short."});
    let human = json!({"from": "human", "value": "Hi"});
    for (row, expected) in [
        (
            row(json!([{"from": "Human", "value": "Hi"}])),
            "conversations[0].from is \"Human\"; use human or user",
        ),
        (
            row(json!([{"from": "system", "value": "Be long."}, human])),
            "the row has different system prompts in system and in conversations[0]",
        ),
        (
            row(json!([{"from": "human", "role": "user", "value": "Hi"}])),
            "conversations[0] has both from and role; keep one of them",
        ),
        (
            row(json!([{"from": "human"}])),
            "field \"conversations[0].value\" is missing",
        ),
        (
            row(json!([{"from": "human", "value": 3}])),
            "conversations[0].value is a number",
        ),
        (row(json!([])), "conversations is an empty list"),
        (row(json!("Hi")), "conversations is a string"),
    ] {
        let fault = read(&row, DataFormat::ShareGpt).unwrap_err();
        assert!(fault.starts_with(expected), "{row}: {fault}");
    }
    let same = row(json!([{"from": "system", "value": "Be short."}, human]));
    let same = read(&same, DataFormat::ShareGpt).unwrap();
    assert_eq!(same.conversation.messages.len(), 2);
    for history in [json!([["Hi"]]), json!([{"a": "b"}]), json!("Hi")] {
        let row = json!({"instruction": "x", "output": "y", "history": history});
        let fault = read(&row, DataFormat::Alpaca).unwrap_err();
        assert!(fault.starts_with("history"), "{fault}");
    }
}

#[test]
fn other_fields_of_an_item_reach_the_template_as_they_are() {
    let row = json!({"conversations": [
        {"from": "human", "value": "Hi", "name": "Ann"}, {"from": "gpt", "value": "Yes."}]});
    let row = read(&row, DataFormat::ShareGpt).unwrap();
    assert_eq!(row.conversation.messages[0].extra["name"], "Ann");
}

/// A short version of gpt-oss's template, one that prints any role, and the templates of two
/// families.
#[test]
fn support_for_the_developer_role_is_detected_by_rendering() {
    let row = only_row(
        r#"{"messages": [{"role": "developer", "content": "Be short."}, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes."}]}"#,
        DataFormat::Messages,
    );
    let knows = "{% for m in messages %}{% if m.role in ['developer', 'system'] %}# Instructions: \
                 {{ m.content }}\n{% else %}<{{ m.role }}>{{ m.content }}<|im_end|>{% endif %}\
                 {% endfor %}";
    let refuses = "{% for m in messages %}{% if m.role not in ['system', 'user', 'assistant'] %}\
                   {{ raise_exception('no') }}{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    let tags = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}";
    let with_developer_role = "{% for m in messages %}{% if m.role == 'developer' %}<dev>{% else %}<{{ m.role }}>\
               {% endif %}{{ m.content }}{% endfor %}";
    let new = |source: &str| ChatTemplate::new(source, SpecialTokens::default()).unwrap();
    for (template, knows_it, begins) in [
        (new(knows), true, "# Instructions: Be short.\n<user>Hi"),
        (new(with_developer_role), true, "<dev>Be short.<user>Hi"),
        (new(refuses), false, "<system>Be short.<user>Hi"),
        (new(tags), false, "<|system|>Be short.<|user|>Hi"),
        (chatml(), false, "<|im_start|>system\nBe short.<|im_end|>"),
        (
            template("qwen2_5"),
            false,
            "<|im_start|>system\nBe short.<|im_end|>",
        ),
        (
            template("llama3"),
            false,
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe short.",
        ),
    ] {
        assert_eq!(template.knows_developer(), knows_it, "{begins}");
        let text = template
            .render(&row.conversation, GenerationPrompt::Omit)
            .unwrap();
        assert!(text.starts_with(begins), "{text}");
    }
    let prepared = prepare(
        [Ok(row)].into_iter(),
        &chatml(),
        &tokenizer(),
        &options(&tokenizer()),
    );
    assert_eq!(prepared.unwrap().report.n_developer_as_system, 1);
}

#[test]
fn cut_rows_are_counted() {
    let rows = [
        row(turn("a", "b").to_vec()),
        row(turn("a", &"b ".repeat(90)).to_vec()),
    ];
    let options = PrepareOptions {
        max_length: 60,
        on_overflow: OnOverflow::Truncate,
        ..options(&tokenizer())
    };
    let prepared = prepare(rows.into_iter().map(Ok), &chatml(), &tokenizer(), &options).unwrap();
    assert_eq!(prepared.report.n_cut, 1);
    assert_eq!(prepared.report.first_cut.as_deref(), Some("row"));
}

#[test]
fn a_file_that_is_one_array_is_refused_with_the_command_that_converts_it() {
    for text in [
        "[\n  {\"instruction\": \"x\",\n",
        "[{\"instruction\": \"x\", \"output\": \"y\"}]",
    ] {
        let file = file(text.as_bytes());
        let path = file.path().display();
        let remedy = format!("convert it with `tooltune data convert {path} --output rows.jsonl`");
        let error = recognise_file(file.path()).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("{path}: the file is one JSON array"))
                && error.contains(&remedy),
            "{error}"
        );
        let rows: Vec<_> = read_rows(file.path(), DataFormat::Alpaca)
            .unwrap()
            .collect();
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].as_ref().unwrap_err().to_string(), error);
    }
}

#[test]
fn rows_with_pictures_are_refused_and_empty_lists_of_them_are_not() {
    let row = |images: Value| json!({"instruction": "x", "output": "y", "images": images});
    let fault = read(&row(json!(["a.png"])), DataFormat::Alpaca).unwrap_err();
    assert!(
        fault.starts_with("images contains images, audio or video"),
        "{fault}"
    );
    for none in [json!([]), json!(null)] {
        read(&row(none), DataFormat::Alpaca).unwrap();
    }
}

#[test]
fn tool_parameters_may_be_a_string() {
    let tool = |parameters: Value| json!({"type": "function", "function": {"name": "f", "parameters": parameters}});
    let row = |parameters: Value| {
        json!({"messages": [{"role": "user", "content": "Go"},
            {"role": "assistant", "tool_calls": [{"name": "f", "arguments": {"n": "x"}}]}],
            "tools": [tool(parameters)]})
    };
    let schema = json!({"type": "object", "properties": {"n": {"type": "string"}}});
    let read_row = read(&row(json!(schema.to_string())), DataFormat::Messages).unwrap();
    assert_eq!(
        read_row.conversation.tools,
        Some(vec![tool(schema.clone())])
    );
    let other = schema.to_string().replace("string", "integer");
    let fault = read(&row(json!(other)), DataFormat::Messages).unwrap_err();
    assert!(
        fault.starts_with("messages[1].tool_calls[0].arguments.n"),
        "{fault}"
    );
    let fault = read(&row(json!("n")), DataFormat::Messages).unwrap_err();
    assert!(
        fault.starts_with("tools[0].function.parameters is a string"),
        "{fault}"
    );
}
