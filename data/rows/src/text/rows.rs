//! Reads checked rows from JSON Lines, one at a time.
//!
//! Rows are streamed, so memory use is one line. Errors name file, line and field. The reader then
//! continues with the next line, so callers can list all errors of a file.

use std::path::Path;

use serde_json::{Map, Value};
use tooltune_apis::{ToolsError, read_text};
use tooltune_json as json;
use tooltune_json::json_schema::FormatRule;
use tooltune_json::lines::{Records, open_rows};
use tooltune_json::{JsonError, ReadError};
use tooltune_template::conversation::{
    Conversation, Message, Role, as_array, as_object, missing_field, parse_messages,
    reject_old_field_names, text_field, wrong_type,
};

use super::call_check::CallCheck;
use super::columns::Columns;
use super::error::DataError;
use super::formats::{
    DataFormat, FormatError, FormattedRow, RecognisedFormat, RowNotes, Wrapping, foreign_row,
    recognise, refuse_media, tools,
};
use super::slot::{GoldCheck, SlotRow};
use super::slot_prompt::SlotPrompt;
use super::tool_results::check_result_names;

/// One row, ready to be rendered.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The row as `file:line`.
    pub id: String,
    /// The conversation to render and train on.
    pub conversation: Conversation,
    /// Factor for the weights of its tokens; 1 by default.
    pub weight: f32,
    /// Fields of a SLOT row, for the metrics; nested even if the conversation shows a flattened
    /// schema.
    pub slot: Option<SlotRow>,
}

impl Row {
    /// Builds a SLOT row with the prompt that asks for its answer.
    ///
    /// The reference answer is not checked; only [`read_rows`] checks it against the schema.
    ///
    /// # Errors
    ///
    /// As [`SlotPrompt::render`].
    pub fn from_slot(slot: SlotRow, prompt: &SlotPrompt) -> Result<Self, DataError> {
        Ok(Self {
            id: slot.id.clone(),
            conversation: slot.conversation(prompt)?,
            weight: 1.0,
            slot: Some(slot),
        })
    }
}

impl Row {
    /// Builds a SLOT row without an answer: the conversation ends with the prompt. The reference
    /// answer is an empty object, so a flattened schema has only the configured number of list
    /// slots.
    ///
    /// # Errors
    ///
    /// As [`SlotPrompt::render`], or the schema cannot be used.
    pub fn without_reference(
        id: &str,
        input_text: String,
        json_schema: Value,
        prompt: &SlotPrompt,
    ) -> Result<Self, DataError> {
        GoldCheck::new(FormatRule::Asserted).check_schema(&json_schema)?;
        Self::without_reference_unchecked(id, input_text, json_schema, prompt)
    }

    fn without_reference_unchecked(
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
        let row = Self::from_slot(slot, prompt)?;
        Ok(Self {
            conversation: row.conversation.without_answer(),
            ..row
        })
    }

    /// Whether the conversation ends with the prompt.
    pub fn has_no_answer(&self) -> bool {
        self.conversation.completion_start >= self.conversation.messages.len()
    }
}

/// Opens a file of rows in JSON Lines, optionally gzip-compressed; `-` is standard input.
///
/// Blank lines and a byte-order mark at the start of the file are skipped.
///
/// # Errors
///
/// - the file cannot be opened
///
/// The iterator yields an error for a file without rows, a JSON array or CSV file, a line that is
/// not UTF-8 or not one JSON object, a duplicate key, an integer beyond 64 bits, a field that is
/// missing or of the wrong type, a reference answer that violates its schema, and a call that does
/// not match the tools of its row. A file that is not UTF-8 text, or a line of more than 256 MiB,
/// ends the iteration with an error.
pub fn read_rows(path: &Path, format: DataFormat) -> Result<RowReader, DataError> {
    Ok(RowReader::new(open_rows(path)?, format))
}

/// Iterates over the rows of a file.
#[derive(Debug)]
pub struct RowReader {
    records: RowRecords,
    parser: RowParser,
}

/// An unparsed row with its location, or the read error.
pub type RowRecord = Result<(String, Vec<u8>), DataError>;

/// Iterates over the unparsed rows of a file.
#[derive(Debug)]
pub struct RowRecords {
    records: Box<dyn Records>,
    is_done: bool,
}

impl RowRecords {
    /// Reads an open file. A file without rows is an error.
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
        let location = self.records.location();
        self.is_done = !matches!(record, Ok(Some(_)));
        match record {
            Ok(Some(record)) => Some(Ok((location, record))),
            Ok(None) if self.records.has_any() => None,
            Ok(None) => {
                let path = self.records.path().to_owned();
                Some(Err(DataError::EmptyFile { path }))
            }
            Err(error) => Some(Err(DataError::from(error).at(&location))),
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
    /// Reads the rows of an open file; errors are as in [`read_rows`].
    pub fn new(records: Box<dyn Records>, format: DataFormat) -> Self {
        Self {
            records: RowRecords::new(records),
            parser: RowParser::new(format),
        }
    }

    /// Replaces the row parser.
    #[must_use]
    pub fn with(self, change: impl FnOnce(RowParser) -> RowParser) -> Self {
        Self {
            parser: change(self.parser),
            ..self
        }
    }

    /// Unread fields and unmatched calls in the rows read so far.
    pub fn notes(&self) -> &RowNotes {
        &self.parser.notes
    }
}

/// Parses records to rows.
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
    /// Creates a parser for a row format. Formats of schemas, such as `date`, are asserted.
    pub fn new(format: DataFormat) -> Self {
        Self {
            format,
            has_golds: true,
            slot_prompt: SlotPrompt::default(),
            columns: Columns::default(),
            gold_check: GoldCheck::new(FormatRule::Asserted),
            call_check: Some(CallCheck::new(FormatRule::Asserted)),
            notes: RowNotes::default(),
        }
    }

