//! An MCP client of one server: the handshake, its tools, and calls.

use std::collections::{BTreeSet, HashSet};
use std::ffi::OsString;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::budgets::{MCP_MESSAGE_BYTES, MCP_RESULT_BYTES, MCP_TOOLS, MCP_VALUES};
use serde_json::{Map, Value, json};
use tooltune_apis::{ImportedApis, import_mcp_tools};
use tooltune_json as json;
use tooltune_json::Style;

use super::error::McpError;
use super::message::{self, Message};
use super::process::{Line, ServerProcess};
use super::secret_arguments::secret_values;
use crate::http::{Redactor, excerpt};

/// The supported protocol revisions, newest first.
const REVISIONS: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

/// The request of a call, whose replies have a separate limit.
const CALL: &str = "tools/call";

/// How often a wait checks whether the work was stopped.
const TICK: Duration = Duration::from_millis(50);

/// Variables passed to every server if set; none of them is secret.
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

/// Looks up an environment variable by name; `None` if it is not set.
pub(super) type Environment<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// The command and time limits of a server.
#[derive(Debug, Clone, PartialEq)]
pub struct McpOptions {
    /// The program and its arguments. Values of arguments that are named like a secret, such as
    /// `--api-key VALUE`, are removed from the server's output.
    pub command: Vec<String>,
    /// Additional environment variables to pass on from this process, such as keys. A few variables
    /// that are not secret, such as `PATH` and `HOME`, are always passed on; no others are.
    pub environment: Vec<String>,
    /// Time until the server has started and listed its tools: some commands install it first.
    pub start_timeout: Duration,
    /// Timeout of a call.
    pub timeout: Duration,
    /// Tools that may be called although the server does not declare them read-only; `*` means
    /// every tool.
    pub allow_tools: Vec<String>,
}

impl McpOptions {
    /// The default options for this command.
    pub fn new(command: Vec<String>) -> Self {
        Self {
            command,
            environment: Vec::new(),
            start_timeout: Duration::from_secs(60),
            timeout: Duration::from_secs(20),
            allow_tools: Vec::new(),
        }
    }
}

/// A running server after its handshake.
#[derive(Debug)]
pub struct McpClient {
    server: ServerProcess,
    next_id: u64,
    /// Deadline for the start and the list of tools.
    start_deadline: Instant,
    options: McpOptions,
    redactor: Redactor,
    stop: Arc<AtomicBool>,
}

/// The tools of a server.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct McpTools {
    /// The documents of the tools, and the information that documents cannot represent.
    pub apis: ImportedApis,
    /// The tools that the server declares read-only (`readOnlyHint`).
    pub read_only: BTreeSet<String>,
}

/// A reply, and the size of its message.
struct Answer {
    result: Value,
    n_bytes: usize,
    n_values: usize,
}

/// The time limit of a request.
#[derive(Debug, Clone, Copy)]
struct Wait {
    deadline: Instant,
    within: Duration,
}

