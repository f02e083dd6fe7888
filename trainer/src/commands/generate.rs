//! Shows what the model writes after rows, a question or a text, beside the reference (`generate`).

use std::path::Path;

use serde::Serialize;
use tooltune_checkpoints::atomic::write_atomic;
use tooltune_rows::text::AskedPrompt;

use super::asked::{Asked, asked, must_have_a_source};
use super::data::write_lines;
use super::{DeviceOption, eprint_line, print_line, watched};
use crate::base_model::BaseModel;
use crate::cli::GenerateArgs;
use crate::config::Config;
use crate::error::Error;
use crate::eval::constraints::{Constraints, Kept};
use crate::eval::endings::Endings;
use crate::eval::generate::{FinishReason, GenerationOptions};
use crate::eval::generator::{
    Completion, GenerationRequest, Generator, LocalGenerator, PromptText,
};
use crate::eval::report_files::json_lines;
use crate::recipes::run_lock::BASE_MODEL;

/// Characters of a prompt's last message that are shown.
const N_SHOWN: usize = 600;

/// A line of `--output`.
#[derive(Serialize)]
struct Line<'a> {
    id: &'a str,
    prompt: &'a str,
    text: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reference: Option<&'a str>,
    finish_reason: &'a str,
    n_prompt_tokens: usize,
    n_tokens: usize,
}

pub(super) fn run(args: &GenerateArgs, place: &DeviceOption) -> Result<(), Error> {
    if let Some(output) = args.output.as_deref().filter(|output| is_kept(output)) {
        return Err(Error::Usage(format!(
            "{} exists already; remove it or name another --output",
            output.display()
        )));
    }
    let mut config = args.target.config()?;
    config.device = place.name(config.device)?;
    must_have_a_source(args, &config)?;
    args.target.model.check_used(&config, &[BASE_MODEL])?;
    let device = place.open(config.device)?;
    let base = BaseModel::of(&config)?;
    base.warn_of_choices();
    let options = GenerationOptions::of(&config, &base.stop_ids);
    let all = asked(args, &config, &base, &device)?;
    must_fit(
        all.iter().map(|asked| &asked.prompt),
        options.max_new_tokens,
        base.config.max_position_embeddings,
    )?;
    let decoder = args
        .target
        .model
        .decoder(&config, &base, "writing with", &device)?;
    let generator = Generator::Local(LocalGenerator {
        decoder: &decoder,
        base: &base,
        options: &options,
        endings: &Endings::default(),
    });
    let constraints = constraints(&generator, &config, &all)?;
    let texts = written(&generator, &all, &constraints, options.max_new_tokens)?;
    if let Some(output) = &args.output {
        if output.exists() {
            // A device or a pipe, whose reader may read what is printed, too.
            return Ok(write_atomic(output, &json_lines(lines(&all, &texts))?)?);
        }
        write_lines("texts", lines(&all, &texts), Some(output))?;
    }
    print(&all, &texts, &options)
}

/// Whether a file or folder is there, which is never overwritten; a device or a pipe may be.
pub(super) fn is_kept(output: &Path) -> bool {
    std::fs::metadata(output).is_ok_and(|found| found.is_file() || found.is_dir())
}

/// Refuses a prompt that is empty, or whose text might not fit behind it.
fn must_fit<'a>(
    mut prompts: impl Iterator<Item = &'a AskedPrompt>,
    max_new_tokens: usize,
    context: usize,
) -> Result<(), Error> {
    let refused = |message: String| Err(Error::Usage(message));
    let does_fit = |n: usize| n > 0 && n.saturating_add(max_new_tokens) <= context;
    match prompts.find(|prompt| !does_fit(prompt.ids.len())) {
        None => Ok(()),
        Some(prompt) if prompt.ids.is_empty() => refused(format!(
            "{}: the prompt is empty; give at least one token to continue from",
            prompt.id
        )),
        Some(prompt) => refused(format!(
            "{}: a prompt of {} tokens and eval.max_new_tokens = {max_new_tokens} are more than the \
             {context} positions of the model (max_position_embeddings); lower eval.max_new_tokens \
             with --set, or shorten the prompt",
            prompt.id,
            prompt.ids.len()
        )),
    }
}

