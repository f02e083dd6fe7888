//! Configs of other trainers: `init --from` translates them, and what it writes is a config that plans.

use serde_json::{Value, json};

use crate::bad_input::{CONFIG, assert_refused};
use crate::support::fixture;
use crate::workplace::{Answer, Workplace, tooltune};

const AXOLOTL: &str = "\
base_model: MODEL
load_in_4bit: false
adapter: lora
lora_r: 16
lora_alpha: 32
lora_dropout: 0.05
lora_target_linear: true
datasets:
  - path: rows.jsonl
    type: chat_template
test_datasets:
  - path: others.jsonl
    type: chat_template
sequence_len: 512
sample_packing: true
train_on_inputs: false
output_dir: outputs/axolotl
num_epochs: 2
micro_batch_size: 2
gradient_accumulation_steps: 4
optimizer: adamw_bnb_8bit
lr_scheduler: cosine
learning_rate: 0.0002
warmup_ratio: 0.1
bf16: auto
gradient_checkpointing: true
flash_attention: true
wandb_project: mine
eval_steps: 5
made_up: 7
";

const LLAMA_FACTORY: &str = "\
model_name_or_path: MODEL
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 8
lora_target: all
dataset: rows.jsonl
template: qwen
cutoff_len: 512
output_dir: saves/tiny
logging_steps: 10
save_steps: 500
plot_loss: true
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 1.0e-4
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: false
val_size: 0.1
per_device_eval_batch_size: 1
eval_strategy: steps
eval_steps: 500
";

const MS_SWIFT: &str = "\
# 22GB
CUDA_VISIBLE_DEVICES=0 \\
swift sft \\
    --model MODEL \\
    --train_type lora \\
    --dataset 'rows.jsonl#2' \\
    --torch_dtype bfloat16 \\
    --num_train_epochs 1 \\
    --per_device_train_batch_size 1 \\
    --learning_rate 1e-4 \\
    --lora_rank 8 \\
    --lora_alpha 32 \\
    --target_modules q_proj v_proj \\
    --gradient_accumulation_steps 16 \\
    --save_total_limit 2 \\
    --logging_steps 5 \\
    --max_length 512 \\
    --output_dir output \\
    --system 'You are a helpful assistant.' \\
    --warmup_ratio 0.05
";

const TRL: &str = r#"{"model_name_or_path": "MODEL", "use_peft": true, "lora_r": 32, "lora_alpha": 16,
"lora_target_modules": ["q_proj", "k_proj"], "dataset_name": "rows.jsonl", "learning_rate": 2e-4,
"num_train_epochs": 1, "max_steps": -1, "packing": true, "per_device_train_batch_size": 2, "fp16": false,
"gradient_checkpointing": true, "assistant_only_loss": true, "max_length": 512, "output_dir": "trl",
"report_to": "wandb", "eval_strategy": "no"}"#;

fn workplace() -> Workplace {
    let workplace = Workplace::new();
    // Rows that are the same are kept back together.
    let row = |i: usize| {
        json!({"messages": [{"role": "user", "content": format!("Hi {i}")},
        {"role": "assistant", "content": "Hello."}]})
    };
    let rows = (0..60).map(|i| format!("{}\n", row(i)));
    workplace.write("rows.jsonl", rows.collect::<String>());
    let other = json!({"messages": [{"role": "user", "content": "Bye"},
        {"role": "assistant", "content": "Bye."}]});
    workplace.write("others.jsonl", format!("{other}\n"));
    workplace
}

