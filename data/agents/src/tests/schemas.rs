//! Checks training targets against the schemas that constrained decoding enforces.

use tooltune_json as json;
use tooltune_synth::goat::{GoatSplit, GoatSynthOptions, documents, generate};

use super::*;

/// Whether the keys of a call are in schema order, as a grammar requires.
fn keeps_order(document: &ApiDocument, arguments: &Map<String, Value>) -> bool {
    let declared: Vec<&str> = document
        .parameters()
        .map(|parameter| parameter.name.as_str())
        .filter(|name| arguments.contains_key(*name))
        .collect();
    arguments.keys().eq(declared)
}

#[test]
fn synthetic_trajectories_satisfy_the_schemas_in_their_order() {
    let catalogue = ApiCatalogue::new(documents()).unwrap();
    let trajectories = generate(&GoatSynthOptions {
        rows: 40,
        ..GoatSynthOptions::new(GoatSplit::Train, 3)
    });
    let mut n_checked = 0;
    for trajectory in trajectories.unwrap() {
        for call in &trajectory.calls {
            let document = catalogue.get(&call.name).unwrap();
            assert!(keeps_order(document, &call.arguments), "{call:?}");
        }
        for method in METHODS {
            let options = GoatOptions::new(method, "documents.jsonl");
            let expansion = Expansion {
                catalogue: &catalogue,
                options: &options,
                seed: 1,
            };
            let examples = expansion.expand(&trajectory, &mut Ranking::Random).unwrap();
            n_checked += replay_calls(&catalogue, &trajectory, method, &examples);
        }
    }
    assert!(n_checked > 300, "{n_checked}");
}

/// Replays a trajectory, and returns the number of texts with a schema.
fn replay_calls(
    catalogue: &ApiCatalogue,
    trajectory: &Trajectory,
    method: Method,
    examples: &[GoatExample],
) -> usize {
    let limits = AgentLimits::default();
    let mut agent = Agent::new(method, &trajectory.query, catalogue, limits);
    let (mut n_texts, mut n_calls, mut n_checked) = (0, 0, 0);
    loop {
        match agent.next() {
            AgentRequest::Retrieve { .. } => {
                let names = trajectory.calls.iter().map(|call| call.name.as_str());
                let positions = names.map(|name| catalogue.position(name).unwrap());
                agent.feed_documents(&positions.collect::<Vec<_>>());
            }
            AgentRequest::Generate { .. } => {
                let text = completion(&examples[n_texts]);
                n_texts += 1;
                if let Some(schema) = agent.text_schema() {
                    let value = json::parse(text).unwrap();
                    let problem = jsonschema::validate(&schema, &value).err();
                    assert!(problem.is_none(), "{problem:?} in {text}");
                    n_checked += 1;
                }
                agent.feed_text(text);
            }
            AgentRequest::Call { .. } => {
                let output = trajectory.calls[n_calls].output.clone();
                agent.feed_result(CallResult::success(output));
                n_calls += 1;
            }
            AgentRequest::Done(_) => return n_checked,
        }
    }
}