/// What the texts keep to where `eval.constrained` asks for it; which of them are written freely all
/// the same is said.
fn constraints(
    generator: &Generator<'_>,
    config: &Config,
    all: &[Asked],
) -> Result<Constraints, Error> {
    if !config.eval.constrained {
        return Ok(Constraints::default());
    }
    let kept = all
        .iter()
        .map(|asked| (asked.prompt.id.as_str(), asked.kept.clone()));
    let constraints = Constraints::compiled(generator, &kept.collect::<Vec<_>>())?;
    let n_free = all
        .iter()
        .filter(|asked| asked.kept == Kept::Nothing)
        .count();
    if n_free > 0 {
        eprint_line(&format!(
            "eval.constrained: {n_free} of {} texts are written freely, since nothing says what they \
             keep to: neither a schema, nor calls of tools where some are wanted",
            all.len()
        ))?;
    }
    if let Some(line) = constraints.line(all.len()) {
        eprint_line(&line)?;
    }
    Ok(constraints)
}

fn written(
    generator: &Generator<'_>,
    all: &[Asked],
    constraints: &Constraints,
    max_new_tokens: usize,
) -> Result<Vec<Completion>, Error> {
    let prompts = all.iter().enumerate().map(|(i, asked)| GenerationRequest {
        id: &asked.prompt.id,
        text: PromptText::Raw(&asked.prompt.text),
        max_new_tokens,
        constraint: constraints.of_prompt(i),
    });
    let prompts: Vec<GenerationRequest<'_>> = prompts.collect();
    watched(|watch| generator.write(&prompts, None, watch))
}

fn lines<'a>(all: &'a [Asked], texts: &'a [Completion]) -> impl Iterator<Item = Line<'a>> {
    all.iter().zip(texts).map(|(asked, written)| Line {
        id: &asked.prompt.id,
        prompt: &asked.prompt.text,
        text: &written.text,
        reference: asked.prompt.reference.as_deref(),
        finish_reason: &written.finish_reason,
        n_prompt_tokens: asked.prompt.ids.len(),
        n_tokens: written.n_tokens,
    })
}

fn print(all: &[Asked], texts: &[Completion], options: &GenerationOptions) -> Result<(), Error> {
    for (asked, written) in all.iter().zip(texts) {
        print_line(&shown(asked, written, options))?;
    }
    let n_references = all.iter().filter(|a| a.prompt.reference.is_some()).count();
    if n_references > 0 {
        let is_same = |(asked, written): &(&Asked, &Completion)| is_same(asked, written);
        let n_same = all.iter().zip(texts).filter(is_same).count();
        print_line(&format!(
            "{n_same} of {n_references} texts are their reference, letter by letter"
        ))?;
    }
    let n_cut = texts.iter().filter(|written| is_cut(written)).count();
    let limits = match options.max_time {
        None => "eval.max_new_tokens",
        Some(_) => "eval.max_new_tokens or eval.max_time",
    };
    match n_cut {
        0 => Ok(()),
        n_cut => eprint_line(&format!(
            "{n_cut} of {} texts are CUT OFF before their end; raise {limits} with --set",
            texts.len()
        )),
    }
}

fn is_same(asked: &Asked, written: &Completion) -> bool {
    asked.prompt.reference.as_deref() == Some(&written.text)
}

fn is_cut(written: &Completion) -> bool {
    written.finish_reason != FinishReason::Stop.name()
}

