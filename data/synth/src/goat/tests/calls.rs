//! Tests of the executor.

use serde_json::{Map, Value, json};
use tooltune_agents::executors::Executor;

use super::*;

fn arguments(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

fn call_problem(name: &str, call_arguments: Value) -> String {
    let result = GoatExecutor::new().call(name, &arguments(call_arguments));
    let value = result.shown_value();
    let message = result.exception.expect("the call fails");
    assert_eq!(value, json!({"error": message}));
    message
}

#[test]
fn each_invalid_call_is_an_error_with_the_reason() {
    for (name, call_arguments, expected) in [
        (
            "TownDesk/Nothing",
            json!({}),
            "unknown API TownDesk/Nothing",
        ),
        ("Town Info", json!({"town": "x"}), "unknown API Town Info"),
        (
            "FerryLine/Ship Details",
            json!({}),
            "needs the argument ship_id",
        ),
        (
            "FerryLine/Ship Details",
            json!({"ship_id": null}),
            "needs the argument ship_id",
        ),
        (
            "FerryLine/Ship Details",
            json!({"ship_id": 101, "id": 3}),
            "has no parameter id; its parameters are ship_id",
        ),
        (
            "FerryLine/Ship Details",
            json!({"ship_id": "101"}),
            "ship_id must be of type INTEGER, not \"101\"",
        ),
        (
            "FerryLine/Ship Details",
            json!({"ship_id": 101.5}),
            "ship_id must be of type INTEGER, not 101.5",
        ),
        (
            "FerryLine/Find Ship",
            json!({"name": ["Gull"]}),
            "name must be of type STRING",
        ),
        (
            "FerryLine/Find Ship",
            json!({"name": 7}),
            "name must be of type STRING, not 7",
        ),
        (
            "MoneyMill/Add Tax",
            json!({"amount": true, "percent": 5}),
            "amount must be of type NUMBER, not true",
        ),
        (
            "FerryLine/Ship Details",
            json!({"ship_id": 9}),
            "nothing found for ship_id 9",
        ),
        ("FerryLine/Find Ship", json!({"name": " "}), "nothing found"),
        (
            "RoomKey/Inns In Town",
            json!({"town": "Nowhere"}),
            "nothing found for town \"Nowhere\"",
        ),
        (
            "RoomKey/Similar Inns",
            json!({"inn_id": 1}),
            "nothing found for inn_id 1",
        ),
        (
            "MoneyMill/Convert Money",
            json!({"amount": 5, "currency": "XYZ"}),
            "no currency has the code XYZ",
        ),
        (
            "ClockBox/Arrival Time",
            json!({"start": "noon", "minutes": 5}),
            "noon is not a time of day",
        ),
    ] {
        let message = call_problem(name, call_arguments);
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn a_list_obeys_optional_arguments_and_has_at_most_four_rows() {
    let executor = GoatExecutor::new();
    let prices = |call_arguments: Value| -> Vec<i64> {
        let output = executor.execute("RoomKey/Inns In Town", &arguments(call_arguments));
        let output = output.unwrap();
        let inns = output["inns"].as_array().unwrap().iter();
        inns.map(|inn| inn["price"].as_i64().unwrap()).collect()
    };
    let mut n_restricted = 0;
    for row in executor.world().rows("towns") {
        let town = &row["town"];
        let all_prices = prices(json!({"town": town}));
        let lowest = *all_prices.iter().min().unwrap();
        let restricted = prices(json!({"town": town, "max_price": lowest}));
        assert!(restricted.iter().all(|price| *price == lowest));
        n_restricted += usize::from(restricted.len() < all_prices.len());
    }
    assert!(n_restricted > 20);
    let games = |limit: Value| {
        let call_arguments = arguments(json!({"theme": "trading", "limit": limit}));
        let output = executor
            .execute("GameShelf/Games By Theme", &call_arguments)
            .unwrap();
        output["games"].as_array().unwrap().len()
    };
    assert_eq!(
        [games(json!(2)), games(Value::Null), games(json!(99))],
        [2, 4, 4]
    );
}

#[test]
fn names_are_found_in_any_case_and_by_a_word() {
    let executor = GoatExecutor::new();
    let ship = &executor.world().rows("ships")[0];
    let name = ship["name"].as_str().unwrap();
    for query in [name.to_owned(), name.to_uppercase(), format!(" {name} ")] {
        let output = executor.execute("FerryLine/Find Ship", &arguments(json!({"name": query})));
        let ships = output.unwrap()["ships"].clone();
        assert_eq!(ships, json!([{"ship_id": ship["ship_id"], "name": name}]));
    }
    let part = name.split(' ').next().unwrap();
    let output = executor.execute("FerryLine/Find Ship", &arguments(json!({"name": part})));
    assert!(output.unwrap()["ships"].as_array().unwrap().len() > 1);
}

#[test]
fn similar_rows_match_the_given_row_and_exclude_it() {
    let executor = GoatExecutor::new();
    let games = executor.world().rows("games");
    for game in games {
        let game_argument = arguments(json!({"game_id": game["game_id"]}));
        let output = executor
            .execute("GameShelf/Similar Games", &game_argument)
            .unwrap();
        for similar in output["games"].as_array().unwrap() {
            assert_ne!(similar["game_id"], game["game_id"]);
            let row = games
                .iter()
                .find(|row| row["game_id"] == similar["game_id"]);
            assert_eq!(row.unwrap()["theme"], game["theme"]);
        }
    }
}

#[test]
fn gold_calls_reproduce_the_gold_outputs() {
    let mut executor = GoatExecutor::new();
    for call in default_rows().flat_map(|row| &row.calls) {
        let result = executor.call(&call.name, &call.arguments);
        assert_eq!(result.exception, None, "{call:?}");
        assert_eq!(result.output.to_string(), call.output.to_string());
    }
}
