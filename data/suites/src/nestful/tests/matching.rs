//! Tests of grounding, texts, alignment, F1 and the shapes of gold sequences.

use tooltune_json::python::python_repr;

use super::*;

fn grounded_texts(text: &str) -> Option<Vec<String>> {
    let call = |call: GroundedCall| {
        format!(
            "{} {}",
            call.name,
            python_repr(&PyValue::Dict(call.arguments))
        )
    };
    Some(ground_calls(&calls(text))?.into_iter().map(call).collect())
}

fn score(gold: &str, completion: &str) -> SampleScore {
    let row = row(gold, "0");
    score_sample(&row, completion, Parser::JsonList, &MathRunner).expect("a score")
}

/// A call of `name` with a single argument.
fn plain_call(name: &str) -> String {
    format!(r#"{{"name": "{name}", "label": "${name}", "arguments": {{"arg_0": 1}}}}"#)
}

fn sequence(names: &[&str]) -> String {
    let calls: Vec<String> = names.iter().map(|name| plain_call(name)).collect();
    format!("[{}]", calls.join(", "))
}

#[test]
fn a_reference_resolves_to_the_last_call_with_its_label() {
    let text = r#"[
        {"name": "add", "label": "$var_1", "arguments": {}},
        {"name": "multiply", "label": "var_1", "arguments": {"a": "$var_1.result$", "b": "var_1.result$",
         "c": "$var_1$", "d": ["$var_1.result$", ["$var_1.result$"]], "e": {"f": "$var_1.result$"},
         "g": "$var_9.result$", "h": "$var_1.result", "i": "$var_1.x + var_1"}}]"#;
    assert_eq!(
        grounded_texts(text).expect("calls")[1],
        "multiply {'a': '$multiply.result$', 'b': 'var_1.result$', 'c': '$var_1$', \
         'd': ['$multiply.result$', ['$var_1.result$']], 'e': {'f': '$var_1.result$'}, \
         'g': '$var_9.result$', 'h': '$multiply.result', 'i': '$multiply.x + multiply'}"
    );
    // With ten labels, `var_1` must not match a part of `$var_10.result$`.
    let ten_labels = r#"[{"name": "a", "label": "$var_1", "arguments": {}},
        {"name": "b", "label": "$var_10", "arguments": {"x": "$var_10.result$"}}]"#;
    assert_eq!(
        grounded_texts(ten_labels).expect("calls")[1],
        "b {'x': '$b.result$'}"
    );
}

#[test]
fn grounded_calls_keep_parameter_names_and_drop_results() {
    let text = r#"[{"name": "add", "parameters": {"a": 1}}, {"name": "add"},
        {"name": "var_result", "arguments": {"r": 1}}, {"name": 5, "arguments": {}}]"#;
    assert_eq!(
        grounded_texts(text).expect("calls"),
        ["add {'a': 1}", "add {}", "5 {}"]
    );
}

#[test]
fn one_invalid_call_invalidates_all_calls() {
    for invalid in [
        "1",
        "\"add\"",
        r#"{"label": "$var_1", "arguments": {}}"#,
        r#"{"name": "add", "arguments": [1, 2]}"#,
        r#"{"name": "add", "label": 3, "arguments": {}}"#,
    ] {
        let text = format!("[{}, {invalid}]", plain_call("add"));
        assert!(grounded_texts(&text).is_none(), "{invalid}");
        let scored = score(BERTHS, &text);
        assert!(scored.parse_error && scored.n_pred == 0, "{invalid}");
        assert_eq!((scored.partial, scored.full), (0.0, false));
    }
}

