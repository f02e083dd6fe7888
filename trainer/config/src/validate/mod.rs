//! Rules that involve several settings, and checks of values that ranges cannot express.
//!
//! A rule adds a mistake to the findings instead of returning an error, so that one pass finds all
//! mistakes. A config with any mistake is refused. Types and ranges of single values are checked
//! when they are read.

mod eval;

use std::path::PathBuf;

use tooltune_agents::Distractors;
use tooltune_checkpoints::adapter::{TargetModules, saved_weight};
use tooltune_hub::{RepoKind, RepoName};

use super::did_you_mean;
use super::enums::{
    CheckpointingMode, DataFormat, EvalStrategy, FrozenWeights, GradientCheckpointing,
    LrSchedulerType, Packing, PrincipalInit, Quantization, RetrieverData,
};
use super::findings::Findings;
use super::rules::Rules;
use super::schema;
use super::suite::Suite;
use super::tables::{
    ALL_LINEAR, Config, DataConfig, GoatConfig, LoraConfig, MaskConfig, RetrieverConfig,
};
use crate::budgets::LORA_RANK;

/// Checks the rules of all tables and adds mistakes to the findings.
pub(crate) fn validate(config: &mut Config, findings: &mut Findings, is_for_evaluation: bool) {
    let mut rules = Rules {
        has_model: config.model.is_some(),
        is_for_evaluation,
        findings,
    };
    rules.only_with(config);
    rules.model(config);
    rules.lora(&config.lora);
    rules.data(config);
    rules.mask(&config.mask);
    if let Some(retriever) = &config.retriever {
        rules.retriever(retriever);
    }
    rules.goat(config);
    rules.train(config);
    rules.eval(config);
    rules.retriever_needs(config);
    rules.log(config);
    let has_executor = rules.is_in_source("goat.executor");
    // The table has been checked, and has no effect on other rows.
    if config.data.format != DataFormat::Goat && !has_executor {
        config.goat = None;
    }
}

