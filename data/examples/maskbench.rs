//! A folder of JSON Schemas with instances to a table of what the constraints accept, refuse and
//! cost.
//!
//! ```sh
//! cargo run --release -p tooltune-data --example maskbench -- FOLDER TOKENIZER STOP [FAULTS]
//! ```
//!
//! FOLDER holds `*.jsonl` or `*.jsonl.gz` in the layout of MaskBench
//! (github.com/guidance-ai/jsonschemabench, `maskbench/data`), a line a schema:
//! `{"id", "schema", "tests": [{"valid", "data", "py"}]}`. Instances on whose validity `py`, the
//! verdict of Python's jsonschema, disagrees with `valid` are left out. TOKENIZER is a
//! `tokenizer.json` and STOP the token that ends its model's turns. An instance is written as
//! training targets are, by Python's rules with the keys in the order of the schema. An instance is a
//! value, though, whose keys have no order and whose numbers no spelling: if that text is refused, it
//! is written with the keys as the file has them, then with 2 for 2.0. Schemas that are refused and
//! instances on which a constraint is wrong are written to FAULTS as JSON Lines.

#![allow(clippy::print_stdout, reason = "the table is what the program is for")]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use flate2::read::MultiGzDecoder;
use serde::Deserialize;
use serde_json::{Value, json};
use tooltune_data::grammar::{Grammar, GrammarError, GrammarOptions, Vocabulary};
use tooltune_data::json::{Style, dumps};
use tooltune_data::text::{Tokenizer, slot_completion};

type Failure = Box<dyn std::error::Error>;

#[derive(Deserialize)]
struct Case {
    id: String,
    schema: Value,
    #[serde(default)]
    tests: Vec<Instance>,
}

#[derive(Deserialize)]
struct Instance {
    valid: bool,
    py: Option<bool>,
    data: Value,
}

/// Counts and times of a set of schemas.
#[derive(Default)]
struct Tally {
    n_schemas: usize,
    n_accepted: usize,
    n_too_large: usize,
    /// Refused schemas by the keyword that is not enforced.
    refused: BTreeMap<String, usize>,
    valid: Verdicts,
    invalid: Verdicts,
    /// Valid instances that are accepted only with their keys as the file has them.
    n_in_other_order: usize,
    /// Valid instances that are accepted only with whole numbers written without a point.
    n_without_point: usize,
    compile: Vec<Duration>,
    steps: Vec<Duration>,
}

#[derive(Default)]
struct Verdicts {
    n_accepted: usize,
    n_refused: usize,
    n_stuck: usize,
}

impl Instance {
    fn training_text(&self, case: &Case) -> String {
        slot_completion(&self.data, &case.schema)
    }
}

