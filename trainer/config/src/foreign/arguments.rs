//! Finds the training command in a shell script and reads its arguments as settings.

use serde_json::{Map, Value};

use super::Origin;
use super::shell::{Command, ShellError, commands};
use super::written::one_line;

/// Programs whose arguments are settings.
const PROGRAMS: [&str; 6] = [
    "trl",
    "swift",
    "llamafactory-cli",
    "llamafactory",
    "lmf",
    "axolotl",
];

/// Modules that start another module or file.
const LAUNCHERS: [&str; 4] = [
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
    "deepspeed.launcher.runner",
];

/// A training command with the argument names of its trainer.
#[derive(Debug, Default)]
pub struct TrainingCommand {
    /// Arguments as settings.
    pub settings: Map<String, Value>,
    /// Words as passed by the shell.
    pub words: Vec<String>,
    /// One line per part of the script that is not a setting.
    pub left_out: Vec<String>,
    /// Advice on the rest of the script.
    pub to_do: Vec<String>,
    /// File with its settings, if the command names one.
    pub settings_file: Option<String>,
}

/// Reason why a script cannot be translated.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// The text is not a script.
    #[error(transparent)]
    Shell(#[from] ShellError),
    /// Several commands train.
    #[error("the script starts {n} runs, and a config describes one run; choose one with --command:{listed}", n = listed.matches('\n').count())]
    Several {
        /// Commands with number and line.
        listed: String,
    },
    /// `--command` is out of range.
    #[error("--command {number}: the script starts {n} runs; give a number from 1 to {n}")]
    NoSuchCommand {
        /// The given number.
        number: usize,
        /// Number of commands.
        n: usize,
    },
    /// A word whose value depends on the running shell.
    #[error(
        "line {line}: the value of {what} is not in the script; write the value into the command, or set \
         the variable in a line `NAME=value` before the command"
    )]
    Unknown {
        /// Line of the command.
        line: usize,
        /// The part of the word.
        what: String,
    },
    /// The command is in a loop or a condition.
    #[error(
        "line {line}: the command is inside `{inside}`; copy it into a script as a plain command"
    )]
    Inside {
        /// Line of the command.
        line: usize,
        /// Enclosing statement.
        inside: String,
    },
    /// The settings are in another file.
    #[error(
        "line {line}: the command reads its settings from {file}; translate that file with `tooltune init \
         --from {quoted}`{more}"
    )]
    File {
        /// Line of the command.
        line: usize,
        /// File with the settings.
        file: String,
        /// The file name, quoted for a shell.
        quoted: String,
        /// Further settings of the command.
        more: String,
    },
}

/// A training command, and the reason why it cannot be translated, if any.
#[derive(Debug)]
struct Candidate {
    line: usize,
    inside: Option<String>,
    unknown: Option<String>,
    started: TrainingCommand,
}

/// Finds the training command of a script; `number`, from 1, selects one of several. Returns `None`
/// if no command has arguments of a known trainer.
///
/// # Errors
///
/// The text is not a script, there are several commands and no `number`, or words depend on the
/// running shell.
pub fn find_training_command(
    text: &str,
    number: Option<usize>,
) -> Result<Option<TrainingCommand>, ScriptError> {
    let all = commands(text)?;
    let mut candidates = Vec::new();
    let mut others = Vec::new();
    for command in &all {
        match candidate(command) {
            Some(candidate) => candidates.push(candidate),
            None => others.push(command),
        }
    }
    if let Some(number) = number
        && !(1..=candidates.len()).contains(&number)
    {
        let n = candidates.len();
        return Err(ScriptError::NoSuchCommand { number, n });
    }
    if candidates.len() > 1 && number.is_none() {
        let lines = candidates.iter().enumerate().map(|(idx, one)| {
            let begin: Vec<&str> = one
                .started
                .words
                .iter()
                .map(String::as_str)
                .take(6)
                .collect();
            let begin = shorten_line(&begin.join(" "));
            format!("\n  --command {}  line {}: {begin} ...", idx + 1, one.line)
        });
        let listed = lines.collect();
        return Err(ScriptError::Several { listed });
    }
    let chosen = number.map_or(0, |number| number - 1);
    if chosen >= candidates.len() {
        return Ok(None);
    }
    let n_runs = candidates.len();
    let Candidate {
        line,
        inside,
        unknown,
        mut started,
    } = candidates.swap_remove(chosen);
    if let Some(inside) = inside {
        return Err(ScriptError::Inside { line, inside });
    }
    if let Some(what) = unknown.map(|what| shorten_line(&what)) {
        return Err(ScriptError::Unknown { line, what });
    }
    if let Some(file) = started.settings_file.take() {
        let rest = started.settings.keys().map(|key| format!("--{key}"));
        let rest: Vec<String> = rest.collect();
        let more = match rest.as_slice() {
            [] => String::new(),
            rest => format!(", and add the settings of the command: {}", rest.join(", ")),
        };
        let quoted = shlex::try_quote(&file).map_or_else(|_| file.clone(), Into::into);
        let (file, quoted, more) = (one_line(&file), one_line(&quoted), one_line(&more));
        return Err(ScriptError::File {
            line,
            file,
            quoted,
            more,
        });
    }
    if n_runs > 1 {
        let line = format!(
            "the other {} of the script's {n_runs} runs: select one with --command",
            n_runs - 1
        );
        started.left_out.push(line);
    }
    others
        .iter()
        .for_each(|command| started.report_other_command(command));
    Ok(Some(started))
}

