//! Counts and measures rows of messages, or of prompts with completions.
//!
//! Lengths are of the raw contents, before a chat template adds its markers.

use tooltune_rows::statistics::{Count, FileStatistics, Measures, TokenCount};
use tooltune_rows::text::Row;
use tooltune_template::{Message, Role};

/// Measures the conversations of rows.
pub fn conversation_statistics(rows: &[Row], count_tokens: TokenCount<'_>) -> FileStatistics {
    let mut measures = Measures::default();
    let mut n_by_role = [0; 5];
    let (mut n_calls, mut n_with_tools) = (0, 0);
    const ROLES: [Role; 5] = [
        Role::System,
        Role::Developer,
        Role::User,
        Role::Assistant,
        Role::Tool,
    ];
    for row in rows {
        let conversation = &row.conversation;
        let messages = &conversation.messages;
        for (n, role) in n_by_role.iter_mut().zip(ROLES) {
            *n += messages
                .iter()
                .filter(|message| message.role == role)
                .count();
        }
        let calls: usize = messages
            .iter()
            .map(|message| message.tool_calls.len())
            .sum();
        let n_tools = conversation.tools.as_ref().map_or(0, Vec::len);
        n_calls += calls;
        n_with_tools += usize::from(n_tools > 0);
        measures.add("messages", messages.len());
        measures.add("tools", n_tools);
        measures.add("calls", calls);
        let (prompt, completion) = messages.split_at(conversation.completion_start);
        let names = ["prompt_characters", "prompt_tokens"];
        measures.add_text(names, &contents(prompt), count_tokens);
        let names = ["completion_characters", "completion_tokens"];
        measures.add_text(names, &contents(completion), count_tokens);
    }
    let mut counts = vec![Count::new("rows", rows.len())];
    let by_role = n_by_role.into_iter().zip(ROLES);
    // Few rows have developer messages.
    let by_role = by_role.filter(|(n, role)| *n > 0 || *role != Role::Developer);
    counts.extend(by_role.map(|(n, role)| Count::new(format!("{} messages", role.as_str()), n)));
    counts.push(Count::new("calls", n_calls));
    counts.push(Count::new("rows with tools", n_with_tools));
    FileStatistics {
        counts,
        groups: Vec::new(),
        measures: measures.statistics(),
    }
}

fn contents(messages: &[Message]) -> String {
    let contents = messages
        .iter()
        .filter_map(|message| message.content.as_deref());
    contents.collect::<Vec<_>>().concat()
}

#[cfg(test)]
mod tests {
    use tooltune_rows::text::{DataFormat, read_rows};

    use super::*;

    #[test]
    fn messages_are_counted_by_role_and_lengths_by_prompt_and_completion() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("rows.jsonl");
        let rows = r#"{"messages": [{"role": "system", "content": "ab"}, {"role": "user", "content": "ßß"}, {"role": "assistant", "content": "ja"}]}
{"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {}}}]}, {"role": "tool", "content": "1"}, {"role": "assistant", "content": "eins"}], "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]}
"#;
        std::fs::write(&path, rows).expect("written");
        let rows = read_rows(&path, DataFormat::Messages).expect("opened");
        let rows: Vec<Row> = rows.collect::<Result<_, _>>().expect("rows");
        let statistics = conversation_statistics(&rows, Some(&str::len));
        let counts: Vec<usize> = statistics.counts.iter().map(|count| count.n).collect();
        assert_eq!(counts, [2, 1, 2, 3, 1, 1, 1]);
        let max = |name: &str| {
            let measure = statistics
                .measures
                .iter()
                .find(|measure_found| measure_found.name == name);
            measure.map(|measure| measure.max)
        };
        assert_eq!(max("messages"), Some(4.0));
        assert_eq!(max("prompt_characters"), Some(4.0));
        assert_eq!(max("prompt_tokens"), Some(6.0));
        assert_eq!(max("completion_characters"), Some(4.0));
        assert_eq!(max("tools"), Some(1.0));
    }
}
