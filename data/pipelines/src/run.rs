//! Runs a pipeline in its folder: stages that share a journal.
//!
//! A stage is done if the report contains it, its file exists, and that file was made from the
//! current file of the previous stage. A completed stage is read and not repeated, so its file can
//! be inspected and edited manually: the stages after it then run again, and send only the requests
//! that changed. Files are written atomically, and the output of a stage depends only on its input
//! and the replies, in input order.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use crate::budgets::PIPELINE_REPORT_BYTES;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use tooltune_apis::JsonLines;
use tooltune_disk::atomic::write_atomic;
use tooltune_disk::regular_file;

use crate::api_calls::NeededCalls;
use crate::ask::ReplyCounts;
use crate::error::PipelineError;
use crate::generator::{Generator, ModelInfo};
use crate::journal::Journal;
use crate::prompts::Prompts;
use crate::report::{Dropped, REPORT_FILE, Report, RequestCounts, StageReport};

/// Upper limit for the tokens of a reply; no model writes more.
pub(crate) const MAX_TOKENS: usize = 10_000_000;

/// Rejects an option value of zero or above `max`.
pub(crate) fn check_range(option: &str, value: usize, max: usize) -> Result<(), PipelineError> {
    if value == 0 {
        let reason = format!("{option} 0: set it to at least 1");
        return Err(PipelineError::Usage(reason));
    }
    if value > max {
        let reason = format!("{option} {value}: set it to at most {max}");
        return Err(PipelineError::Usage(reason));
    }
    Ok(())
}

/// A stage of a pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stage {
    /// Name for `--stage`.
    pub name: &'static str,
    /// The JSON Lines file that it writes.
    pub file: &'static str,
}

/// The request budget of a folder, over all its runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of requests; retries of the client count as one.
    pub max_requests: Option<usize>,
    /// Maximum number of tokens of prompts and replies together.
    pub max_tokens: Option<usize>,
    /// Maximum number of API calls.
    pub max_api_calls: Option<usize>,
}

/// Progress of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The stage.
    pub stage: &'static str,
    /// Number of completed requests, including earlier runs.
    pub n_done: usize,
    /// Number of requests in this round.
    pub n_all: usize,
    /// Prompt tokens so far, over all stages.
    pub n_prompt_tokens: usize,
    /// Reply tokens so far, over all stages.
    pub n_tokens: usize,
}

/// Folder and services of a run.
pub struct RunContext<'a> {
    /// The folder; it is created if needed.
    pub dir: &'a Path,
    /// The generator.
    pub generator: &'a dyn Generator,
    /// The budget.
    pub limits: Limits,
    /// The only stage to run, even if it is done.
    pub only: Option<&'a str>,
    /// The stage whose failed requests and unparsable replies are repeated, even if the stage is
    /// done.
    pub ask_again: Option<&'a str>,
    /// Receives the progress several times per second, and stops the work by returning false.
    pub watch: &'a mut dyn FnMut(&Progress) -> bool,
}

impl std::fmt::Debug for RunContext<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunContext")
            .field("dir", &self.dir)
            .finish_non_exhaustive()
    }
}

/// The input of a run.
#[derive(Debug)]
pub struct RunInput<'a> {
    /// Folder and services.
    pub place: RunContext<'a>,
    /// The stages, in order.
    pub stages: &'static [Stage],
    /// Settings that replies depend on, except prompts and generator: options and digests of
    /// inputs.
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
    pub(crate) limits: Limits,
    only: Option<usize>,
    pub(crate) ask_again: Option<&'static str>,
    /// Counts of parsable and failed replies of each stage.
    pub(crate) readable: BTreeMap<&'static str, ReplyCounts>,
    pub(crate) watch: &'a mut dyn FnMut(&Progress) -> bool,
    pub(crate) journal: Journal,
    report: Report,
    notes: Vec<String>,
    /// Failed requests of this process. The journal contains only some of them.
    pub(crate) n_failed: usize,
    /// API calls by the stage that needs them.
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

