//! PEFT's rules: the modules that a config targets, and the rank and scaling of each.
//!
//! Source: huggingface/peft, `check_target_module_exists` of `tuners/tuners_utils.py`,
//! `get_pattern_key` of `utils/other.py`, and `tuners/lora/layer.py`.

use std::path::Path;

use regex::{Regex, RegexBuilder};
use serde_json::Value;

use super::HEAD;
use crate::adapter::scaling::{ModuleScaling, Scalings, pairs};
use crate::adapter::{Adapter, CONFIG_FILE, PeftConfig, TargetModules};
use crate::error::CheckpointError;

/// PEFT's default targets for Llama, Mistral and Qwen2.
const DEFAULT_TARGETS: [&str; 2] = ["q_proj", "v_proj"];
pub(in crate::adapter) const ALL_LINEAR: &str = "all-linear";

/// Maximum entries of a pattern table. A model of 405 billion parameters has 882 linear layers.
const MAX_PATTERNS: usize = 4096;
/// Maximum memory of one compiled entry. An entry that lists module names needs a twentieth of
/// this.
const PATTERN_BYTES: usize = 1 << 18;

/// Rank and scaling of every module that PEFT applies.
///
/// Tensors of other modules are omitted, because PEFT does not load them.
///
/// # Errors
///
/// - A tensor is not a LoRA factor or lacks its other half.
/// - A rank in the config differs from the rank of the tensors, or no tensor is among the targets;
///   PEFT refuses both.
/// - `layers_to_transform` is set although the targets are one pattern, which PEFT refuses.
/// - A pattern is not a valid regular expression.
pub fn peft_rules(adapter: &Adapter) -> Result<Scalings, CheckpointError> {
    let rules = PeftRules::new(&adapter.config)?;
    let mut scalings = Scalings::new();
    for pair in pairs(&adapter.tensors)? {
        if !rules.targets(pair.module) {
            continue;
        }
        let rank = rules.rank(pair.module);
        if rank != pair.rank() {
            return Err(CheckpointError::RefusedBy {
                consumer: "PEFT",
                problem: format!(
                    "the config sets rank {rank} for {}, but its factors have rank {}",
                    pair.module,
                    pair.rank()
                ),
                fix: "correct r and rank_pattern, or export the adapter again".to_owned(),
            });
        }
        let scaling = rules.scaling(pair.module, rank);
        scalings.insert(pair.module.to_owned(), ModuleScaling { rank, scaling });
    }
    if scalings.is_empty() {
        return Err(CheckpointError::RefusedBy {
            consumer: "PEFT",
            problem: "the config's target_modules name none of the modules that have factors"
                .to_owned(),
            fix: "correct target_modules, or export the adapter again".to_owned(),
        });
    }
    Ok(scalings)
}

/// A config with compiled patterns.
#[derive(Debug)]
pub struct PeftRules<'a> {
    config: &'a PeftConfig,
    targets: Selection,
    excluded: Option<Selection>,
    layers: Option<Layers>,
    ranks: Vec<(Regex, usize)>,
    alphas: Vec<(Regex, f64)>,
}

