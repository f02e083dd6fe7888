//! The recipes for models that are not in this repository: each is planned with only the
//! `config.json` of its model, as a user does before downloading the model.

use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;
use tooltune::config::{Config, LoadedConfig, Optim, RunLength, TargetModules};

use crate::support::{fixture, root};
use crate::workplace::{CommandOutput, tooltune};

/// A folder with a config, and only `config.json` of the model that it names.
struct Empty(TempDir);

impl Empty {
    fn new(recipe: &str, shape: &Path) -> Self {
        let folder = TempDir::new().unwrap();
        let config = root().join("configs").join(recipe);
        std::fs::copy(&config, folder.path().join(recipe)).unwrap();
        let loaded = LoadedConfig::load(&config, &[]).unwrap();
        let model = loaded.config.model.unwrap().model_name_or_path;
        let model = folder.path().join(model);
        std::fs::create_dir_all(&model).unwrap();
        std::fs::copy(shape, model.join("config.json")).unwrap();
        Self(folder)
    }

    fn plan(&self, recipe: &str, further: &[&str]) -> CommandOutput {
        let arguments = ["plan", recipe, "--offline", "--format", "json"];
        let mut command = tooltune();
        command.current_dir(self.0.path()).args(arguments);
        CommandOutput::from_command(command.args(further))
    }
}

fn shape(model: &str) -> std::path::PathBuf {
    fixture("model_configs").join(model).join("config.json")
}

/// Recipe, model and the published number of parameters.
const RECIPES: [(&str, &str, u64); 9] = [
    ("goat-llama3-8b.toml", "llama-3-8b-instruct", 8_030_261_248),
    ("goat-llama2-7b.toml", "llama-2-7b-chat", 6_738_415_616),
    ("goat-llama2-13b.toml", "llama-2-13b-chat", 13_015_864_320),
    ("goat-vicuna-13b.toml", "vicuna-13b-v1.5", 13_015_864_320),
    ("goat-qwen2-7b.toml", "qwen2-7b-instruct", 7_615_616_512),
    (
        "slot-llama3.2-1b.toml",
        "llama-3.2-1b-instruct",
        1_235_814_400,
    ),
    (
        "slot-llama3.2-3b.toml",
        "llama-3.2-3b-instruct",
        3_212_749_824,
    ),
    (
        "slot-mistral-7b-v0.2.toml",
        "mistral-7b-instruct-v0.2",
        7_241_732_096,
    ),
    ("mlperf-llama2-70b-lora.toml", "llama-2-70b", 68_976_648_192),
];

#[test]
fn every_recipe_is_planned_with_only_the_shape_of_its_model() {
    for (recipe, model, n_weights) in RECIPES {
        let folder = Empty::new(recipe, &shape(model));
        let text = folder.plan(recipe, &[]).success();
        let plan: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        assert_eq!(plan["weights"], n_weights, "{recipe}");
        let path = root().join("configs").join(recipe);
        let config = LoadedConfig::load(&path, &[]).unwrap().config;
        // Epochs are over an unknown number of rows.
        let steps = match config.train.length() {
            RunLength::Steps(steps) => Value::from(steps),
            RunLength::Epochs(_) => Value::Null,
        };
        assert_eq!(plan["steps"], steps, "{recipe}");
        assert!(
            plan["step_time"]["seconds"].as_f64() > Some(0.0),
            "{recipe}"
        );
        assert_eq!(plan["compute_dtype"], "bf16", "{recipe}");
        // Adapter and optimizer state, in f32.
        let n_trained = plan["trained_weights"].as_u64().unwrap();
        let n_retriever_parameters = plan["retriever"]["n_parameters"].as_u64().unwrap_or(0);
        assert_eq!(
            recipe.starts_with("goat"),
            n_retriever_parameters > 0,
            "{recipe}"
        );
        let checkpoint = plan["checkpoint_bytes"].as_u64().unwrap();
        let values = 12 * (n_trained + n_retriever_parameters);
        assert!((values..values + 40_000).contains(&checkpoint), "{recipe}");
        let peak = plan["memory"]["peak_bytes"].as_u64().unwrap();
        assert!(peak > 2 * n_weights, "{recipe}: {peak}");
    }
}

