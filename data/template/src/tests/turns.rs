//! Turn boundaries in templates with unusual thoughts, turn ends and tool results.

use super::*;

fn turns_json(name: &str) -> Value {
    let path = fixture(&format!("../turns/{name}"));
    tooltune_json::parse(&fs::read_to_string(path).unwrap()).unwrap()
}

fn turns_template(name: &str) -> ChatTemplate {
    let path = fixture(&format!("../turns/templates/{name}.jinja"));
    inline(&fs::read_to_string(path).unwrap())
}

fn stop_tokens(name: &str) -> Vec<String> {
    let cases = turns_json("cases.json");
    let stops = cases["stop_tokens"][name].as_array().unwrap().clone();
    let text = |stop: Value| stop.as_str().unwrap().to_owned();
    stops.into_iter().map(text).collect()
}

fn turns_case(name: &str) -> Conversation {
    conversation(&turns_json("cases.json")["conversations"][name])
}

/// The supervised text of a turn, up to its first stop token.
fn supervised_text(rendered: &RenderedText, turn: &Turn, stops: &[String]) -> Option<String> {
    let after = &rendered.text[turn.content_end..turn.end];
    let end = |stop: &String| Some(after.find(stop.as_str())? + stop.len());
    let end = turn.content_end + stops.iter().filter_map(end).min()?;
    Some(rendered.text[turn.start..end].to_owned())
}

/// Invariant: A turn is supervised from the end of its generation prompt to its stop token, with
/// any template.
#[test]
fn each_turn_is_supervised_from_its_prompt_to_its_stop_token_with_any_template() {
    let expected = turns_json("expected.json");
    let cases = turns_json("cases.json");
    let (mut n_supervised, mut refused) = (0, Vec::new());
    for (name, of_template) in expected.as_object().unwrap() {
        let (template, stops) = (turns_template(name), stop_tokens(name));
        for (case, expected_case) in of_template.as_object().unwrap() {
            let conversation = conversation(&cases["conversations"][case]);
            let plain = template.render(&conversation, GenerationPrompt::Omit);
            assert_eq!(
                plain.unwrap(),
                expected_case["text"].as_str().unwrap(),
                "{name}/{case}"
            );
            let rendered = template.render_with_spans(&conversation, Turns::All);
            let Ok(mut rendered) = rendered else {
                refused.push(format!("{name}/{case}"));
                continue;
            };
            rendered.end_turns(&stops);
            let assistants: Vec<usize> = (0..conversation.messages.len())
                .filter(|&idx| conversation.messages[idx].role == Role::Assistant)
                .collect();
            for (message, expected_case) in assistants
                .iter()
                .zip(expected_case["learned"].as_array().unwrap())
            {
                let turn = rendered.turns.iter().find(|turn| turn.message == *message);
                let Some(turn) = turn else {
                    // A turn whose thought the template drops is not trained on.
                    let thought = &conversation.messages[*message].extra["reasoning_content"];
                    assert!(!rendered.text.contains(thought.as_str().unwrap()));
                    continue;
                };
                let actual = supervised_text(&rendered, turn, &stops);
                assert_eq!(
                    actual.as_deref(),
                    expected_case.as_str(),
                    "{name}/{case}/{message}"
                );
                n_supervised += usize::from(actual.is_some());
            }
        }
    }
    // Templates without tools, and a template that writes only the first of several calls.
    assert_eq!(
        refused,
        [
            "opens_thought/tools",
            "opens_thought/parallel",
            "opens_thought/reasoning-tools",
            "empty_thought_fixed/tools",
            "empty_thought_fixed/parallel",
            "empty_thought_fixed/reasoning-tools",
            "channels/parallel",
        ]
    );
    assert!(n_supervised > 60, "{n_supervised}");
}

