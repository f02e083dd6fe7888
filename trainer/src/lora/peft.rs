//! Our adapter settings to PEFT's `adapter_config.json`.

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
}

fn written(choice: &TargetModules) -> adapter::TargetModules {
    match choice {
        TargetModules::AllLinear => adapter::TargetModules::Pattern(ALL_LINEAR.to_string()),
        TargetModules::Regex(pattern) => adapter::TargetModules::Pattern(pattern.clone()),
        TargetModules::List(names) => adapter::TargetModules::Names(names.clone()),
    }
}

/// PEFT's word for every linear layer but the head.
const ALL_LINEAR: &str = "all-linear";
