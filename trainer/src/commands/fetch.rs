//! Brings models and rows of the Hugging Face hub into its cache (`fetch`).

use tooltune_hub::{Hub, HubError, HubName, Need};

use super::print_line;
use crate::cli::FetchArgs;
use crate::config;
use crate::error::Error;

pub(super) fn run(args: &FetchArgs) -> Result<(), Error> {
    // All names are read before any is asked for.
    let names = args.names.iter().map(|text| name(text));
    let names = names.collect::<Result<Vec<_>, Error>>()?;
    let hub = Hub::of_process()?;
    for name in &names {
        let found = config::fetch(&hub, name, Need::All)?;
        print_line(&found.path.display().to_string())?;
    }
    Ok(())
}

fn name(text: &str) -> Result<HubName, Error> {
    let found = if text.starts_with("hf://datasets/") {
        HubName::of_rows(text)
    } else {
        HubName::of_model(text)
    };
    let found = found.map_err(HubError::from)?;
    found.ok_or_else(|| {
        Error::Usage(format!(
            "{text:?} is no name of the hub; models are named org/name, and files of data sets \
             hf://datasets/org/name/train.jsonl"
        ))
    })
}
