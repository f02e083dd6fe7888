//! One run of a pipeline in its folder: stages over one journal.
//!
//! A stage is done when the report has it, its file is there, and that file was made from the file
//! of the stage before as it is now. A stage that is done is read and not made again, so that its
//! file may be looked through and edited by hand: the stages after it are then made anew, and only
//! what has changed is asked. A file has its name when it is whole, and what a stage writes depends
//! on its input and on the replies alone, in the order of the input.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use tooltune_rows::budgets::PIPELINE_REPORT_BYTES;
use tooltune_rows::regular_file;
use tooltune_rows::tools::JsonLines;

use crate::api_calls::NeededCalls;
use crate::error::PipelineError;
use crate::files::WholeFiles;
use crate::generator::{Generator, ModelInfo};
use crate::journal::Journal;
use crate::prompts::Prompts;
use crate::report::{Dropped, REPORT_FILE, Report, RequestCounts, StageReport};

/// Tokens that a reply may be given; no model writes as many.
pub(crate) const MAX_TOKENS: usize = 10_000_000;

/// Refuses the number of an option that nothing, or far too much, is asked for with.
pub(crate) fn check_range(option: &str, given: usize, most: usize) -> Result<(), PipelineError> {
    if given == 0 {
        let reason = format!("{option} 0: nothing is asked for; give at least 1");
        return Err(PipelineError::Usage(reason));
    }
    if given > most {
        let reason = format!("{option} {given}: give at most {most}");
        return Err(PipelineError::Usage(reason));
    }
    Ok(())
}

/// One stage of a pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stage {
    /// As `--stage` takes it.
    pub name: &'static str,
    /// The JSON Lines file that it writes.
    pub file: &'static str,
}

/// What requests may take, over all runs in one folder.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Requests; a request that the client repeats is one.
    pub max_requests: Option<usize>,
    /// Tokens of prompts and replies together.
    pub max_tokens: Option<usize>,
    /// Calls of APIs.
    pub max_api_calls: Option<usize>,
}

/// How far a stage is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The stage.
    pub stage: &'static str,
    /// Requests that are done with, those of earlier runs too.
    pub n_done: usize,
    /// Requests of this round.
    pub n_all: usize,
    /// Tokens of prompts so far, over all stages.
    pub n_prompt_tokens: usize,
    /// Tokens of replies so far, over all stages.
    pub n_tokens: usize,
}

/// Where and with what a pipeline runs.
pub struct Place<'a> {
    /// Its folder; it is made if need be.
    pub dir: &'a Path,
    /// What generates.
    pub generator: &'a dyn Generator,
    /// What makes files.
    pub files: &'a dyn WholeFiles,
    /// The budget.
    pub limits: Limits,
    /// The one stage that is made, also if it is done already.
    pub only: Option<&'a str>,
    /// Shown how far the work is, several times a second; it ends the work by returning false.
    pub watch: &'a mut dyn FnMut(&Progress) -> bool,
}

impl std::fmt::Debug for Place<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Place")
            .field("dir", &self.dir)
            .finish_non_exhaustive()
    }
}

/// What a run is given.
#[derive(Debug)]
pub struct Opening<'a> {
    /// Where it runs.
    pub place: Place<'a>,
    /// The stages in their order.
    pub stages: &'static [Stage],
    /// What replies follow from, besides prompts and generator: options and digests of inputs.
    pub settings: Map<String, Value>,
    /// The prompts.
    pub prompts: Prompts,
}

/// A run.
pub struct Run<'a> {
    pub(crate) dir: PathBuf,
    stages: &'static [Stage],
    prompts: Prompts,
    pub(crate) generator: &'a dyn Generator,
    files: &'a dyn WholeFiles,
    pub(crate) limits: Limits,
    only: Option<usize>,
    pub(crate) watch: &'a mut dyn FnMut(&Progress) -> bool,
    pub(crate) journal: Journal,
    report: Report,
    notes: Vec<String>,
    /// Requests of this process that came to nothing, which the journal need not have.
    pub(crate) n_failed: usize,
    /// Calls of APIs by the stage that needs them.
    pub(crate) needed_calls: BTreeMap<&'static str, NeededCalls>,
}

impl std::fmt::Debug for Run<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Run")
            .field("dir", &self.dir)
            .field("report", &self.report)
            .finish_non_exhaustive()
    }
}

/// What a stage has made.
#[derive(Debug, Clone, PartialEq)]
pub struct Made<T> {
    /// What it began with.
    pub n_in: usize,
    /// What it hands on.
    pub kept: Vec<T>,
    /// What it does not.
    pub dropped: Vec<Dropped>,
    /// What it does not hand on and names in no line, by the reason, where lines would be too many.
    pub dropped_in_bulk: BTreeMap<String, usize>,
    /// Further counts, by what they count.
    pub counts: BTreeMap<String, usize>,
}

