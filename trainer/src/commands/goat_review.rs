//! People say of trajectories what becomes of them (`data goat review-file`, `data goat
//! apply-review`).

use tooltune_pipelines::goat::{Reviewed, apply_review, review_lines};
use tooltune_rows::regular_file;
use tooltune_rows::text::all_rows;
use tooltune_rows::tools::{ApiCatalogue, read_checked_trajectories, read_trajectories};

use super::data::write_lines;
use super::print_line;
use crate::cli::{ApplyReviewArgs, GoatRowsCommand, ReviewFileArgs};
use crate::error::Error;

pub(super) fn run(command: &GoatRowsCommand) -> Result<(), Error> {
    match command {
        GoatRowsCommand::ReviewFile(args) => review_file(args),
        GoatRowsCommand::ApplyReview(args) => apply(args),
    }
}

fn review_file(args: &ReviewFileArgs) -> Result<(), Error> {
    let rows = all_rows(read_trajectories(&args.rows)?)?;
    // It may hold hours of somebody's work.
    if regular_file::is_there(&args.output).map_err(Error::io(&args.output, "read"))? {
        return Err(Error::Usage(format!(
            "{} is there already and may have verdicts; name another --output",
            args.output.display()
        )));
    }
    write_lines("rows to review", review_lines(&rows), Some(&args.output))
}

fn apply(args: &ApplyReviewArgs) -> Result<(), Error> {
    let catalogue = ApiCatalogue::read(&args.documents)?;
    let rows = all_rows(read_checked_trajectories(&args.rows, &catalogue)?)?;
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
        "{n_accepted} accepted, {n_edited} edited, {n_rejected} rejected, {n_without_verdict} without \
         a verdict and left out"
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
