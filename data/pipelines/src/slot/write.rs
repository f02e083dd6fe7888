//! Stage 1: a model writes pairs of a text and its JSON, or only the JSON of user-provided texts.

use serde_json::{Value, json};
use tooltune_rows::batches::SeededRandom;

use super::dimensions::Target;
use super::rows::{Demonstration, UserText, WrittenPair};
use super::{ANNOTATE, GENERATE, SlotOptions};
use crate::ask::ItemPrompt;
use crate::error::PipelineError;
use crate::generator::Prompt;
use crate::prompts::Prompts;
use crate::reply;
use crate::report::Dropped;
use crate::run::{Run, StageResult};

/// First random stream of the batches; other uses of the seed have their own streams.
const BATCH_STREAM: u64 = 0x736C_6F74_6C6D_0000;
/// Number of pairs per reply, as in the paper's prompt.
pub(super) const PAIRS_PER_REQUEST: usize = 3;
/// Maximum number of demonstrations per prompt; the minimum is one.
const MAX_DEMONSTRATIONS: usize = 3;
/// Temperatures are drawn from 0 to 0.5 in steps of 1/20, so that a local model can batch requests
/// of equal temperature.
const TEMPERATURE_STEPS: usize = 20;
const MAX_TEMPERATURE_STEPS: usize = 10;

/// A generation request.
#[derive(Debug, Clone)]
pub(super) struct Batch {
    pub(super) item_prompt: ItemPrompt,
    target: Target,
    n_pairs: usize,
}

/// All generation requests; they depend only on the options and the demonstrations.
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
        let examples = draw_demonstrations(demonstrations, &mut random);
        let target = Target::draw(&mut random);
        let n_steps = random.below(MAX_TEMPERATURE_STEPS + 1);
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
            item_prompt: ItemPrompt { id, prompt },
            target,
            n_pairs,
        })
    };
    (0..n_batches).map(batch).collect()
}

/// One to three demonstrations, one per line.
fn draw_demonstrations(demonstrations: &[Demonstration], random: &mut SeededRandom) -> String {
    let n = 1 + random.below(MAX_DEMONSTRATIONS);
    let mut chosen = Vec::new();
    while chosen.len() < n.min(demonstrations.len()) {
        let idx = random.below(demonstrations.len());
        if !chosen.contains(&idx) {
            chosen.push(idx);
        }
    }
    let lines: Vec<&str> = chosen
        .iter()
        .map(|&chosen_idx| demonstrations[chosen_idx].shown.as_str())
        .collect();
    lines.join("\n")
}

/// Draws a sampler seed. Servers accept 31-bit seeds.
fn sampler_seed(random: &mut SeededRandom) -> u64 {
    random.next_u64() >> 33
}

/// The schema of an object schema, as strict as the check of the next stage.
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

/// Requests all batches; pairs that are missing in a reply are listed as dropped.
pub(super) fn generate(
    run: &mut Run<'_>,
    batches: &[Batch],
) -> Result<StageResult<WrittenPair>, PipelineError> {
    let item_prompts: Vec<ItemPrompt> = batches
        .iter()
        .map(|batch| batch.item_prompt.clone())
        .collect();
    let replies = run.ask(GENERATE, &item_prompts, &|_, text| parse_pairs(text))?;
    let mut results = Vec::new();
    for (batch, reply) in batches.iter().zip(replies) {
        let id = |n: usize| format!("{}-{}", batch.item_prompt.id, n + 1);
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
            let n_of_n = format!("{} of {}", pairs.len(), batch.n_pairs);
            results.push(Err(Dropped::new(
                &id(n),
                "the reply has fewer pairs",
                n_of_n,
            )));
        }
        for (n, pair) in pairs.into_iter().enumerate() {
            results.push(if n < batch.n_pairs {
                let (target, temperature) =
                    (batch.target.clone(), batch.item_prompt.prompt.temperature);
                Ok(to_written_pair(
                    id(n),
                    pair,
                    Some(target),
                    Some(temperature),
                ))
            } else {
                let n_of_n = reply::excerpt(&pair.to_string());
                Err(Dropped::new(
                    &id(n),
                    "the reply has more pairs than requested",
                    n_of_n,
                ))
            });
        }
    }
    Ok(StageResult::from_results(results))
}

