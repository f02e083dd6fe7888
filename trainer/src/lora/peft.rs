//! Our adapter settings to and from PEFT's `adapter_config.json`.

use tooltune_checkpoints::adapter::{self, Patterns, PeftConfig};

use super::matching::{LoraSpec, TargetModules};

impl LoraSpec {
    /// The settings as PEFT writes them; `base_model` is a path or hub id.
    pub fn to_peft(&self, base_model: &str) -> PeftConfig {
        let targets = written(&self.target_modules);
        let mut config = PeftConfig::new(self.r, self.lora_alpha, targets);
        config.task_type = Some("CAUSAL_LM".to_string());
        config.base_model_name_or_path = Some(base_model.to_string());
        config.inference_mode = true;
        config.lora_dropout = self.lora_dropout;
        config.use_rslora = self.use_rslora;
        config.rank_pattern = Patterns(self.rank_pattern.clone());
        config.alpha_pattern = Patterns(self.alpha_pattern.clone());
        config.exclude_modules = self.exclude_modules.as_ref().map(written);
        config
    }

    /// The settings of an adapter that PEFT wrote; absent targets mean PEFT's default for these
    /// models, q and v.
    pub fn from_peft(config: &PeftConfig) -> Self {
        let default = || TargetModules::List(vec!["q_proj".to_string(), "v_proj".to_string()]);
        Self {
            r: config.r,
            lora_alpha: config.lora_alpha,
            lora_dropout: config.lora_dropout,
            target_modules: config.target_modules.as_ref().map_or_else(default, read),
            exclude_modules: config.exclude_modules.as_ref().map(read),
            use_rslora: config.use_rslora,
            rank_pattern: config.rank_pattern.0.clone(),
            alpha_pattern: config.alpha_pattern.0.clone(),
        }
    }
}

fn written(choice: &TargetModules) -> adapter::TargetModules {
    match choice {
        TargetModules::AllLinear => adapter::TargetModules::Pattern(ALL_LINEAR.to_string()),
        TargetModules::Regex(pattern) => adapter::TargetModules::Pattern(pattern.clone()),
        TargetModules::List(names) => adapter::TargetModules::Names(names.clone()),
    }
}

fn read(choice: &adapter::TargetModules) -> TargetModules {
    match choice {
        adapter::TargetModules::Pattern(pattern) if pattern == ALL_LINEAR => {
            TargetModules::AllLinear
        }
        adapter::TargetModules::Pattern(pattern) => TargetModules::Regex(pattern.clone()),
        adapter::TargetModules::Names(names) => TargetModules::List(names.clone()),
    }
}

/// PEFT's word for every linear layer but the head.
const ALL_LINEAR: &str = "all-linear";
