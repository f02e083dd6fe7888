//! Builds the prompts of `generate`: turns of rows, a text with its schema, a message, or a text to
//! continue.

use std::collections::BTreeMap;
use std::path::Path;

use crate::budgets::INPUT_BYTES;
use burn::tensor::Device;
use serde_json::Value;
use tooltune_agents::flat::{FlatToolRow, FlattenReport, flatten_rows, flatten_tool_row};
use tooltune_apis::read_text;
use tooltune_disk::regular_file;
use tooltune_disk::regular_file::STANDARD_INPUT;
use tooltune_json as json;
use tooltune_json::lines::strip_line_end;
use tooltune_rows::text::{DataError, PrepareOptions, Row, TokenizedPrompt, TrainOn, read_tools};
use tooltune_template::{Conversation, Message, Role};

use super::{count_noun, eprint_line};
use crate::base_model::BaseModel;
use crate::cli::{GenerateArgs, TurnChoice};
use crate::config::{Config, DataFormat, OnEmpty};
use crate::error::Error;
use crate::eval::constraints::{RequestedConstraint, shown_schema};
use crate::rows::{ReadingReport, missing_system, prompt_rows};
use crate::settings;

/// A prompt, and its last messages for display.
pub(super) struct DisplayedPrompt {
    pub(super) prompt: TokenizedPrompt,
    /// Roles and contents of the last messages.
    pub(super) end: Vec<(&'static str, String)>,
    /// Constraint on the completion.
    pub(super) constraint: RequestedConstraint,
}

/// Rejects a command line without a prompt source.
pub(super) fn require_prompt_source(args: &GenerateArgs, config: &Config) -> Result<(), Error> {
    let option_text = [&args.text, &args.message, &args.prompt];
    if option_text.iter().any(|text| text.is_some()) || config.data.has_eval_rows() {
        return Ok(());
    }
    Err(Error::Usage(
        "nothing to generate from: name a file of rows with --data or in data.eval, give a \
         text with --text and its --schema, ask with --message, or give a text to continue with \
         --prompt"
            .to_string(),
    ))
}

/// Builds the prompts from the source that the command line names.
///
/// # Errors
///
/// Rows, a schema or tools cannot be read, or the template rejects a prompt.
pub(super) fn load_prompts(
    args: &GenerateArgs,
    config: &Config,
    base: &BaseModel,
    device: &Device,
) -> Result<Vec<DisplayedPrompt>, Error> {
    match (&args.text, &args.message, &args.prompt) {
        (Some(text), ..) => Ok(vec![slot_prompt_of_text(
            args,
            &option_text("--text", text)?,
            config,
            base,
        )?]),
        (_, Some(message), _) => {
            let message = option_text("--message", message)?;
            Ok(vec![question(args, &message, config, base)?])
        }
        (_, _, Some(text)) => {
            let text = option_text("--prompt", text)?;
            let prompt = TokenizedPrompt::from_text("--prompt", &text, &base.tokenizer)?;
            Ok(vec![DisplayedPrompt {
                prompt,
                end: vec![("prompt", text)],
                constraint: RequestedConstraint::Nothing,
            }])
        }
        (None, None, None) => {
            if args.turn.is_some() && config.data.format == DataFormat::Slot {
                return Err(Error::Usage(
                    "--turn only applies to rows of messages; SLOT rows have one answer".to_owned(),
                ));
            }
            let turn = args.turn.unwrap_or(TurnChoice::Calls);
            row_prompts(turn, config, base, device)
        }
    }
}

/// Returns the text of an option, or of standard input for `-`. An empty text is an error.
pub(super) fn option_text(option: &str, text: &str) -> Result<String, Error> {
    if text.is_empty() && option != "--prompt" {
        return Err(Error::Usage(format!(
            "{option}: the text is empty; give a text"
        )));
    }
    if text != STANDARD_INPUT {
        return Ok(text.to_owned());
    }
    let read = regular_file::read_standard_input(INPUT_BYTES);
    let source = format!("{option} -: standard input");
    let read = read.map_err(Error::io(Path::new(&source), "read"))?;
    let read = without_echo_newline(option, &read);
    if read.is_empty() {
        return Err(Error::Usage(format!(
            "{option} -: standard input is empty; pipe a text into the command, or write it after \
             {option}"
        )));
    }
    Ok(read.to_owned())
}

/// Removes one trailing line break, which `echo` adds. `--prompt` keeps it, because the model
/// continues that text exactly.
fn without_echo_newline<'t>(option: &str, read: &'t str) -> &'t str {
    match option {
        "--prompt" => read,
        _ => strip_line_end(read),
    }
}

