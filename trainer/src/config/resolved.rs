//! A checked config -> the file that reproduces it, its digest, and what differs from another.
//!
//! All three walk the same flat list of settings, so a new setting cannot be written without being
//! compared. A setting is taken to matter for resuming unless it stands in [`SAFE_ON_RESUME`].

use std::collections::BTreeMap;

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::agent_suites::AgentSuiteConfig;
use super::choices::ModulePattern;
use super::defaults::ALL_LINEAR;
use super::raw::{
    Day, RawCheckpoint, RawConfig, RawData, RawEval, RawGoat, RawKindWeights, RawLog,
    RawLoopLimits, RawLora, RawMask, RawModel, RawRetriever, RawRetrieverLora, RawSpanWeight,
    RawTrain,
};
use super::settings::{
    Config, GoatConfig, JudgeConfig, LoraConfig, MaskConfig, NestfulConfig, RetrieverConfig,
    RunLength, TargetModules, ToolQaConfig, TrainConfig, Warmup,
};
use super::truncation::raw_shape;

/// Settings and tables that change no number of the training itself.
const SAFE_ON_RESUME: &[&str] = &[
    "device",
    "data.eval",
    "retriever.eval",
    "retriever.documents",
    "train.output_dir",
    "train.gradient_checkpointing",
    "train.max_nonfinite",
    "train.logging_steps",
    "goat.limits",
    "goat.executor",
    "goat.judge",
    "eval",
    "checkpoint",
    "log",
];

/// Whether a run may go on with the changed setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnResume {
    /// The remaining steps are the same.
    Safe,
    /// The remaining steps would be those of another run.
    Refused,
}

/// A setting that differs between two configs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The setting, such as `train.learning_rate`.
    pub path: String,
    /// Its old value as JSON; `None` if it was not set.
    pub old: Option<String>,
    /// Its new value as JSON; `None` if it is not set any more.
    pub new: Option<String>,
    /// Whether a run may go on with it.
    pub on_resume: OnResume,
}

impl Config {
    /// The config as a complete TOML file: every setting, defaults included.
    ///
    /// # Errors
    ///
    /// If a path is not UTF-8 or a number is beyond TOML's 64-bit integers; a config that was read
    /// from a file has neither.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        let body = toml::to_string(&raw_of(self))?;
        Ok(format!(
            "# Every setting of the run. Training with this file repeats the run.\n\n{body}"
        ))
    }

    /// SHA-256, in hex, over all settings that must not change when a run is resumed.
    pub fn resume_digest(&self) -> String {
        let mut hasher = Sha256::new();
        for (path, value) in flat(self) {
            if on_resume(&path) == OnResume::Refused {
                hasher.update(format!("{path}={value}\n"));
            }
        }
        hasher
            .finalize()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }
}

/// The settings that differ, in the order of their paths.
pub fn diff(old: &Config, new: &Config) -> Vec<Change> {
    let (old, new) = (flat(old), flat(new));
    let mut paths: Vec<&String> = old.keys().chain(new.keys()).collect();
    paths.sort();
    paths.dedup();
    paths
        .into_iter()
        .filter(|path| old.get(*path) != new.get(*path))
        .map(|path| Change {
            path: path.clone(),
            old: old.get(path).cloned(),
            new: new.get(path).cloned(),
            on_resume: on_resume(path),
        })
        .collect()
}

fn on_resume(path: &str) -> OnResume {
    let is_safe = SAFE_ON_RESUME.iter().any(|safe| {
        path.strip_prefix(safe)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    });
    if is_safe {
        OnResume::Safe
    } else {
        OnResume::Refused
    }
}

/// Settings by path, `table.key`, as JSON text, in which the order of patterns counts.
fn flat(config: &Config) -> BTreeMap<String, String> {
    let mut settings = BTreeMap::new();
    // The raw tables are plain data with text keys, which serde_json cannot refuse.
    let Ok(Value::Object(tables)) = serde_json::to_value(raw_of(config)) else {
        return settings;
    };
    for (table, value) in tables {
        match value {
            Value::Object(keys) => {
                let keys = keys.into_iter();
                settings.extend(keys.map(|(key, v)| (format!("{table}.{key}"), v.to_string())));
            }
            value => {
                settings.insert(table, value.to_string());
            }
        }
    }
    settings
}

