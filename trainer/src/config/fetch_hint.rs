//! Names of the Hugging Face hub in the place of paths: what to do about them.

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
    Some(match kind {
        RepoKind::Model => format!(
            "if it is the name of a model on the Hugging Face hub, fetch it with `tooltune fetch {name}` \
             and name the folder that it prints"
        ),
        RepoKind::Dataset => {
            let id = &name.repo.id;
            format!(
                "if it is the name of a data set on the Hugging Face hub, name its files, as in \
                 hf://datasets/{id}/train.jsonl; `hf download {id} --repo-type dataset --local-dir \
                 FOLDER` shows which there are"
            )
        }
    })
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
                "`tooltune fetch Qwen/Qwen3-0.6B`",
            ),
            (RepoKind::Model, "o/n@v1", "`tooltune fetch o/n@v1`"),
            (
                RepoKind::Model,
                "bartowski/Llama-3.2-1B-GGUF:Q4_K_M",
                "`tooltune fetch bartowski/Llama-3.2-1B-GGUF:Q4_K_M`",
            ),
            (
                RepoKind::Dataset,
                "Salesforce/xlam-function-calling-60k",
                "hf://datasets/Salesforce/xlam-function-calling-60k/train.jsonl",
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
