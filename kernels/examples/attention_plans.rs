//! Makes cuDNN's plans for attention on GPUs that are only described, and prints the bytes of their
//! workspaces; `scripts/check-cudnn-plans` compares them, and the kernels that the plans load. Plans are
//! kept in the folder that TOOLTUNE_CACHE names, if it names one.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the lines are the result"
)]

use std::env;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use tooltune_kernels::Causality;
use tooltune_kernels::gpu::{
    AttentionShape, Library, PlansAhead, keep_kernels_in, plan_workspaces,
};

/// Query and key/value heads, and the size of a head: Llama 3 8B, Llama 3.2 1B, Phi-3, a model whose
/// heads have a key head each, Gemma 3, SmolLM2.
const HEADS: [([usize; 2], usize); 6] = [
    ([32, 8], 128),
    ([32, 8], 64),
    ([32, 32], 96),
    ([8, 8], 128),
    ([4, 1], 256),
    ([9, 3], 64),
];

/// Has other threads make the plans, which the first one wants at the same time.
const AHEAD: &str = "--ahead";

fn shapes() -> impl Iterator<Item = AttentionShape> {
    let seen = [
        Causality::Causal,
        Causality::Sliding(1024),
        Causality::Bidirectional,
    ];
    HEADS.into_iter().flat_map(move |(heads, size)| {
        seen.into_iter().flat_map(move |causality| {
            [false, true].map(|ragged| AttentionShape {
                documents: 2,
                length: 4096,
                heads,
                size,
                causality,
                ragged,
            })
        })
    })
}

fn main() -> ExitCode {
    if Library::Cudnn.find().is_none() {
        eprintln!(
            "attention_plans: libcudnn.so cannot be loaded; set LD_LIBRARY_PATH to its folder"
        );
        return ExitCode::FAILURE;
    }
    if let Some(folder) = env::var_os("TOOLTUNE_CACHE") {
        keep_kernels_in(Path::new(&folder));
    }
    let mut paths: Vec<String> = env::args().skip(1).collect();
    let is_ahead = paths.first().is_some_and(|first| first == AHEAD);
    if is_ahead {
        paths.remove(0);
    }
    for path in paths {
        let properties = match fs::read_to_string(&path) {
            Ok(properties) => properties,
            Err(error) => {
                eprintln!("attention_plans: {path}: {error}");
                return ExitCode::FAILURE;
            }
        };
        let ahead = is_ahead.then(|| {
            let shapes: Vec<AttentionShape> = shapes().collect();
            PlansAhead::described(&path, &properties, &shapes)
        });
        for shape in shapes() {
            let AttentionShape {
                heads,
                size,
                causality,
                ragged,
                ..
            } = shape;
            let name = format!("{heads:?} {size} {causality:?} ragged {ragged}");
            // The driver names the kernels on the error output, behind this line.
            eprintln!("plan: {path} {name}");
            let began = Instant::now();
            let made = plan_workspaces((&path, &properties), shape);
            eprintln!("took {:.4} s", began.elapsed().as_secs_f64());
            match made {
                Ok(passes) => println!("{path} {name}: {passes:?}"),
                Err(error) => println!("{path} {name}: {error}"),
            }
        }
        match ahead {
            Some(Ok(ahead)) => ahead.wait(),
            Some(Err(error)) => {
                eprintln!("attention_plans: {path}: {error}");
                return ExitCode::FAILURE;
            }
            None => {}
        }
    }
    ExitCode::SUCCESS
}