impl<'a> PeftRules<'a> {
    /// Compiles the patterns of `config`.
    ///
    /// # Errors
    ///
    /// - A pattern is not a valid regular expression, or a table has more than 4096 entries.
    /// - `layers_to_transform` or `layers_pattern` has the wrong type, or is set although the
    ///   targets are one pattern, which PEFT refuses.
    pub fn new(config: &'a PeftConfig) -> Result<PeftRules<'a>, CheckpointError> {
        let targets = match &config.target_modules {
            Some(targets) => Selection::new("target_modules", targets)?,
            None => Selection::Names(DEFAULT_TARGETS.map(str::to_owned).to_vec()),
        };
        let excluded = match &config.exclude_modules {
            Some(excluded) => Some(Selection::new("exclude_modules", excluded)?),
            None => None,
        };
        let layers = Layers::new(config)?;
        if layers.is_some() && !matches!(targets, Selection::Names(_)) {
            return Err(CheckpointError::RefusedBy {
                consumer: "PEFT",
                problem: "layers_to_transform needs a list of target_modules, and they are one \
                          pattern"
                    .to_owned(),
                fix: "name the modules in target_modules".to_owned(),
            });
        }
        Ok(PeftRules {
            targets,
            excluded,
            layers,
            ranks: compile_patterns("rank_pattern", &config.rank_pattern.0)?,
            alphas: compile_patterns("alpha_pattern", &config.alpha_pattern.0)?,
            config,
        })
    }

    /// Whether the config targets the module with this path.
    pub fn targets(&self, module: &str) -> bool {
        if self.excluded.as_ref().is_some_and(|e| e.matches(module)) {
            return false;
        }
        // A full path matches regardless of `layers_to_transform`.
        if let Selection::Names(names) = &self.targets
            && names.iter().any(|name| name == module)
        {
            return true;
        }
        let in_layers = |layers: &Layers| layers.contain(module);
        self.targets.matches(module) && self.layers.as_ref().is_none_or(in_layers)
    }

    /// The module's rank in the config.
    pub fn rank(&self, module: &str) -> usize {
        first_match(&self.ranks, module).unwrap_or(self.config.r)
    }

    /// `alpha / rank`, or `alpha / √rank` under `use_rslora`.
    pub fn scaling(&self, module: &str, rank: usize) -> f64 {
        let alpha = first_match(&self.alphas, module).unwrap_or(self.config.lora_alpha);
        alpha / divisor(self.config, rank)
    }

    /// The first entry or pattern in the config that matches no module, with its field.
    ///
    /// PEFT ignores such entries, so fewer modules would be trained than the config lists.
    pub fn unmatched(&self, modules: &[String]) -> Option<(&'static str, String)> {
        let unmatched_in =
            |field, selection: &Selection| Some((field, selection.unmatched(modules)?));
        let unused = |pattern: &Regex| !modules.iter().any(|module| pattern.is_match(module));
        let patterns = &self.config.rank_pattern.0;
        let ranks = self.ranks.iter().zip(patterns);
        let rank = ranks.filter(|((pattern, _), _)| unused(pattern));
        let rank = rank.map(|(_, (source, _))| ("rank_pattern", source.clone()));
        let patterns = &self.config.alpha_pattern.0;
        let alphas = self.alphas.iter().zip(patterns);
        let alpha = alphas.filter(|((pattern, _), _)| unused(pattern));
        let alpha = alpha.map(|(_, (source, _))| ("alpha_pattern", source.clone()));
        let excluded = self.excluded.as_ref();
        unmatched_in("target_modules", &self.targets)
            .or_else(|| unmatched_in("exclude_modules", excluded?))
            .or_else(|| rank.chain(alpha).next())
    }
}

/// The divisor of alpha at this rank.
pub(super) fn divisor(config: &PeftConfig, rank: usize) -> f64 {
    if config.use_rslora {
        (rank as f64).sqrt()
    } else {
        rank as f64
    }
}

/// A compiled selection of modules.
#[derive(Debug)]
enum Selection {
    AllLinear,
    Names(Vec<String>),
    /// The compiled regex and its source.
    Full(Regex, String),
}

impl Selection {
    fn new(field: &str, selection: &TargetModules) -> Result<Selection, CheckpointError> {
        match selection {
            TargetModules::Pattern(all) if all == ALL_LINEAR => Ok(Selection::AllLinear),
            TargetModules::Pattern(pattern) => {
                let full = regex(field, pattern, &format!("^(?:{pattern})$"))?;
                Ok(Selection::Full(full, pattern.clone()))
            }
            TargetModules::Names(names) => Ok(Selection::Names(names.clone())),
        }
    }

    fn matches(&self, module: &str) -> bool {
        match self {
            Selection::AllLinear => module != HEAD,
            Selection::Full(pattern, _) => pattern.is_match(module),
            Selection::Names(names) => names.iter().any(|name| is_named(module, name)),
        }
    }

