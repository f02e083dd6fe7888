//! Checks and tokenizes the pairs of a config.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use tooltune_agents::flat::FlatDocuments;
use tooltune_agents::pairs::{
    PairBatch, PairOrder, PairOrderOptions, PairSet, read_documents, read_pairs_among,
    read_pairs_of,
};
use tooltune_apis::{ApiCatalogue, CheckedTrajectories};
use tooltune_json::faults::collect_rows;

use crate::config::{Config, EvalStrategy, RetrieverConfig, RetrieverData, RunLength};
use crate::encoder::cut_texts::{CutTexts, EqualTexts, LocatedIds};
use crate::encoder::{EncoderFiles, Role, TextIds};
use crate::error::Error;
use crate::retriever::Sentences;
use crate::rows::{RowFiles, SettingFiles, flat_documents, goat_options, refuse_training_files};

/// Training data of a retriever.
#[derive(Debug)]
pub struct RetrieverPreparation {
    /// Shape and tokenizer.
    pub files: EncoderFiles,
    /// The pairs. Texts with equal tokens are merged.
    pub set: PairSet,
    /// The pairs of each step.
    pub order: PairOrder,
    /// Number of optimizer steps.
    pub total_steps: u64,
    /// Number of texts that exceed the encoder's length limit.
    pub cut: CutTexts,
    /// Number of evaluation queries that are also trained on, and number of all evaluation queries;
    /// `None` if none overlap.
    n_trained_queries: Option<(usize, usize)>,
    /// Whether a pair has negatives, or negatives are mined.
    has_hard_negatives: bool,
    query_ids: TextIds,
    document_ids: TextIds,
}

impl RetrieverPreparation {
    /// Reads and tokenizes the training pairs of `config`. If a language model is trained in the
    /// same run, `lm_steps` is the number of its steps, and `steps_per_lm_step` sets the number of
    /// retriever steps.
    ///
    /// # Errors
    ///
    /// - a file cannot be read, or has rows that are not pairs; the error lists all of them
    /// - a file is used for both training and evaluation
    /// - no document is wrong for any query, or a batch of one pair has no negatives
    pub fn new(
        config: &Config,
        retriever: &RetrieverConfig,
        lm_steps: Option<u64>,
    ) -> Result<Self, Error> {
        let files = EncoderFiles::for_retriever(retriever)?;
        let set = match &retriever.train {
            Some(RetrieverData::Pairs(paths)) => {
                refuse_shared_files(paths, &retriever.eval)?;
                read_pairs_of(RowFiles::all_rows(paths).open()?)?
            }
            Some(RetrieverData::Word(_)) => pairs_of_trajectories(config)?,
            None => {
                let reason =
                    "retriever.train is missing: set it to the training pairs of the retriever";
                return Err(Error::Usage(reason.to_string()));
            }
        };
        let n_trained_queries = trained_queries(config, retriever, &set)?;
        let query_ids = files.token_ids(Role::Query, set.queries())?;
        let document_ids = files.token_ids(Role::Document, set.documents())?;
        let queries = LocatedIds {
            locations: set.query_places(),
            ids: &query_ids,
        };
        let documents = LocatedIds {
            locations: set.document_places(),
            ids: &document_ids,
        };
        let cut = CutTexts::new(&files, Some(queries), Some(documents));
        let set = set.merge(&query_ids.duplicates(), &document_ids.duplicates());
        let options = PairOrderOptions {
            seed: config.train.seed,
            batch_size: retriever.per_device_train_batch_size,
            hard_negatives: retriever.hard_negatives,
        };
        let order = PairOrder::new(&set, options)?;
        check_negatives(&set, &order, retriever)?;
        let total_steps = total_steps(retriever, &order, lm_steps);
        let mut pairs = set.pairs().iter();
        Ok(Self {
            has_hard_negatives: retriever.hard_negatives > 0
                || pairs.any(|pair| !pair.negatives.is_empty()),
            query_ids: query_ids.distinct(),
            document_ids: document_ids.distinct(),
            files,
            set,
            order,
            total_steps,
            cut,
            n_trained_queries,
        })
    }

    /// Token ids of the queries and of the documents.
    pub fn ids(&self) -> (&TextIds, &TextIds) {
        (&self.query_ids, &self.document_ids)
    }

    /// A checksum of the pairs and of the tokens of their texts.
    pub fn checksum(&self) -> u32 {
        let mut sum = 0;
        let mut add = |number: u64| sum = crc32c::crc32c_append(sum, &number.to_le_bytes());
        for text in self.query_ids.texts.iter().chain(&self.document_ids.texts) {
            add(text.ids.len() as u64);
            text.ids.iter().for_each(|&id| add(u64::from(id)));
        }
        for pair in self.set.pairs() {
            let negatives = pair.negatives.iter().copied();
            for index in [pair.query, pair.document, pair.negatives.len()]
                .into_iter()
                .chain(negatives)
            {
                add(index as u64);
            }
        }
        sum
    }