/// A text for a person: where it belongs, what it answers, what was to be written, why it ended.
fn shown(asked: &Asked, written: &Completion, options: &GenerationOptions) -> String {
    let reference = asked.prompt.reference.as_deref();
    let reference = reference.map(|reference| {
        if is_same(asked, written) {
            "the same"
        } else {
            reference
        }
    });
    let ended = match (written.finish_reason.as_str(), options.max_time) {
        ("stop", _) if options.stop_strings.is_empty() => "at a stop token".to_string(),
        ("stop", _) => "at a stop token or stop string".to_string(),
        ("time", Some(most)) => format!("CUT OFF at eval.max_time = {}", most.as_secs_f64()),
        ("length", _) => format!(
            "CUT OFF at eval.max_new_tokens = {}",
            options.max_new_tokens
        ),
        (reason, _) => format!("CUT OFF: {reason}"),
    };
    let ended = format!(
        "{ended}; {} tokens after {}",
        written.n_tokens,
        asked.prompt.ids.len()
    );
    let end = asked.end.iter().map(|(role, text)| (*role, ending(text)));
    let fields = end
        .chain([("written", written.text.clone())])
        .chain(reference.map(|text| ("reference", text.to_string())))
        .chain([("ended", ended)]);
    let mut shown = format!("{}\n", asked.prompt.id);
    for (label, text) in fields {
        // Further lines of a text stand below its first.
        let text = text
            .trim_end_matches('\n')
            .replace('\n', &format!("\n{:13}", ""));
        shown.push_str(format!("  {label:<10} {text}").trim_end());
        shown.push('\n');
    }
    shown
}

/// The end of a text that may be long.
fn ending(text: &str) -> String {
    match text.char_indices().rev().nth(N_SHOWN - 1) {
        Some((from, _)) if from > 0 => format!("…{}", &text[from..]),
        _ => text.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(id: &str, n_tokens: usize, reference: Option<&str>) -> Asked {
        Asked {
            prompt: AskedPrompt {
                id: id.to_owned(),
                text: String::new(),
                ids: vec![7; n_tokens],
                n_messages: 1,
                reference: reference.map(str::to_owned),
                begins_example: true,
            },
            end: vec![("user", "Two\nlines".to_owned())],
            kept: Kept::Nothing,
        }
    }

    fn fault(n_tokens: usize, max_new_tokens: usize) -> Option<String> {
        let all = [asked("a:1", 1, None), asked("a:2", n_tokens, None)];
        let fit = must_fit(all.iter().map(|one| &one.prompt), max_new_tokens, 10);
        fit.err().map(|error| error.to_string())
    }

    #[test]
    fn a_prompt_without_room_for_its_text_is_refused_with_its_place() {
        assert_eq!(fault(6, 4), None);
        assert_eq!(
            fault(7, 4).as_deref(),
            Some(
                "a:2: a prompt of 7 tokens and eval.max_new_tokens = 4 are more than the 10 \
                 positions of the model (max_position_embeddings); lower eval.max_new_tokens with \
                 --set, or shorten the prompt"
            )
        );
        assert!(fault(1, usize::MAX).is_some_and(|said| said.starts_with("a:1: ")));
        assert!(fault(0, 4).is_some_and(|said| said.starts_with("a:2: the prompt is empty")));
    }

    #[test]
    fn a_text_is_shown_with_what_it_answers_and_why_it_ended() {
        let options = GenerationOptions::greedy(3, 1, vec![2]);
        let written = |text: &str, finish_reason: &str| Completion {
            text: text.to_owned(),
            finish_reason: finish_reason.to_owned(),
            n_tokens: 3,
            without_text: None,
            error: None,
            tool_calls: Vec::new(),
        };
        assert_eq!(
            shown(
                &asked("a:1", 5, Some("Yes.\nNo.")),
                &written("Yes.", "length"),
                &options
            ),
            "a:1\n  user       Two\n             lines\n  written    Yes.\n  reference  Yes.\n             \
             No.\n  ended      CUT OFF at eval.max_new_tokens = 3; 3 tokens after 5\n"
        );
        assert_eq!(
            shown(
                &asked("a:1", 5, Some("Yes.")),
                &written("Yes.", "stop"),
                &options
            ),
            "a:1\n  user       Two\n             lines\n  written    Yes.\n  reference  the same\n  \
             ended      at a stop token; 3 tokens after 5\n"
        );
        // Not even an empty text hides its label.
        let empty = shown(&asked("a:1", 5, None), &written("", "stop"), &options);
        assert!(empty.contains("lines\n  written\n  ended "), "{empty}");
    }

    #[test]
    fn of_a_long_text_the_end_is_shown() {
        let long = "é".repeat(N_SHOWN + 1);
        assert_eq!(ending(&long), format!("…{}", "é".repeat(N_SHOWN)));
        assert_eq!(ending(&long[2..]), &long[2..]);
    }
}
