//! The commands `data synth` and `data import`.

pub(super) mod files;
pub(super) mod goat;
pub(super) mod goat_review;
pub(super) mod graph;
mod mathqa;
pub(super) mod pipelines;
pub(super) mod shapes;
pub(super) mod slot;
pub(super) mod stats;
pub(super) mod tool_questions;
mod traces;

use std::cell::RefCell;
use std::path::Path;

use serde::Serialize;
use serde_json::json;
use tooltune_apis::{
    ApiBankSet, ApiCatalogue, ApiDocument, ImportedApis, LeftOut, OpenApiOptions, OperationNames,
    RequestBodies, import_apibank, import_mcp_file, import_openapi_examples_file,
    import_openapi_file, import_stabletoolbench,
};
use tooltune_endpoint::{McpClient, McpOptions};
use tooltune_synth::goat::{self as synth_goat, GoatSplit, GoatSynthOptions, SemanticEdge};
use tooltune_synth::graph::NamedEdge;
use tooltune_synth::import::{
    import_apibank_calls, import_apibank_dialogue_files, import_apibank_sources,
};
use tooltune_synth::slot::{SlotSynthOptions, Split, generate};

use super::new_file::{create, must_be_new};
use super::{print_line, write_stdout};
use crate::cli::{
    GoatSplitName, ImportArgs, ImportFormat, OperationNamesName, SplitName, SynthGoatArgs,
    SynthSlotArgs,
};
use crate::commands::data::shapes::import_rows;
use crate::error::Error;
use crate::eval::suites::mcp_error;
use crate::interrupt::{self, Interrupt};
use tooltune_terminal::Counted;

pub(super) fn synth_slot(args: &SynthSlotArgs) -> Result<(), Error> {
    must_be_new(&[("--output", args.output.as_deref())])?;
    let options = SlotSynthOptions {
        rows: args.rows,
        seed: args.seed,
        split: match args.split {
            SplitName::Train => Split::Train,
            SplitName::Dev => Split::Dev,
            SplitName::Test => Split::Test,
        },
    };
    write_lines("rows", generate(&options), args.output.as_deref())
}

pub(super) fn synth_goat(args: &SynthGoatArgs) -> Result<(), Error> {
    must_be_new(&[
        ("--output", args.output.as_deref()),
        ("--documents", args.documents.as_deref()),
        ("--edges", args.edges.as_deref()),
    ])?;
    let split = match args.split {
        GoatSplitName::Train => GoatSplit::Train,
        GoatSplitName::Dev => GoatSplit::Dev,
        GoatSplitName::TestSeen => GoatSplit::TestSeen,
        GoatSplitName::TestUnseen => GoatSplit::TestUnseen,
    };
    let trajectories = synth_goat::generate(&GoatSynthOptions {
        rows: args.rows.unwrap_or(split.default_rows()),
        seed: args.seed,
        split,
        max_calls: args.max_calls,
    })?;
    write_lines("trajectories", &trajectories, args.output.as_deref())?;
    if let Some(path) = &args.documents {
        write_lines("API documents", synth_goat::documents(), Some(path))?;
    }
    let Some(path) = &args.edges else {
        return Ok(());
    };
    let with_names = |edge: SemanticEdge| NamedEdge {
        source: edge.source,
        target: edge.target,
        parameter: edge.parameter,
        field: Some(edge.path),
        score: None,
        reason: None,
    };
    let mut edges: Vec<NamedEdge> = synth_goat::semantic_edges()
        .into_iter()
        .map(with_names)
        .collect();
    // Edges that use different values of the same output count as one edge.
    edges.dedup_by_key(|edge| edge.label());
    write_lines("edges", &edges, Some(path))
}

