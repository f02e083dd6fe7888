//! Predicts before training which exports of a run will be refused, from its config and base model.

use std::path::Path;

use serde::Serialize;
use tooltune_checkpoints::ModelFiles;
use tooltune_checkpoints::merged::{
    OLLAMA_MODEL, config_refused_by_llama_cpp, refused_as_folder, refused_by_llama_cpp,
};

use super::gguf::missing_vocabulary;
use super::served::{Served, merged_lines};
use crate::base_model::BaseModel;
use crate::config::Config;
use crate::error::Error;
use crate::modelfile::{ModelfileParts, modelfile};

/// Exports that are refused or incomplete, with the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// Command-line options of the exports, such as `--to gguf --merged`.
    pub exports: &'static str,
    /// Whether the exports end with an error. Otherwise they are written, but incomplete.
    pub is_refused: bool,
    /// The error, or the missing part.
    pub reason: String,
}

/// The exports of a merged model as GGUF.
const MERGED_GGUF: &str = "--to gguf --merged and --to ollama";

/// All refusals that follow from the settings and the files of the base. The exports themselves run
/// the same checks.
///
/// # Errors
///
/// The config has no language model, or the base's config has an invalid size.
pub fn refusals(config: &Config, base: &BaseModel) -> Result<Vec<Refusal>, Error> {
    let mut refused_exports = Vec::new();
    let mut add = |exports, reason: String| refused_exports.push((exports, true, reason));
    if let Some(reason) = refused_adapter(config)? {
        add("--to gguf", reason);
    }
    if let Some(refused) = refused_by_llama_cpp(&base.path, &base.files)? {
        add(MERGED_GGUF, refused.to_string());
    }
    let vocabulary = missing_vocabulary(base);
    if let Err(refused) = &vocabulary {
        add(MERGED_GGUF, refused.to_string());
    }
    if let Some(refused) = refused_as_folder(&base.files) {
        add("--to merged", refused.to_string());
    }
    let vocabulary = vocabulary.ok().flatten();
    let mut notes: Vec<_> = merged_lines(base, vocabulary.as_ref(), config.data.max_length)?
        .into_iter()
        .map(|line| (MERGED_GGUF, false, line))
        .collect();
    let served = Served::for_ollama(base);
    let parts = ModelfileParts {
        model: OLLAMA_MODEL,
        template: &base.template,
        added_bos: served.bos(base),
        system: config.data.system.as_deref(),
        stops: &served.stops,
        context: None,
    };
    match modelfile(&parts) {
        Ok(written) => {
            let lines = written.lines().into_iter();
            notes.extend(lines.map(|line| ("--to ollama", false, line)));
        }
        Err(error) => add("--to ollama", error.to_string()),
    }
    let refused_exports = refused_exports.into_iter().chain(notes);
    let refused_exports = refused_exports.map(|(exports, is_refused, reason)| Refusal {
        exports,
        is_refused,
        reason,
    });
    Ok(refused_exports.collect())
}

/// Refusals that follow from the settings and the model's `config.json` at `path`, without other
/// files of the model.
///
/// # Errors
///
/// As for [`refusals`].
pub fn refusals_of_shape(config: &Config, path: &Path) -> Result<Vec<Refusal>, Error> {
    let refused = |exports, reason| Refusal {
        exports,
        is_refused: true,
        reason,
    };
    let mut all = Vec::new();
    all.extend(refused_adapter(config)?.map(|reason| refused("--to gguf", reason)));
    let is_folder = path.is_dir() || path.extension().is_some_and(|end| end == "json");
    if is_folder {
        let shape = ModelFiles::read_config(path)?;
        let reason = config_refused_by_llama_cpp(path, &shape)?;
        all.extend(reason.map(|reason| refused(MERGED_GGUF, reason.to_string())));
    }
    Ok(all)
}

