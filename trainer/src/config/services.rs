//! Tables of executors and judges, such as `[goat.executor]` and `[goat.judge]`: what was typed, what
//! it means, and back.
//!
//! Only the kind's own keys may stand in the executor's table: a forgotten `kind` would otherwise
//! leave calls to the invented APIs without a word.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use tooltune_endpoint::http::without_secrets;

use super::choices::{ExecutorKind, RecordedSet};
use super::defaults;
use super::patterns::Patterns;
use super::raw::{RawExecutor, RawJudge};
use super::read::RawTable;
use super::rules::Checker;

/// What answers the calls of agents.
#[derive(Debug, Clone, PartialEq)]
pub enum ExecutorConfig {
    /// The invented APIs of `tooltune data synth goat`.
    Synthetic,
    /// Recorded calls.
    Replay {
        /// JSON Lines of calls with their outputs.
        recorded: PathBuf,
        /// Which of them count.
        set: RecordedSet,
    },
    /// One fixed response for each endpoint.
    Canned {
        /// JSON Lines of endpoints with their responses.
        responses: PathBuf,
    },
    /// A server.
    Http(HttpExecutorConfig),
}

/// A server that answers calls.
#[derive(Debug, Clone, PartialEq)]
pub struct HttpExecutorConfig {
    /// The OpenAPI 3 specification.
    pub specification: PathBuf,
    /// Where its paths begin.
    pub base_url: String,
    /// Headers, each with the environment variable that holds its value.
    pub headers: Vec<(String, String)>,
    /// Hosts that may be asked; empty for that of `base_url` alone.
    pub allowed_hosts: Vec<String>,
    /// Seconds until a connection stands, above 0.
    pub connect_timeout_secs: f64,
    /// Seconds for a whole call, above 0.
    pub timeout_secs: f64,
}

/// The model behind an endpoint that says which queries are solved.
#[derive(Debug, Clone, PartialEq)]
pub struct JudgeConfig {
    /// Where `/chat/completions` is to be found.
    pub base_url: String,
    /// The model.
    pub model: String,
    /// The environment variable that holds the key.
    pub api_key_env: Option<String>,
    /// Times that a reply without a verdict is asked for, 1 to 20.
    pub attempts: usize,
    /// Queries that are judged at the same time, 1 to 64.
    pub concurrency: usize,
    /// Longest reply, at least 1.
    pub max_tokens: usize,
    /// Times that a request is repeated, at most 20.
    pub retries: usize,
    /// Seconds for one try, above 0.
    pub timeout_secs: f64,
    /// Seconds for a request with all its tries, above 0.
    pub total_secs: f64,
    /// Whether the evaluations of a training run ask it, too.
    pub in_loop: bool,
}

/// The keys of each kind besides `kind`.
fn keys(kind: ExecutorKind) -> &'static [&'static str] {
    match kind {
        ExecutorKind::Synthetic => &[],
        ExecutorKind::Replay => &["recorded", "set"],
        ExecutorKind::Canned => &["responses"],
        ExecutorKind::Http => &[
            "specification",
            "base_url",
            "headers",
            "allowed_hosts",
            "connect_timeout_secs",
            "timeout_secs",
        ],
    }
}

