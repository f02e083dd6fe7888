//! What a template leaves out is an error, and what it changes is not.

use super::*;

#[test]
fn tools_and_documents_that_a_template_leaves_out_are_an_error() {
    let with_tools = case("tools_unused");
    for name in FAMILIES {
        let rendered = template(name).render_with_spans(&with_tools, Turns::Completion);
        let is_refused = matches!(rendered, Err(DataError::ToolsNotRendered));
        assert_eq!(
            is_refused,
            KNOW_NO_TOOLS.contains(&name),
            "{name}: {rendered:?}"
        );
    }
    let without = Conversation {
        tools: None,
        ..with_tools
    };
    let with_documents = Conversation {
        documents: Some(vec![
            json!({"title": "Tides", "text": "High water is at six."}),
        ]),
        ..without.clone()
    };
    let refused = template("smollm2").render_with_spans(&with_documents, Turns::Completion);
    assert!(
        matches!(refused, Err(DataError::DocumentsNotRendered)),
        "{refused:?}"
    );
    let source = "{% for d in documents or [] %}{{ d.text }}{% endfor %}\
                  {% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}\
                  {% if add_generation_prompt %}<assistant>{% endif %}";
    for conversation in [&without, &with_documents] {
        let rendered = inline(source).render_with_spans(conversation, Turns::Completion);
        assert!(rendered.is_ok(), "{rendered:?}");
    }
}

#[test]
fn a_template_that_shows_tools_to_some_rows_only_is_asked_for_every_row() {
    let source = "{% if tools and messages[0].role == 'system' %}{{ tools | tojson }}{% endif %}\
                  {% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}\
                  {% if add_generation_prompt %}<assistant>{% endif %}";
    let template = inline(source);
    let turn = [
        json!({"role": "user", "content": "Go"}),
        json!({"role": "assistant", "content": "Gone."}),
    ];
    let of = |messages: Vec<Value>| {
        conversation(&json!({"messages": messages, "tools": [{"name": "f"}]}))
    };
    let system = json!({"role": "system", "content": "Call."});
    let shown = of([[system].as_slice(), &turn].concat());
    let not_shown = of(turn.to_vec());
    assert!(
        template
            .render_with_spans(&shown, Turns::Completion)
            .is_ok()
    );
    let refused = template.render_with_spans(&not_shown, Turns::Completion);
    assert!(
        matches!(refused, Err(DataError::ToolsNotRendered)),
        "{refused:?}"
    );
}

#[test]
fn a_message_of_the_prompt_that_a_template_leaves_out_is_an_error() {
    let shows = |role: &str| {
        inline(&format!(
            "{{% for m in messages if m.role in ['assistant', {role}] %}}<{{{{ m.role }}}}>\
             {{{{ m.content }}}}{{% endfor %}}\
             {{% if add_generation_prompt %}}<assistant>{{% endif %}}"
        ))
    };
    let conversation = of_messages(json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Tide?"},
        {"role": "assistant", "content": "I look."},
        {"role": "tool", "content": "0"},
        {"role": "user", "content": " \n"},
        {"role": "assistant", "content": "Low."},
    ]));
    for (shown, left_out) in [
        ("'user', 'tool'", Some((0, "system"))),
        ("'system', 'tool'", Some((1, "user"))),
        ("'system', 'user'", Some((3, "tool"))),
        ("'system', 'user', 'tool'", None),
    ] {
        let rendered = shows(shown).render_with_spans(&conversation, Turns::Completion);
        match (&rendered, left_out) {
            (Ok(_), None) => {}
            (Err(DataError::PromptMessageNotRendered { message, role }), Some(wanted)) => {
                assert_eq!((*message, *role), wanted);
            }
            _ => panic!("{shown}: {rendered:?}"),
        }
    }
}

#[test]
fn what_a_template_makes_of_a_content_counts_as_rendered() {
    let conversation = of_messages(json!([
        {"role": "user", "content": "  Go|on \n"},
        {"role": "assistant", "content": "<think>Long.</think>"},
        {"role": "tool", "content": "3.50"},
        {"role": "user", "content": "0"},
        {"role": "assistant", "content": "Gone."},
    ]));
    for content in [
        "m.content.strip()",
        "m.content | upper",
        "m.content | float(m.content)",
        "m.content | tojson",
        "m.content.split('|')[0] | trim",
    ] {
        let source = format!(
            "{{% for m in messages %}}<{{{{ m.role }}}}>{{% if m.role != 'assistant' %}}\
             {{{{ {content} }}}}{{% elif '<think>' not in m.content %}}{{{{ m.content }}}}\
             {{% endif %}}{{% endfor %}}{{% if add_generation_prompt %}}<assistant>{{% endif %}}"
        );
        let rendered = inline(&source).render_with_spans(&conversation, Turns::Completion);
        assert!(rendered.is_ok(), "{content}: {rendered:?}");
    }
}

#[test]
fn calls_without_a_content_on_a_template_that_knows_no_calls_are_named_as_the_fault() {
    let call = json!([{"function": {"name": "f", "arguments": {"a": 1}}}]);
    let conversation = of_messages(json!([
        {"role": "user", "content": "Go"},
        {"role": "assistant", "tool_calls": call},
    ]));
    let prints_none = "{% for m in messages %}{{ m.content }}{% endfor %}";
    for template in [template("smollm2"), inline(prints_none)] {
        let error = template
            .render_with_spans(&conversation, Turns::Completion)
            .unwrap_err();
        assert!(
            matches!(error, DataError::ToolCallsNotRendered { message: 1, .. }),
            "{error:?}"
        );
        let said = "renders no tool calls, and message 1 has nothing else (line ";
        let mend = "such as configs/templates/chatml-tools.jinja for";
        let error = error.to_string();
        assert!(error.contains(said) && error.contains(mend), "{error}");
    }
    // Where calls are rendered, the fault is what the template says it is.
    let needs_content = "{% for m in messages %}{{ m.content + \"\" }}\
                         {{ m.tool_calls or [] | tojson }}{% endfor %}";
    let error = inline(needs_content)
        .render(&conversation, GenerationPrompt::Omit)
        .unwrap_err();
    assert!(
        matches!(error, DataError::TemplateFailed { .. }),
        "{error:?}"
    );
}
