//! Times one operation after another, as asked on standard input: our side of `scripts/bench/kernels`.
//!
//! A line `KIND DTYPE NUMBER...` is answered by one JSON line with the seconds of a call, by wall
//! time and by CPU time of the process, once for each sample. The same line again measures the
//! same inputs again, so that the sides of a comparison can take turns. What is not computed in
//! DTYPE is answered by `{"missing": REASON}`.

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
Times tooltune's operations; started by scripts/bench/kernels, which has the shapes.

    bench_kernels SECONDS    measures for SECONDS a line; reads lines `KIND DTYPE NUMBER...`, such as
                             `linear f32 1024 576 1536`, and answers each with a JSON line";

/// One operation with its inputs.
struct Run {
    call: Box<dyn FnMut()>,
    /// Makes what so many calls use up, before they are timed.
    before: Option<Box<dyn FnMut(usize)>>,
    /// Operations or bytes of a call, where the asker cannot know.
    work: Option<f64>,
    /// Whether threads wait for the next call without falling asleep, as they do for a token's.
    is_awake: bool,
}

impl Run {
    fn new(call: impl FnMut() + 'static) -> Self {
        Self {
            call: Box::new(call),
            before: None,
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

/// Makes the inputs of an operation from the numbers of its shape; an error says what is missing.
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
    // As in training, the thread that asks for an operation computes, too.
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
            // The inputs of the last operation go first: two heads would not fit beside each other.
            drop(prepared.take());
            prepared = Some((line.clone(), prepare(&line)));
        }
        let answer = match prepared.as_mut().map(|(_, run)| run) {
            Some(Ok(run)) => timing::measured(run, seconds),
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
        .map(|word| word.parse().map_err(|_| format!("{word} is no number")))
        .collect::<Result<_, _>>()?;
    let tables = [
        peaks::OPERATIONS,
        products::OPERATIONS,
        elementwise::OPERATIONS,
        sequence::OPERATIONS,
    ];
    let found = tables
        .iter()
        .flat_map(|table| table.iter())
        .find(|(name, _)| *name == kind);
    match found {
        Some((_, prepare)) => prepare(precision, &numbers),
        None => Err(format!("no operation {kind}")),
    }
}
