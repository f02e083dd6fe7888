//! `adapter_config.json`: the fields that every PEFT version since 0.10 supports.
//!
//! Only these fields are written, because older versions refuse unknown keys. Files of any version
//! can be read. A newer key is ignored if it is off, refused if it is known to change the adapter's
//! output, and otherwise listed in [`PeftConfig::unrecognised`].

use std::fmt;
use std::marker::PhantomData;
use std::path::Path;

use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::budgets::JSON_BYTES;
use crate::error::CheckpointError;
use crate::regular_file;

/// Settings of a LoRA adapter, with PEFT's names.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PeftConfig {
    /// Always "LORA". The private fields below are off in every supported file, and are written
    /// only for older PEFT versions.
    pub peft_type: String,
    /// "CAUSAL_LM" for decoders, "FEATURE_EXTRACTION" for encoders.
    #[serde(default)]
    pub task_type: Option<String>,
    /// Class of the base model; PEFT records it if there is no task type.
    #[serde(default)]
    pub auto_mapping: Option<Value>,
    /// Hub name or path of the base model.
    #[serde(default)]
    pub base_model_name_or_path: Option<String>,
    /// Revision of the base model on the hub.
    #[serde(default)]
    pub revision: Option<String>,
    /// True in saved adapters, so that PEFT loads them frozen.
    #[serde(default)]
    pub inference_mode: bool,
    /// Rank of the factors.
    #[serde(default = "peft_default_r")]
    pub r: usize,
    /// The output of the factors is multiplied by `lora_alpha / r`, or `lora_alpha / √r` under
    /// `use_rslora`.
    #[serde(default = "peft_default_alpha", serialize_with = "integer_if_whole")]
    pub lora_alpha: f64,
    /// Dropout probability of the factors' inputs in training.
    #[serde(default)]
    pub lora_dropout: f64,
    /// Always "none".
    #[serde(default = "peft_default_bias")]
    pub bias: String,
    #[serde(skip_deserializing)]
    fan_in_fan_out: bool,
    /// The linear layers that have factors.
    #[serde(default)]
    pub target_modules: Option<TargetModules>,
    /// Fully trained modules; only the head and the embedding are supported.
    #[serde(default)]
    pub modules_to_save: Option<Vec<String>>,
    /// How the factors were initialised.
    #[serde(default)]
    pub init_lora_weights: InitLoraWeights,
    /// Scales by `lora_alpha / √r`.
    #[serde(default)]
    pub use_rslora: bool,
    /// DoRA: each output of an adapted layer has a magnitude in addition to its direction.
    #[serde(default)]
    pub use_dora: bool,
    /// Ranks that differ from `r`, by module name or regex; the first matching key wins.
    #[serde(default)]
    pub rank_pattern: Patterns<usize>,
    /// Alphas that differ from `lora_alpha`, by module name or regex; the first matching key wins.
    #[serde(default)]
    pub alpha_pattern: Patterns<f64>,
    /// Indices of the layers that have factors; all layers if absent.
    #[serde(default)]
    pub layers_to_transform: Option<Value>,
    /// Name of the list of layers that `layers_to_transform` indexes.
    #[serde(default)]
    pub layers_pattern: Option<Value>,
    #[serde(skip_deserializing)]
    layer_replication: (),
    #[serde(skip_deserializing)]
    loftq_config: Map<String, Value>,
    #[serde(skip_deserializing)]
    megatron_config: (),
    #[serde(default = "peft_default_megatron_core")]
    megatron_core: String,
    /// Modules that match `target_modules` but have no factors. Written only if set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exclude_modules: Option<TargetModules>,
    /// Enabled keys of the file that this version does not know. The caller reports them.
    #[serde(skip)]
    pub unrecognised: Vec<String>,
}

/// `target_modules`: names or one pattern.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum TargetModules {
    /// A name matches a module whose path equals it, or ends with "." and the name.
    Names(Vec<String>),
    /// "all-linear", or a regex that must match the whole module name.
    Pattern(String),
}

/// `init_lora_weights`: a switch or the name of a method.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum InitLoraWeights {
    /// True: A Kaiming-uniform with a = √5, B zero. False: both random.
    Switch(bool),
    /// A method such as "gaussian".
    Method(String),
}

impl Default for InitLoraWeights {
    fn default() -> Self {
        InitLoraWeights::Switch(true)
    }
}

/// A JSON object that preserves key order, because the first matching key wins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Patterns<T>(pub Vec<(String, T)>);