    /// Disables the check of calls against the tools of their row.
    #[must_use]
    pub fn with_unchecked_calls(self) -> Self {
        Self {
            call_check: None,
            ..self
        }
    }

    /// Asserts the formats of schemas, such as `date`, or treats them as annotations.
    #[must_use]
    pub fn with_formats(self, formats: FormatRule) -> Self {
        Self {
            gold_check: GoldCheck::new(formats),
            call_check: self.call_check.map(|_| CallCheck::new(formats)),
            ..self
        }
    }

    /// Accepts SLOT rows without a reference answer; their conversation ends with the prompt.
    #[must_use]
    pub fn allow_missing_golds(self) -> Self {
        Self {
            has_golds: false,
            ..self
        }
    }

    /// Sets the prompt of SLOT rows.
    #[must_use]
    pub fn with_slot_prompt(self, slot_prompt: SlotPrompt) -> Self {
        Self {
            slot_prompt,
            ..self
        }
    }

    /// Sets the column names of fields.
    #[must_use]
    pub fn with_columns(self, columns: Columns) -> Self {
        Self { columns, ..self }
    }

    /// Unread fields and unmatched calls in the rows parsed so far.
    pub fn notes(&self) -> &RowNotes {
        &self.notes
    }

    /// Takes the notes collected so far and clears them.
    pub fn take_notes(&mut self) -> RowNotes {
        std::mem::take(&mut self.notes)
    }

    /// Parses a record to a row.
    ///
    /// # Errors
    ///
    /// - the error of the record
    /// - the row errors listed in [`read_rows`]
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
            return Err(wrong_type("the line", &value, "a JSON object").into());
        };
        let fields = self.columns.rename(fields);
        let format = self.format.for_row(&fields)?;
        check_format(format, &fields)?;
        refuse_media(&fields)?;
        self.notes.not_read.count_fields(id, format, &fields);
        let row = match foreign_row(format, &fields) {
            Some(row) => row?,
            None if format == DataFormat::Slot => return self.slot_row(id, fields),
            None if format == DataFormat::Messages => messages(&fields)?,
            None => prompt_completion(&fields)?,
        };
        self.notes.not_read.count_types(id, &row.unknown_types);
        self.conversation_row(id, row)
    }

    fn slot_row(&mut self, id: &str, mut fields: Map<String, Value>) -> Result<Row, DataError> {
        const NEEDED: &str = "a slot row needs input_text, json_schema and gold";
        let input_text = text_field(&fields, "", "input_text", NEEDED)?.to_owned();
        let json_schema = fields
            .remove("json_schema")
            .ok_or_else(|| missing_field("json_schema", NEEDED))?;
        if !json_schema.is_object() {
            return Err(wrong_type("json_schema", &json_schema, "an object").into());
        }
        let gold = match fields.remove("gold") {
            None if !self.has_golds => {
                self.gold_check.check_schema(&json_schema)?;
                return Row::without_reference_unchecked(
                    id,
                    input_text,
                    json_schema,
                    &self.slot_prompt,
                );
            }
            gold => gold.ok_or_else(|| missing_field("gold", NEEDED))?,
        };
        self.gold_check.check(&gold, &json_schema)?;
        let slot = SlotRow {
            id: id.to_owned(),
            input_text,
            json_schema,
            gold,
        };
        Row::from_slot(slot, &self.slot_prompt)
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
            check_result_names(&conversation, calls_of)?;
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

/// Rejects a row that has all fields of a different format and lacks some of this one.
fn check_format(format: DataFormat, fields: &Map<String, Value>) -> Result<(), DataError> {
    match recognise(fields) {
        Ok(RecognisedFormat::Rows(recognised)) if format.can_read(recognised, fields) => Ok(()),
        Ok(recognised) if recognised.as_str() != format.as_str() => Err(FormatError::Other {
            found: recognised.as_str(),
            expected: format.as_str(),
        }
        .into()),
        // A row may match several formats, of which the user selects one. If it lacks a field, the
        // parser names the field.
        _ => Ok(()),
    }
}

/// Plain strings become one user or assistant message, so the template applies to every format.
fn prompt_completion(fields: &Map<String, Value>) -> Result<FormattedRow, DataError> {
    const NEEDED: &str = "a prompt-completion row needs prompt and completion";
    let part = |name: &str, role: Role| match fields.get(name) {
        None => Err(missing_field(name, NEEDED)),
        Some(Value::String(text)) => Ok(vec![Message::new(role, text.clone())]),
        Some(value @ Value::Array(_)) => parse_messages(value, name),
        Some(other) => Err(wrong_type(name, other, "a string or a list of messages")),
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
        .ok_or_else(|| missing_field("messages", "a messages row needs messages"))?;
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
    reject_old_field_names(fields.get("functions"), "", "functions", "tools")?;
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

/// Reads a file with one list of tools, as in the field `tools` of rows.
///
/// # Errors
///
/// Every error names the file:
///
/// - it cannot be read, or is not one JSON value
/// - it is not a list of objects, or contains an integer beyond 64 bits
pub fn read_tools(path: &Path) -> Result<Vec<Value>, DataError> {
    let text = read_text(path)?;
    let parse_tools = || -> Result<Vec<Value>, DataError> {
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
    parse_tools().map_err(|error| error.at(&path.display().to_string()))
}
