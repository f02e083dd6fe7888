//! Computes macro precision, recall and F1 of the gold and predicted labels of rows.
//!
//! The classes are the labels of the golds; a predicted label that no gold has costs nothing. Each
//! class counts the same over all rows, however rare it is, so that the numbers of a set with many
//! rare classes are unstable.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// Unweighted means over classes, 0 to 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct MacroF1 {
    /// Mean precision.
    pub precision: f64,
    /// Mean recall.
    pub recall: f64,
    /// Mean F1, which is not the F1 of the two means.
    pub f1: f64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    right: usize,
    predicted: usize,
    gold: usize,
}

/// Gathers rows.
#[derive(Debug, Default)]
pub struct MacroF1Counter {
    classes: BTreeMap<String, Counts>,
}

impl MacroF1Counter {
    /// Adds a row; labels that repeat within it count once.
    pub fn add(&mut self, gold: &[String], pred: &[String]) {
        let [gold, pred] = [gold, pred].map(|labels| labels.iter().collect::<BTreeSet<_>>());
        for label in &gold {
            let counts = self.classes.entry((*label).clone()).or_default();
            counts.gold += 1;
            counts.right += usize::from(pred.contains(label));
        }
        for label in pred {
            self.classes.entry(label.clone()).or_default().predicted += 1;
        }
    }

    /// The means over the classes that a gold has; zero where none has any, and 0/0 is 0.
    ///
    /// # Source
    ///
    /// scikit-learn's `MultiLabelBinarizer` fitted on the golds and `f1_score(average="macro")`,
    /// compared with version 1.9.1. One class is treated as many are, where scikit-learn takes it
    /// for a binary problem.
    pub fn means(&self) -> MacroF1 {
        let golds = || self.classes.values().filter(|counts| counts.gold > 0);
        let n_classes = golds().count().max(1) as f64;
        let mean = |above: fn(&Counts) -> usize, below: fn(&Counts) -> usize| {
            let ratio = |counts: &Counts| match below(counts) {
                0 => 0.0,
                n => above(counts) as f64 / n as f64,
            };
            golds().map(ratio).sum::<f64>() / n_classes
        };
        MacroF1 {
            precision: mean(|counts| counts.right, |counts| counts.predicted),
            recall: mean(|counts| counts.right, |counts| counts.gold),
            f1: mean(
                |counts| 2 * counts.right,
                |counts| counts.predicted + counts.gold,
            ),
        }
    }
}
