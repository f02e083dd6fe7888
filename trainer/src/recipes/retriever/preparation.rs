//! The pairs of a config, checked and tokenized.

use tooltune_agents::flat::FlatDocuments;
use tooltune_agents::pairs::{PairBatch, PairOrder, PairOrderOptions, PairSet, read_pairs_of};
use tooltune_rows::text::all_rows;
use tooltune_rows::tools::{ApiCatalogue, CheckedTrajectories};

use crate::config::{Config, RetrieverConfig, RetrieverData, RunLength};
use crate::encoder::cut_texts::{Consequence, CutTexts, PlacedIds};
use crate::encoder::{EncoderFiles, Role, TextIds};
use crate::error::Error;
use crate::retriever::Sentences;
use crate::rows::{RowFiles, flat_documents, goat_options};

/// What a retriever learns from.
#[derive(Debug)]
pub struct RetrieverPreparation {
    /// Shape and tokenizer.
    pub files: EncoderFiles,
    /// The pairs; texts that the encoder reads alike are one text.
    pub set: PairSet,
    /// Which pairs make a step.
    pub order: PairOrder,
    /// Optimizer steps.
    pub total_steps: u64,
    /// What the encoder does not read of the texts.
    pub cut: CutTexts,
    /// Whether some pair has negatives, or some are mined.
    has_hard_negatives: bool,
    query_ids: TextIds,
    document_ids: TextIds,
}

impl RetrieverPreparation {
    /// Reads and tokenizes the pairs that the retriever of `config` learns from. With
    /// `lm_steps`, the steps of a language model beside it, `steps_per_lm_step` sets its length.
    ///
    /// # Errors
    ///
    /// - a file that cannot be read, or rows that are no pairs; the error tells of all of them
    /// - no pair has a document that is wrong for it, or batches of one pair have none
    pub fn new(
        config: &Config,
        retriever: &RetrieverConfig,
        lm_steps: Option<u64>,
    ) -> Result<Self, Error> {
        let files = EncoderFiles::of_retriever(retriever)?;
        let set = match &retriever.train {
            Some(RetrieverData::Pairs(paths)) => read_pairs_of(RowFiles::whole(paths).open()?)?,
            Some(RetrieverData::Word(_)) => pairs_of_trajectories(config)?,
            None => {
                let reason = "retriever.train is missing: say what the retriever learns from";
                return Err(Error::Usage(reason.to_string()));
            }
        };
        let query_ids = files.token_ids(Role::Query, set.queries())?;
        let document_ids = files.token_ids(Role::Document, set.documents())?;
        let queries = PlacedIds {
            places: set.query_places(),
            ids: &query_ids,
        };
        let documents = PlacedIds {
            places: set.document_places(),
            ids: &document_ids,
        };
        let cut = CutTexts::new(&files, Some(queries), Some(documents));
        let set = set.merged(&query_ids.same(), &document_ids.same());
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
        })
    }

    /// The token ids of the set's queries, and of its documents.
    pub fn ids(&self) -> (&TextIds, &TextIds) {
        (&self.query_ids, &self.document_ids)
    }

    /// Lines about what is not learned as it stands: no hard negatives, texts that are cut, texts that are read alike,
    /// and pairs that join another batch.
    pub fn remarks(&self) -> Vec<String> {
        let mut lines = self.cut.lines(Consequence::CountAsOne);
        if !self.has_hard_negatives {
            lines.push(
                "no pair has negatives, and retriever.hard_negatives is 0: the wrong documents of a \
                 query are those of the other pairs in its batch alone"
                    .to_owned(),
            );
        }
        match self.order.n_joined(0) {
            0 => {}
            1 => lines.push(
                "1 batch of the first epoch has no wrong document and joins another".to_owned(),
            ),
            n => lines.push(format!(
                "{n} batches of the first epoch have no wrong document and join others"
            )),
        }
        lines
    }

    /// The token ids of a batch's texts.
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

    /// Tokens of each distinct document.
    pub fn document_lengths(&self) -> impl Iterator<Item = usize> {
        self.document_ids.lengths()
    }

    /// Tokens of all distinct texts.
    pub fn n_tokens(&self) -> usize {
        self.query_ids
            .lengths()
            .chain(self.document_ids.lengths())
            .sum()
    }

    /// Steps that are due once the language model has taken `lm_step` of `lm_steps`.
    pub fn due(&self, lm_step: u64, lm_steps: u64) -> u64 {
        let share = lm_step as f64 / lm_steps.max(1) as f64;
        if lm_step >= lm_steps {
            self.total_steps
        } else {
            (self.total_steps as f64 * share).floor() as u64
        }
    }
}

/// Refuses pairs of which none, or none in a batch of its own, has a wrong document.
fn check_negatives(
    set: &PairSet,
    order: &PairOrder,
    training: &RetrieverConfig,
) -> Result<(), Error> {
    let n_pairs = set.pairs().len();
    if !order.can_learn() {
        let documents = match set.documents().len() {
            1 => "one document".to_owned(),
            n => format!("{n} documents, all right for each query"),
        };
        return Err(Error::Usage(format!(
            "retriever.train has {n_pairs} pairs and {documents}: nothing can be a wrong one; add \
             pairs with other documents, or negatives"
        )));
    }
    match (
        training.per_device_train_batch_size,
        order.n_alone_without_negatives(),
    ) {
        (1, n @ 1..) => Err(Error::Usage(format!(
            "retriever.per_device_train_batch_size is 1, and {n} of {n_pairs} pairs have no \
             negatives: a step of such a pair has no wrong document and teaches nothing; raise it, \
             set retriever.hard_negatives, or give the pairs negatives"
        ))),
        _ => Ok(()),
    }
}

fn total_steps(training: &RetrieverConfig, order: &PairOrder, lm_steps: Option<u64>) -> u64 {
    if let Some(steps) = lm_steps.and_then(|steps| training.steps_beside(steps)) {
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
    let trajectories = all_rows(readers.flatten())?;
    let flat = flat_documents(config, &catalogue)?;
    let shown = flat.as_ref().map_or(&catalogue, FlatDocuments::catalogue);
    Ok(PairSet::of_trajectories(
        &trajectories,
        shown,
        options.method,
    )?)
}
