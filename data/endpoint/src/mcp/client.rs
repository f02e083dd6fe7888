//! A conversation with one server: the handshake, its tools, and calls.

use std::collections::HashSet;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use tooltune_rows::budgets::{MCP_MESSAGE_BYTES, MCP_TOOLS};
use tooltune_rows::json::{self, Style};
use tooltune_rows::tools::{ImportedApis, import_mcp_tools};

use super::error::McpError;
use super::message::{self, Message};
use super::process::{Line, ServerProcess};
use crate::http::{Blots, Environment, excerpt, process_environment};

/// The revisions of the protocol that are spoken, the newest first.
const REVISIONS: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

/// How often a wait looks at whether the work was stopped.
const TICK: Duration = Duration::from_millis(50);

/// Variables that every server has, where they are set: none of them is a secret.
const PASSED_ON: [&str; 11] = [
    "HOME",
    "LANG",
    "LC_ALL",
    "LOGNAME",
    "PATH",
    "SHELL",
    "TERM",
    "TMPDIR",
    "TZ",
    "USER",
    "NODE_PATH",
];

/// What starts a server, and the time that it has.
#[derive(Debug, Clone, PartialEq)]
pub struct McpOptions {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Further environment variables that it has from this process, such as those of its keys. A few
    /// that are no secrets, such as `PATH` and `HOME`, it has anyway, and no others.
    pub environment: Vec<String>,
    /// Time until it is ready and has listed its tools: some commands install the server first.
    pub start_timeout: Duration,
    /// Time for a call.
    pub timeout: Duration,
}

impl McpOptions {
    /// The options of a configuration that says nothing else.
    pub fn new(command: Vec<String>) -> Self {
        Self {
            command,
            environment: Vec::new(),
            start_timeout: Duration::from_secs(60),
            timeout: Duration::from_secs(20),
        }
    }
}

/// A server that runs and has been greeted.
#[derive(Debug)]
pub struct McpClient {
    server: ServerProcess,
    next_id: u64,
    /// When it must be ready with its tools.
    start_deadline: Instant,
    options: McpOptions,
    blots: Blots,
    stop: Arc<AtomicBool>,
}

/// How long a request may take.
#[derive(Debug, Clone, Copy)]
struct Wait {
    deadline: Instant,
    within: Duration,
}

impl McpClient {
    /// Starts a server and greets it; it ends when this is dropped. Waits end at once when `stop` is
    /// set.
    ///
    /// # Errors
    ///
    /// - the program does not start, ends, says nothing in time, or what is not of the protocol
    /// - it speaks another revision, or offers no tools
    /// - a variable of its environment is not set
    pub fn start(options: &McpOptions, stop: Arc<AtomicBool>) -> Result<Self, McpError> {
        Self::with_environment(options, stop, &process_environment)
    }

    pub(super) fn with_environment(
        options: &McpOptions,
        stop: Arc<AtomicBool>,
        environment: Environment<'_>,
    ) -> Result<Self, McpError> {
        let start_deadline = Instant::now() + options.start_timeout;
        let (program, arguments) = options.command.split_first().ok_or(McpError::NoCommand)?;
        let mut command = Command::new(program);
        command.args(arguments).env_clear();
        for name in PASSED_ON {
            command.envs(environment(name).map(|value| (name, value)));
        }
        let mut secrets = Vec::new();
        for variable in &options.environment {
            let value = environment(variable).filter(|value| !value.is_empty());
            let value = value.ok_or_else(|| McpError::MissingVariable {
                variable: variable.clone(),
            })?;
            command.env(variable, &value);
            secrets.push(value);
        }
        let server = ServerProcess::start(command, MCP_MESSAGE_BYTES);
        let server = server.map_err(|error| McpError::NotStarted {
            program: program.clone(),
            reason: error.to_string(),
        })?;
        let secrets: Vec<&str> = secrets.iter().map(String::as_str).collect();
        let mut client = Self {
            server,
            next_id: 0,
            start_deadline,
            options: options.clone(),
            blots: Blots::new(&secrets),
            stop,
        };
        client.greet()?;
        Ok(client)
    }

    fn greet(&mut self) -> Result<(), McpError> {
        let ours = json!({
            "protocolVersion": REVISIONS[0],
            "capabilities": {},
            "clientInfo": {"name": "tooltune", "version": env!("CARGO_PKG_VERSION")},
        });
        let theirs = self.request("initialize", &ours, self.start_wait())?;
        let revision = theirs.get("protocolVersion").and_then(Value::as_str);
        let revision = revision.ok_or_else(|| McpError::BadMessage {
            reason: "answers initialize without a protocolVersion".to_owned(),
        })?;
        if !REVISIONS.contains(&revision) {
            return Err(McpError::OtherRevision {
                theirs: excerpt(revision),
                ours: REVISIONS.join(", "),
            });
        }
        if theirs.pointer("/capabilities/tools").is_none() {
            return Err(McpError::BadMessage {
                reason: "offers no tools".to_owned(),
            });
        }
        self.send(&message::notification(
            "notifications/initialized",
            &json!({}),
        ));
        Ok(())
    }

