//! Sends many prompts to a server and says how long they took, with the journal of a pipeline or
//! without: `scripts/bench/pipelines` measures with it.
//!
//! `throughput URL CONCURRENCY REQUESTS [FOLDER]`; a folder gets the journal.

use std::io::Write;
use std::path::Path;
use std::time::Instant;

use serde_json::{Map, Value, json};
use tooltune_endpoint::EndpointOptions;
use tooltune_pipelines::{
    AGAIN_PROMPT, Asked, Asking, EndpointGenerator, Generator, Limits, Made, Opening, Place,
    Progress, Prompt, Prompts, Run, Stage, WholeFiles,
};

const STAGES: &[Stage] = &[Stage {
    name: "ask",
    file: "asked.jsonl",
}];

/// Files as they are; nobody resumes these.
struct Plain;

impl WholeFiles for Plain {
    fn write(
        &self,
        path: &Path,
        bytes: &[u8],
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Ok(std::fs::write(path, bytes)?)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, concurrency, n_requests, folder @ ..] = arguments.as_slice() else {
        return Err("give URL CONCURRENCY REQUESTS [FOLDER]".into());
    };
    let asking = Asking {
        concurrency: concurrency.parse()?,
        extra_body: Map::new(),
        is_constrained: false,
    };
    let generator = EndpointGenerator::open(&EndpointOptions::new(url, "served"), asking)?;
    let asked: Vec<Asked> = (0..n_requests.parse()?).map(asked).collect();
    let begun = Instant::now();
    let n_replies = match folder {
        [] => without_journal(&generator, &asked)?,
        [folder, ..] => with_journal(&generator, &asked, Path::new(folder))?,
    };
    let said = json!({"seconds": begun.elapsed().as_secs_f64(), "n_replies": n_replies});
    writeln!(std::io::stdout(), "{said}")?;
    Ok(())
}

/// A prompt of some four hundred words.
fn asked(number: usize) -> Asked {
    let text = format!("Request {number}. {}", "Say what it is about. ".repeat(80));
    Asked {
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
    asked: &[Asked],
) -> Result<usize, Box<dyn std::error::Error>> {
    let prompts: Vec<&Prompt> = asked.iter().map(|asked| &asked.prompt).collect();
    let mut n_replies = 0;
    generator.ask(&prompts, &mut |came| {
        n_replies += usize::from(came.is_some_and(|came| came.result.is_ok()));
        true
    })?;
    Ok(n_replies)
}

fn with_journal(
    generator: &EndpointGenerator,
    asked: &[Asked],
    folder: &Path,
) -> Result<usize, Box<dyn std::error::Error>> {
    let mut watch = |_: &Progress| true;
    let mut run = Run::open(Opening {
        place: Place {
            dir: folder,
            generator,
            files: &Plain,
            limits: Limits::default(),
            only: None,
            watch: &mut watch,
        },
        stages: STAGES,
        settings: Map::new(),
        prompts: Prompts::open(&[AGAIN_PROMPT], None)?,
    })?;
    let kept = run.stage::<Value>("ask", |run| {
        let read = |_: usize, text: &str| Ok(Value::from(text));
        Ok(Made::of(run.ask("ask", asked, &read)?))
    })?;
    Ok(kept.map_or(0, |kept| kept.len()))
}
