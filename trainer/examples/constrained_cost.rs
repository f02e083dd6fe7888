//! Measures the cost of constrained decoding; the tooltune side of `scripts/bench/constrained`.
//!
//! The same number of tokens is generated after the same prompts, alternately without constraints
//! and with the rows' schemas. Then the host's share of the work for these tokens is measured
//! separately: computing masks and choosing among the allowed logits. Prints one JSON line per
//! batch.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a separate program that prints its result on standard output"
)]

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use serde_json::json;
use tooltune::base_model::BaseModel;
use tooltune::config::LoadedConfig;
use tooltune::device;
use tooltune::eval::generate::{Generation, GenerationOptions, GenerationProgress, Jobs, complete};
use tooltune::models::Decoder;

use tooltune::rows::{ReadingReport, eval_rows};
use tooltune_grammar::{Constraint, Grammar, GrammarOptions, Vocabulary};
use tooltune_kernels::ComputeDtype;
use tooltune_rows::text::prompt_ids;

const USAGE: &str = "\
Measures constrained decoding; run by scripts/bench/constrained.

    constrained_cost CONFIG DTYPE NEW_TOKENS ROUNDS BATCH...    CONFIG: a SLOT config whose data.eval
                                                                has at least BATCH rows";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [config, dtype, numbers @ ..] = arguments.as_slice() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let numbers: Option<Vec<usize>> = numbers.iter().map(|word| word.parse().ok()).collect();
    let Some([n_new, rounds, batches @ ..]) = numbers.as_deref() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match measure(Path::new(config), dtype, (*n_new, *rounds), batches) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("constrained_cost: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn measure(
    config: &Path,
    dtype: &str,
    (n_new, rounds): (usize, usize),
    batches: &[usize],
) -> Result<(), Box<dyn std::error::Error>> {
    device::start_threads(None)?;
    let config = LoadedConfig::load(config, &[])?.config;
    let device = device::open(config.device)?;
    let compute_dtype = match dtype {
        "f32" => ComputeDtype::F32,
        _ => ComputeDtype::Bf16,
    };
    let template = config.data.chat_template.as_deref();
    let base = BaseModel::open(&config.language_model()?.model_name_or_path, template)?;
    let decoder = base.decoder(compute_dtype, &device)?;
    let vocabulary = Vocabulary::new(&base.tokenizer, base.config.vocab_size, &base.stop_ids)?;
    let rows = eval_rows(&config, &device, &mut ReadingReport::default())?;
    let mut prompts = Vec::new();
    let mut constraints = Vec::new();
    for row in rows.iter().take(batches.iter().copied().max().unwrap_or(0)) {
        let schema = &row
            .slot
            .as_ref()
            .ok_or("the rows are not SLOT rows")?
            .json_schema;
        let grammar = Grammar::json_schema(&vocabulary, schema, &GrammarOptions::default())?;
        constraints.push(Some(grammar.constraint()));
        prompts.push(prompt_ids(row, &base.template, &base.tokenizer)?);
    }
    for &batch in batches {
        let (prompts, constraints) = prompts
            .get(..batch)
            .zip(constraints.get(..batch))
            .ok_or("data.eval has fewer rows than the batch")?;
        let mut seconds: [Vec<f64>; 3] = Default::default();
        for _ in 0..rounds {
            let (free, _) = decode(&decoder, prompts, &[], n_new)?;
            let (constraint_seconds, written) = decode(&decoder, prompts, constraints, n_new)?;
            let started = Instant::now();
            replay(constraints, &written, base.config.vocab_size)?;
            let alone = started.elapsed().as_secs_f64();
            for (all, one) in seconds.iter_mut().zip([free, constraint_seconds, alone]) {
                all.push(one);
            }
        }
        let [free, held, alone] = seconds;
        println!(
            "{}",
            json!({"batch": batch, "steps": n_new - 1, "free": free, "held": held, "alone": alone})
        );
    }
    Ok(())
}

/// Seconds from the first token of each row to the last, and the tokens. No token ends a row.
fn decode(
    decoder: &Decoder,
    prompts: &[Vec<u32>],
    constraints: &[Option<Constraint>],
    n_new: usize,
) -> Result<(f64, Vec<Generation>), Box<dyn std::error::Error>> {
    let options = GenerationOptions::greedy(n_new, prompts.len(), Vec::new());
    let jobs = Jobs {
        prompts,
        constraints,
        streams: &[],
        stop: None,
    };
    let mut first = None;
    let mut watch = |_: GenerationProgress| {
        first.get_or_insert_with(Instant::now);
        true
    };
    let written = complete(decoder, jobs, &options, &mut &mut watch)?.unwrap_or_default();
    let ended = Instant::now();
    if let Some(short) = written.iter().find(|one| one.ids.len() < n_new) {
        let n = short.ids.len();
        return Err(format!("an answer ended after {n} tokens; use fewer new tokens").into());
    }
    let decoding = first.map(|first| ended.duration_since(first).as_secs_f64());
    Ok((decoding.unwrap_or_default(), written))
}

/// Computes the masks of generated tokens and chooses among the logits that they allow.
fn replay(
    constraints: &[Option<Constraint>],
    written: &[Generation],
    n_logits: usize,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut logits = vec![0.0f32; n_logits];
    for (constraint, generation) in constraints.iter().zip(written) {
        let mut constraint = constraint.clone().ok_or("a row has no constraint")?;
        for &token in &generation.ids {
            logits[token as usize] = 1.0;
            if constraint.mask()?.argmax(&logits) != token {
                return Err("a generated token is not allowed".into());
            }
            logits[token as usize] = 0.0;
            constraint.consume(token)?;
        }
    }
    Ok(())
}
