//! Reads files of `tooltune generate --output`: completions with their references.

use std::path::Path;

use tooltune_apis::JsonLines;
use tooltune_report::SampleView;

use crate::error::Error;

/// Reads the completions of a file in order.
///
/// # Errors
///
/// The file cannot be read, or a line has no prompt or text.
pub(super) fn generated_samples(file: &Path) -> Result<Vec<SampleView>, Error> {
    let name = file
        .file_stem()
        .unwrap_or(file.as_os_str())
        .to_string_lossy();
    let mut samples = Vec::new();
    for line in JsonLines::open(file)? {
        let (location, line) = line?;
        let field = |name: &str| line[name].as_str().map(str::to_owned);
        let (Some(prompt), Some(prediction)) = (field("prompt"), field("text")) else {
            return Err(Error::Usage(format!(
                "{location}: the line has no \"prompt\" and \"text\" (the format of `tooltune \
                 generate --output`); move the file out of the evaluation folder"
            )));
        };
        let reason = field("finish_reason").filter(|reason| reason != "stop");
        samples.push(SampleView {
            result: name.clone().into_owned(),
            id: line["id"].as_str().unwrap_or_default().to_owned(),
            prompt,
            prediction,
            gold: field("reference").unwrap_or_default(),
            is_base: name == "base",
            notes: reason
                .map(|reason| format!("cut off by the {reason} limit"))
                .into_iter()
                .collect(),
            ..SampleView::default()
        });
    }
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn lines_become_samples_with_references_and_invalid_lines_are_refused_with_location() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("best.jsonl");
        let line = serde_json::json!({"id": "a:1", "prompt": "Hi", "text": "Hello", "reference": "Ho",
            "finish_reason": "length"});
        std::fs::write(&file, format!("{line}\n")).expect("a file");
        let samples = generated_samples(&file).expect("texts");
        let sample = &samples[0];
        assert_eq!(
            (sample.result.as_str(), sample.id.as_str()),
            ("best", "a:1")
        );
        assert_eq!(
            (sample.prediction.as_str(), sample.gold.as_str()),
            ("Hello", "Ho")
        );
        assert_eq!(sample.notes, ["cut off by the length limit"]);
        std::fs::write(&file, format!("{line}\n{}\n", Value::from(1))).expect("a file");
        let error = generated_samples(&file).expect_err("no text").to_string();
        assert!(error.contains("best.jsonl:2: "), "{error}");
    }
}