/// The result of a stage.
#[derive(Debug, Clone, PartialEq)]
pub struct StageResult<T> {
    /// Number of input items.
    pub n_in: usize,
    /// Kept items.
    pub kept: Vec<T>,
    /// Dropped items.
    pub dropped: Vec<Dropped>,
    /// Number of dropped items by reason, for reasons with too many items to list.
    pub dropped_in_bulk: BTreeMap<String, usize>,
    /// Additional counts by name.
    pub counts: BTreeMap<String, usize>,
}

impl<T> StageResult<T> {
    /// Collects kept and dropped items.
    pub fn from_results(results: impl IntoIterator<Item = Result<T, Dropped>>) -> Self {
        let mut collected = Self {
            n_in: 0,
            kept: Vec::new(),
            dropped: Vec::new(),
            dropped_in_bulk: BTreeMap::new(),
            counts: BTreeMap::new(),
        };
        for result in results {
            collected.n_in += 1;
            match result {
                Ok(item) => collected.kept.push(item),
                Err(dropped) => collected.dropped.push(dropped),
            }
        }
        collected
    }
}

/// All settings that the replies of a run depend on.
pub(crate) fn all_settings(
    pipeline_settings: &Map<String, Value>,
    prompts: &Prompts,
    model: &dyn ModelInfo,
) -> Map<String, Value> {
    let mut settings = pipeline_settings.clone();
    settings.extend(prompts.digests());
    settings.extend(model.identity());
    settings
}

