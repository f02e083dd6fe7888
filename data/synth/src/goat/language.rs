//! Puts executed calls into words: the query, the sub-queries, the answer and its facts.
//!
//! A value is described by the phrase of the output that it came from, and that phrase in turn
//! describes the values of the earlier call: "the weather in the home port of the ship Grey Gull".
//! The query asks for the results of the last calls. Each phrase is drawn once, so that query and
//! sub-queries agree.

use std::collections::BTreeMap;

use serde_json::Value;
use tooltune_rows::batches::SeededRandom;

use super::api::Aspect;
use super::binding::{Argument, BoundCall};
use super::catalogue::Catalogue;
use crate::slot::{capitalise, happens, pick};

/// Percentage of single-aim queries phrased as a question.
const QUESTION_PERCENT: usize = 45;
/// Percentage of two-aim queries whose first aim is phrased as a question.
const ALSO_PERCENT: usize = 25;

/// Text before and after the things that a query asks for.
const FRAMES: &[(&str, &str)] = &[
    ("Tell me ", "."),
    ("Please find ", "."),
    ("I would like to know ", "."),
    ("Can you tell me ", "?"),
    ("Could you look up ", "?"),
    ("Show me ", "."),
    ("I need ", "."),
    ("Give me ", ", please."),
    ("Please look up ", "."),
    ("Do you know ", "?"),
    ("Help me find ", "."),
    ("I am looking for ", "."),
    ("I want ", "."),
];

/// Text between two things that a query asks for.
const JOINS: &[&str] = &[
    " and ",
    ", and also ",
    " as well as ",
    " together with ",
    ", then ",
];

/// Text around a second request that follows a question.
const ALSO: &[(&str, &str)] = &[
    (" Also tell me ", "."),
    (" I also need ", "."),
    (" And please find ", "."),
];

/// The wording of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RowTexts {
    pub(super) query: String,
    /// One per call.
    pub(super) sub_queries: Vec<String>,
    pub(super) response: String,
    /// Strings in the response that answer the query.
    pub(super) facts: Vec<String>,
}

/// A value as written in sentences.
pub(super) fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The description of each parameter's value.
type Names = BTreeMap<&'static str, String>;

/// Puts the calls into words.
pub(super) fn write_texts(
    catalogue: &Catalogue,
    calls: &[BoundCall],
    random: &mut SeededRandom,
) -> RowTexts {
    let mut names: Vec<Names> = Vec::new();
    for call in calls {
        let call_names = call.arguments.iter().map(|argument| {
            let name = name_of(argument, calls, &names, random);
            (argument.parameter.name.as_str(), name)
        });
        let call_names = call_names.collect();
        names.push(call_names);
    }
    let sub_queries = calls.iter().zip(&names).map(|(call, names)| {
        let api = catalogue.entry(call.api_idx).api;
        let request = fill_names(pick(&api.sub_queries, random).as_str(), names);
        add_optional_arguments(&request, call, random)
    });
    let sub_queries = sub_queries.collect();
    let mut aims = Vec::new();
    let (mut answers, mut facts): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
    for (call, names) in calls.iter().zip(&names).filter(|(call, _)| call.is_sink) {
        let api = catalogue.entry(call.api_idx).api;
        let aspect = &api.aspects[random.below(api.aspects.len())];
        aims.push(Aim::draw_aim(aspect, call, names, random));
        answers.push(answer_text(
            &aspect.answer,
            &api.list,
            &call.output,
            &mut facts,
        ));
    }
    RowTexts {
        query: request_text(&aims, random),
        sub_queries,
        response: answers.join(" "),
        facts,
    }
}

fn name_of(
    argument: &Argument,
    calls: &[BoundCall],
    names: &[Names],
    random: &mut SeededRandom,
) -> String {
    let Some(source) = argument.source else {
        let phrase = pick(&argument.parameter.kind.phrases, random);
        return phrase.replace("{}", &text(&argument.value));
    };
    let phrase = pick(&source.field.phrases, random);
    let phrase = match calls[source.call].pick {
        Some(choice) => phrase.replace("{pick}", pick(&choice.words, random).as_str()),
        None => phrase.clone(),
    };
    fill_names(&phrase, &names[source.call])
}

/// Replaces `{parameter}` by its description.
fn fill_names(template: &str, names: &Names) -> String {
    let filled = names
        .iter()
        .fold(template.to_owned(), |text, (parameter, name)| {
            text.replace(&format!("{{{parameter}}}"), name)
        });
    debug_assert!(
        !filled.contains('{'),
        "{template} names an unknown parameter"
    );
    filled
}

