//! Compares the prompts that Ollama builds from a `Modelfile` with the prompts of training. A
//! parser written from Ollama's documentation replaces Ollama.

mod go;

use std::path::PathBuf;

use go::{Template, Value, commands};
use tooltune_template::{ChatTemplate, Conversation, Message, Role, SpecialTokens};

use super::*;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures");

/// The templates of the fixtures and the built-in templates, with their names.
fn templates() -> Vec<(String, ChatTemplate)> {
    let cases = std::fs::read(format!("{FIXTURES}/chat_templates/cases.json")).unwrap();
    let cases: serde_json::Value = serde_json::from_slice(&cases).unwrap();
    let mut paths: Vec<PathBuf> = Vec::new();
    for folder in [
        "chat_templates/templates",
        "turns/templates",
        "tiny_chat_model",
    ] {
        let files = std::fs::read_dir(format!("{FIXTURES}/{folder}")).unwrap();
        let files = files.map(|file| file.unwrap().path());
        paths.extend(files.filter(|path| path.extension().is_some_and(|end| end == "jinja")));
    }
    let templates = paths.iter().map(|path| {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        (name, std::fs::read_to_string(path).unwrap())
    });
    let built_in = ChatTemplate::NAMES.map(|name| {
        (
            name.to_owned(),
            ChatTemplate::built_in(name).unwrap().to_owned(),
        )
    });
    let mut sources = Vec::new();
    for (name, source) in templates.chain(built_in) {
        let token = |role: &str| {
            cases["special_tokens"][&name][role]
                .as_str()
                .map(str::to_owned)
        };
        let special = SpecialTokens {
            bos_token: token("bos_token"),
            eos_token: token("eos_token"),
            ..SpecialTokens::default()
        };
        sources.push((name, ChatTemplate::new(&source, special).unwrap()));
    }
    sources
}

fn template(source: &str, bos: Option<&str>) -> ChatTemplate {
    let special = SpecialTokens {
        bos_token: bos.map(str::to_owned),
        ..SpecialTokens::default()
    };
    ChatTemplate::new(source, special).unwrap()
}

fn parts(template: &ChatTemplate) -> ModelfileParts<'_> {
    ModelfileParts {
        model: "model.gguf",
        template,
        added_bos: None,
        system: None,
        stops: &[],
        context: None,
    }
}

/// The prompt that Ollama builds from messages. It joins consecutive messages of a role, and starts
/// with the `SYSTEM` of the `Modelfile` if there is no system message.
pub(crate) fn rendered_by_ollama(modelfile: &str, messages: &[(Role, &str)]) -> String {
    let commands = commands(modelfile);
    let text = |name: &str| {
        let command = commands.iter().find(|(command, _)| command == name);
        command.map(|(_, text)| text.as_str())
    };
    let begins_with_system = messages
        .first()
        .is_some_and(|(role, _)| *role == Role::System);
    let system = text("SYSTEM").filter(|text| !text.is_empty() && !begins_with_system);
    let mut joined: Vec<(Role, String)> = Vec::new();
    for (role, content) in system
        .map(|text| (Role::System, text))
        .iter()
        .chain(messages)
    {
        match joined.last_mut().filter(|(last, _)| last == role) {
            Some((_, last)) => last.push_str(&format!("\n\n{content}")),
            None => joined.push((*role, (*content).to_owned())),
        }
    }
    let messages = joined.iter().map(|(role, content)| {
        let fields = [("Role", role.as_str()), ("Content", content)];
        Value::Fields(fields.map(|(name, text)| (name, Value::text(text))).into())
    });
    let fields = Value::Fields([("Messages", Value::List(messages.collect()))].into());
    Template::parse(text("TEMPLATE").unwrap()).execute(&fields)
}

/// The prompt of training.
fn rendered_by_template(template: &ChatTemplate, messages: &[(Role, &str)]) -> String {
    let messages = messages
        .iter()
        .map(|(role, text)| Message::new(*role, *text));
    template
        .render_answer_prompt(&Conversation::new(messages.collect()))
        .unwrap()
}

/// Chats of one to three turns, with and without a system message; `make` creates the contents.
fn chats(make: impl Fn(usize) -> String) -> Vec<Vec<(Role, String)>> {
    let roles = [
        Role::System,
        Role::User,
        Role::Assistant,
        Role::User,
        Role::Assistant,
        Role::User,
    ];
    let all: Vec<(Role, String)> = roles
        .into_iter()
        .enumerate()
        .map(|(idx, role)| (role, make(idx)))
        .collect();
    [0..2, 0..4, 0..6, 1..2, 1..4, 1..6]
        .map(|range| all[range].to_vec())
        .to_vec()
}

fn as_strs(chat: &[(Role, String)]) -> Vec<(Role, &str)> {
    chat.iter()
        .map(|(role, text)| (*role, text.as_str()))
        .collect()
}