#[test]
fn configs_of_four_trainers_become_configs_that_plan() {
    let workplace = workplace();
    let model = fixture("tiny_chat_model").display().to_string();
    let cases = [
        (
            "axolotl.yaml",
            AXOLOTL,
            "a config of Axolotl",
            &[
                "r = 16",
                "target_modules = \"all-linear\"",
                "packing = \"block-diagonal\"",
                "eval = [\"others.jsonl\"]",
                "train_on = \"assistant\"",
                "eval_steps = 5",
                "output_dir = \"outputs/axolotl\"",
            ][..],
            &[
                "made_up = 7: not known of Axolotl here",
                "flash_attention",
                "wandb_project",
            ][..],
        ),
        (
            "llama_factory.yaml",
            LLAMA_FACTORY,
            "a config of LLaMA-Factory",
            &[
                "r = 8",
                "target_modules = \"all-linear\"",
                "max_length = 512",
                "num_train_epochs = 3.0",
                "validation_split = 0.1",
                "eval_steps = 500",
            ],
            &["template"],
        ),
        (
            "swift.sh",
            MS_SWIFT,
            "a config of ms-swift",
            &[
                "target_modules = [\"q_proj\", \"v_proj\"]",
                "compute_dtype = \"bf16\"",
                "train = [\"rows.jsonl\"]",
                "system = \"You are a helpful assistant.\"",
            ],
            &["rows.jsonl#2: put 2 rows into the file", "train_type"],
        ),
        (
            "trl.json",
            TRL,
            "a config of TRL",
            &[
                "r = 32",
                "gradient_checkpointing = \"full\"",
                "train_on = \"assistant\"",
            ],
            &["use_peft", "fp16", "train.max_steps = -1: the epochs say"],
        ),
    ];
    for (name, text, origin, carried, left) in cases {
        workplace.write(name, text.replace("MODEL", &model));
        for output in ["toml", "yaml"] {
            let output = format!("{}.{output}", name.replace('.', "-"));
            let init = format!("init --from {name} --output {output}");
            let answer = workplace.run(init.split(' '));
            for said in left.iter().chain([&origin]) {
                assert!(
                    answer.stderr.contains(said),
                    "{name}: {said}: {}",
                    answer.stderr
                );
            }
            assert!(
                !answer.stderr.contains("not a config yet"),
                "{}",
                answer.stderr
            );
            answer.success();
            let written = workplace.read(&output);
            if output.ends_with("toml") {
                for said in carried {
                    assert!(
                        written.contains(said),
                        "{name}: {said} is not in\n{written}"
                    );
                }
            }
            let plan = workplace.run(["plan", &output]);
            assert_eq!(plan.status, Some(0), "{name}: {}\n{written}", plan.stderr);
        }
    }
}

#[test]
fn a_config_of_another_trainer_is_told_so_in_one_line() {
    let workplace = workplace();
    workplace.write("axolotl.yaml", AXOLOTL);
    let said = [
        "this is a config of Axolotl",
        "tooltune init --from FILE",
        "1 mistake in",
    ];
    assert_refused(&workplace, &["train", "axolotl.yaml"], CONFIG, &said);
    for (file, text, origin) in [
        ("swift.sh", MS_SWIFT, "this is a config of ms-swift"),
        ("trl.json", TRL, "this is a config of TRL"),
    ] {
        workplace.write(file, text);
        let said = [origin, "tooltune init --from FILE", "1 mistake in"];
        assert_refused(&workplace, &["plan", file], CONFIG, &said);
    }
    for (file, text, said) in [
        ("other.json", "{\"a\": 1}", "this is JSON, and a config"),
        (
            "rows.jsonl",
            &workplace.read("rows.jsonl"),
            "these are rows in JSON Lines, and no config",
        ),
    ] {
        workplace.write(file, text);
        assert_refused(&workplace, &["plan", file], CONFIG, &[said, "1 mistake in"]);
    }
    let rows = &["generate", "rows.jsonl", "--message", "Hi"];
    assert_refused(
        &workplace,
        rows,
        CONFIG,
        &["these are rows", "1 mistake in"],
    );
    let trl = "trl dpo --model_name_or_path MODEL --dataset_name rows.jsonl --lora_r 8 --use_peft";
    workplace.write("dpo.sh", trl);
    let said = ["dpo.sh: trl dpo: ", "supervised fine-tuning with LoRA"];
    assert_refused(&workplace, &["init", "--from", "dpo.sh"], CONFIG, &said);
    let beside = &["init", "--output", "nowhere/x.toml"];
    assert_refused(&workplace, beside, 1, &["its folder is not there: make it"]);
    let dpo = LLAMA_FACTORY.replace("stage: sft", "stage: dpo");
    workplace.write("dpo.yaml", dpo);
    let said = [
        "dpo.yaml: stage = \"dpo\"",
        "supervised fine-tuning with LoRA",
    ];
    assert_refused(&workplace, &["init", "--from", "dpo.yaml"], CONFIG, &said);
    workplace.write("notes.yaml", "a: 1\nb: 2\n");
    let said = ["too few of its keys", "init --preset sft"];
    assert_refused(&workplace, &["init", "--from", "notes.yaml"], CONFIG, &said);
}