/// The first training command of a script.
pub(super) fn first_run(text: &str) -> Option<TrainingCommand> {
    let all = commands(text).ok()?;
    all.iter()
        .find_map(candidate)
        .map(|candidate| candidate.started)
}

/// Accepts a command if it has enough arguments of a trainer or starts one.
fn candidate(command: &Command) -> Option<Candidate> {
    let words: Vec<String> = command.words.iter().map(|word| word.text.clone()).collect();
    let program = program(&words);
    let begin = program.unwrap_or(0);
    let mut started = TrainingCommand {
        words: words.clone(),
        ..TrainingCommand::default()
    };
    started.arguments(&words[begin..]);
    let keys = started.settings.keys().map(String::as_str);
    let is_known = Origin::detect(keys).is_some();
    let is_trainer = program.is_some_and(|idx| PROGRAMS.contains(&base_name(&words[idx])));
    let trains = is_trainer && (started.settings_file.is_some() || started.settings.len() > 2);
    if !is_known && !trains {
        return None;
    }
    if begin > 0 {
        let launcher = shorten_line(&words[..begin].join(" "));
        let line = format!(
            "{launcher}: `tooltune train --ranks N` or a launcher starts N processes; multiply \
             train.gradient_accumulation_steps by N, because it counts the micro-batches of all"
        );
        started.left_out.push(line);
    }
    for variable in &command.environment {
        let hint = if variable.starts_with("CUDA_VISIBLE_DEVICES=") {
            "; set device = \"cuda:1\" to use the second GPU"
        } else {
            ""
        };
        let line = format!("{}: an environment variable{hint}", shorten_line(variable));
        started.left_out.push(line);
    }
    if !command.redirections.is_empty() {
        let redirections = shorten_line(&command.redirections.join(" "));
        started
            .left_out
            .push(format!("{redirections}: a redirection of the shell"));
    }
    let own = &command.words[begin..];
    Some(Candidate {
        line: command.line,
        inside: command.inside.clone(),
        unknown: own.iter().find_map(|word| word.unknown.clone()),
        started,
    })
}

/// Index of the word that starts the trainer, after any launcher.
fn program(words: &[String]) -> Option<usize> {
    let mut is_module = false;
    for (idx, word) in words.iter().enumerate() {
        if word.starts_with("--") && !is_module {
            // Options before the program belong to the launcher.
            continue;
        }
        let is_launcher = LAUNCHERS.contains(&word.as_str());
        let is_file = word.ends_with(".py") && !is_launcher;
        if (is_module && !is_launcher) || is_file || PROGRAMS.contains(&base_name(word)) {
            return Some(idx);
        }
        is_module = word == "-m";
    }
    None
}

