//! Rules for `[eval]` and its suites, and their requirements in other tables.

use crate::did_you_mean;
use crate::enums::{DataFormat, EvalStrategy, Flatten};
use crate::metric::MetricExpression;
use crate::rules::Rules;
use crate::suite::Suite;
use crate::tables::Config;

impl Rules<'_> {
    pub(super) fn eval(&mut self, config: &Config) {
        let (eval, data) = (&config.eval, &config.data);
        let mut suites = eval.suites.iter();
        if let Some(suite) = suites.find(|suite| !self.has_model && suite.needs().generator) {
            let message = format!("the suite {suite} needs a language model: [model] is missing");
            let others = Suite::all().filter(|suite| !suite.needs().generator);
            let others: Vec<String> = others.map(|suite| format!("\"{suite}\"")).collect();
            let help = format!("write suites = [{}], or add [model]", others.join(", "));
            self.report("eval.suites", message, help);
        }
        if eval.stop_strings.iter().any(String::is_empty) {
            let message = "`eval.stop_strings` has an empty string, which every answer contains";
            self.report("eval.stop_strings", message, "remove it");
        }
        for one in eval.suite_tables() {
            if let Some(table) = one.table {
                table.check(&one.path(), self);
            }
        }
        self.metric(config);
        if eval.eval_strategy == EvalStrategy::Steps && !self.is_for_evaluation {
            self.evaluation_needs(config);
        }
        let has_model = self.has_model;
        let suites = Suite::all().filter(|suite| eval.suites.contains(suite));
        for suite in suites.filter(|_| has_model) {
            let Some(rows) = suite.needs().rows else {
                continue;
            };
            let formats = rows.formats.iter();
            let mut known = formats.filter_map(|word| DataFormat::from_word(word));
            if !known.any(|format| data.may_be(format)) {
                let formats = rows.formats.join(" or ");
                let message = format!(
                    "the suite {suite} needs {formats} rows, not {}",
                    data.format
                );
                let help = format!("remove \"{suite}\", or use {formats} rows");
                self.report("eval.suites", message, help);
            }
        }
    }

    fn evaluation_needs(&mut self, config: &Config) {
        let (eval, data) = (&config.eval, &config.data);
        let mut suites = eval.suites.iter();
        let reads_rows = eval.suites.is_empty() || suites.any(|suite| suite.needs().rows.is_some());
        let has_rows = data.has_eval_rows() || self.is_in_source("data.eval");
        if self.has_model && reads_rows && !has_rows {
            self.report(
                self.typed_of("eval.eval_strategy", "eval"),
                "there is nothing to evaluate on: `data.eval` is missing",
                "list files in [data], eval = [\"data/dev.jsonl\"], hold out rows with validation_split = \
                 0.05, or write eval_strategy = \"no\"",
            );
        }
        if let Some(suite) = eval.suites.iter().find(|suite| suite.needs().encoder)
            && eval.encoder.is_none()
        {
            self.missing(
                "eval.encoder",
                &format!(
                    "the suite {suite} compares contents with an encoder: \
                     encoder = \"models/all-minilm-l6-v2\" (scripts/fetch-models downloads it)"
                ),
            );
        }
        for one in eval.suite_tables() {
            let suite = one.suite;
            if !eval.suites.contains(&suite) {
                continue;
            }
            let table = one.or_default();
            let is_empty = table.data().is_empty();
            self.rows_of_suite(
                &format!("{}.data", one.path()),
                is_empty,
                &table.data_help(suite),
            );
            table.check_needs(&one.path(), self);
            if suite.needs().agents && !data.may_be(DataFormat::Goat) {
                let rows = data.format;
                let message = format!(
                    "the suite {suite} uses the prompts of [goat], but the rows are {rows}"
                );
                let help = format!("remove \"{suite}\", or use goat rows");
                self.report("eval.suites", message, help);
            }
        }
    }

    /// Reports a missing setting for the rows of a suite.
    fn rows_of_suite(&mut self, path: &str, is_empty: bool, help: &str) {
        self.missing(path, help);
        self.no_empty_list(path, is_empty, help);
    }

    fn metric(&mut self, config: &Config) {
        let eval = &config.eval;
        let mut known = match eval.suites.as_slice() {
            [only] if !only.needs().generator => Vec::new(),
            _ => vec!["loss".to_owned()],
        };
        for suite in &eval.suites {
            let own = eval.table_of(*suite).and_then(|table| table.metrics());
            let metrics = own.unwrap_or(suite.info().metrics).iter();
            known.extend(metrics.map(|metric| format!("{suite}.{metric}")));
        }
        if config.data.flatten != Flatten::None {
            for suite in &eval.suites {
                let metrics = suite.info().flat_metrics.iter();
                known.extend(metrics.map(|metric| format!("{suite}.{metric}")));
            }
        }
        let path = "eval.metric_for_best_model";
        let expression = match MetricExpression::parse(&eval.metric_for_best_model) {
            Ok(expression) => expression,
            Err(problem) => {
                return self.report(path, format!("`{path}` cannot be read"), problem);
            }
        };
        let is_unknown = |name: &&str| !known.iter().any(|known| known == name);
        let Some(metric) = expression.names().find(is_unknown) else {
            return;
        };
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        let message = format!("no suite of this config measures {metric:?}");
        let all = did_you_mean::list(&known);
        let help = match did_you_mean::nearest(metric, &known) {
            Some(near) => format!("did you mean {near:?}? It can be {all}"),
            None => format!("it can be {all}; other metrics require their suites"),
        };
        self.report(path, message, help);
    }
}
