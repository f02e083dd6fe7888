//! The first stage: a model writes pairs of a text and its JSON, or the JSON of given texts.

use serde_json::{Value, json};
use tooltune_rows::batches::SeededRandom;

use super::dimensions::Target;
use super::rows::{Demonstration, GivenText, WrittenPair};
use super::{ANNOTATE, GENERATE, SlotOptions};
use crate::ask::Asked;
use crate::error::PipelineError;
use crate::generator::Prompt;
use crate::prompts::Prompts;
use crate::reply;
use crate::report::Dropped;
use crate::run::{Made, Run};

/// Stream base of the batches; other uses of a seed have streams of their own.
const BATCH_STREAM: u64 = 0x736C_6F74_6C6D_0000;
/// Pairs of one reply, as in the paper's prompt.
pub(super) const PAIRS_PER_REQUEST: usize = 3;
/// Demonstrations of a prompt, from one on.
const MOST_DEMONSTRATIONS: usize = 3;
/// Temperatures are drawn from 0 to 0.5 in steps of this many to one; so a model here can write
/// those of one temperature together.
const TEMPERATURE_STEPS: usize = 20;
const MOST_TEMPERATURE_STEPS: usize = 10;

/// One request of generation.
#[derive(Debug, Clone)]
pub(super) struct Batch {
    pub(super) asked: Asked,
    target: Target,
    n_pairs: usize,
}

/// All requests of generation, a function of the options and the demonstrations.
pub(super) fn batches(
    options: &SlotOptions,
    demonstrations: &[Demonstration],
    prompts: &Prompts,
) -> Result<Vec<Batch>, PipelineError> {
    let n_batches = options.rows.div_ceil(PAIRS_PER_REQUEST);
    let batch = |batch_idx: usize| {
        let stream = BATCH_STREAM.wrapping_add(batch_idx as u64);
        let mut random = SeededRandom::new(options.seed, stream);
        let n_pairs = PAIRS_PER_REQUEST.min(options.rows - batch_idx * PAIRS_PER_REQUEST);
        let examples = drawn(demonstrations, &mut random);
        let target = Target::draw(&mut random);
        let n_steps = random.below(MOST_TEMPERATURE_STEPS + 1);
        let text = prompts.render(
            GENERATE,
            &[
                ("examples", &examples),
                ("n_pairs", &n_pairs.to_string()),
                ("industry_vertical", &target.industry_vertical),
                ("json_complexity", &target.json_complexity),
                ("text_length", &target.text_length),
                ("genre", &target.genre),
                ("text_type", &target.text_type),
            ],
        )?;
        let prompt = Prompt {
            text,
            schema: Some(pairs_schema(n_pairs)),
            max_tokens: options.reply_tokens,
            temperature: n_steps as f64 / TEMPERATURE_STEPS as f64,
            seed: sampler_seed(&mut random),
        };
        let id = format!("batch-{:06}", batch_idx + 1);
        Ok(Batch {
            asked: Asked { id, prompt },
            target,
            n_pairs,
        })
    };
    (0..n_batches).map(batch).collect()
}

/// One to three demonstrations, a line each.
fn drawn(demonstrations: &[Demonstration], random: &mut SeededRandom) -> String {
    let n = 1 + random.below(MOST_DEMONSTRATIONS);
    let mut places = Vec::new();
    while places.len() < n.min(demonstrations.len()) {
        let place = random.below(demonstrations.len());
        if !places.contains(&place) {
            places.push(place);
        }
    }
    let lines: Vec<&str> = places
        .iter()
        .map(|&at| demonstrations[at].shown.as_str())
        .collect();
    lines.join("\n")
}

/// Servers take seeds of 31 bits.
fn sampler_seed(random: &mut SeededRandom) -> u64 {
    random.next_u64() >> 33
}

/// What the schema of an object looks like, as far as the next stage looks at it.
fn object_schema() -> Value {
    json!({
        "type": "object",
        "properties": {"type": {"enum": ["object"]}, "properties": {"type": "object"}},
        "required": ["type", "properties"],
    })
}

fn pairs_schema(n_pairs: usize) -> Value {
    let pair = json!({
        "type": "object",
        "properties": {
            "input_text": {"type": "string"},
            "json_schema": object_schema(),
            "gold": {"type": "object"},
        },
        "required": ["input_text", "json_schema", "gold"],
    });
    json!({
        "type": "object",
        "properties": {
            "planning": {"type": "string"},
            "pairs": {"type": "array", "items": pair, "minItems": n_pairs, "maxItems": n_pairs},
        },
        "required": ["planning", "pairs"],
        "additionalProperties": false,
    })
}

