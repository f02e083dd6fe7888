//! `data slot`: generates SLOT rows with a model and shows their complexity.

use std::path::Path;

use comfy_table::{CellAlignment, Table, presets};
use tooltune_disk::atomic::write_atomic;
use tooltune_pipelines::RunContext;
use tooltune_pipelines::slot::{
    ROWS_FILE, SetComplexity, SlotOptions, SlotPipeline, complexity_of_file,
};
use tooltune_report::{MeasuredSet, render_complexity};

use crate::cli::DataSlotArgs;
use crate::commands::data::pipelines::{
    View, print_notes, print_plan, print_report, with_generator, with_model_info, with_report,
};
use crate::commands::{DeviceOption, print_line};
use crate::error::Error;

/// Page with the complexity chart.
const PAGE_FILE: &str = "complexity.html";

pub(in crate::commands) fn run(
    args: &DataSlotArgs,
    device_option: &DeviceOption,
) -> Result<(), Error> {
    let pipeline = SlotPipeline::read(options(args), args.pipeline.prompts.as_deref())?;
    if args.pipeline.dry_run {
        let dir = &args.pipeline.output;
        let plans = with_model_info(&args.generator, |model| Ok(pipeline.plan(dir, model)?))?;
        return print_plan(&args.pipeline, &plans);
    }
    // Read the files of --compare first, so that errors in them cost no request.
    let others: Vec<SetComplexity> = args
        .compare
        .iter()
        .map(|file| Ok(complexity_of_file(&file.display().to_string(), file)?))
        .collect::<Result<_, Error>>()?;
    let _lock = args.pipeline.lock()?;
    let outcome = with_generator(&args.generator, device_option, |generator| {
        let mut view = View::begin(&args.pipeline);
        let outcome = pipeline.run(RunContext {
            dir: &args.pipeline.output,
            generator,
            limits: args.pipeline.limits(),
            only: args.pipeline.stage.as_deref(),
            ask_again: args.pipeline.ask_again.as_deref(),
            watch: &mut |progress| view.show(progress),
        });
        drop(view);
        with_report(&args.pipeline, outcome)
    })?;
    print_notes(&outcome.notes)?;
    print_report(&args.pipeline, &outcome.report)?;
    let n_rows = outcome.report.stages.last().map_or(0, |stage| stage.n_kept);
    if !outcome.is_complete || n_rows == 0 {
        return Ok(());
    }
    compare(&args.pipeline.output, others)
}

fn options(args: &DataSlotArgs) -> SlotOptions {
    SlotOptions {
        rows: args.rows,
        seed: args.pipeline.seed,
        demonstrations: args.demonstrations.clone(),
        texts: args.texts.clone(),
        reply_tokens: args.reply_tokens,
        verdict_tokens: args.verdict_tokens,
    }
}

/// Compares the complexity of the result with other data sets, in a table and on a page.
fn compare(dir: &Path, others: Vec<SetComplexity>) -> Result<(), Error> {
    let rows = dir.join(ROWS_FILE);
    let mut sets = vec![complexity_of_file(&rows.display().to_string(), &rows)?];
    sets.extend(others);
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    let names = sets[0].means.iter().map(|(name, _)| *name);
    table.set_header(["mean of", "rows"].into_iter().chain(names));
    for set in &sets {
        let means = set.means.iter().map(|(_, mean)| format!("{mean:.1}"));
        let head = [set.name.clone(), set.n_rows.to_string()];
        table.add_row(head.into_iter().chain(means));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    print_line(&table.trim_fmt())?;
    let measured: Vec<MeasuredSet> = sets.into_iter().map(measure_set).collect();
    let page = dir.join(PAGE_FILE);
    write_atomic(&page, render_complexity(&measured)?.as_bytes())?;
    let (rows, page) = (rows.display(), page.display());
    print_line(&format!(
        "{} rows in {rows}; their complexity in {page}",
        measured[0].n_rows
    ))
}

fn measure_set(set: SetComplexity) -> MeasuredSet {
    MeasuredSet {
        name: set.name,
        n_rows: set.n_rows,
        means: set
            .means
            .into_iter()
            .map(|(name, mean)| (name.to_owned(), mean))
            .collect(),
    }
}