    /// The tools of the server, of all pages.
    ///
    /// # Errors
    ///
    /// - the server does not list them, in time and as the protocol says
    /// - there are more than [`MCP_TOOLS`], or pages without end
    pub fn tools(&mut self) -> Result<ImportedApis, McpError> {
        let mut tools = Vec::new();
        let mut params = json!({});
        let mut seen = HashSet::new();
        loop {
            let page = self.request("tools/list", &params, self.start_wait())?;
            let Some(Value::Array(listed)) = page.get("tools") else {
                return Err(McpError::BadMessage {
                    reason: "answers tools/list without a list of tools".to_owned(),
                });
            };
            tools.extend(listed.iter().cloned());
            let cursor = match page.get("nextCursor") {
                None | Some(Value::Null) => break,
                Some(cursor) => cursor,
            };
            if !seen.insert(cursor.to_string()) || seen.len().max(tools.len()) > MCP_TOOLS {
                return Err(McpError::BadMessage {
                    reason: format!(
                        "lists tools without end, or more than {MCP_TOOLS} of them (MCP_TOOLS in \
                         docs/limits.md)"
                    ),
                });
            }
            params = json!({"cursor": cursor});
        }
        Ok(import_mcp_tools(&Value::Array(tools))?)
    }

    /// Calls a tool; what it returns is `content`, `structuredContent` and `isError`.
    ///
    /// # Errors
    ///
    /// - the server refuses the call, ends, or gives no answer in time
    pub fn call(&mut self, name: &str, arguments: &Map<String, Value>) -> Result<Value, McpError> {
        let wait = Wait {
            deadline: Instant::now() + self.options.timeout,
            within: self.options.timeout,
        };
        let params = json!({"name": name, "arguments": arguments});
        self.request("tools/call", &params, wait)
    }

    /// Whether the server has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.server.has_ended()
    }

    fn start_wait(&self) -> Wait {
        Wait {
            deadline: self.start_deadline,
            within: self.options.start_timeout,
        }
    }

    fn request(
        &mut self,
        method: &'static str,
        params: &Value,
        wait: Wait,
    ) -> Result<Value, McpError> {
        let id = self.next_id;
        self.next_id += 1;
        self.send(&message::request(id, method, params));
        let result = self.answer(id, method, wait);
        if matches!(result, Err(McpError::Timeout { .. } | McpError::Stopped)) {
            let params = json!({"requestId": id, "reason": "no answer in time"});
            self.send(&message::notification("notifications/cancelled", &params));
        }
        result
    }

    /// The answer to a request; what else comes meanwhile is answered or passed over.
    fn answer(&mut self, id: u64, method: &'static str, wait: Wait) -> Result<Value, McpError> {
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Err(McpError::Stopped);
            }
            let left = wait.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(McpError::Timeout {
                    method,
                    within: wait.within,
                    said: self.blots.blot(self.server.said()),
                });
            }
            let text = match self.server.line(left.min(TICK)) {
                None => continue,
                Some(Line::End) => return Err(self.ended()),
                Some(Line::TooLong) => {
                    return Err(McpError::BadMessage {
                        reason: format!(
                            "sent a message of more than {MCP_MESSAGE_BYTES} bytes \
                             (MCP_MESSAGE_BYTES in docs/limits.md)"
                        ),
                    });
                }
                Some(Line::Text(text)) => text,
            };
            if text.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            match self.read(&text)? {
                Message::Answer { id: of, result } if of == id => {
                    return result.map_err(|(code, message)| McpError::Refused {
                        method,
                        code,
                        message: excerpt(&self.blots.blot(message)),
                    });
                }
                Message::Request { id, method } => self.send(&message::answer(&id, &method)),
                // An answer that came too late, or a notification.
                Message::Answer { .. } | Message::Other => {}
            }
        }
    }

    fn read(&self, line: &[u8]) -> Result<Message, McpError> {
        let text = std::str::from_utf8(line).ok();
        let value = text.and_then(|text| json::parse(text).ok());
        let message = value.as_ref().and_then(message::read);
        message.ok_or_else(|| {
            let line = String::from_utf8_lossy(line).into_owned();
            McpError::BadMessage {
                reason: format!(
                    "wrote to its standard output what is no message of the protocol: {}",
                    excerpt(&self.blots.blot(line))
                ),
            }
        })
    }

    fn ended(&mut self) -> McpError {
        match self.server.ended() {
            McpError::Ended { status, said } => McpError::Ended {
                status,
                said: self.blots.blot(said),
            },
            other => other,
        }
    }

    fn send(&self, message: &Value) {
        self.server
            .send(json::dumps(message, Style::Compact).into_bytes());
    }
}
