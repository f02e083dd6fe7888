//! Advice on paths that may be Hugging Face Hub names.

use std::path::Path;

use tooltune_hub::{HubName, NamePart, RepoKind, RepoName};

/// Advice on a missing path that may be a Hub name; `None` if the path exists or cannot be a name.
pub fn fetch_hint(kind: RepoKind, path: &Path) -> Option<String> {
    if path.exists() {
        return None;
    }
    let name = match kind {
        RepoKind::Model => HubName::parse_model(path.to_str()?).ok()??,
        RepoKind::Dataset => rows_name(path.to_str()?)?,
    };
    Some(match kind {
        RepoKind::Model => format!(
            "if it is a model on the Hugging Face Hub, download it with `tooltune fetch {name}` and set \
             the folder that it prints"
        ),
        RepoKind::Dataset => {
            let id = &name.repo.id;
            format!(
                "if it is a data set on the Hugging Face Hub, set its files, for example \
                 hf://datasets/{id}/train.jsonl; `hf download {id} --repo-type dataset --local-dir \
                 FOLDER` downloads and lists them"
            )
        }
    })
}

/// The Hub name in a setting for rows. There, `owner/name` is a path, but the path is missing, so
/// it may be a Hub name.
fn rows_name(text: &str) -> Option<HubName> {
    if let Some(name) = HubName::parse_rows(text).ok()? {
        return Some(name);
    }
    let is_file = Path::new(text).extension().is_some_and(|end| {
        ["jsonl", "json", "gz", "csv", "tsv", "parquet"].contains(&&*end.to_string_lossy())
    });
    let repo = RepoName::new(RepoKind::Dataset, text).ok()?;
    (!is_file).then_some(HubName {
        repo,
        revision: None,
        part: NamePart::Model,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint(kind: RepoKind, text: &str) -> String {
        fetch_hint(kind, Path::new(text)).unwrap_or_default()
    }

    #[test]
    fn hub_names_in_place_of_paths_give_the_fetch_command() {
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
            // An existing path is not a name.
            (RepoKind::Dataset, "src/tables"),
        ] {
            assert_eq!(hint(kind, path), "", "{path}");
        }
    }
}