#[test]
fn sequences_of_equal_length_are_compared_by_position_and_others_by_name() {
    let rows: [(&[&str], &[&str], f64); 9] = [
        (&["a", "b", "c"], &["a", "b", "c"], 1.0),
        (&["a", "b", "c"], &["c", "b", "a"], 1.0 / 3.0),
        (&["a", "b", "c"], &["a", "b"], 2.0 / 3.0),
        (&["a", "b", "c"], &["b", "c"], 2.0 / 3.0),
        (&["a", "b"], &["a", "a", "b"], 1.0 / 4.0),
        (&["a", "b"], &["x", "a", "b"], 0.0),
        (&["a", "b"], &["a", "b", "x"], 2.0 / 3.0),
        (&["a", "b", "c"], &["a", "x", "b", "c"], 1.0 / 6.0),
        (&["a"], &[], 0.0),
    ];
    for (gold, pred, expected) in rows {
        let scored = score(&sequence(gold), &sequence(pred));
        assert_eq!(scored.partial, expected, "{gold:?} {pred:?}");
        assert_eq!(scored.full, expected == 1.0);
    }
}

#[test]
fn values_are_compared_as_printed_in_any_argument_order() {
    let with = |arguments: &str| {
        format!(r#"[{{"name": "add", "label": "$var_1", "arguments": {arguments}}}]"#)
    };
    let gold = with(r#"{"a": 2, "b": [1, null, {"k": "v"}]}"#);
    for (arguments, expected) in [
        (r#"{"b": [1, null, {"k": "v"}], "a": 2}"#, 1.0),
        (r#"{"a": "2", "b": "[1, None, {'k': 'v'}]"}"#, 1.0),
        (r#"{"a": 2.0, "b": [1, null, {"k": "v"}]}"#, 0.0),
        (r#"{"a": 2, "b": ["1", null, {"k": "v"}]}"#, 0.0),
        (r#"{"a": 2}"#, 0.0),
    ] {
        assert_eq!(
            score(&gold, &with(arguments)).partial,
            expected,
            "{arguments}"
        );
    }
    // If a reference lacks its closing `$`, it is added in predictions only.
    let completion = BERTHS.replace("$var_1.result$", "$var_1.result");
    assert!(score(BERTHS, &completion).full);
    assert!(!score(&completion, BERTHS).full);
}

#[test]
fn slots_are_read_from_the_last_call_and_a_dummy_has_none() {
    let completion = r#"[{"name": "add", "arguments": {"arg_0": 1}},
        {"name": "add", "arguments": {"arg_0": 2, "arg_1": true}}, {"name": "dummy", "arguments": {}}]"#;
    let scored = score(BERTHS, completion);
    assert_eq!(scored.pred_names, ["add", "add"]);
    assert_eq!(scored.gold_names, ["multiply", "add"]);
    assert_eq!(scored.n_pred, 3);
    let slots: Vec<(Vec<String>, Vec<String>)> = scored
        .slot_rows
        .into_iter()
        .map(|row| (row.gold, row.pred))
        .collect();
    let texts = |names: &[&str]| {
        names
            .iter()
            .map(|name| (*name).to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        slots,
        [
            (
                texts(&["arg_0 = $multiply.result$", "arg_1 = 3"]),
                texts(&["arg_0 = 2", "arg_1 = True"]),
            ),
            (texts(&["arg_0 = 2", "arg_1 = 12"]), vec![]),
        ]
    );
}

#[test]
fn f1_is_averaged_over_the_labels_of_the_golds() {
    let texts = |labels: &[&str]| {
        labels
            .iter()
            .map(|label| (*label).to_owned())
            .collect::<Vec<_>>()
    };
    let mut counter = MacroF1Counter::default();
    counter.add(&texts(&["a", "b", "a"]), &texts(&["a", "x"]));
    counter.add(&texts(&["a", "c"]), &texts(&["a", "b", "c", "c"]));
    counter.add(&texts(&["a"]), &[]);
    // a: 2 of 3 found, none wrong; b: one missed, one wrong; c: right; x is not a class.
    let means = counter.macro_f1();
    assert_eq!(means.precision, (1.0 + 0.0 + 1.0) / 3.0);
    assert_eq!(means.recall, (2.0 / 3.0 + 0.0 + 1.0) / 3.0);
    assert_eq!(means.f1, (0.8 + 0.0 + 1.0) / 3.0);
    assert_eq!(MacroF1Counter::default().macro_f1(), MacroF1::default());
    // A single class is not treated as a binary problem: rows without it do not count as correct.
    let mut single = MacroF1Counter::default();
    single.add(&texts(&["a"]), &texts(&["a"]));
    single.add(&[], &[]);
    assert_eq!(single.macro_f1().f1, 1.0);
}

#[test]
fn dag_statistics_describe_a_sequence() {
    let call = |label: usize, references: &[&str]| {
        let arguments: Vec<String> = references
            .iter()
            .enumerate()
            .map(|(idx, reference)| format!("\"a{idx}\": {reference}"))
            .collect();
        let arguments = arguments.join(", ");
        format!(r#"{{"name": "f", "label": "$var_{label}", "arguments": {{{arguments}}}}}"#)
    };
    let r = [
        "",
        "\"$var_1.result$\"",
        "\"$var_2.result$\"",
        "\"$var_3.result$\"",
    ];
    let measure =
        |call_texts: &[String]| dag_statistics(&calls(&format!("[{}]", call_texts.join(", "))));
    let counts = |dag: DagStatistics| {
        (
            dag.max_depth,
            dag.dependencies,
            dag.references,
            dag.unresolved,
            dag.components,
            dag.unused_outputs,
        )
    };
    let independent = measure(&[call(1, &[]), call(2, &[])]);
    assert_eq!(
        (counts(independent), independent.pattern),
        ((0, 0, 0, 0, 2, 1), DagPattern::None)
    );
    let chain = measure(&[call(1, &[]), call(2, &[r[1], r[1]]), call(3, &[r[2]])]);
    assert_eq!(
        (counts(chain), chain.pattern),
        ((2, 2, 3, 0, 1, 0), DagPattern::Chain)
    );
    let fan_in = measure(&[call(1, &[]), call(2, &[]), call(3, &[r[1], r[2]])]);
    assert_eq!(
        (counts(fan_in), fan_in.pattern),
        ((1, 2, 2, 0, 1, 0), DagPattern::FanIn)
    );
    let fan_out = measure(&[call(1, &[]), call(2, &[r[1]]), call(3, &[r[1]])]);
    assert_eq!(
        (counts(fan_out), fan_out.pattern),
        ((1, 2, 2, 0, 1, 1), DagPattern::FanOut)
    );
    let diamond = measure(&[
        call(1, &[]),
        call(2, &[r[1]]),
        call(3, &[r[1]]),
        call(4, &[r[2], r[3]]),
    ]);
    assert_eq!(
        (counts(diamond), diamond.pattern),
        ((2, 4, 4, 0, 1, 0), DagPattern::Mixed)
    );
    let dangling = measure(&[
        call(1, &[r[2], "\"$5 and more$\""]),
        call(2, &["[{\"k\": \"$var_1.x$\"}]"]),
    ]);
    assert_eq!(
        (counts(dangling), dangling.pattern),
        ((1, 1, 2, 1, 1, 0), DagPattern::Chain)
    );
    let nested = measure(&[
        call(1, &[]),
        call(2, &[]),
        call(3, &["\"for $5: 2 * $var_1.a b$ - $var_2.c$ or $var_9.d$\""]),
        call(4, &["\"$var_1.a$ - $var_3.a$\"", "\"$5\"", "\"$varé\""]),
    ]);
    assert_eq!(
        (counts(nested), nested.pattern),
        ((2, 4, 5, 1, 1, 0), DagPattern::Mixed)
    );
    let result = r#"[{"name": "var_result", "arguments": {"r": "$var_1.result$"}}]"#;
    let returned = dag_statistics(&calls(result));
    assert_eq!((returned.calls, returned.references), (0, 0));
}