impl<T> Made<T> {
    /// Each result of a stage is either handed on or dropped.
    pub fn of(results: impl IntoIterator<Item = Result<T, Dropped>>) -> Self {
        let mut made = Self {
            n_in: 0,
            kept: Vec::new(),
            dropped: Vec::new(),
            dropped_in_bulk: BTreeMap::new(),
            counts: BTreeMap::new(),
        };
        for result in results {
            made.n_in += 1;
            match result {
                Ok(item) => made.kept.push(item),
                Err(dropped) => made.dropped.push(dropped),
            }
        }
        made
    }
}

/// Everything that the replies of a run follow from.
pub(crate) fn all_settings(
    own: &Map<String, Value>,
    prompts: &Prompts,
    model: &dyn ModelInfo,
) -> Map<String, Value> {
    let mut settings = own.clone();
    settings.extend(prompts.digests());
    settings.extend(model.identity());
    settings
}

impl<'a> Run<'a> {
    /// Begins a run, or continues the one in the folder.
    ///
    /// # Errors
    ///
    /// - there is no such stage as the one that is asked for
    /// - the folder was begun with other settings, prompts or inputs, or by another model
    /// - its files cannot be read or written
    pub fn open(opening: Opening<'a>) -> Result<Self, PipelineError> {
        let Opening {
            place,
            stages,
            settings,
            prompts,
        } = opening;
        let Place {
            dir,
            generator,
            files,
            limits,
            only,
            watch,
        } = place;
        let only = only.map(|name| place_of(stages, name)).transpose()?;
        let settings = all_settings(&settings, &prompts, generator);
        let journal = Journal::open(dir, &settings, files)?;
        let report = read_report(dir)?;
        Ok(Self {
            dir: dir.to_owned(),
            stages,
            prompts,
            generator,
            files,
            limits,
            only,
            watch,
            notes: journal.notes().to_vec(),
            journal,
            report,
            n_failed: 0,
            needed_calls: BTreeMap::new(),
        })
    }

    /// The prompts.
    pub fn prompts(&self) -> &Prompts {
        &self.prompts
    }

    /// What became of the stages so far.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// What there is to say of the files as they were found and of the replies.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = self.notes.clone();
        notes.extend(self.generator.notes());
        notes
    }

    /// What the stage hands on: made by `make`, or read if it is done; nothing where only an earlier
    /// stage is to be made.
    ///
    /// # Errors
    ///
    /// - what `make` says
    /// - an earlier stage than the one that is asked for is not done
    /// - files cannot be read or written
    pub fn stage<T: Serialize + DeserializeOwned>(
        &mut self,
        name: &'static str,
        make: impl FnOnce(&mut Self) -> Result<Made<T>, PipelineError>,
    ) -> Result<Option<Vec<T>>, PipelineError> {
        let idx = place_of(self.stages, name)?;
        let stage = self.stages[idx];
        if self.only.is_some_and(|only| only < idx) {
            return Ok(None);
        }
        let input = match idx.checked_sub(1) {
            Some(before) => Some(digest_of(&self.dir.join(self.stages[before].file))?),
            None => None,
        };
        if self.only != Some(idx) {
            if let Some(output) = done(&self.dir, &self.report, stage, input.as_deref())? {
                return self.read(stage, &output).map(Some);
            }
            if let Some(only) = self.only {
                return Err(PipelineError::StageBefore {
                    stage: self.stages[only].name.to_owned(),
                    before: name,
                });
            }
        }
        let made = make(self)?;
        self.finish(stage, input, &made)?;
        Ok(Some(made.kept))
    }

    fn read<T: DeserializeOwned>(
        &mut self,
        stage: Stage,
        output: &str,
    ) -> Result<Vec<T>, PipelineError> {
        let path = self.dir.join(stage.file);
        let report = self.report.of(stage.name);
        if report.is_some_and(|report| report.sha256 != output) {
            self.notes.push(format!(
                "{} was changed after its stage was done; it is taken as it is",
                path.display()
            ));
        }
        items_of(&path, stage)
    }

    /// Writes what was dropped, what is kept, and last the report, with which the stage is done.
    fn finish<T: Serialize>(
        &mut self,
        stage: Stage,
        input_sha256: Option<String>,
        made: &Made<T>,
    ) -> Result<(), PipelineError> {
        self.journal.sync()?;
        let stem = stage.file.strip_suffix(".jsonl").unwrap_or(stage.file);
        self.write_lines(&format!("{stem}.dropped.jsonl"), &made.dropped)?;
        self.write_lines(stage.file, &made.kept)?;
        let mut done = StageReport {
            stage: stage.name.to_owned(),
            file: stage.file.to_owned(),
            n_in: made.n_in,
            n_kept: made.kept.len(),
            dropped: made.dropped_in_bulk.clone(),
            counts: made.counts.clone(),
            requests: RequestCounts::of(&self.journal, stage.name),
            input_sha256,
            sha256: digest_of(&self.dir.join(stage.file))?,
        };
        if let Some(needed) = self.needed_calls.get(stage.name) {
            done.counts.extend(needed.counts());
        }
        for dropped in &made.dropped {
            *done.dropped.entry(dropped.reason.clone()).or_default() += 1;
        }
        // In the order of the stages, and none that has to be made anew.
        let idx = place_of(self.stages, stage.name)?;
        let before = &self.stages[..idx];
        let is_before =
            |report: &StageReport| before.iter().any(|stage| stage.name == report.stage);
        self.report.stages.retain(is_before);
        self.report.stages.push(done);
        let mut bytes = serde_json::to_vec_pretty(&self.report)
            .map_err(PipelineError::io(&self.dir, "write"))?;
        bytes.push(b'\n');
        self.write_file(REPORT_FILE, &bytes)
    }

    /// Writes a further file of the pipeline, a line of JSON for each item, whole or not at all.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn write_lines<T: Serialize>(&self, name: &str, items: &[T]) -> Result<(), PipelineError> {
        let mut bytes = Vec::new();
        for item in items {
            let path = self.dir.join(name);
            serde_json::to_writer(&mut bytes, item).map_err(PipelineError::io(&path, "write"))?;
            bytes.push(b'\n');
        }
        self.write_file(name, &bytes)
    }

    /// Writes a further file of the pipeline, whole or not at all.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn write_file(&self, name: &str, bytes: &[u8]) -> Result<(), PipelineError> {
        let path = self.dir.join(name);
        let written = self.files.write(&path, bytes);
        written.map_err(PipelineError::io(&path, "write"))
    }
}