impl Checker<'_> {
    /// Checks a table of an executor, which stands at `table`.
    pub(super) fn executor(&mut self, table: &str, raw: RawExecutor) -> ExecutorConfig {
        let of = |key: &str| format!("{table}.{key}");
        let Some(kind) = raw.kind else {
            if self.is_typed(table) {
                let help = "write kind = \"replay\", \"canned\", \"http\" or \"synthetic\"";
                self.missing(&of("kind"), help);
            }
            return ExecutorConfig::Synthetic;
        };
        self.no_foreign_keys(table, kind);
        match kind {
            ExecutorKind::Synthetic => ExecutorConfig::Synthetic,
            ExecutorKind::Replay => ExecutorConfig::Replay {
                recorded: self.required(
                    raw.recorded,
                    &of("recorded"),
                    "name the file of recorded calls: recorded = \"data/calls.jsonl\"",
                ),
                set: raw.set.unwrap_or(defaults::RECORDED_SET),
            },
            ExecutorKind::Canned => ExecutorConfig::Canned {
                responses: self.required(
                    raw.responses,
                    &of("responses"),
                    "name the file of responses: responses = \"data/responses.jsonl\"",
                ),
            },
            ExecutorKind::Http => ExecutorConfig::Http(self.http_executor(table, raw)),
        }
    }

    /// Keys of another kind are a mistake in `kind`, or left over.
    fn no_foreign_keys(&mut self, table: &str, kind: ExecutorKind) {
        let own = keys(kind);
        for key in RawExecutor::KEYS.iter().filter(|key| **key != "kind") {
            let path = format!("{table}.{key}");
            if own.contains(key) || !self.is_typed(&path) {
                continue;
            }
            let others = [
                ExecutorKind::Replay,
                ExecutorKind::Canned,
                ExecutorKind::Http,
            ];
            let of = others.into_iter().find(|other| keys(*other).contains(key));
            let of = of.unwrap_or(kind);
            let message = format!("`{path}` is for kind = \"{of}\", and the kind is \"{kind}\"");
            self.report(&path, message, "delete this line, or write the other kind");
        }
    }

    fn http_executor(&mut self, table: &str, raw: RawExecutor) -> HttpExecutorConfig {
        let of = |key: &str| format!("{table}.{key}");
        let http = HttpExecutorConfig {
            specification: self.required(
                raw.specification,
                &of("specification"),
                "name the OpenAPI 3 file: specification = \"data/openapi.json\"",
            ),
            base_url: self.required(
                raw.base_url,
                &of("base_url"),
                "say where its paths begin: base_url = \"https://api.example.org/v1\"",
            ),
            headers: raw.headers.unwrap_or_default().0,
            allowed_hosts: raw.allowed_hosts.unwrap_or_default(),
            connect_timeout_secs: raw
                .connect_timeout_secs
                .unwrap_or(defaults::CONNECT_TIMEOUT_SECS),
            timeout_secs: raw.timeout_secs.unwrap_or(defaults::CALL_TIMEOUT_SECS),
        };
        self.url(&of("base_url"), &http.base_url);
        self.above_zero(&of("connect_timeout_secs"), http.connect_timeout_secs);
        self.above_zero(&of("timeout_secs"), http.timeout_secs);
        for (name, variable) in &http.headers {
            self.variable(&of(&format!("headers.{name}")), variable);
        }
        http
    }

    /// Checks a table of a judge, which stands at `table`.
    pub(super) fn judge(&mut self, table: &str, raw: RawJudge) -> JudgeConfig {
        let of = |key: &str| format!("{table}.{key}");
        let judge = JudgeConfig {
            base_url: self.required(
                raw.base_url,
                &of("base_url"),
                "say where the server is: base_url = \"http://127.0.0.1:8000/v1\"",
            ),
            model: self.required(
                raw.model,
                &of("model"),
                "give the server's name of the model: model = \"gpt-4.1\"",
            ),
            api_key_env: raw.api_key_env,
            attempts: raw.attempts.unwrap_or(defaults::JUDGE_ATTEMPTS),
            concurrency: raw.concurrency.unwrap_or(defaults::JUDGE_CONCURRENCY),
            max_tokens: raw.max_tokens.unwrap_or(defaults::JUDGE_MAX_TOKENS),
            retries: raw.retries.unwrap_or(defaults::JUDGE_RETRIES),
            timeout_secs: raw.timeout_secs.unwrap_or(defaults::JUDGE_TIMEOUT_SECS),
            total_secs: raw.total_secs.unwrap_or(defaults::JUDGE_TOTAL_SECS),
            in_loop: raw.in_loop.unwrap_or(defaults::JUDGE_IN_LOOP),
        };
        self.url(&of("base_url"), &judge.base_url);
        self.count_within(&of("attempts"), judge.attempts, 1..=20);
        self.count_within(&of("concurrency"), judge.concurrency, 1..=64);
        self.count_within(&of("retries"), judge.retries, 0..=20);
        self.at_least(&of("max_tokens"), judge.max_tokens as u64, 1);
        self.above_zero(&of("timeout_secs"), judge.timeout_secs);
        self.above_zero(&of("total_secs"), judge.total_secs);
        if let Some(variable) = &judge.api_key_env {
            self.variable(&of("api_key_env"), variable);
        }
        judge
    }

    fn count_within(&mut self, path: &str, count: usize, range: RangeInclusive<usize>) {
        if !range.contains(&count) {
            let help = format!("it must be from {} to {}", range.start(), range.end());
            self.report(path, format!("`{path}` is {count}"), help);
        }
    }

    /// What is wrong with an address beyond its scheme is found when it is opened.
    fn url(&mut self, path: &str, url: &str) {
        let is_url = url.starts_with("http://") || url.starts_with("https://");
        if !is_url && self.is_typed(path) {
            let help = "begin with http:// or https://";
            self.report(
                path,
                format!(
                    "`{path}` is {:?}, which is no address",
                    without_secrets(url)
                ),
                help,
            );
        }
    }

    /// A key in place of the name of a variable must not reach a file or a message.
    fn variable(&mut self, path: &str, name: &str) {
        let is_name = !name.is_empty()
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
            && !name.starts_with(|c: char| c.is_ascii_digit());
        if !is_name {
            let help = "put the secret into an environment variable and write the variable's name";
            let message = format!("`{path}` is not the name of an environment variable");
            self.report(path, message, help);
        }
    }
}

