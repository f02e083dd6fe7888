//! The table `[eval]`, and what it needs of the rest.

use super::choices::{DataFormat, EvalStrategy, Flatten, Suite};
use super::defaults;
use super::metric::MetricExpression;
use super::names;
use super::raw::RawEval;
use super::rules::Checker;
use super::settings::{DataConfig, EvalConfig, Sampling};
use super::tool_suites::sandbox;

impl Checker<'_> {
    pub(super) fn eval(&mut self, raw: RawEval, data: &DataConfig, has_model: bool) -> EvalConfig {
        // A strategy that is there and unreadable is reported already.
        let evaluates = self.is_typed("eval") && !self.is_typed("eval.eval_strategy");
        let default = if evaluates {
            EvalStrategy::Steps
        } else {
            EvalStrategy::No
        };
        let eval_strategy = raw.eval_strategy.unwrap_or(default);
        let suites = raw.suites.unwrap_or(match data.format {
            _ if !has_model => vec![Suite::Retrieval],
            DataFormat::Slot => vec![Suite::Slot],
            _ => Vec::new(),
        });
        if let Some(suite) = suites
            .iter()
            .find(|s| !has_model && **s != Suite::Retrieval)
        {
            let message = format!("the suite {suite} needs a language model: [model] is missing");
            self.report(
                "eval.suites",
                message,
                "write suites = [\"retrieval\"], or add [model]",
            );
        }
        let metric_for_best_model = raw.metric_for_best_model.unwrap_or_else(|| {
            suites
                .first()
                .map_or("loss", |suite| suite.default_metric())
                .to_owned()
        });
        // What cannot be read is reported below.
        let greater_is_better = raw.greater_is_better.unwrap_or_else(|| {
            let metric = MetricExpression::parse(&metric_for_best_model);
            metric.is_ok_and(|metric| metric.greater_is_better())
        });
        let eval = EvalConfig {
            eval_strategy,
            eval_steps: raw.eval_steps.unwrap_or(defaults::EVAL_STEPS),
            suites,
            max_samples: raw.max_samples,
            max_time: raw.max_time,
            max_new_tokens: raw.max_new_tokens.unwrap_or(defaults::MAX_NEW_TOKENS),
            batch_size: raw.batch_size.unwrap_or(defaults::EVAL_BATCH_SIZE),
            kv_cache_tokens: raw.kv_cache_tokens,
            constrained: raw.constrained.unwrap_or(false),
            sampling: Sampling {
                temperature: raw.temperature.unwrap_or(0.0),
                top_k: raw.top_k,
                top_p: raw.top_p.unwrap_or(1.0),
            },
            stop_strings: raw.stop_strings.unwrap_or_default(),
            metric_for_best_model,
            greater_is_better,
            early_stopping_patience: raw.early_stopping_patience,
            early_stopping_threshold: raw.early_stopping_threshold.unwrap_or(0.0),
            encoder: raw.encoder,
            nestful: raw.nestful.map(|raw| self.nestful(raw)),
            toolqa: raw.toolqa.map(|raw| self.toolqa(raw)),
            restbench: raw
                .restbench
                .map(|raw| self.agent_suite(Suite::Restbench, raw)),
            apibank: raw.apibank.map(|raw| self.agent_suite(Suite::Apibank, raw)),
            sandbox: sandbox(raw.sandbox.unwrap_or_default()),
        };
        self.generation(&eval);
        self.at_least("eval.eval_steps", eval.eval_steps, 1);
        if let Some(seconds) = eval.max_time {
            self.above_zero("eval.max_time", seconds);
        }
        self.at_least(
            "eval.max_samples",
            eval.max_samples.map_or(1, |count| count as u64),
            1,
        );
        self.at_least("eval.max_new_tokens", eval.max_new_tokens as u64, 1);
        self.at_least("eval.batch_size", eval.batch_size as u64, 1);
        self.metric(&eval, data);
        self.early_stopping(&eval);
        if eval.eval_strategy == EvalStrategy::Steps {
            self.evaluation_needs(&eval, data, has_model);
        }
        for (suite, format) in [
            (Suite::Slot, DataFormat::Slot),
            (Suite::Goat, DataFormat::Goat),
        ] {
            let lacks_rows = !data.may_be(format) && has_model;
            if eval.suites.contains(&suite) && lacks_rows {
                let message = format!("the suite {suite} needs {format} rows, not {}", data.format);
                let help = format!("take \"{suite}\" out, or use {format} rows");
                self.report("eval.suites", message, help);
            }
        }
        eval
    }

    fn generation(&mut self, eval: &EvalConfig) {
        let at_least_one = [
            ("eval.kv_cache_tokens", eval.kv_cache_tokens),
            ("eval.top_k", eval.sampling.top_k),
        ];
        for (key, number) in at_least_one {
            self.at_least(key, number.map_or(1, |number| number as u64), 1);
        }
        let Sampling {
            temperature, top_p, ..
        } = eval.sampling;
        if !(temperature >= 0.0 && temperature.is_finite()) {
            let message = format!("`eval.temperature` is {temperature}; it must be at least 0");
            self.report(
                "eval.temperature",
                message,
                "write 0 for the most likely token",
            );
        }
        if !(top_p > 0.0 && top_p <= 1.0) {
            let message = format!("`eval.top_p` is {top_p}; it must be above 0 and at most 1");
            self.report(
                "eval.top_p",
                message,
                "write 1.0 to sample among all tokens",
            );
        }
        if eval.stop_strings.iter().any(String::is_empty) {
            let message = "`eval.stop_strings` has an empty text, which every answer ends with";
            self.report("eval.stop_strings", message.to_owned(), "take it out");
        }
    }

    fn evaluation_needs(&mut self, eval: &EvalConfig, data: &DataConfig, has_model: bool) {
        let reads_rows = |suite: &Suite| matches!(suite, Suite::Slot | Suite::Goat);
        let reads_rows = eval.suites.is_empty() || eval.suites.iter().any(reads_rows);
        if has_model && reads_rows && data.eval.is_empty() && !self.is_typed("data.eval") {
            self.report(
                self.typed_of("eval.eval_strategy", "eval"),
                "there is nothing to evaluate on: `data.eval` is missing".to_owned(),
                "list files in [data], eval = [\"data/dev.jsonl\"], or write eval_strategy = \"no\"",
            );
        }
        if eval.suites.contains(&Suite::Slot) && eval.encoder.is_none() {
            self.missing(
                "eval.encoder",
                "the suite slot compares contents with an encoder: \
                 encoder = \"models/all-minilm-l6-v2\" (scripts/fetch-models brings it)",
            );
        }
        self.tool_suites_need(eval);
        self.agent_suites_need(eval, data);
    }

    fn early_stopping(&mut self, eval: &EvalConfig) {
        let (patience, threshold) = (
            "eval.early_stopping_patience",
            "eval.early_stopping_threshold",
        );
        self.at_least(patience, eval.early_stopping_patience.unwrap_or(1), 1);
        let least = eval.early_stopping_threshold;
        if !(least >= 0.0 && least.is_finite()) {
            let message = format!("`{threshold}` is {least}; it must be at least 0");
            self.report(threshold, message, "write 0.0 for any gain");
        }
        if eval.early_stopping_patience.is_some() && eval.eval_strategy == EvalStrategy::No {
            self.report(
                patience,
                "the run has no evaluations that could end it: `eval.eval_strategy` is \"no\"",
                "write eval_strategy = \"steps\", or take `eval.early_stopping_patience` out",
            );
        }
        if eval.early_stopping_patience.is_none() && self.is_typed(threshold) && least > 0.0 {
            self.report(
                threshold,
                "nothing ends the run early: `eval.early_stopping_patience` is missing",
                "write early_stopping_patience = 3, or another number of evaluations",
            );
        }
    }

    fn metric(&mut self, eval: &EvalConfig, data: &DataConfig) {
        let mut known = match eval.suites.as_slice() {
            [Suite::Retrieval] => Vec::new(),
            _ => vec!["loss".to_owned()],
        };
        for suite in &eval.suites {
            let metrics = match (suite, &eval.nestful) {
                (Suite::Nestful, Some(nestful)) => nestful.metrics(),
                _ => suite.metrics(),
            };
            known.extend(metrics.iter().map(|metric| format!("{suite}.{metric}")));
        }
        if eval.suites.contains(&Suite::Slot) && data.flatten.which != Flatten::None {
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
        let help = match names::nearest(metric, &known) {
            Some(near) => format!("did you mean {near:?}? It can be {}", names::list(&known)),
            None => format!(
                "it can be {}; other metrics need their suite",
                names::list(&known)
            ),
        };
        self.report(path, message, help);
    }
}