impl Rules<'_> {
    /// Checks the maximum of a rank; the schema contains the minimum.
    fn rank(&mut self, path: &str, rank: usize) {
        if rank > LORA_RANK {
            let help = format!(
                "it must be at most {LORA_RANK}: a rank above the width of the model's matrices only adds \
                 memory, and ranks in use are at most 1024 (LORA_RANK in docs/limits.md)"
            );
            self.report(path, format!("`{path}` is {rank}"), help);
        }
    }

    /// Reports settings that have no effect because another setting of their table is missing, or
    /// has a value that `x-only-with` does not list.
    fn only_with(&mut self, config: &Config) {
        let values = serde_json::to_value(config).unwrap_or_default();
        for (path, field) in schema::nested_settings() {
            let needs = field["x-only-with"].as_object().into_iter().flatten();
            let (table, key) = path.rsplit_once('.').unwrap_or(("", &path));
            let values = table.split('.').fold(&values, |values, name| &values[name]);
            let has_effect = !values[key].is_null() && values[key] != field["default"];
            for (other, allowed) in needs.filter(|_| has_effect) {
                let value = &values[other];
                let words = schema::strings(allowed);
                let is_met = match words.as_slice() {
                    [] => !value.is_null(),
                    words => words.iter().any(|word| value == word),
                };
                // Unreadable settings are reported already.
                let is_unreadable =
                    |path: &str| self.is_in_source(path) && !self.findings.has_source_value(path);
                if is_met
                    || is_unreadable(&format!("{table}.{other}"))
                    || self.findings.has_problem(&path)
                {
                    continue;
                }
                let (message, help) = if words.is_empty() {
                    (
                        format!("`{path}` has no effect: `{table}.{other}` is missing"),
                        format!("set `{table}.{other}`, or delete this line"),
                    )
                } else {
                    let words: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
                    (
                        format!("`{path}` has no effect: `{table}.{other}` is {value}"),
                        format!(
                            "write {other} = {}, or delete this line",
                            words.join(" or ")
                        ),
                    )
                };
                self.report(&path, message, help);
            }
        }
    }

    fn model(&mut self, config: &Config) {
        if self.has_model {
            if !self.is_in_source("lora") && !self.findings.is_misnamed("lora.") {
                let help = "tooltune trains LoRA adapters only: add [lora]";
                self.report("lora", "the table [lora] is missing", help);
            }
            let help = "set a folder of Hugging Face files or a GGUF file";
            self.missing("model.model_name_or_path", help);
        }
        let model = config.model.as_ref();
        let quantises = model.is_some_and(|model| model.quantization == Some(Quantization::Nf4));
        if quantises && config.lora.init_weights.is_some() {
            let path = "lora.init_weights";
            let message = format!(
                "`{path}` cannot be combined with `model.quantization = \"nf4\"`: the saved adapter \
                 applies to the original weights, but a run would train with a quantised residual"
            );
            self.report(path, message, "remove one of the two");
        }
        let divides = model.is_some_and(|model| model.frozen_weights == FrozenWeights::Node);
        if divides && config.lora.use_dora {
            let path = "lora.use_dora";
            let message = format!(
                "`{path}` cannot be combined with `model.frozen_weights = \"node\"`: magnitudes need \
                 the norms of whole weights, and each rank has a share"
            );
            self.report(
                path,
                message,
                "use \"host\" or \"resident\", or remove use_dora",
            );
        }
        let hub_id = config
            .model
            .as_ref()
            .and_then(|model| model.hub_id.as_deref());
        if let Some(hub_id) = hub_id
            && let Err(error) = RepoName::new(RepoKind::Model, hub_id)
        {
            let help = "write the name of the base on the Hugging Face Hub, such as \
                        \"Qwen/Qwen3-0.6B\", or delete this line";
            self.report("model.hub_id", error.to_string(), help);
        }
        if self.has_model || self.findings.has_source_value("data") {
            let help = "list the training files: train = [\"data/train.jsonl\"]";
            self.missing("data.train", help);
        }
        let is_empty = config.data.train.is_empty();
        self.no_empty_list("data.train", is_empty, "list at least one file");
    }

    fn lora(&mut self, lora: &LoraConfig) {
        for (pattern, rank) in &lora.rank_pattern.0 {
            let path = format!("lora.rank_pattern.{pattern}");
            if *rank == 0 {
                self.report(&path, format!("`{path}` is 0"), "it must be at least 1");
            }
            self.rank(&path, *rank);
        }
        for (pattern, alpha) in &lora.alpha_pattern.0 {
            if *alpha <= 0.0 {
                let path = format!("lora.alpha_pattern.{pattern}");
                self.report(
                    &path,
                    format!("`{path}` is {alpha:?}"),
                    "it must be above 0",
                );
            }
        }
        if let Some(pattern) = &lora.exclude_modules {
            self.module_pattern("lora.exclude_modules", pattern);
        }
        let is_all_linear = |pattern: &str| pattern == ALL_LINEAR;
        match &lora.target_modules {
            TargetModules::Pattern(pattern) if is_all_linear(pattern) => {}
            pattern => self.module_pattern("lora.target_modules", pattern),
        }
        self.rank("lora.r", lora.r);
        self.init_weights(lora);
        let path = "lora.modules_to_save";
        for module in &lora.modules_to_save {
            if saved_weight(module).is_none() {
                let message = format!("`{path}` names {module:?}");
                let help = "it can be \"lm_head\" or \"embed_tokens\"; adapt other modules with \
                            target_modules";
                self.report(path, message, help);
            }
        }
    }

    fn init_weights(&mut self, lora: &LoraConfig) {
        let path = "lora.init_weights";
        let Some(word) = &lora.init_weights else {
            return;
        };
        if PrincipalInit::parse(word).is_none() {
            let message = format!("`{path}` cannot be {word:?}");
            let help = "it can be \"pissa\" or \"pissa_niter_4\", with up to 1000 iterations; remove it \
                        for PEFT's default initialisation";
            self.report(path, message, help);
        }
        self.report_exclusive(path, "lora.init_from");
        if lora.use_dora {
            let message = format!(
                "`{path}` cannot be combined with `lora.use_dora`: the saved adapter of twice the rank \
                 cannot represent magnitudes, in PEFT either"
            );
            self.report(path, message, "remove one of the two");
        }
        let has_patterns = !lora.rank_pattern.0.is_empty() || !lora.alpha_pattern.0.is_empty();
        if lora.use_rslora && has_patterns {
            let message = format!(
                "`{path}` cannot be combined with `lora.use_rslora` and patterns of ranks or alphas: the \
                 saved adapter of twice the rank cannot represent their scalings, in PEFT either"
            );
            self.report(path, message, "remove use_rslora, or the patterns");
        }
    }

    fn module_pattern(&mut self, path: &str, pattern: &TargetModules) {
        match pattern {
            TargetModules::Names(names) => {
                let help = "list at least one module, such as \"q_proj\", or delete the line";
                self.no_empty_list(path, names.is_empty(), help);
            }
            TargetModules::Pattern(text) if is_plain_name(text) => {
                let message = format!(
                    "`{path}` is the pattern {text:?}, which matches no complete module path"
                );
                let near = did_you_mean::nearest(text, &[ALL_LINEAR]);
                let help = match near {
                    Some(word) => format!("did you mean {word:?}?"),
                    None => format!("write [{text:?}] for the modules with this name"),
                };
                self.report(path, message, help);
            }
            TargetModules::Pattern(_) => {}
        }
    }

    fn data(&mut self, config: &Config) {
        let data = &config.data;
        if data.system.is_some() && data.format == DataFormat::Goat {
            self.report(
                "data.system",
                "prompts of trajectories have GOAT's format, without a system message",
                "remove `data.system`",
            );
        }
        if self.is_in_source("data.slot_prompt") && !data.may_be(DataFormat::Slot) {
            let message = format!("{} rows do not use the prompt of SLOT rows", data.format);
            self.report("data.slot_prompt", message, "remove `data.slot_prompt`");
        }
        let is_training_file = |file: &&PathBuf| data.train_paths().any(|path| path == *file);
        if let Some(file) = data.eval.iter().find(is_training_file) {
            let message = format!(
                "`data.eval` names {}, which is also in `data.train`",
                file.display()
            );
            let help = "evaluate on rows that are not in `data.train`";
            self.report("data.eval", message, help);
        }
        self.selection(data);
        if data.packing == Packing::BlockDiagonal && config.train.group_by_length {
            let message = "packed sequences have no lengths to group by";
            let help = "write group_by_length = false, or packing = \"none\" in [data]";
            self.report("train.group_by_length", message, help);
        }
    }

    /// Selection of rows, and names of their fields.
    fn selection(&mut self, data: &DataConfig) {
        if data.validation_split.is_some() && !data.eval.is_empty() {
            self.report(
                "data.validation_split",
                "`data.validation_split` holds out rows to evaluate on, but `data.eval` lists files",
                "delete one of the two",
            );
        }
        let Some(format) = data.format.row_format() else {
            if !data.columns.is_empty() && data.format == DataFormat::Goat {
                let help = "rename the fields in the file as in docs/data.md";
                let message = "the fields of trajectories cannot be renamed";
                self.report("data.columns", message, help);
            }
            return;
        };
        for (field, column) in &data.columns {
            let path = format!("data.columns.{field}");
            if !format.fields().contains(&field.as_str()) {
                let near = did_you_mean::nearest(field, format.fields());
                let near = near.map(|name| format!("did you mean {name:?}? "));
                let message = format!("rows of {} have no field {field:?}", format.as_str());
                let help = format!(
                    "{}write fields on the left, {}, and columns of the file on the right",
                    near.unwrap_or_default(),
                    did_you_mean::list(format.fields())
                );
                self.report(&path, message, help);
            }
            let mut others = data.columns.iter();
            if others.any(|(other, same)| same == column && other < field) {
                let message = format!("the column {column:?} is used for another field");
                self.report(&path, message, "use each column for one field");
            }
        }
    }

    fn mask(&mut self, mask: &MaskConfig) {
        for (index, weight) in mask.weights.iter().enumerate() {
            let mut earlier = mask.weights[..index].iter();
            if earlier.any(|other| other.span == weight.span) {
                let message = format!("`{}` has two weights", weight.span);
                let path = format!("mask.weights[{index}].span");
                self.report(&path, message, "keep one of them");
            }
        }
    }

    fn retriever(&mut self, retriever: &RetrieverConfig) {
        self.missing(
            "retriever.model_name_or_path",
            "set a sentence-transformers folder: model_name_or_path = \
             \"models/all-minilm-l6-v2\" (scripts/fetch-models downloads it)",
        );
        let Some(data) = &retriever.train else {
            return self.no_training_keys();
        };
        let is_empty = *data == RetrieverData::Pairs(Vec::new());
        let help = "list at least one file of pairs, or write train = \"trajectories\"";
        self.no_empty_list("retriever.train", is_empty, help);
        self.report_exclusive("retriever.num_train_epochs", "retriever.max_steps");
        let is_constant = retriever.lr_scheduler_type == LrSchedulerType::Constant;
        self.no_warmup(
            "retriever.warmup_ratio",
            is_constant && retriever.warmup_ratio != 0.0,
        );
        if let RetrieverData::Pairs(pairs) = data
            && let Some(file) = retriever.eval.iter().find(|file| pairs.contains(file))
        {
            let message = format!(
                "`retriever.eval` names {}, which is also in `retriever.train`",
                file.display()
            );
            let help = "evaluate on pairs that are not in `retriever.train`";
            self.report("retriever.eval", message, help);
        }
        if let Some(lora) = &retriever.lora {
            self.rank("retriever.lora.r", lora.r);
            let path = "retriever.lora.target_modules";
            let help = "list at least one of query, key, value and dense, or delete the line";
            self.no_empty_list(path, lora.target_modules.is_empty(), help);
        }
    }

    /// Reports training settings if `train` is missing, because it was probably forgotten.
    fn no_training_keys(&mut self) {
        let typed = schema::keys_of("retriever")
            .into_iter()
            .filter(|key| !RetrieverConfig::UNTRAINED_KEYS.contains(key))
            .map(|key| format!("retriever.{key}"))
            .find(|path| self.is_in_source(path));
        if let Some(path) = typed.filter(|_| !self.is_in_source("retriever.train")) {
            let message = format!("`{path}` is for training, and `retriever.train` is missing");
            let help = "set the training data: train = [\"pairs.jsonl\"] or \"trajectories\"";
            self.report(&path, message, help);
        }
    }

    /// Checks the settings in other tables that training and evaluating a retriever require.
    fn retriever_needs(&mut self, config: &Config) {
        let (eval, retriever) = (&config.eval, config.retriever.as_ref());
        let has_trajectories = config.data.may_be(DataFormat::Goat);
        let training = config.trained_retriever();
        let uses_rows = training.is_some_and(|t| matches!(t.train, Some(RetrieverData::Word(_))));
        if uses_rows && !has_trajectories {
            let message = "the rows of [data] are not trajectories";
            let help = "write format = \"goat\" in [data], or list files of pairs";
            self.report("retriever.train", message, help);
        }
        if training.is_some_and(|t| t.steps_per_lm_step.is_some()) && !self.has_model {
            let message =
                "there is no language model to train together with: the table [model] is missing";
            self.report("retriever.steps_per_lm_step", message, "delete this line");
        }
        if eval.eval_strategy != EvalStrategy::Steps || self.is_for_evaluation {
            return;
        }
        let remedy = "[retriever] model_name_or_path = \"models/all-minilm-l6-v2\" \
                      (scripts/fetch-models downloads it)";
        if let Some(suite) = eval.suites.iter().find(|suite| suite.needs().retriever)
            && retriever.is_none()
        {
            self.missing(
                "retriever.model_name_or_path",
                &format!("the suite {suite} ranks documents: {remedy}"),
            );
        }
        let has_queries = retriever.is_some_and(|r| !r.eval.is_empty()) || has_trajectories;
        let is_ranking_only = |suite: &&Suite| suite.needs().is_ranking_only();
        if let Some(suite) = eval.suites.iter().find(is_ranking_only)
            && !has_queries
        {
            self.missing(
                "retriever.eval",
                &format!(
                    "the suite {suite} needs queries with their documents: eval = [\"dev.jsonl\"]"
                ),
            );
        }
    }

    fn goat(&mut self, config: &Config) {
        let Some(goat) = &config.goat else {
            return;
        };
        if config.data.format != DataFormat::Goat {
            if config.data.may_be(DataFormat::Goat) {
                self.tables_of_goat(goat);
                return;
            }
            // With an executor, `chat` uses the table for any rows.
            if !self.is_in_source("goat.executor") {
                let rows = config.data.format;
                let message = format!("[goat] is for trajectories, but the rows are {rows}");
                let help = "write format = \"goat\" in [data], or remove the table; with an \
                            executor you can keep it for `chat --execute`";
                self.report("goat", message, help);
                return;
            }
        }
        self.missing(
            "goat.documents",
            "set the file of API documents: documents = \"data/documents.jsonl\"",
        );
        self.tables_of_goat(goat);
        if goat.distractors == Distractors::Retriever && config.retriever.is_none() {
            self.report(
                "goat.distractors",
                "no retriever ranks documents: the table [retriever] is missing",
                "add [retriever] with model_name_or_path, or write distractors = \"random\"",
            );
        }
    }

    fn tables_of_goat(&mut self, goat: &GoatConfig) {
        if let Some(truncate) = &goat.truncate {
            self.jmespath("goat.truncate.jmespath", truncate.jmespath.as_deref());
        }
        goat.executor.check("goat.executor", self);
        if let Some(judge) = &goat.judge {
            judge.check("goat.judge", self);
        }
    }

    fn train(&mut self, config: &Config) {
        let train = &config.train;
        self.report_exclusive("train.num_train_epochs", "train.max_steps");
        self.report_exclusive("train.warmup_ratio", "train.warmup_steps");
        let warmup = train.warmup_steps.zip(train.max_steps);
        if warmup.is_some_and(|(warmup_steps, max_steps)| warmup_steps > max_steps) {
            let message = "the warm-up is longer than `max_steps`";
            self.report("train.warmup_steps", message, "set fewer steps");
        }
        let help = "set the run directory: output_dir = \"runs/first\"";
        self.missing("train.output_dir", help);
        let warms_up = match train.warmup_steps {
            Some(steps) => steps > 0,
            None => train.warmup_ratio.is_some_and(|ratio| ratio != 0.0),
        };
        let is_constant = train.lr_scheduler_type == LrSchedulerType::Constant;
        let path = self.typed_of("train.warmup_ratio", "train.warmup_steps");
        self.no_warmup(path, is_constant && warms_up);
        if train.gradient_checkpointing == GradientCheckpointing::KeepBlocks(0) {
            let message = "`train.gradient_checkpointing` keeps 0 blocks";
            let help = format!("write \"{}\" to keep none", CheckpointingMode::Full);
            self.report("train.gradient_checkpointing", message, help);
        }
        if !config.lora.modules_to_save.is_empty() && train.self_distillation_alpha > 0.0 {
            let message = "`lora.modules_to_save` cannot be combined with `train.self_distillation_alpha`: \
                           the teacher would need a second copy of the original head and embedding";
            self.report("lora.modules_to_save", message, "remove one of the two");
        }
        if config.lora.init_weights.is_some() && train.self_distillation_alpha > 0.0 {
            let message = "`lora.init_weights` cannot be combined with `train.self_distillation_alpha`: it \
                           changes the base weights, which are the teacher";
            self.report("lora.init_weights", message, "remove one of the two");
        }
    }

    fn log(&mut self, config: &Config) {
        let places = &config.log.report_to;
        for (index, place) in places.iter().enumerate() {
            if places[..index].contains(place) {
                let message = format!("`log.report_to` names \"{place}\" twice");
                self.report("log.report_to", message, "keep one of them");
            }
        }
    }

    fn no_warmup(&mut self, path: &str, warms_up: bool) {
        if warms_up {
            let message = "the constant schedule has no warm-up";
            let help = "write lr_scheduler_type = \"constant_with_warmup\", or delete this line";
            self.report(path, message, help);
        }
    }
}

/// Whether a pattern is a plain name, which cannot match a path with several parts.
fn is_plain_name(pattern: &str) -> bool {
    pattern
        .chars()
        .all(|letter| letter.is_alphanumeric() || matches!(letter, '_' | '-'))
}
