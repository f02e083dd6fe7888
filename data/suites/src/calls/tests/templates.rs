//! Every chat template in the repository, and one template per call notation, writes calls that
//! parse back.

use std::fs;
use std::path::{Path, PathBuf};

use tooltune_template::{ChatTemplate, SpecialTokens};

use super::super::template::render_turn;
use super::*;

/// Templates in the repository whose call notation is unknown; the suite rejects them by name.
const UNREAD: [&str; 5] = [
    "channels.jinja",
    "empty_thought.jinja",
    "next_marker.jinja",
    "one_line_thought.jinja",
    "results_in_turn.jinja",
];

/// The markers of all call notations, and of reasoning.
const MARKS: [&str; 33] = [
    "<tool_call>",
    "</tool_call>",
    "<function=x>",
    "</function>",
    "<parameter=x>",
    "</parameter>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "<|tool_call|>",
    "<|python_tag|>",
    "<|tool_call_start|>",
    "<|tool_call_end|>",
    "<function_calls>",
    "</function_calls>",
    "```tool_code",
    "```",
    "<code>",
    "</code>",
    "<start_function_call>",
    "<end_function_call>",
    "<escape>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<|tool_call_begin|>",
    "to=functions.f<|message|>{}",
    "<think>",
    "</think>",
    "[THINK]",
    "[/THINK]",
];

fn tools_of_every_type() -> Vec<Value> {
    let properties = json!({
        "text": {"type": "string"}, "number": {"type": "number"}, "flag": {"type": "boolean"},
        "nothing": {"type": ["integer", "null"]}, "list": {"type": "array"},
        "object": {"type": "object"}, "choice": {"enum": ["5", "true"]}});
    let tool = |name: &str, properties: &Value| {
        json!({"type": "function", "function": {"name": name, "description": "A tool.",
            "parameters": {"type": "object", "properties": properties}}})
    };
    vec![tool("f", &properties), tool("get-it.now_2", &json!({}))]
}

/// The first `N_PLAIN` calls of [`adversarial_calls`] contain no markers.
const N_PLAIN: usize = 6;

/// Calls that are hard to write or to parse.
fn adversarial_calls() -> Vec<Vec<WrittenCall>> {
    let mut all_calls = vec![
        vec![call("f", json!({}))],
        vec![call("get-it.now_2", json!({}))],
        vec![call(
            "f",
            json!({"number": -1.5e-7, "flag": false, "nothing": null, "list": [], "object": {},
                "choice": "5"}),
        )],
        vec![call(
            "f",
            json!({"object": {"a": {"b": [1, {"c": [null, true, "x, y: {z}"]}]}, "d e": "é\u{1f6a2}"},
                "list": [[], [[1.0, "a\"b"]], {"k": "</x>"}], "number": 12345678901_u64}),
        )],
        vec![call(
            "f",
            json!({"text": "quotes \" ' ` and \\ back\\n, tabs\tand\nlines, {braces} [brackets], (f(a=1)), \
                \u{2028}é\u{1f6a2}\u{0}", "flag": true}),
        )],
        vec![
            call("f", json!({"text": "one", "number": 1})),
            call("get-it.now_2", json!({})),
            call("f", json!({"text": "two;\n", "number": 2})),
        ],
    ];
    for mark in MARKS {
        let text = format!("a {mark} b {mark}{{\"name\": \"f\", \"arguments\": {{}}}}");
        all_calls.push(vec![call(
            "f",
            json!({"text": mark, "object": {"k": [text]}, "number": 7}),
        )]);
        all_calls.push(vec![call("f", json!({"number": 7, "text": text}))]);
    }
    let every = MARKS.join(" ");
    all_calls.push(vec![
        call("f", json!({"text": every})),
        call("f", json!({"text": "last"})),
    ]);
    all_calls
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn files(folder: &Path, paths: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files(&path, paths);
        } else if path.extension().is_some_and(|end| end == "jinja") {
            paths.push(path);
        }
    }
}