pub(super) fn import(args: &ImportArgs) -> Result<(), Error> {
    refuse_options_of_others(args)?;
    must_be_new(&[
        ("--output", Some(&args.output)),
        ("--responses", args.responses.as_deref()),
    ])?;
    if let Some(command) = &args.command {
        return write_documents(args, list_mcp_tools(command, &args.environment)?);
    }
    if args.format == ImportFormat::Traces {
        return traces::import(args);
    }
    if import_rows(args)?.is_some() {
        return Ok(());
    }
    if args.format == ImportFormat::Mathqa {
        return mathqa::import(args);
    }
    if args.format == ImportFormat::Toolqa {
        return tool_questions::import(args);
    }
    if args.format == ImportFormat::ApibankCalls {
        return import_calls(args);
    }
    let [file] = args.files.as_slice() else {
        return Err(Error::Usage(format!(
            "{} files are named, but this layout needs exactly one",
            args.files.len()
        )));
    };
    let imported = match args.format {
        ImportFormat::ApibankDialogues => {
            let rows = import_apibank_dialogue_files(file)?;
            return write_lines("dialogues", rows, Some(&args.output));
        }
        ImportFormat::ApibankLevel3 if file.is_dir() => {
            import_apibank_sources(file, ApiBankSet::Level3).map(without_omissions)?
        }
        ImportFormat::ApibankLevel12 if file.is_dir() => {
            import_apibank_sources(file, ApiBankSet::Levels1And2).map(without_omissions)?
        }
        _ => imported_documents(args, file)?,
    };
    write_documents(args, imported)?;
    match &args.responses {
        Some(responses) => write_examples(file, operation_names(args), responses),
        None => Ok(()),
    }
}

/// Rejects options of other layouts.
fn refuse_options_of_others(args: &ImportArgs) -> Result<(), Error> {
    let is_openapi = args.format == ImportFormat::Openapi;
    let has_names = args.names != OperationNamesName::OperationIds;
    for (option, is_given, layouts, is_accepted, others) in [
        (
            "--no-bodies",
            args.no_bodies,
            "layout openapi",
            is_openapi,
            "have no request bodies",
        ),
        (
            "--responses",
            args.responses.is_some(),
            "layouts openapi and toolqa",
            is_openapi || args.format == ImportFormat::Toolqa,
            "have no responses",
        ),
        (
            "--names",
            has_names,
            "layout openapi",
            is_openapi,
            "have only one name per API",
        ),
        (
            "--command",
            args.command.is_some(),
            "layout mcp",
            args.format == ImportFormat::Mcp,
            "are read from files",
        ),
    ] {
        if is_given && !is_accepted {
            return Err(Error::Usage(format!(
                "{option} only applies to the {layouts}; other layouts {others}"
            )));
        }
    }
    for (given, format, layout) in [
        (args.mathqa.first_given(), ImportFormat::Mathqa, "mathqa"),
        (args.traces.first_given(), ImportFormat::Traces, "traces"),
    ] {
        if let Some(option) = given.filter(|_| args.format != format) {
            return Err(Error::Usage(format!(
                "{option} only applies to the layout {layout}; omit it"
            )));
        }
    }
    Ok(())
}

fn operation_names(args: &ImportArgs) -> OperationNames {
    match args.names {
        OperationNamesName::OperationIds => OperationNames::Ids,
        OperationNamesName::Paths => OperationNames::Paths,
    }
}

fn without_omissions(documents: Vec<ApiDocument>) -> ImportedApis {
    ImportedApis {
        documents,
        left_out: LeftOut::default(),
    }
}

fn imported_documents(args: &ImportArgs, file: &Path) -> Result<ImportedApis, Error> {
    let progress = RefCell::new(None);
    let unit = match args.format {
        ImportFormat::Mcp => "tools",
        _ => "operations",
    };
    let watch = |n_read: usize, n_all: usize| {
        let mut progress = progress.borrow_mut();
        progress
            .get_or_insert_with(|| Counted::begin(unit, n_all))
            .advance(n_read);
    };
    let options = OpenApiOptions {
        bodies: match args.no_bodies {
            true => RequestBodies::LeftOut,
            false => RequestBodies::AsParameters,
        },
        names: operation_names(args),
        watch: &watch,
    };
    Ok(match args.format {
        ImportFormat::Apibank => import_apibank(file, ApiBankSet::All).map(without_omissions),
        ImportFormat::ApibankLevel3 => {
            import_apibank(file, ApiBankSet::Level3).map(without_omissions)
        }
        ImportFormat::ApibankLevel12 => {
            import_apibank(file, ApiBankSet::Levels1And2).map(without_omissions)
        }
        ImportFormat::Stabletoolbench => import_stabletoolbench(file).map(without_omissions),
        ImportFormat::Mcp => import_mcp_file(file, &watch),
        _ => import_openapi_file(file, options),
    }?)
}

