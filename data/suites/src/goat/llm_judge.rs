//! GOAT's queries with their calls and answers, as its judge is shown them.

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tooltune_agents::{AttemptedCall, Outcome};
use tooltune_rows::text::Message;

use super::judge::{judge_messages, parse_judge};
use crate::llm_judge::Judged;

/// What the judge is shown of one query.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JudgeSample {
    /// The query's id, for messages and files.
    pub id: String,
    /// The query.
    pub query: String,
    /// The calls with what they returned, failed ones too, in the order of their execution.
    pub executions: Vec<Value>,
    /// The final answer.
    pub answer: String,
}

impl JudgeSample {
    /// The sample of a loop's end.
    ///
    /// A call is shown as `{"name", "arguments", "output"}`, a failed one with `"error"` instead
    /// of the output, one that could not be read with what was written as `"text"`.
    pub fn of_outcome(id: impl Into<String>, query: impl Into<String>, outcome: &Outcome) -> Self {
        Self {
            id: id.into(),
            query: query.into(),
            executions: outcome.calls.iter().map(execution).collect(),
            answer: outcome.response.clone(),
        }
    }
}

fn execution(call: &AttemptedCall) -> Value {
    let mut shown = json!({"name": call.name});
    if let Some(arguments) = &call.arguments {
        shown["arguments"] = Value::Object(arguments.clone());
    }
    if let Some(raw) = &call.raw {
        shown["text"] = Value::from(raw.as_str());
    }
    match &call.exception {
        None => shown["output"] = call.output.clone(),
        Some(message) => shown["error"] = Value::from(message.as_str()),
    }
    shown
}

/// As in GOAT, section 4.2 and Figure 21.
impl Judged for JudgeSample {
    fn id(&self) -> &str {
        &self.id
    }

    fn messages(&self) -> Vec<Message> {
        judge_messages(&self.query, &self.executions, &self.answer)
    }

    fn verdict(&self, reply: &str) -> Option<bool> {
        parse_judge(reply)
    }
}
