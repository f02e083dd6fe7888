//! The `slot` suite: converts texts to JSON that satisfies the schema of their row.
//!
//! Raw completions are saved next to the scores, so that scoring can be repeated without a model.

mod flat_forms;

use std::cell::OnceCell;
use std::fmt;
use std::path::PathBuf;

use burn::tensor::Device;
use serde::Serialize;
use serde_json::Value;
use tooltune_agents::flat::NestedCompletion;
use tooltune_rows::text::Row;
use tooltune_suites::leaf_errors::{LeafErrorSummary, LeafErrors, LeafGroups};
use tooltune_suites::slot::{
    DatasetScore, RowScore, SUITE, ScoreError, SlotRow, before_after_rows, markdown_table,
    score_dataset, slot_means,
};
use tooltune_suites::{Ceiling, SentenceEncoder, SuiteInfo};

use self::flat_forms::{FlatCounts, FlatForms, Unflattened};
use super::prompt_suite::{JoinBy, PromptEvaluation, PromptSettings, PromptSuite, Scoring};
use super::{Metrics, SavedMetrics, SuiteContext, SuiteKind, SuiteResult, metrics_table};
use crate::config::{Config, DataFormat, Suite};
use crate::encoder::MiniLmEncoder;
use crate::error::{Error, SuiteError};
use crate::eval::by_file::{ByFile, SampleFiles};
use crate::eval::constraints::{Constraints, RequestedConstraint, Unsupported};
use crate::eval::generator::{Generator, PromptText};
use crate::eval::prediction::Prediction;
use crate::eval::report_files::{
    NESTED_FILE, PredictionLines, UNSUPPORTED_FILE, json_lines, report_files,
};
use crate::rows::{ReadingReport, RowFiles, eval_rows};
use crate::settings;

pub(super) static KIND: SuiteKind = SuiteKind {
    info: &SUITE,
    open: |suite_context| {
        let settings = PromptSettings::from_config(&suite_context.config.eval);
        Ok(PromptEvaluation::into_loaded(
            SlotSuite::open(suite_context)?,
            settings,
        ))
    },
    change: Some(change),
};

impl SuiteError for ScoreError {}

/// The lines of `predictions.jsonl`.
const LINES: PredictionLines = PredictionLines {
    suite: &SUITE,
    kind: "completion",
};

#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    score: &'a DatasetScore,
    #[serde(flatten)]
    by_file: Option<&'a ByFile>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flat: Option<FlatCounts<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    leaf_errors: Option<LeafErrorSummary>,
}

#[derive(Serialize)]
struct ScoredPrediction<'a> {
    #[serde(flatten)]
    prediction: &'a Prediction,
    /// Text of the row, and its reference.
    input_text: &'a str,
    gold: &'a Value,
    /// The nested completion that was scored instead, if schemas were flat.
    #[serde(skip_serializing_if = "Option::is_none")]
    scored: Option<&'a NestedCompletion>,
    score: &'a RowScore,
    leaf_errors: &'a LeafErrors,
}

/// Rows with schemas and references, and the encoder that compares completions.
pub(super) struct SlotSuite {
    rows: Vec<Row>,
    /// Flat forms, if the config flattens schemas.
    forms: FlatForms,
    encoder: Box<dyn SentenceEncoder>,
    /// Metrics whose references do not get the best score, computed once.
    ceilings: OnceCell<Vec<Ceiling>>,
    remarks: Vec<String>,
}

impl fmt::Debug for SlotSuite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SlotSuite({} rows)", self.rows.len())
    }
}

