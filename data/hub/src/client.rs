//! Sends requests to the hub and the servers it redirects to, with redirects and retries.
//!
//! The token is sent only to the hub, wherever a redirect leads. A silent server is abandoned after
//! a timeout. A very slow one is abandoned because attempts with little progress count as failures.

use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tooltune_endpoint::http::{
    HttpFault, Origin, Redactor, excerpt, redirect_target, without_secrets,
};
use ureq::http::header::{AUTHORIZATION, LOCATION};
use ureq::http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri};

use crate::budgets::ANSWER_VALUES;
use crate::environment::HubSettings;
use crate::error::HubError;
use crate::event::{Event, Listener};

/// Maximum consecutive redirects.
const MAX_REDIRECTS: usize = 8;

/// Maximum bytes of reply headers.
const MAX_HEADER_BYTES: usize = 64 << 10;

/// Maximum bytes of an API reply; a listing of a thousand files has about 300 KB.
const MAX_ANSWER_BYTES: u64 = 64 << 20;

/// Maximum bytes of an error message that are read.
const MAX_ERROR_BYTES: u64 = 16 << 10;

/// Addresses of the public hub. A token for one of them is also sent to the other.
const PUBLIC_HUB: [&str; 2] = ["https://huggingface.co/", "https://hf.co/"];

/// Timeouts and retries.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RetryPolicy {
    /// Timeout for a connection.
    pub(crate) connect: Duration,
    /// Timeout while no byte of a reply arrives.
    pub(crate) silence: Duration,
    /// Timeout for one complete exchange.
    pub(crate) exchange: Duration,
    /// Wait before the second attempt; it doubles before each further attempt.
    pub(crate) between: Duration,
    /// Maximum wait between two attempts, even if the hub requests a longer one.
    pub(crate) longest: Duration,
    /// Maximum consecutive attempts without progress.
    pub(crate) tries: u32,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(20),
            silence: Duration::from_secs(30),
            exchange: Duration::from_secs(1800),
            between: Duration::from_secs(1),
            longest: Duration::from_secs(120),
            tries: 5,
        }
    }
}

/// Sends requests; can be shared between threads.
#[derive(Debug)]
pub(crate) struct Client {
    agent: ureq::Agent,
    endpoint: String,
    trusted: Vec<Origin>,
    authorization: Option<HeaderValue>,
    redactor: Redactor,
    /// Whether any server has replied so far.
    was_answered: AtomicBool,
    pub(crate) policy: RetryPolicy,
}

/// A request.
#[derive(Debug)]
pub(crate) struct Outgoing<'a> {
    pub(crate) method: Method,
    pub(crate) url: String,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: RequestBody<'a>,
}

/// The body of a request, which can be sent repeatedly.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RequestBody<'a> {
    /// No body.
    Empty,
    /// These bytes.
    Bytes(&'a [u8]),
    /// The bytes returned by a function that is called for each attempt, and their number.
    Reopen(&'a dyn Reopen, u64),
}

/// Bytes that can be opened more than once.
pub(crate) trait Reopen: std::fmt::Debug {
    /// Opens the bytes from their beginning.
    ///
    /// # Errors
    ///
    /// They cannot be opened.
    fn open(&self) -> std::io::Result<Box<dyn Read>>;
}

impl<'a> Outgoing<'a> {
    pub(crate) fn get(url: String) -> Self {
        Self {
            method: Method::GET,
            url,
            headers: Vec::new(),
            body: RequestBody::Empty,
        }
    }

    pub(crate) fn post(url: String, kind: &'static str, bytes: &'a [u8]) -> Self {
        Self {
            method: Method::POST,
            url,
            headers: vec![("Content-Type", kind.to_owned())],
            body: RequestBody::Bytes(bytes),
        }
    }
}

/// A reply whose body is not read yet.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    /// Headers of the last reply from the hub itself, which describe the file.
    pub(crate) hub_headers: HeaderMap,
    pub(crate) url: String,
    pub(crate) body: ureq::Body,
}

impl Incoming {
    /// The value of a header; `None` if it is absent or not ASCII.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        header_text(&self.headers, name)
    }
}

/// The value of a header.
pub(crate) fn header_text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