impl<'a> Run<'a> {
    /// Starts a run, or continues the one in the folder.
    ///
    /// # Errors
    ///
    /// - the requested stage does not exist
    /// - the folder was created with other settings, prompts, inputs or another model
    /// - its files cannot be read or written
    pub fn open(opening: RunInput<'a>) -> Result<Self, PipelineError> {
        let RunInput {
            place,
            stages,
            settings,
            prompts,
        } = opening;
        let RunContext {
            dir,
            generator,
            limits,
            only,
            ask_again,
            watch,
        } = place;
        let only = only
            .map(|name| stage_index("--stage", stages, name))
            .transpose()?;
        let ask_again = ask_again
            .map(|name| stage_index("--ask-again", stages, name))
            .transpose()?;
        if let (Some(only), Some(ask_again_idx)) = (only, ask_again)
            && only != ask_again_idx
        {
            return Err(PipelineError::Usage(format!(
                "--ask-again {}: --stage {} runs another stage; omit --stage, or use the same \
                 stage",
                stages[ask_again_idx].name, stages[only].name
            )));
        }
        let settings = all_settings(&settings, &prompts, generator);
        let journal = Journal::open(dir, &settings)?;
        // Warn now, because the run may end with an error or a signal.
        (journal.notes().iter()).for_each(|note| tracing::warn!("{note}"));
        let report = read_report(dir)?;
        Ok(Self {
            dir: dir.to_owned(),
            stages,
            prompts,
            generator,
            limits,
            only,
            ask_again: ask_again.map(|idx| stages[idx].name),
            readable: BTreeMap::new(),
            watch,
            notes: Vec::new(),
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

    /// The reports of the stages so far.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Remarks about the files and the replies.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = self.notes.clone();
        notes.extend(self.generator.notes());
        notes
    }

    /// Returns the output of a stage: read if the stage is done, otherwise computed by `make`.
    /// Returns `None` if only an earlier stage should run.
    ///
    /// # Errors
    ///
    /// - `make` fails
    /// - a stage before the requested one is not done
    /// - files cannot be read or written
    pub fn stage<T: Serialize + DeserializeOwned>(
        &mut self,
        name: &'static str,
        make: impl FnOnce(&mut Self) -> Result<StageResult<T>, PipelineError>,
    ) -> Result<Option<Vec<T>>, PipelineError> {
        let idx = stage_index("--stage", self.stages, name)?;
        let stage = self.stages[idx];
        if self.only.is_some_and(|only| only < idx) {
            return Ok(None);
        }
        let input = match idx.checked_sub(1) {
            Some(before) => Some(digest_of(&self.dir.join(self.stages[before].file))?),
            None => None,
        };
        if self.only != Some(idx) && self.ask_again != Some(name) {
            if let Some(output) = stage_digest(&self.dir, &self.report, stage, input.as_deref())? {
                return self.read(stage, &output).map(Some);
            }
            if let Some(only) = self.only {
                return Err(PipelineError::StageBefore {
                    stage: self.stages[only].name.to_owned(),
                    before: name,
                });
            }
        }
        let result = make(self)?;
        self.reject_empty_result(stage, &result)?;
        self.finish(stage, input, &result)?;
        Ok(Some(result.kept))
    }

    /// Returns an error if a stage keeps no item, because an empty result would look like a
    /// success.
    fn reject_empty_result<T>(
        &self,
        stage: Stage,
        result: &StageResult<T>,
    ) -> Result<(), PipelineError> {
        let failed_replies = self.readable.get(stage.name).filter(|counts| counts.n == 0);
        let failed_replies = failed_replies
            .and_then(|counts| Some((counts.n_failed_replies, counts.first_failed_reply.clone()?)));
        if failed_replies.is_none() && (result.n_in == 0 || !result.kept.is_empty()) {
            return Ok(());
        }
        let dropped = dropped_file(stage);
        self.write_lines(&dropped, &result.dropped)?;
        let dropped = self.dir.join(dropped);
        if let Some((n, fault)) = failed_replies {
            return Err(PipelineError::Unreadable {
                stage: stage.name,
                n,
                id: fault.id,
                reason: fault.reason,
                reply: fault.reply,
                dropped,
            });
        }
        let mut reasons = result.dropped_in_bulk.clone();
        for dropped in &result.dropped {
            *reasons.entry(dropped.reason.clone()).or_default() += 1;
        }
        let reasons = reasons.iter().map(|(reason, n)| format!("{n} {reason}"));
        Err(PipelineError::NothingKept {
            stage: stage.name,
            n_in: result.n_in,
            reasons: reasons.collect::<Vec<_>>().join("; "),
            dropped,
        })
    }

    fn read<T: DeserializeOwned>(
        &mut self,
        stage: Stage,
        output: &str,
    ) -> Result<Vec<T>, PipelineError> {
        let path = self.dir.join(stage.file);
        let report = self.report.stage(stage.name);
        if report.is_some_and(|report| report.sha256 != output) {
            self.notes.push(format!(
                "{} was changed after its stage was done; the changed file is used",
                path.display()
            ));
        }
        read_stage_items(&path, stage)
    }

    /// Writes the dropped and the kept items, and finally the report, which completes the stage.
    fn finish<T: Serialize>(
        &mut self,
        stage: Stage,
        input_sha256: Option<String>,
        result: &StageResult<T>,
    ) -> Result<(), PipelineError> {
        self.journal.sync()?;
        self.write_lines(&dropped_file(stage), &result.dropped)?;
        self.write_lines(stage.file, &result.kept)?;
        let mut done = StageReport {
            stage: stage.name.to_owned(),
            file: stage.file.to_owned(),
            n_in: result.n_in,
            n_kept: result.kept.len(),
            dropped: result.dropped_in_bulk.clone(),
            counts: result.counts.clone(),
            requests: RequestCounts::from_journal(&self.journal, stage.name),
            input_sha256,
            sha256: digest_of(&self.dir.join(stage.file))?,
        };
        if let Some(calls) = self.needed_calls.get(stage.name) {
            done.counts.extend(calls.counts());
        }
        for dropped in &result.dropped {
            *done.dropped.entry(dropped.reason.clone()).or_default() += 1;
        }
        // Keep reports in stage order, and drop those of later stages, which must run again.
        let idx = stage_index("--stage", self.stages, stage.name)?;
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

    /// Writes an additional file of the pipeline atomically, one JSON line per item.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn write_lines<T: Serialize>(&self, name: &str, items: &[T]) -> Result<(), PipelineError> {
        let mut bytes = Vec::new();
        for item in items {
            let path = self.dir.join(name);
            serde_json::to_writer(&mut bytes, item).map_err(PipelineError::io(&path, "write"))?;
            bytes.push(b'\n');
        }
        self.write_file(name, &bytes)
    }

    /// Writes an additional file of the pipeline atomically.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn write_file(&self, name: &str, bytes: &[u8]) -> Result<(), PipelineError> {
        let path = self.dir.join(name);
        let result = write_atomic(&path, bytes);
        result.map_err(PipelineError::io(&path, "write"))
    }
}

/// The file with the dropped items of a stage.
fn dropped_file(stage: Stage) -> String {
    let stem = stage.file.strip_suffix(".jsonl").unwrap_or(stage.file);
    format!("{stem}.dropped.jsonl")
}

/// The digest of a stage file, if the stage is done.
fn stage_digest(
    dir: &Path,
    report: &Report,
    stage: Stage,
    input: Option<&str>,
) -> Result<Option<String>, PipelineError> {
    let path = dir.join(stage.file);
    let exists = regular_file::is_there(&path).map_err(PipelineError::io(&path, "read"))?;
    let report = report.stage(stage.name);
    let is_done = report.is_some_and(|report| report.input_sha256.as_deref() == input);
    if exists && is_done {
        digest_of(&path).map(Some)
    } else {
        Ok(None)
    }
}

/// The output of a stage, if this and all earlier stages are done; used to plan the remaining work.
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
    let last = stage_index("--stage", stages, name)?;
    let mut input: Option<String> = None;
    for stage in &stages[..=last] {
        input = stage_digest(dir, &report, *stage, input.as_deref())?;
        if input.is_none() {
            return Ok(None);
        }
    }
    read_stage_items(&dir.join(stages[last].file), stages[last]).map(Some)
}