/// Strings that quoting, escaping or stripping could change.
const TEXTS: [&str; 9] = [
    "What is 2 + 2?",
    " \n\t blanks \u{3000}\u{a0}\r\n",
    "   ",
    "\"quoted\" and 'quoted' \"\"\"three\"\"\"",
    "back\\slash \\n \\u0041 {{ .Content }} {{- end -}}",
    "<b>&amp;</b> %s $told",
    "line\nline\r\nline\n",
    "Grüße, 東京 🙂 e\u{301}",
    "\u{85}\u{2003}wide\u{205f}",
];

#[test]
fn ollama_sends_the_prompts_of_training_for_each_template() {
    let mut without_system = Vec::new();
    for (name, template) in templates() {
        let result = modelfile(&parts(&template)).unwrap();
        if result.lacks_template.is_some() {
            assert!(!result.text.contains("TEMPLATE"), "{name}");
            without_system.push(name);
            continue;
        }
        let bos = template.special_tokens().bos_token.clone();
        let bos = bos.filter(|bos| !must_write(&template, bos));
        let added = modelfile(&ModelfileParts {
            added_bos: bos.as_deref(),
            ..parts(&template)
        });
        let added = added.unwrap().text;
        for text in TEXTS {
            for chat in chats(|idx| format!("{text}{idx}{text}")) {
                let chat = as_strs(&chat);
                let expected = rendered_by_template(&template, &chat);
                assert_eq!(
                    rendered_by_ollama(&result.text, &chat),
                    expected,
                    "{name} {text:?}"
                );
                // The server adds the token before the output of the `TEMPLATE`.
                let with_bos = bos.clone().unwrap_or_default() + &rendered_by_ollama(&added, &chat);
                assert_eq!(with_bos, expected, "{name} {text:?}");
            }
        }
    }
    without_system.sort();
    assert_eq!(without_system, ["channels", "mistral_v3", "semantics"]);
}

