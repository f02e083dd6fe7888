//! Scores answers against expected calls, rule by rule.

use proptest::prelude::*;

use super::*;

fn berth_call(name: &str, nights: Value) -> WrittenCall {
    call(
        "berth",
        json!({"ship": {"name": name, "draught": 3.5}, "nights": nights}),
    )
}

#[test]
fn each_broken_rule_has_a_message() {
    let gold = || vec![berth_call("Ada", json!(2))];
    for (answer, faults) in [
        (
            berth_call("Ada", json!("2")),
            vec![
                "berth.nights is a string \"2\", expected a number 2",
                "berth.nights: value is not of type \"integer\"",
            ],
        ),
        (
            berth_call("Ada", json!(3)),
            vec!["berth.nights is 3, expected 2"],
        ),
        (
            berth_call("ada", json!(2)),
            vec![
                "berth.ship is {\"name\": \"ada\", \"draught\": 3.5}, expected {\"name\": \"Ada\", \
                 \"draught\": 3.5}",
            ],
        ),
        (
            call("berth", json!({"nights": 2})),
            vec!["berth lacks the required argument ship"],
        ),
        (
            call(
                "berth",
                json!({"ship": {"name": "Ada", "draught": 3.5}, "nights": 2, "mast": 1}),
            ),
            vec!["berth has no argument mast"],
        ),
        (
            call(
                "berth",
                json!({"ship": {"name": "Ada", "draught": 3.5}, "nights": 2,
                "powered": true}),
            ),
            vec!["berth.powered is true, but is not expected"],
        ),
        (
            tide_call("Rye"),
            vec!["unexpected call to tide", "missing call to berth"],
        ),
        (
            call("berths", json!({})),
            vec![
                "unexpected call to berths",
                "unknown tool berths, did you mean \"berth\"?",
                "missing call to berth",
            ],
        ),
    ] {
        let score = score_calls(gold(), vec![answer.clone()]);
        assert_eq!(messages(&score), faults, "{answer:?}");
        assert!(!score.right && score.exact == Some(false), "{answer:?}");
    }
}

#[test]
fn five_equals_five_point_zero_but_no_string() {
    let is_exact = |nights: Value| {
        score_calls(
            vec![berth_call("Ada", json!(5))],
            vec![berth_call("Ada", nights)],
        )
        .exact
            == Some(true)
    };
    assert!(is_exact(json!(5)) && is_exact(json!(5.0)));
    assert!(!is_exact(json!("5")) && !is_exact(json!(5.5)) && !is_exact(json!(null)));
}

#[test]
fn an_absent_argument_equals_its_default_in_gold_and_prediction() {
    let with = |days: u64| call("tide", json!({"port": "Rye", "days": days}));
    for (gold, answer, right) in [
        (tide_call("Rye"), with(1), true),
        (with(1), tide_call("Rye"), true),
        (tide_call("Rye"), with(2), false),
        (with(2), tide_call("Rye"), false),
    ] {
        let score = score_calls(vec![gold.clone()], vec![answer.clone()]);
        assert_eq!(score.right, right, "{gold:?} {answer:?}");
    }
    // Writing a default explicitly does not change the fraction of arguments.
    assert_eq!(
        score_calls(vec![tide_call("Rye")], vec![with(1)]).arguments,
        Some(1.0)
    );
    assert_eq!(
        score_calls(vec![tide_call("Rye")], vec![with(2)]).arguments,
        Some(0.5)
    );
}

#[test]
fn parallel_calls_match_in_any_order_with_exact_pairs_first() {
    let gold = vec![
        berth_call("Ada", json!(2)),
        berth_call("Bee", json!(3)),
        tide_call("Rye"),
    ];
    let reversed: Vec<WrittenCall> = gold.iter().rev().cloned().collect();
    let score = score_calls(gold.clone(), reversed);
    assert!(score.right && score.faults.is_empty());
    // The first predicted call is half right for the first expected call, and exactly the second
    // one.
    let score = score_calls(
        gold.clone(),
        vec![
            berth_call("Bee", json!(3)),
            berth_call("Bee", json!(2)),
            tide_call("Rye"),
        ],
    );
    let are_exact: Vec<bool> = score.calls.iter().map(|call| call.exact).collect();
    assert_eq!(are_exact, [false, true, true]);
    assert_eq!((score.name, score.arguments), (Some(1.0), Some(0.8)));
    // Each expected call is paired with the most similar predicted call, in any order.
    let near_call = |name: &str, nights: u64| {
        call(
            "berth",
            json!({"ship": {"name": name, "draught": 3.5},
        "nights": nights, "mast": 1}),
        )
    };
    let score = score_calls(
        gold[..2].to_vec(),
        vec![near_call("Bee", 3), near_call("Ada", 2)],
    );
    assert_eq!(score.arguments, Some(4.0 / 6.0));
}

#[test]
fn too_many_and_too_few_calls_are_counted() {
    let score = score_calls(
        vec![tide_call("Rye")],
        vec![tide_call("Rye"), tide_call("Rye")],
    );
    assert_eq!(
        (score.right, score.n_extra, score.name),
        (false, 1, Some(1.0))
    );
    assert!(score.calls[0].exact);
    let score = score_calls(
        vec![tide_call("Rye"), tide_call("Hull")],
        vec![tide_call("Hull")],
    );
    assert_eq!(
        (score.right, score.n_extra, score.name),
        (false, 0, Some(0.5))
    );
    assert_eq!(score.arguments, Some(0.5));
    let score = score_calls(vec![tide_call("Rye")], vec![]);
    assert_eq!(
        (score.missed, score.unwanted, score.valid),
        (Some(true), None, None)
    );
    assert_eq!(messages(&score), ["missing call to tide"]);
}

