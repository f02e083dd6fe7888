//! The table `[goat]`, and what it needs of the rest.

use tooltune_agents::LoopLimits;
use tooltune_agents::truncation::ShapeOptions;

use super::choices::{DataFormat, Distractors};
use super::defaults;
use super::raw::{RawGoat, RawKindWeights, RawLoopLimits, RawTruncate};
use super::rules::Checker;
use super::settings::{DataConfig, GoatConfig, KindWeights, RetrieverConfig};
use super::truncation::shape;

impl Checker<'_> {
    pub(super) fn goat(
        &mut self,
        raw: Option<RawGoat>,
        data: &DataConfig,
        retriever: Option<&RetrieverConfig>,
    ) -> Option<GoatConfig> {
        let is_goat = data.format == DataFormat::Goat;
        if !is_goat {
            if raw.is_some() && !data.may_be(DataFormat::Goat) {
                let message = format!(
                    "[goat] is for trajectories, and the rows are {}",
                    data.format
                );
                self.report(
                    "goat",
                    message,
                    "write format = \"goat\" in [data], or take the table out",
                );
            }
            return None;
        }
        let raw = raw.unwrap_or_default();
        let goat = GoatConfig {
            documents: self.required(
                raw.documents,
                "goat.documents",
                "name the file of API documents: documents = \"data/documents.jsonl\"",
            ),
            method: raw.method.unwrap_or(defaults::GOAT_METHOD),
            distractors: raw.distractors.unwrap_or(defaults::DISTRACTORS),
            n_documents: raw.n_documents.unwrap_or(defaults::N_DOCUMENTS),
            output_limit: raw.output_limit.unwrap_or(defaults::OUTPUT_LIMIT),
            truncate: raw.truncate.map(|raw| self.truncate(raw)),
            weights: self.kind_weights(raw.weights.unwrap_or_default()),
            limits: self.loop_limits(raw.limits.unwrap_or_default()),
            executor: self.executor("goat.executor", raw.executor.unwrap_or_default()),
            judge: raw.judge.map(|raw| self.judge("goat.judge", raw)),
        };
        self.at_least("goat.n_documents", goat.n_documents as u64, 1);
        self.at_least("goat.output_limit", goat.output_limit as u64, 40);
        if goat.distractors == Distractors::Retriever && retriever.is_none() {
            self.report(
                "goat.distractors",
                "nothing ranks documents: the table [retriever] is missing",
                "add [retriever] with model_name_or_path, or write distractors = \"random\"",
            );
        }
        Some(goat)
    }

    fn truncate(&mut self, raw: RawTruncate) -> ShapeOptions {
        self.jmespath("goat.truncate.jmespath", raw.jmespath.as_deref());
        shape(raw)
    }

    fn loop_limits(&mut self, raw: RawLoopLimits) -> LoopLimits {
        let default = defaults::loop_limits();
        let mut limit = |typed: Option<usize>, default: usize, key: &str| {
            let limit = typed.unwrap_or(default);
            self.at_least(&format!("goat.limits.{key}"), limit as u64, 1);
            limit
        };
        LoopLimits {
            max_calls: limit(raw.max_calls, default.max_calls, "max_calls"),
            max_steps: limit(raw.max_steps, default.max_steps, "max_steps"),
            plan_tokens: limit(raw.plan_tokens, default.plan_tokens, "plan_tokens"),
            call_tokens: limit(raw.call_tokens, default.call_tokens, "call_tokens"),
            answer_tokens: limit(raw.answer_tokens, default.answer_tokens, "answer_tokens"),
        }
    }

    fn kind_weights(&mut self, raw: RawKindWeights) -> KindWeights {
        let mut weight = |typed: Option<f64>, kind: &str| {
            let weight = typed.unwrap_or(defaults::KIND_WEIGHT);
            self.within(&format!("goat.weights.{kind}"), weight, 0.0..=f64::MAX);
            weight
        };
        KindWeights {
            plan: weight(raw.plan, "plan"),
            call: weight(raw.call, "call"),
            step: weight(raw.step, "step"),
            decompose: weight(raw.decompose, "decompose"),
            answer: weight(raw.answer, "answer"),
        }
    }
}