impl<T> Default for Patterns<T> {
    fn default() -> Self {
        Patterns(Vec::new())
    }
}

impl<T: Serialize> Serialize for Patterns<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in &self.0 {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Patterns<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for InOrder<T> {
            type Value = Vec<(String, T)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object from module pattern to number")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(entries)
            }
        }
        deserializer
            .deserialize_map(InOrder(PhantomData))
            .map(Patterns)
    }
}

/// PEFT's defaults for absent keys.
fn peft_default_r() -> usize {
    8
}

fn peft_default_alpha() -> f64 {
    8.0
}

fn peft_default_bias() -> String {
    "none".to_owned()
}

fn peft_default_megatron_core() -> String {
    "megatron.core".to_owned()
}

/// Writes an integral alpha as an integer: PEFT declares it as an integer, and some servers parse
/// it as one.
fn integer_if_whole<S: Serializer>(number: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    let integer = *number as i64;
    if integer as f64 == *number {
        integer.serialize(serializer)
    } else {
        number.serialize(serializer)
    }
}

/// Keys, including newer ones, that change the adapter's output when switched on.
const REFUSED: [&str; 16] = [
    "fan_in_fan_out",
    "layer_replication",
    "megatron_config",
    "loftq_config",
    "lora_bias",
    "target_parameters",
    "trainable_token_indices",
    "alora_invocation_tokens",
    "use_qalora",
    "use_bdlora",
    "arrow_config",
    "corda_config",
    "kasa_config",
    "lora_ga_config",
    "monteclora_config",
    "velora_config",
];

/// Initialisations that change the base weights, so that the factors are wrong for the original
/// base.
const BASE_CHANGING_INITS: [&str; 6] = ["pissa", "olora", "corda", "loftq", "lora_ga", "kasa"];

/// Newer keys that do not change the output of a saved adapter.
const HARMLESS: [&str; 5] = [
    "peft_version",
    "eva_config",
    "qalora_group_size",
    "ensure_weight_tying",
    "exclude_modules",
];

/// Describes an adapter's parts other than low-rank factors; `None` for plain LoRA.
pub(super) fn non_lora_parts(has_magnitudes: bool, saves_weights: bool) -> Option<&'static str> {
    match (has_magnitudes, saves_weights) {
        (true, _) => Some("DoRA (use_dora)"),
        (false, true) => Some("a whole weight (modules_to_save)"),
        (false, false) => None,
    }
}

impl PeftConfig {
    /// Describes the parts other than low-rank factors that this config enables; `None` for plain
    /// LoRA.
    pub fn non_lora_parts(&self) -> Option<&'static str> {
        let saved = self.modules_to_save.as_ref();
        non_lora_parts(self.use_dora, saved.is_some_and(|saved| !saved.is_empty()))
    }

    /// A plain LoRA config with the values of PEFT's constructor, ready to be saved.
    pub fn new(r: usize, lora_alpha: f64, target_modules: TargetModules) -> PeftConfig {
        PeftConfig {
            peft_type: "LORA".to_owned(),
            task_type: Some("CAUSAL_LM".to_owned()),
            auto_mapping: None,
            base_model_name_or_path: None,
            revision: None,
            inference_mode: true,
            r,
            lora_alpha,
            lora_dropout: 0.0,
            bias: peft_default_bias(),
            fan_in_fan_out: false,
            target_modules: Some(target_modules),
            modules_to_save: None,
            init_lora_weights: InitLoraWeights::default(),
            use_rslora: false,
            use_dora: false,
            rank_pattern: Patterns::default(),
            alpha_pattern: Patterns::default(),
            layers_to_transform: None,
            layers_pattern: None,
            layer_replication: (),
            loftq_config: Map::new(),
            megatron_config: (),
            megatron_core: peft_default_megatron_core(),
            exclude_modules: None,
            unrecognised: Vec::new(),
        }
    }

    /// A config with the same targets, but one `r` and `lora_alpha` for all modules and no rsLoRA.
    pub(crate) fn without_variants(&self) -> PeftConfig {
        let mut plain = self.clone();
        plain.use_rslora = false;
        plain.rank_pattern = Patterns::default();
        plain.alpha_pattern = Patterns::default();
        plain
    }

    /// The entries of `modules_to_save`.
    pub(crate) fn saved_modules(&self) -> impl Iterator<Item = &str> {
        let modules = self.modules_to_save.iter().flatten();
        modules.map(String::as_str)
    }

    /// Reads and checks `adapter_config.json`.
    ///
    /// # Errors
    ///
    /// - The file is absent or not a JSON object, or a field has the wrong type.
    /// - `r` is 0, or `lora_alpha` or a value of `alpha_pattern` is not finite in f32.
    /// - The config uses an unsupported feature. The error names the field.
    pub fn load(path: &Path) -> Result<PeftConfig, CheckpointError> {
        let text = regular_file::read(path, JSON_BYTES)?;
        let fields: Map<String, Value> =
            serde_json::from_slice(&text).map_err(CheckpointError::json(path))?;
        refuse(path, &fields)?;
        let mut config: PeftConfig =
            serde_json::from_slice(&text).map_err(CheckpointError::json(path))?;
        if config.r == 0 {
            return Err(CheckpointError::field(path, "r", "must be at least 1"));
        }
        // Scalings are applied in f32.
        let overflows = |alpha: f64| !(alpha as f32).is_finite();
        if overflows(config.lora_alpha) {
            return Err(CheckpointError::field(
                path,
                "lora_alpha",
                "must be finite in f32",
            ));
        }
        let mut patterns = config.alpha_pattern.0.iter();
        if let Some((pattern, _)) = patterns.find(|(_, alpha)| overflows(*alpha)) {
            let problem = format!("the value of {pattern:?} must be finite in f32");
            return Err(CheckpointError::field(path, "alpha_pattern", problem));
        }
        if let Some(module) = config
            .saved_modules()
            .find(|name| saved_weight(name).is_none())
        {
            return Err(CheckpointError::Unsupported {
                path: path.to_owned(),
                feature: format!("modules_to_save \"{module}\""),
                fix: "use only lm_head and embed_tokens",
            });
        }
        config.unrecognised = unrecognised(&fields);
        Ok(config)
    }
}

