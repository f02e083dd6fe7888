//! The suite slot: texts become the JSON that they describe, under the schema of their row.
//!
//! Raw completions are kept beside the scores, so that scoring can be repeated without a model.

mod flat_forms;

use std::cell::OnceCell;
use std::fmt;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use serde::Serialize;
use serde_json::Value;
use tooltune_agents::flat::NestedCompletion;
use tooltune_rows::text::Row;
use tooltune_suites::slot::{
    DatasetScore, RowScore, SUITE, ScoreError, SlotRow, before_after_rows, markdown_table,
    score_dataset, slot_means,
};
use tooltune_suites::{Ceiling, Estimate, SentenceEncoder, slot};

use self::flat_forms::{FlatCounts, FlatForms, Unflattened};
use super::{EvalContext, LoadedSuite, Metrics, Opening, SavedMetrics, SuiteKind, SuiteResult};
use crate::config::{Config, DataFormat, Suite};
use crate::encoder::MiniLmEncoder;
use crate::error::{Error, SuiteError};
use crate::eval::by_file::{ByFile, SampleFiles};
use crate::eval::constraints::{Constraints, Kept, Unsupported};
use crate::eval::generator::{GenerationRequest, Generator, PromptText};
use crate::eval::prediction::{Prediction, read_predictions};
use crate::eval::report_files::{NESTED_FILE, UNSUPPORTED_FILE, json_lines, report_files};
use crate::eval::saved::{check_ids, excerpt, in_file};
use crate::rows::{ReadingReport, RowFiles, eval_rows};

pub(super) static KIND: SuiteKind = SuiteKind {
    info: &SUITE,
    open: |opening| Ok(Box::new(SlotSuite::open(opening)?)),
    change: Some(change),
};

impl SuiteError for ScoreError {}

#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    score: &'a DatasetScore,
    #[serde(flatten)]
    by_file: Option<&'a ByFile>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flat: Option<FlatCounts<'a>>,
}

#[derive(Serialize)]
struct ScoredPrediction<'a> {
    #[serde(flatten)]
    prediction: &'a Prediction,
    /// The text of the row, and what is right.
    input_text: &'a str,
    gold: &'a Value,
    /// What was scored in its place, where schemas were flat.
    #[serde(skip_serializing_if = "Option::is_none")]
    scored: Option<&'a NestedCompletion>,
    score: &'a RowScore,
}

/// Rows with their schemas and golds, and what their completions are compared with.
pub(super) struct SlotSuite {
    rows: Vec<Row>,
    /// Their flat forms, where the config flattens schemas.
    forms: FlatForms,
    encoder: Box<dyn SentenceEncoder>,
    max_new_tokens: usize,
    /// Whether answers keep to the rows' schemas, and the compiled ones.
    constrained: bool,
    constraints: OnceCell<Constraints>,
    /// The metrics in which the golds are not the best, scored once.
    ceilings: OnceCell<Vec<Ceiling>>,
    remarks: Vec<String>,
}

impl fmt::Debug for SlotSuite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SlotSuite({} rows)", self.rows.len())
    }
}

impl SlotSuite {
    /// Reads the rows of `data.eval` unless the run has, and opens the encoder.
    ///
    /// # Errors
    ///
    /// Rows of another format or that cannot be read, or an encoder that cannot be loaded.
    pub(super) fn open(opening: Opening<'_>) -> Result<Self, Error> {
        let Opening { config, device, .. } = opening;
        if let Some(rows) = opening.rows {
            return Self::of_rows(config, rows.to_vec(), device);
        }
        refuse_other_rows(config)?;
        let mut report = ReadingReport::default();
        let rows = eval_rows(config, device, &mut report)?;
        let mut remarks = report.lines(config);
        if let Some(most) = config.eval.max_samples {
            let is_absent = |file: &&PathBuf| {
                let prefix = format!("{}:", file.display());
                !rows.iter().any(|row| row.id.starts_with(&prefix))
            };
            let files = RowFiles::evaluation(config);
            let absent = files.paths().filter(is_absent);
            remarks.extend(absent.map(|file| {
                let file = file.display();
                format!("eval.max_samples = {most} leaves no row of {file}")
            }));
        }
        let mut suite = Self::of_rows(config, rows, device)?;
        remarks.extend(suite.forms.lines());
        suite.remarks = remarks;
        Ok(suite)
    }

