//! `data import mathqa`.

use tooltune_apis::ToolsError;
use tooltune_suites::mathqa::{
    MathQaRows, RowPrompt, ToolShortlist, import_mathqa, math_tool_specs,
};

use super::write_lines;
use crate::cli::{ImportArgs, MathQaArgs};
use crate::commands::new_file::{create, must_be_new};
use crate::commands::print_line;
use crate::error::Error;

/// Imports MathQA as NESTFUL rows.
pub(super) fn import(args: &ImportArgs) -> Result<(), Error> {
    let [file] = args.files.as_slice() else {
        return Err(Error::Usage(format!(
            "{} files are named, but this layout needs exactly one; import each split by itself",
            args.files.len()
        )));
    };
    let options = &args.mathqa;
    must_be_new(&[
        ("--prompt-completion", options.prompt_completion.as_deref()),
        ("--tools-output", options.tools_output.as_deref()),
    ])?;
    let shortlist = shortlist(options);
    let records = tooltune_files::open(file).map_err(ToolsError::from)?;
    let imported = import_mathqa(records, &shortlist)?;
    let lines: String = imported.rows.iter().map(|row| row.line() + "\n").collect();
    create(&args.output, lines.as_bytes())?;
    print_line(&format!(
        "{} rows in {}, of {} entries",
        imported.rows.len(),
        args.output.display(),
        imported.n_entries
    ))?;
    if let Some(path) = &options.prompt_completion {
        let rows = imported.rows.iter();
        let rows: Result<Vec<_>, _> = rows.map(|row| shortlist.prompt.training_row(row)).collect();
        let rows = rows.map_err(Error::from)?;
        write_lines("prompt-completion rows", rows, Some(path))?;
    }
    if let Some(tools) = &options.tools_output {
        let specs = math_tool_specs();
        let specs = specs.iter().filter_map(|tool| tool.spec.to_json());
        write_lines("tools", specs, Some(tools))?;
    }
    print_counts(&imported)
}

fn shortlist(options: &MathQaArgs) -> ToolShortlist {
    let tools = options.tools_per_row.clone().unwrap_or(7..=21);
    ToolShortlist {
        min: *tools.start(),
        max: *tools.end(),
        max_prompt_chars: options.max_prompt_chars.unwrap_or(16_000),
        seed: options.seed.unwrap_or(17),
        prompt: RowPrompt::new(options.family.as_deref(), options.n_examples),
    }
}

fn print_counts(imported: &MathQaRows) -> Result<(), Error> {
    for (reason, dropped) in &imported.dropped {
        print_line(&format!(
            "{} dropped: {reason}; the first is {}",
            dropped.n, dropped.example
        ))?;
    }
    let counts = imported.shortlists;
    for (n, what) in [
        (imported.n_single_calls, "rows have a single call"),
        (
            counts.n_too_long,
            "prompts exceed --max-prompt-chars without any random tool",
        ),
        (
            counts.n_limited,
            "rows have fewer random tools because of --max-prompt-chars",
        ),
    ] {
        if n > 0 {
            print_line(&format!("{n} {what}"))?;
        }
    }
    Ok(())
}
