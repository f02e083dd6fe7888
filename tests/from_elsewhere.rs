//! Configs of other trainers: `init --from` translates them to a config that `plan` accepts.

use serde_json::{Value, json};

use crate::bad_input::{CONFIG, assert_refused};
use crate::support::fixture;
use crate::workplace::{CommandOutput, Workplace, assert_contains, tooltune};

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
    // Equal rows are held out together.
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
fn configs_of_four_trainers_are_translated_and_planned() {
    let workplace = workplace();
    let model = fixture("tiny_chat_model").display().to_string();
    let cases = [
        (
            "axolotl.yaml",
            AXOLOTL,
            "config of Axolotl",
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
                "made_up = 7: unknown key of Axolotl",
                "flash_attention",
                "wandb_project",
            ][..],
        ),
        (
            "llama_factory.yaml",
            LLAMA_FACTORY,
            "config of LLaMA-Factory",
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
            "config of ms-swift",
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
            "config of TRL",
            &[
                "r = 32",
                "gradient_checkpointing = \"full\"",
                "train_on = \"assistant\"",
            ],
            &[
                "use_peft",
                "fp16",
                "train.max_steps = -1 (from max_steps): the number of epochs",
            ],
        ),
    ];
    for (name, text, origin, carried, not_carried) in cases {
        workplace.write(name, text.replace("MODEL", &model));
        for output in ["toml", "yaml"] {
            let output = format!("{}.{output}", name.replace('.', "-"));
            let init = format!("init --from {name} --output {output}");
            let answer = workplace.run(init.split(' '));
            assert_contains(&answer.stderr, not_carried.iter().copied().chain([origin]));
            assert_valid_config(answer);
            let config = workplace.read(&output);
            if output.ends_with("toml") {
                for expected in carried {
                    assert!(
                        config.contains(expected),
                        "{name}: {expected} is not in\n{config}"
                    );
                }
            }
            let plan = workplace.run(["plan", &output]);
            assert_eq!(plan.status, Some(0), "{name}: {}\n{config}", plan.stderr);
        }
    }
}

/// Asserts that the command succeeded and wrote a config that loads without changes.
fn assert_valid_config(output: CommandOutput) {
    let warning = "not a valid config yet";
    assert!(!output.stderr.contains(warning), "{}", output.stderr);
    output.success();
}

