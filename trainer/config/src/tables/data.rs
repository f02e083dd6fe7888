//! The table `[data]`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use tooltune_rows::text::{OnOverflow, SlotPrompt};
use tooltune_template::{ChatTemplate, TemplateDate};

use super::settings::settings;
use super::train_file::TrainFile;
use crate::enums::{DataFormat, Flatten, FlattenCollisions, Packing};
use crate::template_kwargs::TemplateKwargs;

settings! {
    /// Training and evaluation rows.
    pub struct DataConfig {
        /// Required. Files of training rows in [any format](data.md#files): a path, or `{ path =
        /// "rows.parquet", weight = 0.5 }` to use its rows more or less often than once per epoch.
        /// For a file on the Hugging Face Hub, write "hf://datasets/owner/name/train.parquet", here
        /// and in other settings.
        #[schemars(extend("x-kind" = "path"))]
        #[schemars(extend("x-also" = ["dataset", "datasets", "dataset_name", "train_file"]))]
        pub train: Vec<TrainFile>,
        /// Files of evaluation rows, in any format.
        #[schemars(extend("x-on-resume" = "safe", "x-kind" = "path"))]
        #[schemars(extend("x-also" = ["validation_file", "eval_dataset"]))]
        pub eval: Vec<PathBuf>,
        /// Share of the rows of `train` to hold out for evaluation, instead of `eval`. The
        /// selection depends only on `train.seed` and the content of each row; see
        /// [data.md](data.md#rows-that-are-kept-back).
        #[schemars(extend("exclusiveMinimum" = 0, "exclusiveMaximum" = 1))]
        #[schemars(extend("x-elsewhere" = {
            "Axolotl": "val_set_size", "LLaMA-Factory": "val_size",
            "ms-swift": "split_dataset_ratio", "TRL": "test_split_size"
        }))]
        pub validation_split: Option<f64>,
        /// Field, such as a document id. Rows with the same value are on the same side of the
        /// split. By default each row is drawn separately.
        #[schemars(extend("x-only-with" = {"validation_split": true}))]
        pub validation_group_by: Option<String>,
        /// Maximum number of rows per file of `train`, taken from the start; all by default.
        #[schemars(range(min = 1))]
        #[schemars(extend("x-elsewhere" = {"LLaMA-Factory": "max_samples"}))]
        pub max_samples: Option<usize>,
        /// Maps each field of the format to a column of the files, as in `{ prompt = "question",
        /// completion = "answer" }`.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        #[schemars(extend("x-example" = {"messages": "chat"}))]
        pub columns: BTreeMap<String, String>,
        /// Row format: "messages", "sharegpt", "prompt-completion", "alpaca", "xlam", "slot",
        /// "goat", "chat" (several chat formats, detected per row), or "auto" (detected from the
        /// first row of each file); see [data.md](data.md#formats).
        pub format: DataFormat = DataFormat::Auto,
        /// Prompt of slot rows: "typed" (values have the types of the schema), "paper" (Figure 6 of
        /// the SLOT paper, which asks for strings only), or a Jinja file that prints `input_text`
        /// and `json_schema`. "typed" by default. See [prompts.md](prompts.md).
        #[schemars(extend("x-kind" = "path", "x-names" = SlotPrompt::NAMES))]
        pub slot_prompt: Option<PathBuf>,
        /// Maximum row length in tokens.
        #[schemars(range(min = 2))]
        #[schemars(extend("x-elsewhere" = {
            "Axolotl": "sequence_len", "LLaMA-Factory": "cutoff_len", "ms-swift": "max_length",
            "TRL": ["max_length", "max_seq_length"]
        }))]
        #[schemars(extend("x-also" = ["max_seq_length", "max_seq_len", "model_max_length"]))]
        pub max_length: usize = 2048,
        /// What to do with rows longer than `max_length`.
        #[schemars(extend("x-also" = ["excess_length_strategy"]))]
        pub on_overflow: OnOverflow = OnOverflow::Error,
        /// "none", or "block-diagonal", which fills sequences of `max_length` with whole rows that
        /// do not attend to each other.
        #[schemars(extend("x-also" = [
            "sample_packing; write packing = \"block-diagonal\"",
            "neat_packing; write packing = \"block-diagonal\""
        ]))]
        pub packing: Packing = Packing::None,
        /// Chat template to use instead of the model's own: a Jinja file, or a built-in template
        /// for models whose own template does not support tools: "chatml-tools" (turns between
        /// `<|im_start|>` and `<|im_end|>`), "gemma-tools" (`<start_of_turn>`, `<end_of_turn>`),
        /// "llama3-tools" (`<|start_header_id|>`, `<|eot_id|>`), "phi3-tools" (`<|user|>`,
        /// `<|end|>`); see [prompts.md](prompts.md).
        #[schemars(extend("x-kind" = "path", "x-names" = ChatTemplate::NAMES))]
        #[schemars(extend("x-elsewhere" = {
            "Axolotl": "chat_template_jinja", "TRL": "chat_template_path"
        }))]
        #[schemars(extend("x-also" = ["template; the model's own template is the default"]))]
        pub chat_template: Option<PathBuf>,
        /// System message for rows without one. An empty string suppresses the template's default
        /// system message. By default rows are unchanged.
        #[schemars(extend("x-elsewhere" = {
            "Axolotl": "default_system_message", "LLaMA-Factory": "default_system",
            "ms-swift": "system"
        }))]
        #[schemars(extend("x-also" = ["system_message", "system_prompt"]))]
        pub system: Option<String>,
        /// Variables of the chat template besides messages and tools, such as `{ enable_thinking =
        /// false }`. They apply to training, evaluation, generation, server requests and exports;
        /// see [data.md](data.md#from-a-row-to-tokens). Reserved names (`messages`, `tools`,
        /// `bos_token`, ...) and variables that the template never reads are errors.
        #[serde(skip_serializing_if = "TemplateKwargs::is_empty")]
        #[schemars(extend("x-elsewhere" = {
            "Axolotl": "chat_template_kwargs", "ms-swift": "chat_template_kwargs"
        }))]
        #[schemars(extend("x-also" = [
            "template_kwargs; a table, such as { enable_thinking = false }",
            "enable_thinking; write chat_template_kwargs = { enable_thinking = false }",
            "reasoning_effort; write chat_template_kwargs = { reasoning_effort = \"low\" }"
        ]))]
        pub chat_template_kwargs: TemplateKwargs,
        /// Today's date for chat templates that print it, such as Llama 3's, as "2026-01-31". By
        /// default the day of the first start; resuming or evaluating later keeps it.
        #[schemars(with = "Option<String>", extend("x-kind" = "day"))]
        pub template_date: Option<TemplateDate>,
        /// Whether calls in rows with `tools` must match a tool and its parameters. See
        /// [data.md](data.md#messages).
        pub check_calls: bool = true,
        /// Which nested JSON Schemas of slot rows, tools and API documents are flattened in
        /// prompts; answers and calls are flattened in the same way. "none", "advised" (several
        /// nested levels, or five leaves), "always" (all that can be flattened). Answers are mapped
        /// back before scoring; see [data.md](data.md#flat-schemas).
        pub flatten: Flatten = Flatten::None,
        /// A list of objects is replaced by numbered copies of the fields of its items. This is the
        /// minimum number of copies. A row with a longer list gets more copies; in a trajectory a
        /// longer list is an error. With 0, lists stay nested.
        pub flatten_slots: usize = 1,
        /// Separator that joins the names on the path to a leaf.
        pub flatten_separator: String = "_".to_owned(),
        /// What to do if two flat names are equal: "number" (all but the first are numbered),
        /// "error" (the schema stays nested).
        pub flatten_collisions: FlattenCollisions = FlattenCollisions::Number,
    }
}

impl DataConfig {
    /// Paths of the training files.
    pub fn train_paths(&self) -> impl Iterator<Item = &PathBuf> {
        self.train.iter().map(|file| &file.path)
    }

    /// Evaluates on these files instead of the config's evaluation rows.
    pub fn evaluate_on(&mut self, files: Vec<PathBuf>) {
        self.eval = files;
        self.validation_split = None;
    }

    /// Whether the config has evaluation rows.
    pub fn has_eval_rows(&self) -> bool {
        !self.eval.is_empty() || self.validation_split.is_some()
    }

    /// Whether the rows have, or with "auto" may have, the format `format`.
    pub fn may_be(&self, format: DataFormat) -> bool {
        self.format == format || self.format == DataFormat::Auto
    }
}
