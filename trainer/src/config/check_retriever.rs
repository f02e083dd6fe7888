//! The table `[retriever]`, and what it needs of the rest.

use super::choices::{DataFormat, EvalStrategy, LrSchedulerType, RetrieverData, Suite};
use super::defaults;
use super::raw::{RawRetriever, RawRetrieverLora};
use super::read::RawTable;
use super::rules::Checker;
use super::settings::{
    DataConfig, EvalConfig, RetrieverConfig, RetrieverLora, RetrieverTraining, RunLength,
};

/// Keys that mean something only where the retriever is used without being trained, too.
const OF_EVERY_RETRIEVER: [&str; 6] = [
    "model_name_or_path",
    "eval",
    "documents",
    "max_seq_length",
    "query_prompt",
    "document_prompt",
];

impl Checker<'_> {
    pub(super) fn retriever(&mut self, raw: RawRetriever) -> RetrieverConfig {
        let training = self.retriever_training(&raw);
        if let Some(length) = raw.max_seq_length {
            self.at_least("retriever.max_seq_length", length as u64, 2);
        }
        RetrieverConfig {
            model_name_or_path: self.required(
                raw.model_name_or_path,
                "retriever.model_name_or_path",
                "name a sentence-transformers folder: model_name_or_path = \
                 \"models/all-minilm-l6-v2\" (scripts/fetch-models brings it)",
            ),
            training,
            eval: raw.eval.unwrap_or_default(),
            documents: raw.documents,
            max_seq_length: raw.max_seq_length,
            query_prompt: raw.query_prompt,
            document_prompt: raw.document_prompt,
        }
    }

    fn retriever_training(&mut self, raw: &RawRetriever) -> Option<RetrieverTraining> {
        let Some(data) = raw.train.clone() else {
            self.no_training_keys();
            return None;
        };
        if data == RetrieverData::Pairs(Vec::new()) {
            let help = "name at least one file of pairs, or write train = \"trajectories\"";
            self.report(
                "retriever.train",
                "`retriever.train` is an empty list",
                help,
            );
        }
        let max_grad_norm = raw.max_grad_norm.unwrap_or(defaults::MAX_GRAD_NORM);
        self.within("retriever.max_grad_norm", max_grad_norm, 0.0..=f64::MAX);
        let training = RetrieverTraining {
            data,
            length: self.retriever_length(raw),
            steps_per_lm_step: raw.steps_per_lm_step,
            per_device_train_batch_size: raw
                .per_device_train_batch_size
                .unwrap_or(defaults::RETRIEVER_BATCH_SIZE),
            mini_batch_size: raw.mini_batch_size,
            learning_rate: raw
                .learning_rate
                .unwrap_or(defaults::RETRIEVER_LEARNING_RATE),
            lr_scheduler_type: raw.lr_scheduler_type.unwrap_or(defaults::LR_SCHEDULER_TYPE),
            warmup_ratio: raw.warmup_ratio.unwrap_or(defaults::WARMUP_RATIO),
            weight_decay: raw.weight_decay.unwrap_or(defaults::WEIGHT_DECAY),
            max_grad_norm: (max_grad_norm != 0.0).then_some(max_grad_norm),
            scale: raw.scale,
            symmetric: raw.symmetric.unwrap_or(defaults::SYMMETRIC),
            hard_negatives: raw.hard_negatives.unwrap_or(defaults::HARD_NEGATIVES),
            compute_dtype: raw.compute_dtype.unwrap_or(defaults::COMPUTE_DTYPE),
            lora: raw.lora.clone().map(|raw| self.retriever_lora(raw)),
        };
        self.retriever_ranges(&training);
        Some(training)
    }

    fn retriever_lora(&mut self, raw: RawRetrieverLora) -> RetrieverLora {
        let all = || {
            ["query", "key", "value", "dense"]
                .map(str::to_owned)
                .to_vec()
        };
        let lora = RetrieverLora {
            r: raw.r.unwrap_or(defaults::LORA_R),
            lora_alpha: raw.lora_alpha.unwrap_or(defaults::LORA_ALPHA),
            target_modules: raw.target_modules.unwrap_or_else(all),
        };
        self.rank("retriever.lora.r", lora.r);
        self.above_zero("retriever.lora.lora_alpha", lora.lora_alpha);
        if lora.target_modules.is_empty() {
            let path = "retriever.lora.target_modules";
            let help = "name at least one of query, key, value and dense, or delete the line";
            self.report(path, format!("`{path}` is an empty list"), help);
        }
        lora
    }

    fn retriever_ranges(&mut self, training: &RetrieverTraining) {
        let of = |key: &str| format!("retriever.{key}");
        let batch = training.per_device_train_batch_size as u64;
        self.at_least(&of("per_device_train_batch_size"), batch, 1);
        if let Some(size) = training.mini_batch_size {
            self.at_least(&of("mini_batch_size"), size as u64, 1);
        }
        self.above_zero(&of("learning_rate"), training.learning_rate);
        self.within(&of("learning_rate"), training.learning_rate, f64::MIN..=1.0);
        self.within(&of("warmup_ratio"), training.warmup_ratio, 0.0..=1.0);
        self.within(&of("weight_decay"), training.weight_decay, 0.0..=f64::MAX);
        if let Some(scale) = training.scale {
            self.above_zero(&of("scale"), scale);
        }
        if let Some(steps) = training.steps_per_lm_step {
            self.above_zero(&of("steps_per_lm_step"), steps);
        }
        let is_constant = training.lr_scheduler_type == LrSchedulerType::Constant;
        if is_constant && training.warmup_ratio != 0.0 {
            let message = "the constant learning rate has no warm-up";
            let help = "write lr_scheduler_type = \"constant_with_warmup\", or delete this line";
            self.report(&of("warmup_ratio"), message, help);
        }
    }

    fn retriever_length(&mut self, raw: &RawRetriever) -> RunLength {
        self.exclusive("retriever.num_train_epochs", "retriever.max_steps");
        if let Some(steps) = raw.max_steps {
            self.at_least("retriever.max_steps", steps, 1);
            return RunLength::Steps(steps);
        }
        let epochs = raw.num_train_epochs.unwrap_or(defaults::NUM_TRAIN_EPOCHS);
        self.epochs("retriever.num_train_epochs", epochs);
        RunLength::Epochs(epochs)
    }

    /// Settings of a training that is not asked for are a forgotten `train`.
    fn no_training_keys(&mut self) {
        let typed = RawRetriever::KEYS
            .iter()
            .filter(|key| !OF_EVERY_RETRIEVER.contains(key))
            .map(|key| format!("retriever.{key}"))
            .find(|path| self.is_typed(path));
        if let Some(path) = typed.filter(|_| !self.is_typed("retriever.train")) {
            let message = format!("`{path}` is for training, and `retriever.train` is missing");
            let help = "say what it learns from: train = [\"pairs.jsonl\"] or \"trajectories\"";
            self.report(&path, message, help);
        }
    }

    /// What training and evaluation of a retriever need of the other tables.
    pub(super) fn retriever_needs(
        &mut self,
        retriever: Option<&RetrieverConfig>,
        (data, eval): (&DataConfig, &EvalConfig),
        has_model: bool,
    ) {
        let has_trajectories = data.may_be(DataFormat::Goat);
        let training = retriever.and_then(|retriever| retriever.training.as_ref());
        let learns_rows = training.is_some_and(|t| matches!(t.data, RetrieverData::Word(_)));
        if learns_rows && !has_trajectories {
            let message = "the rows of [data] are no trajectories";
            let help = "write format = \"goat\" in [data], or list files of pairs";
            self.report("retriever.train", message, help);
        }
        if training.is_some_and(|t| t.steps_per_lm_step.is_some()) && !has_model {
            let message =
                "there is no language model to keep step with: the table [model] is missing";
            self.report("retriever.steps_per_lm_step", message, "delete this line");
        }
        if eval.eval_strategy != EvalStrategy::Steps {
            return;
        }
        let asks = |suite: Suite| eval.suites.contains(&suite);
        let brings = "[retriever] model_name_or_path = \"models/all-minilm-l6-v2\" \
                      (scripts/fetch-models brings it)";
        if let Some(suite) = eval.suites.iter().find(|suite| suite.ranks_documents())
            && retriever.is_none()
        {
            self.missing(
                "retriever.model_name_or_path",
                &format!("the suite {suite} ranks documents: {brings}"),
            );
        }
        let has_queries = retriever.is_some_and(|r| !r.eval.is_empty()) || has_trajectories;
        if asks(Suite::Retrieval) && !has_queries {
            self.missing(
                "retriever.eval",
                "the suite retrieval needs queries with their documents: eval = [\"dev.jsonl\"]",
            );
        }
    }
}