    /// The first entry of the selection that matches no module.
    fn unmatched(&self, modules: &[String]) -> Option<String> {
        let used = |matches: &dyn Fn(&str) -> bool| modules.iter().any(|module| matches(module));
        match self {
            Selection::AllLinear => None,
            Selection::Full(full, _) if used(&|module| full.is_match(module)) => None,
            Selection::Full(_, pattern) => Some(pattern.clone()),
            Selection::Names(names) => {
                let unused = |name: &&String| !used(&|module| is_named(module, name));
                names.iter().find(unused).cloned()
            }
        }
    }
}

/// Whether `name` is the module's path or a suffix of it that starts at a component.
fn is_named(module: &str, name: &str) -> bool {
    let head = module.strip_suffix(name);
    head.is_some_and(|head| head.is_empty() || head.ends_with('.'))
}

/// `layers_to_transform` with `layers_pattern`.
#[derive(Debug)]
struct Layers {
    idxs: Vec<u64>,
    /// Regexes that capture the layer index.
    patterns: Vec<Regex>,
}

impl Layers {
    fn new(config: &PeftConfig) -> Result<Option<Layers>, CheckpointError> {
        let (key, wrong) = ("layers_to_transform", "must be layer indices");
        let Some(value) = config.layers_to_transform.as_ref().filter(|v| !v.is_null()) else {
            return Ok(None);
        };
        let idxs = one_or_many(value).iter().map(|idx| idx.as_u64()).collect();
        let Some(idxs) = idxs else {
            return Err(CheckpointError::field(Path::new(CONFIG_FILE), key, wrong));
        };
        let (key, wrong) = ("layers_pattern", "must be a name or a list of names");
        let layer_lists = config.layers_pattern.as_ref().filter(|v| !v.is_null());
        let names = layer_lists.map_or_else(Vec::new, one_or_many);
        let mut patterns = Vec::with_capacity(names.len().max(1));
        for name in names {
            let name = name
                .as_str()
                .ok_or_else(|| CheckpointError::field(Path::new(CONFIG_FILE), key, wrong))?;
            patterns.push(regex(key, name, &format!(r"^.*\.{name}\.(\d+)\."))?);
        }
        if patterns.is_empty() {
            patterns.push(regex(key, "", r"^.*\.[^.]*\.(\d+)\.")?);
        }
        Ok(Some(Layers { idxs, patterns }))
    }

    fn contain(&self, module: &str) -> bool {
        let captured = self
            .patterns
            .iter()
            .find_map(|pattern| pattern.captures(module));
        let idx = captured.and_then(|captures| captures.get(1)?.as_str().parse().ok());
        idx.is_some_and(|idx: u64| self.idxs.contains(&idx))
    }
}

fn one_or_many(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(items) => items.iter().collect(),
        one => vec![one],
    }
}

fn regex(field: &str, pattern: &str, anchored: &str) -> Result<Regex, CheckpointError> {
    Regex::new(anchored).map_err(|error| regex_error(field, pattern, &error))
}

fn regex_error(field: &str, pattern: &str, error: &regex::Error) -> CheckpointError {
    let problem = format!("{pattern:?} is not a valid regular expression: {error}");
    CheckpointError::field(Path::new(CONFIG_FILE), field, problem)
}

fn compile_patterns<T: Copy>(
    field: &str,
    patterns: &[(String, T)],
) -> Result<Vec<(Regex, T)>, CheckpointError> {
    if patterns.len() > MAX_PATTERNS {
        let problem =
            format!("has more than {MAX_PATTERNS} entries; combine them into fewer patterns");
        return Err(CheckpointError::field(
            Path::new(CONFIG_FILE),
            field,
            problem,
        ));
    }
    let compile = |(pattern, value): &(String, T)| {
        let suffix = RegexBuilder::new(&format!(r"^(?:.*\.)?(?:{pattern})$"))
            .size_limit(PATTERN_BYTES)
            .build();
        let suffix = suffix.map_err(|error| regex_error(field, pattern, &error))?;
        Ok((suffix, *value))
    };
    patterns.iter().map(compile).collect()
}

/// The value of the first pattern that matches.
fn first_match<T: Copy>(patterns: &[(Regex, T)], module: &str) -> Option<T> {
    let matching = patterns
        .iter()
        .find(|(pattern, _)| pattern.is_match(module));
    matching.map(|(_, value)| *value)
}