/// Why llama.cpp cannot load the adapter of a run with these settings, if so.
fn refused_adapter(config: &Config) -> Result<Option<String>, Error> {
    let name = config.language_model()?.model_name_or_path.display();
    let adapter = config.lora.to_peft(&name.to_string());
    Ok(adapter.non_lora_parts().map(|what| {
        format!(
            "llama.cpp supports only adapters with low-rank factors, but this run trains {what}; export \
             the merged model with --to gguf --merged"
        )
    }))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tooltune_checkpoints::weights::{FloatDtype, GgufDtype};

    use super::*;
    use crate::config::LoadedConfig;
    use crate::export::{Addition, GgufTarget, export_whole_gguf};

    fn fixture(name: &str) -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../tests/fixtures")
            .join(name)
    }

    /// The tiny model with this pre-tokenizer.
    fn base(dir: &Path, pre_tokenizer: &Value) -> BaseModel {
        std::fs::create_dir_all(dir).expect("a folder");
        for entry in std::fs::read_dir(fixture("tiny_chat_model")).expect("a folder") {
            let path = entry.expect("an entry").path();
            std::fs::copy(&path, dir.join(path.file_name().expect("a name"))).expect("copied");
        }
        let path = dir.join("tokenizer.json");
        let text = std::fs::read_to_string(&path).expect("read");
        let mut tokenizer: Value = serde_json::from_str(&text).expect("JSON");
        tokenizer["pre_tokenizer"] = pre_tokenizer.clone();
        std::fs::write(&path, tokenizer.to_string()).expect("written");
        BaseModel::open(dir, None).expect("a model")
    }

    fn export_f32(base: &BaseModel, path: &Path) -> Result<Vec<String>, Error> {
        let (nothing, dtype) = (Addition::none(), GgufDtype::Float(FloatDtype::F32));
        export_whole_gguf(&nothing, base, dtype.into(), 2048, GgufTarget::File, path)
    }

    fn config(dir: &Path, more: &str) -> Config {
        let rows = dir.join("rows.jsonl");
        std::fs::write(&rows, "{}\n").expect("written");
        let text = format!(
            "[model]\nmodel_name_or_path = {dir:?}\n[lora]\n{more}\n[data]\ntrain = [{rows:?}]\n\
             format = \"messages\"\n[train]\noutput_dir = {:?}\n",
            dir.join("run")
        );
        let path = dir.join("run.toml");
        std::fs::write(&path, text).expect("written");
        LoadedConfig::load(&path, &[]).expect("a config").config
    }

    #[test]
    fn a_folder_is_exported_with_its_pre_tokenizer_and_tokenizes_equally() {
        let cases = std::fs::read_to_string(fixture("pre_tokenizers/cases.json")).expect("read");
        let cases: Value = serde_json::from_str(&cases).expect("JSON");
        let dir = tempfile::tempdir().expect("a folder");
        for (name, differs_with_marks) in [
            ("gpt-4o", true),
            ("tekken", true),
            ("dbrx", false),
            ("smollm", false),
            ("seed-coder", false),
        ] {
            let folder = dir.path().join(name);
            let base = base(&folder, &cases["cases"][name]["pre_tokenizer"]);
            let found = refusals(&config(&folder, ""), &base).expect("checked");
            let path = dir.path().join(format!("{name}.gguf"));
            let remarks = export_f32(&base, &path).expect("written");
            let planned: Vec<&String> = found.iter().map(|refusal| &refusal.reason).collect();
            assert_eq!(planned, remarks.iter().collect::<Vec<_>>(), "{name}");
            assert_eq!(
                remarks.len(),
                usize::from(differs_with_marks),
                "{remarks:?}"
            );
            for remark in &remarks {
                assert!(remark.contains("combining marks"), "{remark}");
                assert!(remark.contains(&format!("{name:?}")), "{remark}");
                assert!(!found[0].is_refused);
            }
            let read = BaseModel::open(&path, None).expect("a model");
            for text in cases["texts"].as_array().expect("texts") {
                let text = text.as_str().expect("a text");
                let [ids, expected] =
                    [&read, &base].map(|model| model.tokenizer.encode(text).expect("tokens").ids);
                assert_eq!(ids, expected, "{name}: {text:?}");
            }
        }
    }

    #[test]
    fn refusals_are_the_errors_of_the_exports() {
        let dir = tempfile::tempdir().expect("a folder");
        let split = json!({"type": "Split", "pattern": {"Regex": "[0-9]{4}"}, "behavior": "Isolated",
            "invert": false});
        let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
            "use_regex": true});
        let own = json!({"type": "Sequence", "pretokenizers": [split, bytes]});
        let base = base(&dir.path().join("own"), &own);
        let config = config(&base.path, "use_dora = true");
        let all = refusals(&config, &base).expect("checked");
        let exports: Vec<&str> = all.iter().map(|refusal| refusal.exports).collect();
        assert_eq!(exports, ["--to gguf", "--to gguf --merged and --to ollama"]);
        assert!(all[0].reason.contains("DoRA"), "{}", all[0].reason);
        let path = dir.path().join("own.gguf");
        let error = export_f32(&base, &path);
        assert_eq!(all[1].reason, error.expect_err("refused").to_string());
        assert!(
            all[1].reason.contains("without a name in GGUF"),
            "{}",
            all[1].reason
        );
    }

    #[test]
    fn a_config_without_weights_has_the_same_refusals_as_the_model() {
        let dir = tempfile::tempdir().expect("a folder");
        let full_base = base(
            dir.path(),
            &json!({"type": "ByteLevel", "add_prefix_space": false,
            "trim_offsets": true, "use_regex": true}),
        );
        let config = config(&full_base.path, "use_dora = true");
        let path = dir.path().join("config.json");
        let text = std::fs::read_to_string(&path).expect("read");
        let mut shape: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(
            refusals_of_shape(&config, dir.path())
                .expect("checked")
                .len(),
            1
        );
        shape["rope_scaling"] = json!({"rope_type": "yarn", "factor": 4.0,
            "attention_factor": 1.5, "original_max_position_embeddings": 1024});
        let config_only = dir.path().join("alone");
        std::fs::create_dir(&config_only).expect("made");
        std::fs::write(config_only.join("config.json"), shape.to_string()).expect("written");
        let all = refusals_of_shape(&config, &config_only).expect("checked");
        let exports: Vec<&str> = all.iter().map(|refusal| refusal.exports).collect();
        assert_eq!(exports, ["--to gguf", MERGED_GGUF]);
        assert!(
            all[1].reason.contains("attention_factor"),
            "{}",
            all[1].reason
        );
    }
}
