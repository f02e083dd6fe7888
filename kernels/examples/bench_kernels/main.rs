//! Times operations requested on standard input: our side of `scripts/bench/kernels`.
//!
//! For each line `KIND DTYPE NUMBER...` it prints one JSON line with the seconds per call of each
//! sample, as wall time and as CPU time of the process. Repeating a line measures the same inputs
//! again, so that the two sides of a comparison can alternate. An operation without DTYPE support
//! prints `{"missing": REASON}`.

mod elementwise;
mod inputs;
mod peaks;
mod products;
mod sequence;
mod timing;

use std::io::{BufRead, Write};
use std::process::ExitCode;

use inputs::Precision;

const USAGE: &str = "\
Times tooltune's operations. scripts/bench/kernels starts it and passes the shapes.

    bench_kernels SECONDS    measures each line for SECONDS; reads lines `KIND DTYPE NUMBER...`, such as
                             `linear f32 1024 576 1536`, and prints a JSON line for each";

/// One operation with its inputs.
struct Run {
    call: Box<dyn FnMut()>,
    /// Prepares the inputs that the given number of calls consume, before timing starts.
    prepare: Option<Box<dyn FnMut(usize)>>,
    /// Operations or bytes per call, if the caller cannot compute them.
    work: Option<f64>,
    /// Whether worker threads spin between calls instead of sleeping, as they do while decoding.
    is_awake: bool,
}

impl Run {
    fn new(call: impl FnMut() + 'static) -> Self {
        Self {
            call: Box::new(call),
            prepare: None,
            work: None,
            is_awake: false,
        }
    }

    fn awake(call: impl FnMut() + 'static) -> Self {
        Self {
            is_awake: true,
            ..Self::new(call)
        }
    }

    fn with_work(work: f64, call: impl FnMut() + 'static) -> Self {
        Self {
            work: Some(work),
            ..Self::new(call)
        }
    }
}

/// Prepares an operation's inputs from its dimensions; an error gives the reason why it is missing.
type Prepare = fn(Precision, &[usize]) -> Result<Run, String>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let seconds = match arguments.as_slice() {
        [seconds] => seconds.parse().ok(),
        _ => None,
    };
    let Some(seconds) = seconds else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    // As in training, the thread that starts an operation also takes part in it.
    let pool = rayon::ThreadPoolBuilder::new().use_current_thread();
    if let Err(error) = pool.build_global() {
        eprintln!("bench_kernels: {error}");
        return ExitCode::FAILURE;
    }
    let mut prepared: Option<(String, Result<Run, String>)> = None;
    for line in std::io::stdin().lock().lines() {
        let line = match line {
            Ok(line) => line,
            Err(error) => {
                eprintln!("bench_kernels: standard input: {error}");
                return ExitCode::FAILURE;
            }
        };
        if prepared.as_ref().is_none_or(|(asked, _)| *asked != line) {
            // Drop the inputs of the previous operation first: two LM heads would not fit in memory
            // together.
            drop(prepared.take());
            prepared = Some((line.clone(), prepare(&line)));
        }
        let answer = match prepared.as_mut().map(|(_, run)| run) {
            Some(Ok(run)) => timing::measure(run, seconds),
            Some(Err(reason)) => format!("{{\"missing\": {reason:?}}}"),
            None => unreachable!("prepared above"),
        };
        println!("{answer}");
        if std::io::stdout().flush().is_err() {
            break;
        }
    }
    ExitCode::SUCCESS
}

fn prepare(line: &str) -> Result<Run, String> {
    let mut words = line.split_whitespace();
    let kind = words.next().unwrap_or_default();
    let precision = Precision::parse(words.next().unwrap_or_default())?;
    let numbers: Vec<usize> = words
        .map(|word| word.parse().map_err(|_| format!("{word} is not a number")))
        .collect::<Result<_, _>>()?;
    let tables = [
        peaks::OPERATIONS,
        products::OPERATIONS,
        elementwise::OPERATIONS,
        sequence::OPERATIONS,
    ];
    let operation = tables
        .iter()
        .flat_map(|table| table.iter())
        .find(|(name, _)| *name == kind);
    match operation {
        Some((_, prepare)) => prepare(precision, &numbers),
        None => Err(format!("unknown operation {kind}")),
    }
}