/// The chat templates in the repository, by name.
fn templates_of_the_repository() -> Vec<(String, String)> {
    let mut paths = Vec::new();
    for folder in ["tests/fixtures", "data/template/src/chat_templates"] {
        files(&root().join(folder), &mut paths);
    }
    let is_template = |path: &PathBuf| {
        let name = path.file_name().expect("a name").to_string_lossy();
        (name.into_owned(), fs::read_to_string(path).expect("a text"))
    };
    let mut templates: Vec<(String, String)> = paths.iter().map(is_template).collect();
    let cases = root().join("tests/fixtures/template_kwargs/cases.json");
    let cases: Value = serde_json::from_slice(&fs::read(cases).expect("cases")).expect("JSON");
    let inline = cases.as_array().expect("cases").iter().enumerate();
    templates.extend(inline.map(|(template_name, case)| {
        let source = case["template"].as_str().expect("a template");
        (
            format!("template_kwargs {template_name}"),
            source.to_owned(),
        )
    }));
    templates
}

fn compile_template(name: &str, source: &str) -> ChatTemplate {
    let special = SpecialTokens {
        bos_token: Some("<s>".to_owned()),
        eos_token: Some("</s>".to_owned()),
        ..SpecialTokens::default()
    };
    ChatTemplate::new(source, special).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Renders hard calls with a template and parses them; returns the number of rendered turns.
fn count_read_back(name: &str, template: &ChatTemplate, dialect: CallDialect) -> usize {
    let tools = tools_of_every_type();
    let set = ToolSet::new(&tools);
    let mut n_written = 0;
    for (idx, calls) in adversarial_calls().into_iter().enumerate() {
        let prefix = Some("I look it up [now], {see}: \"so\".").filter(|_| idx < N_PLAIN);
        for content in [None].into_iter().chain(prefix.map(Some)) {
            let Some(text) = render_turn(template, &tools, &calls, content) else {
                continue;
            };
            let is_left_out = content.is_some_and(|content| !text.contains(content));
            if is_ambiguous(dialect, &calls) || is_left_out {
                continue;
            }
            n_written += 1;
            let answer = read_calls(&text, &set);
            assert_eq!(answer.calls, calls, "{name}: {text}");
            assert!(answer.malformed.is_empty(), "{name}: {answer:?} {text}");
            assert_eq!(answer.dialect, Some(dialect), "{name}: {text}");
        }
    }
    n_written
}

/// Whether the notation has no escapes and cannot represent these calls unambiguously, because
/// templates write a different argument in the same way.
fn is_ambiguous(dialect: CallDialect, calls: &[WrittenCall]) -> bool {
    let has = |part: &str| {
        let texts = calls
            .iter()
            .map(|call| Value::Object(call.arguments.clone()).to_string());
        texts.into_iter().any(|text| text.contains(part))
    };
    match dialect {
        // This sequence of markers also closes the argument.
        CallDialect::Function => has("</function> <parameter=x> </parameter>"),
        CallDialect::Glm => has("</arg_value> [TOOL_CALLS]"),
        _ => false,
    }
}

#[test]
fn calls_rendered_by_every_template_are_parsed_or_listed_as_unparsed() {
    let mut n_read = 0;
    let mut unread = Vec::new();
    for (name, source) in templates_of_the_repository() {
        let template = compile_template(&name, &source);
        match TemplateCalls::probe(&template) {
            TemplateCalls::Nothing => {}
            TemplateCalls::Unread { .. } => unread.push(name),
            TemplateCalls::Read { dialect, .. } => {
                let n = count_read_back(&name, &template, dialect);
                assert!(n > 50, "{name} wrote {n} turns");
                n_read += 1;
            }
        }
    }
    unread.sort();
    assert_eq!(unread, UNREAD);
    assert!(n_read >= 9, "only {n_read} templates write calls");
}

/// A test template. `calls` is the template source that renders the calls of a turn; it uses the
/// variable `calls`, a list of functions.
fn template_of(calls: &str) -> String {
    let head = "{%- for m in messages -%}<|im_start|>{{ m.role }}\n{{ m.content or '' }}";
    let each = "{%- if m.tool_calls -%}{%- set calls = m.tool_calls | map(attribute='function') | \
                list -%}";
    format!(
        "{head}{each}{calls}{{%- endif -%}}<|im_end|>\n{{%- endfor -%}}\
         {{%- if add_generation_prompt -%}}<|im_start|>assistant\n{{%- endif -%}}"
    )
}

/// A value as it is printed by templates that quote only strings.
const AS_TEXT: &str =
    "(v if v is string else (v | tojson if v is mapping or v is sequence else v))";

#[test]
fn calls_rendered_in_every_format_are_parsed() {
    let keywords = "{% for k, v in c.arguments.items() %}{{ k }}={{ v | tojson }}\
                    {% if not loop.last %}, {% endif %}{% endfor %}";
    let gemma = |quote: &str, open_tag: &str, close: &str| {
        format!(
            "{{%- macro value(v) -%}}{{%- if v is string -%}}{{{{ '{quote}' + v + '{quote}' }}}}\
             {{%- elif v is boolean -%}}{{{{ 'true' if v else 'false' }}}}\
             {{%- elif v is mapping -%}}{{{{ '{{' }}}}{{%- for k, w in v | dictsort -%}}{{{{ k }}}}:\
             {{{{ value(w) }}}}{{%- if not loop.last -%}},{{%- endif -%}}{{%- endfor -%}}{{{{ '}}' }}}}\
             {{%- elif v is sequence -%}}[{{%- for w in v -%}}{{{{ value(w) }}}}\
             {{%- if not loop.last -%}},{{%- endif -%}}{{%- endfor -%}}]\
             {{%- else -%}}{{{{ v }}}}{{%- endif -%}}{{%- endmacro -%}}\
             {{%- for c in calls -%}}{open_tag}call:{{{{ c.name }}}}{{{{ value(c.arguments) }}}}{close}\
             {{%- endfor -%}}"
        )
    };
    let parameters = |open_tag: &str, line: &str, close: &str| {
        format!(
            "{{%- for c in calls -%}}{{{{ '{open_tag}<function=' + c.name + '>\\n' }}}}\
             {{%- for k, v in c.arguments.items() -%}}{{{{ '<parameter=' + k + '>{line}' }}}}\
             {{{{ {AS_TEXT} }}}}{{{{ '{line}</parameter>\\n' }}}}{{%- endfor -%}}\
             {{{{ '</function>{close}' }}}}{{%- endfor -%}}"
        )
    };
    for (dialect, calls) in [
        (
            CallDialect::Olmo,
            format!(
                "<function_calls>{{% for c in calls %}}{{{{ c.name }}}}({keywords})\
                     {{% if not loop.last %}}{{{{ '\\n' }}}}{{% endif %}}{{% endfor %}}</function_calls>"
            ),
        ),
        (
            CallDialect::Olmo,
            format!(
                "<function_calls>{{% for c in calls %}}{{{{ c.name }}}}({keywords}){{% endfor %}}\
                     </function_calls>"
            ),
        ),
        (
            CallDialect::Code,
            format!(
                "{{{{ '<code>\\n' }}}}{{% for c in calls %}}{{{{ c.name }}}}({keywords})\
                     {{{{ '\\n' }}}}{{% endfor %}}</code>"
            ),
        ),
        (
            CallDialect::Code,
            format!(
                "{{{{ '```tool_code\\n' }}}}{{% for c in calls %}}{{{{ c.name }}}}({keywords})\
                     {{{{ '\\n' }}}}{{% endfor %}}```"
            ),
        ),
        (
            CallDialect::Python,
            format!(
                "<|tool_call_start|>[{{% for c in calls %}}{{{{ c.name }}}}({keywords})\
                     {{% if not loop.last %}}, {{% endif %}}{{% endfor %}}]<|tool_call_end|>"
            ),
        ),
        (
            CallDialect::Gemma,
            gemma("<escape>", "<start_function_call>", "<end_function_call>"),
        ),
        (
            CallDialect::Gemma,
            gemma("<|\"|>", "<|tool_call>", "<tool_call|>"),
        ),
        (
            CallDialect::Function,
            parameters("<tool_call>\\n", "\\n", "\\n</tool_call>\\n"),
        ),
        (
            CallDialect::Function,
            parameters("<seed:tool_call>\\n", "", "\\n</seed:tool_call>"),
        ),
        (
            CallDialect::Glm,
                "{%- for c in calls -%}{{ '<tool_call>' + c.name + '\\n' }}\
                 {%- for k, v in c.arguments.items() -%}{{ '<arg_key>' + k + '</arg_key>\\n<arg_value>' }}\
                 {{ v if v is string else v | tojson }}{{ '</arg_value>\\n' }}{%- endfor -%}\
                 {{ '</tool_call>' }}{%- endfor -%}"
                .to_owned(),
        ),
    ] {
        assert_read_back(dialect, &calls);
    }
}

#[test]
fn calls_rendered_in_every_json_format_are_parsed() {
    for (dialect, calls) in [
        (
            CallDialect::Granite,
            "<|tool_call|>[{%- for c in calls -%}{{ {'name': c.name, 'arguments': c.arguments} | tojson }}\
             {%- if not loop.last -%}, {% endif %}{%- endfor -%}]<|/tool_call|>",
        ),
        (
            CallDialect::Mistral,
            "{%- for c in calls -%}[TOOL_CALLS]{{ c.name }}[ARGS]{{ c.arguments | tojson }}{%- endfor -%}",
        ),
        (
            CallDialect::Mistral,
            "{%- for c in calls -%}[TOOL_CALLS]{{ c.name }}[CALL_ID]a1b2c3d4e[ARGS]{{ c.arguments | tojson }}\
             {%- endfor -%}",
        ),
        (
            CallDialect::Deepseek,
            "<｜tool▁calls▁begin｜>{%- for c in calls -%}<｜tool▁call▁begin｜>{{ c.name }}<｜tool▁sep｜>\
             {{ c.arguments | tojson }}<｜tool▁call▁end｜>{%- endfor -%}<｜tool▁calls▁end｜>",
        ),
        (
            CallDialect::Deepseek,
            "<｜tool▁calls▁begin｜>{%- for c in calls -%}{{ '<｜tool▁call▁begin｜>function<｜tool▁sep｜>' + \
             c.name + '\\n```json\\n' }}{{ c.arguments | tojson }}{{ '\\n```<｜tool▁call▁end｜>' }}\
             {%- endfor -%}<｜tool▁calls▁end｜>",
        ),
        (
            CallDialect::Kimi,
            "<|tool_calls_section_begin|>{%- for c in calls -%}<|tool_call_begin|>functions.{{ c.name }}:\
             {{ loop.index0 }}<|tool_call_argument_begin|>{{ c.arguments | tojson }}<|tool_call_end|>\
             {%- endfor -%}<|tool_calls_section_end|>",
        ),
        (
            CallDialect::Harmony,
            "{%- for c in calls -%}{% if not loop.first %}<|start|>assistant{% endif %} to=functions.\
             {{ c.name }}<|channel|>commentary json<|message|>{{ c.arguments | tojson }}<|call|>\
             {%- endfor -%}",
        ),
    ] {
        assert_read_back(dialect, calls);
    }
}

/// Asserts that a template that writes calls in this way uses the dialect, and that the calls parse
/// back.
fn assert_read_back(dialect: CallDialect, calls: &str) {
    let source = template_of(calls);
    let template = compile_template(dialect.name(), &source);
    match TemplateCalls::probe(&template) {
        TemplateCalls::Read { dialect: found, .. } => assert_eq!(found, dialect, "{source}"),
        other => panic!("{dialect}: {other:?}"),
    }
    let n = count_read_back(dialect.name(), &template, dialect);
    assert!(n > 50, "{dialect} wrote {n} turns");
}
