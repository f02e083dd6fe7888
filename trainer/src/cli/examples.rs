//! The examples at the end of `--help`: working commands with the file names of the guide.

pub(super) const TOOLTUNE: &str = "\
From rows to an adapter:
  tooltune init --preset slot --output my.toml    a commented config
  tooltune inspect my.toml                        supervised tokens
  tooltune plan my.toml                           checks; memory, steps, time
  tooltune train my.toml                          trains or resumes
  tooltune generate runs/slot --max-samples 3     prints completions
  tooltune eval runs/slot --output after          metrics and predictions
  tooltune report runs/slot                       one HTML page
  tooltune export runs/slot --output my-adapter   for PEFT and vLLM";

pub(super) const INIT: &str = "\
Examples:
  tooltune init > my.toml
  tooltune init --preset sft --output my.toml";

pub(super) const INSPECT: &str = "\
Examples:
  tooltune inspect my.toml -n 2
  tooltune inspect my.toml --row 17
  tooltune inspect my.toml --set data.max_length=512 --format json";

pub(super) const PLAN: &str = "\
Examples:
  tooltune plan my.toml
  tooltune plan my.toml --probe                   also measure one step
  tooltune plan my.toml --offline                 before anything is fetched
  tooltune plan my.toml --set lora.r=64 --format json";

pub(super) const TRAIN: &str = "\
Examples:
  tooltune train my.toml                          the same command resumes
  tooltune train my.toml --set train.max_steps=9 --set train.output_dir=runs/try
  tooltune train my.toml --resume never           start again
  tooltune train my.toml --device cuda:1";

pub(super) const EVAL: &str = "\
Examples:
  tooltune eval runs/slot --output after
  tooltune eval runs/slot --checkpoint base --output before
  tooltune eval runs/slot --data data/test.jsonl --max-samples 50
  tooltune eval runs/slot --endpoint http://localhost:8000/v1 --output served";

pub(super) const GENERATE: &str = "\
Examples:
  tooltune generate runs/slot --max-samples 3
  tooltune generate runs/slot --text \"A table for two\" --schema schema.json
  tooltune generate runs/sft --message \"Weather in Oslo?\" --tools tools.json
  tooltune generate runs/sft --checkpoint base --prompt \"Once upon\"";

pub(super) const STRUCTURE: &str = "\
Examples:
  tooltune structure runs/slot --data texts.jsonl --output answers.jsonl
  tooltune structure runs/slot --text \"A table for two\" --schema schema.json
  tooltune structure runs/slot --data - --schema schema.json > answers.jsonl
  tooltune structure my.toml --checkpoint base --data texts.jsonl --skip-broken";

pub(super) const CHAT: &str = "\
Examples:
  tooltune chat runs/sft --tools tools.json
  tooltune chat runs/sft --checkpoint base";

pub(super) const SCORE: &str = "\
Examples:
  tooltune score predictions.jsonl > scores.jsonl
  tooltune score --ops                            lists the operations";

pub(super) const SELECT: &str = "\
Examples:
  tooltune select runs/slot --metric loss
  tooltune select runs/slot --metric loss --evaluate --lower-is-better";

pub(super) const COMPARE: &str = "\
Examples:
  tooltune compare before after
  tooltune compare base rank-8 rank-32
  tooltune compare runs/slow runs/fast configs/slot.toml
  tooltune compare runs/slot/checkpoint-000100 runs/slot/checkpoint-000200";

pub(super) const REPORT: &str = "\
Examples:
  tooltune report runs/slot
  tooltune report runs/slow runs/fast runs/faster --output three.html
  tooltune report runs/slot --eval before after";

pub(super) const EXPORT: &str = "\
Examples:
  tooltune export runs/slot --output my-adapter
  tooltune export runs/slot --to gguf --output my-adapter.gguf
  tooltune export runs/slot --to merged --output my-model
  tooltune export runs/slot --check               how each server loads it
  tooltune export runs/slot --output my-adapter --push-to-hub org/my-adapter";

pub(super) const FETCH: &str = "\
Examples:
  tooltune fetch Qwen/Qwen2.5-0.5B-Instruct
  tooltune fetch HuggingFaceTB/SmolLM2-135M-Instruct@main
  tooltune fetch hf://datasets/org/name/train.jsonl";

pub(super) const VERIFY: &str = "\
Examples:
  tooltune verify runs/slot --against gguf --export my-adapter.gguf
  tooltune verify runs/slot --logits logits.safetensors";

pub(super) const DOCTOR: &str = "\
Examples:
  tooltune doctor
  tooltune doctor my.toml --device cuda
  tooltune doctor my.toml --ranks 2               also time their connections";

pub(super) const SCHEMA: &str = "\
Examples:
  tooltune schema > tooltune.schema.json";

pub(super) const COMPLETIONS: &str = "\
Examples:
  tooltune completions bash > /usr/share/bash-completion/completions/tooltune
  tooltune completions fish > ~/.config/fish/completions/tooltune.fish
  tooltune completions zsh > ~/.zfunc/_tooltune";

pub(super) const MAN: &str = "\
Examples:
  tooltune man ~/.local/share/man/man1";

