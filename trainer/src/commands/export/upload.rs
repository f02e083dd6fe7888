//! Uploads an export (`export --push-to-hub`). Checks the token and repository before writing
//! anything, and retries a failed upload without exporting again.

use std::path::Path;

use tooltune_hub::{Hub, KeptCard, Pushed, Upload, UploadTarget};
use tooltune_json::printable;

use crate::cli::ExportArgs;
use crate::commands::export::pending_upload::PendingUpload;
use crate::commands::{count_noun, eprint_line, print_line};
use crate::error::Error;
use tooltune_terminal::Fetching;

/// Maximum number of files listed in a message.
const MAX_LISTED: usize = 5;

/// Runs `write` unless an earlier command already wrote the export, then uploads it to `repo`.
pub(in crate::commands) fn run(
    args: &ExportArgs,
    repo: &str,
    write: impl FnOnce() -> Result<(), Error>,
) -> Result<(), Error> {
    let output = args.output.as_deref().unwrap_or(Path::new(""));
    let config = args.model.config(&[])?;
    let checkpoint = match args.model.checkpoint()? == "base" {
        true => None,
        false => Some(args.model.adapter(&config)?),
    };
    let input_digest = PendingUpload::input_digest(args, &config, checkpoint.as_deref())?;
    let is_pending = PendingUpload::is_pending(output, &input_digest)?;
    if !is_pending && std::fs::symlink_metadata(output).is_ok() {
        // `write` rejects the existing output. Call it before a repository is created.
        return write();
    }
    let hub = Hub::from_process_environment()?;
    let target = {
        let progress = Fetching::begin(repo.to_owned());
        hub.prepare_upload(repo, args.private, &|event| progress.show_event(event))?
    };
    if is_pending {
        eprint_line(&format!(
            "{} was already written, but not uploaded; uploading it now",
            output.display()
        ))?;
    } else {
        PendingUpload::begin(output, &input_digest)?;
        if let Err(error) = write() {
            // Ignore this error, because the first error is reported.
            let _ = PendingUpload::remove_record(output);
            return Err(error);
        }
        PendingUpload::write_record(output, &input_digest)?;
    }
    push(&hub, &target, args, output)?;
    PendingUpload::remove_record(output)
}

/// Uploads the export.
fn push(hub: &Hub, target: &UploadTarget, args: &ExportArgs, output: &Path) -> Result<(), Error> {
    let repo = args.push_to_hub.as_deref().unwrap_or_default();
    let upload = Upload {
        target,
        path: output,
        replaces_card: args.replace_card,
        message: "Upload with tooltune",
    };
    let progress = Fetching::begin(format!("{} -> {repo}", output.display()));
    let pushed = hub.push(upload, &|event| progress.show_event(event));
    let pushed = pushed.map_err(|source| Error::NotPushed {
        output: output.to_owned(),
        source: Box::new(source),
    })?;
    let summary = progress
        .summary()
        .unwrap_or_else(|| "no new files".to_owned());
    drop(progress);
    report(repo, &pushed, &summary)
}

/// Prints the result of an upload.
fn report(repo: &str, pushed: &Pushed, summary: &str) -> Result<(), Error> {
    if let Some(kept_card) = pushed.kept_card {
        let why = match kept_card {
            KeptCard::OfOthers => "was written or edited by someone else",
            KeptCard::Unread => "cannot be read from the hub, so its author is unknown,",
        };
        eprint_line(&format!(
            "{repo}: its README.md {why} and is kept; use --replace-card to replace it"
        ))?;
    }
    if !pushed.is_listed {
        eprint_line(&format!(
            "{repo}: the hub did not list the files of the repository, so files of an earlier \
             export were not deleted; check {}",
            pushed.page
        ))?;
    }
    let Some(commit) = &pushed.commit else {
        return print_line(&format!("{} already has all files unchanged", pushed.page));
    };
    print_line(&format!("{} has {summary}, commit {commit}", pushed.page))?;
    if let Some(files) = list_files(&pushed.deleted, "an earlier export") {
        print_line(&format!("the commit deletes {files}"))?;
    }
    match list_files(&pushed.kept, "earlier exports") {
        Some(files) => print_line(&format!(
            "the repository keeps {files}; delete the outdated ones on {}",
            pushed.page
        )),
        None => Ok(()),
    }
}

/// Counts and lists files, as in `2 files of an earlier export: a, b`; `None` if there are none.
fn list_files(names: &[String], origin: &str) -> Option<String> {
    let listed: Vec<String> = (names.iter().take(MAX_LISTED))
        .map(|name| printable::name(name))
        .collect();
    let more = match names.len().saturating_sub(MAX_LISTED) {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    let n = count_noun(names.len(), "file");
    (!names.is_empty()).then(|| format!("{n} of {origin}: {}{more}", listed.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_earlier_exports_are_named_and_counted() {
        assert_eq!(list_files(&[], "an earlier export"), None);
        let one = ["model.safetensors\u{1b}".to_owned()];
        assert_eq!(
            list_files(&one, "an earlier export").as_deref(),
            Some("1 file of an earlier export: model.safetensors\\u{1b}")
        );
        let many: Vec<String> = (0..7).map(|n| n.to_string()).collect();
        let text = list_files(&many, "earlier exports").expect("files");
        assert_eq!(text, "7 files of earlier exports: 0, 1, 2, 3, 4 and 2 more");
    }
}