impl McpClient {
    /// Starts a server and completes the handshake. The server ends when this value is dropped. Waits
    /// end at once when `stop` is set.
    ///
    /// # Errors
    ///
    /// - The program does not start, ends, does not reply in time, or violates the protocol.
    /// - It uses an unsupported revision, or offers no tools.
    /// - An environment variable is not set or not UTF-8.
    pub fn start(options: &McpOptions, stop: Arc<AtomicBool>) -> Result<Self, McpError> {
        Self::with_environment(options, stop, &|name| std::env::var_os(name))
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
            let value = value.into_string().map_err(|_| McpError::VariableNotUtf8 {
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
        let mut secrets: Vec<&str> = secrets.iter().map(String::as_str).collect();
        secrets.extend(secret_values(arguments));
        let mut client = Self {
            server,
            next_id: 0,
            start_deadline,
            options: options.clone(),
            redactor: Redactor::new(&secrets),
            stop,
        };
        client.handshake()?;
        Ok(client)
    }

    fn handshake(&mut self) -> Result<(), McpError> {
        let client_info = json!({
            "protocolVersion": REVISIONS[0],
            "capabilities": {},
            "clientInfo": {"name": "tooltune", "version": env!("CARGO_PKG_VERSION")},
        });
        let server_info = self
            .request("initialize", &client_info, self.start_wait())?
            .result;
        let revision = server_info.get("protocolVersion").and_then(Value::as_str);
        let revision = revision.ok_or_else(|| McpError::BadMessage {
            reason: "returns no protocolVersion in its reply to initialize".to_owned(),
        })?;
        if !REVISIONS.contains(&revision) {
            return Err(McpError::UnsupportedRevision {
                theirs: excerpt(revision),
                ours: REVISIONS.join(", "),
            });
        }
        if server_info.pointer("/capabilities/tools").is_none() {
            return Err(McpError::BadMessage {
                reason: "offers no tools".to_owned(),
            });
        }
        self.send(&message::notification(
            "notifications/initialized",
            &json!({}),
        ))
    }

    /// The tools of the server, from all pages.
    ///
    /// # Errors
    ///
    /// - The server does not list them in time and in the protocol's format.
    /// - There are more than [`MCP_TOOLS`], an endless list of pages, or pages that together exceed the
    ///   limit of one message.
    pub fn tools(&mut self) -> Result<McpTools, McpError> {
        let mut tools: Vec<Value> = Vec::new();
        let mut params = json!({});
        let mut cursors = HashSet::new();
        let (mut n_bytes, mut n_values) = (0_usize, 0_usize);
        loop {
            let page = match self.request("tools/list", &params, self.start_wait()) {
                // Some servers end their list with an empty cursor, and refuse a request that
                // contains it.
                Err(McpError::Refused { .. }) if params["cursor"] == "" => break,
                page => page?,
            };
            n_bytes = n_bytes.saturating_add(page.n_bytes);
            n_values = n_values.saturating_add(page.n_values);
            if n_bytes > MCP_MESSAGE_BYTES || n_values > MCP_VALUES {
                return Err(McpError::BadMessage {
                    reason: format!(
                        "lists tools on pages that together exceed {MCP_MESSAGE_BYTES} bytes or \
                         {MCP_VALUES} values (MCP_MESSAGE_BYTES, MCP_VALUES in docs/limits.md)"
                    ),
                });
            }
            let Some(Value::Array(tool_values)) = page.result.get("tools") else {
                return Err(McpError::BadMessage {
                    reason: "returns no list of tools in its reply to tools/list".to_owned(),
                });
            };
            // Other servers return the first page again for this cursor.
            let is_repeated = || tool_values.iter().all(|tool| tools.contains(tool));
            if params["cursor"] == "" && is_repeated() {
                break;
            }
            tools.extend(tool_values.iter().cloned());
            let cursor = match page.result.get("nextCursor") {
                None | Some(Value::Null) => break,
                Some(cursor) => cursor,
            };
            if !cursors.insert(cursor.to_string()) || cursors.len().max(tools.len()) > MCP_TOOLS {
                return Err(McpError::BadMessage {
                    reason: format!(
                        "lists tools without end, or more than {MCP_TOOLS} (MCP_TOOLS in \
                         docs/limits.md)"
                    ),
                });
            }
            params = json!({"cursor": cursor});
        }
        let reads = |tool: &&Value| tool.pointer("/annotations/readOnlyHint") == Some(&json!(true));
        let read_only = tools.iter().filter(reads).filter_map(|tool| {
            let name = tool.get("name")?.as_str()?;
            Some(name.trim().to_owned())
        });
        Ok(McpTools {
            read_only: read_only.collect(),
            apis: import_mcp_tools(&Value::Array(tools))?,
        })
    }

    /// Calls a tool and returns `content`, `structuredContent` and `isError`.
    ///
    /// # Errors
    ///
    /// The server refuses the call, ends, or does not reply in time, or its reply exceeds
    /// [`MCP_RESULT_BYTES`].
    pub fn call(&mut self, name: &str, arguments: &Map<String, Value>) -> Result<Value, McpError> {
        let wait = Wait {
            deadline: Instant::now() + self.options.timeout,
            within: self.options.timeout,
        };
        let params = json!({"name": name, "arguments": arguments});
        Ok(self.request(CALL, &params, wait)?.result)
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
    ) -> Result<Answer, McpError> {
        let id = self.next_id;
        self.next_id += 1;
        self.send(&message::request(id, method, params))?;
        let result = self.wait_for_answer(id, method, wait);
        if matches!(result, Err(McpError::Timeout { .. } | McpError::Stopped)) {
            let params = json!({"requestId": id, "reason": "no answer in time"});
            self.send(&message::notification("notifications/cancelled", &params))?;
        }
        result
    }

    /// The reply to a request. Requests that arrive meanwhile are answered, other messages are
    /// ignored.
    ///
    /// Secrets of the server are removed from the reply here, where it enters the program.
    fn wait_for_answer(
        &mut self,
        id: u64,
        method: &'static str,
        wait: Wait,
    ) -> Result<Answer, McpError> {
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Err(McpError::Stopped);
            }
            let remaining_time = wait.deadline.saturating_duration_since(Instant::now());
            if remaining_time.is_zero() {
                return Err(McpError::Timeout {
                    method,
                    within: wait.within,
                    stderr: self.server.stderr_excerpt(&self.redactor),
                });
            }
            let text = match self.server.line(remaining_time.min(TICK)) {
                None => continue,
                Some(Line::End) => return Err(self.server.end_error(&self.redactor)),
                Some(Line::TooLong) if method == CALL => return Err(too_large(method)),
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
            // A reply is parsed only if it is within the limit.
            if method == CALL && text.len() > MCP_RESULT_BYTES {
                return Err(too_large(method));
            }
            let n_values = json::n_values(&text);
            if n_values > MCP_VALUES {
                return Err(McpError::BadMessage {
                    reason: format!(
                        "sent a message of more than {MCP_VALUES} values (MCP_VALUES in \
                         docs/limits.md)"
                    ),
                });
            }
            match self.read(&text)? {
                Message::Answer { id: of, result } if of == id => {
                    let result = result.map_err(|(code, message)| McpError::Refused {
                        method,
                        code,
                        message: excerpt(&self.redactor.redact(message)),
                    })?;
                    return Ok(Answer {
                        result: self.redactor.redact_value(result),
                        n_bytes: text.len(),
                        n_values,
                    });
                }
                Message::Request { id, method } => {
                    self.send(&message::answer_request(&id, &method))?
                }
                // A late reply, or a notification.
                Message::Answer { .. } | Message::Other => {}
            }
        }
    }

    fn read(&self, line: &[u8]) -> Result<Message, McpError> {
        let text = std::str::from_utf8(line).ok();
        let value = text.map(json::parse);
        let message = value
            .as_ref()
            .and_then(|value| message::read(value.as_ref().ok()?));
        message.ok_or_else(|| {
            // A log line is obviously not JSON, so the message quotes no parser error for it.
            let error = value.and_then(Result::err);
            let error = error.filter(|_| line.trim_ascii_start().starts_with(b"{"));
            let line = String::from_utf8_lossy(line).into_owned();
            let line = excerpt(&self.redactor.redact(line));
            let reason = match error {
                Some(error) => format!("sent a message that cannot be read ({error}): {line}"),
                None => format!(
                    "wrote to its standard output something that is not a protocol message: {line}"
                ),
            };
            McpError::BadMessage { reason }
        })
    }

    fn send(&self, message: &Value) -> Result<(), McpError> {
        self.server
            .send(json::dumps(message, Style::Compact).into_bytes())
    }

    /// Secrets that must not occur in any result.
    pub(super) fn redactor(&self) -> &Redactor {
        &self.redactor
    }
}

fn too_large(method: &'static str) -> McpError {
    McpError::TooLarge {
        method,
        limit: MCP_RESULT_BYTES,
        name: "MCP_RESULT_BYTES",
    }
}
