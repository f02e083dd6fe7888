//! JSON Lines in, checked rows out, one at a time.
//!
//! Rows stream: memory holds one line, however long the file. A fault names the file, the line and
//! the field, and the reader stands at the next line afterwards, so that a caller can list all
//! faults of a file instead of the first.

use std::path::Path;

use serde_json::{Map, Value};

use super::call_check::CallCheck;
use super::columns::Columns;
use super::conversation::{
    Conversation, Message, Role, as_array, as_object, missing, parse_messages, refuse_old_spelling,
    text_field, wrong_type,
};
use super::error::DataError;
use super::formats::{
    DataFormat, FormatError, FormattedRow, RecognisedFormat, RowNotes, Wrapping, foreign_row,
    recognise, refuse_media, tools,
};
use super::slot::{GoldCheck, SlotRow};
use super::slot_prompt::SlotPrompt;
use super::tool_results::must_name_their_calls;
use crate::json::{self, JsonError};
use crate::lines::{Records, open_rows};
use crate::read_error::ReadError;
use crate::tools::{ToolsError, read_text};

/// One row, ready to be rendered.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The row as `file:line`.
    pub id: String,
    /// What is rendered and learned.
    pub conversation: Conversation,
    /// What the weights of its tokens are multiplied with; 1 for a row like any other.
    pub weight: f32,
    /// The row's own fields, for the metrics, where the format is SLOT; nested, even where the
    /// conversation shows a flat schema.
    pub slot: Option<SlotRow>,
}

impl Row {
    /// A SLOT row with the prompt that asks for its answer.
    ///
    /// The gold is taken as it is: only [`read_rows`] checks it against the schema.
    ///
    /// # Errors
    ///
    /// As [`SlotPrompt::render`].
    pub fn of_slot(slot: SlotRow, prompt: &SlotPrompt) -> Result<Self, DataError> {
        Ok(Self {
            id: slot.id.clone(),
            conversation: slot.conversation(prompt)?,
            weight: 1.0,
            slot: Some(slot),
        })
    }
}

impl Row {
    /// A SLOT row of which the answer is not known: its conversation ends with what is asked. Its
    /// gold is an empty object, which gives lists the slots that a flattening asks for.
    ///
    /// # Errors
    ///
    /// As [`SlotPrompt::render`]; a schema that cannot be used.
    pub fn asking(
        id: &str,
        input_text: String,
        json_schema: Value,
        prompt: &SlotPrompt,
    ) -> Result<Self, DataError> {
        GoldCheck::default().check_schema(&json_schema)?;
        Self::asking_as_it_is(id, input_text, json_schema, prompt)
    }

    fn asking_as_it_is(
        id: &str,
        input_text: String,
        json_schema: Value,
        prompt: &SlotPrompt,
    ) -> Result<Self, DataError> {
        let slot = SlotRow {
            id: id.to_owned(),
            input_text,
            json_schema,
            gold: Value::Object(Map::new()),
        };
        let row = Self::of_slot(slot, prompt)?;
        Ok(Self {
            conversation: row.conversation.without_answer(),
            ..row
        })
    }

    /// Whether its conversation ends with what is asked.
    pub fn has_no_answer(&self) -> bool {
        self.conversation.completion_start >= self.conversation.messages.len()
    }
}

/// Opens a file of rows in JSON Lines, gzip-compressed or not.
///
/// Blank lines and a byte-order mark at the start of the file are skipped.
///
/// The path `-` is the standard input.
///
/// # Errors
///
/// - the file cannot be opened
///
/// The reader itself yields an error for a file without rows, one that is a JSON array or CSV, a line
/// that is not UTF-8 or not one JSON object, a key that stands twice, an integer beyond 64 bits, a field that is missing or of
/// another type, a gold value that its schema refuses, and a call that the tools of its row do not
/// take; a file that is no text in UTF-8, and a line of more than 256 MiB, are one, too, and the last.
pub fn read_rows(path: &Path, format: DataFormat) -> Result<RowReader, DataError> {
    Ok(RowReader::new(open_rows(path)?, format))
}

/// The rows of a file in order.
#[derive(Debug)]
pub struct RowReader {
    records: RowRecords,
    parser: RowParser,
}

/// A row that is not parsed, with its place, or why there is none.
pub type RowRecord = Result<(String, Vec<u8>), DataError>;

/// The rows of a file in order, not parsed.
#[derive(Debug)]
pub struct RowRecords {
    records: Box<dyn Records>,
    is_done: bool,
}

impl RowRecords {
    /// Of a file that is open. A file without any is an error.
    pub fn new(records: Box<dyn Records>) -> Self {
        Self {
            records,
            is_done: false,
        }
    }
}

impl Iterator for RowRecords {
    type Item = RowRecord;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_done {
            return None;
        }
        let record = self.records.next_record();
        let place = self.records.place();
        self.is_done = !matches!(record, Ok(Some(_)));
        match record {
            Ok(Some(record)) => Some(Ok((place, record))),
            Ok(None) if self.records.has_any() => None,
            Ok(None) => {
                let path = self.records.path().to_owned();
                Some(Err(DataError::EmptyFile { path }))
            }
            Err(error) => Some(Err(DataError::from(error).at(&place))),
        }
    }
}

