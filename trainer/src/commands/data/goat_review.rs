//! `data goat review-file` and `data goat apply-review`, for manual reviews of trajectories.

use tooltune_apis::{ApiCatalogue, read_checked_trajectories, read_trajectories};
use tooltune_disk::regular_file;
use tooltune_json::faults::collect_rows;
use tooltune_pipelines::goat::{Reviewed, apply_review, review_lines};

use crate::cli::{ApplyReviewArgs, GoatRowsCommand, ReviewFileArgs};
use crate::commands::data::write_lines;
use crate::commands::new_file::must_be_new;
use crate::commands::print_line;
use crate::error::Error;

pub(in crate::commands) fn run(command: &GoatRowsCommand) -> Result<(), Error> {
    match command {
        GoatRowsCommand::ReviewFile(args) => review_file(args),
        GoatRowsCommand::ApplyReview(args) => apply(args),
    }
}

fn review_file(args: &ReviewFileArgs) -> Result<(), Error> {
    let rows = collect_rows(read_trajectories(&args.rows)?)?;
    // An existing file may contain hours of review work.
    if regular_file::is_there(&args.output).map_err(Error::io(&args.output, "read"))? {
        return Err(Error::Usage(format!(
            "{} already exists and may contain verdicts; name another --output",
            args.output.display()
        )));
    }
    write_lines("rows to review", review_lines(&rows), Some(&args.output))
}

fn apply(args: &ApplyReviewArgs) -> Result<(), Error> {
    must_be_new(&[("--output", Some(&args.output))])?;
    let catalogue = ApiCatalogue::read(&args.documents)?;
    let rows = collect_rows(read_checked_trajectories(&args.rows, &catalogue)?)?;
    let reviewed = apply_review(rows, &catalogue, &args.review)?;
    write_lines("trajectories", &reviewed.rows, Some(&args.output))?;
    let Reviewed {
        n_accepted,
        n_edited,
        rejected,
        n_without_verdict,
        ..
    } = reviewed;
    let n_rejected: usize = rejected.values().sum();
    print_line(&format!(
        "{n_accepted} accepted, {n_edited} edited, {n_rejected} rejected, {n_without_verdict} \
         dropped without a verdict"
    ))?;
    for (reason, n) in &rejected {
        let reason = if reason.is_empty() {
            "no reason given"
        } else {
            reason
        };
        print_line(&format!("  rejected {n}: {reason}"))?;
    }
    Ok(())
}
