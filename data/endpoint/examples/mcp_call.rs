//! Calls tools of an MCP server, for comparison with other clients.
//!
//! `mcp_call PROGRAM ARGUMENT...` starts the server, prints the names of its tools as a JSON array,
//! then reads lines `{"name", "arguments"}` and prints `{"output", "exception"}` for each.

use std::io::BufRead;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use tooltune_agents::executors::Executor;
use tooltune_endpoint::{McpExecutor, McpOptions};

#[allow(clippy::print_stdout, reason = "another program reads its output")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let command = std::env::args().skip(1).collect();
    let options = McpOptions {
        allow_tools: vec!["*".to_owned()],
        ..McpOptions::new(command)
    };
    let mut executor = McpExecutor::start(&options, Arc::default())?;
    let names: Vec<String> = executor
        .catalogue()
        .iter()
        .map(|api| api.call_name())
        .collect();
    println!("{}", json!(names));
    for line in std::io::stdin().lock().lines() {
        let call: Value = serde_json::from_str(&line?)?;
        let name = call["name"].as_str().ok_or("a call needs a name")?;
        let arguments: Map<String, Value> = serde_json::from_value(call["arguments"].clone())?;
        let result = executor.call(name, &arguments);
        println!(
            "{}",
            json!({"output": result.output, "exception": result.exception})
        );
    }
    Ok(())
}
