//! Grows or cuts a response to a number of tokens, and moves a record within its list.

use std::collections::{HashMap, HashSet};

use serde_json::Value;
use tooltune_json::{Style, dumps};
use tooltune_rows::batches::SeededRandom;

use super::field_path::{follow, follow_mut};
use super::program::Ambiguity;
use super::response::InputResponse;

/// Number of parts of a list in which an answer can be.
pub const N_POSITIONS: usize = 8;

/// Minimum size of a resized response, as a fraction of the target.
const MIN_FILL: f64 = 0.9;

pub(super) const NOT_ENOUGH: Ambiguity =
    "the endpoint has too few records, or too large ones, for the target size";
pub(super) const TOO_LARGE: Ambiguity = "the response exceeds the target size without its records";
pub(super) const TOO_SHORT: Ambiguity = "the list has fewer than eight records";

/// Counts the tokens of a text.
pub type CountTokens<'c> = &'c dyn Fn(&str) -> usize;

/// An estimate of the number of tokens: one per four characters, as in appendix A of "How Good Are
/// LLMs at Processing Tool Outputs?".
pub fn estimated_tokens(text: &str) -> usize {
    text.chars().count().div_ceil(4)
}

/// Text whose tokens are counted: JSON on one line, as code prompts show it.
pub(super) fn response_text(response: &Value) -> String {
    dumps(response, Style::Python)
}

/// Resizes responses; remembers the sizes of records.
pub(super) struct Resizer<'c> {
    count: CountTokens<'c>,
    /// Tokens of each record of a list, by response and keys.
    sizes: HashMap<(usize, Vec<String>), Vec<usize>>,
}

impl<'c> Resizer<'c> {
    pub(super) fn new(count: CountTokens<'c>) -> Self {
        Self {
            count,
            sizes: HashMap::new(),
        }
    }

    fn sizes(&mut self, responses: &[InputResponse], source: usize, keys: &[String]) -> Vec<usize> {
        let count = self.count;
        let sizes = self
            .sizes
            .entry((source, keys.to_vec()))
            .or_insert_with(|| {
                let records = records(&responses[source].response, keys);
                records
                    .iter()
                    .map(|record| count(&response_text(record)))
                    .collect()
            });
        sizes.clone()
    }

    /// A copy of a response whose list at `keys` is grown with records of other responses of the
    /// endpoint, or cut, so that it has at most `target` tokens and at least 90 % of them.
    ///
    /// # Errors
    ///
    /// There are too few different records, or the rest of the response is already too large.
    pub(super) fn resized(
        &mut self,
        responses: &[InputResponse],
        source: usize,
        keys: &[String],
        target: usize,
        random: &mut SeededRandom,
    ) -> Result<Value, Ambiguity> {
        let origin = &responses[source];
        let mut resized = origin.response.clone();
        let list = list_mut(&mut resized, keys).ok_or(NOT_ENOUGH)?;
        list.clear();
        let mut left = target
            .checked_sub((self.count)(&response_text(&resized)))
            .ok_or(TOO_LARGE)?;

        let mut own: Vec<usize> = (0..records(&origin.response, keys).len()).collect();
        random.shuffle(&mut own);
        let sizes = self.sizes(responses, source, keys);
        own.retain(|idx| take(&mut left, sizes[*idx]));
        own.sort_unstable();
        let own_records = records(&origin.response, keys);
        let mut chosen: Vec<&Value> = own.iter().map(|idx| &own_records[*idx]).collect();

        let mut others: Vec<usize> = (0..responses.len())
            .filter(|idx| *idx != source && responses[*idx].endpoint == origin.endpoint)
            .collect();
        random.shuffle(&mut others);
        let mut seen: HashSet<String> = own_records.iter().map(response_text).collect();
        for other in others {
            if left * 100 < target {
                break;
            }
            let sizes = self.sizes(responses, other, keys);
            for (record, size) in records(&responses[other].response, keys).iter().zip(sizes) {
                if record.is_object() && seen.insert(response_text(record)) && take(&mut left, size)
                {
                    chosen.push(record);
                }
            }
        }
        let mut chosen: Vec<Value> = chosen.into_iter().cloned().collect();
        // The parts may have fewer tokens than the whole, so the whole is counted.
        while !chosen.is_empty() {
            let n_chosen = chosen.len();
            *list_mut(&mut resized, keys).ok_or(NOT_ENOUGH)? = chosen;
            let n_tokens = (self.count)(&response_text(&resized));
            if n_tokens <= target {
                return if is_filled(n_tokens, target) {
                    Ok(resized)
                } else {
                    Err(NOT_ENOUGH)
                };
            }
            let n_over = (n_tokens - target) * n_chosen / n_tokens + 1;
            chosen = std::mem::take(list_mut(&mut resized, keys).ok_or(NOT_ENOUGH)?);
            chosen.truncate(n_chosen.saturating_sub(n_over));
        }
        Err(NOT_ENOUGH)
    }
}

fn is_filled(n_tokens: usize, target: usize) -> bool {
    n_tokens as f64 >= MIN_FILL * target as f64
}

fn take(left: &mut usize, size: usize) -> bool {
    let rest = left.checked_sub(size);
    *left = rest.unwrap_or(*left);
    rest.is_some()
}

fn records<'v>(response: &'v Value, keys: &[String]) -> &'v [Value] {
    follow(keys, response)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

pub(super) fn list_mut<'v>(response: &'v mut Value, keys: &[String]) -> Option<&'v mut Vec<Value>> {
    follow_mut(keys, response)?.as_array_mut()
}

/// The eighth of a list of `n` records that contains record `idx`, from 1; `None` if the list has
/// fewer than eight records.
pub(super) fn position_of(idx: usize, n: usize) -> Option<usize> {
    (n >= N_POSITIONS)
        .then(|| (1..=N_POSITIONS).find(|position| idx < position * n / N_POSITIONS))?
}

/// Moves record `idx` to a drawn place in an eighth of the list, and returns its new index.
///
/// # Errors
///
/// The list has fewer than eight records.
pub(super) fn move_record(
    list: &mut Vec<Value>,
    idx: usize,
    position: usize,
    random: &mut SeededRandom,
) -> Result<usize, Ambiguity> {
    let n = list.len();
    if n < N_POSITIONS || idx >= n {
        return Err(TOO_SHORT);
    }
    let (start, end) = ((position - 1) * n / N_POSITIONS, position * n / N_POSITIONS);
    let new_idx = start + random.below(end - start);
    let record = list.remove(idx);
    list.insert(new_idx, record);
    Ok(new_idx)
}