#[test]
fn a_turn_records_the_text_before_it() {
    use TurnBegin::{DroppedThought, EmptyThought, GenerationPrompt as Prompt};
    for (template, case, expected_begins) in [
        (
            "opens_thought",
            "multi-turn",
            vec![DroppedThought, DroppedThought],
        ),
        (
            "empty_thought",
            "multi-turn",
            vec![DroppedThought, EmptyThought],
        ),
        ("empty_thought", "reasoning", vec![Prompt]),
        ("empty_thought", "tools", vec![EmptyThought, EmptyThought]),
        ("empty_thought_fixed", "plain", vec![EmptyThought]),
        (
            "one_line_thought",
            "multi-turn",
            vec![EmptyThought, EmptyThought],
        ),
        ("next_marker", "tools", vec![EmptyThought, EmptyThought]),
        ("next_marker", "reasoning", vec![Prompt]),
        ("results_in_turn", "tools", vec![Prompt, Prompt]),
    ] {
        let rendered = turns_template(template).render_with_spans(&turns_case(case), Turns::All);
        let begins: Vec<TurnBegin> = rendered.unwrap().turns.iter().map(|t| t.begins).collect();
        assert_eq!(begins, expected_begins, "{template}/{case}");
    }
    // The template drops the thought before a call once the answer exists, so the answer's prompt
    // differs at inference.
    let rendered = turns_template("channels")
        .render_with_spans(&turns_case("reasoning-tools"), Turns::Completion)
        .unwrap();
    assert!(!rendered.turns[0].is_prompt);
    let rendered = turns_template("channels")
        .render_with_spans(&turns_case("tools"), Turns::Completion)
        .unwrap();
    assert!(rendered.turns[0].is_prompt);
}

#[test]
fn a_stop_token_that_opens_the_next_turn_ends_this_one() {
    let stops = stop_tokens("next_marker");
    let template = turns_template("next_marker");
    for (case, appended) in [("tools", "<|user|>"), ("reasoning", "<|user|>")] {
        let conversation = turns_case(case);
        let mut rendered = template
            .render_with_spans(&conversation, Turns::Completion)
            .unwrap();
        let plain = rendered.text.clone();
        rendered.end_turns(&stops);
        assert_eq!(rendered.appended.as_deref(), Some(appended));
        assert_eq!(rendered.text, format!("{plain}{appended}"));
        let completion = rendered
            .spans
            .iter()
            .find(|s| s.kind == SpanKind::Completion);
        assert_eq!(completion.unwrap().end, rendered.text.len());
    }
    let mut ends_with_call = turns_case("tools");
    ends_with_call.messages.truncate(2);
    ends_with_call.completion_start = 1;
    let mut rendered = template
        .render_with_spans(&ends_with_call, Turns::Completion)
        .unwrap();
    rendered.end_turns(&stops);
    assert_eq!(rendered.appended.as_deref(), Some("<|observation|>"));
    // Only a stop token is appended, and a turn with its own end does not change.
    let mut rendered = template
        .render_with_spans(&turns_case("plain"), Turns::Completion)
        .unwrap();
    rendered.end_turns(&["<|other|>".to_owned()]);
    assert_eq!(rendered.appended, None);
    let mut rendered = turns_template("empty_thought")
        .render_with_spans(&turns_case("plain"), Turns::Completion)
        .unwrap();
    rendered.end_turns(&["<|end|>".to_owned(), "<|start|>".to_owned()]);
    assert_eq!(rendered.appended, None);
}

#[test]
fn a_prompt_without_an_answer_equals_the_training_prompt() {
    for (template, ends_with) in [
        ("opens_thought", "<|assistant|><think>\n"),
        (
            "empty_thought",
            "<|start|>assistant\n<think>\n\n</think>\n\n",
        ),
        (
            "empty_thought_fixed",
            "<|start|>assistant\n<think>\n\n</think>\n\n",
        ),
        ("one_line_thought", "<|start|>assistant\n<think></think>"),
        ("next_marker", "<|assistant|>\n<think></think>"),
        ("channels", "<|start|>assistant"),
    ] {
        let template = turns_template(template);
        let conversation = turns_case("plain");
        let question = Conversation {
            messages: conversation.messages[..1].to_vec(),
            ..conversation.clone()
        };
        let prompt = template.render_answer_prompt(&question).unwrap();
        assert!(prompt.ends_with(ends_with), "{prompt:?}");
        assert_eq!(
            template.render_answer_prompt(&conversation).unwrap(),
            prompt
        );
        let rendered = template.render_with_spans(&conversation, Turns::Completion);
        let rendered = rendered.unwrap();
        let turn = rendered.turns[0];
        if turn.begins != TurnBegin::DroppedThought {
            assert_eq!(rendered.text[..turn.start], prompt);
        }
    }
}

