//! The commands `data convert` and `data cache`.

use tooltune_disk::atomic::create_with;
use tooltune_files::{FileFormat, convert as convert_rows};

use crate::cli::{CacheArgs, ConvertArgs};
use crate::commands::new_file::create_parent;
use crate::commands::print_line;
use crate::error::Error;
use crate::examples::ExampleCache;
use tooltune_terminal::RowsProgress;

pub(in crate::commands) fn convert(args: &ConvertArgs) -> Result<(), Error> {
    let format =
        FileFormat::from_path(&args.output).map_err(|error| Error::Usage(error.to_string()))?;
    let output = args.output.as_path();
    create_parent(output)?;
    let mut progress = RowsProgress::with_labels("converting rows", "read", []);
    let done = create_with(output, |file| {
        convert_rows(&args.files, format, file, &mut || progress.row()).map_err(Error::from)
    })?;
    drop(progress);
    print_line(&format!("{} rows in {}", done.n_rows, output.display()))?;
    for name in &done.json_texts {
        print_line(&format!(
            "column {name:?} is stored as JSON strings, because its values have different types; \
             tooltune reads them back as values"
        ))?;
    }
    for loss in &done.losses {
        print_line(loss)?;
    }
    Ok(())
}

pub(in crate::commands) fn cache(args: &CacheArgs) -> Result<(), Error> {
    let Some(cache) = ExampleCache::from_env() else {
        return Err(Error::Usage(
            "no cache folder for prepared rows; set TOOLTUNE_CACHE to a folder".to_owned(),
        ));
    };
    let used = if args.purge {
        cache.purge()?
    } else {
        cache.used()
    };
    let verb = if args.purge { "removed" } else { "contains" };
    print_line(&format!(
        "{} {verb} {} sets of prepared rows, {:.1} MiB",
        cache.folder().display(),
        used.n_sets,
        used.n_bytes as f64 / f64::from(1 << 20)
    ))
}
