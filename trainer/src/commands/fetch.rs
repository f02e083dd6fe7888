//! `fetch`: downloads models and rows from the Hugging Face Hub into its cache.

use tooltune_hub::{Hub, HubError, HubName, WantedFiles};

use super::print_result;
use crate::cli::FetchArgs;
use crate::config;
use crate::error::Error;

pub(super) fn run(args: &FetchArgs) -> Result<(), Error> {
    // Parse all names before the first request.
    let names = args.names.iter().map(|text| name(text));
    let names = names.collect::<Result<Vec<_>, Error>>()?;
    let hub = Hub::from_process_environment()?;
    for name in &names {
        let fetched = config::fetch(&hub, name, WantedFiles::All)?;
        print_result(&fetched.path.display().to_string())?;
    }
    Ok(())
}

fn name(text: &str) -> Result<HubName, Error> {
    let name = if text.starts_with("hf://datasets/") {
        HubName::parse_rows(text)
    } else {
        HubName::parse_model(text)
    };
    let name = name.map_err(HubError::from)?;
    name.ok_or_else(|| {
        Error::Usage(format!(
            "{text:?} is not a Hugging Face Hub name; models are named org/name, and files of \
             data sets hf://datasets/org/name/train.jsonl"
        ))
    })
}
