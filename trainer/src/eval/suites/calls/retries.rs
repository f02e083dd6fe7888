//! Feeds the errors of rejected calls back to the model, as a server would.

use std::collections::BTreeSet;

use serde_json::Value;
use tooltune_suites::calls::{
    CallRejection, CallsAnswer, CallsScorer, RetrySummary, TurnScore, read_calls,
};
use tooltune_template::{Conversation, Message, Role, ToolCall};

use super::{CallsSuite, PredictedTurn};
use crate::eval::generator::Completion;
use crate::eval::prediction::{FailedTry, Prediction};
use crate::eval::suites::prompt_suite::Rejection;
use tooltune_agents::flat::UnflattenReport;

/// The result of a valid call next to a rejected one.
const NOT_EXECUTED: &str = "not executed, because another call of this turn is invalid";

impl PredictedTurn {
    /// The prompt after a rejected completion. If its calls can be parsed, each call gets a tool
    /// message with its error. Otherwise a user message has the errors.
    pub(super) fn rejection(
        &self,
        retried: Option<&Conversation>,
        completion: &Completion,
        scorer: &mut CallsScorer,
    ) -> Option<Rejection> {
        let prediction = Prediction::new(self.item.id.clone(), completion.clone());
        let answer = self.answer(&prediction, &mut UnflattenReport::default());
        let rejection = scorer.rejection(&self.item, &answer)?;
        let mut conversation = retried.unwrap_or(&self.prompt).clone();
        let feedback = if rejection.malformed.is_empty() {
            let written = self.written_calls(&prediction);
            let errors = rejection.calls.into_iter();
            let errors =
                errors.map(|error| error.map_or_else(|| NOT_EXECUTED.to_owned(), error_text));
            let errors: Vec<String> = errors.collect();
            add_tool_messages(&mut conversation, &prediction, written, &errors);
            errors
        } else {
            let error = user_text(&rejection);
            let messages = &mut conversation.messages;
            messages.push(Message::new(Role::Assistant, &*prediction.prediction));
            messages.push(Message::new(Role::User, &*error));
            vec![error]
        };
        conversation.completion_start = conversation.messages.len();
        Some(Rejection {
            feedback,
            conversation,
        })
    }

    /// The calls as the model wrote them, with flat arguments if the tools are flat.
    pub(super) fn written_calls(&self, prediction: &Prediction) -> CallsAnswer {
        if prediction.tool_calls.is_empty() {
            read_calls(&prediction.prediction, &self.item.tools)
        } else {
            CallsAnswer::from_server(&prediction.tool_calls)
        }
    }
}

fn error_text(error: String) -> String {
    format!("error: {error}")
}

/// The errors of calls of which at least one cannot be parsed.
fn user_text(rejection: &CallRejection) -> String {
    let errors = rejection
        .malformed
        .iter()
        .chain(rejection.calls.iter().flatten());
    let errors: Vec<&str> = errors.map(String::as_str).collect();
    format!(
        "error: {}. No call was executed; write the calls again.",
        errors.join("; ")
    )
}

fn add_tool_messages(
    conversation: &mut Conversation,
    prediction: &Prediction,
    written: CallsAnswer,
    errors: &[String],
) {
    // Mistral's templates need ids of nine characters.
    let id = |idx: usize| format!("retry{idx:04}");
    let calls = written
        .calls
        .into_iter()
        .enumerate()
        .map(|(idx, call)| ToolCall {
            id: Some(id(idx)),
            name: call.name,
            arguments: call.arguments,
            derived: BTreeSet::new(),
        });
    let has_text = !prediction.tool_calls.is_empty() && !prediction.prediction.is_empty();
    conversation.messages.push(Message {
        content: has_text.then(|| prediction.prediction.clone()),
        tool_calls: calls.collect(),
        ..Message::new(Role::Assistant, "")
    });
    for (idx, error) in errors.iter().enumerate() {
        let mut message = Message::new(Role::Tool, &**error);
        message
            .extra
            .insert("tool_call_id".to_owned(), Value::from(id(idx)));
        conversation.messages.push(message);
    }
}

impl CallsSuite {
    /// The metrics of retries; `None` if there are none. `scores` has the score of each last try.
    pub(super) fn retry_summary(
        &self,
        predictions: &[Prediction],
        scores: &[TurnScore],
        scorer: &mut CallsScorer,
    ) -> Option<RetrySummary> {
        let longest = predictions
            .iter()
            .map(|prediction| prediction.failed_tries.len());
        let limit = longest.max().unwrap_or(0).max(self.retries);
        if limit == 0 {
            return None;
        }
        let mut tries = Vec::with_capacity(scores.len());
        let turns = self.turns.iter().zip(predictions).zip(scores);
        for ((turn, prediction), score) in turns {
            let failed = prediction.failed_tries.iter().map(|failed| {
                let answer = turn.answer(
                    &failed_prediction(prediction, failed),
                    &mut UnflattenReport::default(),
                );
                scorer.score_turn(&turn.item, &answer)
            });
            let mut own: Vec<TurnScore> = failed.collect();
            own.push(score.clone());
            tries.push(own);
        }
        Some(RetrySummary::new(limit, &tries))
    }
}

/// A rejected try as a prediction of its turn.
fn failed_prediction(prediction: &Prediction, failed: &FailedTry) -> Prediction {
    let completion = Completion {
        text: failed.prediction.clone(),
        finish_reason: failed.finish_reason.clone(),
        n_tokens: failed.n_tokens,
        tool_calls: failed.tool_calls.clone(),
        ..Completion::default()
    };
    Prediction::new(prediction.id.clone(), completion)
}