/// The raw tables that the config would be read from.
fn raw_of(config: &Config) -> RawConfig {
    let Config {
        device,
        model,
        data,
        eval,
        checkpoint,
        log,
        ..
    } = config.clone();
    let has_rows = model.is_some() || !data.train.is_empty();
    RawConfig {
        device: Some(device.to_string()),
        lora: model.as_ref().map(|_| raw_lora(&config.lora)),
        model: model.map(|model| RawModel {
            model_name_or_path: Some(model.model_name_or_path),
            compute_dtype: Some(model.compute_dtype),
        }),
        data: has_rows.then_some(RawData {
            train: Some(data.train),
            eval: Some(data.eval),
            format: Some(data.format),
            max_length: Some(data.max_length),
            on_overflow: Some(data.on_overflow),
            packing: Some(data.packing),
            chat_template: data.chat_template,
            chat_template_kwargs: (!data.chat_template_kwargs.0.is_empty())
                .then_some(data.chat_template_kwargs),
            template_date: data.template_date.map(|date| Day(date.to_string())),
            check_calls: Some(data.check_calls),
            flatten: Some(data.flatten.which),
            flatten_slots: Some(data.flatten.slots),
            flatten_separator: Some(data.flatten.separator),
            flatten_collisions: Some(data.flatten.collisions),
        }),
        mask: config.model.as_ref().map(|_| raw_mask(&config.mask)),
        goat: config.goat.as_ref().map(raw_goat),
        retriever: config.retriever.as_ref().map(raw_retriever),
        train: Some(raw_train(&config.train)),
        eval: Some(RawEval {
            eval_strategy: Some(eval.eval_strategy),
            eval_steps: Some(eval.eval_steps),
            suites: Some(eval.suites),
            max_samples: eval.max_samples,
            max_time: eval.max_time,
            max_new_tokens: Some(eval.max_new_tokens),
            batch_size: Some(eval.batch_size),
            kv_cache_tokens: eval.kv_cache_tokens,
            constrained: Some(eval.constrained),
            temperature: Some(eval.sampling.temperature),
            top_k: eval.sampling.top_k,
            top_p: Some(eval.sampling.top_p),
            stop_strings: Some(eval.stop_strings),
            metric_for_best_model: Some(eval.metric_for_best_model),
            greater_is_better: Some(eval.greater_is_better),
            early_stopping_patience: eval.early_stopping_patience,
            early_stopping_threshold: Some(eval.early_stopping_threshold),
            encoder: eval.encoder,
            nestful: eval.nestful.as_ref().map(NestfulConfig::raw),
            toolqa: eval.toolqa.as_ref().map(ToolQaConfig::raw),
            restbench: eval.restbench.as_ref().map(AgentSuiteConfig::raw),
            apibank: eval.apibank.as_ref().map(AgentSuiteConfig::raw),
            sandbox: Some(eval.sandbox.raw()),
        }),
        checkpoint: Some(RawCheckpoint {
            save_steps: Some(checkpoint.save_steps),
            save_total_limit: Some(checkpoint.save_total_limit),
        }),
        log: Some(RawLog {
            report_to: Some(log.report_to),
        }),
    }
}

fn raw_lora(lora: &LoraConfig) -> RawLora {
    RawLora {
        r: Some(lora.r),
        lora_alpha: Some(lora.lora_alpha),
        lora_dropout: Some(lora.lora_dropout),
        target_modules: Some(match &lora.target_modules {
            TargetModules::AllLinear => ModulePattern::Pattern(ALL_LINEAR.to_owned()),
            TargetModules::Names(names) => ModulePattern::Names(names.clone()),
            TargetModules::Pattern(pattern) => ModulePattern::Pattern(pattern.clone()),
        }),
        exclude_modules: lora.exclude_modules.clone(),
        use_rslora: Some(lora.use_rslora),
        rank_pattern: Some(lora.rank_pattern.clone()),
        alpha_pattern: Some(lora.alpha_pattern.clone()),
    }
}

fn raw_mask(mask: &MaskConfig) -> RawMask {
    let weights = mask
        .weights
        .iter()
        .map(|entry| RawSpanWeight {
            span: Some(entry.span),
            weight: Some(entry.weight),
        })
        .collect();
    RawMask {
        train_on: Some(mask.train_on),
        weights: Some(weights),
        arguments: Some(mask.arguments),
        straddle: Some(mask.straddle),
        on_empty: Some(mask.on_empty),
        on_lost_reasoning: Some(mask.on_lost_reasoning),
    }
}

