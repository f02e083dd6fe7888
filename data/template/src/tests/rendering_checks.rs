//! Parts that a template leaves out are errors; parts that it changes are not.

use super::*;

/// Invariant: Tools, documents, messages and calls that the chat template leaves out are an error.
#[test]
fn tools_and_documents_that_a_template_leaves_out_are_an_error() {
    let with_tools = case("tools_unused");
    for name in FAMILIES {
        let rendered = template(name).render_with_spans(&with_tools, Turns::Completion);
        let is_refused = matches!(rendered, Err(TemplateError::ToolsNotRendered { .. }));
        assert_eq!(
            is_refused,
            WITHOUT_TOOLS.contains(&name),
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
        matches!(refused, Err(TemplateError::DocumentsNotRendered)),
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
fn tools_are_checked_in_every_row_because_templates_may_render_them_conditionally() {
    let source = "{% if tools and messages[0].role == 'system' %}{{ tools | tojson }}{% endif %}\
                  {% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}\
                  {% if add_generation_prompt %}<assistant>{% endif %}";
    let template = inline(source);
    let turn = [
        json!({"role": "user", "content": "Go"}),
        json!({"role": "assistant", "content": "Gone."}),
    ];
    let with_tools = |messages: Vec<Value>| {
        conversation(&json!({"messages": messages, "tools": [{"name": "f"}]}))
    };
    let system = json!({"role": "system", "content": "Call."});
    let with_system = with_tools([[system].as_slice(), &turn].concat());
    let without_system = with_tools(turn.to_vec());
    assert!(
        template
            .render_with_spans(&with_system, Turns::Completion)
            .is_ok()
    );
    let refused = template.render_with_spans(&without_system, Turns::Completion);
    assert!(
        matches!(refused, Err(TemplateError::ToolsNotRendered { .. })),
        "{refused:?}"
    );
}

/// Invariant: Tools, documents, messages and calls that the chat template leaves out are an error.
#[test]
fn a_message_of_the_prompt_that_a_template_leaves_out_is_an_error() {
    let shows = |role: &str| {
        inline(&format!(
            "{{% for m in messages if m.role in ['assistant', {role}] %}}<{{{{ m.role }}}}>\
             {{{{ m.content }}}}{{% endfor %}}\
             {{% if add_generation_prompt %}}<assistant>{{% endif %}}"
        ))
    };
    let conversation = conversation_of(json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Tide?"},
        {"role": "assistant", "content": "I look."},
        {"role": "tool", "content": "0"},
        {"role": "user", "content": " \n"},
        {"role": "assistant", "content": "Low."},
    ]));
    for (source, unrendered) in [
        ("'user', 'tool'", Some((0, "system"))),
        ("'system', 'tool'", Some((1, "user"))),
        ("'system', 'user'", Some((3, "tool"))),
        ("'system', 'user', 'tool'", None),
    ] {
        let rendered = shows(source).render_with_spans(&conversation, Turns::Completion);
        match (&rendered, unrendered) {
            (Ok(_), None) => {}
            (Err(TemplateError::PromptMessageNotRendered { message, role }), Some(expected)) => {
                assert_eq!((*message, *role), expected);
            }
            _ => panic!("{source}: {rendered:?}"),
        }
    }
}

#[test]
fn a_transformed_content_counts_as_rendered() {
    let conversation = conversation_of(json!([
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
fn a_template_without_calls_is_named_when_a_message_has_only_calls() {
    let call = json!([{"function": {"name": "f", "arguments": {"a": 1}}}]);
    let conversation = conversation_of(json!([
        {"role": "user", "content": "Go"},
        {"role": "assistant", "tool_calls": call},
    ]));
    let prints_none = "{% for m in messages %}{{ m.content }}{% endfor %}";
    for template in [template("smollm2"), inline(prints_none)] {
        let error = template
            .render_with_spans(&conversation, Turns::Completion)
            .unwrap_err();
        assert!(
            matches!(
                error,
                TemplateError::ToolCallsNotRendered { message: 1, .. }
            ),
            "{error:?}"
        );
        let message = "renders no tool calls, but message 1 has only tool calls (line ";
        let fix = "such as \"chatml-tools\" for";
        let error = error.to_string();
        assert!(error.contains(message) && error.contains(fix), "{error}");
    }
    // If calls are rendered, the template's own error is reported.
    let needs_content = "{% for m in messages %}{{ m.content + \"\" }}\
                         {{ m.tool_calls or [] | tojson }}{% endfor %}";
    let error = inline(needs_content)
        .render(&conversation, GenerationPrompt::Omit)
        .unwrap_err();
    assert!(
        matches!(error, TemplateError::TemplateFailed { .. }),
        "{error:?}"
    );
}

/// A row with text and two calls, which are not trained on.
fn with_two_calls_before_the_answer() -> Conversation {
    conversation_of(json!([
        {"role": "user", "content": "Go"},
        {"role": "assistant", "content": "I look.", "tool_calls": [
            {"name": "tide", "arguments": {"town": "Jorness", "day": null}},
            {"name": "wind", "arguments": {}},
        ]},
        {"role": "tool", "content": "low"},
        {"role": "tool", "content": "3"},
        {"role": "assistant", "content": "Low."},
    ]))
}

/// A template that renders the contents, and each call as the expression `calls`.
fn template_with_calls(content: &str, calls: &str) -> ChatTemplate {
    inline(&format!(
        "{{% for m in messages %}}<{{{{ m.role }}}}>{{{{ {content} }}}}\
         {{% for c in m.tool_calls or [] %}}{calls}{{% endfor %}}{{% endfor %}}\
         {{% if add_generation_prompt %}}<assistant>{{% endif %}}"
    ))
}

/// Invariant: Tools, documents, messages and calls that the chat template leaves out are an error.
#[test]
fn a_call_of_the_prompt_that_a_template_leaves_out_is_an_error() {
    let conversation = with_two_calls_before_the_answer();
    let name = "{{ c.function.name }}";
    let first = "{% if loop.first %}{{ c.function | tojson }}{% endif %}";
    // No marking works if a template measures contents.
    for content in ["m.content", "m.content ~ (m.content | length)"] {
        for (calls, unrendered) in [
            ("", Some((0, ""))),
            (name, Some((0, "the arguments of "))),
            (
                "{{ c.function.arguments | tojson }}",
                Some((0, "the name of ")),
            ),
            (first, Some((1, ""))),
            ("{{ c | tojson }}", None),
        ] {
            let rendered = template_with_calls(content, calls)
                .render_with_spans(&conversation, Turns::Completion);
            match (&rendered, unrendered) {
                (Ok(_), None) => {}
                (
                    Err(TemplateError::CallNotRendered {
                        message,
                        call,
                        part,
                        ..
                    }),
                    Some(expected),
                ) => {
                    assert_eq!((*message, (*call, *part)), (1, expected), "{calls}");
                }
                _ => panic!("{content} {calls}: {rendered:?}"),
            }
        }
    }
    let error =
        template_with_calls("m.content", name).render_with_spans(&conversation, Turns::Completion);
    let error_message = error.unwrap_err().to_string();
    let place = "leaves out the arguments of tool_calls[0] of message 1, so the model would never";
    let fix =
        "set data.chat_template to a template that renders all calls, such as \"chatml-tools\"";
    assert!(
        error_message.contains(place) && error_message.contains(fix),
        "{error_message}"
    );
}

#[test]
fn a_transformed_call_counts_as_rendered() {
    let conversation = with_two_calls_before_the_answer();
    for calls in [
        "{{ c.function.name | upper }}{{ c.function.arguments | length }}",
        "{{ c.function.name }}{% for k, v in c.function.arguments.items() if v %}{{ v }}{% endfor %}",
        "{{ c.function.name[0] }}{{ c.function.arguments | tojson | trim }}",
    ] {
        let rendered = template_with_calls("m.content", calls)
            .render_with_spans(&conversation, Turns::Completion);
        assert!(rendered.is_ok(), "{calls}: {rendered:?}");
    }
    // The template skips nulls, and the call has nothing else.
    let mut conversation = conversation;
    conversation.messages[1].tool_calls[0]
        .arguments
        .shift_remove("town");
    let calls = "{{ c.function.name }}{% for k, v in c.function.arguments.items() if v %}{{ v }}{% endfor %}";
    let rendered =
        template_with_calls("m.content", calls).render_with_spans(&conversation, Turns::Completion);
    assert!(rendered.is_ok(), "{rendered:?}");
}

#[test]
fn smollm2s_template_is_rejected_if_an_earlier_message_has_calls() {
    let conversation = with_two_calls_before_the_answer();
    for (name, is_refused) in [("smollm2", true), ("hermes", false), ("qwen2_5", false)] {
        let rendered = template(name).render_with_spans(&conversation, Turns::Completion);
        let refused = matches!(
            rendered,
            Err(TemplateError::CallNotRendered {
                message: 1,
                call: 0,
                part: "",
                ..
            })
        );
        assert_eq!(refused, is_refused, "{name}: {rendered:?}");
        assert_eq!(rendered.is_err(), is_refused, "{name}: {rendered:?}");
    }
}
