//! Our adapter settings to PEFT's `adapter_config.json`.

use tooltune_checkpoints::adapter::PeftConfig;

use crate::config::LoraConfig;

impl LoraConfig {
    /// The settings as PEFT writes them; `base_model` is a path or hub id.
    pub fn to_peft(&self, base_model: &str) -> PeftConfig {
        let targets = self.target_modules.clone();
        let mut config = PeftConfig::new(self.r, self.lora_alpha, targets);
        config.task_type = Some("CAUSAL_LM".to_string());
        config.base_model_name_or_path = Some(base_model.to_string());
        config.inference_mode = true;
        config.lora_dropout = self.lora_dropout;
        config.use_rslora = self.use_rslora;
        config.rank_pattern = self.rank_pattern.clone();
        config.alpha_pattern = self.alpha_pattern.clone();
        config.exclude_modules = self.exclude_modules.clone();
        config
    }
}