#[test]
fn consecutive_assistant_messages_are_an_error_with_a_remedy() {
    let thought = json!({"role": "assistant", "content": "<think>\nI ask.\n</think>"});
    let call = json!({"role": "assistant", "content": "", "tool_calls":
        [{"function": {"name": "f", "arguments": {"a": 1}}}]});
    let user = json!({"role": "user", "content": "Go"});
    let result = json!({"role": "tool", "content": "1"});
    let answer = json!({"role": "assistant", "content": "One."});
    for (messages, first) in [
        (json!([user, thought, call]), Some(1)),
        (json!([user, thought, call, result, answer]), Some(1)),
        (json!([user, call, result, answer, answer, answer]), Some(3)),
        (json!([thought, call]), Some(0)),
        (json!([user, call, result, answer]), None),
        (json!([user, call, result, call, result, answer]), None),
    ] {
        let conversation = conversation_of(messages);
        for turns in [Turns::All, Turns::Last, Turns::Completion] {
            let rendered = template("qwen2_5").render_with_spans(&conversation, turns);
            match (&rendered, first) {
                (Err(TemplateError::Turn(TurnError::TwoAssistants { message })), Some(first)) => {
                    assert_eq!(*message, first);
                    let error = rendered.unwrap_err().to_string();
                    assert!(
                        error.contains(&format!("messages {first} and {}", first + 1)),
                        "{error}"
                    );
                    assert!(error.contains("reasoning_content"), "{error}");
                }
                (Ok(_), None) => {}
                _ => panic!("{conversation:?}: {rendered:?}"),
            }
        }
    }
}

#[test]
fn a_thought_in_the_content_is_written_once_or_is_an_error() {
    let adds_its_own = inline(
        "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}<think>\n\
         {{ m.reasoning_content or '' }}\n</think>\n\n{% endif %}{{ m.content }}<end>{% endfor %}\
         {% if add_generation_prompt %}<assistant><think>\n{% endif %}",
    );
    let cuts = inline(
        "{% for m in messages %}<{{ m.role }}>{{ m.content.split('</think>')[-1] }}<end>{% endfor %}\
         {% if add_generation_prompt %}<assistant>{% endif %}",
    );
    let keeps = inline(
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}\
         {% if add_generation_prompt %}<assistant>{% endif %}",
    );
    let rendered_turn = |template: &ChatTemplate, content: &str| {
        let conversation = conversation_of(json!([
            {"role": "user", "content": "Is </think> a mark?"},
            {"role": "assistant", "content": content},
        ]));
        let rendered = template.render_with_spans(&conversation, Turns::Completion);
        match rendered {
            Ok(rendered) if rendered.without_reasoning == [1] => "leaves out".to_owned(),
            Ok(rendered) => rendered.text[rendered.turns[0].start..].to_owned(),
            Err(error) => error.to_string(),
        }
    };
    let thought = "<think>\nYes.\n</think>\n\nIt is.";
    assert_eq!(rendered_turn(&keeps, thought), format!("{thought}<end>"));
    assert!(rendered_turn(&adds_its_own, thought).contains("writes another one before it"));
    assert_eq!(rendered_turn(&adds_its_own, "It is."), "It is.<end>");
    let two = "<think>\nYes.\n</think>\n\n<think>\nNo.\n</think>\n\nIt is.";
    assert_eq!(rendered_turn(&keeps, two), format!("{two}<end>"));
    for (template, content) in [(&cuts, two), (&template("qwen3"), two)] {
        let rendered_turn = rendered_turn(template, content);
        assert!(rendered_turn.contains("leaves out"), "{rendered_turn}");
    }
    // Qwen3 extracts one thought from the content and writes it in the template's own position.
    assert_eq!(
        rendered_turn(&template("qwen3"), thought),
        "<think>\nYes.\n</think>\n\nIt is.<|im_end|>\n"
    );
    let other = "[THINK]Yes.[/THINK]It is.";
    assert_eq!(rendered_turn(&keeps, other), format!("{other}<end>"));
}