/// What is a name of the hub and no path is answered with the command that fetches it.
#[test]
fn names_of_the_hub_are_answered_with_the_command_that_fetches_them() {
    let workplace = workplace();
    let model = "`tooltune fetch acme/tiny`";
    let rows = "hf://datasets/acme/tides/train.jsonl";
    let set = |setting: &str| {
        vec![
            "plan".to_owned(),
            "config.toml".to_owned(),
            "--set".to_owned(),
            setting.to_owned(),
        ]
    };
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    for (command, said) in [
        (set("data.train=[\"acme/tides\"]"), rows),
        (words("chat acme/tiny"), model),
        (words("eval config.toml --data acme/tides"), rows),
        (words("data stats acme/tides"), rows),
        (words("data stats rows.jsonl --model acme/tiny"), model),
    ] {
        let refused = workplace.run(command.iter().map(String::as_str));
        assert_eq!(
            refused.status,
            Some(CONFIG),
            "{command:?}: {}",
            refused.stderr
        );
        // As one text, whatever the box around it.
        let shown: String = refused
            .stderr
            .chars()
            .filter(|letter| !letter.is_whitespace() && *letter != '│')
            .collect();
        assert!(
            shown.contains(&said.replace(' ', "")),
            "{command:?}: {}",
            refused.stderr
        );
    }
    let retriever = "[retriever]\nmodel_name_or_path = \"acme/tiny\"\ntrain = [\"acme/tides\"]\n\
                     [train]\noutput_dir = \"found\"\nmax_steps = 1\n";
    workplace.write("retriever.toml", retriever);
    // Names in settings are asked for, and here nothing may be.
    for (command, said) in [
        (set("model.model_name_or_path=acme/tiny"), model),
        (set("eval.encoder=acme/tiny"), model),
        (words("plan retriever.toml"), model),
    ] {
        let mut offline = tooltune();
        offline.current_dir(workplace.folder()).args(&command);
        offline
            .env("HF_HUB_OFFLINE", "1")
            .env("HF_HOME", workplace.path("hf"));
        let refused = Answer::of(&mut offline);
        assert_eq!(refused.status, Some(CONFIG), "{}", refused.stderr);
        let shown: Vec<&str> = refused.stderr.split_whitespace().collect();
        let shown = shown.join(" ").replace("│ ", "");
        assert!(shown.contains(said), "{command:?}: {}", refused.stderr);
    }
    let axolotl = AXOLOTL
        .replace("MODEL", "acme/tiny")
        .replace("rows.jsonl", "acme/tides");
    workplace.write("hub.yaml", axolotl);
    let answer = workplace.run("init --from hub.yaml --output hub.toml".split(' '));
    assert!(answer.stderr.contains(rows), "{}", answer.stderr);
    // What uses a config fetches its model by name, and there is nothing to do.
    let to_do = "model.model_name_or_path:";
    assert!(!answer.stderr.contains(to_do), "{}", answer.stderr);
    answer.success();
}

