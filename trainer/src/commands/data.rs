//! `data synth` and `data stats`.

use std::io::{BufWriter, Write};
use std::path::Path;

use tooltune_data::synth::slot::{SlotSynthOptions, Split, generate};

use super::say;
use crate::cli::{SplitName, StatsArgs, SynthSlotArgs};
use crate::error::Error;

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
    let mut bytes = Vec::new();
    for row in generate(&options) {
        serde_json::to_writer(&mut bytes, &row).map_err(|e| Error::Usage(e.to_string()))?;
        bytes.push(b'\n');
    }
    let Some(path) = &args.output else {
        let mut output = BufWriter::new(std::io::stdout());
        return output
            .write_all(&bytes)
            .map_err(Error::io(Path::new("standard output"), "write"));
    };
    if let Some(parent) = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
    {
        std::fs::create_dir_all(parent).map_err(Error::io(parent, "create"))?;
    }
    tooltune_checkpoints::atomic::write_atomic(path, &bytes)?;
    say(&format!("{} rows in {}", args.rows, path.display()))
}

pub(super) fn stats(args: &StatsArgs) -> Result<(), Error> {
    Err(Error::Usage(format!("{}: stats", args.file.display())))
}
