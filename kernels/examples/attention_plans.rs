//! Builds cuDNN attention plans for GPUs that exist only as descriptions, and prints their
//! workspace sizes in bytes. `scripts/check-cudnn-plans` compares these, and the kernels that the
//! plans load. Plans are cached in the folder `TOOLTUNE_CACHE`, if that is set. The output starts
//! with the number of distinct plan shapes in the micro-batches of some runs.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the program's result is its output"
)]

use std::env;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use tooltune_kernels::Causality;
use tooltune_kernels::gpu::{
    AttentionLayers, AttentionShape, Library, PlanPrefetch, cache_kernels_in, n_attention_shapes,
    plan_workspaces,
};

/// Query heads, key/value heads and head size of Llama 3 8B, Llama 3.2 1B, Phi-3, a model with one
/// key head per query head, Gemma 3 and SmolLM2.
const HEADS: [([usize; 2], usize); 6] = [
    ([32, 8], 128),
    ([32, 8], 64),
    ([32, 32], 96),
    ([8, 8], 128),
    ([4, 1], 256),
    ([9, 3], 64),
];

/// First argument that makes other threads build the plans while the main thread requests them.
const PREFETCH: &str = "--ahead";

fn shapes() -> impl Iterator<Item = AttentionShape> {
    let causalities = [
        Causality::Causal,
        Causality::Sliding(1024),
        Causality::Bidirectional,
    ];
    HEADS.into_iter().flat_map(move |(heads, size)| {
        causalities.into_iter().flat_map(move |causality| {
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

/// Document lengths from 16 to 4,096 tokens, log-uniformly distributed.
fn lengths() -> impl Iterator<Item = usize> {
    let mut state = 1u64;
    std::iter::repeat_with(move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let exponent = 4.0 + 8.0 * (state >> 40) as f64 / (1u64 << 24) as f64;
        exponent.exp2() as usize
    })
}

/// Packs of consecutive documents with at most `n_tokens` tokens each.
fn packs(n_tokens: usize) -> impl Iterator<Item = Vec<usize>> {
    let mut lengths = lengths().peekable();
    std::iter::repeat_with(move || {
        let mut room = n_tokens;
        let mut pack = Vec::new();
        while let Some(length) = lengths.next_if(|length| *length <= room) {
            room -= length;
            pack.push(length);
        }
        pack
    })
}

/// Prints how many plans the micro-batches of a run need; nearly all of them differ in their token
/// count.
fn print_shape_counts() {
    let layers = AttentionLayers {
        heads: [32, 8],
        size: 128,
        causalities: vec![Causality::Causal],
    };
    for takes_ragged in [false, true] {
        for documents in [1, 2, 4, 8] {
            let mut lengths = lengths();
            let micro_batches = (0..2_000).map(|_| lengths.by_ref().take(documents).collect());
            let n = n_attention_shapes(&layers, takes_ragged, micro_batches);
            println!("2000 x {documents} documents, ragged {takes_ragged}: {n} forms");
        }
        for n_tokens in [4096, 8192] {
            let packs = packs(n_tokens).take(2_000);
            let n = n_attention_shapes(&layers, takes_ragged, packs);
            println!("2000 packs of {n_tokens} tokens, ragged {takes_ragged}: {n} forms");
        }
    }
}

fn main() -> ExitCode {
    if Library::Cudnn.find().is_none() {
        eprintln!(
            "attention_plans: libcudnn.so could not be loaded; set LD_LIBRARY_PATH to its folder"
        );
        return ExitCode::FAILURE;
    }
    if let Some(folder) = env::var_os("TOOLTUNE_CACHE") {
        cache_kernels_in(Path::new(&folder));
    }
    print_shape_counts();
    let mut paths: Vec<String> = env::args().skip(1).collect();
    let prefetches = paths.first().is_some_and(|first| first == PREFETCH);
    if prefetches {
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
        let prefetch = prefetches.then(|| {
            let shapes: Vec<AttentionShape> = shapes().collect();
            PlanPrefetch::from_properties(&path, &properties, &shapes)
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
            // The driver prints the kernel names to stderr after this line.
            eprintln!("plan: {path} {name}");
            let began = Instant::now();
            let workspaces = plan_workspaces((&path, &properties), shape);
            eprintln!("took {:.4} s", began.elapsed().as_secs_f64());
            match workspaces {
                Ok(passes) => println!("{path} {name}: {passes:?}"),
                Err(error) => println!("{path} {name}: {error}"),
            }
        }
        match prefetch {
            Some(Ok(prefetch)) => prefetch.wait(),
            Some(Err(error)) => {
                eprintln!("attention_plans: {path}: {error}");
                return ExitCode::FAILURE;
            }
            None => {}
        }
    }
    ExitCode::SUCCESS
}
