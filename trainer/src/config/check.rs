//! What was typed -> what it means.
//!
//! Each table is checked on its own, then the rules between tables. A check reports and goes on
//! with a stand-in value, so that one pass finds everything; the stand-ins never leave this file,
//! because any report refuses the config.

use tooltune_rows::text::TemplateDate;

use super::check_flatten;
use super::choices::{
    CheckpointingMode, DataFormat, EvalStrategy, GradientCheckpointing, LrSchedulerType,
    ModulePattern, Packing, TrainOn,
};
use super::defaults;
use super::names;
use super::raw::{
    Day, RawCheckpoint, RawConfig, RawData, RawLog, RawLora, RawMask, RawModel, RawTrain,
};
use super::read::Findings;
use super::rules::Checker;
use super::settings::{
    CheckpointConfig, Config, DataConfig, Device, EvalConfig, LogConfig, LoraConfig, MaskConfig,
    ModelConfig, RunLength, SpanWeight, TargetModules, TrainConfig, Warmup,
};
use super::template_kwargs::TemplateKwargs;

/// Checks every value and every rule between values, and adds what is wrong to the findings.
pub(crate) fn check(raw: RawConfig, findings: &mut Findings) -> Config {
    let mut checker = Checker { findings };
    // A retriever may be all that is trained; then the tables of the language model may be missing.
    let trains_retriever = checker.is_typed("retriever.train");
    let has_model = raw.model.is_some() || checker.is_typed("model") || !trains_retriever;
    if has_model {
        let reason = "tooltune trains LoRA adapters only";
        checker.require_table(raw.lora.is_some(), "lora", reason);
    }
    let device = checker.device(raw.device.as_deref());
    let raw_model = raw.model.unwrap_or_default();
    let model = has_model.then(|| checker.model(raw_model));
    let lora = checker.lora(raw.lora.unwrap_or_default());
    let data = match (raw.data, has_model) {
        (None, false) => no_data(),
        (data, _) => checker.data(data.unwrap_or_default()),
    };
    let mask = checker.mask(raw.mask.unwrap_or_default(), &data);
    let retriever = raw.retriever.map(|raw| checker.retriever(raw));
    let goat = checker.goat(raw.goat, &data, retriever.as_ref());
    let train = checker.train(raw.train.unwrap_or_default());
    let eval = checker.eval(raw.eval.unwrap_or_default(), &data, has_model);
    checker.retriever_needs(retriever.as_ref(), (&data, &eval), has_model);
    let checkpoint = checker.checkpoint(raw.checkpoint.unwrap_or_default(), &eval);
    let log = checker.log(raw.log.unwrap_or_default());
    checker.packing(&data, &train);
    Config {
        device,
        model,
        lora,
        data,
        mask,
        goat,
        retriever,
        train,
        eval,
        checkpoint,
        log,
    }
}

/// The rows of a run that has none.
fn no_data() -> DataConfig {
    DataConfig {
        train: Vec::new(),
        eval: Vec::new(),
        format: DataFormat::Messages,
        max_length: defaults::MAX_LENGTH,
        on_overflow: defaults::ON_OVERFLOW,
        packing: defaults::PACKING,
        chat_template: None,
        chat_template_kwargs: TemplateKwargs::default(),
        template_date: None,
        check_calls: defaults::CHECK_CALLS,
        flatten: check_flatten::flattening(&RawData::default()),
    }
}