#[test]
fn every_recipe_of_the_folder_is_planned_here() {
    for entry in std::fs::read_dir(root().join("configs")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            continue;
        }
        let config = LoadedConfig::load(&path, &[]).unwrap().config;
        let model = config.model.map(|model| model.model_name_or_path);
        let is_folder = model.is_some_and(|model| model.extension().is_none_or(|e| e != "gguf"));
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let is_planned = RECIPES.iter().any(|(recipe, ..)| *recipe == name);
        assert_eq!(is_folder, is_planned, "{name}");
    }
}

/// The recipes of [`RECIPES`] whose names start with a paper's name, as loaded.
fn recipes_of(paper: &str) -> Vec<(&'static str, Config)> {
    let names = RECIPES.iter().map(|(name, ..)| *name);
    names
        .filter(|name| name.starts_with(paper))
        .map(|name| {
            let path = root().join("configs").join(name);
            (name, LoadedConfig::load(&path, &[]).unwrap().config)
        })
        .collect()
}

/// GOAT, appendix B.
#[test]
fn goat_recipes_have_the_settings_of_the_paper() {
    let recipes = recipes_of("goat");
    assert_eq!(recipes.len(), 5);
    for (name, config) in recipes {
        let lora = &config.lora;
        let lora_settings = (lora.r, lora.lora_alpha, lora.lora_dropout);
        assert_eq!(lora_settings, (8, 16.0, 0.05), "{name}");
        assert!(!lora.use_rslora, "{name}");
        assert_eq!(
            lora.target_modules,
            TargetModules::Pattern("all-linear".to_string()),
            "{name}"
        );
        assert_eq!(config.train.length(), RunLength::Epochs(3.0), "{name}");
    }
}

/// The reference of mlcommons/training, llama2_70b_lora, at commit aa344c7f.
#[test]
fn the_mlperf_recipe_has_the_settings_of_the_reference() {
    let recipes = recipes_of("mlperf");
    let [(_, config)] = &recipes[..] else {
        panic!("{} recipes", recipes.len());
    };
    let (lora, train) = (&config.lora, &config.train);
    let lora_settings = (lora.r, lora.lora_alpha, lora.lora_dropout);
    assert_eq!(lora_settings, (16, 32.0, 0.1));
    let batch = train.per_device_train_batch_size * train.gradient_accumulation_steps;
    assert_eq!((batch, config.data.max_length), (8, 8192));
    assert_eq!(train.length(), RunLength::Steps(1024));
    let rates = (train.learning_rate, train.weight_decay, train.warmup_ratio);
    assert_eq!(rates, (4e-4, 1e-4, Some(0.0)));
    assert_eq!((train.max_grad_norm, train.seed), (0.3, 1234));
    // Eight sequences per step, an evaluation every 384 sequences.
    assert_eq!(config.eval.eval_steps, 384 / 8);
}

/// SLOT, Table 4. Temperature 0 selects the most likely token, whatever top-p and top-k are.
#[test]
fn slot_recipes_have_the_settings_of_the_paper() {
    let recipes = recipes_of("slot");
    assert_eq!(recipes.len(), 3);
    for (name, config) in recipes {
        let (lora, train, eval) = (&config.lora, &config.train, &config.eval);
        let lora_settings = (lora.r, lora.lora_alpha, lora.lora_dropout);
        assert_eq!(lora_settings, (32, 64.0, 0.05), "{name}");
        assert!(!lora.use_rslora, "{name}");
        assert_eq!(train.learning_rate, 1e-5, "{name}");
        assert_eq!(train.length(), RunLength::Epochs(2.0), "{name}");
        assert_eq!(train.per_device_train_batch_size, 2, "{name}");
        assert_eq!(train.gradient_accumulation_steps, 2, "{name}");
        assert_eq!(config.data.max_length, 16_384, "{name}");
        let prompt = config.data.slot_prompt.as_deref();
        assert_eq!(prompt, Some(Path::new("paper")), "{name}");
        assert_eq!(train.optim, Optim::PagedAdamw32bit, "{name}");
        assert_eq!(train.max_grad_norm, 0.1, "{name}");
        assert_eq!(eval.max_new_tokens, 2048, "{name}");
        assert_eq!(eval.temperature, 0.0, "{name}");
        assert_eq!(eval.max_time, Some(60.0), "{name}");
    }
}

