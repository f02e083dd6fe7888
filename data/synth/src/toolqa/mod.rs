//! Generates questions about tool outputs, with answers computed by programs, and imports the
//! published ones.
//!
//! A template is a question with slots and a [`Program`] over the JSON of a response. Without
//! templates from a file, templates are drawn from the structure of each response: its lists of
//! records and their scalar fields. The program runs on the response that is written, so an answer
//! is right by construction. Ambiguous answers are dropped and counted.
//!
//! A row depends only on the options, the responses, its number and the questions before it: a
//! smaller set is a prefix of a larger one.
//!
//! # Source
//!
//! "How Good Are LLMs at Processing Tool Outputs?", sections 2.1, 4.1, 4.2 and 4.7.2.

mod automatic;
mod error;
mod field_path;
mod number;
mod program;
mod published;
mod read_keys;
mod resize;
mod response;
mod template;
#[cfg(test)]
mod tests;
mod words;

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::Serialize;
use serde_json::Value;
use tooltune_rows::batches::SeededRandom;
use tooltune_suites::toolqa::{
    AnswerMetric, TaskType, exact_match, number_strict, project_to_keys,
};

use self::automatic::{NO_TEMPLATE, draw_template};
use self::program::Ambiguity;
use self::resize::{Resizer, list_mut, move_record, position_of};
use self::response::{RecordList, Shape};
use crate::slot::pick;

pub use error::SynthError;
pub use program::{Answer, Comparator, Condition, Program};
pub use published::{PublishedSet, import_published};
pub use resize::{CountTokens, N_POSITIONS, estimated_tokens};
pub use response::{InputResponse, read_responses};
pub use template::{Slot, Template, parse_templates};

/// First random stream of the rows.
const ROW_STREAM: u64 = 0x746F_6F6C_0000_0000;

/// Number of responses, and of questions about each, that are drawn for a row before it is given up.
const MAX_RESPONSES: usize = 8;
const MAX_DRAWS: usize = 8;

const METRIC_REFUSES: Ambiguity = "the comparison does not accept the answer itself";
const REPEATED: Ambiguity = "the question repeats an earlier one";
const NOT_ONE_RECORD: Ambiguity = "no single record of a list holds the answer";
const MOVED: Ambiguity = "the answer changes if its record is moved";
const OTHER_ENDPOINT: Ambiguity = "no response is from the endpoint of the template";

/// Options of the generator.
#[derive(Clone)]
pub struct ToolQaSynthOptions<'c> {
    /// Number of rows to draw.
    pub rows: usize,
    /// Seed of all draws.
    pub seed: u64,
    /// Numbers of tokens that responses are grown or cut to, in turn; unchanged if empty.
    pub target_tokens: Vec<usize>,
    /// Eighths of the list, from 1 to 8, to which the record with the answer is moved, in turn;
    /// unchanged if empty.
    pub answer_positions: Vec<usize>,
    /// The templates; drawn from the responses if empty.
    pub templates: Vec<Template>,
    /// Counts tokens.
    pub count_tokens: CountTokens<'c>,
}

impl std::fmt::Debug for ToolQaSynthOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ToolQaSynthOptions")
            .field("rows", &self.rows)
            .field("seed", &self.seed)
            .finish_non_exhaustive()
    }
}

/// A question, as a line of a file.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct QuestionRow {
    /// Id of the row.
    pub uid: String,
    /// Id of the response.
    pub response_id: String,
    /// The endpoint that returned the response.
    pub endpoint: String,
    /// The template.
    pub task: String,
    /// The type of the question.
    pub task_type: TaskType,
    /// How answers are compared.
    pub metric: AnswerMetric,
    /// The question.
    pub question: String,
    /// The answer.
    pub gold_answer: String,
    /// What was measured when the row was made; absent in imported rows.
    #[serde(flatten)]
    pub made: Option<MadeBy>,
}

/// Facts about a generated row.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MadeBy {
    /// Largest number of keys on a path that the program reads; lists add none.
    pub answer_depth: usize,
    /// The eighth of the list, from 1, with the record that holds the answer, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer_position: Option<usize>,
    /// The size that the response was grown or cut to, in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_tokens: Option<usize>,
    /// Paths of the keys that the program reads; lists add no key.
    pub read_keys: Vec<Vec<String>>,
    /// The program that computed the answer.
    pub program: Program,
}

/// A response, as a line of a file.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ResponseRow {
    /// Id of the response.
    pub response_id: String,
    /// The endpoint that returned it.
    pub endpoint: String,
    /// The split.
    pub split: String,
    /// The response.
    pub response: Value,
}

/// A question, and its response unless an earlier question has the same one.
#[derive(Debug, Clone, PartialEq)]
pub struct SynthQuestion {
    /// The question.
    pub row: QuestionRow,
    /// The response, if this is the first question about it.
    pub response: Option<ResponseRow>,
}