impl ExecutorConfig {
    pub(super) fn raw(&self) -> RawExecutor {
        let kind = |kind| RawExecutor {
            kind: Some(kind),
            ..RawExecutor::default()
        };
        match self {
            Self::Synthetic => kind(ExecutorKind::Synthetic),
            Self::Replay { recorded, set } => RawExecutor {
                recorded: Some(recorded.clone()),
                set: Some(*set),
                ..kind(ExecutorKind::Replay)
            },
            Self::Canned { responses } => RawExecutor {
                responses: Some(responses.clone()),
                ..kind(ExecutorKind::Canned)
            },
            Self::Http(http) => RawExecutor {
                specification: Some(http.specification.clone()),
                base_url: Some(http.base_url.clone()),
                headers: Some(Patterns(http.headers.clone())),
                allowed_hosts: Some(http.allowed_hosts.clone()),
                connect_timeout_secs: Some(http.connect_timeout_secs),
                timeout_secs: Some(http.timeout_secs),
                ..kind(ExecutorKind::Http)
            },
        }
    }

    /// The file that it reads, with its setting; its table stands at `table`.
    pub(super) fn file(&self, table: &str) -> Option<(String, &PathBuf)> {
        let (key, file) = match self {
            Self::Synthetic => return None,
            Self::Replay { recorded, .. } => ("recorded", recorded),
            Self::Canned { responses } => ("responses", responses),
            Self::Http(http) => ("specification", &http.specification),
        };
        Some((format!("{table}.{key}"), file))
    }
}

impl JudgeConfig {
    pub(super) fn raw(&self) -> RawJudge {
        RawJudge {
            base_url: Some(self.base_url.clone()),
            model: Some(self.model.clone()),
            api_key_env: self.api_key_env.clone(),
            attempts: Some(self.attempts),
            concurrency: Some(self.concurrency),
            max_tokens: Some(self.max_tokens),
            retries: Some(self.retries),
            timeout_secs: Some(self.timeout_secs),
            total_secs: Some(self.total_secs),
            in_loop: Some(self.in_loop),
        }
    }
}