pub(super) const FLATTEN: &str = "\
Examples:
  tooltune data flatten nested.jsonl --output flat.jsonl";

pub(super) const CONVERT: &str = "\
Examples:
  tooltune data convert rows.json --output rows.jsonl.zst
  tooltune data convert part-1.jsonl part-2.jsonl --output rows.parquet";

pub(super) const CACHE: &str = "\
Examples:
  tooltune data cache
  tooltune data cache --purge";

pub(super) const UNFLATTEN: &str = "\
Examples:
  tooltune data unflatten predictions.jsonl --rows nested.jsonl";

pub(super) const REDUCE: &str = "\
Examples:
  tooltune data reduce outputs.jsonl --output short.jsonl
  tooltune data reduce outputs.jsonl --jmespath 'items[].name'";

pub(super) const SYNTH_SLOT: &str = "\
Examples:
  tooltune data synth slot --rows 1000 --split train --output train.jsonl";

pub(super) const SYNTH_GOAT: &str = "\
Examples:
  tooltune data synth goat --output train.jsonl --documents documents.jsonl";

pub(super) const SYNTH_TOOLQA: &str = "\
Examples:
  tooltune data synth toolqa --responses recorded.jsonl \\
    --output qa.jsonl --output-responses responses.jsonl
  tooltune data synth toolqa --responses recorded.jsonl --model models/qwen \\
    --target-tokens 10000,80000 --answer-position 1,4,8 \\
    --output qa.jsonl --output-responses responses.jsonl";

pub(super) const DATA_SLOT: &str = "\
Examples:
  tooltune data slot --output p --endpoint http://gpu:8000/v1 --endpoint-model m
  tooltune data slot --output p --model runs/slot --rows 900 --dry-run
  tooltune data slot --output p --model runs/slot --rows 900 --stage check
  tooltune data slot --output p --model runs/slot --texts totto_dev.jsonl";

pub(super) const DATA_GOAT: &str = "\
Examples:
  tooltune data goat documents.jsonl --output g --model runs/goat --dry-run
  tooltune data goat d.jsonl --output g --endpoint http://gpu:8000/v1 \\
    --endpoint-model m
  tooltune data goat d.jsonl --output g --model runs/goat \\
    --executor kind=canned --executor responses=responses.jsonl
  tooltune data goat d.jsonl --output seen --endpoint http://gpu:8000/v1 \\
    --endpoint-model m --seen-from g --rows 100";

pub(super) const REVIEW_FILE: &str = "\
Examples:
  tooltune data goat review-file g/test_unseen.jsonl --output review.jsonl";

pub(super) const APPLY_REVIEW: &str = "\
Examples:
  tooltune data goat apply-review t --documents d --review r --output o.jsonl";

pub(super) const IMPORT: &str = "\
Examples:
  tooltune data import openapi petstore.json --output documents.jsonl
  tooltune data import totto totto_dev.jsonl --output dev.jsonl
  tooltune data import mathqa train.json --output nestful.jsonl \\
    --prompt-completion train.jsonl
  tooltune data import traces spans.jsonl --output rows.jsonl
  tooltune data import toolqa pairs.json api.json --output qa.jsonl \\
    --responses responses.jsonl";

pub(super) const GRAPH: &str = "\
Examples:
  tooltune data graph documents.jsonl --threshold 0.2 --output tasks.jsonl";

pub(super) const PAIRS: &str = "\
Examples:
  tooltune data pairs train.jsonl --documents apis.jsonl --output pairs.jsonl";

pub(super) const STATS: &str = "\
Examples:
  tooltune data stats train.jsonl --model models/smollm2-135m-instruct.gguf";

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::super::Cli;

    /// Splits a command into words like a shell, without redirections and comments.
    fn words(line: &str) -> Vec<String> {
        let (mut words, mut quote, mut word) = (Vec::new(), None, String::new());
        let command = line.trim().split("   ").next().unwrap_or_default();
        let command = command.split(" > ").next().unwrap_or_default();
        for character in command.chars() {
            match (quote, character) {
                (None, ' ') => words.push(std::mem::take(&mut word)),
                (None, '"' | '\'') => quote = Some(character),
                (Some(open), close) if open == close => quote = None,
                (_, other) => word.push(other),
            }
        }
        words.push(word);
        words
    }

    fn check(command: &clap::Command, path: &str) {
        let verbs: Vec<_> = command.get_subcommands().collect();
        for verb in &verbs {
            check(verb, &format!("{path} {}", verb.get_name()));
        }
        let help = command.get_after_help().map(ToString::to_string);
        assert!(help.is_some() || !verbs.is_empty(), "{path}: no example");
        for line in help.iter().flat_map(|help| help.lines()) {
            assert!(line.chars().count() <= 80, "{path}: {line}");
        }
        // A backslash at the end of a line continues the command on the next line.
        let joined = help.map(|help| help.replace(" \\\n   ", ""));
        for line in joined.iter().flat_map(|help| help.lines()).skip(1) {
            assert!(line.trim().starts_with(path), "{path}: {line}");
            let parsed = Cli::try_parse_from(words(line));
            assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
        }
    }

    #[test]
    fn every_verb_has_examples_that_parse() {
        check(&Cli::command(), "tooltune");
    }
}