/// Adds the optional arguments to a request, before its final punctuation mark if it has one.
fn add_optional_arguments(request: &str, call: &BoundCall, random: &mut SeededRandom) -> String {
    let (body, final_stop) = match request.strip_suffix('.') {
        Some(body) => (body, "."),
        None => (request, ""),
    };
    let mut sentence = body.to_owned();
    for argument in &call.arguments {
        if let Some(limit) = &argument.parameter.optional {
            sentence += &pick(&limit.phrases, random).replace("{}", &text(&argument.value));
        }
    }
    sentence + final_stop
}

/// One thing that a query asks for.
#[derive(Debug)]
struct Aim {
    noun: String,
    /// The aim as a question; `None` if the table has no question, or an optional argument must be
    /// stated.
    question: Option<String>,
    /// The descriptions of the call's values in the query.
    names: Vec<String>,
}

impl Aim {
    fn draw_aim(
        aspect: &Aspect,
        call: &BoundCall,
        names: &Names,
        random: &mut SeededRandom,
    ) -> Self {
        let is_optional = |argument: &&Argument| !argument.parameter.is_required();
        let is_plain = !call.arguments.iter().any(|argument| is_optional(&argument));
        let question = (is_plain && !aspect.questions.is_empty())
            .then(|| capitalise(&fill_names(pick(&aspect.questions, random).as_str(), names)));
        let noun = fill_names(pick(&aspect.nouns, random).as_str(), names);
        Self {
            noun: add_optional_arguments(&noun, call, random),
            question,
            names: names.values().cloned().collect(),
        }
    }
}

fn request_text(aims: &[Aim], random: &mut SeededRandom) -> String {
    if let [only] = aims
        && let Some(question) = &only.question
        && happens(QUESTION_PERCENT, random)
    {
        return question.clone();
    }
    if let [first, second] = aims
        && let Some(question) = &first.question
        && happens(ALSO_PERCENT, random)
    {
        let (between, after) = pick(ALSO, random);
        return format!("{question}{between}{}{after}", second.noun);
    }
    let (between, after) = pick(FRAMES, random);
    format!("{between}{}{after}", join_aims(aims, random))
}

fn join_aims(aims: &[Aim], random: &mut SeededRandom) -> String {
    match aims {
        [first, second] => match merge_aims(first, second) {
            Some(both) if happens(70, random) => both,
            _ => format!("{}{}{}", first.noun, pick(JOINS, random), second.noun),
        },
        [other_nouns @ .., last] if !other_nouns.is_empty() => {
            let other_nouns: Vec<&str> = other_nouns.iter().map(|aim| aim.noun.as_str()).collect();
            format!("{} and {}", other_nouns.join(", "), last.noun)
        }
        _ => aims.iter().map(|aim| aim.noun.as_str()).collect(),
    }
}

/// Merges "the cast of X" and "the writer of X" into "the cast and the writer of X".
fn merge_aims(first: &Aim, second: &Aim) -> Option<String> {
    let shared = first
        .names
        .iter()
        .find(|name| second.names.contains(name))?;
    [" of ", " in ", " at "].iter().find_map(|link| {
        let end = format!("{link}{shared}");
        let first = first.noun.strip_suffix(&end)?;
        let second = second.noun.strip_suffix(&end)?;
        Some(format!("{first} and {second}{end}"))
    })
}

/// Fills an answer with the columns of the output; columns marked `!` are added to the facts.
fn answer_text(template: &str, list: &str, output: &Value, facts: &mut Vec<String>) -> String {
    let Some((before_list, rest)) = template.split_once('[') else {
        return fill_row(template, output, facts);
    };
    let (each, after_list) = rest.split_once(']').unwrap_or((rest, ""));
    let rows = output[list].as_array().map_or(&[][..], Vec::as_slice);
    let items: Vec<String> = rows.iter().map(|row| fill_row(each, row, facts)).collect();
    format!("{before_list}{}{after_list}", items.join(", "))
}

fn fill_row(template: &str, row: &Value, facts: &mut Vec<String>) -> String {
    let mut filled = String::new();
    let mut remaining = template;
    while let Some((literal, tail)) = remaining.split_once('{') {
        let (column, after_column) = tail.split_once('}').unwrap_or((tail, ""));
        let name = column.strip_suffix('!').unwrap_or(column);
        let value = text(&row[name]);
        debug_assert!(!row[name].is_null(), "{template} names an unknown column");
        if name != column && !facts.contains(&value) {
            facts.push(value.clone());
        }
        filled = filled + literal + &value;
        remaining = after_column;
    }
    filled + remaining
}
