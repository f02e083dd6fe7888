//! Metrics per file, if the samples come from several files.
//!
//! A mean over all samples gives large files more weight. The mean of the file means (the macro
//! mean in papers) gives each file the same weight.

use std::ops::Range;
use std::path::Path;

use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};
use tooltune_rows::text::Row;
use tooltune_suites::Estimate;

use crate::error::Error;

/// The number of samples of each file, in sample order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SampleFiles {
    files: Vec<SampleFile>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct SampleFile {
    name: String,
    n: usize,
}

impl SampleFiles {
    /// Groups rows by file, using their IDs `file:line`.
    pub fn from_rows(rows: &[Row]) -> Self {
        let mut files = Self::default();
        for row in rows {
            let name = row.id.rsplit_once(':').map_or("", |(file, _)| file);
            files.add(Path::new(name), 1);
        }
        files
    }

    /// Appends `n` samples of `file`, which may be the same file as before.
    pub fn add(&mut self, file: &Path, n: usize) {
        let name = file.display().to_string();
        match self.files.last_mut().filter(|last| last.name == name) {
            Some(last) => last.n += n,
            None => self.files.push(SampleFile { name, n }),
        }
    }

    /// Keeps the first `max_samples` samples, as `eval.max_samples` does, and warns about files
    /// that lose all their samples.
    pub fn truncate(&mut self, max_samples: usize) {
        let mut remaining = max_samples;
        for file in &mut self.files {
            if remaining == 0 && file.n > 0 {
                let name = &file.name;
                tracing::warn!("eval.max_samples = {max_samples} leaves no samples of {name}");
            }
            file.n = file.n.min(remaining);
            remaining -= file.n;
        }
    }

    /// The file of a sample, if there are several files.
    pub fn file_of(&self, sample: usize) -> Option<&str> {
        let mut end = 0;
        let holds = |file: &&SampleFile| {
            end += file.n;
            sample < end
        };
        let file = self.files.iter().find(holds);
        file.filter(|_| self.files.len() > 1)
            .map(|file| file.name.as_str())
    }

    /// Computes the metrics of each file and their means; `None` for fewer than two files.
    ///
    /// `measure` returns the metrics of a range of samples in the order of `names`, with `None` for
    /// undefined ones.
    ///
    /// # Errors
    ///
    /// Errors of `measure`.
    pub fn measure_by_file<V: Into<Vec<Option<Estimate>>>>(
        &self,
        names: impl Into<Vec<&'static str>>,
        measure: impl Fn(Range<usize>) -> Result<V, Error>,
    ) -> Result<Option<ByFile>, Error> {
        if self.files.len() < 2 {
            return Ok(None);
        }
        let names = names.into();
        let mut begin = 0;
        let mut files = Vec::new();
        for file in &self.files {
            let end = begin + file.n;
            let values = match file.n {
                0 => vec![None; names.len()],
                _ => measure(begin..end)?.into(),
            };
            files.push(FileNumbers {
                file: file.name.clone(),
                n: file.n,
                values,
            });
            begin = end;
        }
        Ok(Some(ByFile {
            names,
            pooled: FileNumbers {
                file: "all samples".to_owned(),
                n: begin,
                values: measure(0..begin)?.into(),
            },
            files,
        }))
    }
}

/// Metrics of several files.
///
/// As JSON: `{"by_file": [{"file", "n", METRIC: {"value", "low", "high"}, ..}, ..], "macro_mean":
/// {METRIC: mean, ..}}`.
#[derive(Debug, Clone, PartialEq)]
pub struct ByFile {
    names: Vec<&'static str>,
    files: Vec<FileNumbers>,
    /// Metrics over all samples, which the evaluation writes separately.
    pooled: FileNumbers,
}

#[derive(Debug, Clone, PartialEq)]
struct FileNumbers {
    file: String,
    n: usize,
    values: Vec<Option<Estimate>>,
}

impl ByFile {
    /// The mean of a metric over the files that define it; `idx` is its index in `names`.
    fn macro_mean(&self, idx: usize) -> Option<f64> {
        let values = self.files.iter().filter_map(|file| file.values[idx]);
        let values: Vec<f64> = values.map(|estimate| estimate.value).collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    }

    /// The fields for `metrics.json`.
    pub fn fields(&self) -> Map<String, Value> {
        let file_fields = |file: &FileNumbers| {
            let mut fields = Map::new();
            fields.insert("file".to_owned(), json!(file.file));
            fields.insert("n".to_owned(), json!(file.n));
            for (name, value) in self.names.iter().zip(&file.values) {
                if let Some(estimate) = value {
                    fields.insert((*name).to_owned(), json!(estimate));
                }
            }
            Value::Object(fields)
        };
        let means = self.names.iter().enumerate();
        let means: Map<String, Value> = means
            .filter_map(|(idx, name)| Some(((*name).to_owned(), json!(self.macro_mean(idx)?))))
            .collect();
        let files = self.files.iter().map(file_fields).collect();
        [
            ("by_file".to_owned(), Value::Array(files)),
            ("macro_mean".to_owned(), Value::Object(means)),
        ]
        .into_iter()
        .collect()
    }