#[test]
fn a_call_instead_of_an_expected_text_is_wrong_and_no_call_is_right() {
    let score = score_text(vec![], "At six.");
    assert!(score.right && score.exact.is_none());
    assert_eq!((score.missed, score.unwanted), (None, Some(false)));
    let call = "<tool_call>{\"name\": \"tide\", \"arguments\": {\"port\": \"Rye\"}}</tool_call>";
    let score = score_text(vec![], call);
    assert_eq!(
        (score.right, score.unwanted, score.n_extra),
        (false, Some(true), 0)
    );
    assert_eq!(
        messages(&score),
        ["unexpected call to tide: text is expected"]
    );
    let score = score_text(vec![], "<tool_call>{\"name\"");
    assert!(!score.right && score.malformed && score.unwanted == Some(true));
    // An attempted call is malformed, not missed.
    let score = score_text(vec![tide_call("Rye")], "<tool_call>{\"name\"");
    assert_eq!(
        (score.missed, score.malformed, score.right),
        (Some(false), true, false)
    );
}

#[test]
fn a_malformed_call_next_to_the_expected_ones_is_not_right() {
    let text = "<tool_call>{\"name\": \"tide\", \"arguments\": {\"port\": \"Rye\"}}</tool_call>\
                <tool_call>{\"name\": </tool_call>";
    let score = score_text(vec![tide_call("Rye")], text);
    assert!(score.calls[0].exact && score.exact == Some(false));
}

#[test]
fn a_call_is_valid_if_its_tool_accepts_it() {
    for (answer, valid) in [
        (tide_call("Hull"), true),
        (call("tide", json!({"port": 3})), false),
        (call("tide", json!({"port": "Rye", "unit": "cm"})), false),
        (
            call("tide", json!({"port": "Rye", "colour": "blue"})),
            false,
        ),
        (call("tide", json!({})), false),
        // The schema does not mention other arguments, and no argument of that name is declared.
        (
            call("berth", json!({"ship": {}, "nights": 1, "mast": 2})),
            false,
        ),
        (call("boat", json!({})), false),
    ] {
        let score = score_calls(vec![tide_call("Rye")], vec![answer.clone()]);
        assert_eq!(score.valid, Some(f64::from(u8::from(valid))), "{answer:?}");
    }
}

#[test]
fn a_tool_without_a_usable_schema_is_checked_by_name_and_counted() {
    let tools = [
        json!({"name": "f", "parameters": {"type": "object", "properties": {"a":
        {"$ref": "#/$defs/none"}}}}),
        json!({"name": "g"}),
    ];
    let gold = vec![call("f", json!({"a": 1})), call("g", json!({"b": 2}))];
    let item = CallsItem {
        id: String::new(),
        message: 0,
        gold: gold.clone(),
        tools: Arc::new(ToolSet::new(&tools)),
    };
    let score = score_turn(&item, &CallsAnswer::from_calls(gold));
    assert!(score.right);
    assert_eq!((score.n_unchecked, score.valid), (2, Some(1.0)));
}

#[test]
fn hostile_schemas_are_checked_within_a_budget() {
    let tools = [
        json!({"name": "f", "parameters": {"$ref": "#", "properties": {"a": {"$ref": "#"}},
        "anyOf": [{"$ref": "#"}, {"$ref": "#/anyOf/0"}, {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}]}}),
    ];
    let item = CallsItem {
        id: String::new(),
        message: 0,
        gold: vec![call("f", json!({"a": {"a": {"a": 1}}}))],
        tools: Arc::new(ToolSet::new(&tools)),
    };
    assert!(score_turn(&item, &item.gold_answer()).right);
}

fn any_calls() -> impl Strategy<Value = Vec<WrittenCall>> {
    let value = prop_oneof![
        Just(json!("Rye")),
        Just(json!(1)),
        Just(json!(1.0)),
        Just(json!("1")),
        Just(json!({"name": "Ada"})),
    ];
    let key = prop_oneof![Just("port"), Just("days"), Just("ship"), Just("mast")];
    let arguments = prop::collection::btree_map(key, value, 0..3);
    let name = prop_oneof![Just("tide"), Just("berth"), Just("boat")];
    let any_call = (name, arguments).prop_map(|(name, arguments)| call(name, json!(arguments)));
    prop::collection::vec(any_call, 0..5)
}

proptest! {
    #[test]
    fn the_gold_scores_one_in_any_order_and_shares_are_between_zero_and_one(
        gold in any_calls(),
        answer in any_calls(),
        seed in any::<prop::sample::Index>(),
    ) {
        let mut reversed = gold.clone();
        if !reversed.is_empty() {
            let by = seed.index(reversed.len());
            reversed.rotate_left(by);
        }
        let score = score_calls(gold.clone(), reversed);
        prop_assert!(score.right && score.faults.is_empty());
        let score = score_calls(gold.clone(), answer.clone());
        for value in [score.name, score.arguments, score.valid].into_iter().flatten() {
            prop_assert!((0.0..=1.0).contains(&value));
        }
        prop_assert_eq!(score.right, score.faults.is_empty());
        let swapped = score_calls(answer, gold);
        prop_assert_eq!(score.right, swapped.right);
    }
}

#[test]
fn formats_are_annotations_for_calls_that_are_scored() {
    let tool = json!({"type": "function", "function": {"name": "book", "parameters": {
        "type": "object",
        "properties": {"day": {"type": "string", "format": "date"}},
    }}});
    let gold = call("book", json!({"day": "20 July 2026"}));
    let item = CallsItem {
        tools: Arc::new(ToolSet::new(&[tool])),
        ..item(vec![gold.clone()])
    };
    let score = score_turn(&item, &CallsAnswer::from_calls(vec![gold]));
    assert!(score.right, "{:?}", messages(&score));
}
