//! The published cache: `CATEGORY/TOOL_for_CATEGORY/API.json`, an object that maps arguments, as
//! Python prints them, to replies.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use tooltune_agents::executors::{canonical_arguments, container_literal};
use tooltune_apis::read_json;
use tooltune_disk::regular_file;

use super::names::ToolBenchNames;

/// Replies by normalised arguments.
type Answers = HashMap<String, Value>;

/// The cache, whose files are read on demand.
#[derive(Debug)]
pub(super) struct AnswerCache {
    folder: PathBuf,
    /// By path; `None` if the cache has no such file.
    read: HashMap<PathBuf, Option<Answers>>,
}

impl AnswerCache {
    pub(super) fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            read: HashMap::new(),
        }
    }

    /// The cached reply to a call, if any; an error if a cache file is damaged.
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
        // The other two names consist of letters; a category may contain dots.
        if category.trim_matches('.').is_empty() {
            return Ok(None);
        }
        let folder = self.folder.join(category);
        let path = folder
            .join(format!("{tool}_for_{category}"))
            .join(format!("{api}.json"));
        if !self.read.contains_key(&path) {
            let answers = read_cache_file(&path)?;
            self.read.insert(path.clone(), answers);
        }
        let answers = self.read.get(&path).and_then(Option::as_ref);
        Ok(answers.and_then(|answers| answers.get(&canonical_arguments(input)).cloned()))
    }
}

fn read_cache_file(path: &Path) -> Result<Option<Answers>, String> {
    let cache_error = |error: String| {
        format!("the cache of StableToolBench is damaged: {error}; unpack it again")
    };
    let exists = regular_file::is_there(path)
        .map_err(|error| cache_error(format!("{}: {error}", path.display())))?;
    if !exists {
        return Ok(None);
    }
    let Value::Object(json_answers) =
        read_json(path).map_err(|error| cache_error(error.to_string()))?
    else {
        return Err(cache_error(format!(
            "{}: it is not an object",
            path.display()
        )));
    };
    // Entries whose key is not an object of arguments match no call.
    let calls = json_answers.into_iter().filter_map(|(input, answer)| {
        let Value::Object(input) = container_literal(&input)? else {
            return None;
        };
        Some((canonical_arguments(&input), answer))
    });
    let mut file_answers = Answers::new();
    for (input, answer) in calls {
        file_answers.entry(input).or_insert(answer);
    }
    Ok(Some(file_answers))
}
