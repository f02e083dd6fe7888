//! `data synth toolqa` and `data import toolqa`: questions about tool outputs.

use std::cell::RefCell;
use std::collections::BTreeMap;

use tooltune_apis::{JsonLines, ToolsError, read_text};
use tooltune_disk::atomic::create_in_parts;
use tooltune_synth::toolqa::{
    QuestionGenerator, QuestionRow, ToolQaSynthOptions, estimated_tokens, import_published,
    parse_templates, read_responses,
};
use tooltune_terminal::Counted;

use crate::base_model::BaseModel;
use crate::cli::{ImportArgs, SynthToolqaArgs};
use crate::commands::data::write_lines;
use crate::commands::new_file::{create, create_parent, is_stream, must_be_new};
use crate::commands::print_line;
use crate::error::Error;

pub(in crate::commands) fn synth(args: &SynthToolqaArgs) -> Result<(), Error> {
    must_be_new(&[
        ("--output", Some(&args.output)),
        ("--output-responses", Some(&args.output_responses)),
    ])?;
    let templates = match &args.templates {
        Some(path) => parse_templates(&path.display().to_string(), &read_text(path)?)?,
        None => Vec::new(),
    };
    let files = args.responses.iter().map(|path| {
        let records = tooltune_files::open(path).map_err(ToolsError::from)?;
        Ok(JsonLines::from_records(records))
    });
    let responses = read_responses(files.collect::<Result<_, Error>>()?)?;
    let tokenizer = args.model.as_deref().map(BaseModel::open_tokenizer);
    let tokenizer = tokenizer.transpose()?;
    let failure = RefCell::new(None);
    let count = |text: &str| match tokenizer.as_ref().map(|tokenizer| tokenizer.encode(text)) {
        Some(Ok(encoded)) => encoded.ids.len(),
        Some(Err(error)) => {
            failure.borrow_mut().get_or_insert(error);
            0
        }
        None => estimated_tokens(text),
    };
    let mut generator = QuestionGenerator::new(
        responses,
        ToolQaSynthOptions {
            rows: args.rows,
            seed: args.seed,
            target_tokens: args.target_tokens.clone(),
            answer_positions: args.answer_position.clone(),
            templates,
            count_tokens: &count,
        },
    )?;
    let path = args.output_responses.as_path();
    let mut draw = |write: &mut dyn FnMut(&[u8]) -> Result<(), Error>| {
        let drawn = draw_rows(&mut generator, args.rows, write)?;
        match failure.take() {
            Some(error) => Err(Error::Usage(format!("cannot count tokens: {error}"))),
            None => Ok(drawn),
        }
    };
    let (questions, n_responses) = if is_stream(path) {
        let mut bytes = Vec::new();
        let drawn = draw(&mut |line| {
            bytes.extend_from_slice(line);
            Ok(())
        })?;
        create(path, &bytes)?;
        drawn
    } else {
        create_parent(path)?;
        let mut drawn = (Vec::new(), 0);
        // Resized responses may be larger than memory together.
        create_in_parts(path, 0, |file| -> Result<(), Error> {
            drawn = draw(&mut |line| Ok(file.write(line)?))?;
            Ok(())
        })?;
        drawn
    };
    write_lines("questions", &questions, Some(&args.output))?;
    print_line(&format!("{n_responses} responses in {}", path.display()))?;
    if !args.target_tokens.is_empty() && args.model.is_none() {
        print_line("sizes are estimated: four characters are one token; --model counts tokens")?;
    }
    if generator.n_missing() > 0 {
        let n = generator.n_missing();
        print_line(&format!(
            "{n} rows are missing: every draw for them was dropped"
        ))?;
    }
    let dropped = reasons(generator.dropped());
    dropped.iter().try_for_each(|line| print_line(line))
}

/// Draws all rows, and writes the lines of their responses. Returns the questions and the number of
/// responses.
///
/// # Errors
///
/// Every draw was dropped, or a response cannot be written.
fn draw_rows(
    generator: &mut QuestionGenerator<'_>,
    n_rows: usize,
    write: &mut dyn FnMut(&[u8]) -> Result<(), Error>,
) -> Result<(Vec<QuestionRow>, usize), Error> {
    let (mut questions, mut n_responses) = (Vec::new(), 0);
    let mut progress = Counted::begin("questions", n_rows);
    for row in 0..n_rows {
        if let Some(question) = generator.draw(row) {
            if let Some(response) = &question.response {
                let line = serde_json::to_string(response);
                let line = line.map_err(|error| Error::Usage(error.to_string()))?;
                write(format!("{line}\n").as_bytes())?;
                n_responses += 1;
            }
            questions.push(question.row);
        }
        progress.advance(row + 1);
    }
    if questions.is_empty() {
        let dropped = reasons(generator.dropped()).join("\n");
        return Err(Error::Usage(format!(
            "no question could be made; dropped draws:\n{dropped}"
        )));
    }
    Ok((questions, n_responses))
}

fn reasons(dropped: &BTreeMap<&'static str, usize>) -> Vec<String> {
    let line = |(reason, n): (&&str, &usize)| format!("{n} dropped: {reason}");
    dropped.iter().map(line).collect()
}

pub(in crate::commands) fn import(args: &ImportArgs) -> Result<(), Error> {
    let [questions, responses] = args.files.as_slice() else {
        return Err(Error::Usage(
            "this layout needs exactly the file of questions and the file of API responses"
                .to_owned(),
        ));
    };
    let Some(output) = &args.responses else {
        return Err(Error::Usage(
            "this layout has responses: name a file for them with --responses".to_owned(),
        ));
    };
    let imported = import_published(questions, responses)?;
    write_lines("questions", &imported.questions, Some(&args.output))?;
    write_lines("responses", &imported.responses, Some(output))?;
    if imported.n_unused > 0 {
        print_line(&format!(
            "{} responses have no question and are omitted",
            imported.n_unused
        ))?;
    }
    reasons(&imported.dropped)
        .iter()
        .try_for_each(|line| print_line(line))
}
