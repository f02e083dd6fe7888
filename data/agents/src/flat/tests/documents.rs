//! Tests flat documents of nested APIs, as shown to agents.

use serde_json::{Map, Value, json};
use tooltune_apis::{ApiCatalogue, ApiDocument, Trajectory};

use crate::executors::CallResult;
use crate::flat::{FlatDocuments, FlattenOptions, FlattenWhen, RowFlattening};
use crate::{Agent, AgentLimits, AgentRequest, Expansion, GoatOptions, Method, Ranking};

fn catalogue() -> ApiCatalogue {
    let customer = json!({"type": "object", "required": ["name"], "properties": {
        "name": {"type": "string", "description": "Full name."},
        "address": {"type": "object", "required": ["city"], "properties": {
            "street": {"type": "string"}, "city": {"type": "string"},
            "kind": {"type": "string", "enum": ["home", "work"]}}}}});
    let items = json!({"type": "array", "items": {"type": "object", "required": ["sku"],
        "properties": {"sku": {"type": "string"}, "quantity": {"type": "integer"}}}});
    let order = json!({"api_name": "POST /orders", "required_parameters": [
        {"name": "customer", "type": "object", "in": "body", "schema": customer},
        {"name": "items", "type": "array", "in": "body", "schema": items}],
        "optional_parameters": [{"name": "note", "type": "string", "description": "A word."}]});
    let now_document = json!({"api_name": "GET /now", "optional_parameters": [{"name": "zone"}]});
    let documents =
        [order, now_document].map(|value| ApiDocument::try_from(value).expect("a document"));
    ApiCatalogue::new(documents.to_vec()).expect("two names")
}

fn flattening(slots: usize) -> RowFlattening {
    RowFlattening {
        when: FlattenWhen::Always,
        options: FlattenOptions {
            slots,
            ..FlattenOptions::default()
        },
        ..RowFlattening::default()
    }
}

fn order_gold() -> Value {
    json!({"customer": {"name": "Alice", "address": {"city": "Portland"}},
        "items": [{"sku": "WIDGET-1", "quantity": 2}], "note": "Leave at door"})
}

fn trajectory(order: Value) -> Trajectory {
    let row = json!({"id": "t1", "query": "Order for Alice.", "response": "Order 7.", "calls": [
        {"sub_query": "The time.", "name": "GET /now", "arguments": {}, "output": {"city": "Portland"}},
        {"sub_query": "Order.", "name": "POST /orders", "arguments": order, "output": {"id": 7},
         "derived": {"customer": {"call": 0, "path": "city"}}}]});
    Trajectory::try_from(row).expect("a trajectory")
}

fn object(value: &Value) -> Map<String, Value> {
    value.as_object().expect("an object").clone()
}

#[test]
fn documents_in_prompts_are_flat() {
    let flat = FlatDocuments::new(&catalogue(), &flattening(1));
    let order = flat.catalogue().get("POST /orders").expect("it");
    let names = |parameters: &[tooltune_apis::ApiParameter]| {
        let names = parameters.iter().map(|parameter| parameter.name.clone());
        names.collect::<Vec<_>>()
    };
    assert_eq!(names(&order.required_parameters), ["customer_name"]);
    let optional = [
        "customer_address_street",
        "customer_address_city",
        "customer_address_kind",
        "items_0_sku",
        "items_0_quantity",
        "note",
    ];
    assert_eq!(names(&order.optional_parameters), optional);
    let text = order.retriever_text();
    assert!(
        text.contains("Required: customer_name (string) Full name."),
        "{text}"
    );
    assert!(
        text.contains("customer_address_kind (string) One of: home, work"),
        "{text}"
    );
    let prompt_document = order.prompt_value();
    assert_eq!(
        prompt_document["parameters"]["items_0_quantity"],
        json!({"type": "integer"})
    );
    let schema = order.call_schema();
    let arguments = &schema["properties"]["arguments"];
    assert_eq!(
        arguments["properties"]["customer_address_kind"]["enum"],
        json!(["home", "work"])
    );
    assert_eq!(arguments["additionalProperties"], json!(false));
    assert_eq!(
        flat.catalogue().get("GET /now"),
        catalogue().get("GET /now")
    );
    assert_eq!(flat.report().lines()[0], "1 of 2 schemas were flattened");
}

