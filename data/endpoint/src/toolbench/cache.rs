//! The published cache: `CATEGORY/TOOL_for_CATEGORY/API.json`, an object of answers by the arguments
//! as Python prints them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use tooltune_agents::executors::{canonical_arguments, container_literal};
use tooltune_rows::regular_file;
use tooltune_rows::tools::read_json;

use super::names::ToolBenchNames;

/// Answers by what arguments mean.
type Answers = HashMap<String, Value>;

/// The cache, of which the files are read that are asked for.
#[derive(Debug)]
pub(super) struct AnswerCache {
    folder: PathBuf,
    /// By path; none where the cache has no such file.
    read: HashMap<PathBuf, Option<Answers>>,
}

impl AnswerCache {
    pub(super) fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            read: HashMap::new(),
        }
    }

    /// The answer to a call, if the cache has it; an error where a file of it is damaged.
    pub(super) fn answer(
        &mut self,
        names: &ToolBenchNames,
        input: &Map<String, Value>,
    ) -> Result<Option<Value>, String> {
        let ToolBenchNames {
            category,
            tool,
            api,
        } = names;
        // The other two are made of letters; a category keeps its points.
        if category.trim_matches('.').is_empty() {
            return Ok(None);
        }
        let folder = self.folder.join(category);
        let path = folder
            .join(format!("{tool}_for_{category}"))
            .join(format!("{api}.json"));
        if !self.read.contains_key(&path) {
            let answers = read(&path)?;
            self.read.insert(path.clone(), answers);
        }
        let answers = self.read.get(&path).and_then(Option::as_ref);
        Ok(answers.and_then(|answers| answers.get(&canonical_arguments(input)).cloned()))
    }
}

fn read(path: &Path) -> Result<Option<Answers>, String> {
    let said =
        |error: String| format!("the cache of StableToolBench is damaged: {error}; unpack it anew");
    let is_there = regular_file::is_there(path)
        .map_err(|error| said(format!("{}: {error}", path.display())))?;
    if !is_there {
        return Ok(None);
    }
    let Value::Object(answers) = read_json(path).map_err(|error| said(error.to_string()))? else {
        return Err(said(format!("{}: it is no object", path.display())));
    };
    // Of what is no object of arguments, no call asks for it.
    let calls = answers.into_iter().filter_map(|(input, answer)| {
        let Value::Object(input) = container_literal(&input)? else {
            return None;
        };
        Some((canonical_arguments(&input), answer))
    });
    let mut read = Answers::new();
    for (input, answer) in calls {
        read.entry(input).or_insert(answer);
    }
    Ok(Some(read))
}