impl Iterator for RowReader {
    type Item = Result<Row, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        let record = self.records.next()?;
        Some(self.parser.parse(record))
    }
}

impl RowReader {
    /// The rows of a file that is open; errors are those of [`read_rows`].
    pub fn new(records: Box<dyn Records>, format: DataFormat) -> Self {
        Self {
            records: RowRecords::new(records),
            parser: RowParser::new(format),
        }
    }

    /// Parses rows as a changed parser does.
    #[must_use]
    pub fn with(self, change: impl FnOnce(RowParser) -> RowParser) -> Self {
        Self {
            parser: change(self.parser),
            ..self
        }
    }

    /// What the rows so far have that their format does not read, and calls without results.
    pub fn notes(&self) -> &RowNotes {
        &self.parser.notes
    }
}

/// Makes rows of records.
#[derive(Debug)]
pub struct RowParser {
    format: DataFormat,
    has_golds: bool,
    slot_prompt: SlotPrompt,
    columns: Columns,
    gold_check: GoldCheck,
    call_check: Option<CallCheck>,
    notes: RowNotes,
}

impl RowParser {
    /// For rows of a format.
    pub fn new(format: DataFormat) -> Self {
        Self {
            format,
            has_golds: true,
            slot_prompt: SlotPrompt::default(),
            columns: Columns::default(),
            gold_check: GoldCheck::default(),
            call_check: Some(CallCheck::default()),
            notes: RowNotes::default(),
        }
    }

    /// Takes calls as they are, whatever the tools of their row say.
    #[must_use]
    pub fn with_unchecked_calls(self) -> Self {
        Self {
            call_check: None,
            ..self
        }
    }

    /// Reads SLOT rows without a gold, too: their conversation ends with what is asked.
    #[must_use]
    pub fn without_golds(self) -> Self {
        Self {
            has_golds: false,
            ..self
        }
    }

    /// Asks SLOT rows so.
    #[must_use]
    pub fn with_slot_prompt(self, slot_prompt: SlotPrompt) -> Self {
        Self {
            slot_prompt,
            ..self
        }
    }

    /// Finds fields under the names of these columns.
    #[must_use]
    pub fn with_columns(self, columns: Columns) -> Self {
        Self { columns, ..self }
    }

    /// What the rows so far have that their format does not read, and calls without results.
    pub fn notes(&self) -> &RowNotes {
        &self.notes
    }

    /// The notes so far, which are empty afterwards.
    pub fn take_notes(&mut self) -> RowNotes {
        std::mem::take(&mut self.notes)
    }

    /// The row of a record.
    ///
    /// # Errors
    ///
    /// - that of the record
    /// - as those of the rows of [`read_rows`]
    pub fn parse(&mut self, record: RowRecord) -> Result<Row, DataError> {
        let (id, record) = record?;
        self.parse_row(&id, &record).map_err(|error| error.at(&id))
    }

    fn parse_row(&mut self, id: &str, line: &[u8]) -> Result<Row, DataError> {
        let text = std::str::from_utf8(line).map_err(|error| DataError::NotUtf8 {
            byte: error.valid_up_to(),
        })?;
        let text = text.trim_end_matches(['\r', '\n']);
        let value = json::parse_unique(text).map_err(|error| match error {
            JsonError::DuplicateKey(twice) => ReadError::from(twice).into(),
            error => DataError::NotJson { error },
        })?;
        let is_read = |column: &str| {
            let field = self.columns.field_of(column);
            self.format.fields().contains(&field)
        };
        if let Some(oversized) = json::oversized_integer(text, is_read) {
            return Err(ReadError::from(oversized).into());
        }
        let Value::Object(fields) = value else {
            return Err(wrong_type("the line", &value, "a JSON object"));
        };
        let fields = self.columns.renamed(fields);
        self.must_be_of_the_format(&fields)?;
        refuse_media(&fields)?;
        self.notes.not_read.count_fields(id, self.format, &fields);
        let row = match foreign_row(self.format, &fields) {
            Some(row) => row?,
            None if self.format == DataFormat::Slot => return self.slot_row(id, fields),
            None if self.format == DataFormat::Messages => messages(&fields)?,
            None => prompt_completion(&fields)?,
        };
        self.notes.not_read.count_types(id, &row.unknown_types);
        self.conversation_row(id, row)
    }

    /// Refuses a row that has all fields of another format and lacks some of this one.
    fn must_be_of_the_format(&self, fields: &Map<String, Value>) -> Result<(), DataError> {
        let is_expected = |found: &str| found == self.format.as_str();
        match recognise(fields) {
            Ok(RecognisedFormat::Rows(found)) if self.format.reads(found, fields) => Ok(()),
            Ok(found) if !is_expected(found.as_str()) => Err(FormatError::Other {
                found: found.as_str(),
                expected: self.format.as_str(),
            }
            .into()),
            // What is missing is told by field, and who names a format chooses among several.
            _ => Ok(()),
        }
    }