    /// The suite over rows that are read already.
    ///
    /// # Errors
    ///
    /// A row without a schema, or an encoder that cannot be loaded.
    fn of_rows(config: &Config, rows: Vec<Row>, device: &Device) -> Result<Self, Error> {
        Ok(Self {
            forms: FlatForms::of(&rows, &config.data)?,
            rows,
            encoder: encoder(config, device)?,
            max_new_tokens: config.eval.max_new_tokens,
            constrained: config.eval.constrained,
            constraints: OnceCell::new(),
            ceilings: OnceCell::new(),
            remarks: Vec::new(),
        })
    }

    /// What answers keep to, compiled at the first evaluation; which rows are written freely is
    /// said then.
    fn constraints(&self, generator: &Generator<'_>) -> Result<&Constraints, Error> {
        if let Some(constraints) = self.constraints.get() {
            return Ok(constraints);
        }
        let constraints = if self.constrained {
            self.compiled(generator)?
        } else {
            Constraints::default()
        };
        if let Some(line) = constraints.line(self.rows.len()) {
            tracing::warn!("{line}");
        }
        Ok(self.constraints.get_or_init(|| constraints))
    }

    /// The schemas of the rows, in the forms that they are shown in, for `generator`.
    fn compiled(&self, generator: &Generator<'_>) -> Result<Constraints, Error> {
        let schemas = self.forms.enforced_schemas(&self.rows)?;
        let kept = self.rows.iter().zip(schemas);
        let kept = kept.map(|(row, schema)| (row.id.as_str(), Kept::Schema(schema)));
        Constraints::compiled(generator, &kept.collect::<Vec<_>>())
    }

    /// What is to be written after each row, within `constraints`.
    fn requests<'a>(&'a self, constraints: &'a Constraints) -> Vec<GenerationRequest<'a>> {
        let request = |(i, row): (usize, &'a Row)| GenerationRequest {
            id: &row.id,
            text: PromptText::Chat(&row.conversation),
            max_new_tokens: self.max_new_tokens,
            constraint: constraints.of_prompt(i),
        };
        self.rows.iter().enumerate().map(request).collect()
    }

    /// Scores completions in the order of the rows; flat ones in the nested form.
    ///
    /// # Errors
    ///
    /// A row that is no SLOT row, a schema that cannot be used, or an encoder that fails.
    fn score(
        &self,
        predictions: &[Prediction],
        unsupported: Option<&[Unsupported]>,
    ) -> Result<SuiteResult, Error> {
        let flat = self.forms.unflattened(predictions);
        let scored: Vec<&str> = match &flat {
            Some(flat) => flat
                .completions
                .iter()
                .map(|one| one.text.as_str())
                .collect(),
            None => predictions
                .iter()
                .map(|one| one.prediction.as_str())
                .collect(),
        };
        let slot_rows = self.rows.iter().zip(scored).map(|(row, raw)| {
            let slot = slot_fields(row)?;
            Ok(SlotRow {
                raw,
                schema: &slot.json_schema,
                gold: &slot.gold,
            })
        });
        let slot_rows = slot_rows.collect::<Result<Vec<_>, Error>>()?;
        let (score, row_scores) = score_dataset(&slot_rows, &*self.encoder)?;
        let names = tooltune_suites::slot::Metrics::<f64>::NAMES;
        let by_file = SampleFiles::of_rows(&self.rows).measured(names, |range| {
            let means = slot_means(&row_scores[range]);
            Ok(means
                .map(|means| means.columns())
                .map_or([None; 7], |columns| columns.map(Some)))
        })?;
        let columns = names.iter().zip(score.overall.columns());
        let mut metrics: Metrics = columns
            .map(|(name, estimate)| (format!("slot.{name}"), estimate.value))
            .collect();
        let malformed = flat
            .as_ref()
            .and_then(|flat| flat.predictions.malformed_rate());
        metrics.extend(malformed.map(|rate| ("slot.malformed_rate".to_owned(), rate)));

        let fields = self.rows.iter().map(slot_fields);
        let fields = fields.collect::<Result<Vec<_>, Error>>()?;
        let lines = predictions.iter().zip(&row_scores).enumerate();
        let lines = lines.map(|(i, (prediction, score))| ScoredPrediction {
            prediction,
            input_text: &fields[i].input_text,
            gold: &fields[i].gold,
            scored: flat.as_ref().and_then(|flat| flat.completions.get(i)),
            score,
        });
        let report = Report {
            score: &score,
            by_file: by_file.as_ref(),
            flat: flat.as_ref().map(Unflattened::counts),
        };
        let mut files = report_files(&report, lines)?;
        if let Some(flat) = &flat {
            files.insert(
                NESTED_FILE.to_string(),
                json_lines(&flat.schemas.kept_schemas)?,
            );
        }
        if let Some(unsupported) = unsupported {
            files.insert(UNSUPPORTED_FILE.to_string(), json_lines(unsupported)?);
        }
        let table = table(&metrics, &score);
        let ceilings = match self.ceilings.get() {
            Some(ceilings) => ceilings,
            None => {
                let found = self.gold_ceilings()?;
                self.ceilings.get_or_init(|| found)
            }
        };
        let result = SuiteResult {
            metrics,
            files,
            table,
            by_file,
            notes: Vec::new(),
            warnings: Vec::new(),
        };
        result.with_ceilings(&SUITE, ceilings)
    }