/// The digest of a stage's file, if the stage is done.
fn done(
    dir: &Path,
    report: &Report,
    stage: Stage,
    input: Option<&str>,
) -> Result<Option<String>, PipelineError> {
    let path = dir.join(stage.file);
    let is_there = regular_file::is_there(&path).map_err(PipelineError::io(&path, "read"))?;
    let report = report.of(stage.name);
    let is_done = report.is_some_and(|report| report.input_sha256.as_deref() == input);
    if is_there && is_done {
        digest_of(&path).map(Some)
    } else {
        Ok(None)
    }
}

/// What a stage has written, if it and all before it are done; for a look at what is left to do.
///
/// # Errors
///
/// Files cannot be read.
pub fn read_items<T: DeserializeOwned>(
    dir: &Path,
    stages: &[Stage],
    name: &str,
) -> Result<Option<Vec<T>>, PipelineError> {
    let report = read_report(dir)?;
    let last = place_of(stages, name)?;
    let mut input: Option<String> = None;
    for stage in &stages[..=last] {
        input = done(dir, &report, *stage, input.as_deref())?;
        if input.is_none() {
            return Ok(None);
        }
    }
    items_of(&dir.join(stages[last].file), stages[last]).map(Some)
}

fn items_of<T: DeserializeOwned>(path: &Path, stage: Stage) -> Result<Vec<T>, PipelineError> {
    let mut items = Vec::new();
    let bad = |place, reason| PipelineError::Item {
        place,
        reason,
        stage: stage.name,
    };
    for line in JsonLines::open(path)? {
        let (place, value) = line.map_err(|error| {
            let path = path.display().to_string();
            let said = error.to_string();
            let rest = said
                .strip_prefix(&path)
                .and_then(|rest| rest.split_once(": "));
            let (line, reason) = rest.unwrap_or(("", &said));
            bad(format!("{path}{line}"), reason.to_owned())
        })?;
        let item = serde_json::from_value(value).map_err(|error| bad(place, error.to_string()))?;
        items.push(item);
    }
    Ok(items)
}

/// The place of a stage among the others.
fn place_of(stages: &[Stage], name: &str) -> Result<usize, PipelineError> {
    let found = stages.iter().position(|stage| stage.name == name);
    found.ok_or_else(|| PipelineError::NoStage {
        given: name.to_owned(),
        stages: stages
            .iter()
            .map(|stage| stage.name)
            .collect::<Vec<_>>()
            .join(", "),
    })
}

/// The report in a folder; an empty one where there is none.
///
/// # Errors
///
/// It cannot be read.
pub fn read_report(dir: &Path) -> Result<Report, PipelineError> {
    let path = dir.join(REPORT_FILE);
    let bytes = regular_file::read_if_there(&path, PIPELINE_REPORT_BYTES);
    match bytes.map_err(PipelineError::io(&path, "read"))? {
        Some(bytes) => serde_json::from_slice(&bytes).map_err(|error| {
            PipelineError::Usage(format!(
                "{}: the report of the stages is damaged ({error}); remove it, and the stages are \
                 made again of the replies that are kept",
                path.display()
            ))
        }),
        None => Ok(Report::default()),
    }
}

/// SHA-256 of a file that may be larger than memory.
///
/// # Errors
///
/// It cannot be read.
pub fn digest_of(path: &Path) -> Result<String, PipelineError> {
    let mut digest = Sha256::new();
    let mut file = regular_file::open(path).map_err(PipelineError::io(path, "read"))?;
    io::copy(&mut file, &mut digest).map_err(PipelineError::io(path, "read"))?;
    let digest = digest.finalize();
    Ok(digest.iter().map(|byte| format!("{byte:02x}")).collect())
}