fn base_name(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

impl TrainingCommand {
    /// Parses the words after the program: `--key value`, `--key=value`, `--flag`, `--list a b`,
    /// and LLaMA-Factory's `key=value`.
    fn arguments(&mut self, words: &[String]) {
        let mut key: Option<String> = None;
        let mut values: Vec<&str> = Vec::new();
        let is_trainer = words
            .first()
            .is_some_and(|word| PROGRAMS.contains(&base_name(word)));
        for (idx, word) in words.iter().enumerate() {
            let is_option = word.strip_prefix("--").filter(|name| !name.is_empty());
            let is_short = is_option.is_none()
                && word.starts_with('-')
                && word.chars().nth(1).is_some_and(char::is_alphabetic);
            if let Some(option) = is_option {
                self.finish_argument(&mut key, &mut values);
                match option.split_once('=') {
                    Some((name, value)) => self.insert(name, scalar(value)),
                    None => key = Some(option.to_owned()),
                }
            } else if is_short {
                self.finish_argument(&mut key, &mut values);
                key = Some(word.clone());
            } else if key.is_some() {
                values.push(word);
            } else if let Some((name, value)) = word.split_once('=')
                && is_name(name)
            {
                self.insert(name, scalar(value));
            } else if is_settings_file(word) {
                self.settings_file.get_or_insert_with(|| word.clone());
            } else if idx > usize::from(is_trainer) {
                // The program and its command are not settings.
                let line = format!(
                    "{}: a value without an option before it",
                    shorten_line(word)
                );
                self.left_out.push(line);
            }
        }
        self.finish_argument(&mut key, &mut values);
        if let Some(Value::String(file)) = self.settings.get("config").cloned()
            && is_settings_file(&file)
        {
            self.settings.remove("config");
            self.settings_file.get_or_insert(file);
        }
    }

    fn finish_argument(&mut self, key: &mut Option<String>, values: &mut Vec<&str>) {
        let values: Vec<Value> = values.drain(..).map(scalar).collect();
        if let Some(key) = key.take() {
            let value = match values.len() {
                0 => Value::Bool(true),
                1 => values.into_iter().next().unwrap_or_default(),
                _ => Value::Array(values),
            };
            self.insert(&key, value);
        }
    }

    fn insert(&mut self, key: &str, value: Value) {
        // A leading hyphen belongs to a short option.
        let key = match key.strip_prefix('-') {
            Some(short) => format!("-{short}"),
            None => key.replace('-', "_"),
        };
        let before = self.settings.insert(key.clone(), value);
        if let Some(before) = before.filter(|before| *before != self.settings[&key]) {
            let before = super::results::truncated_json(&before);
            self.left_out.push(format!(
                "{key} = {before}: set again later; the last value is used"
            ));
        }
    }

    /// Reports a command that does not train.
    fn report_other_command(&mut self, command: &Command) {
        let words: Vec<&str> = command
            .words
            .iter()
            .map(|word| word.text.as_str())
            .collect();
        let line = command.line;
        let text = shorten_line(&words.join(" "));
        match words.first() {
            Some(&("cd" | "pushd")) => self.to_do.push(format!(
                "line {line} of the script, {text}: paths are relative to that folder; run tooltune there"
            )),
            _ => self
                .left_out
                .push(format!("line {line} of the script, {text}: only the training command is translated")),
        }
    }
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.')
}

fn is_settings_file(word: &str) -> bool {
    [".yaml", ".yml", ".json"]
        .iter()
        .any(|end| word.ends_with(end))
}

/// The start of a text, on one line.
fn shorten_line(text: &str) -> String {
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}...", one_line(&text[..end])),
        None => one_line(text),
    }
}