    fn slot_row(&mut self, id: &str, mut fields: Map<String, Value>) -> Result<Row, DataError> {
        const NEEDED: &str = "a slot row needs input_text, json_schema and gold";
        let input_text = text_field(&fields, "", "input_text", NEEDED)?.to_owned();
        let json_schema = fields
            .remove("json_schema")
            .ok_or_else(|| missing("json_schema", NEEDED))?;
        if !json_schema.is_object() {
            return Err(wrong_type("json_schema", &json_schema, "an object"));
        }
        let gold = match fields.remove("gold") {
            None if !self.has_golds => {
                self.gold_check.check_schema(&json_schema)?;
                return Row::asking_as_it_is(id, input_text, json_schema, &self.slot_prompt);
            }
            gold => gold.ok_or_else(|| missing("gold", NEEDED))?,
        };
        self.gold_check.check(&gold, &json_schema)?;
        let slot = SlotRow {
            id: id.to_owned(),
            input_text,
            json_schema,
            gold,
        };
        Row::of_slot(slot, &self.slot_prompt)
    }

    fn conversation_row(&mut self, id: &str, row: FormattedRow) -> Result<Row, DataError> {
        let FormattedRow {
            conversation,
            calls,
            ..
        } = row;
        let calls_of = |message_idx: usize| calls[message_idx].clone();
        if let Some(call_check) = &mut self.call_check {
            call_check.check(&conversation, calls_of)?;
            must_name_their_calls(&conversation, calls_of)?;
        }
        self.notes.tools.count(id, &conversation, calls_of);
        Ok(Row {
            id: id.to_owned(),
            conversation,
            weight: 1.0,
            slot: None,
        })
    }
}

/// A plain text becomes one user or assistant message: the template is applied to every format.
fn prompt_completion(fields: &Map<String, Value>) -> Result<FormattedRow, DataError> {
    const NEEDED: &str = "a prompt-completion row needs prompt and completion";
    let part = |name: &str, role: Role| match fields.get(name) {
        None => Err(missing(name, NEEDED)),
        Some(Value::String(text)) => Ok(vec![Message::new(role, text.clone())]),
        Some(value @ Value::Array(_)) => parse_messages(value, name),
        Some(other) => Err(wrong_type(name, other, "a text or a list of messages")),
    };
    let mut all = part("prompt", Role::User)?;
    let completion_start = all.len();
    all.extend(part("completion", Role::Assistant)?);
    if all[completion_start].role != Role::Assistant {
        return Err(ReadError::WrongType {
            field: "completion[0].role".to_owned(),
            found: all[completion_start].role.as_str(),
            expected: "assistant, since the model answers the prompt",
        }
        .into());
    }
    let field_of = |message_idx: usize| match message_idx.checked_sub(completion_start) {
        None => format!("prompt[{message_idx}]"),
        Some(message_idx) => format!("completion[{message_idx}]"),
    };
    let conversation = Conversation {
        completion_start,
        ..Conversation::new(all)
    };
    with_tools(fields, conversation, field_of)
}

fn messages(fields: &Map<String, Value>) -> Result<FormattedRow, DataError> {
    let value = fields
        .get("messages")
        .ok_or_else(|| missing("messages", "a messages row needs messages"))?;
    with_tools(
        fields,
        Conversation::new(parse_messages(value, "messages")?),
        |message_idx| format!("messages[{message_idx}]"),
    )
}

fn with_tools(
    fields: &Map<String, Value>,
    conversation: Conversation,
    field_of: impl Fn(usize) -> String,
) -> Result<FormattedRow, DataError> {
    refuse_old_spelling(fields.get("functions"), "", "functions", "tools")?;
    let documents = match fields.get("documents") {
        None | Some(Value::Null) => None,
        Some(value) => Some(as_array(value, "documents", "a list of objects")?.to_vec()),
    };
    let calls = (0..conversation.messages.len()).map(|idx| format!("{}.tool_calls", field_of(idx)));
    Ok(FormattedRow {
        calls: calls.collect(),
        conversation: Conversation {
            tools: tools(fields, Wrapping::AsGiven)?,
            documents: documents.filter(|documents| !documents.is_empty()),
            ..conversation
        },
        unknown_types: Vec::new(),
    })
}

/// Reads a file that holds what rows have as `tools`: one list of them.
///
/// # Errors
///
/// Each names the file:
///
/// - it cannot be read, or is not one JSON value
/// - it holds no list of objects, or an integer beyond 64 bits
pub fn read_tools(path: &Path) -> Result<Vec<Value>, DataError> {
    let text = read_text(path)?;
    let read = || -> Result<Vec<Value>, DataError> {
        let value = json::parse(&text).map_err(|error| ToolsError::NotJson { error })?;
        if let Some(oversized) = json::oversized_integer(&text, |_| true) {
            return Err(ReadError::from(oversized).into());
        }
        let tools = as_array(
            &value,
            "the file",
            "a list of tools, as in the field tools of a row",
        )?;
        for (tool_idx, tool) in tools.iter().enumerate() {
            as_object(tool, &format!("[{tool_idx}]"))?;
        }
        Ok(tools.to_vec())
    };
    read().map_err(|error| error.at(&path.display().to_string()))
}
