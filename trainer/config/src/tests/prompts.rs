//! Prompt settings: built-in texts by name, files by path.

use super::*;

fn slot(name: &str, overrides: &[&str]) -> Config {
    let loaded = parse(name, SLOT, overrides);
    loaded.unwrap_or_else(|error| panic!("{error}")).config
}

#[test]
fn built_in_names_are_not_paths() {
    let prompts = ["data.slot_prompt=paper", "data.chat_template=chatml-tools"];
    let settings = |overrides: &[&str]| -> Vec<String> {
        let files = named_files(&slot("c.toml", overrides)).into_iter();
        let files = files.map(|(setting, _)| setting);
        files
            .filter(|setting| setting.contains("prompt") || setting.contains("template"))
            .collect()
    };
    assert_eq!(settings(&prompts), Vec::<String>::new());
    let files = ["data.slot_prompt=./paper", "data.chat_template=a.jinja"];
    assert_eq!(settings(&files), ["data.slot_prompt", "data.chat_template"]);
}

#[test]
fn an_unknown_name_lists_all_names() {
    let error_of = |setting: &str| {
        let loaded = parse("c.toml", SLOT, &[setting]).expect("a config");
        let error = loaded.check_files().unwrap_err().to_string();
        let line = error.lines().find(|line| line.contains("--set:1"));
        line.unwrap_or_else(|| panic!("{error}")).to_owned()
    };
    let prompt = error_of("data.slot_prompt=papr");
    let help = "did you mean \"paper\"? use \"typed\", \"paper\" or a Jinja file";
    assert!(
        prompt.contains("papr, which does not exist") && prompt.contains(help),
        "{prompt}"
    );
    let template = error_of("data.chat_template=nowhere.jinja");
    let help =
        "use \"chatml-tools\", \"gemma-tools\", \"llama3-tools\", \"phi3-tools\" or a Jinja file";
    assert!(
        template.contains(help) && !template.contains("mean"),
        "{template}"
    );
}

#[test]
fn slot_rows_use_the_typed_prompt_and_earlier_runs_the_papers() {
    let unnamed = SLOT.replace("slot_prompt", "# slot_prompt");
    assert_ne!(unnamed, SLOT);
    let prompt = |name: &str, text: &str| {
        let config = parse(name, text, &[]).expect("a config").config;
        config
            .data
            .slot_prompt
            .and_then(|path| path.to_str().map(str::to_owned))
    };
    assert_eq!(prompt("c.toml", &unnamed).as_deref(), Some("typed"));
    let of_a_run = "runs/x/config.resolved.toml";
    assert_eq!(prompt(of_a_run, &unnamed).as_deref(), Some("paper"));
    assert_eq!(prompt(of_a_run, SLOT).as_deref(), Some("typed"));
    assert_eq!(prompt(of_a_run, MINIMAL), None);
}

#[test]
fn prompts_without_matching_rows_are_refused() {
    let other = ["data.slot_prompt=typed"];
    check_mistake(
        MINIMAL,
        &other,
        &[
            "messages rows do not use the prompt of SLOT",
            "remove `data.slot_prompt`",
        ],
    );
    let goat = include_str!("../presets/goat.toml");
    check_mistake(goat, &["data.system=Hi"], &["without a system message"]);
    let empty = parse_valid(MINIMAL, &["data.system=\"\""]).data.system;
    assert_eq!(empty.as_deref(), Some(""));
}