const PLAIN: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                     {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

#[test]
fn a_template_omits_only_the_token_that_the_server_adds() {
    let render = |source: &str, bos: &str, is_added: bool| {
        let template = template(source, Some(bos));
        let parts = ModelfileParts {
            added_bos: Some(bos).filter(|_| is_added),
            ..parts(&template)
        };
        let text = modelfile(&parts).unwrap().text;
        (
            must_write(&template, bos),
            rendered_by_ollama(&text, &[(Role::User, "Hi")]),
        )
    };
    let prompt = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
    // The template does not write the token.
    assert_eq!(render(PLAIN, "<s>", false).1, prompt);
    // The template writes the token once, at the start.
    let first = format!("{{{{ bos_token }}}}{PLAIN}");
    assert_eq!(
        render(&first, "<s>", false),
        (false, format!("<s>{prompt}"))
    );
    assert_eq!(render(&first, "<s>", true), (false, prompt.to_owned()));
    // The token begins each turn, as in SmolLM2's template.
    assert_eq!(
        render(PLAIN, "<|im_start|>", false),
        (true, prompt.to_owned())
    );
    // The token is written before each user turn.
    let turns = "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token }}{% endif %}\
                 [{{ m.content }}]{% endfor %}";
    assert_eq!(render(turns, "<s>", false), (true, "<s>[Hi]".to_owned()));
}

/// A chat template that writes the system message into the first user turn.
const JOINED: &str = "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}<u>{{ m.content }}\n\n\
                      {% else %}{% if not loop.previtem or loop.previtem.role != 'system' %}<{{ m.role[0] }}>\
                      {% endif %}{{ m.content | trim }}</>{% endif %}{% endfor %}\
                      {% if add_generation_prompt %}<a>{% endif %}";

#[test]
fn a_system_message_of_training_is_sent_unchanged() {
    let long = "One.\n\nTwo \"quoted\", 'quoted', \\n \\ {{ .Content }} $1 — “x”.\n  Three.";
    let texts = [
        ("Answer in one word.", true),
        (long, true),
        ("Say \"yes\"", true),
        ("\"", true),
        ("\"\"\"", true),
        ("He said \"\"\"no\"\"\" again", true),
        ("Ends in three\"\"\"", true),
        ("\"\"\nnext", true),
        // Ollama would end these strings early, or drop a character.
        ("first\"\"\"\nsecond", false),
        ("first \"\"\"  \r\nsecond", false),
        ("\"\"\"\n\"\"\"", false),
        ("no\u{a0}break", false),
        ("東京\u{3000}大阪", false),
        ("bell \u{7} and \u{200b}", false),
        ("", false),
        ("  \n blanks at both ends \n", true),
    ];
    for source in [PLAIN, JOINED] {
        let template = template(source, Some("<s>"));
        for (system, is_command) in texts {
            let parts = ModelfileParts {
                system: Some(system),
                ..parts(&template)
            };
            let text = modelfile(&parts).unwrap().text;
            assert_eq!(text.contains("\nSYSTEM "), is_command, "{system:?}");
            for chat in chats(|idx| format!("text {idx}")) {
                let mut chat = as_strs(&chat);
                let prompt = rendered_by_ollama(&text, &chat);
                if chat[0].0 != Role::System {
                    chat.insert(0, (Role::System, system));
                }
                assert_eq!(
                    prompt,
                    rendered_by_template(&template, &chat),
                    "{system:?}\n{text}"
                );
            }
        }
    }
}

#[test]
fn an_unrepresentable_system_message_is_refused() {
    let template = template("{{ messages | length }}", None);
    let with_system = |system| {
        modelfile(&ModelfileParts {
            system: Some(system),
            ..parts(&template)
        })
    };
    let error = with_system("one\u{a0}two").unwrap_err().to_string();
    assert!(
        error.contains("data.system") && error.contains("--to gguf"),
        "{error}"
    );
    let file = with_system("one two").unwrap();
    assert!(
        file.text.contains("SYSTEM \"\"\"one two\"\"\"\n"),
        "{}",
        file.text
    );
    assert!(
        file.lines()[0].contains("has no TEMPLATE"),
        "{:?}",
        file.lines()
    );
}

#[test]
fn a_template_without_tools_is_reported() {
    let with_tools = format!("{{% if tools %}}{{{{ tools | tojson }}}}\n{{% endif %}}{PLAIN}");
    let with_calls = PLAIN.replace(
        "{{ m.content }}",
        "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}",
    );
    for (source, has_note) in [
        (PLAIN, false),
        (JOINED, false),
        (&*with_tools, true),
        (&*with_calls, true),
    ] {
        let file = modelfile(&parts(&template(source, None))).unwrap();
        assert_eq!(file.lacks_template, None, "{source}");
        let lines = file.lines().join("\n");
        for part in ["tool results", "/v1/chat/completions", "--jinja", "raw"] {
            assert_eq!(lines.contains(part), has_note, "{part}: {source}\n{lines}");
        }
    }
}

#[test]
fn parameters_have_the_stop_tokens_and_context_of_the_model() {
    let template = template(PLAIN, None);
    let stops = ["<|im_end|>", "\"", "</s>\n", "\u{e000}"].map(str::to_owned);
    let file = modelfile(&ModelfileParts {
        stops: &stops,
        context: Some(4096),
        ..parts(&template)
    });
    let file = file.unwrap();
    let all = commands(&file.text);
    let texts_of = |name: &str| -> Vec<&str> {
        let all = all.iter().filter(|(command, _)| command == name);
        all.map(|(_, text)| text.as_str()).collect()
    };
    assert_eq!(texts_of("FROM"), ["./model.gguf"]);
    assert_eq!(texts_of("stop"), ["<|im_end|>", "\"", "</s>\n"]);
    assert_eq!(texts_of("num_ctx"), ["4096"]);
    assert_eq!(texts_of("temperature"), ["0"]);
    assert_eq!(texts_of("repeat_penalty"), ["1"]);
    assert_eq!(texts_of("SYSTEM"), [""; 0]);
    assert!(file.lines()[0].contains("\\u{e000}"), "{:?}", file.lines());
    let plain = modelfile(&parts(&template)).unwrap();
    assert!(!plain.text.contains("num_ctx") && plain.lines().is_empty());
}

#[test]
fn a_template_that_changes_texts_is_not_translated() {
    let reason = |source: &str| {
        let file = modelfile(&parts(&template(source, None))).unwrap();
        file.lacks_template.unwrap_or_default()
    };
    assert_eq!(reason(PLAIN), "");
    let content = |filter: &str| PLAIN.replace("m.content", &format!("m.content | {filter}"));
    assert_eq!(reason(&content("trim")), "");
    for filter in ["upper", "tojson", "replace('\"', '')", "replace('  ', ' ')"] {
        let reason = reason(&content(filter));
        assert!(
            reason.contains("changes") || reason.contains("once"),
            "{filter}: {reason}"
        );
    }
    let last = content("trim if loop.last else m.content");
    assert!(
        reason(&last).contains("strips texts differently"),
        "{}",
        reason(&last)
    );
}

#[test]
fn whitespace_is_stripped_as_in_the_template() {
    for filter in ["trim", "trim('\n')", "string", "rstrip()", "lstrip('\\n')"] {
        let method = match filter.ends_with(')') && !filter.starts_with("trim") {
            true => format!("m.content.{filter}"),
            false => format!("m.content | {filter}"),
        };
        let template = template(&PLAIN.replace("m.content", &format!("({method})")), None);
        let file = modelfile(&parts(&template)).unwrap();
        assert_eq!(file.lacks_template, None, "{filter}");
        for text in TEXTS {
            for chat in chats(|_| text.to_owned()) {
                let chat = as_strs(&chat);
                assert_eq!(
                    rendered_by_ollama(&file.text, &chat),
                    rendered_by_template(&template, &chat),
                    "{filter}"
                );
            }
        }
    }
}