    /// A Markdown table with one line per file, their mean, and all samples. Undefined metrics are
    /// shown as a dash.
    pub fn table(&self) -> String {
        let mut table = format!("| file | n | {} |\n", self.names.join(" | "));
        table.push_str(&format!("|---|--:{}|\n", "|--:".repeat(self.names.len())));
        let mut line = |name: &str, n: &str, values: &mut dyn Iterator<Item = Option<f64>>| {
            let cell = |value: Option<f64>| value.map_or("-".to_owned(), |v| format!("{v:.4}"));
            let cells: Vec<String> = values.map(cell).collect();
            table.push_str(&format!("| {name} | {n} | {} |\n", cells.join(" | ")));
        };
        let values = |file: &FileNumbers| -> Vec<Option<f64>> {
            let values = file.values.iter();
            values.map(|value| value.map(|e| e.value)).collect()
        };
        for file in &self.files {
            let n = file.n.to_string();
            line(&file.file, &n, &mut values(file).into_iter());
        }
        let means = (0..self.names.len()).map(|idx| self.macro_mean(idx));
        line("macro mean of the files", "", &mut means.into_iter());
        let n = self.pooled.n.to_string();
        line(&self.pooled.file, &n, &mut values(&self.pooled).into_iter());
        table
    }
}

/// The content of `metrics.json`: a report, and metrics per file if there are several files.
#[derive(Debug, Serialize)]
pub struct WithFiles<'a, R> {
    #[serde(flatten)]
    report: &'a R,
    #[serde(flatten)]
    by_file: Option<&'a ByFile>,
}

impl<'a, R> WithFiles<'a, R> {
    /// Combines a report with its metrics per file.
    pub fn new(report: &'a R, by_file: Option<&'a ByFile>) -> Self {
        Self { report, by_file }
    }
}

impl Serialize for ByFile {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.fields())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The mean of `numbers`; undefined (`None`) if it is above 9.
    fn mean(numbers: &[f64]) -> Option<Estimate> {
        let value = numbers.iter().sum::<f64>() / numbers.len() as f64;
        (value < 9.0).then_some(Estimate {
            value,
            low: value,
            high: value,
        })
    }

    fn measure_by_file(files: &SampleFiles, numbers: &[f64]) -> Option<ByFile> {
        let measure = |range: Range<usize>| Ok([mean(&numbers[range])]);
        files.measure_by_file(["score"], measure).expect("measured")
    }

    #[test]
    fn macro_mean_weights_files_equally() {
        let mut files = SampleFiles::default();
        files.add(Path::new("a.jsonl"), 1);
        files.add(Path::new("b.jsonl"), 3);
        let by_file = measure_by_file(&files, &[1.0, 0.0, 0.0, 0.5]).expect("two files");
        let json = serde_json::to_value(&by_file).expect("JSON");
        assert_eq!(json["by_file"][0]["file"], "a.jsonl");
        let file_names = [0, 1, 3, 4].map(|sample| files.file_of(sample));
        let expected = [Some("a.jsonl"), Some("b.jsonl"), Some("b.jsonl"), None];
        assert_eq!(file_names, expected);
        assert_eq!(json["by_file"][1]["n"], 3);
        let second = json["by_file"][1]["score"]["value"].as_f64();
        assert!(second.is_some_and(|value| (value - 0.5 / 3.0).abs() < 1e-12));
        let mean = json["macro_mean"]["score"].as_f64().expect("a mean");
        assert!((mean - f64::midpoint(1.0, 0.5 / 3.0)).abs() < 1e-12);
        assert_eq!(
            by_file.table(),
            "| file | n | score |\n|---|--:|--:|\n| a.jsonl | 1 | 1.0000 |\n\
             | b.jsonl | 3 | 0.1667 |\n| macro mean of the files |  | 0.5833 |\n\
             | all samples | 4 | 0.3750 |\n"
        );
    }

    #[test]
    fn one_file_has_no_table_and_undefined_metrics_are_a_dash() {
        let mut files = SampleFiles::default();
        files.add(Path::new("a"), 2);
        files.add(Path::new("a"), 1);
        assert_eq!(measure_by_file(&files, &[1.0; 3]), None);
        assert_eq!(files.file_of(0), None);
        files.add(Path::new("b"), 2);
        files.truncate(3);
        let by_file = measure_by_file(&files, &[1.0; 3]).expect("two files");
        assert!(
            by_file
                .table()
                .contains("| b | 0 | - |\n| macro mean of the files |  | 1.0000 |"),
            "{}",
            by_file.table()
        );
        let absent = measure_by_file(&files, &[20.0; 3]).expect("two files");
        assert_eq!(absent.fields()["macro_mean"], json!({}));
    }
}
