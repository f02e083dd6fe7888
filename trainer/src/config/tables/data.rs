//! The table `[data]`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use tooltune_rows::text::{ChatTemplate, OnOverflow, SlotPrompt, TemplateDate};

use super::settings::settings;
use super::train_file::TrainFile;
use crate::config::enums::{DataFormat, Flatten, FlattenCollisions, Packing};
use crate::config::template_kwargs::TemplateKwargs;

settings! {
    /// The rows to learn from and to evaluate on.
    pub struct DataConfig {
        /// Required. Files of rows to learn from, in [any form](data.md#files): a path, or
        /// `{ path = "rows.parquet", weight = 0.5 }` for rows that come more or less often than once an
        /// epoch; a file of a data set on the Hugging Face hub is
        /// named as "hf://datasets/owner/name/train.parquet", here and wherever a file of rows is.
        #[schemars(extend("x-kind" = "path"))]
        pub train: Vec<TrainFile>,
        /// Files of rows to evaluate on, in any form.
        #[schemars(extend("x-on-resume" = "safe", "x-kind" = "path"))]
        pub eval: Vec<PathBuf>,
        /// The share of the rows of `train` that is kept back to evaluate on, in place of `eval`: drawn
        /// from `train.seed` and what stands in the row, see
        /// [data.md](data.md#rows-that-are-kept-back).
        #[schemars(extend("exclusiveMinimum" = 0, "exclusiveMaximum" = 1))]
        pub validation_split: Option<f64>,
        /// The field by whose value rows are kept back together, such as the id of a document that
        /// several rows are about; by default each row is drawn for itself.
        pub validation_group_by: Option<String>,
        /// The most rows that are read of each file of `train`, the first ones; all by default.
        #[schemars(range(min = 1))]
        pub max_samples: Option<usize>,
        /// Fields that stand under other names in the files, as `{ prompt = "question", completion =
        /// "answer" }`: the field of the format, and its column.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        pub columns: BTreeMap<String, String>,
        /// The shape of the rows: "messages", "sharegpt", "prompt-completion", "alpaca", "xlam",
        /// "slot", "goat", or "auto", which reads it off the first row of each file; see
        /// [data.md](data.md#formats).
        pub format: DataFormat = DataFormat::Auto,
        /// How slot rows are asked: "typed" (ours: values have the types of the schema), "paper"
        /// (SLOT's Figure 6, whose words ask for texts everywhere), or a Jinja file that prints
        /// `input_text` and `json_schema`; "typed" by default. See [prompts.md](prompts.md).
        #[schemars(extend("x-kind" = "path", "x-names" = SlotPrompt::NAMES))]
        pub slot_prompt: Option<PathBuf>,
        /// Longest row, in tokens.
        #[schemars(range(min = 2))]
        pub max_length: usize = 2048,
        /// What happens to longer rows.
        pub on_overflow: OnOverflow = OnOverflow::Error,
        /// How rows share a sequence: "none", or "block-diagonal", which fills sequences of
        /// `max_length` with whole rows that do not see each other.
        pub packing: Packing = Packing::None,
        /// What conversations are rendered with, in place of the model's own template: a Jinja
        /// file, or "chatml-tools", for models with `<|im_start|>` and `<|im_end|>` whose own
        /// template renders no tools; see [prompts.md](prompts.md).
        #[schemars(extend("x-kind" = "path", "x-names" = ChatTemplate::NAMES))]
        pub chat_template: Option<PathBuf>,
        /// The system message of rows that begin with none; an empty text is one, too, and keeps away
        /// what the template writes of its own. By default rows stay as they are.
        pub system: Option<String>,
        /// Variables that the template reads besides messages and tools, such as `{ enable_thinking
        /// = false }`: values are texts, numbers, booleans, lists and tables. They reach training,
        /// evaluation, generation, requests to servers and exports alike; see
        /// [data.md](data.md#from-a-row-to-tokens). A name that every template is given
        /// (`messages`, `tools`, `bos_token`, ...), or that this one never reads, is an error.
        #[serde(skip_serializing_if = "TemplateKwargs::is_empty")]
        pub chat_template_kwargs: TemplateKwargs,
        /// The day that a template which asks for it prints, as "2026-01-31"; templates of Llama 3
        /// do. By default the day on which the run begins, also when it is resumed or evaluated
        /// later: `config.resolved.toml` keeps it.
        #[schemars(with = "Option<String>", extend("x-kind" = "day"))]
        pub template_date: Option<TemplateDate>,
        /// Whether calls in rows with `tools` must be calls of these tools, with arguments that
        /// they declare; else calls are taken as they are. See [data.md](data.md#messages).
        pub check_calls: bool = true,
        /// Which nested JSON Schemas, of slot rows, of tools or of API documents, are shown flat, with
        /// answers or calls to match: "none", "advised" (several nested levels, or five leaves), "always" (all
        /// that have a flat form). Answers are unflattened before they are scored; see
        /// [data.md](data.md#flat-schemas).
        pub flatten: Flatten = Flatten::None,
        /// Numbered copies of the items of a list of objects, as many at least; a longer list of a
        /// row gets as many as it needs, one of a trajectory is an error, and 0 leaves lists as they
        /// are.
        pub flatten_slots: usize = 1,
        /// What joins the names on the way to a leaf.
        pub flatten_separator: String = "_".to_owned(),
        /// What becomes of flat names that collide: "number" (all but the first are numbered),
        /// "error" (the schema stays nested).
        pub flatten_collisions: FlattenCollisions = FlattenCollisions::Number,
    }
}

impl DataConfig {
    /// The paths of `train`.
    pub fn train_paths(&self) -> impl Iterator<Item = &PathBuf> {
        self.train.iter().map(|file| &file.path)
    }

    /// Evaluates on these files, whatever was to be evaluated on.
    pub fn evaluate_on(&mut self, files: Vec<PathBuf>) {
        self.eval = files;
        self.validation_split = None;
    }

    /// Whether there are rows to evaluate on.
    pub fn has_eval_rows(&self) -> bool {
        !self.eval.is_empty() || self.validation_split.is_some()
    }

    /// Whether the rows may be of `format`, as far as they are known.
    pub(crate) fn may_be(&self, format: DataFormat) -> bool {
        self.format == format || self.format == DataFormat::Auto
    }
}
