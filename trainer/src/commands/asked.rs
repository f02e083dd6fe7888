//! What `generate` asks: turns of rows, a text with its schema, a message, or the beginning of a text.

use std::collections::BTreeMap;
use std::path::Path;

use burn::tensor::Device;
use serde_json::Value;
use tooltune_agents::flat::{FlatToolRow, FlattenReport, flatten_rows, flatten_tool_row};
use tooltune_rows::budgets::INPUT_BYTES;
use tooltune_rows::json;
use tooltune_rows::regular_file::{self, STANDARD_INPUT};
use tooltune_rows::text::{
    AskedPrompt, Conversation, DataError, Message, PrepareOptions, Role, Row, TrainOn, read_tools,
};
use tooltune_rows::tools::read_text;

use super::{counted, eprint_line};
use crate::base_model::BaseModel;
use crate::cli::{GenerateArgs, TurnChoice};
use crate::config::{Config, DataFormat, OnEmpty};
use crate::error::Error;
use crate::eval::constraints::{Kept, shown_schema};
use crate::rows::{ReadingReport, asked_rows};
use crate::settings;

/// A prompt, and its end as a person reads it.
pub(super) struct Asked {
    pub(super) prompt: AskedPrompt,
    /// Who speaks, and what.
    pub(super) end: Vec<(&'static str, String)>,
    /// What an answer keeps to where texts are constrained.
    pub(super) kept: Kept,
}

/// Refuses a command line that names nothing to write after.
pub(super) fn must_have_a_source(args: &GenerateArgs, config: &Config) -> Result<(), Error> {
    let typed = [&args.text, &args.message, &args.prompt];
    if typed.iter().any(|text| text.is_some()) || config.data.has_eval_rows() {
        return Ok(());
    }
    Err(Error::Usage(
        "there is nothing to write after: name a file of rows with --data or in data.eval, give a \
         text with --text and its --schema, ask with --message, or give the beginning of a text with \
         --prompt"
            .to_string(),
    ))
}

/// What the model is asked, from the one source that the command line names.
///
/// # Errors
///
/// Rows, a schema or tools that cannot be read, or a prompt that the template refuses.
pub(super) fn asked(
    args: &GenerateArgs,
    config: &Config,
    base: &BaseModel,
    device: &Device,
) -> Result<Vec<Asked>, Error> {
    match (&args.text, &args.message, &args.prompt) {
        (Some(text), ..) => Ok(vec![text_to_convert(
            args,
            &typed("--text", text)?,
            config,
            base,
        )?]),
        (_, Some(message), _) => {
            let message = typed("--message", message)?;
            Ok(vec![question(args, &message, config, base)?])
        }
        (_, _, Some(text)) => {
            let text = typed("--prompt", text)?;
            let prompt = AskedPrompt::of_text("--prompt", &text, &base.tokenizer)?;
            Ok(vec![Asked {
                prompt,
                end: vec![("prompt", text)],
                kept: Kept::Nothing,
            }])
        }
        (None, None, None) => {
            if args.turn.is_some() && config.data.format == DataFormat::Slot {
                return Err(Error::Usage(
                    "--turn is for rows of messages; a row of SLOT has one answer".to_owned(),
                ));
            }
            let turn = args.turn.unwrap_or(TurnChoice::Calls);
            of_rows(turn, config, base, device)
        }
    }
}

/// A text of the command line, or the standard input where it is a hyphen; an empty one asks nothing.
pub(super) fn typed(option: &str, text: &str) -> Result<String, Error> {
    if text.is_empty() && option != "--prompt" {
        return Err(Error::Usage(format!(
            "{option}: the text is empty, and there is nothing to ask"
        )));
    }
    if text != STANDARD_INPUT {
        return Ok(text.to_owned());
    }
    let read = regular_file::read_standard_input(INPUT_BYTES).map_err(|error| {
        Error::Usage(format!(
            "{option} -: the standard input cannot be read: {error}"
        ))
    })?;
    let read = read.trim_end_matches(['\r', '\n']);
    if read.is_empty() {
        return Err(Error::Usage(format!(
            "{option} -: the standard input is empty; pipe a text into the command, or write it behind \
             {option}"
        )));
    }
    Ok(read.to_owned())
}

/// A text that becomes JSON by a schema, asked for as training asks.
fn text_to_convert(
    args: &GenerateArgs,
    text: &str,
    config: &Config,
    base: &BaseModel,
) -> Result<Asked, Error> {
    if !config.data.may_be(DataFormat::Slot) {
        return Err(Error::Usage(format!(
            "--text is for models that learned from rows of data.format = \"slot\", and those of this \
             target are {}; ask with --message",
            config.data.format
        )));
    }
    let schema = match &args.schema {
        Some(path) => read_schema(path)?,
        None => Value::Null,
    };
    let prompt = settings::slot_prompt(&config.data)?;
    let row = Row::asking("--text", text.to_owned(), schema, &prompt)?;
    let row = match settings::flattening(&config.data)? {
        None => row,
        Some(flattening) => {
            let mut report = FlattenReport::default();
            let mut rows = flatten_rows([Ok(row.clone())].into_iter(), &flattening, &mut report);
            rows.next().transpose()?.unwrap_or(row)
        }
    };
    of_messages(&row, config, base)
}

pub(super) fn read_schema(path: &Path) -> Result<Value, Error> {
    let text = read_text(path)?;
    let refused = |what: String| Error::Usage(format!("--schema {}: {what}", path.display()));
    let schema = json::parse_unique(&text).map_err(|error| refused(error.to_string()))?;
    if schema.is_object() {
        Ok(schema)
    } else {
        Err(refused(
            "the file is no JSON Schema, which is an object".to_owned(),
        ))
    }
}

fn question(
    args: &GenerateArgs,
    message: &str,
    config: &Config,
    base: &BaseModel,
) -> Result<Asked, Error> {
    let system = args.system.as_ref().or(config.data.system.as_ref());
    let system = system.into_iter();
    let messages = system.map(|text| Message::new(Role::System, text));
    let messages = messages.chain([Message::new(Role::User, message)]);
    let tools = args.tools.as_deref().map(read_tools).transpose()?;
    let conversation = Conversation {
        tools: tools.filter(|tools| !tools.is_empty()),
        ..Conversation::new(messages.collect())
    };
    let conversation = as_learned("--message", conversation, config)?.conversation;
    let prompt =
        AskedPrompt::of_messages("--message", &conversation, &base.template, &base.tokenizer)?;
    Ok(Asked {
        prompt,
        end: end_of(&conversation.messages),
        kept: Kept::Nothing,
    })
}

/// A conversation with flat tools, where rows with tools are learned so, too.
pub(super) fn as_learned(
    id: &str,
    conversation: Conversation,
    config: &Config,
) -> Result<FlatToolRow, Error> {
    let flattening = settings::flattening(&config.data)?;
    Ok(match flattening.filter(|_| conversation.tools.is_some()) {
        None => FlatToolRow {
            conversation,
            flat_schemas: BTreeMap::new(),
        },
        Some(flattening) => flatten_tool_row(
            id,
            &conversation,
            &flattening,
            &mut FlattenReport::default(),
        ),
    })
}

/// The rows of the evaluation files, with a word on those that are passed over or asked otherwise
/// than they were learned.
fn of_rows(
    choice: TurnChoice,
    config: &Config,
    base: &BaseModel,
    device: &Device,
) -> Result<Vec<Asked>, Error> {
    let rows = asked_rows(config, device, &mut ReadingReport::default())?;
    let mut all = Vec::with_capacity(rows.len());
    let mut n_left_out = 0;
    for row in &rows {
        match of_row(row, choice, config, base) {
            Ok(asked) => all.extend(asked),
            Err(Error::Data(error)) if is_passed_over(&error, config) => n_left_out += 1,
            Err(error) => return Err(error),
        }
    }
    if n_left_out > 0 {
        eprint_line(&format!(
            "{n_left_out} of {} rows have no answer to be compared with and are passed over \
             (mask.on_empty = \"drop\")",
            rows.len()
        ))?;
    }
    let mut others = all.iter().filter(|asked| !asked.prompt.begins_example);
    if let Some(first) = others.next() {
        eprint_line(&format!(
            "{} of {} prompts, such as {}, end in the middle of a token of the training text, so that \
             the model continues from other tokens than it learned from: `tooltune inspect` shows the \
             token, and a template whose prompt ends with a line break or a special token has none",
            1 + others.count(),
            all.len(),
            first.prompt.id
        ))?;
    }
    Ok(all)
}

/// The turns of a row that are asked for. A row that ends with what is asked has one, and its answer
/// is not known.
fn of_row(
    row: &Row,
    choice: TurnChoice,
    config: &Config,
    base: &BaseModel,
) -> Result<Vec<Asked>, Error> {
    let options = settings::prepare_options(config, &base.stop_ids);
    let is_assistant = |message: &&Message| message.role == Role::Assistant;
    let messages = &row.conversation.messages;
    let turns = messages
        .iter()
        .enumerate()
        .filter(|(_, one)| is_assistant(one));
    let turns: Vec<usize> = turns.map(|(idx, _)| idx).collect();
    let (Some(_), None) = (turns.last(), &row.slot) else {
        return Ok(vec![if row.has_no_answer() {
            of_messages(row, config, base)?
        } else {
            of_answer(row, config, base, &options)?
        }]);
    };
    let with_calls = turns
        .iter()
        .filter(|&&turn| !messages[turn].tool_calls.is_empty());
    let with_calls: Vec<usize> = with_calls.copied().collect();
    let chosen = match choice {
        TurnChoice::All => turns,
        TurnChoice::Calls if !with_calls.is_empty() => with_calls,
        TurnChoice::Number(number) => match turns.get(number - 1) {
            Some(turn) => vec![*turn],
            None => {
                return Err(Error::Usage(format!(
                    "{}: --turn {number}, and the row has {} of the assistant",
                    row.id,
                    counted(turns.len(), "turn")
                )));
            }
        },
        // A conversation that ends with a question is asked for its answer.
        TurnChoice::Calls | TurnChoice::Last if row.has_no_answer() => {
            return Ok(vec![of_messages(row, config, base)?]);
        }
        TurnChoice::Calls | TurnChoice::Last => {
            return Ok(vec![of_answer(row, config, base, &options)?]);
        }
    };
    let asked = chosen.into_iter().map(|turn| {
        let mut conversation = row.conversation.clone();
        conversation.messages.truncate(turn + 1);
        conversation.completion_start = turn;
        let turn_row = Row {
            id: format!("{}#{turn}", row.id),
            conversation,
            ..row.clone()
        };
        let mut options = options.clone();
        options.mask.train_on = TrainOn::Completion;
        of_answer(&turn_row, config, base, &options)
    });
    asked.collect()
}

/// The last turn of a row, whose answer is known.
fn of_answer(
    row: &Row,
    config: &Config,
    base: &BaseModel,
    options: &PrepareOptions,
) -> Result<Asked, Error> {
    let prompt = AskedPrompt::of_row(row, &base.template, &base.tokenizer, options)?;
    let conversation = &row.conversation;
    let turn = conversation.messages.get(prompt.n_messages);
    let wants_calls = turn.is_some_and(|turn| !turn.tool_calls.is_empty());
    let end = match &row.slot {
        Some(slot) => vec![("text", slot.input_text.clone())],
        None => end_of(&conversation.messages[..prompt.n_messages]),
    };
    let kept = match (&row.slot, &conversation.tools) {
        (None, Some(tools)) if wants_calls => Kept::Calls(tools.clone()),
        _ => kept_of_slot(row, config)?,
    };
    Ok(Asked { prompt, end, kept })
}

/// All messages of a row, whose answer is not known.
fn of_messages(row: &Row, config: &Config, base: &BaseModel) -> Result<Asked, Error> {
    let conversation = &row.conversation;
    let prompt = AskedPrompt::of_messages(&row.id, conversation, &base.template, &base.tokenizer)?;
    let end = match &row.slot {
        Some(slot) => vec![("text", slot.input_text.clone())],
        None => end_of(&conversation.messages),
    };
    Ok(Asked {
        prompt,
        end,
        kept: kept_of_slot(row, config)?,
    })
}

fn kept_of_slot(row: &Row, config: &Config) -> Result<Kept, Error> {
    let flattening = settings::flattening(&config.data)?;
    Ok(match &row.slot {
        Some(slot) => Kept::Schema(shown_schema(slot, flattening.as_ref())),
        None => Kept::Nothing,
    })
}

/// Whether training passes over a row without an answer, too.
fn is_passed_over(error: &DataError, config: &Config) -> bool {
    config.mask.on_empty == OnEmpty::Drop && matches!(error.fault(), DataError::NoAnswer)
}

/// The last message of the user, and the last message where that is another one.
fn end_of(messages: &[Message]) -> Vec<(&'static str, String)> {
    let last = messages.len().checked_sub(1);
    let user = messages
        .iter()
        .rposition(|message| message.role == Role::User);
    let shown = user.into_iter().chain(last.filter(|_| last != user));
    shown
        .map(|idx| {
            let message = &messages[idx];
            let content = message.content.clone().unwrap_or_default();
            (message.role.as_str(), content)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_prompt_its_last_question_and_what_came_after_it_are_shown() {
        let message = |role, text: &str| Message::new(role, text);
        let user = message(Role::User, "Weather?");
        let result = message(Role::Tool, "rain");
        let first = [
            message(Role::User, "Hi"),
            message(Role::Assistant, "Hello."),
        ];
        assert_eq!(
            end_of(&[&first[..], &[user.clone(), result]].concat()),
            [("user", "Weather?".to_owned()), ("tool", "rain".to_owned())]
        );
        assert_eq!(end_of(&[user]), [("user", "Weather?".to_owned())]);
        assert_eq!(end_of(&[]), []);
    }
}
