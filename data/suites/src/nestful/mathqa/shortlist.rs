//! Selects the tools that a row offers.

use sha2::{Digest, Sha256};
use tooltune_json::python::PyValue;
use tooltune_rows::batches::SeededRandom;

use super::super::error::NestfulError;
use super::super::row::{NestfulRow, ToolSpec};
use super::prompt::RowPrompt;

/// How the tools of a row are selected: the called tools, the tools of the prompt's examples, and
/// random ones, in random order.
///
/// A selection depends on the seed, the question and the calls, and on no other row.
///
/// # Source
///
/// NESTFUL, section 4.2.
#[derive(Debug, Clone)]
pub struct ToolShortlist {
    /// Minimum number of tools.
    pub min: usize,
    /// Maximum number of tools. Called tools are never left out.
    pub max: usize,
    /// Maximum number of characters of the prompt, with tools, examples and question.
    pub max_prompt_chars: usize,
    /// Seed of the number of tools, of the random tools and of their order.
    pub seed: u64,
    /// The prompt.
    pub prompt: RowPrompt,
}

/// Counts of selections that the limit affects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ShortlistCounts {
    /// Rows whose prompt exceeds the limit without any random tool. They offer no random tool.
    pub n_too_long: usize,
    /// Other rows with fewer random tools because of the limit.
    pub n_limited: usize,
}

impl ToolShortlist {
    /// Sets the tools of a row.
    ///
    /// # Errors
    ///
    /// The prompt has no such family, or not as many examples.
    pub(super) fn offer_tools(
        &self,
        row: NestfulRow,
        specs: &[ToolSpec],
        counts: &mut ShortlistCounts,
    ) -> Result<NestfulRow, NestfulError> {
        let mut random = SeededRandom::new(self.seed, stream_of(&row));
        let n_tools = self.min + random.below(self.max.saturating_sub(self.min) + 1);
        let called = row.output.iter().filter_map(|call| call.get("name"));
        let called: Vec<&str> = called.filter_map(PyValue::as_text).collect();
        let example_tools = self.prompt.example_tools()?;
        let is_in = |names: &[&str], tool: &ToolSpec| names.contains(&tool.name.as_str());
        let (mut tools, others): (Vec<ToolSpec>, Vec<ToolSpec>) =
            specs.iter().cloned().partition(|tool| is_in(&called, tool));
        let (of_examples, mut others): (Vec<ToolSpec>, Vec<ToolSpec>) = others
            .into_iter()
            .partition(|tool| is_in(&example_tools, tool));
        let n_missing = |tools: &[ToolSpec]| n_tools.saturating_sub(tools.len());
        tools.extend(of_examples.into_iter().take(n_missing(&tools)));
        let n_fixed = tools.len();
        random.shuffle(&mut others);
        tools.extend(others.into_iter().take(n_missing(&tools)));
        let n_drawn = tools.len();
        let mut row = NestfulRow { tools, ..row };
        let is_too_long = |row: &NestfulRow| -> Result<bool, NestfulError> {
            Ok(self.prompt.text(row)?.chars().count() > self.max_prompt_chars)
        };
        let mut exceeds = is_too_long(&row)?;
        while exceeds && row.tools.len() > n_fixed {
            row.tools.pop();
            exceeds = is_too_long(&row)?;
        }
        if exceeds {
            counts.n_too_long += 1;
        } else if row.tools.len() < n_drawn {
            counts.n_limited += 1;
        }
        random.shuffle(&mut row.tools);
        Ok(row)
    }
}

/// A number that depends on the question and the calls.
fn stream_of(row: &NestfulRow) -> u64 {
    let digest = Sha256::new()
        .chain_update(row.input.as_bytes())
        .chain_update([0])
        .chain_update(row.completion().as_bytes())
        .finalize();
    let first_bytes = digest.iter().take(8);
    first_bytes.fold(0, |number, byte| (number << 8) | u64::from(*byte))
}
