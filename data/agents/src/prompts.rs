//! Builds the prompts of all methods.
//!
//! A prompt is one user message: an instruction, the documents as one JSON line each, the query,
//! the calls so far, and the word after which the answer continues. There is no system message,
//! because some chat templates reject one. The wording is short and the same for every step,
//! because models with 135M parameters must follow it, and each of its tokens leaves one less for
//! documents and results.

use tooltune_apis::ApiDocument;
use tooltune_json as json;
use tooltune_json::Style;
use tooltune_template::{Conversation, Message, Role};

use super::call_text::render_call;

/// The text that the model should write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Task {
    /// The names of all APIs.
    Plan,
    /// The call of the next name in the plan.
    PlannedCall,
    /// A thought and a call, or the answer.
    Step,
    /// All sub-queries.
    SubQueries,
    /// The next sub-query, or the word `DONE` if there is none.
    NextSubQuery,
    /// The call that answers the last sub-query.
    SubQueryCall,
    /// The answer.
    Answer,
}

/// A past call, as shown in prompts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ShownCall {
    pub(super) call: String,
    pub(super) result: String,
}

/// The parts of a prompt.
#[derive(Debug, Clone, Copy)]
pub(super) struct Prompt<'a> {
    pub(super) task: Task,
    pub(super) query: &'a str,
    pub(super) documents: &'a [&'a ApiDocument],
    pub(super) plan: &'a [String],
    pub(super) sub_queries: &'a [String],
    pub(super) calls: &'a [ShownCall],
}

impl Task {
    fn instruction(self) -> &'static str {
        match self {
            Self::Plan => {
                "Plan which APIs to call to answer the query. Write a JSON array of API names in \
                 the order of the calls."
            }
            Self::PlannedCall => {
                "Write the next API call of the plan as a JSON object with name and arguments."
            }
            Self::Step => {
                "Answer the query with API calls, one at a time. Write \"Thought:\" and, on the \
                 next line, \"Action:\" with the next call as a JSON object with name and \
                 arguments; or, when the results are enough, \"Finish:\" with the answer."
            }
            Self::SubQueries => {
                "Split the query into sub-queries that one API call each can answer. Write a JSON \
                 array of texts in the order of the calls."
            }
            Self::NextSubQuery => {
                "Write the next sub-query that one API call can answer, or DONE when the results \
                 answer the query."
            }
            Self::SubQueryCall => {
                "Write the API call that answers the last sub-query as a JSON object with name and \
                 arguments."
            }
            Self::Answer => "Answer the query from the results of the API calls.",
        }
    }
}

impl Prompt<'_> {
    /// The conversation up to the model's answer.
    pub(super) fn conversation(&self) -> Conversation {
        Conversation::new(vec![Message::new(Role::User, self.prompt_text())])
    }

    fn prompt_text(&self) -> String {
        let mut text = self.task.instruction().to_owned();
        if self.shows_documents() {
            text.push_str("\n\nAPIs:");
            for document in self.documents {
                text.push('\n');
                text.push_str(&json::dumps(&document.prompt_value(), Style::Compact));
            }
        }
        text.push_str("\n\nQuery: ");
        text.push_str(self.query);
        if self.task == Task::PlannedCall {
            text.push_str("\nPlan: ");
            text.push_str(&list_texts(self.plan));
        }
        self.push_history(&mut text);
        text.push_str(&self.answer_cue());
        text
    }

    fn shows_documents(&self) -> bool {
        match self.task {
            Task::Plan | Task::PlannedCall | Task::Step | Task::SubQueryCall => true,
            Task::SubQueries | Task::NextSubQuery | Task::Answer => false,
        }
    }

    fn push_history(&self, text: &mut String) {
        // The prompt of the final answer shows only the calls, as in the methods without
        // sub-queries.
        let sub_queries = match self.task {
            Task::Answer => &[],
            _ => self.sub_queries,
        };
        for call_idx in 0..self.calls.len().max(sub_queries.len()) {
            let number = call_idx + 1;
            if let Some(sub_query) = sub_queries.get(call_idx) {
                text.push_str(&format!("\nSub-query {number}: {sub_query}"));
            }
            if let Some(shown_call) = self.calls.get(call_idx) {
                text.push_str(&format!(
                    "\nCall {number}: {}\nResult {number}: {}",
                    shown_call.call, shown_call.result
                ));
            }
        }
    }

    fn answer_cue(&self) -> String {
        let number = self.calls.len() + 1;
        match self.task {
            Task::Plan => "\nPlan:".to_owned(),
            Task::PlannedCall | Task::SubQueryCall => format!("\nCall {number}:"),
            Task::Step => format!("\nStep {number}:"),
            Task::SubQueries => "\nSub-queries:".to_owned(),
            Task::NextSubQuery => format!("\nSub-query {number}:"),
            Task::Answer => "\nAnswer:".to_owned(),
        }
    }
}

impl ShownCall {
    /// A parsed call.
    pub(super) fn from_call(
        name: &str,
        arguments: &serde_json::Map<String, serde_json::Value>,
        result: String,
    ) -> Self {
        Self {
            call: render_call(name, arguments).text,
            result,
        }
    }

    /// The model's text, if no call could be parsed.
    pub(super) fn from_text(text: &str, result: String) -> Self {
        const N_CHARACTERS: usize = 200;
        Self {
            call: one_line(text).chars().take(N_CHARACTERS).collect(),
            result,
        }
    }
}

/// A JSON array of texts.
pub(super) fn list_texts(texts: &[String]) -> String {
    json::dumps(&serde_json::Value::from(texts), Style::Python)
}

/// Replaces every run of whitespace by one space.
pub(super) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
