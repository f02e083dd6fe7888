//! The pairs of a config, checked and tokenized.

use tooltune_data::batches::{GroupByLength, OrderOptions, Packing, Shuffle, StepOrder};
use tooltune_data::pairs::{PairBatch, PairSet, read_pairs};
use tooltune_data::text::all_rows;
use tooltune_data::tools::{ApiCatalogue, read_checked_trajectories};

use crate::config::{Config, RetrieverConfig, RetrieverData, RetrieverTraining, RunLength};
use crate::error::Error;
use crate::eval::encoder::EncoderFiles;
use crate::recipes::rows::goat_options;
use crate::retriever::Sentences;

/// What a retriever learns from.
#[derive(Debug)]
pub struct RetrieverPreparation {
    /// Shape and tokenizer.
    pub files: EncoderFiles,
    /// The pairs.
    pub set: PairSet,
    /// Which pairs make a step.
    pub order: StepOrder,
    /// Optimizer steps.
    pub total_steps: u64,
    query_ids: Vec<Vec<u32>>,
    document_ids: Vec<Vec<u32>>,
}

impl RetrieverPreparation {
    /// Reads and tokenizes the pairs that the retriever of `config` learns from. With
    /// `lm_steps`, the steps of a language model beside it, `steps_per_lm_step` sets its length.
    ///
    /// # Errors
    ///
    /// - a file that cannot be read, or rows that are no pairs; the error tells of all of them
    /// - fewer than two documents: nothing can be a negative
    pub fn new(
        config: &Config,
        (retriever, training): (&RetrieverConfig, &RetrieverTraining),
        lm_steps: Option<u64>,
    ) -> Result<Self, Error> {
        let files = EncoderFiles::open(&retriever.model_name_or_path, retriever.max_seq_length)?;
        let set = match &training.data {
            RetrieverData::Pairs(paths) => read_pairs(paths)?,
            RetrieverData::Word(_) => pairs_of_trajectories(config)?,
        };
        if set.documents().len() < 2 {
            return Err(Error::Usage(format!(
                "retriever.train has {} pairs and one document: nothing can be a wrong one; add \
                 pairs with other documents, or negatives",
                set.pairs().len()
            )));
        }
        let options = OrderOptions {
            seed: config.train.seed,
            per_device_train_batch_size: training.per_device_train_batch_size,
            gradient_accumulation_steps: 1,
            packing: Packing::None,
            group_by_length: GroupByLength::Off,
            shuffle: Shuffle::On,
        };
        let order = StepOrder::new(&vec![1; set.pairs().len()], options)?;
        let total_steps = total_steps(training, &order, lm_steps);
        Ok(Self {
            query_ids: files.token_ids(set.queries())?,
            document_ids: files.token_ids(set.documents())?,
            files,
            set,
            order,
            total_steps,
        })
    }

    /// The token ids of a batch's texts.
    pub fn sentences(&self, batch: &PairBatch) -> Sentences<'_> {
        Sentences {
            queries: batch
                .queries
                .iter()
                .map(|&i| &self.query_ids[i][..])
                .collect(),
            documents: batch
                .documents
                .iter()
                .map(|&i| &self.document_ids[i][..])
                .collect(),
        }
    }

    /// Tokens of each distinct document.
    pub fn document_lengths(&self) -> impl Iterator<Item = usize> {
        self.document_ids.iter().map(Vec::len)
    }

    /// Tokens of all distinct texts.
    pub fn n_tokens(&self) -> usize {
        let texts = self.query_ids.iter().chain(&self.document_ids);
        texts.map(Vec::len).sum()
    }

    /// Steps that are due once the language model has taken `lm_step` of `lm_steps`.
    pub fn due(&self, lm_step: u64, lm_steps: u64) -> u64 {
        let share = lm_step as f64 / lm_steps.max(1) as f64;
        match lm_step >= lm_steps {
            true => self.total_steps,
            false => (self.total_steps as f64 * share).floor() as u64,
        }
    }
}

fn total_steps(training: &RetrieverTraining, order: &StepOrder, lm_steps: Option<u64>) -> u64 {
    if let Some(steps) = lm_steps.and_then(|steps| training.steps_beside(steps)) {
        return steps;
    }
    match training.length {
        RunLength::Steps(steps) => steps,
        RunLength::Epochs(epochs) => {
            (order.steps_in_epoch(0) as f64 * epochs).ceil().max(1.0) as u64
        }
    }
}

fn pairs_of_trajectories(config: &Config) -> Result<PairSet, Error> {
    let options = goat_options(config)?;
    let catalogue = ApiCatalogue::read(&options.documents)?;
    let readers = config
        .data
        .train
        .iter()
        .map(|path| read_checked_trajectories(path, &catalogue))
        .collect::<Result<Vec<_>, _>>()?;
    let trajectories = all_rows(readers.into_iter().flatten())?;
    Ok(PairSet::of_trajectories(
        &trajectories,
        &catalogue,
        options.method,
    )?)
}