fn raw_goat(goat: &GoatConfig) -> RawGoat {
    let weights = goat.weights;
    RawGoat {
        documents: Some(goat.documents.clone()),
        method: Some(goat.method),
        distractors: Some(goat.distractors),
        n_documents: Some(goat.n_documents),
        output_limit: Some(goat.output_limit),
        truncate: goat.truncate.as_ref().map(raw_shape),
        weights: Some(RawKindWeights {
            plan: Some(weights.plan),
            call: Some(weights.call),
            step: Some(weights.step),
            decompose: Some(weights.decompose),
            answer: Some(weights.answer),
        }),
        limits: Some(RawLoopLimits {
            max_calls: Some(goat.limits.max_calls),
            max_steps: Some(goat.limits.max_steps),
            plan_tokens: Some(goat.limits.plan_tokens),
            call_tokens: Some(goat.limits.call_tokens),
            answer_tokens: Some(goat.limits.answer_tokens),
        }),
        executor: Some(goat.executor.raw()),
        judge: goat.judge.as_ref().map(JudgeConfig::raw),
    }
}

fn raw_retriever(retriever: &RetrieverConfig) -> RawRetriever {
    let used = RawRetriever {
        model_name_or_path: Some(retriever.model_name_or_path.clone()),
        eval: Some(retriever.eval.clone()),
        documents: retriever.documents.clone(),
        max_seq_length: retriever.max_seq_length,
        query_prompt: retriever.query_prompt.clone(),
        document_prompt: retriever.document_prompt.clone(),
        ..RawRetriever::default()
    };
    let Some(training) = &retriever.training else {
        return used;
    };
    let (num_train_epochs, max_steps) = match training.length {
        RunLength::Epochs(epochs) => (Some(epochs), None),
        RunLength::Steps(steps) => (None, Some(steps)),
    };
    RawRetriever {
        train: Some(training.data.clone()),
        num_train_epochs,
        max_steps,
        steps_per_lm_step: training.steps_per_lm_step,
        per_device_train_batch_size: Some(training.per_device_train_batch_size),
        mini_batch_size: training.mini_batch_size,
        learning_rate: Some(training.learning_rate),
        lr_scheduler_type: Some(training.lr_scheduler_type),
        warmup_ratio: Some(training.warmup_ratio),
        weight_decay: Some(training.weight_decay),
        max_grad_norm: Some(training.max_grad_norm.unwrap_or(0.0)),
        scale: training.scale,
        symmetric: Some(training.symmetric),
        hard_negatives: Some(training.hard_negatives),
        compute_dtype: Some(training.compute_dtype),
        lora: training.lora.as_ref().map(|lora| RawRetrieverLora {
            r: Some(lora.r),
            lora_alpha: Some(lora.lora_alpha),
            target_modules: Some(lora.target_modules.clone()),
        }),
        ..used
    }
}

fn raw_train(train: &TrainConfig) -> RawTrain {
    let (num_train_epochs, max_steps) = match train.length {
        RunLength::Epochs(epochs) => (Some(epochs), None),
        RunLength::Steps(steps) => (None, Some(steps)),
    };
    let (warmup_ratio, warmup_steps) = match train.warmup {
        Warmup::Ratio(ratio) => (Some(ratio), None),
        Warmup::Steps(steps) => (None, Some(steps)),
    };
    RawTrain {
        output_dir: Some(train.output_dir.clone()),
        num_train_epochs,
        max_steps,
        per_device_train_batch_size: Some(train.per_device_train_batch_size),
        gradient_accumulation_steps: Some(train.gradient_accumulation_steps),
        learning_rate: Some(train.learning_rate),
        lr_scheduler_type: Some(train.lr_scheduler_type),
        warmup_ratio,
        warmup_steps,
        weight_decay: Some(train.weight_decay),
        adam_beta1: Some(train.adam_beta1),
        adam_beta2: Some(train.adam_beta2),
        adam_epsilon: Some(train.adam_epsilon),
        optim: Some(train.optim),
        max_grad_norm: Some(train.max_grad_norm.unwrap_or(0.0)),
        seed: Some(train.seed),
        group_by_length: Some(train.group_by_length),
        gradient_checkpointing: Some(train.gradient_checkpointing),
        self_distillation_alpha: Some(train.self_distillation_alpha),
        self_distillation_temperature: Some(train.self_distillation_temperature),
        max_nonfinite: Some(train.max_nonfinite),
        logging_steps: Some(train.logging_steps),
    }
}
