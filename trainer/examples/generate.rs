//! Completes prompts greedily and reports the time; the tooltune side of `scripts/bench/generate`.
//!
//! For each input line `BATCH NEW_TOKENS` it prints one JSON line: seconds up to the first token of
//! each row (prefill) and from there to the last (decode), as wall time and CPU time, and the
//! tokens. No token ends a row, so all programs generate the same number of tokens.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a separate program that prints its result on standard output"
)]

use std::io::{BufRead, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use serde_json::json;
use tooltune::base_model::BaseModel;
use tooltune::config::Device;
use tooltune::eval::generate::{GenerationOptions, generate};
use tooltune::models::Decoder;
use tooltune::{device, process};
use tooltune_kernels::ComputeDtype;

const USAGE: &str = "\
Completes prompts with tooltune; run by scripts/bench/generate, which makes the prompts.

    generate MODEL DTYPE PROMPTS    MODEL: GGUF file or folder; DTYPE: f32 or bf16; PROMPTS: a JSON
                                    list of lists of token ids. Reads lines `BATCH NEW_TOKENS` and
                                    prints a JSON line for each.";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, dtype, prompts] = arguments.as_slice() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match serve(Path::new(model), dtype, Path::new(prompts)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("generate: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn serve(model: &Path, dtype: &str, prompts: &Path) -> Result<(), String> {
    device::start_threads(None).map_err(|error| error.to_string())?;
    let text =
        std::fs::read_to_string(prompts).map_err(|e| format!("{}: {e}", prompts.display()))?;
    let prompts: Vec<Vec<u32>> =
        serde_json::from_str(&text).map_err(|e| format!("{}: {e}", prompts.display()))?;
    let loaded = decoder(model, dtype)?;
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|e| format!("standard input: {e}"))?;
        let answer = match &loaded {
            Some(decoder) => {
                let (batch, n_new) = request(&line)?;
                let batch = prompts.get(..batch).ok_or_else(|| {
                    format!("{line}: the file has only {} prompts", prompts.len())
                })?;
                completed(decoder, batch, n_new)
            }
            None => json!({ "missing": format!("tooltune does not decode in {dtype}") }),
        };
        println!("{answer}");
        std::io::stdout()
            .flush()
            .map_err(|e| format!("standard output: {e}"))?;
    }
    Ok(())
}

/// The model, or `None` if this dtype is not supported.
fn decoder(model: &Path, dtype: &str) -> Result<Option<Decoder>, String> {
    let compute_dtype = match dtype {
        "f32" => ComputeDtype::F32,
        "bf16" => ComputeDtype::Bf16,
        _ => return Ok(None),
    };
    let device = device::open(Device::Cpu).map_err(|e| e.to_string())?;
    let base = BaseModel::open(model, None).map_err(|e| e.to_string())?;
    let decoder = base.decoder(compute_dtype, &device);
    decoder.map(Some).map_err(|e| e.to_string())
}

fn request(line: &str) -> Result<(usize, usize), String> {
    let numbers: Vec<usize> = line
        .split_whitespace()
        .map(|word| {
            word.parse()
                .map_err(|_| format!("{line}: {word} is not a number"))
        })
        .collect::<Result<_, _>>()?;
    match numbers.as_slice() {
        &[batch, n_new] => Ok((batch, n_new)),
        _ => Err(format!("{line}: expected a batch and a number of tokens")),
    }
}

fn completed(decoder: &Decoder, prompts: &[Vec<u32>], n_new: usize) -> serde_json::Value {
    let options = GenerationOptions::greedy(n_new, prompts.len(), Vec::new());
    let (start, cpu) = (Instant::now(), process::cpu_seconds());
    let clocks = || [start.elapsed().as_secs_f64(), process::cpu_seconds() - cpu];
    let mut first = None;
    let generations = generate(decoder, prompts, &options, &mut |_| {
        first.get_or_insert_with(clocks);
        true
    });
    let all = clocks();
    let prefill = first.unwrap_or(all);
    let tokens: Vec<Vec<u32>> = generations
        .ok()
        .flatten()
        .unwrap_or_default()
        .into_iter()
        .map(|generation| generation.ids)
        .collect();
    json!({
        "prefill": { "wall": prefill[0], "cpu": prefill[1] },
        "decode": { "wall": all[0] - prefill[0], "cpu": all[1] - prefill[1] },
        "tokens": tokens,
    })
}
