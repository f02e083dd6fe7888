//! What agents and judges reach outside the program: tables such as `[goat.executor]` and
//! `[goat.judge]`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use tooltune_apis::ApiBankSet;
use tooltune_checkpoints::adapter::Patterns;

use super::settings::settings;
use crate::enums::ExecutorKind;
use crate::rules::Rules;

settings! {
    /// What answers the calls of agents.
    pub struct ExecutorConfig {
        /// Required in this table. "synthetic", "replay" (recorded calls), "canned" (one response
        /// per endpoint), "http" (a server), "mcp" (an MCP server that is started),
        /// "stabletoolbench" (its cache, a compatible server, or both). Only `record` and the keys
        /// of the kind are allowed next to it.
        pub kind: ExecutorKind = ExecutorKind::Synthetic,
        /// JSON Lines file to which every answer is appended once, for "replay"; absent means no
        /// recording.
        pub record: Option<PathBuf>,
        /// For "replay": JSON Lines of `{"api_name", "input", "output", "exception"}`.
        #[schemars(extend("x-kind" = "path"))]
        pub recorded: PathBuf,
        /// For "replay": the value of the field `set` that selects rows.
        pub set: ApiBankSet = ApiBankSet::All,
        /// For "canned": JSON Lines of `{"api", "response"}`.
        #[schemars(extend("x-kind" = "path"))]
        pub responses: PathBuf,
        /// For "http": the OpenAPI 3 specification of `goat.documents`.
        #[schemars(extend("x-kind" = "path"))]
        pub specification: PathBuf,
        /// For "http": base address of the paths in the specification.
        pub base_url: String,
        /// For "http": headers of every request, each with the environment variable of its value:
        /// `{ Authorization = "TMDB_TOKEN" }`.
        #[schemars(with = "BTreeMap<String, String>")]
        pub headers: Patterns<String>,
        /// For "http": allowed hosts, as `host` or `host:port`; by default the host of `base_url`.
        pub allowed_hosts: Vec<String>,
        /// For "http": methods to send besides GET, HEAD and OPTIONS, such as `["POST"]`. Models
        /// invent arguments, so calls with other methods could change data; they fail without being
        /// sent.
        pub allow_methods: Vec<String>,
        /// For "http" and "stabletoolbench": connection timeout in seconds.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub connect_timeout_secs: f64 = 5.0,
        /// For "http", "mcp" and "stabletoolbench": timeout of a whole call in seconds, including
        /// redirects.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub timeout_secs: f64 = 20.0,
        /// For "mcp": program and arguments of the server, such as `["npx", "-y",
        /// "@modelcontextprotocol/server-everything"]`.
        pub command: Vec<String>,
        /// For "mcp": tools that can be called although the server does not annotate them as
        /// read-only (`annotations.readOnlyHint`), such as `["create_order"]`; `["*"]` is every
        /// tool. Calls of other tools fail without being sent.
        pub allow_tools: Vec<String>,
        /// For "mcp": environment variables to pass to the server in addition to `PATH`, `HOME` and
        /// similar ones.
        pub environment: Vec<String>,
        /// For "mcp": seconds until the server must have listed its tools; some commands install it
        /// first.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub start_timeout_secs: f64 = 60.0,
        /// For "stabletoolbench": address of its virtual server, such as
        /// `http://localhost:8080/virtual`; absent means only the cache.
        pub service_url: Option<String>,
        /// For "stabletoolbench": environment variable with the server's key.
        pub toolbench_key_env: Option<String>,
        /// For "stabletoolbench": folder `tool_response_cache`, which is read first; absent means
        /// only the server.
        #[schemars(extend("x-kind" = "path"))]
        pub cache: Option<PathBuf>,
    }
}

settings! {
    /// The model behind an endpoint that says which queries are solved.
    pub struct JudgeConfig {
        /// Required. Address below which `/chat/completions` is, such as
        /// `https://api.openai.com/v1`.
        pub base_url: String,
        /// Required. The server's name of the model.
        pub model: String,
        /// Environment variable with the key; absent for a server without one.
        pub api_key_env: Option<String>,
        /// Maximum requests until a reply contains a verdict; after that the query counts as
        /// unsolved.
        #[schemars(range(min = 1, max = 20))]
        pub attempts: usize = 3,
        /// Queries judged at the same time.
        #[schemars(range(min = 1, max = 64))]
        pub concurrency: usize = 8,
        /// Maximum reply length.
        #[schemars(range(min = 1))]
        pub max_tokens: usize = 2048,
        /// Repetitions of a request after a fault of the server or the network.
        #[schemars(range(max = 20))]
        pub retries: usize = 4,
        /// Seconds for one attempt of a request.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub timeout_secs: f64 = 120.0,
        /// Seconds for a request with all attempts and waits.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub total_secs: f64 = 600.0,
        /// Whether evaluations within a training run also use the judge. If it fails, the run is
        /// saved and ends, and the same command continues with that evaluation.
        pub in_loop: bool = false,
    }
}

impl ExecutorKind {
    /// Keys of the kind, other than `kind`.
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

    /// Whether a table of this kind may have the key.
    pub(crate) fn takes(self, key: &str) -> bool {
        Self::EVERY.contains(&key) || self.keys().contains(&key)
    }

    /// Keys of all kinds.
    const EVERY: [&str; 2] = ["kind", "record"];
}

impl ExecutorConfig {
    /// Refuses keys of other kinds: without this check, a forgotten `kind` would silently send calls
    /// to the invented APIs.
    pub(crate) fn check(&self, table: &str, rules: &mut Rules<'_>) {
        let full_key = |key: &str| format!("{table}.{key}");
        if !rules.findings.is_read(&full_key("kind")) {
            if rules.is_typed(table) {
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
            let foreign = other.keys().iter().filter(|key| !kind.takes(key));
            for path in foreign.map(|key| full_key(key)) {
                if rules.is_typed(&path) {
                    let message =
                        format!("`{path}` is for kind = \"{other}\", and the kind is \"{kind}\"");
                    rules.report(&path, message, "delete this line, or write the other kind");
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
                rules.variable(&full_key("environment"), variable);
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
                rules.variable(&full_key("toolbench_key_env"), variable);
            }
        }
        if kind == ExecutorKind::Http {
            rules.url(&full_key("base_url"), &self.base_url);
            for (name, variable) in &self.headers.0 {
                rules.variable(&full_key(&format!("headers.{name}")), variable);
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
            "set the server's name of the model: model = \"gpt-4.1\"",
        );
        rules.url(&full_key("base_url"), &self.base_url);
        if let Some(variable) = &self.api_key_env {
            rules.variable(&full_key("api_key_env"), variable);
        }
    }
}
