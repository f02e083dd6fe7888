//! Configs of other trainers: which one wrote a file, and what its settings are called here.
//!
//! Each trainer is a table beside this file: its keys with the settings here, or with the reason why
//! they are left out. Nothing is carried over silently: what no table knows is listed, too.

mod arguments;
mod translation;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::{Map, Value};

pub use arguments::{arguments, words};
pub use translation::{Translation, rows_to_learn, translate};

use super::document::Table;
use translation::{shown, word_of};

/// A trainer with its keys.
#[derive(Debug, Deserialize)]
pub struct Origin {
    /// As people write it.
    pub name: String,
    keys: BTreeMap<String, Rule>,
    left_out: BTreeMap<String, String>,
    /// What it does where a file is silent, by the setting here, where that is not our default.
    defaults: BTreeMap<String, Value>,
    /// The same where the rows are prompts with their completions, and that makes a difference.
    #[serde(default)]
    defaults_of_completions: BTreeMap<String, Value>,
    /// What is done here though a file is silent and the program would do something else, by the key
    /// that would ask for it there.
    #[serde(default)]
    otherwise: BTreeMap<String, String>,
    /// The commands of its program.
    #[serde(default)]
    command: Commands,
    #[serde(default)]
    alpha_is_twice_the_rank: bool,
    /// The only values of a key beside which the rest of a file means something here.
    only: BTreeMap<String, Vec<String>>,
}

/// What a script starts of a trainer.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Commands {
    program: String,
    /// The commands that are done here.
    done: Vec<String>,
    /// Files in Python, and commands, of which it is known that they are not.
    others: Vec<String>,
}

impl Commands {
    /// The first of these words that starts something else, as it was written.
    fn other(&self, words: &[String]) -> Option<String> {
        let last = |word: &str, at: char| word.rsplit(at).next().unwrap_or_default().to_owned();
        let is_other = |name: &str| self.others.iter().any(|other| other == name);
        for (idx, word) in words.iter().enumerate() {
            let script = word.strip_suffix(".py").map(|path| last(path, '/'));
            let module = word.split_once('.').map(|_| last(word, '.'));
            if script.or(module).is_some_and(|name| is_other(&name)) {
                return Some(word.clone());
            }
            let command = words
                .get(idx + 1)
                .filter(|_| last(word, '/') == self.program);
            let is_command = |next: &&String| next.starts_with(char::is_alphabetic);
            if let Some(next) = command
                .filter(is_command)
                .filter(|next| !self.done.contains(next))
            {
                return Some(format!("{} {next}", self.program));
            }
        }
        None
    }
}

/// What becomes of a key.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Rule {
    /// The value stands under this setting.
    Same(String),
    Other(Renaming),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Renaming {
    to: String,
    /// The values that mean something here, by the words there.
    words: Option<BTreeMap<String, Value>>,
    /// Whether other values than those of `words` stay as they are.
    #[serde(default)]
    else_same: bool,
    /// Whether one value is a list of one, and commas part several.
    #[serde(default)]
    list: bool,
    /// Whether the value names rows: files, or data sets with their files.
    #[serde(default)]
    rows: bool,
    /// What to mind about a value that is not carried over, or about rows.
    note: Option<String>,
}

static ORIGINS: LazyLock<Vec<Origin>> = LazyLock::new(|| {
    let texts = [
        include_str!("axolotl.toml"),
        include_str!("llama_factory.toml"),
        include_str!("ms_swift.toml"),
        include_str!("trl.toml"),
    ];
    let tables = texts.iter().map(|text| toml::from_str(text));
    tables.filter_map(Result::ok).collect()
});

/// Keys that a file must have of a trainer, at least, to be taken for one of its.
const ENOUGH_KEYS: usize = 3;

impl Origin {
    /// What a file asks for that is not done here, such as training by preferences: by its settings, or
    /// by the command that its `words` start.
    pub fn refusal(&self, theirs: &Map<String, Value>, words: &[String]) -> Option<String> {
        let mut others = theirs.iter().filter_map(|(key, value)| {
            let allowed = self.only.get(key)?;
            let word = word_of(value);
            let is_silent = value.is_null() || word.is_empty();
            (!is_silent && !allowed.contains(&word)).then(|| format!("{key} = {}", shown(value)))
        });
        let asked = self.command.other(words).or_else(|| others.next())?;
        Some(format!(
            "{asked}: supervised fine-tuning with LoRA is what is done here, and this file of {} asks \
             for something else",
            self.name
        ))
    }

    fn knows(&self, key: &str) -> bool {
        self.keys.contains_key(key)
            || self.left_out.contains_key(key)
            || self.only.contains_key(key)
    }

