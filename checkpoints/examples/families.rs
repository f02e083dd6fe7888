//! Prints every model family as JSON, for scripts that need the program's own list.

use serde_json::{Value, json};
use tooltune_checkpoints::families::FAMILIES;

#[allow(clippy::print_stdout, reason = "the output of the example")]
fn main() {
    let families = FAMILIES.iter().map(|family| {
        json!({
            "model_type": family.model_type,
            "models": family.models,
            "architecture": family.gguf.architecture,
            "reads_architecture": family.gguf.reads_architecture,
        })
    });
    println!("{}", Value::from_iter(families));
}