    /// What the golds of the rows score as completions.
    fn gold_ceilings(&self) -> Result<Vec<Ceiling>, Error> {
        let fields = self.rows.iter().map(slot_fields);
        let fields = fields.collect::<Result<Vec<_>, Error>>()?;
        let texts: Vec<String> = fields.iter().map(|slot| slot.gold.to_string()).collect();
        let golds = fields.iter().zip(&texts).map(|(slot, raw)| SlotRow {
            raw,
            schema: &slot.json_schema,
            gold: &slot.gold,
        });
        let (score, _) = score_dataset(&golds.collect::<Vec<_>>(), &*self.encoder)?;
        let columns = score.overall.columns();
        let of_name = |name: &str| {
            let place = SUITE.metrics.iter().position(|known| *known == name)?;
            columns.get(place).copied()
        };
        Ok(SUITE.ceilings(of_name))
    }
}

impl LoadedSuite for SlotSuite {
    fn suite(&self) -> Suite {
        Suite::of(&SUITE)
    }

    fn n_samples(&self) -> usize {
        self.rows.len()
    }

    fn remarks(&self) -> Vec<String> {
        self.remarks.clone()
    }

    fn prompts(&self) -> Result<Vec<GenerationRequest<'_>>, Error> {
        const FREE: &Constraints = &Constraints {
            by_prompt: Vec::new(),
            unsupported: Vec::new(),
        };
        Ok(self.requests(FREE))
    }

    fn evaluate(&self, context: EvalContext<'_>) -> Result<Option<SuiteResult>, Error> {
        let generator = context.generator()?;
        let constraints = self.constraints(&generator)?;
        let requests = self.requests(constraints);
        let Some(texts) = generator.write(&requests, context.journal, context.watch)? else {
            return Ok(None);
        };
        let predictions = self.rows.iter().zip(texts);
        let predictions: Vec<Prediction> = predictions
            .map(|(row, written)| Prediction::new(row.id.clone(), written))
            .collect();
        let is_held = !constraints.by_prompt.is_empty();
        let unsupported = is_held.then_some(constraints.unsupported.as_slice());
        self.score(&predictions, unsupported).map(Some)
    }

    fn score_saved(&self, path: &Path, _: EvalContext<'_>) -> Result<Option<SuiteResult>, Error> {
        let (predictions, note) = saved(path, &self.rows)?;
        let mut result = self.score(&predictions, None)?;
        result.warnings.extend(note);
        Ok(Some(result))
    }
}

pub(super) fn slot_fields(row: &Row) -> Result<&tooltune_rows::text::SlotRow, Error> {
    row.slot.as_ref().ok_or_else(|| {
        Error::Usage(format!(
            "{}: the suite slot needs rows with input_text, json_schema and gold; \
             set data.format = \"slot\"",
            row.id
        ))
    })
}

