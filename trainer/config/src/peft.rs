//! Converts adapter settings to PEFT's `adapter_config.json`.

use tooltune_checkpoints::adapter::{Patterns, PeftConfig};

use crate::{LoraConfig, PrincipalInit};

impl LoraConfig {
    /// The settings in PEFT's format; `base_model` is a path or Hub id.
    pub fn to_peft(&self, base_model: &str) -> PeftConfig {
        let targets = self.target_modules.clone();
        let mut config = PeftConfig::new(self.r, self.lora_alpha, targets);
        config.task_type = Some("CAUSAL_LM".to_string());
        config.base_model_name_or_path = Some(base_model.to_string());
        config.inference_mode = true;
        config.lora_dropout = self.lora_dropout;
        config.use_rslora = self.use_rslora;
        config.use_dora = self.use_dora;
        let saved = &self.modules_to_save;
        config.modules_to_save = (!saved.is_empty()).then(|| saved.clone());
        config.rank_pattern = self.rank_pattern.clone();
        config.alpha_pattern = self.alpha_pattern.clone();
        config.exclude_modules = self.exclude_modules.clone();
        config
    }

    /// Initialisation with the principal singular values of the weights, if enabled.
    pub fn principal_init(&self) -> Option<PrincipalInit> {
        PrincipalInit::parse(self.init_weights.as_deref()?)
    }

    /// Settings of a saved adapter. With PiSSA it has twice the rank and the same scaling, for the
    /// original base.
    ///
    /// # Source
    ///
    /// `PeftModel.save_pretrained` with `path_initial_model_for_weight_conversion`, peft 0.21.
    pub fn to_saved_peft(&self, base_model: &str) -> PeftConfig {
        let mut config = self.to_peft(base_model);
        if self.principal_init().is_none() {
            return config;
        }
        config.r *= 2;
        config.lora_alpha *= if config.use_rslora {
            std::f64::consts::SQRT_2
        } else {
            2.0
        };
        let ranks = config.rank_pattern.0.into_iter();
        config.rank_pattern = Patterns(ranks.map(|(key, rank)| (key, 2 * rank)).collect());
        let alphas = config.alpha_pattern.0.into_iter();
        config.alpha_pattern = Patterns(alphas.map(|(key, alpha)| (key, 2.0 * alpha)).collect());
        config
    }
}
