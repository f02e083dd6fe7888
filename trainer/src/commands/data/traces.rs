//! `data import traces`: traces of agents become rows of messages.

use tooltune_rows::text::read_tools;
use tooltune_traces::{Counts, TraceOptions, TraceReport, TraceSource, import_traces};

use crate::cli::{ImportArgs, TraceSourceName};
use crate::commands::new_file::create_with;
use crate::commands::print_line;
use crate::error::Error;

pub(super) fn import(args: &ImportArgs) -> Result<(), Error> {
    let traces = &args.traces;
    let options = TraceOptions {
        source: traces.source.map(|source| match source {
            TraceSourceName::Otlp => TraceSource::Otlp,
            TraceSourceName::Requests => TraceSource::Requests,
            TraceSourceName::ClaudeCode => TraceSource::ClaudeCode,
            TraceSourceName::Codex => TraceSource::Codex,
            TraceSourceName::Langchain => TraceSource::Langchain,
        }),
        rules: traces.redact.clone(),
        keep: traces.keep.clone(),
        also: traces.also.clone(),
        outcome: traces.outcome.clone(),
        min_outcome: traces.min_outcome,
        tools: traces.tools.as_deref().map(read_tools).transpose()?,
    };
    let mut imported = import_traces(&args.files, &options)?;
    create_with(&args.output, |output| imported.write_to(output))?;
    let report = &imported.report;
    print_line(&format!(
        "{} rows in {}, from {} conversations in {} entries",
        report.n_rows,
        args.output.display(),
        report.n_conversations,
        report.n_entries
    ))?;
    for line in count_lines(report) {
        print_line(&line)?;
    }
    Ok(())
}

/// One line per count that is not 0.
fn count_lines(report: &TraceReport) -> Vec<String> {
    let duplicates = [
        (report.n_equal, "equal to another conversation"),
        (report.n_beginnings, "the beginning of another conversation"),
    ];
    let duplicates = duplicates.into_iter().filter(|(n, _)| *n > 0);
    let mut lines: Vec<String> = duplicates
        .map(|(n, what)| format!("{n} dropped: {what}"))
        .collect();
    let mut add = |what: &str, counts: &Counts| {
        for (reason, count) in counts.iter() {
            let (n, first) = (count.n, &count.first);
            lines.push(format!("{n} {what}: {reason} (first: {first})"));
        }
    };
    add("dropped", &report.dropped);
    add("changed", &report.repaired);
    add("left out", &report.left_out);
    add("redacted", &report.redacted);
    lines
}
