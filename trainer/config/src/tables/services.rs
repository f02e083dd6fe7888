//! External services of agents and judges: tables such as `[goat.executor]` and `[goat.judge]`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use tooltune_apis::ApiBankSet;
use tooltune_checkpoints::adapter::Patterns;

use super::settings::settings;
use crate::enums::ExecutorKind;
use crate::rules::Rules;

settings! {
    /// Executor of the agents' calls.
    pub struct ExecutorConfig {
        /// Required if this table exists: "synthetic", "replay" (recorded calls), "canned" (one
        /// response per endpoint), "http" (a server), "mcp" (starts an MCP server),
        /// "stabletoolbench" (its cache, a compatible server, or both). Only `record` and the keys
        /// of the selected kind are allowed.
        pub kind: ExecutorKind = ExecutorKind::Synthetic,
        /// JSON Lines file that records every call and its result once, as input for "replay". Off
        /// by default.
        pub record: Option<PathBuf>,
        /// For "replay": JSON Lines of `{"api_name", "input", "output", "exception"}`.
        #[schemars(extend("x-kind" = "path"))]
        pub recorded: PathBuf,
        /// For "replay": use only rows with this value in the field `set`.
        pub set: ApiBankSet = ApiBankSet::All,
        /// For "canned": JSON Lines of `{"api", "response"}`.
        #[schemars(extend("x-kind" = "path"))]
        pub responses: PathBuf,
        /// For "http": the OpenAPI 3 specification that `goat.documents` was imported from.
        #[schemars(extend("x-kind" = "path"))]
        pub specification: PathBuf,
        /// For "http": base URL of the paths in the specification.
        pub base_url: String,
        /// For "http": headers to send, each mapped to the environment variable that holds its
        /// value: `{ Authorization = "TMDB_TOKEN" }`.
        #[schemars(with = "BTreeMap<String, String>")]
        pub headers: Patterns<String>,
        /// For "http": allowed hosts, as `host` or `host:port`; by default the host of `base_url`.
        pub allowed_hosts: Vec<String>,
        /// For "http": methods to allow in addition to GET, HEAD and OPTIONS, such as `["POST"]`.
        /// Calls with other methods fail without being sent, because models make up arguments and
        /// the calls could change data.
        pub allow_methods: Vec<String>,
        /// For "http" and "stabletoolbench": connection timeout in seconds.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub connect_timeout_secs: f64 = 5.0,
        /// For "http", "mcp" and "stabletoolbench": timeout per call in seconds, including
        /// redirects.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub timeout_secs: f64 = 20.0,
        /// For "mcp": command that starts the server, with its arguments, such as `["npx", "-y",
        /// "@modelcontextprotocol/server-everything"]`.
        pub command: Vec<String>,
        /// For "mcp": tools to allow although the server does not mark them as read-only
        /// (`annotations.readOnlyHint`), such as `["create_order"]`; `["*"]` allows every tool.
        /// Calls to other tools fail without being sent.
        pub allow_tools: Vec<String>,
        /// For "mcp": names of environment variables to pass to the server, in addition to the
        /// basic ones such as `PATH` and `HOME`.
        pub environment: Vec<String>,
        /// For "mcp": timeout in seconds for starting the server and listing its tools. Commands
        /// such as `npx` may install the server first.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub start_timeout_secs: f64 = 60.0,
        /// For "stabletoolbench": URL of its virtual server, such as
        /// `http://localhost:8080/virtual`. By default only the cache is used.
        pub service_url: Option<String>,
        /// For "stabletoolbench": environment variable that holds the server's key.
        pub toolbench_key_env: Option<String>,
        /// For "stabletoolbench": the folder `tool_response_cache`, which is searched first. By
        /// default only the server is used.
        #[schemars(extend("x-kind" = "path"))]
        pub cache: Option<PathBuf>,
    }
}

settings! {
    /// An LLM judge behind an endpoint.
    pub struct JudgeConfig {
        /// Required. Base URL of the API, to which `/chat/completions` is appended, such as
        /// `https://api.openai.com/v1`.
        pub base_url: String,
        /// Required. Model name on the server.
        pub model: String,
        /// Environment variable that holds the API key, if the server needs one.
        pub api_key_env: Option<String>,
        /// Maximum number of requests until a reply contains a verdict. Without a verdict the query
        /// counts as unsolved.
        #[schemars(range(min = 1, max = 20))]
        pub attempts: usize = 3,
        /// Number of queries judged at the same time.
        #[schemars(range(min = 1, max = 64))]
        pub concurrency: usize = 8,
        /// Maximum number of tokens of a reply.
        #[schemars(range(min = 1))]
        pub max_tokens: usize = 2048,
        /// Number of retries after a server or network error.
        #[schemars(range(max = 20))]
        pub retries: usize = 4,
        /// Timeout of one attempt in seconds.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub timeout_secs: f64 = 120.0,
        /// Timeout of a request in seconds, including all retries and waits.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub total_secs: f64 = 600.0,
        /// Whether evaluations during training also use the judge. If the judge fails, the run is
        /// saved and ends; the same command continues with that evaluation.
        pub in_loop: bool = false,
    }
}