fn read_stage_items<T: DeserializeOwned>(
    path: &Path,
    stage: Stage,
) -> Result<Vec<T>, PipelineError> {
    let mut items = Vec::new();
    let item_error = |location, reason| PipelineError::Item {
        place: location,
        reason,
        stage: stage.name,
    };
    for line in JsonLines::open(path)? {
        let (location, value) = line.map_err(|error| {
            let path = path.display().to_string();
            let message = error.to_string();
            let stripped = message
                .strip_prefix(&path)
                .and_then(|stripped| stripped.split_once(": "));
            let (line, reason) = stripped.unwrap_or(("", &message));
            item_error(format!("{path}{line}"), reason.to_owned())
        })?;
        let item = serde_json::from_value(value)
            .map_err(|error| item_error(location, error.to_string()))?;
        items.push(item);
    }
    Ok(items)
}

/// Index of a stage.
fn stage_index(option: &'static str, stages: &[Stage], name: &str) -> Result<usize, PipelineError> {
    let position = stages.iter().position(|stage| stage.name == name);
    position.ok_or_else(|| PipelineError::NoStage {
        option,
        given: name.to_owned(),
        stages: stages
            .iter()
            .map(|stage| stage.name)
            .collect::<Vec<_>>()
            .join(", "),
    })
}

/// The report in a folder; empty if there is none.
///
/// # Errors
///
/// The file cannot be read.
pub fn read_report(dir: &Path) -> Result<Report, PipelineError> {
    let path = dir.join(REPORT_FILE);
    let bytes = regular_file::read_if_there(&path, PIPELINE_REPORT_BYTES);
    match bytes.map_err(PipelineError::io(&path, "read"))? {
        Some(bytes) => tooltune_json::from_slice(&bytes).map_err(|error| {
            PipelineError::Usage(format!(
                "{}: the report is damaged ({error}); remove it to rebuild the stages from \
                 the stored replies",
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
/// The file cannot be read.
pub fn digest_of(path: &Path) -> Result<String, PipelineError> {
    let mut digest = Sha256::new();
    let mut file = regular_file::open(path).map_err(PipelineError::io(path, "read"))?;
    io::copy(&mut file, &mut digest).map_err(PipelineError::io(path, "read"))?;
    let digest = digest.finalize();
    Ok(digest.iter().map(|byte| format!("{byte:02x}")).collect())
}