/// Parses a word as a value.
fn scalar(text: &str) -> Value {
    match text {
        "true" | "True" => return Value::Bool(true),
        "false" | "False" => return Value::Bool(false),
        _ => {}
    }
    let number = text.parse::<i64>().ok().map(Value::from);
    let number = number.or_else(|| {
        let looks_numeric =
            text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '.'));
        let value = text.parse::<f64>().ok().filter(|_| looks_numeric)?;
        serde_json::Number::from_f64(value).map(Value::Number)
    });
    number.unwrap_or_else(|| Value::from(text))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn settings(text: &str) -> Value {
        let started =
            find_training_command(text, None).unwrap_or_else(|error| panic!("{text}: {error}"));
        Value::Object(started.unwrap_or_else(|| panic!("{text}")).settings)
    }

    #[test]
    fn arguments_of_a_shell_script_are_read_as_the_shell_reads_them() {
        let text = "CUDA_VISIBLE_DEVICES=0 \\\nswift sft \\\n  --model 'a b' \\\n  --dataset x.jsonl#500 \
                    y.jsonl \\\n  --learning_rate 1e-4 \\\n  --packing --lora-rank=8 --system \"\" # end\n";
        let expected = json!({"model": "a b", "dataset": ["x.jsonl#500", "y.jsonl"],
            "learning_rate": 1e-4, "packing": true, "lora_rank": 8, "system": ""});
        for text in [text.to_owned(), text.replace('\n', "\r\n")] {
            assert_eq!(settings(&text), expected);
        }
        let bare =
            "--model_name_or_path m --lora_r 8\\\n8 --use_peft --seed -1 --max_length=512 -v";
        let expected = json!({"model_name_or_path": "m", "lora_r": 88, "use_peft": true, "seed": -1,
            "max_length": 512, "-v": true});
        assert_eq!(settings(bare), expected);
    }

    /// Words that the shell uses itself are not settings, and are listed.
    #[test]
    fn the_rest_of_the_script_is_listed() {
        let text = "set -e\ncd /data\npip install trl\nR=8\nWANDB_MODE=off accelerate launch --num_processes \
                    $N -m trl.scripts.sft --model_name_or_path m --dataset_name a.jsonl --use_peft --lora_r \
                    $R --assistant_only_loss 2>&1 | tee log";
        let command = find_training_command(text, None).unwrap().unwrap();
        let expected = json!({"model_name_or_path": "m", "dataset_name": "a.jsonl", "use_peft": true,
            "lora_r": 8, "assistant_only_loss": true});
        assert_eq!(Value::Object(command.settings), expected);
        for expected in [
            "accelerate launch --num_processes",
            "WANDB_MODE=off: an environment variable",
            "2>&1 | tee log: a redirection",
            "line 1 of the script, set -e",
            "line 3 of the script, pip install trl",
        ] {
            assert!(
                command.left_out.iter().any(|line| line.contains(expected)),
                "{expected}: {:?}",
                command.left_out
            );
        }
        assert!(command.to_do[0].contains("line 2 of the script, cd /data"));
        let stray = "trl sft x --model_name_or_path=m y --dataset_name d --use_peft --lora_r 8";
        let command = find_training_command(stray, None).unwrap().unwrap();
        let expected =
            ["x", "y"].map(|word| format!("{word}: a value without an option before it"));
        assert_eq!(command.left_out, expected);
        let twice =
            "trl sft --model_name_or_path m --dataset_name d --lora_r 8 --use_peft --lora_r 16";
        let command = find_training_command(twice, None).unwrap().unwrap();
        assert_eq!(command.settings["lora_r"], 16);
        assert!(command.left_out[0].starts_with("lora_r = 8: set again"));
    }

    #[test]
    fn one_run_of_several_is_chosen_by_its_number() {
        let run = |model: &str| {
            format!("trl sft --model_name_or_path {model} --dataset_name d --use_peft --lora_r 8")
        };
        let two = format!("# two\n{}\n{} --assistant_only_loss\n", run("a"), run("b"));
        let error = find_training_command(&two, None).unwrap_err().to_string();
        for expected in [
            "starts 2 runs",
            "--command 1  line 2: trl sft",
            "--command 2  line 3: trl sft",
        ] {
            assert!(error.contains(expected), "{error}");
        }
        let command = find_training_command(&two, Some(2)).unwrap().unwrap();
        assert_eq!(command.settings["model_name_or_path"], "b");
        assert_eq!(command.settings["assistant_only_loss"], true);
        let first = find_training_command(&two, Some(1)).unwrap().unwrap();
        assert_eq!(first.settings.get("assistant_only_loss"), None);
        for (number, n) in [(0, 2), (3, 2)] {
            let error = find_training_command(&two, Some(number)).unwrap_err();
            assert!(matches!(error, ScriptError::NoSuchCommand { n: command, .. } if command == n));
        }
    }

    #[test]
    fn missing_script_values_are_refused_by_name() {
        let error_of = |more: &str| {
            format!("trl sft --model_name_or_path m --dataset_name d --use_peft --lora_r {more}")
        };
        for (text, expected) in [
            (error_of("$RANK"), "the value of $RANK is not in the script"),
            (
                error_of("8 --output_dir out-$(date +%F)"),
                "the value of $(date +%F) is not in the script",
            ),
            (
                error_of("8 --train_files *.jsonl"),
                "the value of *.jsonl is not in the script",
            ),
            (
                format!("for R in 8 16; do {}; done", error_of("$R")),
                "is inside `for`",
            ),
            (
                "axolotl train c.yaml".to_owned(),
                "`tooltune init --from c.yaml`",
            ),
            (
                "trl sft --config 'my c.yaml' --lora_r 8".to_owned(),
                "--from 'my c.yaml'`, and add the settings of the command: --lora_r",
            ),
            (
                "llamafactory-cli train x.yaml lora_rank=8".to_owned(),
                "settings of the command: --lora_rank",
            ),
        ] {
            let error = find_training_command(&text, None).map(|command| command.is_some());
            let error = error.unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        assert!(find_training_command("echo hello", None).unwrap().is_none());
    }
}
