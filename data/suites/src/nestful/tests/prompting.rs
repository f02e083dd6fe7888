//! Tests of the prompts of all families, and of the ReAct loop.

use tooltune_json::python::python_repr;
use tooltune_template::Role;

use super::*;

fn options(n_examples: usize) -> PromptOptions {
    PromptOptions {
        n_examples,
        ..PromptOptions::default()
    }
}

fn chat(family: &str, n_examples: usize) -> String {
    let prompt = PromptSet::built_in().prompt(&berths_row(), family, options(n_examples));
    match prompt.expect("a prompt") {
        NestfulPrompt::Chat(conversation) => {
            conversation.messages[0].content.clone().expect("a text")
        }
        NestfulPrompt::Raw(text) => panic!("{text}"),
    }
}

fn raw(set: &PromptSet, family: &str, options: PromptOptions) -> String {
    match set
        .prompt(&berths_row(), family, options)
        .expect("a prompt")
    {
        NestfulPrompt::Raw(text) => text,
        NestfulPrompt::Chat(conversation) => panic!("{conversation:?}"),
    }
}

#[test]
fn every_family_has_a_prompt_with_tools_examples_and_question() {
    let set = PromptSet::built_in();
    let families: Vec<&str> = set.families().collect();
    assert_eq!(families.len(), 7);
    for family in families {
        for n_examples in [0, 1, 3] {
            let text = chat(family, n_examples);
            assert!(
                text.contains("\"output_parameters\": {\"result\""),
                "{text}"
            );
            assert!(
                text.ends_with("\nQuestion: How long is the quay?"),
                "{text}"
            );
            assert_eq!(text.matches("\n#Example-").count(), n_examples, "{family}");
            assert!(!text.contains("{QUERY}"));
        }
    }
    assert_eq!(PromptExample::built_in().len(), 3);
    for example in PromptExample::built_in() {
        for name in example.called_names() {
            assert!(example.tools.iter().any(|tool| tool.name == name), "{name}");
        }
        gold_calls(&PyValue::List(example.output), "output").expect("calls");
    }
}

#[test]
fn every_offered_family_has_a_template_and_a_parser_of_its_name() {
    let set = PromptSet::built_in();
    assert!(set.families().eq(built_in_families()));
    for family in built_in_families() {
        assert_eq!(parser_of_family(family).name(), family);
    }
    let prompt = set.prompt(&berths_row(), "tool_ace", options(0));
    let prompt = prompt.expect_err("no such family").to_string();
    assert!(prompt.contains("did you mean \"toolace\"?"), "{prompt}");
}

#[test]
fn examples_add_their_tools_that_the_row_lacks() {
    let available = |n_examples| {
        let text = chat("json_list", n_examples);
        let tools = text.lines().find(|line| line.starts_with("[{\"name\""));
        let tools = value(tools.expect("a line of tools"));
        let specs = ToolSpec::list(&tools, "tools").expect("specifications");
        let names: Vec<String> = specs.into_iter().map(|tool| tool.name).collect();
        names
    };
    let row: Vec<String> = berths_row()
        .tools
        .iter()
        .map(|tool| tool.name.clone())
        .collect();
    assert_eq!(available(0), row);
    // The first example multiplies and adds, and the row has both functions.
    assert_eq!(available(1), row);
    let expected_tools = [
        "square_edge_by_area",
        "square_perimeter",
        "sort_names",
        "join_with",
    ];
    let with_brought: Vec<String> = row
        .into_iter()
        .chain(expected_tools.map(str::to_owned))
        .collect();
    assert_eq!(available(3), with_brought);
    assert!(
        PromptSet::built_in()
            .unspecified_tools(&berths_row(), 3)
            .is_empty()
    );
}