/// A text of several lines, with what YAML and TOML write in other ways, is the same in both.
#[test]
fn a_system_prompt_of_several_lines_is_translated_as_it_is() {
    let workplace = workplace();
    let system =
        "You are \"brief\": say 'yes' or 'no'.\n\n  # No: more\n- than that: \\n\t{{ x }}\n";
    let swift = format!(
        "swift sft --model '{}' --train_type lora --dataset rows.jsonl --max_steps 1 --output_dir out \
         --lora_rank 4 --num_train_epochs 1 --system \"{}\"\n",
        fixture("tiny_chat_model").display(),
        system.replace('\\', "\\\\").replace('"', "\\\"")
    );
    workplace.write("swift.sh", swift);
    for output in ["swift.yaml", "swift.toml"] {
        let init = format!("init --from swift.sh --output {output}");
        workplace.run(init.split(' ')).success();
        let words = ["inspect", output, "--format", "json", "--row", "1"];
        let shown = workplace.run(words).success();
        let row: Value = serde_json::from_str(shown.trim()).unwrap();
        assert_eq!(row["system"]["text"], system, "{}", workplace.read(output));
    }
    workplace.write("open.sh", "swift sft --model 'a --train_type lora\n");
    let said = ["a quote is not closed, or the text ends with a backslash"];
    assert_refused(&workplace, &["init", "--from", "open.sh"], CONFIG, &said);
}

/// A preset in YAML names its own file, and is one.
#[test]
fn a_preset_is_written_in_yaml_and_names_its_file() {
    let workplace = workplace();
    workplace
        .run("init --preset sft --output mine.yaml".split(' '))
        .success();
    let text = workplace.read("mine.yaml");
    assert!(text.contains("#   tooltune train mine.yaml"), "{text}");
    let said = "models/smollm2-135m-instruct.gguf";
    let refused = workplace.run(["plan", "mine.yaml"]);
    assert!(refused.stderr.contains(said), "{}", refused.stderr);
}

/// What TRL learns where nothing says it depends on the rows, which are looked at.
#[test]
fn what_trl_learns_by_default_follows_from_the_rows() {
    let workplace = workplace();
    let pair = json!({"prompt": "Hi", "completion": "Hello."});
    workplace.write("pairs.jsonl", format!("{pair}\n"));
    for (rows, learned) in [("rows.jsonl", "all"), ("pairs.jsonl", "completion")] {
        let model = fixture("tiny_chat_model");
        let trl = format!(
            "trl sft --model_name_or_path '{}' --dataset_name {rows} --lora_r 8 --use_peft",
            model.display()
        );
        workplace.write("sft.sh", trl);
        let answer = workplace.run(["init", "--from", "sft.sh"]);
        let line = format!("(default of TRL) -> mask.train_on = \"{learned}\"");
        assert!(answer.stderr.contains(&line), "{rows}: {}", answer.stderr);
        let config = answer.success();
        let setting = format!("train_on = \"{learned}\"");
        assert!(config.contains(&setting), "{rows}: {config}");
    }
}

#[test]
fn words_without_a_meaning_here_are_answered_with_leave_it_out() {
    let workplace = workplace();
    let config = workplace.read("config.toml");
    let config = config.replace("[train]\n", "[train]\nfp16 = true\nuse_peft = true\n");
    workplace.write("mine.toml", config + "[log]\nreport_to = \"wandb\"\n");
    let said = ["leave it out", "fp16", "use_peft", "wandb", "3 mistakes in"];
    assert_refused(&workplace, &["plan", "mine.toml"], CONFIG, &said);
    // In another table than its own, what is wrong with the value is told as well.
    let moved = workplace.read("config.toml");
    let moved = moved.replace("[train]\n", "[train]\nreport_to = \"wandb\"\n");
    workplace.write("moved.toml", moved);
    let said = [
        "this key belongs to [log]",
        "\"wandb\" is none of them",
        "2 mistakes in",
    ];
    assert_refused(&workplace, &["plan", "moved.toml"], CONFIG, &said);
}