#[test]
fn a_config_of_another_trainer_gives_a_one_line_error() {
    let workplace = workplace();
    workplace.write("axolotl.yaml", AXOLOTL);
    let expected = [
        "this is a config of Axolotl",
        "tooltune init --from FILE",
        "1 mistake in",
    ];
    assert_refused(&workplace, &["train", "axolotl.yaml"], CONFIG, &expected);
    for (file, text, origin) in [
        ("swift.sh", MS_SWIFT, "this is a config of ms-swift"),
        ("trl.json", TRL, "this is a config of TRL"),
    ] {
        workplace.write(file, text);
        let expected = [origin, "tooltune init --from FILE", "1 mistake in"];
        assert_refused(&workplace, &["plan", file], CONFIG, &expected);
    }
    for (file, text, expected) in [
        ("other.json", "{\"a\": 1}", "this is JSON; a config"),
        (
            "rows.jsonl",
            &workplace.read("rows.jsonl"),
            "these are rows in JSON Lines, not a config",
        ),
    ] {
        workplace.write(file, text);
        assert_refused(
            &workplace,
            &["plan", file],
            CONFIG,
            &[expected, "1 mistake in"],
        );
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
    let expected = ["dpo.sh: trl dpo: ", "supervised fine-tuning with LoRA"];
    assert_refused(&workplace, &["init", "--from", "dpo.sh"], CONFIG, &expected);
    let beside = &["init", "--output", "nowhere/x.toml"];
    assert_refused(
        &workplace,
        beside,
        1,
        &["its folder does not exist: create it"],
    );
    let dpo = LLAMA_FACTORY.replace("stage: sft", "stage: dpo");
    workplace.write("dpo.yaml", dpo);
    let expected = [
        "dpo.yaml: stage = \"dpo\"",
        "supervised fine-tuning with LoRA",
    ];
    assert_refused(
        &workplace,
        &["init", "--from", "dpo.yaml"],
        CONFIG,
        &expected,
    );
    workplace.write("notes.yaml", "a: 1\nb: 2\n");
    let expected = ["too few keys match", "init --preset sft"];
    assert_refused(
        &workplace,
        &["init", "--from", "notes.yaml"],
        CONFIG,
        &expected,
    );
}

/// If a model does not exist as a path and its name looks like a Hub name, the error shows the
/// command that fetches it.
#[test]
fn hub_names_in_place_of_paths_give_the_fetch_command() {
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
    for (command, expected) in [
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
        // Remove the line breaks and the frame of the message box.
        let stderr: String = refused
            .stderr
            .chars()
            .filter(|letter| !letter.is_whitespace() && *letter != '│')
            .collect();
        assert!(
            stderr.contains(&expected.replace(' ', "")),
            "{command:?}: {}",
            refused.stderr
        );
    }
    let retriever = "[retriever]\nmodel_name_or_path = \"acme/tiny\"\ntrain = [\"acme/tides\"]\n\
                     [train]\noutput_dir = \"found\"\nmax_steps = 1\n";
    workplace.write("retriever.toml", retriever);
    // Names in settings are downloaded, which fails in this test.
    for (command, expected) in [
        (set("model.model_name_or_path=acme/tiny"), model),
        (set("eval.encoder=acme/tiny"), model),
        (words("plan retriever.toml"), model),
    ] {
        let mut offline = tooltune();
        offline.current_dir(workplace.folder()).args(&command);
        offline
            .env("HF_HUB_OFFLINE", "1")
            .env("HF_HOME", workplace.path("hf"));
        let refused = CommandOutput::from_command(&mut offline);
        assert_eq!(refused.status, Some(CONFIG), "{}", refused.stderr);
        let words: Vec<&str> = refused.stderr.split_whitespace().collect();
        let stderr = words.join(" ").replace("│ ", "");
        assert!(stderr.contains(expected), "{command:?}: {}", refused.stderr);
    }
    let axolotl = AXOLOTL
        .replace("MODEL", "acme/tiny")
        .replace("rows.jsonl", "acme/tides");
    workplace.write("hub.yaml", axolotl);
    let answer = workplace.run("init --from hub.yaml --output hub.toml".split(' '));
    assert!(answer.stderr.contains(rows), "{}", answer.stderr);
    // Commands with a config download its model by name, so no `to do` line is printed.
    let to_do = "model.model_name_or_path:";
    assert!(!answer.stderr.contains(to_do), "{}", answer.stderr);
    answer.success();
}

/// A multi-line string has the same value in YAML and TOML, although they escape it differently.
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
        let inspected = workplace.run(words).success();
        let row: Value = serde_json::from_str(inspected.trim()).unwrap();
        assert_eq!(row["system"]["text"], system, "{}", workplace.read(output));
    }
    workplace.write("open.sh", "swift sft --model 'a --train_type lora\n");
    let expected = ["a quote is not closed, or the text ends with a backslash"];
    assert_refused(
        &workplace,
        &["init", "--from", "open.sh"],
        CONFIG,
        &expected,
    );
}

/// A preset in YAML names its own file, and is a valid preset.
#[test]
fn a_preset_is_written_in_yaml_and_names_its_file() {
    let workplace = workplace();
    workplace
        .run("init --preset sft --output mine.yaml".split(' '))
        .success();
    let text = workplace.read("mine.yaml");
    assert!(text.contains("#   tooltune train mine.yaml"), "{text}");
    let expected = "models/smollm2-135m-instruct.gguf";
    let refused = workplace.run(["plan", "mine.yaml"]);
    assert!(refused.stderr.contains(expected), "{}", refused.stderr);
}