#[test]
fn a_prompt_file_without_examples_shows_none_and_reports_missing_tools() {
    let template = "\"{FUNCTION_STR}{ICL_EXAMPLES}{QUERY}\"";
    for file in [
        format!("{{\"llama\": {template}}}"),
        format!("{{\"prompts\": {{\"llama\": {template}}}}}"),
    ] {
        let set = PromptSet::parse(&file).expect("prompts");
        assert!(!set.has_examples());
        let text = raw(&set, "llama", options(3));
        assert!(!text.contains("#Example-"), "{text}");
    }
    let with = |tools: &str| {
        let example = format!(
            "{{\"input\": \"One?\", \"output\": [{{\"name\": \"f\", \"arguments\": {{}}}}, \
             {{\"name\": \"add\", \"arguments\": {{}}}}]{tools}}}"
        );
        let file =
            format!("{{\"prompts\": {{\"llama\": {template}}}, \"icl_examples\": [{example}]}}");
        PromptSet::parse(&file).expect("prompts")
    };
    let without_examples = with("");
    assert!(without_examples.has_examples());
    assert_eq!(without_examples.unspecified_tools(&berths_row(), 1), ["f"]);
    assert!(
        without_examples
            .unspecified_tools(&berths_row(), 0)
            .is_empty()
    );
    let specified = with(", \"tools\": [{\"name\": \"f\", \"output_parameters\": {\"x\": {}}}]");
    assert!(specified.unspecified_tools(&berths_row(), 1).is_empty());
    let text = raw(&specified, "llama", options(1));
    assert!(
        text.contains("{\"name\": \"f\", \"output_parameters\""),
        "{text}"
    );
}

#[test]
fn examples_are_written_in_the_call_format_of_the_family() {
    for (family, start) in [
        (
            "json_list",
            "\nOutput: [{\"name\": \"multiply\", \"label\": \"$var_1\"",
        ),
        (
            "xlam",
            "\nOutput: {\"tool_calls\": [{\"name\": \"multiply\"",
        ),
        ("hermes", "\nOutput: <tool_call> {\"name\": \"multiply\""),
        (
            "toolace",
            "\nOutput: [multiply(arg_0=18, arg_1=65), multiply(",
        ),
    ] {
        let text = chat(family, 1);
        assert!(
            text.contains("\n#Example-1\nInput: A ferry carries"),
            "{text}"
        );
        assert!(text.contains(start), "{text}");
    }
}

#[test]
fn a_prompt_file_is_filled_like_python_str_format() {
    let file = r#"{"prompts": {
        "doubled-fc-r": "F {FUNCTION_STR} {{\"a\": 1}} {ICL_EXAMPLES} Q {QUERY}",
        "single": "F {FUNCTION_STR} {\"a\": 1} {{b}} {ICL_EXAMPLES} Q {QUERY}",
        "xLAM-1b-fc-r": "{FUNCTION_STR}{ICL_EXAMPLES}{QUERY}", "ToolAce-8b": "{FUNCTION_STR}{ICL_EXAMPLES}{QUERY}"},
        "icl_examples": [{"input": "One?", "output": [{"name": "f", "arguments": {"x": 1}}]}]}"#;
    let set = PromptSet::parse(file).expect("prompts");
    let no_examples = raw(&set, "doubled-fc-r", options(0));
    assert!(
        no_examples.contains("] {\"a\": 1}  Q How long is the quay?"),
        "{no_examples}"
    );
    let single = raw(&set, "single", options(0));
    assert!(
        single.contains("] {\"a\": 1} {{b}}  Q How long"),
        "{single}"
    );
    let call = "{\"name\": \"f\", \"arguments\": {\"x\": 1}}";
    let one_example = raw(&set, "ToolAce-8b", options(1));
    assert!(
        one_example.contains(&format!(
            "\n#Example-1\nInput: One?\nOutput: [{call}]\nHow long"
        )),
        "{one_example}"
    );
    let wrapped = raw(&set, "xLAM-1b-fc-r", options(1));
    assert!(
        wrapped.contains(&format!("Output: {{\"tool_calls\": [{call}] }}\n")),
        "{wrapped}"
    );
    let with_parser = raw(
        &set,
        "ToolAce-8b",
        PromptOptions {
            n_examples: 0,
            tools: ToolsEncoding::Twice,
        },
    );
    assert!(
        with_parser.starts_with("\"[{\\\"name\\\": \\\"add\\\""),
        "{with_parser}"
    );
}