impl SlotSuite {
    /// Reads the rows of `data.eval` unless the run already has, and opens the encoder.
    ///
    /// # Errors
    ///
    /// Rows cannot be read or have another format, or the encoder cannot be loaded.
    pub(super) fn open(suite_context: SuiteContext<'_>) -> Result<Self, Error> {
        let SuiteContext { config, device, .. } = suite_context;
        if let Some(rows) = suite_context.rows {
            return Self::from_rows(config, rows.to_vec(), device);
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
                format!("eval.max_samples = {most} leaves no rows of {file}")
            }));
        }
        let mut suite = Self::from_rows(config, rows, device)?;
        remarks.extend(suite.forms.lines());
        suite.remarks = remarks;
        Ok(suite)
    }

    /// The suite over rows that are already loaded.
    ///
    /// # Errors
    ///
    /// A row has no schema, or the encoder cannot be loaded.
    fn from_rows(config: &Config, rows: Vec<Row>, device: &Device) -> Result<Self, Error> {
        Ok(Self {
            forms: FlatForms::flatten(&rows, &config.data)?,
            rows,
            encoder: encoder(config, device)?,
            ceilings: OnceCell::new(),
            remarks: Vec::new(),
        })
    }

    /// Scores completions in the order of the rows. Flat completions are nested first.
    ///
    /// # Errors
    ///
    /// A row is not a SLOT row, a schema is invalid, or the encoder fails.
    fn score_texts(
        &self,
        predictions: &[Prediction],
        unsupported: Option<&[Unsupported]>,
    ) -> Result<SuiteResult, Error> {
        let flat = self.forms.unflatten_report(predictions);
        let scored: Vec<&str> = match &flat {
            Some(flat) => flat
                .completions
                .iter()
                .map(|one| one.text.as_str())
                .collect(),
            None => predictions.iter().map(Prediction::whole_text).collect(),
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
        let compared = slot_rows.iter().zip(predictions).map(|(row, prediction)| {
            let value = tooltune_json::parse(row.raw).ok();
            LeafErrors::compare(value.as_ref(), row.gold, prediction.end_reason())
        });
        let leaf_errors: Vec<LeafErrors> = compared.collect();
        let names = tooltune_suites::slot::Metrics::<f64>::NAMES;
        let by_file = SampleFiles::from_rows(&self.rows).measure_by_file(names, |range| {
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
            leaf_errors: &leaf_errors[i],
        });
        let report = Report {
            score: &score,
            by_file: by_file.as_ref(),
            flat: flat.as_ref().map(Unflattened::counts),
            leaf_errors: LeafErrorSummary::new(
                self.rows
                    .iter()
                    .map(|row| row.id.as_str())
                    .zip(&leaf_errors),
                LeafGroups::Path,
            ),
        };
        let mut files = report_files(LINES, &report, lines)?;
        if let Some(flat) = &flat {
            files.insert(
                NESTED_FILE.to_string(),
                json_lines(&flat.schemas.kept_schemas)?,
            );
        }
        if let Some(unsupported) = unsupported {
            files.insert(UNSUPPORTED_FILE.to_string(), json_lines(unsupported)?);
        }
        let columns = score.overall.columns();
        let estimate = |key: &str| {
            let idx = names.iter().position(|name| *name == key)?;
            Some(columns[idx])
        };
        let table = metrics_table(&SUITE, &metrics, estimate, score.n);
        let ceilings = match self.ceilings.get() {
            Some(ceilings) => ceilings,
            None => {
                let ceilings = self.gold_ceilings()?;
                self.ceilings.get_or_init(|| ceilings)
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

    /// The scores of the references if they are scored like completions.
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
            let idx = SUITE.metrics.iter().position(|known| *known == name)?;
            columns.get(idx).copied()
        };
        Ok(SUITE.ceilings(of_name))
    }
}

impl PromptSuite for SlotSuite {
    type Answer = Prediction;

    fn info(&self) -> &'static SuiteInfo {
        &SUITE
    }

    fn ids(&self) -> Vec<&str> {
        self.rows.iter().map(|row| row.id.as_str()).collect()
    }

    fn join(&self) -> JoinBy {
        JoinBy {
            noun: "rows",
            ids_are_positions: true,
            published_id: None,
        }
    }

    fn prompt(&self, row: usize) -> Result<PromptText<'_>, Error> {
        Ok(PromptText::Chat(&self.rows[row].conversation))
    }

    fn score(&self, answers: Vec<Prediction>, scoring: Scoring<'_>) -> Result<SuiteResult, Error> {
        self.score_texts(&answers, scoring.unsupported)
    }

    fn remarks(&self) -> Vec<String> {
        self.remarks.clone()
    }

    fn constraints(&self, generator: &Generator<'_>) -> Result<Constraints, Error> {
        let schemas = self.forms.enforced_schemas(&self.rows)?;
        let requested = self.rows.iter().zip(schemas);
        let requested =
            requested.map(|(row, schema)| (row.id.as_str(), RequestedConstraint::Schema(schema)));
        Constraints::compile(generator, requested)
    }
}

pub(super) fn slot_fields(row: &Row) -> Result<&tooltune_rows::text::SlotRow, Error> {
    row.slot.as_ref().ok_or_else(|| {
        Error::Usage(format!(
            "{}: the suite slot needs rows with the fields input_text, json_schema and gold; \
             set data.format = \"slot\"",
            row.id
        ))
    })
}

/// Rejects rows of other formats. This suite is the default, but scores only one format.
fn refuse_other_rows(config: &Config) -> Result<(), Error> {
    let format = config.data.format;
    let refused = |message: String| Err(Error::Usage(message));
    let names_of =
        |is_meant: fn(&Suite) -> bool| Suite::all().find(is_meant).map_or("", Suite::as_str);
    match format {
        // Without files the format is unknown; reading the rows then reports the error.
        DataFormat::Slot | DataFormat::Auto => Ok(()),
        _ if config.model.is_none() => refused(format!(
            "the suite slot needs a language model, but the config has none; add --suite {}",
            names_of(|suite| suite.needs().is_ranking_only())
        )),
        DataFormat::Goat => refused(format!(
            "the suite slot scores rows of data.format = \"slot\", but data.eval has trajectories; \
             add --suite {}",
            names_of(|suite| suite.needs().agents && suite.needs().rows.is_some())
        )),
        _ => refused(format!(
            "the suite slot scores rows of data.format = \"slot\", but data.eval has rows of the \
             format {format}; omit --suite to use the suite for these rows, or to measure only \
             their loss if there is none (docs/metrics.md)"
        )),
    }
}

/// Loads the encoder of the config.
///
/// # Errors
///
/// The config names no encoder, or it cannot be loaded.
fn encoder(config: &Config, device: &Device) -> Result<Box<dyn SentenceEncoder>, Error> {
    let dir = config.eval.encoder.as_ref().ok_or_else(|| {
        Error::Usage(
            "eval.encoder is not set, but content similarity needs an encoder; set it to an \
             all-MiniLM-L6-v2 folder (`scripts/fetch-models` downloads one)"
                .to_string(),
        )
    })?;
    settings::must_be_here("eval.encoder", dir)?;
    Ok(Box::new(MiniLmEncoder::open(dir, device)?))
}

/// The differences between two `metrics.json` of the suite, as a Markdown table.
///
/// # Errors
///
/// A text is not a `metrics.json` of the suite.
fn change(before: &SavedMetrics<'_>, after: &SavedMetrics<'_>) -> Result<String, Error> {
    let rows = before_after_rows(&score_of(before)?, &score_of(after)?);
    Ok(markdown_table(&rows))
}

fn score_of(saved: &SavedMetrics<'_>) -> Result<DatasetScore, Error> {
    serde_json::from_str(saved.text).map_err(|error| {
        let name = &saved.name;
        Error::Usage(format!(
            "{name}: {error}; --compare needs the metrics.json of an evaluation"
        ))
    })
}
