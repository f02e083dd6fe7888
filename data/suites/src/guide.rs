//! Generates docs/prompts.txt from the code that builds the prompts, and the table of suites in
//! docs/metrics.md from the registry.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::json;
use tooltune_agents::{AgentLimits, Expansion, GoatOptions, Method, Ranking, dialogue_prompt};
use tooltune_apis::{
    ApiCatalogue, ApiDocument, DialogueGold, DialogueStep, DialogueTurn, GoldCall, Trajectory,
};
use tooltune_json::python::loads;
use tooltune_rows::text::SlotPrompt;
use tooltune_template::{ChatTemplate, Conversation};

use crate::SUITES;
use crate::goat::judge_messages;
use crate::nestful::{NestfulRow, ReactLimits, ReactLoop, ReactRequest, built_in_templates};
use crate::toolqa::{Setting, built_in_text};

const WRITE_VARIABLE: &str = "TOOLTUNE_WRITE_GUIDE";
/// Before and after the name of a prompt in docs/prompts.txt.
const HEADING: &str = "======== ";
const HEADING_END: &str = " ========\n";

/// Every built-in prompt by its name in the guide.
fn prompts() -> BTreeMap<String, String> {
    let mut prompts = BTreeMap::new();
    for name in SlotPrompt::NAMES {
        let prompt = SlotPrompt::built_in(name).expect("a prompt");
        prompts.insert(format!("slot {name}"), prompt.source().to_owned());
    }
    prompts.extend(goat_prompts());
    prompts.extend(dialogue_prompts());
    let mut families: Vec<(String, String)> = Vec::new();
    for (family, template) in built_in_templates() {
        match families.iter_mut().find(|(_, known)| *known == template) {
            Some((names, _)) => names.push_str(&format!(", {family}")),
            None => families.push((format!("nestful {family}"), template)),
        }
    }
    prompts.extend(families);
    prompts.insert("nestful react".to_owned(), react_prompt());
    for setting in Setting::ALL {
        prompts.insert(format!("toolqa {}", setting.name()), built_in_text(setting));
    }
    for suite in SUITES {
        let of_suite = suite.prompts.iter();
        prompts.extend(
            of_suite.map(|(name, text)| (format!("{} {name}", suite.name), (*text).to_owned())),
        );
    }
    prompts
}

fn document(api: &str, parameter: &str) -> ApiDocument {
    let parameter = json!({"name": parameter, "type": "STRING", "description": "", "default": ""});
    let document = json!({
        "category_name": "Harbour", "tool_name": "Harbour", "api_name": api,
        "api_description": "", "required_parameters": [parameter], "optional_parameters": [],
        "method": "GET",
    });
    ApiDocument::try_from(document).expect("a document")
}

fn catalogue() -> ApiCatalogue {
    ApiCatalogue::new(vec![
        document("Ship", "ship_id"),
        document("Weather", "town"),
    ])
    .expect("a catalogue")
}

fn only_message(conversation: &Conversation) -> String {
    let message = conversation.messages.first().expect("a message");
    message.content.clone().expect("a text")
}

/// The last prompt of each kind, for a trajectory with two calls.
fn goat_prompts() -> Vec<(String, String)> {
    let trajectory = json!({
        "query": "How windy is it in the home town of ship 138?",
        "calls": [
            {"sub_query": "Look up ship 138.", "name": "Harbour/Ship",
             "arguments": {"ship_id": "138"}, "output": {"home_town": "Jorness"}},
            {"sub_query": "Get the weather there.", "name": "Harbour/Weather",
             "arguments": {"town": "Jorness"}, "output": {"wind": 29}},
        ],
        "response": "The wind is 29 km/h.",
    });
    let trajectory: Trajectory = serde_json::from_value(trajectory).expect("a trajectory");
    let catalogue = catalogue();
    let mut prompts = BTreeMap::new();
    for method in [
        Method::Global,
        Method::React,
        Method::GlobalId,
        Method::ReactId,
    ] {
        let options = GoatOptions {
            n_documents: 1,
            ..GoatOptions::new(method, "documents.jsonl")
        };
        let expansion = Expansion {
            catalogue: &catalogue,
            options: &options,
            seed: 1,
        };
        let examples = expansion.expand(&trajectory, &mut Ranking::Random);
        for example in examples.expect("examples") {
            let name = format!("goat {} {}", method.as_str(), example.kind.as_str());
            prompts.insert(name, only_message(&example.conversation));
        }
    }
    let executions = [
        json!({"name": "Harbour/Ship", "arguments": {"ship_id": "138"},
                             "output": {"home_town": "Jorness"}}),
    ];
    let messages = judge_messages("Where is ship 138 at home?", &executions, "In Jorness.");
    for message in messages {
        let name = format!("goat judge {}", message.role.as_str());
        prompts.insert(name, message.content.expect("a text"));
    }
    prompts.into_iter().collect()
}