    /// Warnings about pairs without hard negatives, truncated texts, texts with equal tokens, and
    /// pairs that were moved to another batch.
    pub fn remarks(&self) -> Vec<String> {
        let mut lines = self.cut.lines(EqualTexts::Merged);
        if !self.has_hard_negatives {
            lines.push(
                "no pair has negatives, and retriever.hard_negatives is 0: only the documents of the \
                 other pairs in a batch serve as wrong documents"
                    .to_owned(),
            );
        }
        if let Some((n, n_all)) = self.n_trained_queries {
            lines.push(format!(
                "{n} of {n_all} queries of retriever.eval are also in retriever.train: their \
                 metrics do not apply to unseen queries"
            ));
        }
        match self.order.n_joined(0) {
            0 => {}
            1 => lines.push(
                "1 batch of the first epoch has no wrong document and is merged with another"
                    .to_owned(),
            ),
            n => lines.push(format!(
                "{n} batches of the first epoch have no wrong document and are merged with others"
            )),
        }
        lines
    }

    /// Token ids of the texts in a batch.
    pub fn sentences(&self, batch: &PairBatch) -> Sentences<'_> {
        Sentences {
            queries: batch
                .queries
                .iter()
                .map(|&i| self.query_ids.sentence(i))
                .collect(),
            documents: batch
                .documents
                .iter()
                .map(|&i| self.document_ids.sentence(i))
                .collect(),
        }
    }

    /// Token counts of the distinct documents.
    pub fn document_lengths(&self) -> impl Iterator<Item = usize> {
        self.document_ids.lengths()
    }

    /// Total tokens of the distinct texts.
    pub fn n_tokens(&self) -> usize {
        self.query_ids
            .lengths()
            .chain(self.document_ids.lengths())
            .sum()
    }

    /// Number of retriever steps that are due after step `lm_step` of `lm_steps` of the language
    /// model.
    pub fn steps_due(&self, lm_step: u64, lm_steps: u64) -> u64 {
        let share = lm_step as f64 / lm_steps.max(1) as f64;
        if lm_step >= lm_steps {
            self.total_steps
        } else {
            (self.total_steps as f64 * share).floor() as u64
        }
    }
}

/// Refuses files of pairs that are used for both training and evaluation.
fn refuse_shared_files(trained: &[PathBuf], evaluated: &[PathBuf]) -> Result<(), Error> {
    let trained: Vec<&Path> = trained.iter().map(PathBuf::as_path).collect();
    let evaluated: Vec<&Path> = evaluated.iter().map(PathBuf::as_path).collect();
    refuse_training_files(
        SettingFiles {
            key: "retriever.train",
            files: &trained,
        },
        SettingFiles {
            key: "retriever.eval",
            files: &evaluated,
        },
    )
}

/// Number of evaluation queries that are also trained on, and number of all evaluation queries;
/// `None` if none overlap or if the run does not evaluate on pairs.
fn trained_queries(
    config: &Config,
    retriever: &RetrieverConfig,
    trained: &PairSet,
) -> Result<Option<(usize, usize)>, Error> {
    let is_evaluated = config.eval.eval_strategy == EvalStrategy::Steps;
    if !is_evaluated || retriever.eval.is_empty() {
        return Ok(None);
    }
    let documents = retriever.documents.as_deref().map(read_documents);
    let documents = documents.transpose()?.unwrap_or_default();
    let evaluated = read_pairs_among(RowFiles::all_rows(&retriever.eval).open()?, &documents)?;
    let trained: HashSet<&str> = trained.queries().iter().map(String::as_str).collect();
    let queries = evaluated.queries().iter();
    let n = queries
        .filter(|query| trained.contains(query.as_str()))
        .count();
    Ok((n > 0).then(|| (n, evaluated.queries().len())))
}

/// Refuses training pairs if no document is wrong for any query, and batches of one pair if a pair
/// has no negatives.
fn check_negatives(
    set: &PairSet,
    order: &PairOrder,
    training: &RetrieverConfig,
) -> Result<(), Error> {
    let n_pairs = set.pairs().len();
    if !order.can_learn() {
        let documents = match set.documents().len() {
            1 => "one document".to_owned(),
            n => format!("{n} documents, all of them correct for every query"),
        };
        return Err(Error::Usage(format!(
            "retriever.train has {n_pairs} pairs and {documents}: no document is wrong for any query; \
             add pairs with other documents, or negatives"
        )));
    }
    match (
        training.per_device_train_batch_size,
        order.n_pairs_without_negatives(),
    ) {
        (1, n @ 1..) => Err(Error::Usage(format!(
            "retriever.per_device_train_batch_size is 1, and {n} of {n_pairs} pairs have no \
             negatives: a step on such a pair has no wrong document and trains nothing; raise it, \
             set retriever.hard_negatives, or add negatives to the pairs"
        ))),
        _ => Ok(()),
    }
}

fn total_steps(training: &RetrieverConfig, order: &PairOrder, lm_steps: Option<u64>) -> u64 {
    if let Some(steps) = lm_steps.and_then(|steps| training.steps_with_lm(steps)) {
        return steps;
    }
    match training.length() {
        RunLength::Steps(steps) => steps,
        RunLength::Epochs(epochs) => order.steps_in_epochs(epochs),
    }
}

fn pairs_of_trajectories(config: &Config) -> Result<PairSet, Error> {
    let options = goat_options(config)?;
    let catalogue = ApiCatalogue::read(&options.documents)?;
    let readers = RowFiles::training(config).open()?.into_iter();
    let readers = readers.map(|records| CheckedTrajectories::new(records, &catalogue));
    let trajectories = collect_rows(readers.flatten())?;
    let flat = flat_documents(config, &catalogue)?;
    let visible = flat.as_ref().map_or(&catalogue, FlatDocuments::catalogue);
    Ok(PairSet::from_trajectories(
        &trajectories,
        visible,
        options.method,
    )?)
}
