//! `score`: computes metrics over JSON Lines from a file or standard input.

use std::io::{BufReader, BufWriter, ErrorKind, Read};

use tooltune_disk::regular_file;
use tooltune_score::{StreamError, operations, score_stream};
use tooltune_suites::operations::{Encoders, Outside};
use tooltune_suites::{EncoderError, SentenceEncoder};

use super::{DeviceOption, print_line};
use crate::cli::ScoreArgs;
use crate::config::{self, SandboxConfig};
use crate::encoder::MiniLmEncoder;
use crate::error::Error;
use crate::eval::suites::with_functions;

pub(super) fn run(args: ScoreArgs, device_option: &DeviceOption) -> Result<(), Error> {
    if args.ops {
        return list();
    }
    let input: Box<dyn Read> = match &args.file {
        Some(path) => Box::new(regular_file::open(path).map_err(Error::io(path, "open"))?),
        None => Box::new(std::io::stdin()),
    };
    let device = device_option.open(config::Device::Cpu)?;
    let encoder = args.encoder;
    let encoders = Encoders::with_minilm(Box::new(move || {
        let encoder = MiniLmEncoder::open(&encoder, &device)
            .map_err(|error| EncoderError::Failed(Box::new(error)))?;
        Ok(Box::new(encoder) as Box<dyn SentenceEncoder>)
    }));
    let sandbox = args.sandbox.override_table(&SandboxConfig::default());
    let outside = with_functions(Outside::from(encoders), args.exec_dir.as_deref(), &sandbox)?;
    let output = BufWriter::new(std::io::stdout());
    let summary = score_stream(BufReader::new(input), output, &outside);
    let summary = summary.map_err(|error| match error {
        StreamError::Write { source, .. } if source.kind() == ErrorKind::BrokenPipe => {
            Error::ReaderGone
        }
        error => error.into(),
    })?;
    if summary.n_lines == 0 {
        let file = args.file.as_ref().map(|path| path.display().to_string());
        let input = file.unwrap_or_else(|| "standard input".to_string());
        return Err(Error::NothingToScore { input });
    }
    match summary.n_malformed {
        0 => Ok(()),
        n_malformed => Err(Error::MalformedLines {
            n_malformed,
            n_lines: summary.n_lines,
        }),
    }
}

fn list() -> Result<(), Error> {
    for operation in operations() {
        print_line(&format!("{}\n    {}", operation.name, operation.definition))?;
        for field in operation.fields {
            print_line(&format!("    {}: {}", field.name, field.holds))?;
        }
    }
    Ok(())
}
