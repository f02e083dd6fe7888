//! Layout of all encoder parameters in one flat buffer.
//!
//! The parameters are in the order in which the encoder uses them. Parameters that are used as one
//! tensor, such as the three attention projections, are contiguous.

use std::collections::BTreeMap;
use std::ops::Range;

use burn::tensor::{Device, Tensor, TensorData};
use tooltune_checkpoints::error::CheckpointError;
use tooltune_checkpoints::families::BERT;
use tooltune_checkpoints::weights::{HostTensor, Weights};

use super::MiniLmConfig;

/// A tensor of the checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParameterSlot {
    /// Name as in `BertModel` checkpoints.
    pub name: String,
    /// Shape as in the checkpoint.
    pub shape: Vec<usize>,
    /// Range of its elements in the flat buffer.
    pub range: Range<usize>,
}

/// Slots that the encoder uses as one tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Range of the elements in the flat buffer.
    pub range: Range<usize>,
    /// Rows and columns; one row for vectors.
    pub shape: [usize; 2],
}

/// All parameters of an encoder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParameterLayout {
    /// Slots in the order of the buffer.
    pub slots: Vec<ParameterSlot>,
    /// Pieces in the order of the buffer, each of one or more slots.
    pub pieces: Vec<Piece>,
}

impl ParameterLayout {
    /// The layout of an encoder. It omits the pooler, which sentence embeddings do not use.
    pub fn new(config: &MiniLmConfig) -> Self {
        let (d, inner) = (config.hidden_size, config.intermediate_size);
        let mut layout = Self {
            slots: Vec::new(),
            pieces: Vec::new(),
        };
        for (table, rows) in [
            ("word", config.vocab_size),
            ("position", config.max_position_embeddings),
            ("token_type", config.type_vocab_size),
        ] {
            layout.piece(&[format!("embeddings.{table}_embeddings.weight")], rows, d);
        }
        layout.norm("embeddings.LayerNorm", d);
        for layer in 0..config.num_hidden_layers {
            let full_name = |module: &str| format!("encoder.layer.{layer}.{module}");
            let projections =
                ["query", "key", "value"].map(|p| full_name(&format!("attention.self.{p}")));
            layout.linear(&projections, d, d);
            layout.linear(&[full_name("attention.output.dense")], d, d);
            layout.norm(&full_name("attention.output.LayerNorm"), d);
            layout.linear(&[full_name("intermediate.dense")], inner, d);
            layout.linear(&[full_name("output.dense")], d, inner);
            layout.norm(&full_name("output.LayerNorm"), d);
        }
        layout
    }

    fn piece(&mut self, names: &[String], rows: usize, columns: usize) {
        let start = self.len();
        for name in names {
            let first = self.len();
            // 0 rows means a vector: one row here, but one dimension in the checkpoint.
            let shape = match rows {
                0 => vec![columns],
                rows => vec![rows, columns],
            };
            self.slots.push(ParameterSlot {
                name: name.clone(),
                shape,
                range: first..first + rows.max(1) * columns,
            });
        }
        let range = start..self.len();
        let shape = match rows {
            0 => [1, range.len()],
            _ => [range.len() / columns, columns],
        };
        self.pieces.push(Piece { range, shape });
    }

    fn linear(&mut self, modules: &[String], outputs: usize, inputs: usize) {
        let names = |part: &str| -> Vec<String> {
            modules
                .iter()
                .map(|module| format!("{module}.{part}"))
                .collect()
        };
        self.piece(&names("weight"), outputs, inputs);
        self.piece(&names("bias"), 0, outputs);
    }

    fn norm(&mut self, module: &str, d: usize) {
        self.piece(&[format!("{module}.weight")], 0, d);
        self.piece(&[format!("{module}.bias")], 0, d);
    }

    /// Number of parameters.
    pub fn len(&self) -> usize {
        self.slots.last().map_or(0, |slot| slot.range.end)
    }

    /// Always false: an encoder has embeddings.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Loads all parameters, `[p]`, f32.
    ///
    /// # Errors
    ///
    /// Tensors are missing, extra or of the wrong shape (all listed in one error), not finite, or a
    /// file cannot be read.
    pub fn read(&self, weights: &Weights, device: &Device) -> Result<Tensor<1>, CheckpointError> {
        let mut expected: Vec<(String, Vec<usize>)> = self
            .slots
            .iter()
            .map(|slot| (slot.name.clone(), slot.shape.clone()))
            .collect();
        for &name in BERT.unused_tensors {
            if let Some(shape) = weights.shape(name) {
                expected.push((name.to_string(), shape.to_vec()));
            }
        }
        weights.check(&expected)?;
        let mut values = Vec::with_capacity(self.len());
        for slot in &self.slots {
            values.extend(weights.read_finite_f32(&slot.name)?.values);
        }
        let n = values.len();
        Ok(Tensor::from_data(TensorData::new(values, [n]), device))
    }

    /// All parameters on the host, by name.
    pub fn to_tensors(&self, flat: &Tensor<1>) -> BTreeMap<String, HostTensor> {
        let values: Vec<f32> = flat.to_data().iter::<f32>().collect();
        self.slots
            .iter()
            .map(|slot| {
                let tensor = HostTensor {
                    shape: slot.shape.clone(),
                    values: values[slot.range.clone()].to_vec(),
                };
                (slot.name.clone(), tensor)
            })
            .collect()
    }
}
