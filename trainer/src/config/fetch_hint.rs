//! Names of the Hugging Face hub in the place of paths: the command that fetches what they name.

use std::path::Path;

use tooltune_hub::{HubName, Part, RepoKind, RepoName};

/// What to do about a path that leads nowhere and could be a name of the hub; nothing where it is
/// there, or can only be a path.
pub(crate) fn fetch_hint(kind: RepoKind, path: &Path) -> Option<String> {
    if path.exists() {
        return None;
    }
    let name = match kind {
        RepoKind::Model => HubName::of_model(path.to_str()?).ok()??,
        RepoKind::Dataset => rows_name(path.to_str()?)?,
    };
    let noun = kind.noun();
    let command = command(&name);
    let then = match kind {
        RepoKind::Model => "name the folder or file that it writes",
        RepoKind::Dataset => "name the JSON Lines files in the folder that it writes",
    };
    Some(format!(
        "if it is the name of a {noun} on the Hugging Face hub, fetch it with `{command}` and {then}"
    ))
}

/// `owner/name` is a path for who reads rows, and here the path leads nowhere.
fn rows_name(text: &str) -> Option<HubName> {
    if let Some(name) = HubName::of_rows(text).ok()? {
        return Some(name);
    }
    let is_file = Path::new(text).extension().is_some_and(|end| {
        ["jsonl", "json", "gz", "csv", "tsv", "parquet"].contains(&&*end.to_string_lossy())
    });
    let repo = RepoName::new(RepoKind::Dataset, text).ok()?;
    (!is_file).then_some(HubName {
        repo,
        revision: None,
        part: Part::Model,
    })
}

fn command(name: &HubName) -> String {
    let id = &name.repo.id;
    let (kind, folder) = match name.repo.kind {
        RepoKind::Model => ("", "models"),
        RepoKind::Dataset => (" --repo-type dataset", "data"),
    };
    let part = match &name.part {
        Part::File(path) if !path.is_empty() => format!(" {path}"),
        Part::Quantisation(tag) => format!(" --include '*{tag}*.gguf'"),
        _ => String::new(),
    };
    let revision = name
        .revision
        .iter()
        .map(|name| format!(" --revision {name}"));
    let revision = revision.collect::<String>();
    let last = id.rsplit('/').next().unwrap_or(id);
    format!("hf download {id}{part}{kind}{revision} --local-dir {folder}/{last}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint(kind: RepoKind, text: &str) -> String {
        fetch_hint(kind, Path::new(text)).unwrap_or_default()
    }

    #[test]
    fn names_of_the_hub_are_answered_with_the_command_that_fetches_them() {
        for (kind, name, command) in [
            (
                RepoKind::Model,
                "Qwen/Qwen3-0.6B",
                "`hf download Qwen/Qwen3-0.6B --local-dir models/Qwen3-0.6B`",
            ),
            (
                RepoKind::Model,
                "bartowski/Llama-3.2-1B-GGUF:Q4_K_M",
                "--include '*Q4_K_M*.gguf' --local-dir models/Llama-3.2-1B-GGUF`",
            ),
            (
                RepoKind::Model,
                "o/n@v1",
                "`hf download o/n --revision v1 --local-dir models/n`",
            ),
            (
                RepoKind::Dataset,
                "Salesforce/xlam-function-calling-60k",
                "`hf download Salesforce/xlam-function-calling-60k --repo-type dataset --local-dir \
                 data/xlam-function-calling-60k`",
            ),
            (
                RepoKind::Dataset,
                "hf://datasets/o/n/train.jsonl",
                "`hf download o/n train.jsonl --repo-type dataset --local-dir data/n`",
            ),
        ] {
            assert!(
                hint(kind, name).contains(command),
                "{name}: {}",
                hint(kind, name)
            );
        }
        for (kind, path) in [
            (RepoKind::Model, "models/smollm2-135m"),
            (RepoKind::Model, "smollm2"),
            (RepoKind::Model, "a/b.gguf"),
            (RepoKind::Dataset, "rows/train.jsonl"),
            (RepoKind::Dataset, "train.jsonl"),
            (RepoKind::Dataset, "a/b/c"),
            // What is there is no name.
            (RepoKind::Dataset, "src/config"),
        ] {
            assert_eq!(hint(kind, path), "", "{path}");
        }
    }
}
