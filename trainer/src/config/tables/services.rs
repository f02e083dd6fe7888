//! What agents and judges reach outside the program: tables such as `[goat.executor]` and
//! `[goat.judge]`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use tooltune_checkpoints::adapter::Patterns;
use tooltune_rows::tools::ApiBankSet;

use super::settings::settings;
use crate::config::enums::ExecutorKind;
use crate::config::rules::Rules;

settings! {
    /// What answers the calls of agents.
    pub struct ExecutorConfig {
        /// Required in this table. "synthetic", "replay" (recorded calls), "canned" (one response
        /// for each endpoint), "http" (a server), "mcp" (an MCP server that is started),
        /// "stabletoolbench" (its cache, a server of its form, or both); only `record` and the kind's
        /// own keys may stand beside it.
        pub kind: ExecutorKind = ExecutorKind::Synthetic,
        /// JSON Lines file that gets every answer of the executor, each call once, for "replay" to
        /// read; answers go behind those that it has. Absent, nothing is recorded.
        pub record: Option<PathBuf>,
        /// For "replay": JSON Lines of `{"api_name", "input", "output", "exception"}`.
        #[schemars(extend("x-kind" = "path"))]
        pub recorded: PathBuf,
        /// For "replay": which rows count by their field `set`.
        pub set: ApiBankSet = ApiBankSet::All,
        /// For "canned": JSON Lines of `{"api", "response"}`.
        #[schemars(extend("x-kind" = "path"))]
        pub responses: PathBuf,
        /// For "http": the OpenAPI 3 specification that `goat.documents` was imported from.
        #[schemars(extend("x-kind" = "path"))]
        pub specification: PathBuf,
        /// For "http": where the paths of the specification begin.
        pub base_url: String,
        /// For "http": headers of every request, each with the environment variable that holds its
        /// value: `{ Authorization = "TMDB_TOKEN" }`.
        #[schemars(with = "BTreeMap<String, String>")]
        pub headers: Patterns<String>,
        /// For "http": hosts that may be asked, as `host` or `host:port`; by default that of
        /// `base_url` alone.
        pub allowed_hosts: Vec<String>,
        /// For "http" and "stabletoolbench": seconds until a connection stands.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub connect_timeout_secs: f64 = 5.0,
        /// For "http", "mcp" and "stabletoolbench": seconds for a whole call, redirects included.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub timeout_secs: f64 = 20.0,
        /// For "mcp": the program of the server and its arguments, such as
        /// `["npx", "-y", "@modelcontextprotocol/server-everything"]`.
        pub command: Vec<String>,
        /// For "mcp": environment variables that the server has from this process beside `PATH`,
        /// `HOME` and the like, such as those of its keys.
        pub environment: Vec<String>,
        /// For "mcp": seconds until the server has listed its tools; some commands install it first.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub start_timeout_secs: f64 = 60.0,
        /// For "stabletoolbench": the address of its virtual server, such as
        /// `http://localhost:8080/virtual`; absent, the cache alone answers.
        pub service_url: Option<String>,
        /// For "stabletoolbench": the environment variable that holds the server's key.
        pub toolbench_key_env: Option<String>,
        /// For "stabletoolbench": the folder of its cache, `tool_response_cache`, which is asked
        /// first; absent, the server alone answers.
        #[schemars(extend("x-kind" = "path"))]
        pub cache: Option<PathBuf>,
    }
}

settings! {
    /// The model behind an endpoint that says which queries are solved.
    pub struct JudgeConfig {
        /// Required. Where `/chat/completions` is to be found, such as `https://api.openai.com/v1`.
        pub base_url: String,
        /// Required. The server's name of the model.
        pub model: String,
        /// The environment variable that holds the key; absent for a server that needs none.
        pub api_key_env: Option<String>,
        /// Times that a reply without a verdict is asked for; after the last the query counts as
        /// unsolved.
        #[schemars(range(min = 1, max = 20))]
        pub attempts: usize = 3,
        /// Queries that are judged at the same time.
        #[schemars(range(min = 1, max = 64))]
        pub concurrency: usize = 8,
        /// Longest reply.
        #[schemars(range(min = 1))]
        pub max_tokens: usize = 2048,
        /// Times that a request is repeated after a fault of the server or the network.
        #[schemars(range(max = 20))]
        pub retries: usize = 4,
        /// Seconds for one try of a request.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub timeout_secs: f64 = 120.0,
        /// Seconds for a request with all its tries and waits.
        #[schemars(extend("exclusiveMinimum" = 0))]
        pub total_secs: f64 = 600.0,
        /// Whether the evaluations of a training run ask the judge, too; if it then fails, the run
        /// is saved and ends, and the same command continues with that evaluation.
        pub in_loop: bool = false,
    }
}

