//! `data synth` and `data import`.

use std::io::Write;
use std::path::Path;

use serde::Serialize;
use serde_json::json;
use tooltune_endpoint::{McpClient, McpOptions};
use tooltune_rows::tools::{
    ApiBankSet, ApiCatalogue, ApiDocument, ImportedApis, LeftOut, RequestBodies, import_apibank,
    import_mcp_file, import_openapi_examples_file, import_openapi_file, import_stabletoolbench,
};
use tooltune_synth::goat::{self, GoatSplit, GoatSynthOptions, SemanticEdge};
use tooltune_synth::graph::NamedEdge;
use tooltune_synth::import::{
    import_apibank_calls, import_apibank_dialogue_files, import_apibank_sources,
};
use tooltune_synth::slot::{SlotSynthOptions, Split, generate};

use super::data_shapes::import_rows;
use super::print_line;
use crate::cli::{
    GoatSplitName, ImportArgs, ImportFormat, SplitName, SynthGoatArgs, SynthSlotArgs,
};
use crate::error::Error;
use crate::eval::suites::mcp_error;
use crate::interrupt::{self, Interrupt};

pub(super) fn synth_slot(args: &SynthSlotArgs) -> Result<(), Error> {
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
    let split = match args.split {
        GoatSplitName::Train => GoatSplit::Train,
        GoatSplitName::Dev => GoatSplit::Dev,
        GoatSplitName::TestSeen => GoatSplit::TestSeen,
        GoatSplitName::TestUnseen => GoatSplit::TestUnseen,
    };
    let trajectories = goat::generate(&GoatSynthOptions {
        rows: args.rows.unwrap_or(split.default_rows()),
        seed: args.seed,
        split,
        max_calls: args.max_calls,
    })?;
    write_lines("trajectories", &trajectories, args.output.as_deref())?;
    if let Some(path) = &args.documents {
        write_lines("API documents", goat::documents(), Some(path))?;
    }
    let Some(path) = &args.edges else {
        return Ok(());
    };
    let named = |edge: SemanticEdge| NamedEdge {
        source: edge.source,
        target: edge.target,
        parameter: edge.parameter,
        field: Some(edge.path),
        score: None,
        reason: None,
    };
    let mut edges: Vec<NamedEdge> = goat::semantic_edges().into_iter().map(named).collect();
    // An output may hold several values of a kind; the edge is one.
    edges.dedup_by_key(|edge| edge.label());
    write_lines("edges", &edges, Some(path))
}

pub(super) fn import(args: &ImportArgs) -> Result<(), Error> {
    if args.no_bodies && args.format != ImportFormat::Openapi {
        return Err(Error::Usage(
            "--no-bodies is for the layout openapi; no other one has request bodies".to_string(),
        ));
    }
    if args.responses.is_some() && args.format != ImportFormat::Openapi {
        return Err(Error::Usage(
            "--responses is for the layout openapi; no other one has examples of responses"
                .to_string(),
        ));
    }
    if args.command.is_some() && args.format != ImportFormat::Mcp {
        return Err(Error::Usage(
            "--command is for the layout mcp; the others are read from files".to_string(),
        ));
    }
    if let Some(command) = &args.command {
        return write_documents(args, tools_of(command, &args.environment)?);
    }
    if import_rows(args)?.is_some() {
        return Ok(());
    }
    if args.format == ImportFormat::ApibankCalls {
        return import_calls(args);
    }
    let [file] = args.files.as_slice() else {
        return Err(Error::Usage(format!(
            "{} files are named; this layout takes one",
            args.files.len()
        )));
    };
    let bodies = if args.no_bodies {
        RequestBodies::LeftOut
    } else {
        RequestBodies::AsParameters
    };
    let imported = match args.format {
        ImportFormat::ApibankDialogues => {
            let rows = import_apibank_dialogue_files(file)?;
            return write_lines("dialogues", rows, Some(&args.output));
        }
        ImportFormat::ApibankLevel3 if file.is_dir() => {
            import_apibank_sources(file, ApiBankSet::Level3).map(whole)?
        }
        ImportFormat::ApibankLevel12 if file.is_dir() => {
            import_apibank_sources(file, ApiBankSet::Levels1And2).map(whole)?
        }
        _ => imported_documents(args.format, file, bodies)?,
    };
    write_documents(args, imported)?;
    match &args.responses {
        Some(responses) => write_examples(file, responses),
        None => Ok(()),
    }
}