#[test]
fn an_unusable_prompt_file_is_an_error_with_the_reason() {
    let refusal = |file: &str| PromptSet::parse(file).expect_err("refused").to_string();
    for (file, expected) in [
        ("{}", "there is no template"),
        ("[", "the file is not valid JSON"),
        (
            r#"{"prompts": {"a": 3}}"#,
            "the template of \"a\" is not a string",
        ),
        (
            r#"{"a": "{FUNCTION_STR} {QUERY}"}"#,
            "the template of \"a\" lacks {ICL_EXAMPLES}",
        ),
        (
            r#"{"prompts": {"a": "{FUNCTION_STR}{ICL_EXAMPLES}{QUERY}"}, "icl_examples": [{"input": "q"}]}"#,
            "field `icl_examples[0].output` is missing",
        ),
    ] {
        assert!(refusal(file).contains(expected), "{}", refusal(file));
    }
    let built_in = PromptSet::built_in();
    let unknown = built_in
        .prompt(&berths_row(), "gpt", options(0))
        .expect_err("unknown");
    assert!(
        unknown
            .to_string()
            .contains("no template for \"gpt\" (available families: json_list, granite31")
    );
    let too_many = built_in
        .prompt(&berths_row(), "llama", options(4))
        .expect_err("too many");
    assert!(
        too_many
            .to_string()
            .contains("4 examples are requested, but there are only 3")
    );
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("p.json");
    std::fs::write(&path, "{}").expect("written");
    let error = PromptSet::read(&path).expect_err("empty").to_string();
    assert!(error.contains("p.json: invalid prompts"), "{error}");
}

/// Feeds a loop with model turns until it ends, and runs its calls.
fn run_loop(row: &NestfulRow, limits: ReactLimits, texts: &[&str]) -> (ReactOutcome, Vec<String>) {
    let mut react = ReactLoop::new(row, limits);
    let mut texts = texts.iter();
    let mut conversations = Vec::new();
    loop {
        match react.next() {
            ReactRequest::Generate { conversation, .. } => {
                let last = conversation.messages.last().expect("a message");
                assert_eq!(last.role, Role::User);
                conversations.push(last.content.clone().expect("a text"));
                match texts.next() {
                    Some(text) => react.feed_text(text),
                    None => react.stop(),
                }
            }
            ReactRequest::Run(sequence) => {
                react.feed_text("ignored");
                react.feed_result(MathRunner.run(&sequence).expect("runs"));
            }
            ReactRequest::Done(outcome) => {
                assert!(react.is_done());
                return (outcome, conversations);
            }
        }
    }
}

fn react_wins(texts: &[&str]) -> (Option<bool>, Option<bool>) {
    let (outcome, _) = run_loop(&berths_row(), ReactLimits::default(), texts);
    let score = score_react(&berths_row(), &outcome, &MathRunner).expect("a score");
    (score.win.official(), score.win.strict())
}

#[test]
fn a_react_loop_calls_tools_reads_results_and_finishes() {
    let texts = [
        "Thought: two berths\nAction: {\"name\": \"multiply\", \"arguments\": {\"arg_0\": 2, \"arg_1\": 12}}\n\
         Observation: 25\nFinish: 25",
        "Action: {\"name\": \"add\", \"parameters\": {\"arg_1\": 3, \"arg_0\": 24}}",
        "Thought: done\nFinish: 27 metres",
    ];
    let (outcome, conversations) = run_loop(&berths_row(), ReactLimits::default(), &texts);
    assert!(
        conversations[0].contains("Question: How long is the quay?")
            && conversations[0].contains("\"name\": \"sqrt\"")
    );
    assert_eq!(&conversations[1..], ["Observation: 24", "Observation: 27"]);
    assert_eq!(outcome.answer.as_deref(), Some("27 metres"));
    assert_eq!((outcome.end, outcome.steps.len()), (ReactEnd::Finished, 3));
    assert_eq!(
        outcome.last_result().map(python_repr).as_deref(),
        Some("27")
    );
    assert_eq!(react_wins(&texts), (Some(true), Some(true)));
}