impl ExecutorKind {
    /// Its keys in the table, besides `kind`.
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
                "connect_timeout_secs",
                "timeout_secs",
            ],
            Self::Mcp => &[
                "command",
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

    /// Whether a key may stand in a table of this kind.
    pub(crate) fn takes(self, key: &str) -> bool {
        Self::EVERY.contains(&key) || self.keys().contains(&key)
    }

    /// The keys of every kind.
    const EVERY: [&str; 2] = ["kind", "record"];
}

impl ExecutorConfig {
    /// Only the kind's own keys may stand in the table of an executor: a forgotten `kind` would
    /// otherwise leave calls to the invented APIs without a word.
    pub(crate) fn check(&self, table: &str, rules: &mut Rules<'_>) {
        let of = |key: &str| format!("{table}.{key}");
        if !rules.findings.is_read(&of("kind")) {
            if rules.is_typed(table) {
                let help = "write kind = \"replay\", \"canned\", \"http\", \"mcp\", \"stabletoolbench\" or \"synthetic\"";
                rules.missing(&of("kind"), help);
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
            for path in foreign.map(|key| of(key)) {
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
                "name the file of recorded calls: recorded = \"data/calls.jsonl\"",
            )],
            ExecutorKind::Canned => &[(
                "responses",
                "name the file of responses: responses = \"data/responses.jsonl\"",
            )],
            ExecutorKind::Http => &[
                (
                    "specification",
                    "name the OpenAPI 3 file: specification = \"data/openapi.json\"",
                ),
                (
                    "base_url",
                    "say where its paths begin: base_url = \"https://api.example.org/v1\"",
                ),
            ],
            ExecutorKind::Mcp => &[(
                "command",
                "name the server's program: command = [\"npx\", \"-y\", \"name-of-the-server\"]",
            )],
        };
        for (key, help) in needed {
            rules.missing(&of(key), help);
        }
        if kind == ExecutorKind::Mcp {
            for variable in &self.environment {
                rules.variable(&of("environment"), variable);
            }
        }
        if kind == ExecutorKind::Stabletoolbench {
            if self.cache.is_none() {
                let help = "say where the server is: service_url = \"http://localhost:8080/virtual\"; or \
                            name the cache: cache = \"tool_response_cache\"";
                rules.missing(&of("service_url"), help);
            }
            if let Some(url) = &self.service_url {
                rules.url(&of("service_url"), url);
            }
            if let Some(variable) = &self.toolbench_key_env {
                rules.variable(&of("toolbench_key_env"), variable);
            }
        }
        if kind == ExecutorKind::Http {
            rules.url(&of("base_url"), &self.base_url);
            for (name, variable) in &self.headers.0 {
                rules.variable(&of(&format!("headers.{name}")), variable);
            }
        }
    }
}

impl JudgeConfig {
    /// Reports what a judge cannot be asked with.
    pub(crate) fn check(&self, table: &str, rules: &mut Rules<'_>) {
        let of = |key: &str| format!("{table}.{key}");
        rules.missing(
            &of("base_url"),
            "say where the server is: base_url = \"http://127.0.0.1:8000/v1\"",
        );
        rules.missing(
            &of("model"),
            "give the server's name of the model: model = \"gpt-4.1\"",
        );
        rules.url(&of("base_url"), &self.base_url);
        if let Some(variable) = &self.api_key_env {
            rules.variable(&of("api_key_env"), variable);
        }
    }
}