impl Checker<'_> {
    fn device(&mut self, typed: Option<&str>) -> Device {
        let Some(text) = typed else {
            return defaults::DEVICE;
        };
        Device::parse(text).unwrap_or_else(|| {
            let message = format!("`device` cannot be {text:?}");
            self.report(
                "device",
                message,
                "it can be \"cpu\", \"cuda\" or \"cuda:1\"",
            );
            defaults::DEVICE
        })
    }

    fn model(&mut self, raw: RawModel) -> ModelConfig {
        ModelConfig {
            model_name_or_path: self.required(
                raw.model_name_or_path,
                "model.model_name_or_path",
                "name a folder of Hugging Face files or a GGUF file",
            ),
            compute_dtype: raw.compute_dtype.unwrap_or(defaults::COMPUTE_DTYPE),
        }
    }

    fn lora(&mut self, raw: RawLora) -> LoraConfig {
        let rank_pattern = raw.rank_pattern.unwrap_or_default();
        for (pattern, rank) in &rank_pattern.0 {
            self.rank(&format!("lora.rank_pattern.{pattern}"), *rank);
        }
        let alpha_pattern = raw.alpha_pattern.unwrap_or_default();
        for (pattern, alpha) in &alpha_pattern.0 {
            self.above_zero(&format!("lora.alpha_pattern.{pattern}"), *alpha);
        }
        if let Some(pattern) = &raw.exclude_modules {
            self.module_pattern("lora.exclude_modules", pattern);
        }
        let lora = LoraConfig {
            r: raw.r.unwrap_or(defaults::LORA_R),
            lora_alpha: raw.lora_alpha.unwrap_or(defaults::LORA_ALPHA),
            lora_dropout: raw.lora_dropout.unwrap_or(defaults::LORA_DROPOUT),
            target_modules: self.target_modules(raw.target_modules),
            exclude_modules: raw.exclude_modules,
            use_rslora: raw.use_rslora.unwrap_or(defaults::USE_RSLORA),
            rank_pattern,
            alpha_pattern,
        };
        self.rank("lora.r", lora.r);
        self.above_zero("lora.lora_alpha", lora.lora_alpha);
        self.below_one("lora.lora_dropout", lora.lora_dropout);
        lora
    }

    fn target_modules(&mut self, raw: Option<ModulePattern>) -> TargetModules {
        let Some(pattern) = raw else {
            return TargetModules::AllLinear;
        };
        match pattern {
            ModulePattern::Pattern(word) if word == defaults::ALL_LINEAR => {
                TargetModules::AllLinear
            }
            pattern => {
                self.module_pattern("lora.target_modules", &pattern);
                match pattern {
                    ModulePattern::Names(names) => TargetModules::Names(names),
                    ModulePattern::Pattern(pattern) => TargetModules::Pattern(pattern),
                }
            }
        }
    }

    fn module_pattern(&mut self, path: &str, pattern: &ModulePattern) {
        match pattern {
            ModulePattern::Names(names) if names.is_empty() => {
                let help = "name at least one module, such as \"q_proj\", or delete the line";
                self.report(path, format!("`{path}` is an empty list"), help);
            }
            ModulePattern::Pattern(text) if is_plain_name(text) => {
                let message =
                    format!("`{path}` is the pattern {text:?}, which no whole module path matches");
                let near = names::nearest(text, &[defaults::ALL_LINEAR]);
                let help = match near {
                    Some(word) => format!("did you mean {word:?}?"),
                    None => format!("write [{text:?}] for the modules of this name"),
                };
                self.report(path, message, help);
            }
            _ => {}
        }
    }

    fn data(&mut self, raw: RawData) -> DataConfig {
        if raw.train.as_ref().is_some_and(Vec::is_empty) {
            self.report(
                "data.train",
                "`data.train` is an empty list",
                "name at least one file",
            );
        }
        let format = self.format(&raw);
        let flatten = self.flatten(&raw, format);
        let train = self.required(
            raw.train,
            "data.train",
            "list the JSON Lines files to learn from: train = [\"data/train.jsonl\"]",
        );
        let data = DataConfig {
            flatten,
            train,
            eval: raw.eval.unwrap_or_default(),
            format,
            max_length: raw.max_length.unwrap_or(defaults::MAX_LENGTH),
            on_overflow: raw.on_overflow.unwrap_or(defaults::ON_OVERFLOW),
            packing: raw.packing.unwrap_or(defaults::PACKING),
            chat_template: raw.chat_template,
            chat_template_kwargs: raw.chat_template_kwargs.unwrap_or_default(),
            template_date: self.template_date(raw.template_date),
            check_calls: raw.check_calls.unwrap_or(defaults::CHECK_CALLS),
        };
        self.at_least("data.max_length", data.max_length as u64, 2);
        if let Some(file) = data.eval.iter().find(|file| data.train.contains(file)) {
            let message = format!("`data.eval` holds {}, which is learned", file.display());
            self.report(
                "data.eval",
                message,
                "evaluate on rows that are not in `data.train`",
            );
        }
        data
    }

    fn template_date(&mut self, typed: Option<Day>) -> Option<TemplateDate> {
        let Day(text) = typed?;
        let date = text.parse().ok();
        if date.is_none() {
            let message = format!("`data.template_date` cannot be {text:?}");
            self.report(
                "data.template_date",
                message,
                "write a day of the calendar, as \"2026-01-31\"",
            );
        }
        date
    }

    fn mask(&mut self, raw: RawMask, data: &DataConfig) -> MaskConfig {
        let train_on = raw.train_on.unwrap_or(match data.format {
            DataFormat::Messages | DataFormat::ShareGpt | DataFormat::Alpaca => TrainOn::Assistant,
            DataFormat::Slot
            | DataFormat::PromptCompletion
            | DataFormat::Xlam
            | DataFormat::Goat
            | DataFormat::Auto => TrainOn::Completion,
        });
        let mut weights: Vec<SpanWeight> = Vec::new();
        for (index, typed) in raw.weights.unwrap_or_default().into_iter().enumerate() {
            let path = format!("mask.weights[{index}]");
            let (Some(span), Some(weight)) = (typed.span, typed.weight) else {
                self.incomplete_weight(&path);
                continue;
            };
            self.within(&format!("{path}.weight"), weight, 0.0..=f64::MAX);
            if weights.iter().any(|other| other.span == span) {
                let message = format!("`{span}` has a weight already");
                self.report(&format!("{path}.span"), message, "keep one of the two");
            }
            weights.push(SpanWeight { span, weight });
        }
        MaskConfig {
            train_on,
            weights,
            arguments: raw.arguments.unwrap_or(defaults::ARGUMENTS),
            straddle: raw.straddle.unwrap_or(defaults::STRADDLE),
            on_empty: raw.on_empty.unwrap_or(defaults::ON_EMPTY),
            on_lost_reasoning: raw.on_lost_reasoning.unwrap_or(defaults::ON_LOST_REASONING),
        }
    }

    fn incomplete_weight(&mut self, path: &str) {
        for key in ["span", "weight"] {
            let path = format!("{path}.{key}");
            self.missing(
                &path,
                "write { span = \"tool_call.arguments.value\", weight = 0.0 }",
            );
        }
    }

    fn train(&mut self, raw: RawTrain) -> TrainConfig {
        let length = self.run_length(&raw);
        let warmup = self.warmup(&raw);
        let max_grad_norm = raw.max_grad_norm.unwrap_or(defaults::MAX_GRAD_NORM);
        let train = TrainConfig {
            output_dir: self.required(
                raw.output_dir,
                "train.output_dir",
                "name the run directory: output_dir = \"runs/first\"",
            ),
            length,
            per_device_train_batch_size: raw
                .per_device_train_batch_size
                .unwrap_or(defaults::PER_DEVICE_TRAIN_BATCH_SIZE),
            gradient_accumulation_steps: raw
                .gradient_accumulation_steps
                .unwrap_or(defaults::GRADIENT_ACCUMULATION_STEPS),
            learning_rate: raw.learning_rate.unwrap_or(defaults::LEARNING_RATE),
            lr_scheduler_type: raw.lr_scheduler_type.unwrap_or(defaults::LR_SCHEDULER_TYPE),
            warmup,
            weight_decay: raw.weight_decay.unwrap_or(defaults::WEIGHT_DECAY),
            adam_beta1: raw.adam_beta1.unwrap_or(defaults::ADAM_BETA1),
            adam_beta2: raw.adam_beta2.unwrap_or(defaults::ADAM_BETA2),
            adam_epsilon: raw.adam_epsilon.unwrap_or(defaults::ADAM_EPSILON),
            optim: raw.optim.unwrap_or(defaults::OPTIM),
            max_grad_norm: (max_grad_norm != 0.0).then_some(max_grad_norm),
            seed: raw.seed.unwrap_or(defaults::SEED),
            group_by_length: raw.group_by_length.unwrap_or(defaults::GROUP_BY_LENGTH),
            gradient_checkpointing: raw
                .gradient_checkpointing
                .unwrap_or(defaults::GRADIENT_CHECKPOINTING),
            self_distillation_alpha: raw
                .self_distillation_alpha
                .unwrap_or(defaults::SELF_DISTILLATION_ALPHA),
            self_distillation_temperature: raw
                .self_distillation_temperature
                .unwrap_or(defaults::SELF_DISTILLATION_TEMPERATURE),
            max_nonfinite: raw.max_nonfinite.unwrap_or(defaults::MAX_NONFINITE),
            logging_steps: raw.logging_steps.unwrap_or(defaults::LOGGING_STEPS),
        };
        self.train_ranges(&train);
        self.within("train.max_grad_norm", max_grad_norm, 0.0..=f64::MAX);
        if train.lr_scheduler_type == LrSchedulerType::Constant && !is_zero(warmup) {
            let path = self.typed_of("train.warmup_ratio", "train.warmup_steps");
            let message = "the constant learning rate has no warm-up".to_owned();
            let help = "write lr_scheduler_type = \"constant_with_warmup\", or delete this line";
            self.report(path, message, help);
        }
        train
    }

    fn train_ranges(&mut self, train: &TrainConfig) {
        let batch = train.per_device_train_batch_size as u64;
        self.at_least("train.per_device_train_batch_size", batch, 1);
        let accumulation = train.gradient_accumulation_steps as u64;
        self.at_least("train.gradient_accumulation_steps", accumulation, 1);
        self.above_zero("train.learning_rate", train.learning_rate);
        self.within("train.learning_rate", train.learning_rate, f64::MIN..=1.0);
        self.within("train.weight_decay", train.weight_decay, 0.0..=f64::MAX);
        self.below_one("train.adam_beta1", train.adam_beta1);
        self.below_one("train.adam_beta2", train.adam_beta2);
        self.above_zero("train.adam_epsilon", train.adam_epsilon);
        let alpha = train.self_distillation_alpha;
        self.within("train.self_distillation_alpha", alpha, 0.0..=1.0);
        let temperature = train.self_distillation_temperature;
        self.above_zero("train.self_distillation_temperature", temperature);
        self.at_least("train.max_nonfinite", train.max_nonfinite as u64, 1);
        self.at_least("train.logging_steps", train.logging_steps, 1);
    }

    fn run_length(&mut self, raw: &RawTrain) -> RunLength {
        self.exclusive("train.num_train_epochs", "train.max_steps");
        if let Some(steps) = raw.max_steps {
            self.at_least("train.max_steps", steps, 1);
            return RunLength::Steps(steps);
        }
        let epochs = raw.num_train_epochs.unwrap_or(defaults::NUM_TRAIN_EPOCHS);
        self.epochs("train.num_train_epochs", epochs);
        RunLength::Epochs(epochs)
    }

    fn warmup(&mut self, raw: &RawTrain) -> Warmup {
        self.exclusive("train.warmup_ratio", "train.warmup_steps");
        if let Some(steps) = raw.warmup_steps {
            if raw.max_steps.is_some_and(|max_steps| steps > max_steps) {
                let message = "the warm-up is longer than `max_steps`".to_owned();
                self.report("train.warmup_steps", message, "give it fewer steps");
            }
            return Warmup::Steps(steps);
        }
        let ratio = raw.warmup_ratio.unwrap_or(defaults::WARMUP_RATIO);
        self.within("train.warmup_ratio", ratio, 0.0..=1.0);
        Warmup::Ratio(ratio)
    }

    fn checkpoint(&mut self, raw: RawCheckpoint, eval: &EvalConfig) -> CheckpointConfig {
        let evaluates = eval.eval_strategy == EvalStrategy::Steps;
        let fallback = if evaluates {
            eval.eval_steps
        } else {
            defaults::SAVE_STEPS
        };
        let checkpoint = CheckpointConfig {
            save_steps: raw.save_steps.unwrap_or(fallback),
            save_total_limit: raw.save_total_limit.unwrap_or(defaults::SAVE_TOTAL_LIMIT),
        };
        let CheckpointConfig {
            save_steps,
            save_total_limit,
        } = checkpoint;
        self.at_least("checkpoint.save_steps", save_steps, 1);
        self.at_least("checkpoint.save_total_limit", save_total_limit as u64, 1);
        checkpoint
    }

    fn log(&mut self, raw: RawLog) -> LogConfig {
        let mut report_to = Vec::new();
        for place in raw
            .report_to
            .unwrap_or_else(|| defaults::REPORT_TO.to_vec())
        {
            if report_to.contains(&place) {
                let message = format!("`log.report_to` names \"{place}\" twice");
                self.report("log.report_to", message, "keep one");
            } else {
                report_to.push(place);
            }
        }
        LogConfig { report_to }
    }

    fn packing(&mut self, data: &DataConfig, train: &TrainConfig) {
        if data.packing == Packing::BlockDiagonal && train.group_by_length {
            let message = "packed sequences have no lengths to group by".to_owned();
            let help = "write group_by_length = false, or packing = \"none\" in [data]";
            self.report("train.group_by_length", message, help);
        }
        let keep_blocks = match train.gradient_checkpointing {
            GradientCheckpointing::KeepBlocks(blocks) => blocks,
            GradientCheckpointing::Mode(_) => return,
        };
        if keep_blocks == 0 {
            let message = "`train.gradient_checkpointing` keeps 0 blocks".to_owned();
            let help = format!("write \"{}\" for that", CheckpointingMode::Full);
            self.report("train.gradient_checkpointing", message, help);
        }
    }
}

fn is_zero(warmup: Warmup) -> bool {
    matches!(warmup, Warmup::Steps(0)) || warmup == Warmup::Ratio(0.0)
}

/// A name that cannot match a path of several parts.
fn is_plain_name(pattern: &str) -> bool {
    pattern
        .chars()
        .all(|letter| letter.is_alphanumeric() || matches!(letter, '_' | '-'))
}