/// What a constraint says of a text.
enum Verdict {
    Accepted,
    Refused { after: String },
    Stuck { reason: String },
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (folder, tokenizer, stop, faults) = match arguments.as_slice() {
        [folder, tokenizer, stop] => (folder, tokenizer, stop, None),
        [folder, tokenizer, stop, faults] => (folder, tokenizer, stop, Some(faults)),
        _ => return Err("usage: maskbench FOLDER TOKENIZER STOP [FAULTS]".into()),
    };
    let tokenizer = Tokenizer::from_file(Path::new(tokenizer))?;
    let stop = tokenizer.token_to_id(stop).ok_or("STOP is no token")?;
    let n_logits = tokenizer.vocab_size();
    let vocabulary = Vocabulary::new(&tokenizer, n_logits, &[stop])?;
    let mut faults: Box<dyn Write> = match faults {
        Some(path) => Box::new(BufWriter::new(File::create(path)?)),
        None => Box::new(std::io::sink()),
    };
    let mut total = Tally::default();
    println!("{HEADER}");
    for path in files(Path::new(folder))? {
        let mut tally = Tally::default();
        for line in lines(&path)? {
            let case: Case = serde_json::from_str(&line?)?;
            tally.case(&case, &vocabulary, &tokenizer, faults.as_mut())?;
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        println!("{}", tally.row(name.split('.').next().unwrap_or_default()));
        total.add(tally);
    }
    println!("{}", total.row("all"));
    println!("{}", total.times());
    for (keyword, n) in &total.refused {
        println!("| `{keyword}` | {n} |");
    }
    faults.flush()?;
    Ok(())
}

const HEADER: &str = "| set | schemas | accepted | refused | too large | valid instances: \
    accepted | refused | stuck | invalid instances: refused | accepted | stuck |\n\
    |---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|";

fn files(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.to_string_lossy();
        if name.ends_with(".jsonl") || name.ends_with(".jsonl.gz") {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn lines(path: &Path) -> Result<std::io::Lines<BufReader<Box<dyn Read>>>, Failure> {
    let file = File::open(path)?;
    let reader: Box<dyn Read> = match path.extension() {
        Some(extension) if extension == "gz" => Box::new(MultiGzDecoder::new(file)),
        _ => Box::new(file),
    };
    Ok(BufReader::new(reader).lines())
}

impl Tally {
    fn case(
        &mut self,
        case: &Case,
        vocabulary: &Vocabulary,
        tokenizer: &Tokenizer,
        faults: &mut dyn Write,
    ) -> Result<(), Failure> {
        self.n_schemas += 1;
        let start = Instant::now();
        let grammar = Grammar::json_schema(vocabulary, &case.schema, &GrammarOptions::default());
        let elapsed = start.elapsed();
        let grammar = match grammar {
            Ok(grammar) => grammar,
            Err(error) => {
                let why = error.to_string();
                match error {
                    GrammarError::TooLarge { .. } => self.n_too_large += 1,
                    error => *self.refused.entry(keyword(&error)).or_default() += 1,
                }
                writeln!(faults, "{}", json!({"id": case.id, "refused": why}))?;
                return Ok(());
            }
        };
        self.n_accepted += 1;
        self.compile.push(elapsed);
        for (idx, instance) in case.tests.iter().enumerate() {
            if instance.py.is_some_and(|py| py != instance.valid) {
                continue;
            }
            let mut verdict = self.verdict(&grammar, tokenizer, &instance.training_text(case))?;
            if !matches!(verdict, Verdict::Accepted) {
                let as_given = dumps(&instance.data, Style::Python);
                let again = self.verdict(&grammar, tokenizer, &as_given)?;
                if matches!(again, Verdict::Accepted) {
                    self.n_in_other_order += usize::from(instance.valid);
                    verdict = again;
                }
            }
            // Draft 4 alone calls 2 an integer and 2.0 none, which an invalid instance may be for.
            if instance.valid && !matches!(verdict, Verdict::Accepted) {
                let without_point = slot_completion(&without_point(&instance.data), &case.schema);
                let again = self.verdict(&grammar, tokenizer, &without_point)?;
                if matches!(again, Verdict::Accepted) {
                    self.n_without_point += 1;
                    verdict = again;
                }
            }
            let verdicts = match instance.valid {
                true => &mut self.valid,
                false => &mut self.invalid,
            };
            let fault = match &verdict {
                Verdict::Accepted => {
                    verdicts.n_accepted += 1;
                    (!instance.valid).then(|| "accepted".to_owned())
                }
                Verdict::Refused { after } => {
                    verdicts.n_refused += 1;
                    instance.valid.then(|| format!("refused after {after}"))
                }
                Verdict::Stuck { reason } => {
                    verdicts.n_stuck += 1;
                    Some(format!("stuck: {reason}"))
                }
            };
            if let Some(fault) = fault {
                let data = dumps(&instance.data, Style::Compact);
                let fault = json!({"id": case.id, "test": idx, "fault": fault, "data": data});
                writeln!(faults, "{fault}")?;
            }
        }
        Ok(())
    }

    /// Follows a text token by token, as if a model had written it.
    fn verdict(
        &mut self,
        grammar: &Grammar,
        tokenizer: &Tokenizer,
        text: &str,
    ) -> Result<Verdict, Failure> {
        let mut constraint = grammar.constraint();
        let mut ids = tokenizer.encode(text)?.ids;
        ids.extend(grammar.vocabulary().stop_ids().first());
        let mut written = Vec::new();
        for id in ids {
            let start = Instant::now();
            let is_allowed = match constraint.mask() {
                Ok(mask) => mask.is_allowed(id),
                Err(error) => {
                    let reason = error.to_string();
                    return Ok(Verdict::Stuck { reason });
                }
            };
            if !is_allowed {
                let after = String::from_utf8_lossy(&written).into_owned();
                return Ok(Verdict::Refused { after });
            }
            if let Err(error) = constraint.consume(id) {
                let reason = error.to_string();
                return Ok(Verdict::Stuck { reason });
            }
            self.steps.push(start.elapsed());
            written.extend_from_slice(grammar.vocabulary().bytes(id));
        }
        Ok(Verdict::Accepted)
    }

    fn add(&mut self, other: Self) {
        self.n_schemas += other.n_schemas;
        self.n_accepted += other.n_accepted;
        self.n_too_large += other.n_too_large;
        for (keyword, n) in other.refused {
            *self.refused.entry(keyword).or_default() += n;
        }
        self.valid.add(&other.valid);
        self.invalid.add(&other.invalid);
        self.n_in_other_order += other.n_in_other_order;
        self.n_without_point += other.n_without_point;
        self.compile.extend(other.compile);
        self.steps.extend(other.steps);
    }

    fn row(&self, name: &str) -> String {
        let (valid, invalid) = (&self.valid, &self.invalid);
        format!(
            "| {name} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            self.n_schemas,
            self.n_accepted,
            self.refused.values().sum::<usize>(),
            self.n_too_large,
            valid.n_accepted,
            valid.n_refused,
            valid.n_stuck,
            invalid.n_refused,
            invalid.n_accepted,
            invalid.n_stuck,
        )
    }

    fn times(&mut self) -> String {
        let n_steps = self.steps.len();
        format!(
            "\nvalid instances accepted only in the file's order: {}\n\
             only with whole numbers without a point: {}\n\
             compiling a schema: median {:?}, 99th percentile {:?}, longest {:?}\n\
             a token ({n_steps}): median {:?}, 99th percentile {:?}, longest {:?}\n",
            self.n_in_other_order,
            self.n_without_point,
            percentile(&mut self.compile, 50),
            percentile(&mut self.compile, 99),
            percentile(&mut self.compile, 100),
            percentile(&mut self.steps, 50),
            percentile(&mut self.steps, 99),
            percentile(&mut self.steps, 100),
        )
    }
}

impl Verdicts {
    fn add(&mut self, other: &Self) {
        self.n_accepted += other.n_accepted;
        self.n_refused += other.n_refused;
        self.n_stuck += other.n_stuck;
    }
}

/// The same value with 2 for 2.0 everywhere.
fn without_point(value: &Value) -> Value {
    match value {
        Value::Number(number) => match number.as_f64() {
            Some(whole) if whole.fract() == 0.0 && whole.abs() < 2f64.powi(53) => {
                json!(whole as i64)
            }
            _ => value.clone(),
        },
        Value::Array(items) => items.iter().map(without_point).collect(),
        Value::Object(fields) => {
            let fields = fields.iter();
            let fields = fields.map(|(key, field)| (key.clone(), without_point(field)));
            Value::Object(fields.collect())
        }
        other => other.clone(),
    }
}

/// Nearest rank; zero for no times.
fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    let rank = (times.len() * percent).div_ceil(100);
    times
        .get(rank.saturating_sub(1))
        .copied()
        .unwrap_or_default()
}

/// The keyword that a refusal speaks of, else its reason.
fn keyword(error: &GrammarError) -> String {
    match error {
        GrammarError::Unsupported { pointer, why } if pointer.is_empty() => {
            why.chars().take(60).collect()
        }
        GrammarError::Unsupported { pointer, .. } => {
            pointer.rsplit('/').next().unwrap_or_default().to_owned()
        }
        error => error.to_string(),
    }
}
