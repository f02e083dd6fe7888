//! An unknown key -> what was probably meant.
//!
//! The words of other trainers are refused with the word used here instead of being accepted
//! silently: a config then has one spelling, and a copied file is understood before it runs.

/// The one setting outside the tables.
const DEVICE: &str = "device";

/// The main tables with their keys, in the order of the documentation.
#[derive(Debug)]
pub(crate) struct Tables<'a>(Vec<(&'a str, Vec<&'a str>)>);

impl<'a> Tables<'a> {
    /// Of all settings at the top, those that have keys.
    pub(crate) fn new(tables: impl Iterator<Item = (&'a str, Vec<&'a str>)>) -> Self {
        Self(tables.filter(|(_, keys)| !keys.is_empty()).collect())
    }

    /// The table outside `path` that has `key`; what [train] and [retriever] both have is the former's.
    fn home_of(&self, path: &str, key: &str) -> Option<&'a str> {
        let homes = self
            .0
            .iter()
            .filter(|(table, keys)| *table != path && keys.contains(&key));
        let mut homes = homes.map(|(table, _)| *table);
        let first = homes.next()?;
        Some(homes.find(|table| *table == "train").unwrap_or(first))
    }

    /// The nearest key, here or in another table, as advice and as the path of the setting.
    fn suggest(&self, path: &str, key: &str, known: &[&str]) -> (String, Option<String>) {
        if let Some(near) = nearest(key, known) {
            let meant = if path.is_empty() {
                near.to_owned()
            } else {
                format!("{path}.{near}")
            };
            return (format!("did you mean `{near}`?"), Some(meant));
        }
        // Keys of nested tables such as mask.weights cannot have been meant for another table.
        if path.is_empty() || self.0.iter().any(|(table, _)| *table == path) {
            let all: Vec<&str> = self.0.iter().flat_map(|(_, keys)| keys).copied().collect();
            let near = nearest(key, &all);
            if let Some((near, table)) =
                near.and_then(|near| Some((near, self.home_of(path, near)?)))
            {
                return (format!("did you mean `{near}`, in [{table}]?"), None);
            }
        }
        (format!("the keys here are {}", list(known)), None)
    }
}

/// An unknown key, explained.
#[derive(Debug)]
pub(crate) struct Unknown {
    pub(crate) message: String,
    pub(crate) help: String,
    /// Path of the setting that was meant, if that is likely.
    pub(crate) meant: Option<String>,
}

