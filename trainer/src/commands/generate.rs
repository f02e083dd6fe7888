//! `generate`: prints completions for rows, a message or a text, next to the reference answers.

use serde::Serialize;
use tooltune_disk::atomic::write_atomic;
use tooltune_rows::text::TokenizedPrompt;

use super::data::write_lines;
use super::new_file::must_be_new;
use super::{DeviceOption, eprint_line, print_line, print_result, with_interruptible_progress};
use crate::base_model::BaseModel;
use crate::cli::GenerateArgs;
use crate::commands::prompts::{DisplayedPrompt, load_prompts, require_prompt_source};
use crate::config::Config;
use crate::error::Error;
use crate::eval::constraints::{Constraints, RequestedConstraint};
use crate::eval::endings::Endings;
use crate::eval::generate::{FinishReason, GenerationOptions};
use crate::eval::generator::{
    Completion, GenerationRequest, Generator, LocalGenerator, PromptText,
};
use crate::eval::report_files::json_lines;
use crate::recipes::run_lock::BASE_MODEL;

/// Maximum number of characters that are shown from the end of a message.
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

pub(super) fn run(args: &GenerateArgs, device_option: &DeviceOption) -> Result<(), Error> {
    must_be_new(&[("--output", args.output.as_deref())])?;
    let mut config = args.target.config()?;
    config.device = device_option.name(config.device)?;
    require_prompt_source(args, &config)?;
    args.target.model.check_used(&config, &[BASE_MODEL])?;
    let device = device_option.open(config.device)?;
    let base = BaseModel::from_config(&config)?;
    base.warn_of_ignored_sampling();
    let options = GenerationOptions::from_config(&config, &base.stop_ids);
    let all = load_prompts(args, &config, &base, &device)?;
    check_prompt_lengths(
        all.iter().map(|prompt| &prompt.prompt),
        options.max_new_tokens,
        base.config.max_position_embeddings,
    )?;
    let decoder = args
        .target
        .model
        .decoder(&config, &base, "generating with", &device)?;
    let generator = Generator::Local(LocalGenerator {
        decoder: &decoder,
        base: &base,
        options: &options,
        endings: &Endings::default(),
        served: None,
    });
    let constraints = constraints(&generator, &config, &all)?;
    let texts = complete_all(&generator, &all, &constraints, options.max_new_tokens)?;
    if let Some(output) = &args.output {
        if output.exists() {
            // The output is a device or a pipe. It may be the terminal, so nothing else is
            // printed.
            return Ok(write_atomic(output, &json_lines(lines(&all, &texts))?)?);
        }
        write_lines("texts", lines(&all, &texts), Some(output))?;
    }
    print(&all, &texts, &options)
}

/// Rejects empty prompts and prompts that leave no room for a completion.
fn check_prompt_lengths<'a>(
    mut prompts: impl Iterator<Item = &'a TokenizedPrompt>,
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
            "{}: the prompt has {} tokens; with eval.max_new_tokens = {max_new_tokens} that \
             exceeds the model's context of {context} tokens (max_position_embeddings); lower \
             eval.max_new_tokens with --set, or shorten the prompt",
            prompt.id,
            prompt.ids.len()
        )),
    }
}

/// Compiles the constraints for `eval.constrained`, and reports how many completions remain
/// unconstrained.
fn constraints(
    generator: &Generator<'_>,
    config: &Config,
    all: &[DisplayedPrompt],
) -> Result<Constraints, Error> {
    if !config.eval.constrained {
        return Ok(Constraints::default());
    }
    let requested = all
        .iter()
        .map(|prompt| (prompt.prompt.id.as_str(), prompt.constraint.clone()));
    let constraints = Constraints::compile(generator, requested)?;
    let n_free = all
        .iter()
        .filter(|prompt| prompt.constraint == RequestedConstraint::Nothing)
        .count();
    if n_free > 0 {
        eprint_line(&format!(
            "eval.constrained: {n_free} of {} completions are unconstrained, because their rows \
             have neither a schema nor a turn that must call tools",
            all.len()
        ))?;
    }
    if let Some(line) = constraints.line(all.len()) {
        eprint_line(&line)?;
    }
    Ok(constraints)
}

fn complete_all(
    generator: &Generator<'_>,
    all: &[DisplayedPrompt],
    constraints: &Constraints,
    max_new_tokens: usize,
) -> Result<Vec<Completion>, Error> {
    let prompts = all.iter().enumerate().map(|(i, prompt)| GenerationRequest {
        id: &prompt.prompt.id,
        text: PromptText::Raw(&prompt.prompt.text),
        max_new_tokens,
        constraint: constraints.prompt_constraint(i),
    });
    let prompts: Vec<GenerationRequest<'_>> = prompts.collect();
    with_interruptible_progress(|watch| generator.write(&prompts, None, watch))
}

fn lines<'a>(
    all: &'a [DisplayedPrompt],
    texts: &'a [Completion],
) -> impl Iterator<Item = Line<'a>> {
    all.iter().zip(texts).map(|(prompt, completion)| Line {
        id: &prompt.prompt.id,
        prompt: &prompt.prompt.text,
        text: &completion.text,
        reference: prompt.prompt.reference.as_deref(),
        finish_reason: &completion.finish_reason,
        n_prompt_tokens: prompt.prompt.ids.len(),
        n_tokens: completion.n_tokens,
    })
}