#[test]
fn trajectories_contain_flat_calls_that_match_the_flat_documents() {
    let flat = FlatDocuments::new(&catalogue(), &flattening(1));
    let nested = trajectory(order_gold());
    nested
        .check(&catalogue())
        .expect("it fits the nested documents");
    let flat_trajectory = flat.trajectory(nested).expect("a flat form");
    let flat_arguments = json!({"customer_name": "Alice", "customer_address_city": "Portland",
        "items_0_sku": "WIDGET-1", "items_0_quantity": 2, "note": "Leave at door"});
    assert_eq!(
        Value::Object(flat_trajectory.calls[1].arguments.clone()),
        flat_arguments
    );
    let derived_names: Vec<&str> = flat_trajectory.calls[1]
        .derived
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(derived_names, ["customer_address_city", "customer_name"]);
    let options = GoatOptions::new(Method::Global, "");
    let expansion = Expansion {
        catalogue: flat.catalogue(),
        options: &options,
        seed: 1,
    };
    let examples = expansion
        .expand(&flat_trajectory, &mut Ranking::Random)
        .expect("examples");
    let calls = examples
        .iter()
        .filter_map(|example| example.conversation.messages.last()?.content.clone());
    assert!(
        calls
            .into_iter()
            .any(|text| text.contains("\"customer_address_city\": \"Portland\""))
    );

    let two = json!({"customer": {"name": "A"}, "items": [{"sku": "a"}, {"sku": "b"}]});
    let message = flat
        .trajectory(trajectory(two.clone()))
        .expect_err("two items")
        .to_string();
    assert!(
        message.contains("calls[1].arguments cannot be flattened")
            && message.contains("flatten_slots"),
        "{message}"
    );
    let wide = FlatDocuments::new(&catalogue(), &flattening(2));
    wide.trajectory(trajectory(two)).expect("two slots");
    let empty = json!({"customer": {"name": "A", "address": {}}, "items": [{"sku": "a"}]});
    let message = flat
        .trajectory(trajectory(empty))
        .expect_err("an empty object")
        .to_string();
    assert!(message.contains("would be lost"), "{message}");
}

/// Returns the arguments that reach the executor, the outcome of the loop, and the next prompt.
fn call_api(flat_arguments: &Value) -> (Option<Value>, crate::Outcome, String) {
    let flat = FlatDocuments::new(&catalogue(), &flattening(1));
    let limits = AgentLimits::default();
    let mut agent = Agent::with_flat_documents(Method::React, "Order.", &flat, limits);
    agent.feed_documents(&[0, 1]);
    let call = json!({"name": "POST /orders", "arguments": flat_arguments});
    agent.feed_text(&format!("Thought: I order.\nAction: {call}"));
    let nested_arguments = match agent.next() {
        AgentRequest::Call { arguments, .. } => {
            agent.feed_result(CallResult::success(json!({"id": 7})));
            Some(Value::Object(arguments))
        }
        _ => None,
    };
    let AgentRequest::Generate { conversation, .. } = agent.next() else {
        panic!("a further step");
    };
    let prompt = conversation.messages[0].content.clone().expect("a prompt");
    agent.feed_text("Finish: Done.");
    let AgentRequest::Done(outcome) = agent.next() else {
        panic!("the end");
    };
    (nested_arguments, outcome, prompt)
}

#[test]
fn a_flat_call_of_the_model_is_executed_and_stored_nested() {
    let flat = FlatDocuments::new(&catalogue(), &flattening(1));
    let flat_arguments = flat
        .trajectory(trajectory(order_gold()))
        .expect("flat")
        .calls[1]
        .arguments
        .clone();
    let (nested_arguments, outcome, prompt) = call_api(&Value::Object(flat_arguments));
    assert_eq!(nested_arguments, Some(order_gold()));
    assert_eq!(outcome.calls[0].arguments, Some(object(&order_gold())));
    assert!(
        prompt.contains("Call 1: {\"name\": \"POST /orders\", \"arguments\": {\"customer_name\""),
        "{prompt}"
    );
}

#[test]
fn a_call_with_an_unknown_flat_name_fails() {
    let flat_arguments = json!({"customer_name": "Alice", "customer_city": "Portland"});
    let (nested_arguments, outcome, prompt) = call_api(&flat_arguments);
    assert_eq!(nested_arguments, None, "nothing is sent");
    let call = &outcome.calls[0];
    let message = call.exception.as_deref().expect("it failed");
    assert!(
        message.starts_with("POST /orders:") && message.contains("customer_city"),
        "{message}"
    );
    assert_eq!(call.arguments, Some(object(&flat_arguments)));
    assert_eq!(outcome.failures.len(), 1);
    assert!(prompt.contains("Result 1: {\"error\""), "{prompt}");
}