/// The pairs of a reply: its list `pairs`, a bare list, or consecutive objects.
fn parse_pairs(text: &str) -> Result<Vec<Value>, String> {
    let is_pair = |value: &Value| value.get("gold").is_some() || value.get("input_text").is_some();
    let mut all_pairs = Vec::new();
    for value in reply::json_values(text) {
        match value {
            Value::Object(mut fields) if fields.get("pairs").is_some_and(Value::is_array) => {
                if let Some(Value::Array(pairs)) = fields.remove("pairs") {
                    all_pairs.extend(pairs);
                }
            }
            Value::Array(values) => all_pairs.extend(values.into_iter().filter(is_pair)),
            value if is_pair(&value) => all_pairs.push(value),
            _ => {}
        }
    }
    if all_pairs.is_empty() {
        // Return the specific error of a reply without JSON, or with other JSON.
        reply::json_value(text)?;
        return Err(
            "the reply has no list \"pairs\" of objects with input_text, json_schema and \
                    gold"
                .to_owned(),
        );
    }
    Ok(all_pairs)
}

fn to_written_pair(
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

/// One annotation request per usable text.
pub(super) fn annotation_prompts(
    options: &SlotOptions,
    texts: &[(String, UserText)],
    demonstrations: &[Demonstration],
    prompts: &Prompts,
) -> Result<Vec<ItemPrompt>, PipelineError> {
    let schema = json!({
        "type": "object",
        "properties": {"json_schema": object_schema(), "gold": {"type": "object"}},
        "required": ["json_schema", "gold"],
        "additionalProperties": false,
    });
    let mut item_prompts = Vec::new();
    for (text_idx, (id, text)) in texts.iter().enumerate() {
        let Ok(text) = text else { continue };
        let stream = BATCH_STREAM.wrapping_add(text_idx as u64);
        let mut random = SeededRandom::new(options.seed, stream);
        let examples = draw_demonstrations(demonstrations, &mut random);
        let prompt = Prompt {
            text: prompts.render(ANNOTATE, &[("examples", &examples), ("input_text", text)])?,
            schema: Some(schema.clone()),
            max_tokens: options.reply_tokens,
            temperature: 0.0,
            seed: sampler_seed(&mut random),
        };
        item_prompts.push(ItemPrompt {
            id: id.clone(),
            prompt,
        });
    }
    Ok(item_prompts)
}

/// Requests the JSON of each text.
pub(super) fn annotate(
    run: &mut Run<'_>,
    texts: &[(String, UserText)],
    item_prompts: &[ItemPrompt],
) -> Result<StageResult<WrittenPair>, PipelineError> {
    let mut replies = run
        .ask(ANNOTATE, item_prompts, &|_, text| parse_annotation(text))?
        .into_iter();
    let results = texts.iter().filter_map(|(id, text)| match text {
        Err(dropped) => Some(Err(dropped.clone())),
        Ok(text) => replies.next().map(|reply| {
            reply.map(|mut pair| {
                pair["input_text"] = text.as_str().into();
                to_written_pair(id.clone(), pair, None, None)
            })
        }),
    });
    Ok(StageResult::from_results(results.collect::<Vec<_>>()))
}

fn parse_annotation(text: &str) -> Result<Value, String> {
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
    fn pairs_are_parsed_from_every_format_that_models_write() {
        let pair = r#"{"input_text": "a", "json_schema": {}, "gold": {}}"#;
        for text in [
            format!(r#"{{"planning": "1/3 …", "pairs": [{pair}, {pair}]}}"#),
            format!("[{pair}, {pair}]"),
            format!("<planning>{{x}}</planning>\n<JSONL>{pair}</JSONL>\n<JSONL>\n{pair}\n</JSONL>"),
            format!("```jsonl\n{pair}\n{pair}\n```"),
        ] {
            assert_eq!(parse_pairs(&text).map(|pairs| pairs.len()), Ok(2), "{text}");
        }
        assert!(
            parse_pairs("{\"a\": 1}")
                .unwrap_err()
                .contains("no list \"pairs\"")
        );
        assert!(
            parse_pairs("I cannot.")
                .unwrap_err()
                .contains("no JSON: I cannot.")
        );
    }
}