fn whole(documents: Vec<ApiDocument>) -> ImportedApis {
    ImportedApis {
        documents,
        left_out: LeftOut::default(),
    }
}

fn imported_documents(
    format: ImportFormat,
    file: &Path,
    bodies: RequestBodies,
) -> Result<ImportedApis, Error> {
    Ok(match format {
        ImportFormat::Apibank => import_apibank(file, ApiBankSet::All).map(whole),
        ImportFormat::ApibankLevel3 => import_apibank(file, ApiBankSet::Level3).map(whole),
        ImportFormat::ApibankLevel12 => import_apibank(file, ApiBankSet::Levels1And2).map(whole),
        ImportFormat::Stabletoolbench => import_stabletoolbench(file).map(whole),
        ImportFormat::Mcp => import_mcp_file(file),
        _ => import_openapi_file(file, bodies),
    }?)
}

/// The calls of API-Bank's right answers as a recording.
fn import_calls(args: &ImportArgs) -> Result<(), Error> {
    let calls = import_apibank_calls(&args.files)?;
    write_lines("recorded calls", calls.rows, Some(&args.output))?;
    if calls.n_repeated > 0 {
        print_line(&format!(
            "{} calls repeat an earlier one, {} of them with another result; the first counts",
            calls.n_repeated, calls.n_different
        ))?;
    }
    Ok(())
}

/// The examples of a specification as canned responses, and which operations have none.
fn write_examples(file: &Path, output: &Path) -> Result<(), Error> {
    let found = import_openapi_examples_file(file)?;
    let rows = found
        .responses
        .iter()
        .map(|(api, response)| json!({"api": api, "response": response}));
    write_lines("responses", rows, Some(output))?;
    if found.n_empty > 0 {
        print_line(&format!(
            "{} of them are null, because their operations return nothing",
            found.n_empty
        ))?;
    }
    if !found.without.is_empty() {
        print_line(&format!(
            "{} operations have no example, and canned calls of them fail: {}",
            found.without.len(),
            found.without.join(", ")
        ))?;
    }
    Ok(())
}

/// The tools of the server that a command starts; a signal ends the server, too.
fn tools_of(command: &str, environment: &[String]) -> Result<ImportedApis, Error> {
    let words = shlex::split(command).ok_or_else(|| {
        Error::Usage(format!(
            "--command {command:?}: a quotation mark has no partner"
        ))
    })?;
    let options = McpOptions {
        environment: environment.to_vec(),
        ..McpOptions::new(words)
    };
    let _interrupt = Interrupt::begin();
    let failed = |error| mcp_error("--command", &error);
    let mut client = McpClient::start(&options, interrupt::flag()).map_err(failed)?;
    client.tools().map_err(failed)
}

fn write_documents(args: &ImportArgs, imported: ImportedApis) -> Result<(), Error> {
    let ImportedApis {
        documents,
        left_out,
    } = imported;
    let (catalogue, repeated) = ApiCatalogue::without_repeats(documents);
    if !repeated.is_empty() {
        print_line(&format!(
            "{} documents repeat the name of an earlier one and are left out: {}",
            repeated.len(),
            repeated.join(", ")
        ))?;
    }
    write_lines("API documents", catalogue.documents(), Some(&args.output))?;
    if !left_out.is_empty() {
        print_line("what the documents do not hold of the source:")?;
    }
    for line in left_out.lines() {
        print_line(&format!("  {line}"))?;
    }
    Ok(())
}

/// One JSON line each, to a file with its folder, or to the terminal.
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
        let mut output = std::io::stdout();
        return output
            .write_all(&bytes)
            .and_then(|()| output.flush())
            .map_err(Error::io(Path::new("standard output"), "write"));
    };
    if let Some(parent) = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
    {
        std::fs::create_dir_all(parent).map_err(Error::io(parent, "create"))?;
    }
    tooltune_checkpoints::atomic::write_atomic(path, &bytes)?;
    print_line(&format!("{n} {what} in {}", path.display()))
}