/// Imports the calls in API-Bank's reference answers as a recording.
fn import_calls(args: &ImportArgs) -> Result<(), Error> {
    let calls = import_apibank_calls(&args.files)?;
    write_lines("recorded calls", calls.rows, Some(&args.output))?;
    if calls.n_repeated > 0 {
        print_line(&format!(
            "{} calls repeat an earlier call, {} of them with a different result; the first result is \
             used",
            calls.n_repeated, calls.n_different
        ))?;
    }
    Ok(())
}

/// Imports the examples of a specification as canned responses, and lists operations without one.
fn write_examples(file: &Path, names: OperationNames, output: &Path) -> Result<(), Error> {
    let imported = import_openapi_examples_file(file, names)?;
    let rows = imported
        .responses
        .iter()
        .map(|(api, response)| json!({"api": api, "response": response}));
    write_lines("responses", rows, Some(output))?;
    if imported.n_empty > 0 {
        print_line(&format!(
            "{} of them are null, because their operations return no content",
            imported.n_empty
        ))?;
    }
    if !imported.without.is_empty() {
        print_line(&format!(
            "{} operations have no example, so canned calls to them fail: {}",
            imported.without.len(),
            imported.without.join(", ")
        ))?;
    }
    Ok(())
}

/// Starts an MCP server with `command` and lists its tools. A signal also ends the server.
fn list_mcp_tools(command: &str, environment: &[String]) -> Result<ImportedApis, Error> {
    let words = shlex::split(command).ok_or_else(|| {
        Error::Usage(format!(
            "--command {command:?}: unmatched quotation mark; close the quotation"
        ))
    })?;
    let options = McpOptions {
        environment: environment.to_vec(),
        ..McpOptions::new(words)
    };
    let _interrupt = Interrupt::begin();
    let failed = |error| mcp_error("--command", &error);
    let mut client = McpClient::start(&options, interrupt::flag()).map_err(failed)?;
    Ok(client.tools().map_err(failed)?.apis)
}

fn write_documents(args: &ImportArgs, imported: ImportedApis) -> Result<(), Error> {
    let ImportedApis {
        documents,
        left_out,
    } = imported;
    let (catalogue, repeated) = ApiCatalogue::without_duplicates(documents);
    if !repeated.is_empty() {
        print_line(&format!(
            "ignored {} documents that repeat the name of an earlier one: {}",
            repeated.len(),
            repeated.join(", ")
        ))?;
    }
    write_lines("API documents", catalogue.documents(), Some(&args.output))?;
    if !left_out.is_empty() {
        print_line("not carried over from the source:")?;
    }
    for line in left_out.lines() {
        print_line(&format!("  {line}"))?;
    }
    Ok(())
}

/// Writes one JSON line per item to a new file, or to the terminal.
///
/// # Errors
///
/// The file exists, or it cannot be written completely; [`Error::ReaderGone`] if the reader closed
/// the output.
pub(super) fn write_lines<T: Serialize>(
    what: &str,
    items: impl IntoIterator<Item = T>,
    path: Option<&Path>,
) -> Result<(), Error> {
    let mut bytes = Vec::new();
    let mut n = 0;
    for item in items {
        serde_json::to_writer(&mut bytes, &item).map_err(|e| Error::Usage(e.to_string()))?;
        bytes.push(b'\n');
        n += 1;
    }
    let Some(path) = path else {
        return write_stdout(&bytes);
    };
    create(path, &bytes)?;
    print_line(&format!("{n} {what} in {}", path.display()))
}