    /// The trainer that knows most of these keys; none if too few are known.
    pub fn of<'k>(keys: impl Iterator<Item = &'k str> + Clone) -> Option<&'static Self> {
        let n_known = |origin: &Origin| keys.clone().filter(|key| origin.knows(key)).count();
        let known = ORIGINS.iter().map(|origin| (n_known(origin), origin));
        // Of equal ones the first.
        let best = known.rev().max_by_key(|(n, _)| *n)?;
        (best.0 >= ENOUGH_KEYS).then_some(best.1)
    }

    /// The trainer whose settings a text has that is no TOML: JSON, or the arguments in a script.
    pub(crate) fn of_text(text: &str) -> Option<&'static Self> {
        let settings = match serde_json::from_str(text) {
            Ok(Value::Object(settings)) => Some(settings),
            _ => arguments(text),
        };
        Self::of(settings?.keys().map(String::as_str))
    }

    /// The trainer whose config this is: it has none of the tables here, and enough of its keys.
    pub(crate) fn of_document(document: &Table, tables: &[&str]) -> Option<&'static Self> {
        let keys = document.entries.iter().map(|entry| entry.key.as_str());
        let is_ours = |key: &str| tables.contains(&key);
        if keys.clone().any(is_ours) {
            return None;
        }
        Self::of(keys)
    }
}

