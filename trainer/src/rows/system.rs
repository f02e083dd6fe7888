//! Warns about prompts without a system message, if the training rows have one.

use std::path::PathBuf;

use tooltune_rows::text::{DataFormat, RowReader};
use tooltune_template::Role;

use super::{RowFiles, row_parser};
use crate::config::Config;

/// Maximum number of rows read per file: enough to decide, and fast for files of any size.
const MAX_ROWS: usize = 100;

/// A hint for a prompt without a system message, if all of the first training rows have one.
///
/// Also `None` if `data.system` is set, or if the training files cannot be read: they may have been
/// moved, and the prompt does not need them.
pub fn missing_system(config: &Config) -> Option<String> {
    let format = config.data.format.row_format()?;
    if config.data.system.is_some() || format == DataFormat::Slot {
        return None;
    }
    let paths: Vec<PathBuf> = config.data.train_paths().cloned().collect();
    let mut n_rows = 0;
    for records in RowFiles::all_rows(&paths).open().ok()? {
        let parser = row_parser(config, format).ok()?;
        let reader = RowReader::new(records, format).with(|_| parser);
        for row in reader.take(MAX_ROWS) {
            let first = row.ok()?.conversation.messages.first().map(|one| one.role);
            if !matches!(first, Some(Role::System | Role::Developer)) {
                return None;
            }
            n_rows += 1;
        }
    }
    (n_rows > 0).then(|| {
        format!(
            "the first {n_rows} training rows begin with a system message, but this prompt has none; set \
         it with --system TEXT or --set data.system=TEXT"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::LoadedConfig;

    const SYSTEM: &str = r#"{"role": "system", "content": "Be brief."}, "#;

    fn row(system: &str) -> String {
        format!(
            "{{\"messages\": [{system}{{\"role\": \"user\", \"content\": \"Hi\"}}, \
             {{\"role\": \"assistant\", \"content\": \"Hi.\"}}]}}\n"
        )
    }

    #[test]
    fn a_prompt_without_the_system_message_of_training_is_noticed() {
        let dir = tempfile::tempdir().expect("a folder");
        let rows = dir.path().join("rows.jsonl");
        let hint = |text: &str, more: &str| {
            std::fs::write(&rows, text).expect("written");
            let config = format!(
                "[model]\nmodel_name_or_path = {:?}\n[lora]\n[data]\ntrain = [{rows:?}]\nformat = \
                 \"messages\"\n{more}\n[train]\noutput_dir = {:?}\n",
                dir.path(),
                dir.path().join("run")
            );
            let path = dir.path().join("run.toml");
            std::fs::write(&path, config).expect("written");
            let config = LoadedConfig::load(&path, &[]).expect("a config").config;
            std::fs::write(&rows, text).expect("written");
            missing_system(&config)
        };
        let all = row(SYSTEM).repeat(3);
        let message = hint(&all, "").expect("a hint");
        assert!(
            message.contains("first 3 training rows") && message.contains("--system"),
            "{message}"
        );
        let many = row(SYSTEM).repeat(MAX_ROWS) + &row("");
        assert!(
            hint(&many, "")
                .expect("a hint")
                .contains("first 100 training rows")
        );
        for (text, more) in [
            (row(SYSTEM) + &row(""), ""),
            (all, "system = \"Be brief.\""),
            ("no row\n".to_owned(), ""),
        ] {
            assert_eq!(hint(&text, more), None, "{text} {more}");
        }
    }
}