/// The suite slot is the default, and scores rows of one format alone.
fn refuse_other_rows(config: &Config) -> Result<(), Error> {
    let format = config.data.format;
    let refused = |message: String| Err(Error::Usage(message));
    let named =
        |is_meant: fn(&Suite) -> bool| Suite::all().find(is_meant).map_or("", Suite::as_str);
    match format {
        // Where no file told the format, reading the rows says so.
        DataFormat::Slot | DataFormat::Auto => Ok(()),
        _ if config.model.is_none() => refused(format!(
            "the suite slot is for language models, and the config has none; add --suite {}",
            named(|suite| suite.needs().ranks_alone())
        )),
        DataFormat::Goat => refused(format!(
            "the suite slot scores rows of data.format = \"slot\", and data.eval has trajectories; \
             add --suite {}",
            named(|suite| suite.needs().agents && suite.needs().rows.is_some())
        )),
        _ => refused(format!(
            "the suite slot scores rows of data.format = \"slot\", and data.eval has rows of the \
             format {format}; leave --suite out, and the suite for such rows is taken, or their loss \
             alone where there is none (docs/metrics.md)"
        )),
    }
}

/// The encoder that the config names.
///
/// # Errors
///
/// The config names none, or it cannot be loaded.
fn encoder(config: &Config, device: &Device) -> Result<Box<dyn SentenceEncoder>, Error> {
    let dir = config.eval.encoder.as_ref().ok_or_else(|| {
        Error::Usage(
            "eval.encoder is not set: content similarity needs an encoder; set it to an \
             all-MiniLM-L6-v2 folder (scripts/fetch-models brings one)"
                .to_string(),
        )
    })?;
    Ok(Box::new(MiniLmEncoder::open(dir, device)?))
}

/// The predictions of `rows` from a file, in the order of the rows, with a word on those that are
/// named for another row.
fn saved(path: &Path, rows: &[Row]) -> Result<(Vec<Prediction>, Option<String>), Error> {
    let predictions = read_predictions(path)?;
    let ids = predictions.iter().map(|prediction| prediction.id.as_str());
    check_ids(path, ids, rows.iter().map(|row| row.id.as_str()))?;
    if predictions.len() != rows.len() {
        return Err(Error::Usage(format!(
            "{}: {} predictions for {} rows; give one line for each row, in their order",
            path.display(),
            predictions.len(),
            rows.len()
        )));
    }
    let pairs = predictions.iter().zip(rows);
    let others = pairs.filter(|(prediction, row)| in_file(&prediction.id) != in_file(&row.id));
    let others: Vec<_> = others.collect();
    let note = others.first().map(|(prediction, row)| {
        format!(
            "{} of {} predictions are named for other rows, such as {:?}, which is scored against \
             {}; are they of these rows, in their order?",
            others.len(),
            rows.len(),
            excerpt(&prediction.id),
            row.id
        )
    });
    Ok((predictions, note))
}

/// The means with their intervals, a line each: the one that chooses checkpoints first.
fn table(metrics: &Metrics, score: &DatasetScore) -> String {
    let is_chosen = |name: &String| name == SUITE.default_metric;
    let chosen = metrics.iter().filter(|(name, _)| is_chosen(name));
    let others = metrics.iter().filter(|(name, _)| !is_chosen(name));
    let line = |(name, value): (&String, &f64)| {
        let key = name.split_once('.').map_or(name.as_str(), |(_, key)| key);
        let mut columns = slot::Metrics::<Estimate>::NAMES
            .iter()
            .zip(score.overall.columns());
        let interval = columns
            .find(|(name, _)| **name == key)
            .map(|(_, value)| value);
        let interval = interval.map_or_else(String::new, |Estimate { low, high, .. }| {
            format!(" [{low:.4}, {high:.4}]")
        });
        format!("{name:<32} {value:.4}{interval}\n")
    };
    chosen.chain(others).map(line).collect::<String>() + &format!("{:<32} {}", "n", score.n)
}

/// The change of two `metrics.json` of the suite, as a Markdown table.
///
/// # Errors
///
/// A text that is not of the suite.
fn change(before: &SavedMetrics<'_>, after: &SavedMetrics<'_>) -> Result<String, Error> {
    let rows = before_after_rows(&score_of(before)?, &score_of(after)?);
    Ok(markdown_table(&rows))
}

fn score_of(saved: &SavedMetrics<'_>) -> Result<DatasetScore, Error> {
    serde_json::from_str(saved.text).map_err(|error| {
        let name = &saved.name;
        Error::Usage(format!(
            "{name}: {error}; --compare takes the metrics.json of an evaluation"
        ))
    })
}