fn dialogue_prompts() -> Vec<(String, String)> {
    let call = GoldCall {
        name: "Harbour/Ship".to_owned(),
        arguments: json!({"ship_id": "138"}).as_object().cloned(),
        output: json!({"home_town": "Jorness"}),
        exception: None,
        check_input: false,
    };
    let step = |gold: DialogueGold| DialogueStep {
        id: "a.jsonl[2]".to_owned(),
        apis: vec!["Harbour/Ship".to_owned()],
        turns: vec![
            DialogueTurn::User("Where is ship 138 at home?".to_owned()),
            DialogueTurn::Call(call.clone()),
        ],
        gold,
    };
    let prompt = |gold| {
        let conversation = dialogue_prompt(&step(gold), &catalogue(), &AgentLimits::default());
        only_message(&conversation)
    };
    let reply = DialogueGold::Reply("In Jorness.".to_owned());
    vec![
        (
            "apibank call".to_owned(),
            prompt(DialogueGold::Call(call.clone())),
        ),
        ("apibank reply".to_owned(), prompt(reply)),
    ]
}

fn react_prompt() -> String {
    let row = json!({
        "sample_id": "1", "input": "What is 2 plus 3?", "gold_answer": 5,
        "output": [{"name": "add", "label": "$var_1", "arguments": {"arg_0": 2, "arg_1": 3}}],
        "tools": [{"name": "add", "description": "Adds.",
                   "parameters": {"arg_0": {"type": "int"}, "arg_1": {"type": "int"}},
                   "output_parameters": {"result": {"type": "int"}}}],
    });
    let row = loads(&row.to_string()).expect("a value");
    let row = NestfulRow::new(&row).expect("a row");
    match ReactLoop::new(&row, ReactLimits::default()).next() {
        ReactRequest::Generate { conversation, .. } => only_message(&conversation),
        other => panic!("{other:?}"),
    }
}

/// docs/prompts.txt with the current prompts.
fn prompts_file() -> String {
    let mut file = "The built-in prompts, written by scripts/docs.\n".to_owned();
    for (name, prompt) in prompts() {
        let prompt = prompt.trim_end_matches('\n');
        let _ = write!(file, "\n{HEADING}{name}{HEADING_END}{prompt}\n");
    }
    file
}

/// A page of the guide.
fn page(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs")
        .join(name)
}

/// Compares a page with its generated parts, or writes them if `TOOLTUNE_WRITE_GUIDE` is set.
fn assert_generated(name: &str, generate: impl Fn(&str) -> String) {
    let path = page(name);
    let guide = std::fs::read_to_string(&path).expect("the guide");
    let updated = generate(&guide);
    if std::env::var_os(WRITE_VARIABLE).is_some() {
        std::fs::write(&path, &updated).expect("the guide is written");
        return;
    }
    let printed: BTreeSet<&str> = guide.lines().collect();
    let absent = updated.lines().find(|line| !printed.contains(line));
    assert!(
        guide == updated,
        "docs/{name} is out of date; run scripts/docs: {absent:?}"
    );
}

/// The page with a current table of suites.
fn with_suites(guide: &str) -> String {
    const BEGIN: &str = "<!-- suites -->\n";
    const END: &str = "<!-- end of suites -->";
    let (before, after) = guide.split_once(BEGIN).expect("the marker of the table");
    let (_, after) = after.split_once(END).expect("the end of the table");
    let mut table = "| suite | task | metrics |\n|---|---|---|\n".to_owned();
    for suite in SUITES {
        let metrics = suite.metrics.iter().chain(suite.flat_metrics);
        let metrics: Vec<String> = metrics.map(|key| format!("`{key}`")).collect();
        let mut headings = guide
            .lines()
            .filter_map(|line| line.strip_prefix("## The suite"));
        let heading = headings.find(|heading| heading.split(' ').any(|word| word == suite.name));
        let name = match heading {
            Some(heading) => {
                let anchor = heading.replace(' ', "-");
                format!("[{}](#the-suite{anchor})", suite.name)
            }
            None => suite.name.to_owned(),
        };
        let (about, metrics) = (suite.about, metrics.join(", "));
        table.push_str(&format!("| {name} | {about} | {metrics} |\n"));
    }
    format!("{before}{BEGIN}{table}{END}{after}")
}

/// Invariant: docs/metrics.md lists every suite with its metrics.
#[test]
fn the_guide_prints_every_suite_with_its_metrics() {
    assert_generated("metrics.md", with_suites);
}

/// Invariant: docs/prompts.txt has every built-in prompt as the code sends it.
#[test]
fn the_guide_prints_every_built_in_prompt() {
    assert_generated("prompts.txt", |_| prompts_file());
}

/// The built-in chat templates are files, which the page links.
#[test]
fn the_guide_links_every_built_in_chat_template() {
    let guide = std::fs::read_to_string(page("prompts.md")).expect("the guide");
    for name in ChatTemplate::NAMES {
        let rest = guide
            .split_once(&format!("| [{name}]("))
            .map(|(_, rest)| rest);
        let rest = rest.unwrap_or_else(|| panic!("docs/prompts.md does not link {name}"));
        let link = rest.split(')').next().expect("the end of a link");
        let file = std::fs::read_to_string(page(link));
        let file = file.unwrap_or_else(|error| panic!("docs/prompts.md: {link}: {error}"));
        let template = ChatTemplate::built_in(name).expect("a template");
        assert_eq!(file.trim_end(), template.trim_end(), "{link}");
    }
}