/// Generates questions one at a time.
pub struct QuestionGenerator<'c> {
    responses: Vec<InputResponse>,
    options: ToolQaSynthOptions<'c>,
    shapes: HashMap<usize, Shape>,
    resizer: Resizer<'c>,
    written: HashSet<usize>,
    asked: HashSet<(usize, String)>,
    dropped: BTreeMap<&'static str, usize>,
    n_missing: usize,
}

impl std::fmt::Debug for QuestionGenerator<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QuestionGenerator")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// A response for a row, as the program sees it.
struct Subject {
    source: usize,
    /// A resized copy; `None` if the response is used as it is.
    resized: Option<Value>,
    shape: Shape,
}

/// Picks a list in proportion to its number of records, so that the main list of a response is asked
/// about most.
fn pick_list<'l>(lists: &'l [RecordList], random: &mut SeededRandom) -> &'l RecordList {
    let n_records: usize = lists.iter().map(|list| list.n).sum();
    let mut record = random.below(n_records);
    for list in lists {
        if record < list.n {
            return list;
        }
        record -= list.n;
    }
    &lists[0]
}

impl<'c> QuestionGenerator<'c> {
    /// Checks the options.
    ///
    /// # Errors
    ///
    /// There are no responses, a size is 0, a position is not from 1 to 8, or a template cannot be
    /// resized or placed because its `records` is not a plain path of keys.
    pub fn new(
        responses: Vec<InputResponse>,
        options: ToolQaSynthOptions<'c>,
    ) -> Result<Self, SynthError> {
        let refused = |reason: String| Err(SynthError::Option { reason });
        if responses.is_empty() {
            return refused("there are no responses; name files with --responses".to_owned());
        }
        if let Some(position) = options
            .answer_positions
            .iter()
            .find(|p| !(1..=N_POSITIONS).contains(*p))
        {
            return refused(format!(
                "--answer-position {position} is not from 1 to {N_POSITIONS}"
            ));
        }
        if options.target_tokens.contains(&0) {
            return refused("--target-tokens 0: a response has at least one token".to_owned());
        }
        let must_have_keys =
            !options.target_tokens.is_empty() || !options.answer_positions.is_empty();
        for template in &options.templates {
            let records = template.program.records.as_deref();
            let has_keys = records.is_some_and(|records| {
                field_path::FieldPath::parse(records).is_ok_and(|path| path.keys().is_some())
            });
            if must_have_keys && !has_keys {
                return refused(format!(
                    "template {:?}: `records` is not a path of keys such as data.items, so its list cannot be \
                     resized or reordered; rewrite it, or omit --target-tokens and --answer-position",
                    template.task
                ));
            }
        }
        Ok(Self {
            resizer: Resizer::new(options.count_tokens),
            responses,
            options,
            shapes: HashMap::new(),
            written: HashSet::new(),
            asked: HashSet::new(),
            dropped: BTreeMap::new(),
            n_missing: 0,
        })
    }