/// A config of this program in TOML to the same in YAML: the settings of one table below its name, with
/// the comments of both.
pub fn toml_to_yaml(text: &str) -> String {
    let mut yaml = String::new();
    let mut indent = "";
    for line in text.lines() {
        let trimmed = line.trim_start();
        if let Some((table, rest)) = trimmed
            .strip_prefix('[')
            .and_then(|line| line.split_once(']'))
        {
            yaml.push_str(&format!("{table}:{rest}\n"));
            indent = "  ";
        } else if trimmed.is_empty() {
            yaml.push('\n');
        } else if trimmed.starts_with('#') {
            let indent = if line.starts_with("# ") && trimmed.contains(" = ") {
                indent
            } else {
                ""
            };
            let shown = if indent.is_empty() {
                trimmed.to_owned()
            } else {
                trimmed.replacen(" = ", ": ", 1)
            };
            yaml.push_str(&format!("{indent}{shown}\n"));
        } else {
            yaml.push_str(&format!("{indent}{}\n", trimmed.replacen(" = ", ": ", 1)));
        }
    }
    yaml
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::{LoadedConfig, Preset, Source, schema};

    #[test]
    fn every_key_of_another_trainer_leads_to_a_setting_and_no_value_is_refused() {
        assert_eq!(ORIGINS.len(), 4);
        for origin in ORIGINS.iter() {
            for (key, rule) in &origin.keys {
                let to = match rule {
                    Rule::Same(to) => to,
                    Rule::Other(rule) => &rule.to,
                };
                let (table, name) = to.split_once('.').expect(key);
                assert!(
                    schema::keys_of(table).contains(&name),
                    "{}: {key}: {to}",
                    origin.name
                );
                assert!(!origin.left_out.contains_key(key), "{}: {key}", origin.name);
            }
            let completions = origin.defaults_of_completions.keys();
            for to in origin.defaults.keys().chain(completions) {
                let (table, name) = to.split_once('.').expect(to);
                assert!(
                    schema::keys_of(table).contains(&name),
                    "{}: {to}",
                    origin.name
                );
            }
        }
    }

    #[test]
    fn what_is_not_supervised_fine_tuning_is_refused_by_its_settings_and_by_its_command() {
        let trl = |text: &str| {
            let theirs = arguments(text).unwrap();
            let origin = Origin::of(theirs.keys().map(String::as_str)).expect(text);
            let words = words(text).unwrap_or_default();
            origin.refusal(&theirs, &words).unwrap_or_default()
        };
        let settings = "--model_name_or_path m --dataset_name t.jsonl --use_peft --lora_r 8";
        for (text, said) in [
            (format!("trl dpo {settings}"), "trl dpo: "),
            (format!("/opt/bin/trl grpo \\\n {settings}"), "trl grpo: "),
            (
                format!("accelerate launch --config_file a.yaml trl/scripts/dpo.py {settings}"),
                "trl/scripts/dpo.py: ",
            ),
            (
                format!("python -m trl.scripts.kto {settings}"),
                "trl.scripts.kto: ",
            ),
            (format!("trl sft {settings} --beta 0.1"), "beta = 0.1: "),
            (
                format!("trl sft {settings} --loss_type sigmoid"),
                "loss_type = \"sigmoid\": ",
            ),
            (format!("trl sft {settings} --loss_type nll"), ""),
            (format!("python trl/scripts/sft.py {settings} --output_dir dpo"), ""),
            (
                "llamafactory-cli export --model_name_or_path m --stage sft --lora_rank 8 --template x"
                    .to_owned(),
                "llamafactory-cli export: ",
            ),
            (
                "swift pt --model m --dataset t.jsonl --train_type lora --lora_rank 8".to_owned(),
                "swift pt: ",
            ),
        ] {
            let refusal = trl(&text);
            assert!(
                refusal.starts_with(said) && refusal.is_empty() == said.is_empty(),
                "{text}: {refusal}"
            );
        }
    }

    /// What a file does not say is learned as the other program learns it.
    #[test]
    fn what_is_learned_is_what_the_other_program_learns() {
        let translated = |settings: Value, has_completions: bool| {
            let theirs = settings.as_object().cloned().unwrap();
            let origin = Origin::of(theirs.keys().map(String::as_str)).unwrap();
            translate(origin, &theirs, "run", has_completions)
        };
        let trl = |more: Value| {
            let mut settings = json!({"model_name_or_path": "m", "dataset_name": "t.jsonl",
                "use_peft": true, "lora_r": 8});
            let all = settings.as_object_mut().unwrap();
            all.extend(more.as_object().cloned().unwrap());
            settings
        };
        let llama = json!({"model_name_or_path": "m", "dataset": "t.jsonl", "lora_rank": 8,
            "finetuning_type": "lora", "train_on_prompt": true, "mask_history": false});
        for (settings, has_completions, learned) in [
            (trl(json!({})), false, "all"),
            (trl(json!({})), true, "completion"),
            (trl(json!({"assistant_only_loss": false})), false, "all"),
            (
                trl(json!({"assistant_only_loss": false})),
                true,
                "completion",
            ),
            (
                trl(json!({"assistant_only_loss": true})),
                false,
                "assistant",
            ),
            (trl(json!({"completion_only_loss": false})), true, "all"),
            (
                trl(json!({"assistant_only_loss": true, "completion_only_loss": false})),
                false,
                "assistant",
            ),
            (llama, false, "all"),
        ] {
            let translation = translated(settings.clone(), has_completions);
            assert_eq!(
                translation.settings["mask"]["train_on"], learned,
                "{settings}"
            );
            let lines = translation.carried.iter().chain(&translation.left);
            let lines: Vec<&String> = lines.collect();
            let said = |line: &&&String| line.contains(&format!("mask.train_on = {learned:?}"));
            assert!(
                lines.iter().any(|line| said(&line)),
                "{settings}: {lines:?}"
            );
            let untrue = |line: &&&String| line.contains("no value of mask.train_on");
            assert!(!lines.iter().any(|line| untrue(&line)), "{lines:?}");
        }
        let silent = json!({"model_name_or_path": "m", "dataset_name": "t.jsonl", "lora_r": 8});
        let left = translated(silent, false).left;
        assert!(
            left.iter()
                .any(|line| line.starts_with("use_peft is not set"))
        );
    }

    /// Settings that count steps are whole; shares of a run, which transformers takes, are said.
    #[test]
    fn shares_of_a_run_are_told_where_steps_are_counted() {
        let theirs = json!({"base_model": "m", "datasets": [{"path": "t.jsonl"}], "lora_r": 8,
            "test_datasets": [{"path": "e.jsonl"}], "eval_steps": 0.1, "save_steps": 500.0,
            "warmup_steps": 0.03});
        let theirs = theirs.as_object().unwrap();
        let origin = Origin::of(theirs.keys().map(String::as_str)).unwrap();
        let found = translate(origin, theirs, "run", false);
        assert_eq!(found.settings["checkpoint"]["save_steps"], json!(500));
        assert_eq!(found.settings["train"]["warmup_ratio"], json!(0.03));
        assert!(found.settings["eval"].get("eval_steps").is_none());
        let line = "eval_steps = 0.1: a share of the run; eval.eval_steps counts optimizer steps, and \
                    its default stays";
        assert!(
            found.left.iter().any(|left| left == line),
            "{:?}",
            found.left
        );
    }

    #[test]
    fn presets_say_the_same_in_yaml() {
        for preset in [
            Preset::Slot,
            Preset::Sft,
            Preset::Goat,
            Preset::Retriever,
            Preset::Joint,
        ] {
            let load = |name: &str, text: String| {
                let source = Source {
                    name: name.to_owned(),
                    text,
                };
                LoadedConfig::parse(source, &[])
                    .unwrap_or_else(|e| panic!("{preset:?}: {e}"))
                    .config
            };
            let toml = load("a.toml", preset.text().to_owned());
            let yaml = toml_to_yaml(preset.text());
            assert_eq!(load("a.yaml", yaml.clone()), toml, "{yaml}");
        }
    }
}
