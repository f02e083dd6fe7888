//! Measures the time for many prompts to a server, with or without a pipeline's journal; used by
//! `scripts/bench/pipelines`.
//!
//! `throughput URL CONCURRENCY REQUESTS [FOLDER]`; the journal is in the folder, if one is given.

use std::io::Write;
use std::path::Path;
use std::time::Instant;

use serde_json::{Map, Value, json};
use tooltune_endpoint::EndpointOptions;
use tooltune_pipelines::{
    EndpointGenerator, Generator, GeneratorOptions, ItemPrompt, Limits, Progress, Prompt, Prompts,
    RETRY_PROMPT, Run, RunContext, RunInput, Stage, StageResult,
};

const STAGES: &[Stage] = &[Stage {
    name: "ask",
    file: "asked.jsonl",
}];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, concurrency, n_requests, folder @ ..] = arguments.as_slice() else {
        return Err("usage: throughput URL CONCURRENCY REQUESTS [FOLDER]".into());
    };
    let options = GeneratorOptions {
        concurrency: concurrency.parse()?,
        extra_body: Map::new(),
        is_constrained: false,
    };
    let generator = EndpointGenerator::open(&EndpointOptions::new(url, "served"), options)?;
    let item_prompts: Vec<ItemPrompt> = (0..n_requests.parse()?).map(item_prompt).collect();
    let start = Instant::now();
    let n_replies = match folder {
        [] => without_journal(&generator, &item_prompts)?,
        [folder, ..] => with_journal(&generator, &item_prompts, Path::new(folder))?,
    };
    let summary = json!({"seconds": start.elapsed().as_secs_f64(), "n_replies": n_replies});
    writeln!(std::io::stdout(), "{summary}")?;
    Ok(())
}

/// A prompt of about four hundred words.
fn item_prompt(number: usize) -> ItemPrompt {
    let text = format!("Request {number}. {}", "Say what it is about. ".repeat(80));
    ItemPrompt {
        id: number.to_string(),
        prompt: Prompt {
            text,
            schema: None,
            max_tokens: 64,
            temperature: 0.0,
            seed: 0,
        },
    }
}

fn without_journal(
    generator: &EndpointGenerator,
    item_prompts: &[ItemPrompt],
) -> Result<usize, Box<dyn std::error::Error>> {
    let prompts: Vec<&Prompt> = item_prompts
        .iter()
        .map(|item_prompts| &item_prompts.prompt)
        .collect();
    let mut n_replies = 0;
    generator.ask(&prompts, &mut |arrival| {
        n_replies += usize::from(arrival.is_some_and(|arrival| arrival.result.is_ok()));
        true
    })?;
    Ok(n_replies)
}

fn with_journal(
    generator: &EndpointGenerator,
    item_prompts: &[ItemPrompt],
    folder: &Path,
) -> Result<usize, Box<dyn std::error::Error>> {
    let mut watch = |_: &Progress| true;
    let mut run = Run::open(RunInput {
        place: RunContext {
            dir: folder,
            generator,
            limits: Limits::default(),
            only: None,
            ask_again: None,
            watch: &mut watch,
        },
        stages: STAGES,
        settings: Map::new(),
        prompts: Prompts::open(&[RETRY_PROMPT], None)?,
    })?;
    let replies = run.stage::<Value>("ask", |run| {
        let parse_reply = |_: usize, text: &str| Ok(Value::from(text));
        Ok(StageResult::from_results(run.ask(
            "ask",
            item_prompts,
            &parse_reply,
        )?))
    })?;
    Ok(replies.map_or(0, |replies| replies.len()))
}
