//! Answers against wanted calls, rule by rule.

use proptest::prelude::*;

use super::*;

fn berth(name: &str, nights: Value) -> WrittenCall {
    call(
        "berth",
        json!({"ship": {"name": name, "draught": 3.5}, "nights": nights}),
    )
}

#[test]
fn each_rule_that_is_broken_is_told_in_words() {
    let gold = || vec![berth("Ada", json!(2))];
    for (answer, faults) in [
        (
            berth("Ada", json!("2")),
            vec![
                "berth.nights is a text \"2\", not a number 2",
                "berth.nights: value is not of type \"integer\"",
            ],
        ),
        (berth("Ada", json!(3)), vec!["berth.nights is 3, not 2"]),
        (
            berth("ada", json!(2)),
            vec![
                "berth.ship is {\"name\": \"ada\", \"draught\": 3.5}, not {\"name\": \"Ada\", \
                 \"draught\": 3.5}",
            ],
        ),
        (
            call("berth", json!({"nights": 2})),
            vec!["berth lacks ship, which it requires"],
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
            vec!["berth.powered is true, and is not wanted"],
        ),
        (
            tide("Rye"),
            vec![
                "tide is called and not wanted",
                "berth is wanted and not called",
            ],
        ),
        (
            call("berths", json!({})),
            vec![
                "berths is called and not wanted",
                "no tool is called berths, did you mean \"berth\"?",
                "berth is wanted and not called",
            ],
        ),
    ] {
        let score = made(gold(), vec![answer.clone()]);
        assert_eq!(messages(&score), faults, "{answer:?}");
        assert!(!score.right && score.exact == Some(false), "{answer:?}");
    }
}

#[test]
fn five_is_five_point_nought_and_no_text() {
    let exact = |nights: Value| {
        made(vec![berth("Ada", json!(5))], vec![berth("Ada", nights)]).exact == Some(true)
    };
    assert!(exact(json!(5)) && exact(json!(5.0)));
    assert!(!exact(json!("5")) && !exact(json!(5.5)) && !exact(json!(null)));
}

#[test]
fn an_absent_argument_is_its_default_on_both_sides() {
    let with = |days: u64| call("tide", json!({"port": "Rye", "days": days}));
    for (gold, answer, right) in [
        (tide("Rye"), with(1), true),
        (with(1), tide("Rye"), true),
        (tide("Rye"), with(2), false),
        (with(2), tide("Rye"), false),
    ] {
        let score = made(vec![gold.clone()], vec![answer.clone()]);
        assert_eq!(score.right, right, "{gold:?} {answer:?}");
    }
    // A default that is written adds nothing to the share of arguments.
    assert_eq!(made(vec![tide("Rye")], vec![with(1)]).arguments, Some(1.0));
    assert_eq!(made(vec![tide("Rye")], vec![with(2)]).arguments, Some(0.5));
}

#[test]
fn parallel_calls_may_come_in_any_order_and_exact_ones_are_paired_first() {
    let gold = vec![berth("Ada", json!(2)), berth("Bee", json!(3)), tide("Rye")];
    let turned: Vec<WrittenCall> = gold.iter().rev().cloned().collect();
    let score = made(gold.clone(), turned);
    assert!(score.right && score.faults.is_empty());
    // The first that is made is half of the first wanted one, and all of the second.
    let score = made(
        gold.clone(),
        vec![berth("Bee", json!(3)), berth("Bee", json!(2)), tide("Rye")],
    );
    let exact: Vec<bool> = score.calls.iter().map(|call| call.exact).collect();
    assert_eq!(exact, [false, true, true]);
    assert_eq!((score.name, score.arguments), (Some(1.0), Some(0.8)));
    // Each wanted call gets the one that is the nearest, whatever the order.
    let near = |name: &str, nights: u64| {
        call(
            "berth",
            json!({"ship": {"name": name, "draught": 3.5},
        "nights": nights, "mast": 1}),
        )
    };
    let score = made(gold[..2].to_vec(), vec![near("Bee", 3), near("Ada", 2)]);
    assert_eq!(score.arguments, Some(4.0 / 6.0));
}

