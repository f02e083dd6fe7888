//! A config to the files and folders that it names.

use std::path::PathBuf;

use super::choices::{RetrieverData, Suite};
use super::settings::{Config, NestfulConfig, ToolQaConfig};

/// Every path that a config names and that must exist before the run, with its setting.
pub(crate) fn named_files(config: &Config) -> Vec<(String, &PathBuf)> {
    let mut files = Vec::new();
    if let Some(model) = &config.model {
        files.push((
            "model.model_name_or_path".to_owned(),
            &model.model_name_or_path,
        ));
    }
    for (setting, list) in [
        ("data.train", &config.data.train),
        ("data.eval", &config.data.eval),
    ] {
        files.extend(
            list.iter()
                .enumerate()
                .map(|(i, file)| (format!("{setting}[{i}]"), file)),
        );
    }
    files.extend(
        config
            .data
            .chat_template
            .iter()
            .map(|f| ("data.chat_template".to_owned(), f)),
    );
    files.extend(
        config
            .goat
            .iter()
            .map(|goat| ("goat.documents".to_owned(), &goat.documents)),
    );
    let executors = config.goat.iter().map(|goat| &goat.executor);
    files.extend(executors.filter_map(|executor| executor.file("goat.executor")));
    files.extend(config.retriever.iter().map(|retriever| {
        let path = &retriever.model_name_or_path;
        ("retriever.model_name_or_path".to_owned(), path)
    }));
    if let Some(retriever) = &config.retriever {
        let trained = match retriever.training.as_ref().map(|training| &training.data) {
            Some(RetrieverData::Pairs(files)) => files.as_slice(),
            _ => &[],
        };
        for (setting, list) in [
            ("retriever.train", trained),
            ("retriever.eval", &retriever.eval),
        ] {
            let named = |(i, file)| (format!("{setting}[{i}]"), file);
            files.extend(list.iter().enumerate().map(named));
        }
        let documents = retriever.documents.iter();
        files.extend(documents.map(|file| ("retriever.documents".to_owned(), file)));
    }
    files.extend(
        config
            .eval
            .encoder
            .iter()
            .map(|f| ("eval.encoder".to_owned(), f)),
    );
    files.extend(config.eval.nestful.iter().flat_map(NestfulConfig::files));
    files.extend(config.eval.toolqa.iter().flat_map(ToolQaConfig::files));
    for (suite, table) in [
        (Suite::Restbench, &config.eval.restbench),
        (Suite::Apibank, &config.eval.apibank),
    ] {
        files.extend(table.iter().flat_map(|table| table.files(suite)));
    }
    files
}