/// Why there is no successful reply.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The connection failed.
    Fault(HttpFault),
    /// The reply has an error status.
    RefusedReply(Box<RefusedReply>),
    /// An error that retries cannot fix.
    Final(HubError),
}

/// A reply with an error status.
#[derive(Debug)]
pub(crate) struct RefusedReply {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) url: String,
    /// The beginning of its body, without secrets.
    pub(crate) reason: String,
    /// Whether the hub itself refuses, not a server it redirects to.
    pub(crate) is_of_hub: bool,
}

impl RefusedReply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        header_text(&self.headers, name)
    }

    /// The wait in seconds that the server requests.
    fn requested_wait(&self) -> Option<u64> {
        let retry_after = self
            .header("retry-after")
            .and_then(|text| text.trim().parse().ok());
        let rate_limit_wait = || {
            let limit = self.header("ratelimit")?;
            let part = limit
                .split(';')
                .find_map(|part| part.trim().strip_prefix("t="));
            part.and_then(|seconds| seconds.parse().ok())
        };
        retry_after.or_else(rate_limit_wait)
    }
}

impl Client {
    /// Creates a client.
    ///
    /// # Errors
    ///
    /// The endpoint is not an address, or the token cannot be sent.
    pub(crate) fn new(settings: &HubSettings, policy: RetryPolicy) -> Result<Self, HubError> {
        let bad_endpoint = || HubError::BadEndpoint {
            given: without_secrets(&settings.endpoint),
        };
        if settings.endpoint.contains(['?', '#']) {
            return Err(bad_endpoint());
        }
        let url: Uri = settings.endpoint.parse().map_err(|_| bad_endpoint())?;
        let origin = Origin::from_url(&url).ok_or_else(bad_endpoint)?;
        let public_origins = PUBLIC_HUB
            .iter()
            .filter_map(|url| Origin::from_url(&url.parse().ok()?));
        let public: Vec<Origin> = public_origins.collect();
        let mut config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(policy.connect))
            .timeout_per_read(Some(policy.silence))
            .timeout_per_write(Some(policy.silence))
            .timeout_global(Some(policy.exchange))
            .max_response_header_size(MAX_HEADER_BYTES)
            .accept_encoding("identity")
            .user_agent(concat!("tooltune/", env!("CARGO_PKG_VERSION")));
        if origin.is_loopback() {
            config = config.proxy(None);
        }
        let authorization = settings.token.as_ref().map(|token| {
            let is_sendable = token.bytes().all(|byte| (0x21..0x7f).contains(&byte));
            let value = HeaderValue::from_str(&format!("Bearer {token}")).ok();
            let mut value = value.filter(|_| is_sendable).ok_or(HubError::BadToken)?;
            value.set_sensitive(true);
            Ok::<_, HubError>(value)
        });
        Ok(Self {
            agent: config.build().new_agent(),
            endpoint: settings.endpoint.clone(),
            trusted: match public.contains(&origin) {
                true => public,
                false => vec![origin],
            },
            authorization: authorization.transpose()?,
            redactor: Redactor::new(&settings.token.as_deref().into_iter().collect::<Vec<_>>()),
            was_answered: AtomicBool::new(false),
            policy,
        })
    }

    /// The address of the hub for messages, without secrets.
    pub(crate) fn endpoint(&self) -> String {
        without_secrets(&self.endpoint)
    }

    /// Whether a token is sent.
    pub(crate) fn has_token(&self) -> bool {
        self.authorization.is_some()
    }

    /// The URL of a hub path without leading slash.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}/{path}", self.endpoint)
    }

    /// Rewrites a URL of the public hub for this endpoint, which may be a proxy.
    pub(crate) fn rebase_url(&self, url: &str) -> String {
        let public_path = url.strip_prefix("https://huggingface.co/");
        public_path.map_or_else(|| url.to_owned(), |path| self.url(path))
    }

    fn is_trusted(&self, url: &Uri) -> bool {
        Origin::from_url(url).is_some_and(|origin| self.trusted.contains(&origin))
    }

    /// Performs one exchange and does not follow redirects.
    fn exchange(&self, outgoing: &Outgoing<'_>, url: &Uri) -> Result<Incoming, Failure> {
        let mut request = Request::builder()
            .method(outgoing.method.clone())
            .uri(url.clone());
        for (name, value) in &outgoing.headers {
            request = request.header(*name, value);
        }
        if let Some(authorization) = self.authorization.as_ref().filter(|_| self.is_trusted(url)) {
            request = request.header(AUTHORIZATION, authorization.clone());
        }
        let request_error = |error: ureq::http::Error| {
            Failure::Final(HubError::NoHub {
                url: without_secrets(&url.to_string()),
                reason: error.to_string(),
            })
        };
        let reply = match outgoing.body {
            RequestBody::Empty
                if outgoing.method == Method::POST || outgoing.method == Method::PUT =>
            {
                self.agent
                    .run(request.body(&[][..]).map_err(request_error)?)
            }
            RequestBody::Empty => self.agent.run(request.body(()).map_err(request_error)?),
            RequestBody::Bytes(bytes) => {
                self.agent.run(request.body(bytes).map_err(request_error)?)
            }
            RequestBody::Reopen(opened, length) => {
                let mut reader = opened.open().map_err(|error| {
                    Failure::Fault(HttpFault::Broken {
                        reason: error.to_string(),
                    })
                })?;
                let request = request.header("Content-Length", length);
                let body = ureq::SendBody::from_reader(&mut reader);
                self.agent.run(request.body(body).map_err(request_error)?)
            }
        };
        let (parts, body) = reply.map_err(|error| self.fault(error))?.into_parts();
        self.was_answered.store(true, Ordering::Relaxed);
        Ok(Incoming {
            status: parts.status,
            hub_headers: parts.headers.clone(),
            headers: parts.headers,
            url: url.to_string(),
            body,
        })
    }

    fn fault(&self, error: ureq::Error) -> Failure {
        Failure::Fault(self.http_fault(error))
    }

    pub(crate) fn http_fault(&self, error: ureq::Error) -> HttpFault {
        HttpFault::from_error(error, self.policy.connect, self.policy.silence)
    }

    /// Performs one exchange and follows redirects.
    pub(crate) fn send(&self, outgoing: &Outgoing<'_>) -> Result<Incoming, Failure> {
        let no_hub = |url: &str, reason: &str| {
            Failure::Final(HubError::NoHub {
                url: without_secrets(url),
                reason: reason.to_owned(),
            })
        };
        let mut url: Uri =
            (outgoing.url.parse()).map_err(|_| no_hub(&outgoing.url, "is not an address"))?;
        let mut hub_headers = HeaderMap::new();
        for _ in 0..MAX_REDIRECTS {
            let mut incoming = self.exchange(outgoing, &url)?;
            if self.is_trusted(&url) {
                hub_headers = incoming.headers.clone();
            }
            if !incoming.status.is_redirection() || incoming.status == StatusCode::NOT_MODIFIED {
                if !incoming.status.is_success() && incoming.status.as_u16() != 416 {
                    return Err(Failure::RefusedReply(Box::new(self.read_refusal(incoming))));
                }
                incoming.hub_headers = hub_headers;
                return Ok(incoming);
            }
            let location = header_text(&incoming.headers, LOCATION.as_str());
            let target = location.and_then(|location| redirect_target(&url, location));
            let target =
                target.ok_or_else(|| no_hub(&incoming.url, "redirects without an address"))?;
            self.check_redirect(&url, &target).map_err(Failure::Final)?;
            url = target;
        }
        Err(no_hub(&outgoing.url, "redirects too often"))
    }

    fn check_redirect(&self, from: &Uri, to: &Uri) -> Result<(), HubError> {
        let refusal = |reason| HubError::Redirect {
            url: without_secrets(&from.to_string()),
            to: without_secrets(&to.to_string()),
            reason,
        };
        let target =
            Origin::from_url(to).ok_or_else(|| refusal("is not an http or https address"))?;
        match Origin::from_url(from).is_some_and(|from| from.is_weakened_by(&target)) {
            true => Err(refusal("does not use TLS")),
            false => Ok(()),
        }
    }

    fn read_refusal(&self, mut incoming: Incoming) -> RefusedReply {
        let mut bytes = Vec::new();
        // A body that cannot be read is ignored, because it is only part of the message.
        let _ = incoming
            .body
            .as_reader()
            .take(MAX_ERROR_BYTES)
            .read_to_end(&mut bytes);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let json_message = serde_json::from_str::<serde_json::Value>(&text).ok();
        let json_message = json_message.and_then(|body| body["error"].as_str().map(str::to_owned));
        let header_message = incoming.header("x-error-message").map(str::to_owned);
        let reason = header_message.or(json_message).unwrap_or(text);
        RefusedReply {
            status: incoming.status.as_u16(),
            reason: excerpt(&self.redactor.redact(reason)),
            is_of_hub: incoming.url.parse().is_ok_and(|url| self.is_trusted(&url)),
            url: without_secrets(&incoming.url),
            headers: incoming.headers,
        }
    }

    /// Retries `work` until it succeeds, fails permanently, or fails too often in a row. `work`
    /// reports with each failure whether it made progress.
    pub(crate) fn with_retries<T>(
        &self,
        report: Listener<'_>,
        mut work: impl FnMut() -> Result<T, (Failure, bool)>,
    ) -> Result<T, Failure> {
        let mut n_failed = 0;
        loop {
            let (failure, is_further) = match work() {
                Ok(done) => return Ok(done),
                Err(failed) => failed,
            };
            n_failed = if is_further { 1 } else { n_failed + 1 };
            let wait = match &failure {
                Failure::Final(_) => return Err(failure),
                // Do not retry: a machine without a network will not have one a second later.
                Failure::Fault(fault)
                    if fault.is_unreachable() && !self.was_answered.load(Ordering::Relaxed) =>
                {
                    return Err(failure);
                }
                Failure::Fault(_) => None,
                Failure::RefusedReply(refused) => match refused.status {
                    408 | 429 | 500 | 502 | 503 | 504 => refused.requested_wait(),
                    // The signed URL has expired; the next attempt gets a new one.
                    401 | 403 if !refused.is_of_hub => None,
                    _ => return Err(failure),
                },
            };
            if n_failed >= self.policy.tries {
                return Err(failure);
            }
            let doubled = self.policy.between * 2_u32.saturating_pow(n_failed - 1);
            let wait = wait
                .map_or(doubled, Duration::from_secs)
                .min(self.policy.longest);
            let why = match &failure {
                Failure::Fault(fault) => fault.to_string(),
                Failure::RefusedReply(refused) => {
                    format!("{} returns status {}", refused.url, refused.status)
                }
                Failure::Final(_) => String::new(),
            };
            report(Event::Waiting {
                seconds: wait.as_secs(),
                why: &why,
            });
            std::thread::sleep(wait);
        }
    }

    /// The JSON reply to a request that may be sent repeatedly, and its headers.
    pub(crate) fn json(
        &self,
        outgoing: &Outgoing<'_>,
        report: Listener<'_>,
    ) -> Result<(serde_json::Value, HeaderMap), Failure> {
        self.with_retries(report, || {
            self.json_once(outgoing).map_err(|failure| (failure, false))
        })
    }

    /// The JSON reply to a request that is sent once.
    pub(crate) fn json_once(
        &self,
        outgoing: &Outgoing<'_>,
    ) -> Result<(serde_json::Value, HeaderMap), Failure> {
        let mut incoming = self.send(outgoing)?;
        let mut bytes = Vec::new();
        let reader = incoming.body.with_config().limit(u64::MAX).reader();
        reader
            .take(MAX_ANSWER_BYTES + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| self.fault(ureq::Error::from(error)))?;
        let no_hub = |reason: String| {
            Failure::Final(HubError::NoHub {
                url: without_secrets(&incoming.url),
                reason,
            })
        };
        if bytes.len() as u64 > MAX_ANSWER_BYTES {
            return Err(no_hub(format!(
                "returns more than {MAX_ANSWER_BYTES} bytes"
            )));
        }
        ANSWER_VALUES
            .check(&bytes)
            .map_err(|error| no_hub(format!("returns {}", error.limit_message())))?;
        let value = serde_json::from_slice(&bytes);
        let value =
            value.map_err(|error| no_hub(format!("returns a reply that is not JSON ({error})")))?;
        Ok((value, incoming.headers))
    }
}