/// Which tokens TRL supervises by default depends on the row format, so `init` reads the rows.
#[test]
fn the_default_supervised_part_of_trl_follows_from_the_rows() {
    let workplace = workplace();
    let pair = json!({"prompt": "Hi", "completion": "Hello."});
    workplace.write("pairs.jsonl", format!("{pair}\n"));
    for (rows, train_on) in [("rows.jsonl", "all"), ("pairs.jsonl", "completion")] {
        let model = fixture("tiny_chat_model");
        let trl = format!(
            "trl sft --model_name_or_path '{}' --dataset_name {rows} --lora_r 8 --use_peft",
            model.display()
        );
        workplace.write("sft.sh", trl);
        let answer = workplace.run(["init", "--from", "sft.sh"]);
        let line = format!("(default of TRL) -> mask.train_on = \"{train_on}\"");
        assert!(answer.stderr.contains(&line), "{rows}: {}", answer.stderr);
        let config = answer.success();
        let setting = format!("train_on = \"{train_on}\"");
        assert!(config.contains(&setting), "{rows}: {config}");
    }
}

#[test]
fn unsupported_words_give_the_remedy_to_remove_them() {
    let workplace = workplace();
    let config = workplace.read("config.toml");
    let config = config.replace("[train]\n", "[train]\nfp16 = true\nuse_peft = true\n");
    workplace.write("mine.toml", config + "[log]\nreport_to = \"wandb\"\n");
    let expected = ["remove it", "fp16", "use_peft", "wandb", "3 mistakes in"];
    assert_refused(&workplace, &["plan", "mine.toml"], CONFIG, &expected);
    // An invalid value is also reported if its key is in the wrong table.
    let moved = workplace.read("config.toml");
    let moved = moved.replace("[train]\n", "[train]\nreport_to = \"wandb\"\n");
    workplace.write("moved.toml", moved);
    let expected = [
        "this key belongs to [log]",
        "\"wandb\" is not one of them",
        "2 mistakes in",
    ];
    assert_refused(&workplace, &["plan", "moved.toml"], CONFIG, &expected);
}

/// Keys and values with line breaks stay strings: they add no line to the config or to the output.
#[test]
fn strings_in_a_file_never_become_settings() {
    let workplace = workplace();
    let model = fixture("tiny_chat_model").display().to_string();
    let hostile =
        "wandb\n[goat]\ndocuments = \"d\"\n[goat.executor]\nkind = \"mcp\"\ncommand = [\"sh\"]\n#";
    let carriage = "x\r[goat.executor]\rkind = \"mcp\"\r\u{85}\u{2028}y";
    let theirs = json!({"model_name_or_path": model, "use_peft": true, "lora_r": 8, "dataset_name": "rows.jsonl",
        "max_steps": 1, hostile: 1, carriage: {"a": hostile}, "run_name": carriage, "output_dir": "out"});
    workplace.write("evil.json", theirs.to_string());
    let flags = format!(
        "trl sft --model_name_or_path '{model}' --dataset_name rows.jsonl --use_peft --lora_r 8 --max_steps 1 \
         --output_dir out '--{hostile}' 1 --run_name '{hostile}' > '{hostile}'"
    );
    workplace.write("evil.sh", flags);
    for (from, output) in [
        ("evil.json", "a.toml"),
        ("evil.json", "a.yaml"),
        ("evil.sh", "b.toml"),
        ("evil.sh", "b.yaml"),
    ] {
        let answer = workplace.run(["init", "--from", from, "--output", output]);
        assert!(
            !answer.stderr.contains("not a valid config yet"),
            "{}",
            answer.stderr
        );
        for line in answer.stderr.lines() {
            assert!(!line.trim_start().starts_with("[goat"), "{line}");
        }
        assert!(!answer.stderr.contains(['\r', '\u{85}', '\u{2028}']));
        answer.success();
        let text = workplace.read(output);
        let is_structure = |line: &&str| line.starts_with("[goat") || line.starts_with("goat");
        assert_eq!(text.lines().find(is_structure), None, "{text}");
        assert!(!text.contains(['\r', '\u{85}', '\u{2028}']), "{text}");
        workplace.run(["plan", output]).success();
    }
    // The file name is in the comments of presets.
    let output = "x\n[goat.executor]\nkind = \"mcp\"\n#.toml";
    workplace
        .run(["init", "--preset", "sft", "--output", output])
        .success();
    let text = workplace.read(output);
    assert!(
        !text.lines().any(|line| line.starts_with("[goat")),
        "{text}"
    );
}