    /// Number of dropped draws by reason.
    pub fn dropped(&self) -> &BTreeMap<&'static str, usize> {
        &self.dropped
    }

    /// Number of rows for which every draw was dropped.
    pub fn n_missing(&self) -> usize {
        self.n_missing
    }

    /// Draws row `row`; `None` if every draw was dropped. Call it with 0, 1, 2, ….
    pub fn draw(&mut self, row: usize) -> Option<SynthQuestion> {
        let mut random = SeededRandom::new(self.options.seed, ROW_STREAM.wrapping_add(row as u64));
        let turn = |values: &[usize], turn: usize| {
            (!values.is_empty()).then(|| values[turn % values.len()])
        };
        let target = turn(&self.options.target_tokens, row);
        let n_targets = self.options.target_tokens.len().max(1);
        let position = turn(&self.options.answer_positions, row / n_targets);
        for _ in 0..MAX_RESPONSES {
            let template = (!self.options.templates.is_empty())
                .then(|| pick(&self.options.templates, &mut random).clone());
            let subject = match self.subject(template.as_ref(), target, &mut random) {
                Ok(subject) => subject,
                Err(reason) => {
                    self.count(reason);
                    continue;
                }
            };
            for _ in 0..MAX_DRAWS {
                match self.question(
                    row,
                    &subject,
                    template.as_ref(),
                    target,
                    position,
                    &mut random,
                ) {
                    Ok(question) => return Some(question),
                    Err(reason) => self.count(reason),
                }
            }
        }
        self.n_missing += 1;
        None
    }

    fn count(&mut self, reason: Ambiguity) {
        *self.dropped.entry(reason).or_default() += 1;
    }

    /// Draws a response, and resizes it.
    fn subject(
        &mut self,
        template: Option<&Template>,
        target: Option<usize>,
        random: &mut SeededRandom,
    ) -> Result<Subject, Ambiguity> {
        let endpoint = template.and_then(|template| template.endpoint.as_deref());
        let sources: Vec<usize> = (0..self.responses.len())
            .filter(|idx| endpoint.is_none_or(|endpoint| self.responses[*idx].endpoint == endpoint))
            .collect();
        if sources.is_empty() {
            return Err(OTHER_ENDPOINT);
        }
        let source = *pick(&sources, random);
        let responses = &self.responses;
        let shape = self
            .shapes
            .entry(source)
            .or_insert_with(|| Shape::new(&responses[source].response))
            .clone();
        let Some(target) = target else {
            return Ok(Subject {
                source,
                resized: None,
                shape,
            });
        };
        let keys = match template.and_then(|template| template.program.records.as_deref()) {
            Some(records) => {
                let path = field_path::FieldPath::parse(records).map_err(|_| NO_TEMPLATE)?;
                path.keys().ok_or(NO_TEMPLATE)?.to_vec()
            }
            None if shape.lists.is_empty() => return Err(NO_TEMPLATE),
            None => pick_list(&shape.lists, random).keys.clone(),
        };
        let resized = self
            .resizer
            .resized(&self.responses, source, &keys, target, random)?;
        let records = field_path::follow(&keys, &resized).and_then(Value::as_array);
        // Questions are about the resized list.
        let shape = Shape {
            lists: records
                .and_then(|records| response::record_list(&keys, records))
                .into_iter()
                .collect(),
            scalars: shape.scalars,
        };
        Ok(Subject {
            source,
            resized: Some(resized),
            shape,
        })
    }

    fn question(
        &mut self,
        row: usize,
        subject: &Subject,
        template: Option<&Template>,
        target: Option<usize>,
        position: Option<usize>,
        random: &mut SeededRandom,
    ) -> Result<SynthQuestion, Ambiguity> {
        let origin = &self.responses[subject.source];
        let mut response =
            std::borrow::Cow::Borrowed(subject.resized.as_ref().unwrap_or(&origin.response));
        let drawn;
        let template = match template {
            Some(template) => template,
            None => {
                let lists = &subject.shape.lists;
                let list = (!lists.is_empty()).then(|| pick_list(lists, random));
                drawn = draw_template(&subject.shape, list, position.is_some(), random)?;
                &drawn
            }
        };
        let filled = template.fill(&response, random)?;
        let mut outcome = filled.compiled.run(&response)?;
        if let Some(position) = position {
            let keys = filled.compiled.records_keys().ok_or(NOT_ONE_RECORD)?;
            let record = outcome.record.ok_or(NOT_ONE_RECORD)?;
            let list = list_mut(response.to_mut(), keys).ok_or(NOT_ONE_RECORD)?;
            let new_record = move_record(list, record, position, random)?;
            // The program runs on the response that is written.
            let moved = filled.compiled.run(&response)?;
            if moved.gold != outcome.gold || moved.record != Some(new_record) {
                return Err(MOVED);
            }
            outcome = moved;
        }
        let metric = template.answer_metric();
        let gold = outcome.gold;
        let is_accepted = exact_match(metric, &gold, &gold)
            && (metric != AnswerMetric::ApproxNumberMatch || number_strict(&gold, &gold));
        if !is_accepted {
            return Err(METRIC_REFUSES);
        }
        let is_own = matches!(response, std::borrow::Cow::Owned(_)) || subject.resized.is_some();
        if !is_own && !self.asked.insert((subject.source, filled.question.clone())) {
            return Err(REPEATED);
        }
        let read_keys = filled.compiled.read_keys();
        let answer_depth = read_keys.iter().map(Vec::len).max().unwrap_or(0);
        let projected = project_to_keys(&response, &read_keys);
        // Holds by construction for paths of keys; for other expressions it is checked here.
        let projected_gold = filled.compiled.run(&projected).map(|outcome| outcome.gold);
        let read_keys = if projected_gold.as_ref() == Ok(&gold) {
            read_keys
        } else {
            vec![Vec::new()]
        };
        let n_records = filled.compiled.records_keys().and_then(|keys| {
            field_path::follow(keys, &response)
                .and_then(Value::as_array)
                .map(Vec::len)
        });
        let answer_position = outcome
            .record
            .zip(n_records)
            .and_then(|(idx, n)| position_of(idx, n));
        let response_id = match is_own {
            true => format!("{}#{row}", origin.response_id),
            false => origin.response_id.clone(),
        };
        let is_new = is_own || self.written.insert(subject.source);
        Ok(SynthQuestion {
            row: QuestionRow {
                uid: format!("synth-{}-{row}", self.options.seed),
                response_id: response_id.clone(),
                endpoint: origin.endpoint.clone(),
                task: template.task.clone(),
                task_type: template.task_type,
                metric,
                question: filled.question,
                gold_answer: gold,
                made: Some(MadeBy {
                    answer_depth,
                    answer_position,
                    target_tokens: target,
                    read_keys,
                    program: filled.program,
                }),
            },
            response: is_new.then(|| ResponseRow {
                response_id,
                endpoint: origin.endpoint.clone(),
                split: origin.split.clone(),
                response: response.into_owned(),
            }),
        })
    }
}