/// Builds the prompt that converts a text to JSON by a schema, as in training.
fn slot_prompt_of_text(
    args: &GenerateArgs,
    text: &str,
    config: &Config,
    base: &BaseModel,
) -> Result<DisplayedPrompt, Error> {
    if !config.data.may_be(DataFormat::Slot) {
        return Err(Error::Usage(format!(
            "--text needs a model trained on rows of data.format = \"slot\", but this target has \
             {}; ask with --message",
            config.data.format
        )));
    }
    let schema = match &args.schema {
        Some(path) => read_schema(path)?,
        None => Value::Null,
    };
    let prompt = settings::slot_prompt(&config.data)?;
    let row = Row::without_reference("--text", text.to_owned(), schema, &prompt)?;
    let row = match settings::flattening(&config.data)? {
        None => row,
        Some(flattening) => {
            let mut report = FlattenReport::default();
            let mut rows = flatten_rows([Ok(row.clone())].into_iter(), &flattening, &mut report);
            rows.next().transpose()?.unwrap_or(row)
        }
    };
    message_prompt(&row, config, base)
}

pub(super) fn read_schema(path: &Path) -> Result<Value, Error> {
    let text = read_text(path)?;
    let refused = |what: String| Error::Usage(format!("--schema {}: {what}", path.display()));
    let schema = json::parse_unique(&text).map_err(|error| refused(error.to_string()))?;
    if schema.is_object() {
        Ok(schema)
    } else {
        Err(refused("expected a JSON Schema object".to_owned()))
    }
}

fn question(
    args: &GenerateArgs,
    message: &str,
    config: &Config,
    base: &BaseModel,
) -> Result<DisplayedPrompt, Error> {
    let system = args.system.as_ref().or(config.data.system.as_ref());
    if let Some(hint) = missing_system(config).filter(|_| system.is_none()) {
        eprint_line(&hint)?;
    }
    let system = system.into_iter();
    let messages = system.map(|text| Message::new(Role::System, text));
    let messages = messages.chain([Message::new(Role::User, message)]);
    let tools = args.tools.as_deref().map(read_tools).transpose()?;
    let conversation = Conversation {
        tools: tools.filter(|tools| !tools.is_empty()),
        ..Conversation::new(messages.collect())
    };
    let conversation = flatten_as_trained("--message", conversation, config)?.conversation;
    let prompt = TokenizedPrompt::from_messages(
        "--message",
        &conversation,
        &base.template,
        &base.tokenizer,
    )?;
    Ok(DisplayedPrompt {
        prompt,
        end: last_messages(&conversation.messages),
        constraint: RequestedConstraint::Nothing,
    })
}

/// Flattens the tools of a conversation if training flattens the rows.
pub(super) fn flatten_as_trained(
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

/// Builds the prompts of the evaluation rows. Reports rows that are skipped or tokenized
/// differently than in training.
fn row_prompts(
    choice: TurnChoice,
    config: &Config,
    base: &BaseModel,
    device: &Device,
) -> Result<Vec<DisplayedPrompt>, Error> {
    let rows = prompt_rows(config, device, &mut ReadingReport::default())?;
    let mut all = Vec::with_capacity(rows.len());
    let mut n_left_out = 0;
    for row in &rows {
        match turn_prompts(row, choice, config, base) {
            Ok(prompts) => all.extend(prompts),
            Err(Error::Data(error)) if is_skipped_in_training(&error, config) => n_left_out += 1,
            Err(error) => return Err(error),
        }
    }
    if n_left_out > 0 {
        eprint_line(&format!(
            "skipped {n_left_out} of {} rows without an answer to compare with \
             (mask.on_empty = \"drop\")",
            rows.len()
        ))?;
    }
    let mut others = all.iter().filter(|prompt| !prompt.prompt.begins_example);
    if let Some(first) = others.next() {
        eprint_line(&format!(
            "{} of {} prompts, such as {}, end inside a token of the training text, so the model \
             continues from tokens that it was not trained on; `tooltune inspect` shows the token; \
             use a template whose prompt ends with a line break or a special token",
            1 + others.count(),
            all.len(),
            first.prompt.id
        ))?;
    }
    Ok(all)
}

/// Builds the prompts for the selected turns of a row. A row that ends with a user message has one
/// prompt and no reference.
fn turn_prompts(
    row: &Row,
    choice: TurnChoice,
    config: &Config,
    base: &BaseModel,
) -> Result<Vec<DisplayedPrompt>, Error> {
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
            message_prompt(row, config, base)?
        } else {
            last_turn_prompt(row, config, base, &options)?
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
                    "{}: --turn {number} does not exist; the row has {} of the assistant",
                    row.id,
                    count_noun(turns.len(), "turn")
                )));
            }
        },
        // If the conversation ends with a user message, the model generates the answer to it.
        TurnChoice::Calls | TurnChoice::Last if row.has_no_answer() => {
            return Ok(vec![message_prompt(row, config, base)?]);
        }
        TurnChoice::Calls | TurnChoice::Last => {
            return Ok(vec![last_turn_prompt(row, config, base, &options)?]);
        }
    };
    let prompts = chosen.into_iter().map(|turn| {
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
        last_turn_prompt(&turn_row, config, base, &options)
    });
    prompts.collect()
}

