//! What models are asked with: built-in texts by their names, files by their paths.

use super::*;

fn slot(name: &str, overrides: &[&str]) -> Config {
    let loaded = parse(name, SLOT, overrides);
    loaded.unwrap_or_else(|error| panic!("{error}")).config
}

#[test]
fn names_of_what_is_built_in_stand_for_no_files() {
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
fn a_name_of_nothing_is_told_all_names_that_there_are() {
    let said = |setting: &str| {
        let loaded = parse("c.toml", SLOT, &[setting]).expect("a config");
        let error = loaded.check_files().unwrap_err().to_string();
        let line = error.lines().find(|line| line.contains("--set:1"));
        line.unwrap_or_else(|| panic!("{error}")).to_owned()
    };
    let prompt = said("data.slot_prompt=papr");
    let help = "did you mean \"paper\"? it can be \"typed\", \"paper\" or a Jinja file";
    assert!(
        prompt.contains("papr, which does not exist") && prompt.contains(help),
        "{prompt}"
    );
    let template = said("data.chat_template=nowhere.jinja");
    let help = "it can be \"chatml-tools\" or a Jinja file";
    assert!(
        template.contains(help) && !template.contains("mean"),
        "{template}"
    );
}

#[test]
fn slot_rows_are_asked_with_the_typed_prompt_and_those_of_earlier_runs_with_the_papers() {
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
fn what_asks_nothing_is_refused() {
    let other = ["data.slot_prompt=typed"];
    check_mistake(
        MINIMAL,
        &other,
        &["messages rows are not asked", "take `data.slot_prompt` out"],
    );
    let goat = include_str!("../presets/goat.toml");
    check_mistake(goat, &["data.system=Hi"], &["without a system message"]);
    let empty = good(MINIMAL, &["data.system=\"\""]).data.system;
    assert_eq!(empty.as_deref(), Some(""));
}
