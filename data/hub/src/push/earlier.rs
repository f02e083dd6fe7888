//! Finds files of an earlier export that are still in a repository but not in the new export.
//!
//! Loaders choose files by name: transformers prefers a single weights file to shards, vLLM uses
//! the files of an index, and an adapter is loaded on top of any other files. Files of an earlier
//! export would therefore be loaded instead of, or in addition to, the new ones.

/// Model files other than weights that an export can write.
const FILES_OF_MODELS: [&str; 19] = [
    "adapter_config.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "config.json",
    "config_sentence_transformers.json",
    "generation_config.json",
    "merges.txt",
    "modules.json",
    "prompt.jinja",
    "sentence_bert_config.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
    "1_Pooling/config.json",
    "2_Normalize/.gitkeep",
];

/// Base names of weights, with or without shard numbers, that transformers, PEFT and vLLM look for.
const WEIGHTS: [&str; 4] = ["model", "pytorch_model", "adapter_model", "consolidated"];
const WEIGHTS_ENDINGS: [&str; 3] = [".safetensors", ".bin", ".pth"];

/// Files of `existing` that belong to an earlier export of the model with the new files `new`.
/// Empty if the new files contain no weights of a model folder. A GGUF file, for example, is one of
/// several in a repository.
pub(super) fn leftover_files<'t>(existing: &'t [String], new: &[&str]) -> Vec<&'t str> {
    if !new.iter().any(|name| is_weights(name)) {
        return Vec::new();
    }
    let is_model_file = |name: &&str| is_weights(name) || FILES_OF_MODELS.contains(name);
    let names = existing.iter().map(String::as_str);
    names
        .filter(|name| is_model_file(name) && !new.contains(name))
        .collect()
}

/// Files of `existing` that an earlier export may have written and that stay next to the new files
/// `new`: whole models next to a GGUF file, and other GGUF files.
pub(super) fn kept_files<'t>(existing: &'t [String], new: &[&str]) -> Vec<&'t str> {
    let deleted = leftover_files(existing, new);
    let is_export_file =
        |name: &str| is_weights(name) || FILES_OF_MODELS.contains(&name) || is_gguf(name);
    let names = existing.iter().map(String::as_str);
    names
        .filter(|name| is_export_file(name) && !new.contains(name) && !deleted.contains(name))
        .collect()
}

fn is_gguf(name: &str) -> bool {
    name.ends_with(".gguf")
}

/// Matches `model.safetensors`, `model-00001-of-00002.safetensors`, `model.safetensors.index.json`,
/// and the same for adapters and PyTorch.
fn is_weights(name: &str) -> bool {
    let name = name.strip_suffix(".index.json").unwrap_or(name);
    let stem = WEIGHTS_ENDINGS
        .iter()
        .find_map(|end| name.strip_suffix(end));
    let Some(stem) = stem else { return false };
    let number_part = WEIGHTS.iter().find_map(|start| stem.strip_prefix(start));
    number_part.is_some_and(|number_part| number_part.is_empty() || is_number_of(number_part))
}

/// Matches `-00001-of-00002`, or `.00` as in Mistral's numbering.
fn is_number_of(text: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let parts = text
        .strip_prefix('-')
        .and_then(|text| text.split_once("-of-"));
    let after_dot = text.strip_prefix('.');
    parts.is_some_and(|(part, n_parts)| is_number(part) && is_number(n_parts))
        || after_dot.is_some_and(is_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leftover_names(existing: &[&str], new: &[&str]) -> Vec<String> {
        let existing: Vec<String> = existing.iter().map(|name| (*name).to_owned()).collect();
        let removed = leftover_files(&existing, new).into_iter();
        removed.map(str::to_owned).collect()
    }

    #[test]
    fn each_new_export_removes_or_reports_the_files_of_earlier_ones() {
        let shards = [
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
        ];
        let single = ["config.json", "model.safetensors", "tokenizer.json"];
        let adapter = ["adapter_config.json", "adapter_model.safetensors"];
        let kept_names = [
            ".gitattributes",
            "LICENSE",
            "README.md",
            "model-q8_0.gguf",
            "logs/model.bin",
        ];
        let with = |names: &[&'static str]| [names, &kept_names].concat();
        assert_eq!(
            leftover_names(&with(&single[1..2]), &shards),
            ["model.safetensors"]
        );
        assert_eq!(leftover_names(&with(&shards), &single), shards);
        assert_eq!(leftover_names(&with(&adapter), &single), adapter);
        assert_eq!(leftover_names(&with(&single), &adapter), single);
        let fewer = ["model-00001-of-00001.safetensors", shards[2]];
        assert_eq!(leftover_names(&shards, &fewer), shards[..2]);
        assert_eq!(
            leftover_names(
                &["pytorch_model-00001-of-00002.bin", "consolidated.00.pth"],
                &single
            ),
            ["pytorch_model-00001-of-00002.bin", "consolidated.00.pth"]
        );
        let retriever = ["modules.json", "1_Pooling/config.json", "model.safetensors"];
        assert_eq!(leftover_names(&with(&retriever), &single), retriever[..2]);
        let kept_next_to = |existing: &[&str], new: &[&str]| -> Vec<String> {
            let existing: Vec<String> = existing.iter().map(|name| (*name).to_owned()).collect();
            kept_files(&existing, new)
                .into_iter()
                .map(str::to_owned)
                .collect()
        };
        let expected = [&single[..], &["model-q8_0.gguf"]].concat();
        assert_eq!(kept_next_to(&with(&single), &["model-f16.gguf"]), expected);
        assert_eq!(kept_next_to(&with(&shards), &single), ["model-q8_0.gguf"]);
        assert!(kept_next_to(&["model-f16.gguf", "README.md"], &["model-f16.gguf"]).is_empty());
        // A GGUF file can be next to other files.
        assert!(leftover_names(&with(&single), &["model-f16.gguf"]).is_empty());
        assert!(leftover_names(&with(&single), &single).is_empty());
        for other in [
            "mymodel.safetensors",
            "model-1.safetensors",
            "model.safetensors.bak",
            "a/model.bin",
        ] {
            assert!(!is_weights(other), "{other}");
        }
    }
}