/// Keys of other trainers, the setting here, and what to mind about its value, if anything.
const FOREIGN: &[(&str, &str, &str)] = &[
    ("base_model", "model.model_name_or_path", ""),
    ("model", "model.model_name_or_path", ""),
    ("model_id", "model.model_name_or_path", ""),
    ("model_name", "model.model_name_or_path", ""),
    ("dtype", "model.compute_dtype", "write \"bf16\" or \"f32\""),
    (
        "torch_dtype",
        "model.compute_dtype",
        "write \"bf16\" or \"f32\"",
    ),
    (
        "bf16",
        "model.compute_dtype",
        "write compute_dtype = \"bf16\"",
    ),
    ("lora_rank", "lora.r", ""),
    ("lora_r", "lora.r", ""),
    ("rank", "lora.r", ""),
    ("alpha", "lora.lora_alpha", ""),
    ("dropout", "lora.lora_dropout", ""),
    ("scale", "lora.lora_alpha", "the scale is lora_alpha / r"),
    ("lora_target", "lora.target_modules", ""),
    ("lora_target_modules", "lora.target_modules", ""),
    ("lora_modules", "lora.target_modules", ""),
    (
        "lora_target_linear",
        "lora.target_modules",
        "write target_modules = \"all-linear\"",
    ),
    ("rslora", "lora.use_rslora", ""),
    (
        "prompts",
        "retriever.query_prompt",
        "documents have document_prompt",
    ),
    (
        "query_instruction_for_retrieval",
        "retriever.query_prompt",
        "",
    ),
    (
        "passage_instruction_for_retrieval",
        "retriever.document_prompt",
        "",
    ),
    ("passage_prompt", "retriever.document_prompt", ""),
    ("corpus_prompt", "retriever.document_prompt", ""),
    ("dataset", "data.train", ""),
    ("datasets", "data.train", ""),
    ("dataset_name", "data.train", ""),
    ("train_file", "data.train", ""),
    ("validation_file", "data.eval", ""),
    ("eval_dataset", "data.eval", ""),
    (
        "val_set_size",
        "data.eval",
        "evaluation rows stand in files of their own",
    ),
    ("cutoff_len", "data.max_length", ""),
    ("sequence_len", "data.max_length", ""),
    ("max_seq_length", "data.max_length", ""),
    ("max_seq_len", "data.max_length", ""),
    ("model_max_length", "data.max_length", ""),
    ("excess_length_strategy", "data.on_overflow", ""),
    (
        "sample_packing",
        "data.packing",
        "write packing = \"block-diagonal\"",
    ),
    (
        "neat_packing",
        "data.packing",
        "write packing = \"block-diagonal\"",
    ),
    (
        "template",
        "data.chat_template",
        "the model's own template is the default",
    ),
    (
        "template_kwargs",
        "data.chat_template_kwargs",
        "a table, such as { enable_thinking = false }",
    ),
    (
        "enable_thinking",
        "data.chat_template_kwargs",
        "write chat_template_kwargs = { enable_thinking = false }",
    ),
    (
        "reasoning_effort",
        "data.chat_template_kwargs",
        "write chat_template_kwargs = { reasoning_effort = \"low\" }",
    ),
    (
        "train_on_prompt",
        "mask.train_on",
        "false is \"completion\", true is \"all\"",
    ),
    (
        "train_on_inputs",
        "mask.train_on",
        "false is \"completion\", true is \"all\"",
    ),
    ("mask_prompt", "mask.train_on", "true is \"completion\""),
    (
        "assistant_only_loss",
        "mask.train_on",
        "true is \"assistant\"",
    ),
    (
        "completion_only_loss",
        "mask.train_on",
        "true is \"completion\"",
    ),
    ("roles_to_train", "mask.train_on", ""),
    ("num_epochs", "train.num_train_epochs", ""),
    ("epochs", "train.num_train_epochs", ""),
    ("iters", "train.max_steps", ""),
    ("steps", "train.max_steps", ""),
    ("micro_batch_size", "train.per_device_train_batch_size", ""),
    ("train_batch_size", "train.per_device_train_batch_size", ""),
    ("batch_size", "train.per_device_train_batch_size", ""),
    (
        "per_device_batch_size",
        "train.per_device_train_batch_size",
        "",
    ),
    ("per_device_eval_batch_size", "eval.batch_size", ""),
    (
        "grad_accumulation_steps",
        "train.gradient_accumulation_steps",
        "",
    ),
    ("lr", "train.learning_rate", ""),
    ("lr_scheduler", "train.lr_scheduler_type", ""),
    ("warmup", "train.warmup_ratio", "or warmup_steps"),
    ("optimizer", "train.optim", ""),
    ("gradient_clipping", "train.max_grad_norm", ""),
    ("grad_clip", "train.max_grad_norm", ""),
    ("gradient_clip_val", "train.max_grad_norm", ""),
    ("output", "train.output_dir", ""),
    ("evaluation_strategy", "eval.eval_strategy", ""),
    (
        "evals_per_epoch",
        "eval.eval_steps",
        "it counts optimizer steps",
    ),
    ("metrics", "eval.suites", ""),
    ("max_tokens", "eval.max_new_tokens", ""),
    ("sbert", "eval.encoder", ""),
    (
        "saves_per_epoch",
        "checkpoint.save_steps",
        "it counts optimizer steps",
    ),
    ("keep_last", "checkpoint.save_total_limit", ""),
];

/// Keys of other trainers that have no counterpart here, some of which look like another key, and
/// what to do.
const ABSENT: &[(&str, &str)] = &[
    (
        "use_dora",
        "DoRA is not trained here: leave it out for plain LoRA",
    ),
    (
        "modules_to_save",
        "adapters alone are trained here: leave it out",
    ),
    (
        "bias",
        "biases are not trained here: leave it out, as for PEFT's default \"none\"",
    ),
    (
        "load_in_4bit",
        "weights are not kept in 4 bits here: leave it out, or name a GGUF file as model_name_or_path",
    ),
    (
        "load_in_8bit",
        "weights are not kept in 8 bits here: leave it out, or name a GGUF file as model_name_or_path",
    ),
    (
        "save_strategy",
        "checkpoints are written every `checkpoint.save_steps` optimizer steps",
    ),
    (
        "load_best_model_at_end",
        "a run's BEST names its best checkpoint by `eval.metric_for_best_model`, and it is kept: \
         leave it out",
    ),
    (
        "push_to_hub",
        "nothing is uploaded: `tooltune export` writes a folder that other tools upload",
    ),
    (
        "do_sample",
        "`eval.temperature` above 0 samples: leave it out",
    ),
];