#[test]
fn the_loop_reports_unparsable_or_failed_calls_and_continues() {
    let valid_step = "Action: {\"name\": \"add\", \"arguments\": {\"arg_0\": 24, \"arg_1\": 3}}";
    let texts = [
        "I do not know.",
        "Action: {\"name\": \"cos\", \"arguments\": {}}",
        "{\"name\": \"add\", \"arguments\": {\"arg_0\": \"$var_1.result$\", \"arg_1\": 3}}",
        "Action: {\"name\": \"add\"}",
        valid_step,
        "Action: {\"name\": \"divide\", \"arguments\": {\"arg_0\": 1, \"arg_1\": 0}}",
    ];
    let (outcome, conversations) = run_loop(&berths_row(), ReactLimits::default(), &texts);
    for (line, expected) in conversations[1..].iter().zip([
        "error: no call could be read",
        "error: no tool \"cos\" is on offer",
        "error: no earlier call has the label \"var_1\"",
        "error: add takes 2 arguments",
        "27",
        "error: divide: division by zero",
    ]) {
        let start = format!("Observation: {expected}");
        assert!(line.starts_with(&start), "{line}");
    }
    assert_eq!(outcome.end, ReactEnd::Stopped);
    // The last successful call determines the win, even if other calls or texts follow.
    assert_eq!(react_wins(&texts), (Some(true), Some(true)));
    let score = score_react(&berths_row(), &outcome, &MathRunner).expect("a score");
    assert!(score.parse_error && score.n_steps == 6);
    let report = ReactReport::new(&[score]).expect("a score");
    assert_eq!(report.win_strict.map(|estimate| estimate.value), Some(1.0));
    assert_eq!(
        (
            report.n_run,
            report.steps.value,
            report.parse_error_rate.value
        ),
        (1, 6.0, 1.0)
    );
    assert!(ReactReport::new(&[]).is_err());
}

/// The model reads these texts, so a change of their wording changes its scores.
#[test]
fn the_observations_of_errors_have_a_fixed_wording() {
    let action = |name: &str, arguments: &str| {
        format!("Action: {{\"name\": \"{name}\", \"arguments\": {arguments}}}")
    };
    for (text, observation) in [
        (
            "I do not know.".to_owned(),
            "no call could be read; write Action: and one JSON object with name and arguments",
        ),
        (action("cos", "{}"), "no tool \"cos\" is on offer"),
        (action("sqrt", "{}"), "sqrt has 2 outputs, not one"),
        (action("add", "[1, 2]"), "it has no object of arguments"),
        (
            action("add", r#"{"arg_0": "$var_1$"}"#),
            "the reference \"var_1\" names no output",
        ),
        (
            action("add", r#"{"arg_0": "$var_1.result$"}"#),
            "no earlier call has the label \"var_1\"",
        ),
        (
            action("add", r#"{"arg_1": 1}"#),
            "add has no argument arg_0",
        ),
        (
            action("power", r#"{"base": 1, "mod": 2}"#),
            "power takes no further argument \"mod\"",
        ),
        (
            action("power", r#"{"exponent": 1}"#),
            "power misses an argument",
        ),
        (
            action("add", r#"{"arg_0": 1}"#),
            "add takes 2 arguments, not 1",
        ),
        (
            action("add", r#"{"arg_0": 1, "arg_1": "2"}"#),
            "add: a str is no number",
        ),
        (
            action("max_number", r#"{"arg_0": 3}"#),
            "max_number: a int is no list of numbers",
        ),
        (
            action("max_number", r#"{"arg_0": []}"#),
            "max_number: the list is empty",
        ),
        (
            action("divide", r#"{"arg_0": 1, "arg_1": 0}"#),
            "divide: division by zero",
        ),
    ] {
        let (_, conversations) = run_loop(&berths_row(), ReactLimits::default(), &[&text]);
        assert_eq!(
            conversations[1],
            format!("Observation: error: {observation}"),
            "{text}"
        );
    }
}

#[test]
fn no_result_is_no_win_and_steps_are_limited() {
    assert_eq!(react_wins(&["Finish: 27"]), (Some(false), Some(false)));
    assert_eq!(react_wins(&[]), (Some(false), Some(false)));
    let (outcome, _) = run_loop(&berths_row(), ReactLimits::default(), &["?"; 20]);
    assert_eq!(
        (outcome.end, outcome.steps.len()),
        (ReactEnd::StepLimit, 10)
    );
    let no_steps = ReactLimits {
        max_steps: 0,
        ..ReactLimits::default()
    };
    assert!(ReactLoop::new(&berths_row(), no_steps).is_done());
    let short = ReactLimits {
        max_observation_characters: 2,
        max_steps: 2,
        ..ReactLimits::default()
    };
    let power = "Action: {\"name\": \"power\", \"arguments\": {\"arg_0\": 10, \"arg_1\": 5}}";
    let (outcome, conversations) = run_loop(&berths_row(), short, &[power, power]);
    assert_eq!(conversations[1], "Observation: 10 ... (cut)");
    assert_eq!(
        outcome.end,
        ReactEnd::StepLimit,
        "the last call is still run"
    );
    assert_eq!(
        outcome.last_result().map(python_repr).as_deref(),
        Some("100000")
    );
}
