//! The rules of the table `[eval]` and of its suites, and what they need of the other tables.

use tooltune_suites::nestful::own_families;

use super::Rules;
use crate::config::did_you_mean;
use crate::config::enums::{DataFormat, EvalStrategy, Flatten, ResponseReduction, Suite};
use crate::config::metric::MetricExpression;
use crate::config::tables::{Config, EvalConfig, NestfulConfig, ToolQaConfig};

impl Rules<'_> {
    pub(super) fn eval(&mut self, config: &Config) {
        let (eval, data) = (&config.eval, &config.data);
        let mut suites = eval.suites.iter();
        if let Some(suite) = suites.find(|suite| !self.has_model && **suite != Suite::Retrieval) {
            let message = format!("the suite {suite} needs a language model: [model] is missing");
            let help = "write suites = [\"retrieval\"], or add [model]";
            self.report("eval.suites", message, help);
        }
        if eval.stop_strings.iter().any(String::is_empty) {
            let message = "`eval.stop_strings` has an empty text, which every answer ends with";
            self.report("eval.stop_strings", message, "take it out");
        }
        if let Some(nestful) = &eval.nestful {
            self.nestful_family(nestful);
        }
        if let Some(toolqa) = &eval.toolqa {
            self.toolqa(toolqa);
        }
        for suite in [Suite::Restbench, Suite::Apibank] {
            let table = eval.agent_suite(suite);
            if let Some(executor) = table.and_then(|table| table.executor.as_ref()) {
                self.executor(&format!("eval.{suite}.executor"), executor);
            }
        }
        self.metric(config);
        self.early_stopping(eval);
        if eval.eval_strategy == EvalStrategy::Steps {
            self.evaluation_needs(config);
        }
        for (suite, format) in [
            (Suite::Slot, DataFormat::Slot),
            (Suite::Goat, DataFormat::Goat),
        ] {
            if eval.suites.contains(&suite) && !data.may_be(format) && self.has_model {
                let message = format!("the suite {suite} needs {format} rows, not {}", data.format);
                let help = format!("take \"{suite}\" out, or use {format} rows");
                self.report("eval.suites", message, help);
            }
        }
    }

    fn nestful_family(&mut self, nestful: &NestfulConfig) {
        let (path, family) = ("eval.nestful.family", nestful.family.as_str());
        let known: Vec<&str> = own_families().collect();
        if nestful.prompts.is_some() || known.contains(&family) {
            return;
        }
        let help = match did_you_mean::nearest(family, &known) {
            Some(near) => format!("did you mean {near:?}?"),
            None => format!(
                "it can be {}, or a name in a file of prompts: eval.nestful.prompts",
                did_you_mean::list(&known)
            ),
        };
        self.report(path, format!("`{path}` cannot be {family:?}"), help);
    }

    fn toolqa(&mut self, toolqa: &ToolQaConfig) {
        self.jmespath("eval.toolqa.jmespath", toolqa.jmespath.as_deref());
        if let Some(judge) = &toolqa.judge {
            self.judge("eval.toolqa.judge", judge);
        }
        let reduce = "eval.toolqa.reduce";
        let is_unreadable = self.is_typed(reduce) && !self.findings.is_read(reduce);
        if toolqa.reduce == Some(ResponseReduction::Truncate) || is_unreadable {
            return;
        }
        for key in ["max_items", "max_depth", "max_chars", "jmespath"] {
            let path = format!("eval.toolqa.{key}");
            if self.is_typed(&path) {
                let message = format!("`{path}` is for `{reduce}` = \"truncate\"");
                let help = "write reduce = \"truncate\", or delete this line";
                self.report(&path, message, help);
            }
        }
    }

    fn evaluation_needs(&mut self, config: &Config) {
        let (eval, data) = (&config.eval, &config.data);
        let asks = |suite: Suite| eval.suites.contains(&suite);
        let reads_rows = eval.suites.is_empty() || asks(Suite::Slot) || asks(Suite::Goat);
        let has_rows = !data.eval.is_empty() || self.is_typed("data.eval");
        if self.has_model && reads_rows && !has_rows {
            self.report(
                self.typed_of("eval.eval_strategy", "eval"),
                "there is nothing to evaluate on: `data.eval` is missing",
                "list files in [data], eval = [\"data/dev.jsonl\"], or write eval_strategy = \"no\"",
            );
        }
        if asks(Suite::Slot) && eval.encoder.is_none() {
            self.missing(
                "eval.encoder",
                "the suite slot compares contents with an encoder: \
                 encoder = \"models/all-minilm-l6-v2\" (scripts/fetch-models brings it)",
            );
        }
        if asks(Suite::Nestful) {
            let help = "name the benchmark's rows: [eval.nestful] data = [\"nestful_data.jsonl\"]";
            let rows = eval.nestful.as_ref().map_or(&[][..], |table| &table.data);
            self.rows_of_suite("eval.nestful.data", rows.is_empty(), help);
        }
        if asks(Suite::Toolqa) {
            self.toolqa_needs(eval.toolqa.as_ref().unwrap_or(&ToolQaConfig::default()));
        }
        for suite in [Suite::Restbench, Suite::Apibank] {
            if !asks(suite) {
                continue;
            }
            let help = format!("name the benchmark's queries: [eval.{suite}] data = [\"FILE\"]");
            let rows = eval.agent_suite(suite).map_or(&[][..], |table| &table.data);
            self.rows_of_suite(&format!("eval.{suite}.data"), rows.is_empty(), &help);
            if !data.may_be(DataFormat::Goat) {
                let rows = data.format;
                let message =
                    format!("the suite {suite} prompts as [goat] says, and the rows are {rows}");
                let help = format!("take \"{suite}\" out, or use goat rows");
                self.report("eval.suites", message, help);
            }
        }
    }

    fn toolqa_needs(&mut self, toolqa: &ToolQaConfig) {
        let help = "name the questions: [eval.toolqa] data = [\"qa.jsonl\"]";
        self.rows_of_suite("eval.toolqa.data", toolqa.data.is_empty(), help);
        if toolqa.responses.is_none() {
            let help = "name the responses: [eval.toolqa] responses = \"responses.jsonl\"";
            self.missing("eval.toolqa.responses", help);
        }
        if toolqa.setting.is_code() && !toolqa.run_code {
            let setting = toolqa.setting.name();
            let message = format!("the setting {setting} runs functions that the model writes");
            let help = "allow that with run_code = true, which runs each in a sandbox";
            self.report("eval.toolqa.setting", message, help);
        }
    }

    /// The rows of a suite, which its table must name.
    fn rows_of_suite(&mut self, path: &str, is_empty: bool, help: &str) {
        self.missing(path, help);
        self.no_empty_list(path, is_empty, help);
    }

    fn early_stopping(&mut self, eval: &EvalConfig) {
        let patience = "eval.early_stopping_patience";
        if eval.early_stopping_patience.is_some() && eval.eval_strategy == EvalStrategy::No {
            self.report(
                patience,
                "the run has no evaluations that could end it: `eval.eval_strategy` is \"no\"",
                "write eval_strategy = \"steps\", or take `eval.early_stopping_patience` out",
            );
        }
        if eval.early_stopping_patience.is_none() && eval.early_stopping_threshold > 0.0 {
            self.report(
                "eval.early_stopping_threshold",
                "nothing ends the run early: `eval.early_stopping_patience` is missing",
                "write early_stopping_patience = 3, or another number of evaluations",
            );
        }
    }

    fn metric(&mut self, config: &Config) {
        let eval = &config.eval;
        let mut known = match eval.suites.as_slice() {
            [Suite::Retrieval] => Vec::new(),
            _ => vec!["loss".to_owned()],
        };
        for suite in &eval.suites {
            let classifies = eval.toolqa.as_ref().is_some_and(|toolqa| toolqa.classify);
            let metrics = match (suite, &eval.nestful) {
                (Suite::Nestful, Some(nestful)) => nestful.metrics(),
                (Suite::Toolqa, _) if classifies => &["accuracy"],
                _ => suite.info().metrics,
            };
            known.extend(metrics.iter().map(|metric| format!("{suite}.{metric}")));
        }
        if eval.suites.contains(&Suite::Slot) && config.data.flatten != Flatten::None {
            known.push("slot.malformed_rate".to_owned());
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
            None => format!("it can be {all}; other metrics need their suite"),
        };
        self.report(path, message, help);
    }
}