/// Says what `key` in the table at `path` should be, given the keys that the table has.
pub(crate) fn explain(path: &str, key: &str, known: &[&str], tables: &Tables<'_>) -> Unknown {
    let shown = shorten(key);
    let message = match path {
        "" => format!("unknown table or key `{shown}`"),
        _ => format!("unknown key `{shown}` in [{path}]"),
    };
    if key == DEVICE {
        let help = "this key stands at the top of the file, before the first [table]".to_owned();
        return Unknown {
            message,
            help,
            meant: Some(DEVICE.to_owned()),
        };
    }
    // `batch_size` is also a key of [eval]; who writes it elsewhere means the training batch.
    if let Some((_, meant, note)) = FOREIGN.iter().find(|(foreign, ..)| *foreign == key) {
        let help = called(path, meant, note);
        return Unknown {
            message,
            help,
            meant: Some((*meant).to_owned()),
        };
    }
    if let Some((_, help)) = ABSENT.iter().find(|(absent, _)| *absent == key) {
        return Unknown {
            message,
            help: (*help).to_owned(),
            meant: None,
        };
    }
    if let Some(table) = tables.home_of(path, key) {
        let help = format!("this key belongs to [{table}]: move it there");
        return Unknown {
            message,
            help,
            meant: Some(format!("{table}.{key}")),
        };
    }
    let (help, meant) = tables.suggest(path, key, known);
    Unknown {
        message,
        help,
        meant,
    }
}

/// Says that `key` in the table at `path` is unknown, and no more.
pub(crate) fn unexplained(path: &str, key: &str) -> Unknown {
    let shown = shorten(key);
    Unknown {
        message: match path {
            "" => format!("unknown key `{shown}`"),
            _ => format!("unknown key `{shown}` in [{path}]"),
        },
        help: "mend the first mistakes; this may be no config at all".to_owned(),
        meant: None,
    }
}

/// The words as a sentence part: `a`, `b` and `c`.
pub(crate) fn list(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
    match quoted.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} and {last}", rest.join(", ")),
        None => String::new(),
    }
}

/// The text as it is, or its beginning if it is too long for a message.
pub(crate) fn shorten(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// The candidate nearest to `word`, if any is near enough to have been meant.
pub(crate) fn nearest<'a>(word: &str, candidates: &[&'a str]) -> Option<&'a str> {
    // No setting is this long, and the distance takes time in the product of the lengths.
    if word.len() > 60 {
        return None;
    }
    let word = word.to_lowercase().replace('-', "_");
    let near = candidates
        .iter()
        .map(|candidate| {
            (
                strsim::damerau_levenshtein(&word, &candidate.replace('-', "_")),
                *candidate,
            )
        })
        .filter(|(distance, candidate)| *distance <= candidate.len().max(word.len()) / 3)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate);
    near.or_else(|| {
        let mut beginnings = candidates
            .iter()
            .filter(|candidate| candidate.len() >= 3 && word.starts_with(**candidate));
        beginnings.next().copied()
    })
}

fn called(path: &str, meant: &str, note: &str) -> String {
    let (table, key) = meant.split_once('.').unwrap_or(("", meant));
    let place = if table == path {
        String::new()
    } else {
        format!(", in [{table}]")
    };
    let note = if note.is_empty() {
        String::new()
    } else {
        format!(" ({note})")
    };
    format!("tooltune calls it `{key}`{place}{note}")
}

#[cfg(test)]
mod tests {
    use super::{ABSENT, FOREIGN};
    use crate::config::json_schema;

    #[test]
    fn what_is_explained_as_absent_is_no_key_of_any_table() {
        let schema = json_schema();
        let tables = schema["$defs"].as_object().expect("tables");
        for (absent, _) in ABSENT {
            let mut keys = tables
                .values()
                .filter_map(|table| table["properties"].as_object());
            assert!(
                !keys.any(|keys| keys.contains_key(*absent))
                    && FOREIGN.iter().all(|(foreign, ..)| foreign != absent),
                "{absent}"
            );
        }
    }
}
