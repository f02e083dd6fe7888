//! GOAT's queries with their calls and answers, as shown to its judge.

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tooltune_agents::{AttemptedCall, Outcome};
use tooltune_template::Message;

use super::judge::{judge_messages, parse_judge};
use crate::llm_judge::JudgedItem;

/// The part of a query's result that the judge sees.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JudgeSample {
    /// Query id, for messages and files.
    pub id: String,
    /// The query.
    pub query: String,
    /// The calls with their results, including failed ones, in execution order.
    pub executions: Vec<Value>,
    /// The final answer.
    pub answer: String,
}

impl JudgeSample {
    /// The sample for the outcome of an agent loop.
    ///
    /// A call is shown as `{"name", "arguments", "output"}`. A failed call has `"error"` instead of
    /// the output, and an unparsable call has only the raw `"text"`.
    pub fn from_outcome(
        id: impl Into<String>,
        query: impl Into<String>,
        outcome: &Outcome,
    ) -> Self {
        Self {
            id: id.into(),
            query: query.into(),
            executions: outcome.calls.iter().map(execution).collect(),
            answer: outcome.response.clone(),
        }
    }
}

fn execution(call: &AttemptedCall) -> Value {
    let mut execution = json!({"name": call.name});
    if let Some(arguments) = &call.arguments {
        execution["arguments"] = Value::Object(arguments.clone());
    }
    if let Some(raw) = &call.raw {
        execution["text"] = Value::from(raw.as_str());
    }
    match &call.exception {
        None => execution["output"] = call.output.clone(),
        Some(message) => execution["error"] = Value::from(message.as_str()),
    }
    execution
}

/// As in GOAT, section 4.2 and Figure 21.
impl JudgedItem for JudgeSample {
    fn id(&self) -> &str {
        &self.id
    }

    fn messages(&self) -> Vec<Message> {
        judge_messages(&self.query, &self.executions, &self.answer)
    }

    fn parse_verdict(&self, reply: &str) -> Option<bool> {
        parse_judge(reply)
    }
}
