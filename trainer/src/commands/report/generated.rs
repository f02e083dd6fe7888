//! Reads files of `tooltune generate --output` as texts beside what their rows have in their place.

use std::path::Path;

use tooltune_report::SampleView;
use tooltune_rows::tools::JsonLines;

use crate::error::Error;

/// The texts of a file, in its order.
///
/// # Errors
///
/// A file that cannot be read, or a line without a prompt and a text.
pub(super) fn generated(file: &Path) -> Result<Vec<SampleView>, Error> {
    let name = file
        .file_stem()
        .unwrap_or(file.as_os_str())
        .to_string_lossy();
    let mut texts = Vec::new();
    for line in JsonLines::open(file)? {
        let (place, line) = line?;
        let field = |name: &str| line[name].as_str().map(str::to_owned);
        let (Some(prompt), Some(prediction)) = (field("prompt"), field("text")) else {
            return Err(Error::Usage(format!(
                "{place}: the line has no \"prompt\" and \"text\", as `tooltune generate --output` \
                 writes them; take the file out of the folder of evaluations"
            )));
        };
        let reason = field("finish_reason").filter(|reason| reason != "stop");
        texts.push(SampleView {
            result: name.clone().into_owned(),
            id: line["id"].as_str().unwrap_or_default().to_owned(),
            prompt,
            prediction,
            gold: field("reference").unwrap_or_default(),
            is_base: name == "base",
            notes: reason
                .map(|reason| format!("cut by its limit of {reason}"))
                .into_iter()
                .collect(),
            ..SampleView::default()
        });
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn lines_become_texts_beside_their_references_and_others_are_refused_with_their_place() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("best.jsonl");
        let line = serde_json::json!({"id": "a:1", "prompt": "Hi", "text": "Hello", "reference": "Ho",
            "finish_reason": "length"});
        std::fs::write(&file, format!("{line}\n")).expect("a file");
        let texts = generated(&file).expect("texts");
        let text = &texts[0];
        assert_eq!((text.result.as_str(), text.id.as_str()), ("best", "a:1"));
        assert_eq!(
            (text.prediction.as_str(), text.gold.as_str()),
            ("Hello", "Ho")
        );
        assert_eq!(text.notes, ["cut by its limit of length"]);
        std::fs::write(&file, format!("{line}\n{}\n", Value::from(1))).expect("a file");
        let error = generated(&file).expect_err("no text").to_string();
        assert!(error.contains("best.jsonl:2: "), "{error}");
    }
}