#[test]
fn too_many_and_too_few_calls_are_counted() {
    let score = made(vec![tide("Rye")], vec![tide("Rye"), tide("Rye")]);
    assert_eq!(
        (score.right, score.n_extra, score.name),
        (false, 1, Some(1.0))
    );
    assert!(score.calls[0].exact);
    let score = made(vec![tide("Rye"), tide("Hull")], vec![tide("Hull")]);
    assert_eq!(
        (score.right, score.n_extra, score.name),
        (false, 0, Some(0.5))
    );
    assert_eq!(score.arguments, Some(0.5));
    let score = made(vec![tide("Rye")], vec![]);
    assert_eq!(
        (score.missed, score.unwanted, score.valid),
        (Some(true), None, None)
    );
    assert_eq!(messages(&score), ["tide is wanted and not called"]);
}

#[test]
fn a_call_where_a_text_is_wanted_is_wrong_and_no_call_is_right() {
    let score = written(vec![], "At six.");
    assert!(score.right && score.exact.is_none());
    assert_eq!((score.missed, score.unwanted), (None, Some(false)));
    let call = "<tool_call>{\"name\": \"tide\", \"arguments\": {\"port\": \"Rye\"}}</tool_call>";
    let score = written(vec![], call);
    assert_eq!(
        (score.right, score.unwanted, score.n_extra),
        (false, Some(true), 0)
    );
    assert_eq!(messages(&score), ["tide is called where a text is wanted"]);
    let score = written(vec![], "<tool_call>{\"name\"");
    assert!(!score.right && score.malformed && score.unwanted == Some(true));
    // A call that was begun is malformed, and not missed.
    let score = written(vec![tide("Rye")], "<tool_call>{\"name\"");
    assert_eq!(
        (score.missed, score.malformed, score.right),
        (Some(false), true, false)
    );
}

#[test]
fn a_broken_call_beside_the_wanted_ones_is_not_right() {
    let text = "<tool_call>{\"name\": \"tide\", \"arguments\": {\"port\": \"Rye\"}}</tool_call>\
                <tool_call>{\"name\": </tool_call>";
    let score = written(vec![tide("Rye")], text);
    assert!(score.calls[0].exact && score.exact == Some(false));
}

#[test]
fn a_call_is_valid_where_its_tool_takes_it() {
    for (answer, valid) in [
        (tide("Hull"), true),
        (call("tide", json!({"port": 3})), false),
        (call("tide", json!({"port": "Rye", "unit": "cm"})), false),
        (
            call("tide", json!({"port": "Rye", "colour": "blue"})),
            false,
        ),
        (call("tide", json!({})), false),
        // Its schema says nothing of others, and no argument of that name is declared.
        (
            call("berth", json!({"ship": {}, "nights": 1, "mast": 2})),
            false,
        ),
        (call("boat", json!({})), false),
    ] {
        let score = made(vec![tide("Rye")], vec![answer.clone()]);
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
    let score = score_turn(&item, &CallsAnswer::of_calls(gold));
    assert!(score.right);
    assert_eq!((score.n_unchecked, score.valid), (2, Some(1.0)));
}

#[test]
fn hostile_schemas_cost_their_budget_and_no_more() {
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
    let one = (name, arguments).prop_map(|(name, arguments)| call(name, json!(arguments)));
    prop::collection::vec(one, 0..5)
}

proptest! {
    #[test]
    fn the_gold_is_right_in_any_order_and_shares_are_shares(
        gold in any_calls(),
        answer in any_calls(),
        seed in any::<prop::sample::Index>(),
    ) {
        let mut turned = gold.clone();
        if !turned.is_empty() {
            let by = seed.index(turned.len());
            turned.rotate_left(by);
        }
        let score = made(gold.clone(), turned);
        prop_assert!(score.right && score.faults.is_empty());
        let score = made(gold.clone(), answer.clone());
        for value in [score.name, score.arguments, score.valid].into_iter().flatten() {
            prop_assert!((0.0..=1.0).contains(&value));
        }
        prop_assert_eq!(score.right, score.faults.is_empty());
        let back = made(answer, gold);
        prop_assert_eq!(score.right, back.right);
    }
}