#[test]
fn an_offline_plan_follows_the_settings() {
    let recipe = "slot-llama3.2-1b.toml";
    let folder = Empty::new(recipe, &shape("llama-3.2-1b-instruct"));
    let plan = |settings: &[&str]| -> Value {
        let further: Vec<&str> = settings.iter().flat_map(|set| ["--set", set]).collect();
        serde_json::from_str(&folder.plan(recipe, &further).success()).unwrap()
    };
    let number = |plan: &Value, key: &str| plan[key].as_u64().unwrap();
    let before = plan(&[]);
    // r (in + out) of q, k, v, o, gate, up and down, in 16 blocks.
    let widths = (2048 + 2048) * 2 + (2048 + 512) * 2 + (2048 + 8192) * 3;
    assert_eq!(number(&before, "trained_weights"), 32 * 16 * widths);
    assert_eq!(number(&before, "largest_micro_batch_tokens"), 2 * 16_384);
    let smaller = plan(&["train.per_device_train_batch_size=1", "lora.r=16"]);
    assert_eq!(number(&smaller, "trained_weights"), 16 * 16 * widths);
    assert_eq!(number(&smaller, "largest_micro_batch_tokens"), 16_384);
    let peak = |plan: &Value| plan["memory"]["peak_bytes"].as_u64().unwrap();
    assert!(peak(&smaller) < peak(&before));
    let f32 = plan(&["model.compute_dtype=\"f32\""]);
    assert_eq!(f32["compute_dtype"], "f32");
    assert!(peak(&f32) > peak(&before) + 2 * number(&before, "weights"));
    let mut file = std::fs::read_to_string(folder.0.path().join(recipe)).unwrap();
    file = file.replace("num_train_epochs = 2", "max_steps = 70");
    std::fs::write(folder.0.path().join(recipe), file).unwrap();
    assert_eq!(plan(&[])["steps"], 70);
    let absurd = "9000000000000000000";
    let sets = ["data.max_length", "eval.batch_size", "eval.max_new_tokens"]
        .map(|key| format!("{key}={absurd}"));
    assert!(peak(&plan(&sets.each_ref().map(String::as_str))) > 1 << 50);
}

#[test]
fn an_impossible_offline_plan_is_refused_with_its_setting() {
    let recipe = "goat-llama3-8b.toml";
    let folder = Empty::new(recipe, &shape("llama-3-8b-instruct"));
    let refusal = |further: &[&str], status: i32, expected: &[&str]| {
        let answer = folder.plan(recipe, further);
        assert_eq!(answer.status, Some(status), "{}", answer.stderr);
        for part in expected {
            assert!(answer.stderr.contains(part), "{part}: {}", answer.stderr);
        }
    };
    refusal(
        &["--set", "lora.target_modules=[\"q_porj\"]"],
        2,
        &["lora.target_modules", "q_porj", "q_proj"],
    );
    refusal(&["--set", "lora.rank=4"], 2, &["lora.r"]);
    refusal(&["--probe"], 2, &["--probe"]);
    let alone =
        "[retriever]\nmodel_name_or_path = \"m\"\ntrain = [\"p\"]\n[train]\noutput_dir = \"r\"\n";
    std::fs::write(folder.0.path().join("alone.toml"), alone).unwrap();
    let answer = folder.plan("alone.toml", &[]);
    assert_eq!(answer.status, Some(2), "{}", answer.stderr);
    assert!(answer.stderr.contains("add [model]"), "{}", answer.stderr);
    let config = folder
        .0
        .path()
        .join("models/llama-3-8b-instruct/config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("\"llama\"", "\"gpt_neox\"")).unwrap();
    refusal(&[], 1, &["models/llama-3-8b-instruct", "gpt_neox", "qwen2"]);
    std::fs::write(&config, "{").unwrap();
    refusal(&[], 1, &["config.json"]);
    std::fs::remove_file(&config).unwrap();
    refusal(
        &[],
        2,
        &[
            "goat-llama3-8b.toml:",
            "config.json, which does not exist",
            "copy the model's",
        ],
    );
}