impl ExecutorKind {
    /// The keys that only this kind has.
    pub(crate) fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Synthetic => &[],
            Self::Replay => &["recorded", "set"],
            Self::Canned => &["responses"],
            Self::Http => &[
                "specification",
                "base_url",
                "headers",
                "allowed_hosts",
                "allow_methods",
                "connect_timeout_secs",
                "timeout_secs",
            ],
            Self::Mcp => &[
                "command",
                "allow_tools",
                "environment",
                "start_timeout_secs",
                "timeout_secs",
            ],
            Self::Stabletoolbench => &[
                "service_url",
                "toolbench_key_env",
                "cache",
                "connect_timeout_secs",
                "timeout_secs",
            ],
        }
    }

    /// Whether a table of this kind may contain the key.
    pub(crate) fn accepts(self, key: &str) -> bool {
        Self::COMMON.contains(&key) || self.keys().contains(&key)
    }

    /// Keys that every kind has.
    const COMMON: [&str; 2] = ["kind", "record"];
}

impl ExecutorConfig {
    /// Refuses keys of other kinds. Without this check, calls would silently go to the synthetic
    /// APIs if `kind` were missing.
    pub(crate) fn check(&self, table: &str, rules: &mut Rules<'_>) {
        let full_key = |key: &str| format!("{table}.{key}");
        if !rules.findings.has_source_value(&full_key("kind")) {
            if rules.is_in_source(table) {
                let help = "write kind = \"replay\", \"canned\", \"http\", \"mcp\", \"stabletoolbench\" or \"synthetic\"";
                rules.missing(&full_key("kind"), help);
            }
            return;
        }
        let kind = self.kind;
        let others = [
            ExecutorKind::Replay,
            ExecutorKind::Canned,
            ExecutorKind::Http,
            ExecutorKind::Mcp,
            ExecutorKind::Stabletoolbench,
        ];
        for other in others.into_iter().filter(|other| *other != kind) {
            let foreign = other.keys().iter().filter(|key| !kind.accepts(key));
            for path in foreign.map(|key| full_key(key)) {
                if rules.is_in_source(&path) {
                    let message =
                        format!("`{path}` is for kind = \"{other}\", but the kind is \"{kind}\"");
                    rules.report(&path, message, "delete this line, or change `kind`");
                }
            }
        }
        let needed: &[(&str, &str)] = match kind {
            ExecutorKind::Synthetic | ExecutorKind::Stabletoolbench => &[],
            ExecutorKind::Replay => &[(
                "recorded",
                "set the file of recorded calls: recorded = \"data/calls.jsonl\"",
            )],
            ExecutorKind::Canned => &[(
                "responses",
                "set the file of responses: responses = \"data/responses.jsonl\"",
            )],
            ExecutorKind::Http => &[
                (
                    "specification",
                    "set the OpenAPI 3 file: specification = \"data/openapi.json\"",
                ),
                (
                    "base_url",
                    "set the base URL of its paths: base_url = \"https://api.example.org/v1\"",
                ),
            ],
            ExecutorKind::Mcp => &[(
                "command",
                "set the command that starts the server: command = [\"npx\", \"-y\", \"name-of-the-server\"]",
            )],
        };
        for (key, help) in needed {
            rules.missing(&full_key(key), help);
        }
        if kind == ExecutorKind::Mcp {
            for variable in &self.environment {
                rules.refuse_secret_as_variable(&full_key("environment"), variable);
            }
        }
        if kind == ExecutorKind::Stabletoolbench {
            if self.cache.is_none() {
                let help = "set the server's URL: service_url = \"http://localhost:8080/virtual\"; or \
                            set the cache: cache = \"tool_response_cache\"";
                rules.missing(&full_key("service_url"), help);
            }
            if let Some(url) = &self.service_url {
                rules.url(&full_key("service_url"), url);
            }
            if let Some(variable) = &self.toolbench_key_env {
                rules.refuse_secret_as_variable(&full_key("toolbench_key_env"), variable);
            }
        }
        if kind == ExecutorKind::Http {
            rules.url(&full_key("base_url"), &self.base_url);
            for (name, variable) in &self.headers.0 {
                rules.refuse_secret_as_variable(&full_key(&format!("headers.{name}")), variable);
            }
        }
    }
}

impl JudgeConfig {
    /// Reports mistakes in the settings of a judge.
    pub(crate) fn check(&self, table: &str, rules: &mut Rules<'_>) {
        let full_key = |key: &str| format!("{table}.{key}");
        rules.missing(
            &full_key("base_url"),
            "set the server's URL: base_url = \"http://127.0.0.1:8000/v1\"",
        );
        rules.missing(
            &full_key("model"),
            "set the model name on the server: model = \"gpt-4.1\"",
        );
        rules.url(&full_key("base_url"), &self.base_url);
        if let Some(variable) = &self.api_key_env {
            rules.refuse_secret_as_variable(&full_key("api_key_env"), variable);
        }
    }
}