/// Scripts are parsed like a shell, and `--command` selects one of several runs.
#[test]
fn a_script_of_two_runs_is_translated_by_number() {
    let workplace = workplace();
    let model = fixture("tiny_chat_model").display().to_string();
    let run = |rank: usize, more: &str| {
        format!(
            "accelerate launch --num_processes 8 -m trl.scripts.sft --model_name_or_path '{model}' \
             --dataset_name rows.jsonl --use_peft --lora_r {rank} --max_steps 1 --output_dir out {more}\n"
        )
    };
    let one = run(8, "--assistant_only_loss 2>&1 | tee log");
    workplace.write("one.sh", &one);
    let answer = workplace.run("init --from one.sh --output one.toml".split(' '));
    let expected = "2>&1 | tee log: a redirection of the shell";
    assert!(answer.stderr.contains(expected), "{}", answer.stderr);
    answer.success();
    let text = workplace.read("one.toml");
    assert!(text.contains("train_on = \"assistant\""), "{text}");
    workplace.write("two.sh", one + &run(4, "--learning_rate $RATE"));
    let expected = [
        "starts 2 runs",
        "--command 1  line 1:",
        "--command 2  line 2:",
    ];
    assert_refused(&workplace, &["init", "--from", "two.sh"], CONFIG, &expected);
    let expected = ["line 2: the value of $RATE is not in the script"];
    let second = ["init", "--from", "two.sh", "--command", "2"];
    assert_refused(&workplace, &second, CONFIG, &expected);
    let first = workplace.run("init --from two.sh --command 1 --output two.toml".split(' '));
    let expected = "the other 1 of the script's 2 runs";
    assert!(first.stderr.contains(expected), "{}", first.stderr);
    first.success();
    assert!(workplace.read("two.toml").contains("r = 8"));
}

/// Data set entries with files in several formats are translated, and the run has as many
/// evaluations as with the other trainer.
#[test]
fn files_in_several_formats_are_translated_into_one_run() {
    let workplace = workplace();
    let alpaca = (0..40).map(|i| {
        let row = json!({"instruction": format!("Name {i}"), "input": "", "output": "Ida"});
        format!("{row}\n")
    });
    workplace.write("alpaca.jsonl", alpaca.collect::<String>());
    let model = fixture("tiny_chat_model").display().to_string();
    let config = format!(
        "base_model: {model}\nadapter: lora\nlora_r: 8\nmicro_batch_size: 2\ngradient_accumulation_steps: 4\n\
         num_epochs: 1\noutput_dir: out\nval_set_size: 0.2\nevals_per_epoch: 2\ndatasets:\n  - path: json\n    \
         data_files: rows.jsonl\n    ds_type: json\n    type: chat_template\n    weight: 0.5\n  - path: \
         alpaca.jsonl\n    type: alpaca\n"
    );
    workplace.write("mixed.yaml", config);
    let answer = workplace.run("init --from mixed.yaml --output mixed.toml".split(' '));
    let expected = [
        "datasets[0].data_files -> data.train",
        "datasets[1].path -> data.train = \"alpaca.jsonl\"",
        "datasets[0].ds_type = \"json\"",
        "evals_per_epoch = 2 -> eval.eval_steps = 4",
        "device = \"cpu\"",
    ];
    assert_contains(&answer.stderr, expected);
    assert_valid_config(answer);
    let text = workplace.read("mixed.toml");
    assert!(
        text.contains("device = \"cpu\"\n") && text.contains("eval_steps = 4"),
        "{text}"
    );
    let plan = workplace.run(["plan", "mixed.toml"]);
    assert!(plan.stderr.contains("detected \"chat\""), "{}", plan.stderr);
    let output = plan.success();
    assert!(
        output.contains("of rows.jsonl (weight 0.5) are used"),
        "{output}"
    );
    workplace
        .run("train mixed.toml --set train.max_steps=1".split(' '))
        .success();
}
