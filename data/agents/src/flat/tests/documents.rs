//! Documents of nested APIs as agents see them.

use serde_json::{Map, Value, json};
use tooltune_rows::tools::{ApiCatalogue, ApiDocument, Trajectory};

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
    let now = json!({"api_name": "GET /now", "optional_parameters": [{"name": "zone"}]});
    let documents = [order, now].map(|value| ApiDocument::try_from(value).expect("a document"));
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

fn order() -> Value {
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
fn documents_are_flat_where_they_are_shown() {
    let flat = FlatDocuments::new(&catalogue(), &flattening(1));
    let order = flat.catalogue().get("POST /orders").expect("it");
    let names = |parameters: &[tooltune_rows::tools::ApiParameter]| {
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
    let shown = order.prompt_value();
    assert_eq!(
        shown["parameters"]["items_0_quantity"],
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
    assert_eq!(flat.report().lines()[0], "1 of 2 schemas are flat now");
}

#[test]
fn trajectories_teach_flat_calls_that_fit_the_flat_documents() {
    let flat = FlatDocuments::new(&catalogue(), &flattening(1));
    let nested = trajectory(order());
    nested
        .check(&catalogue())
        .expect("it fits the nested documents");
    let shown = flat.trajectory(nested).expect("a flat form");
    let written = json!({"customer_name": "Alice", "customer_address_city": "Portland",
        "items_0_sku": "WIDGET-1", "items_0_quantity": 2, "note": "Leave at door"});
    assert_eq!(Value::Object(shown.calls[1].arguments.clone()), written);
    let derived: Vec<&str> = shown.calls[1].derived.keys().map(String::as_str).collect();
    assert_eq!(derived, ["customer_address_city", "customer_name"]);
    let options = GoatOptions::new(Method::Global, "");
    let expansion = Expansion {
        catalogue: flat.catalogue(),
        options: &options,
        seed: 1,
    };
    let examples = expansion
        .expand(&shown, &mut Ranking::Random)
        .expect("examples");
    let calls = examples
        .iter()
        .filter_map(|one| one.conversation.messages.last()?.content.clone());
    assert!(
        calls
            .into_iter()
            .any(|text| text.contains("\"customer_address_city\": \"Portland\""))
    );

    let two = json!({"customer": {"name": "A"}, "items": [{"sku": "a"}, {"sku": "b"}]});
    let said = flat
        .trajectory(trajectory(two.clone()))
        .expect_err("two items")
        .to_string();
    assert!(
        said.contains("calls[1].arguments have no flat form") && said.contains("flatten_slots"),
        "{said}"
    );
    let wide = FlatDocuments::new(&catalogue(), &flattening(2));
    wide.trajectory(trajectory(two)).expect("two slots");
    let empty = json!({"customer": {"name": "A", "address": {}}, "items": [{"sku": "a"}]});
    let said = flat
        .trajectory(trajectory(empty))
        .expect_err("an empty object")
        .to_string();
    assert!(said.contains("is lost"), "{said}");
}

/// The call that reaches the executor, the loop's record of it and the prompt that follows.
fn called(written: &Value) -> (Option<Value>, crate::Outcome, String) {
    let flat = FlatDocuments::new(&catalogue(), &flattening(1));
    let limits = AgentLimits::default();
    let mut agent = Agent::with_flat_documents(Method::React, "Order.", &flat, limits);
    agent.feed_documents(&[0, 1]);
    let call = json!({"name": "POST /orders", "arguments": written});
    agent.feed_text(&format!("Thought: I order.\nAction: {call}"));
    let sent = match agent.next() {
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
    (sent, outcome, prompt)
}

#[test]
fn what_a_model_writes_flat_arrives_nested_and_is_kept_nested() {
    let flat = FlatDocuments::new(&catalogue(), &flattening(1));
    let written = flat.trajectory(trajectory(order())).expect("flat").calls[1]
        .arguments
        .clone();
    let (sent, outcome, prompt) = called(&Value::Object(written));
    assert_eq!(sent, Some(order()));
    assert_eq!(outcome.calls[0].arguments, Some(object(&order())));
    assert!(
        prompt.contains("Call 1: {\"name\": \"POST /orders\", \"arguments\": {\"customer_name\""),
        "{prompt}"
    );
}

#[test]
fn a_name_that_the_flat_form_does_not_have_is_a_failed_call() {
    let written = json!({"customer_name": "Alice", "customer_city": "Portland"});
    let (sent, outcome, prompt) = called(&written);
    assert_eq!(sent, None, "nothing is sent");
    let call = &outcome.calls[0];
    let said = call.exception.as_deref().expect("it failed");
    assert!(
        said.starts_with("POST /orders:") && said.contains("customer_city"),
        "{said}"
    );
    assert_eq!(call.arguments, Some(object(&written)));
    assert_eq!(outcome.failures.len(), 1);
    assert!(prompt.contains("Result 1: {\"error\""), "{prompt}");
}