fn print(
    all: &[DisplayedPrompt],
    texts: &[Completion],
    options: &GenerationOptions,
) -> Result<(), Error> {
    for (prompt, completion) in all.iter().zip(texts) {
        print_result(&format_completion(prompt, completion, options))?;
    }
    let n_references = all.iter().filter(|a| a.prompt.reference.is_some()).count();
    if n_references > 0 {
        let is_same =
            |(prompt, completion): &(&DisplayedPrompt, &Completion)| is_same(prompt, completion);
        let n_same = all.iter().zip(texts).filter(is_same).count();
        print_line(&format!(
            "{n_same} of {n_references} replies match their reference exactly"
        ))?;
    }
    let n_cut = texts.iter().filter(|completion| is_cut(completion)).count();
    let limits = match options.max_time {
        None => "eval.max_new_tokens",
        Some(_) => "eval.max_new_tokens or eval.max_time",
    };
    match n_cut {
        0 => Ok(()),
        n_cut => eprint_line(&format!(
            "{n_cut} of {} replies are CUT OFF; raise {limits} with --set",
            texts.len()
        )),
    }
}

fn is_same(prompt: &DisplayedPrompt, completion: &Completion) -> bool {
    prompt.prompt.reference.as_deref() == Some(&completion.text)
}

fn is_cut(completion: &Completion) -> bool {
    completion.finish_reason != FinishReason::Stop.name()
}

/// Formats a completion with its row, prompt, reference and finish reason.
fn format_completion(
    prompt: &DisplayedPrompt,
    completion: &Completion,
    options: &GenerationOptions,
) -> String {
    let reference = prompt.prompt.reference.as_deref();
    let reference = reference.map(|reference| {
        if is_same(prompt, completion) {
            "(same)"
        } else {
            reference
        }
    });
    let ended = match (completion.finish_reason.as_str(), options.max_time) {
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
        "{ended}; {} tokens after a prompt of {}",
        completion.n_tokens,
        prompt.prompt.ids.len()
    );
    let end = prompt.end.iter().map(|(role, text)| (*role, ending(text)));
    let fields = end
        .chain([("written", completion.text.clone())])
        .chain(reference.map(|text| ("reference", text.to_string())))
        .chain([("ended", ended)]);
    let mut output = format!("{}\n", prompt.prompt.id);
    for (label, text) in fields {
        // Indent all lines of a field after the first.
        let text = text
            .trim_end_matches('\n')
            .replace('\n', &format!("\n{:13}", ""));
        output.push_str(format!("  {label:<10} {text}").trim_end());
        output.push('\n');
    }
    output
}

/// Returns the last [`N_SHOWN`] characters of a text.
fn ending(text: &str) -> String {
    match text.char_indices().rev().nth(N_SHOWN - 1) {
        Some((from, _)) if from > 0 => format!("…{}", &text[from..]),
        _ => text.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(id: &str, n_tokens: usize, reference: Option<&str>) -> DisplayedPrompt {
        DisplayedPrompt {
            prompt: TokenizedPrompt {
                id: id.to_owned(),
                text: String::new(),
                ids: vec![7; n_tokens],
                n_messages: 1,
                reference: reference.map(str::to_owned),
                begins_example: true,
            },
            end: vec![("user", "Two\nlines".to_owned())],
            constraint: RequestedConstraint::Nothing,
        }
    }

    fn error(n_tokens: usize, max_new_tokens: usize) -> Option<String> {
        let all = [prompt("a:1", 1, None), prompt("a:2", n_tokens, None)];
        let fit = check_prompt_lengths(all.iter().map(|one| &one.prompt), max_new_tokens, 10);
        fit.err().map(|error| error.to_string())
    }

    #[test]
    fn a_prompt_without_room_for_its_completion_is_refused() {
        assert_eq!(error(6, 4), None);
        assert_eq!(
            error(7, 4).as_deref(),
            Some(
                "a:2: the prompt has 7 tokens; with eval.max_new_tokens = 4 that exceeds the \
                 model's context of 10 tokens (max_position_embeddings); lower \
                 eval.max_new_tokens with --set, or shorten the prompt"
            )
        );
        assert!(error(1, usize::MAX).is_some_and(|message| message.starts_with("a:1: ")));
        assert!(error(0, 4).is_some_and(|message| message.starts_with("a:2: the prompt is empty")));
    }

    #[test]
    fn a_completion_is_shown_with_its_prompt_and_finish_reason() {
        let options = GenerationOptions::greedy(3, 1, vec![2]);
        let completion = |text: &str, finish_reason: &str| Completion {
            text: text.to_owned(),
            finish_reason: finish_reason.to_owned(),
            n_tokens: 3,
            without_text: None,
            error: None,
            tool_calls: Vec::new(),
            rewritten: None,
        };
        assert_eq!(
            format_completion(
                &prompt("a:1", 5, Some("Yes.\nNo.")),
                &completion("Yes.", "length"),
                &options
            ),
            "a:1\n  user       Two\n             lines\n  written    Yes.\n  reference  Yes.\n             \
             No.\n  ended      CUT OFF at eval.max_new_tokens = 3; 3 tokens after a prompt of 5\n"
        );
        assert_eq!(
            format_completion(
                &prompt("a:1", 5, Some("Yes.")),
                &completion("Yes.", "stop"),
                &options
            ),
            "a:1\n  user       Two\n             lines\n  written    Yes.\n  reference  (same)\n  \
             ended      at a stop token; 3 tokens after a prompt of 5\n"
        );
        // The label is also printed for an empty field.
        let empty = format_completion(&prompt("a:1", 5, None), &completion("", "stop"), &options);
        assert!(empty.contains("lines\n  written\n  ended "), "{empty}");
    }

    #[test]
    fn the_end_of_a_long_text_is_shown() {
        let long = "é".repeat(N_SHOWN + 1);
        assert_eq!(ending(&long), format!("…{}", "é".repeat(N_SHOWN)));
        assert_eq!(ending(&long[2..]), &long[2..]);
    }
}