/// Builds the prompt of a row's last turn, with the reference answer.
fn last_turn_prompt(
    row: &Row,
    config: &Config,
    base: &BaseModel,
    options: &PrepareOptions,
) -> Result<DisplayedPrompt, Error> {
    let prompt = TokenizedPrompt::from_row(row, &base.template, &base.tokenizer, options)?;
    let conversation = &row.conversation;
    let turn = conversation.messages.get(prompt.n_messages);
    let wants_calls = turn.is_some_and(|turn| !turn.tool_calls.is_empty());
    let end = match &row.slot {
        Some(slot) => vec![("text", slot.input_text.clone())],
        None => last_messages(&conversation.messages[..prompt.n_messages]),
    };
    let constraint = match (&row.slot, &conversation.tools) {
        (None, Some(tools)) if wants_calls => RequestedConstraint::Calls(tools.clone()),
        _ => slot_constraint(row, config)?,
    };
    Ok(DisplayedPrompt {
        prompt,
        end,
        constraint,
    })
}

/// Builds the prompt of all messages of a row, without a reference answer.
fn message_prompt(row: &Row, config: &Config, base: &BaseModel) -> Result<DisplayedPrompt, Error> {
    let conversation = &row.conversation;
    let prompt =
        TokenizedPrompt::from_messages(&row.id, conversation, &base.template, &base.tokenizer)?;
    let end = match &row.slot {
        Some(slot) => vec![("text", slot.input_text.clone())],
        None => last_messages(&conversation.messages),
    };
    Ok(DisplayedPrompt {
        prompt,
        end,
        constraint: slot_constraint(row, config)?,
    })
}

fn slot_constraint(row: &Row, config: &Config) -> Result<RequestedConstraint, Error> {
    let flattening = settings::flattening(&config.data)?;
    Ok(match &row.slot {
        Some(slot) => RequestedConstraint::Schema(shown_schema(slot, flattening.as_ref())),
        None => RequestedConstraint::Nothing,
    })
}

/// Whether training also skips this row because it has no answer.
fn is_skipped_in_training(error: &DataError, config: &Config) -> bool {
    config.mask.on_empty == OnEmpty::Drop && matches!(error.fault(), DataError::NoAnswer)
}

/// The last user message, and the last message if it is a different one.
fn last_messages(messages: &[Message]) -> Vec<(&'static str, String)> {
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
    fn a_piped_text_loses_one_line_end_and_a_prompt_none() {
        for (read, text) in [
            ("Hi", "Hi"),
            ("Hi\n", "Hi"),
            ("Hi\r\n", "Hi"),
            (" Hi \n\n", " Hi \n"),
            ("Hi\r", "Hi\r"),
        ] {
            assert_eq!(without_echo_newline("--text", read), text);
            assert_eq!(without_echo_newline("--message", read), text);
            assert_eq!(without_echo_newline("--prompt", read), read);
        }
    }

    #[test]
    fn the_last_question_of_a_prompt_and_later_messages_are_shown() {
        let message = |role, text: &str| Message::new(role, text);
        let user = message(Role::User, "Weather?");
        let result = message(Role::Tool, "rain");
        let first = [
            message(Role::User, "Hi"),
            message(Role::Assistant, "Hello."),
        ];
        assert_eq!(
            last_messages(&[&first[..], &[user.clone(), result]].concat()),
            [("user", "Weather?".to_owned()), ("tool", "rain".to_owned())]
        );
        assert_eq!(last_messages(&[user]), [("user", "Weather?".to_owned())]);
        assert_eq!(last_messages(&[]), []);
    }
}