/// Asks for all batches; each pair that is missing in a reply is dropped by its name.
pub(super) fn generate(
    run: &mut Run<'_>,
    batches: &[Batch],
) -> Result<Made<WrittenPair>, PipelineError> {
    let asked: Vec<Asked> = batches.iter().map(|batch| batch.asked.clone()).collect();
    let replies = run.ask(GENERATE, &asked, &|_, text| pairs(text))?;
    let mut results = Vec::new();
    for (batch, reply) in batches.iter().zip(replies) {
        let id = |n: usize| format!("{}-{}", batch.asked.id, n + 1);
        let pairs = match reply {
            Ok(pairs) => pairs,
            Err(dropped) => {
                let drop = |n| {
                    Err(Dropped {
                        id: id(n),
                        ..dropped.clone()
                    })
                };
                results.extend((0..batch.n_pairs).map(drop));
                continue;
            }
        };
        for n in pairs.len()..batch.n_pairs {
            let found = format!("{} of {}", pairs.len(), batch.n_pairs);
            results.push(Err(Dropped::new(
                &id(n),
                "the reply has fewer pairs",
                found,
            )));
        }
        for (n, pair) in pairs.into_iter().enumerate() {
            results.push(if n < batch.n_pairs {
                let (target, temperature) = (batch.target.clone(), batch.asked.prompt.temperature);
                Ok(written(id(n), pair, Some(target), Some(temperature)))
            } else {
                let found = reply::excerpt(&pair.to_string());
                Err(Dropped::new(
                    &id(n),
                    "the reply has more pairs than were asked for",
                    found,
                ))
            });
        }
    }
    Ok(Made::of(results))
}

/// The pairs of a reply: its list `pairs`, a list alone, or one object after the other.
fn pairs(text: &str) -> Result<Vec<Value>, String> {
    let is_pair = |value: &Value| value.get("gold").is_some() || value.get("input_text").is_some();
    let mut found = Vec::new();
    for value in reply::json_values(text) {
        match value {
            Value::Object(mut fields) if fields.get("pairs").is_some_and(Value::is_array) => {
                if let Some(Value::Array(pairs)) = fields.remove("pairs") {
                    found.extend(pairs);
                }
            }
            Value::Array(values) => found.extend(values.into_iter().filter(is_pair)),
            value if is_pair(&value) => found.push(value),
            _ => {}
        }
    }
    if found.is_empty() {
        // Says what stands in place of JSON, or that there is other JSON.
        reply::json_value(text)?;
        return Err(
            "the reply has no list \"pairs\" of objects with input_text, json_schema and \
                    gold"
                .to_owned(),
        );
    }
    Ok(found)
}

fn written(
    id: String,
    mut pair: Value,
    target: Option<Target>,
    temperature: Option<f64>,
) -> WrittenPair {
    let mut take = |name: &str| pair.get_mut(name).map(Value::take).unwrap_or_default();
    WrittenPair {
        id,
        input_text: take("input_text"),
        json_schema: take("json_schema"),
        gold: take("gold"),
        target,
        temperature,
    }
}

/// A request of annotation for each text that is one.
pub(super) fn annotations(
    options: &SlotOptions,
    texts: &[(String, GivenText)],
    demonstrations: &[Demonstration],
    prompts: &Prompts,
) -> Result<Vec<Asked>, PipelineError> {
    let schema = json!({
        "type": "object",
        "properties": {"json_schema": object_schema(), "gold": {"type": "object"}},
        "required": ["json_schema", "gold"],
        "additionalProperties": false,
    });
    let mut asked = Vec::new();
    for (text_idx, (id, text)) in texts.iter().enumerate() {
        let Ok(text) = text else { continue };
        let stream = BATCH_STREAM.wrapping_add(text_idx as u64);
        let mut random = SeededRandom::new(options.seed, stream);
        let examples = drawn(demonstrations, &mut random);
        let prompt = Prompt {
            text: prompts.render(ANNOTATE, &[("examples", &examples), ("input_text", text)])?,
            schema: Some(schema.clone()),
            max_tokens: options.reply_tokens,
            temperature: 0.0,
            seed: sampler_seed(&mut random),
        };
        asked.push(Asked {
            id: id.clone(),
            prompt,
        });
    }
    Ok(asked)
}

/// Asks for the JSON of each text.
pub(super) fn annotate(
    run: &mut Run<'_>,
    texts: &[(String, GivenText)],
    asked: &[Asked],
) -> Result<Made<WrittenPair>, PipelineError> {
    let mut replies = run
        .ask(ANNOTATE, asked, &|_, text| annotation(text))?
        .into_iter();
    let results = texts.iter().filter_map(|(id, text)| match text {
        Err(dropped) => Some(Err(dropped.clone())),
        Ok(text) => replies.next().map(|reply| {
            reply.map(|mut pair| {
                pair["input_text"] = text.as_str().into();
                written(id.clone(), pair, None, None)
            })
        }),
    });
    Ok(Made::of(results.collect::<Vec<_>>()))
}

fn annotation(text: &str) -> Result<Value, String> {
    let value = reply::json_value(text)?;
    if value.get("json_schema").is_some() && value.get("gold").is_some() {
        Ok(value)
    } else {
        Err("the reply has no json_schema or no gold".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_found_in_the_forms_that_models_write() {
        let pair = r#"{"input_text": "a", "json_schema": {}, "gold": {}}"#;
        for text in [
            format!(r#"{{"planning": "1/3 …", "pairs": [{pair}, {pair}]}}"#),
            format!("[{pair}, {pair}]"),
            format!("<planning>{{x}}</planning>\n<JSONL>{pair}</JSONL>\n<JSONL>\n{pair}\n</JSONL>"),
            format!("```jsonl\n{pair}\n{pair}\n```"),
        ] {
            assert_eq!(pairs(&text).map(|pairs| pairs.len()), Ok(2), "{text}");
        }
        assert!(
            pairs("{\"a\": 1}")
                .unwrap_err()
                .contains("no list \"pairs\"")
        );
        assert!(
            pairs("I cannot.")
                .unwrap_err()
                .contains("no JSON: I cannot.")
        );
    }
}
