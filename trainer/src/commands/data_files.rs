//! `data convert` and `data cache`.

use tooltune_checkpoints::atomic::create_by;
use tooltune_files::{FileForm, convert as convert_rows};

use super::print_line;
use crate::cli::{CacheArgs, ConvertArgs};
use crate::error::Error;
use crate::examples::ExampleCache;

pub(super) fn convert(args: &ConvertArgs) -> Result<(), Error> {
    let form = FileForm::of(&args.output).map_err(|error| Error::Usage(error.to_string()))?;
    let output = args.output.as_path();
    let parent = output
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    if let Some(parent) = parent {
        std::fs::create_dir_all(parent).map_err(Error::io(parent, "create"))?;
    }
    let done = create_by(output, |file| {
        convert_rows(&args.files, form, file).map_err(Error::from)
    })?;
    print_line(&format!("{} rows in {}", done.n_rows, output.display()))?;
    for name in &done.json_texts {
        print_line(&format!(
            "the column {name:?} holds JSON texts, for its values have no one type; tooltune reads them \
             as values"
        ))?;
    }
    for loss in &done.losses {
        print_line(loss)?;
    }
    Ok(())
}

pub(super) fn cache(args: &CacheArgs) -> Result<(), Error> {
    let Some(cache) = ExampleCache::of_process() else {
        return Err(Error::Usage(
            "there is no folder for prepared rows; set TOOLTUNE_CACHE to one".to_owned(),
        ));
    };
    let used = if args.purge {
        cache.purge()?
    } else {
        cache.used()
    };
    let verb = if args.purge { "removed" } else { "holds" };
    print_line(&format!(
        "{} {verb} {} sets of prepared rows, {:.1} MiB",
        cache.folder().display(),
        used.n_sets,
        used.n_bytes as f64 / f64::from(1 << 20)
    ))
}
