//! Our adapter settings to and from PEFT's `adapter_config.json`.

use tooltune_checkpoints::adapter::{self, Patterns, PeftConfig};

use super::matching::{LoraSpec, TargetModules};

impl LoraSpec {
    /// The settings as PEFT writes them; `base_model` is a path or hub id.
    pub fn to_peft(&self, base_model: &str) -> PeftConfig {
        let targets = match &self.target_modules {
            TargetModules::AllLinear => adapter::TargetModules::Pattern("all-linear".to_string()),
            TargetModules::Regex(pattern) => adapter::TargetModules::Pattern(pattern.clone()),
            TargetModules::List(names) => adapter::TargetModules::Names(names.clone()),
        };
        let mut config = PeftConfig::new(self.r, self.lora_alpha, targets);
        config.task_type = Some("CAUSAL_LM".to_string());
        config.base_model_name_or_path = Some(base_model.to_string());
        config.inference_mode = true;
        config.lora_dropout = self.lora_dropout;
        config.use_rslora = self.use_rslora;
        config.rank_pattern = Patterns(self.rank_pattern.clone());
        config.alpha_pattern = Patterns(self.alpha_pattern.clone());
        if !self.exclude_modules.is_empty() {
            let excluded = adapter::TargetModules::Names(self.exclude_modules.clone());
            config.exclude_modules = Some(excluded);
        }
        config
    }

    /// The settings of an adapter that PEFT wrote; absent targets mean PEFT's default for these
    /// models, q and v.
    pub fn from_peft(config: &PeftConfig) -> Self {
        let target_modules = match &config.target_modules {
            Some(adapter::TargetModules::Pattern(p)) if p == "all-linear" => {
                TargetModules::AllLinear
            }
            Some(adapter::TargetModules::Pattern(p)) => TargetModules::Regex(p.clone()),
            Some(adapter::TargetModules::Names(names)) => TargetModules::List(names.clone()),
            None => TargetModules::List(vec!["q_proj".to_string(), "v_proj".to_string()]),
        };
        let exclude_modules = match &config.exclude_modules {
            Some(adapter::TargetModules::Names(names)) => names.clone(),
            Some(adapter::TargetModules::Pattern(pattern)) => vec![pattern.clone()],
            None => Vec::new(),
        };
        Self {
            r: config.r,
            lora_alpha: config.lora_alpha,
            lora_dropout: config.lora_dropout,
            target_modules,
            exclude_modules,
            use_rslora: config.use_rslora,
            rank_pattern: config.rank_pattern.0.clone(),
            alpha_pattern: config.alpha_pattern.0.clone(),
        }
    }
}