/// The weight that an entry of `modules_to_save` names; `None` for modules that cannot be fully
/// trained.
pub fn saved_weight(module: &str) -> Option<&'static str> {
    let [head, embedding] = SAVED_WEIGHTS;
    match module {
        "lm_head" => Some(head),
        "embed_tokens" | "model.embed_tokens" => Some(embedding),
        _ => None,
    }
}

/// The weights that can be fully trained.
pub(super) const SAVED_WEIGHTS: [&str; 2] = ["lm_head.weight", "model.embed_tokens.weight"];

fn is_on(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        _ => true,
    }
}

fn refuse(path: &Path, fields: &Map<String, Value>) -> Result<(), CheckpointError> {
    let unsupported = |feature: String, fix| CheckpointError::Unsupported {
        path: path.to_owned(),
        feature,
        fix,
    };
    let text = |key: &str| fields.get(key).and_then(Value::as_str);
    match text("peft_type") {
        Some("LORA") => {}
        Some(other) => {
            let fix = "use a LoRA adapter";
            return Err(unsupported(format!("peft_type \"{other}\""), fix));
        }
        None => {
            return Err(CheckpointError::field(
                path,
                "peft_type",
                "must be \"LORA\"",
            ));
        }
    }
    if let Some(bias) = text("bias").filter(|bias| *bias != "none") {
        let fix = "train with bias = \"none\"";
        return Err(unsupported(format!("bias \"{bias}\""), fix));
    }
    let init = text("init_lora_weights").unwrap_or_default();
    if BASE_CHANGING_INITS
        .iter()
        .any(|method| init.starts_with(method))
    {
        let fix = "convert it to plain LoRA with path_initial_model_for_weight_conversion";
        return Err(unsupported(format!("init_lora_weights \"{init}\""), fix));
    }
    match REFUSED
        .iter()
        .find(|key| fields.get(**key).is_some_and(is_on))
    {
        Some(key) => {
            let fix = "merge the adapter with PEFT, or train without that option";
            Err(unsupported(format!("{key} {}", fields[*key]), fix))
        }
        None => Ok(()),
    }
}

/// Enabled keys that are neither supported nor known to be harmless.
fn unrecognised(fields: &Map<String, Value>) -> Vec<String> {
    let defaults = serde_json::to_value(PeftConfig::new(1, 1.0, TargetModules::Names(Vec::new())));
    let is_known = |key: &str| {
        defaults
            .as_ref()
            .is_ok_and(|defaults| defaults.get(key).is_some())
            || HARMLESS.contains(&key)
    };
    let unknown = fields
        .iter()
        .filter(|(key, value)| is_on(value) && !is_known(key));
    unknown.map(|(key, _)| key.clone()).collect()
}
