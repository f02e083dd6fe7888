//! A chat completion endpoint, for single and concurrent requests.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use tooltune_template::Message;
use ureq::http::{Request, Uri, header};

use super::answer::{self, ChatAnswer, InvalidReply};
use super::error::EndpointError;
use super::fault::FaultKind;
use super::formats;
use super::options::{ChatOptions, EndpointOptions, OptionNames};
use super::pool::in_parallel;
use super::waits::{Backoff, next_wait, retry_after, wait};
use super::wire;
use crate::http::{
    BaseUrl, ClientOptions, Connections, Environment, HttpClient, HttpConfigError, HttpFault,
    HttpReply, Redactor, SecretHeaders, checked_bytes, checked_secs, excerpt, process_environment,
};

/// Maximum configurable retries.
const MAX_RETRIES: usize = 20;

/// A chat completion server and one of its models.
#[derive(Debug)]
pub struct ChatEndpoint {
    client: HttpClient,
    url: String,
    target: Uri,
    model: String,
    secrets: SecretHeaders,
    redactor: Redactor,
    timeout: Duration,
    total: Duration,
    retries: usize,
    backoff: Backoff,
    names: OptionNames,
    /// Whether the server refuses `json_schema`, so that the older format is used.
    uses_older_format: AtomicBool,
    /// Whether the server has replied to any request.
    was_answered: AtomicBool,
}

/// Progress of a batch of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndpointProgress {
    /// Finished requests, including failed ones.
    pub n_done: usize,
    /// Failed requests.
    pub n_failed: usize,
    /// All requests.
    pub n_all: usize,
}

/// The messages and options of one request.
#[derive(Debug, Clone, Copy)]
pub struct ChatRequest<'a> {
    /// The messages.
    pub messages: &'a [Message],
    /// Other fields of the request.
    pub options: &'a ChatOptions,
}

/// Progress of a batch, with the latest result.
#[derive(Debug, Clone, Copy)]
pub struct ReplyEvent<'a> {
    /// The progress.
    pub progress: EndpointProgress,
    /// Index and result of the request that has just finished, if any.
    pub latest: Option<(usize, &'a Result<ChatAnswer, EndpointError>)>,
}

/// The outcome of one attempt.
enum Attempt {
    Answer(ChatAnswer),
    /// A retry may succeed, after this wait if the server requests one.
    Retry(FaultKind, String, Option<Duration>),
    /// The server expects the older response format.
    NeedsOlderFormat(EndpointError),
    Never(EndpointError),
    /// The work was stopped.
    Stopped,
}

impl ChatEndpoint {
    /// Creates an endpoint whose key comes from this process's environment.
    ///
    /// # Errors
    ///
    /// As for [`ChatEndpoint::with_environment`].
    pub fn new(options: &EndpointOptions) -> Result<Self, EndpointError> {
        Self::with_environment(options, &process_environment)
    }

    /// Creates an endpoint without sending a request.
    ///
    /// # Errors
    ///
    /// - The base URL is invalid, or the model name is empty.
    /// - The environment variable of the key is not set, or its value cannot be sent.
    /// - A time, the number of retries or a limit is out of range.
    pub fn with_environment(
        options: &EndpointOptions,
        environment: Environment<'_>,
    ) -> Result<Self, EndpointError> {
        let bad_option = |field, reason: String| HttpConfigError::BadOption { field, reason };
        if options.model.trim().is_empty() {
            let reason = "is empty; give the model's name on the server".to_owned();
            return Err(bad_option(options.names.model, reason).into());
        }
        if options.retries > MAX_RETRIES {
            let reason = format!("is {}; give at most {MAX_RETRIES}", options.retries);
            return Err(bad_option("retries", reason).into());
        }
        let base = BaseUrl::parse(options.names.base_url, &options.base_url)?;
        let url = base.join("/chat/completions");
        let secrets = match &options.api_key_env {
            Some(variable) => {
                SecretHeaders::bearer(options.names.api_key_env, variable, environment)?
            }
            None => SecretHeaders::none(),
        };
        let target = url.parse();
        let client = ClientOptions {
            connect_timeout: checked_secs("connect_timeout_secs", options.connect_timeout_secs)?,
            max_body_bytes: checked_bytes("max_body_bytes", options.max_body_bytes)?,
            connections: Connections::Kept,
            is_loopback: base.origin().is_loopback(),
        };
        Ok(Self {
            client: HttpClient::new(&client)?,
            target: target
                .map_err(|_| bad_option(options.names.base_url, "is too long".to_owned()))?,
            url,
            model: options.model.clone(),
            redactor: secrets.redactor(),
            secrets,
            timeout: checked_secs("timeout_secs", options.timeout_secs)?,
            total: checked_secs("total_secs", options.total_secs)?,
            retries: options.retries,
            backoff: Backoff {
                first: checked_secs("first_wait_secs", options.first_wait_secs)?,
                longest: checked_secs("max_wait_secs", options.max_wait_secs)?,
            },
            names: options.names,
            uses_older_format: AtomicBool::new(false),
            was_answered: AtomicBool::new(false),
        })
    }

    /// The requested URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The model.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// The model's reply to `messages`, within `total_secs`. A reply without text has an empty
    /// text.
    ///
    /// Too many requests (429), server errors (5xx), a reply with an empty list of choices, a
    /// timeout and a broken connection are retried. The wait doubles each time; a longer
    /// `Retry-After` of the server takes precedence. If a server refuses `json_schema` and names
    /// `json_object`, this and later requests send the schema next to that type. The caller must
    /// always validate the reply against the schema.
    ///
    /// # Errors
    ///
    /// - The server refuses the request (any other status).
    /// - The reply is not a chat completion.
    /// - The server cannot be reached, and no earlier request had a reply.
    /// - The attempts or the time are used up, or the server requests a longer wait than the time
    ///   left.
    pub fn complete(
        &self,
        messages: &[Message],
        options: &ChatOptions,
    ) -> Result<ChatAnswer, EndpointError> {
        self.complete_unless(messages, options, &AtomicBool::new(false))
    }

    /// The replies to many lists of messages, in order, with at most `concurrency` (1 to
    /// [`MAX_CONCURRENCY`](crate::MAX_CONCURRENCY)) requests in parallel.
    ///
    /// `watch` is called in the caller's thread after each reply and at least ten times a second.
    /// If it returns `false`, requests in flight are abandoned, and all requests without a reply
    /// become [`EndpointError::Stopped`].
    pub fn complete_all(
        &self,
        requests: &[Vec<Message>],
        options: &ChatOptions,
        concurrency: usize,
        watch: &mut dyn FnMut(EndpointProgress) -> bool,
    ) -> Vec<Result<ChatAnswer, EndpointError>> {
        let requests: Vec<ChatRequest<'_>> = requests
            .iter()
            .map(|messages| ChatRequest { messages, options })
            .collect();
        self.complete_each(&requests, concurrency, &mut |result| watch(result.progress))
    }

    /// Like [`ChatEndpoint::complete_all`], with options per request; `watch` receives the latest
    /// reply.
    pub fn complete_each(
        &self,
        requests: &[ChatRequest<'_>],
        concurrency: usize,
        watch: &mut dyn FnMut(ReplyEvent<'_>) -> bool,
    ) -> Vec<Result<ChatAnswer, EndpointError>> {
        let mut n_failed = 0;
        let indexed: Vec<(usize, ChatRequest<'_>)> = requests.iter().copied().enumerate().collect();
        let results = in_parallel(
            &indexed,
            concurrency,
            &mut |event| {
                let latest: Option<&(usize, Result<ChatAnswer, EndpointError>)> = event.latest;
                n_failed += usize::from(latest.is_some_and(|(_, result)| result.is_err()));
                watch(ReplyEvent {
                    progress: EndpointProgress {
                        n_done: event.n_done,
                        n_failed,
                        n_all: requests.len(),
                    },
                    latest: latest.map(|(number, result)| (*number, result)),
                })
            },
            |(number, request), is_stopped| {
                let ChatRequest { messages, options } = request;
                (*number, self.complete_unless(messages, options, is_stopped))
            },
        );
        let ordered_results = results.into_iter();
        ordered_results
            .map(|result| result.map_or_else(|| Err(self.stopped_error()), |(_, result)| result))
            .collect()
    }

    /// Like [`ChatEndpoint::complete`], but the request is abandoned once `is_stopped` is set.
    pub fn complete_unless(
        &self,
        messages: &[Message],
        options: &ChatOptions,
        is_stopped: &AtomicBool,
    ) -> Result<ChatAnswer, EndpointError> {
        let deadline = Instant::now() + self.total;
        let mut uses_older_format = self.uses_older_format.load(Ordering::Relaxed);
        let mut body = self.body(messages, options, uses_older_format);
        let mut n_attempts = 0;
        loop {
            if is_stopped.load(Ordering::Relaxed) {
                return Err(self.stopped_error());
            }
            let remaining_time = deadline.saturating_duration_since(Instant::now());
            n_attempts += 1;
            let timeout = remaining_time.min(self.timeout);
            let (kind, reason, requested_wait) =
                match self.attempt(body.clone(), timeout, is_stopped) {
                    Attempt::Answer(answer) => return Ok(answer),
                    Attempt::Never(error) => return Err(error),
                    Attempt::Stopped => return Err(self.stopped_error()),
                    Attempt::NeedsOlderFormat(error) => {
                        let format = options.response_format.as_ref();
                        if uses_older_format || format.and_then(formats::older_format).is_none() {
                            return Err(error);
                        }
                        uses_older_format = true;
                        self.uses_older_format.store(true, Ordering::Relaxed);
                        body = self.body(messages, options, uses_older_format);
                        continue;
                    }
                    Attempt::Retry(kind, reason, requested_wait) => (kind, reason, requested_wait),
                };
            let no_answer = |reason| EndpointError::InvalidReply {
                url: self.url.clone(),
                n_attempts,
                reason,
                advice: self.advice(kind),
                kind,
            };
            if n_attempts > self.retries {
                return Err(no_answer(reason));
            }
            let pause = next_wait(&self.backoff, n_attempts, requested_wait);
            let remaining_time = deadline.saturating_duration_since(Instant::now());
            if pause >= remaining_time {
                let total = self.total;
                return Err(no_answer(format!(
                    "{reason}, and a wait of {pause:?} exceeds the time left of {total:?}"
                )));
            }
            if !wait(pause, is_stopped) {
                return Err(self.stopped_error());
            }
        }
    }

    /// The request body. If `uses_older_format`, the response format is the older one.
    fn body(&self, messages: &[Message], options: &ChatOptions, uses_older_format: bool) -> String {
        let mut request = wire::chat_request(&self.model, messages, options);
        if uses_older_format && let Some(format) = request.get_mut("response_format") {
            *format = formats::older_format(format).unwrap_or_else(|| format.take());
        }
        request.to_string()
    }

    fn stopped_error(&self) -> EndpointError {
        EndpointError::Stopped {
            url: self.url.clone(),
        }
    }

    fn attempt(&self, body: String, timeout: Duration, is_stopped: &AtomicBool) -> Attempt {
        let mut request = Request::post(self.target.clone())
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json");
        for (name, value) in self.secrets.headers() {
            request = request.header(name, value);
        }
        let request = match request.body(Some(body.into_bytes())) {
            Ok(request) => request,
            Err(error) => {
                let reason = format!("is not a valid request URL: {error}");
                let field = self.names.base_url;
                return Attempt::Never(HttpConfigError::BadOption { field, reason }.into());
            }
        };
        let fault_kind = match self.client.send_unless(request, timeout, is_stopped) {
            Ok(reply) => {
                self.was_answered.store(true, Ordering::Relaxed);
                return self.read_reply(reply);
            }
            Err(fault_kind) => fault_kind,
        };
        // A server that replied before may be restarting; a server that never replied is not waited
        // for.
        if fault_kind.is_unreachable() && !self.was_answered.load(Ordering::Relaxed) {
            return Attempt::Never(EndpointError::Unreachable {
                url: self.url.clone(),
                reason: self.redactor.redact(fault_kind.to_string()),
                advice: self.check_error(FaultKind::Connection),
            });
        }
        let kind = match fault_kind {
            HttpFault::Stopped => return Attempt::Stopped,
            HttpFault::ConnectTimeout { .. }
            | HttpFault::NoNetwork { .. }
            | HttpFault::NoConnection { .. } => FaultKind::Connection,
            HttpFault::Timeout { .. } => FaultKind::Timeout,
            HttpFault::Broken { .. } => FaultKind::Broken,
        };
        Attempt::Retry(kind, self.redactor.redact(fault_kind.to_string()), None)
    }

    fn read_reply(&self, mut reply: HttpReply) -> Attempt {
        let first_bad = std::str::from_utf8(&reply.body).err();
        let first_bad = first_bad.map(|error| error.valid_up_to());
        // The body is moved, not copied, because many long replies may be parsed in parallel.
        let body = String::from_utf8(std::mem::take(&mut reply.body));
        let body = body.unwrap_or_else(|invalid_utf8| {
            String::from_utf8_lossy(invalid_utf8.as_bytes()).into_owned()
        });
        let n_bytes = body.len();
        let body = self.redactor.redact(body);
        let status = reply.status.as_u16();
        let body_excerpt = match excerpt(&body) {
            body_excerpt if body_excerpt.is_empty() => "with an empty body".to_owned(),
            body_excerpt => format!("with: {body_excerpt}"),
        };
        let refusal = EndpointError::Refused {
            url: self.url.clone(),
            status,
            excerpt: body_excerpt.clone(),
            hint: self.hint(status),
            kind: FaultKind::from_refusal(status, &body),
        };
        if !reply.status.is_success() && formats::expects_older_format(&body) {
            return Attempt::NeedsOlderFormat(refusal);
        }
        if status == 429 || reply.status.is_server_error() {
            let retry_after_header = reply.header(&header::RETRY_AFTER);
            let retry_after_header =
                retry_after_header.and_then(|text| retry_after(text, SystemTime::now()));
            let kind = FaultKind::from_refusal(status, &body);
            return Attempt::Retry(
                kind,
                format!("the status {status} {body_excerpt}"),
                retry_after_header,
            );
        }
        if !reply.status.is_success() {
            return Attempt::Never(refusal);
        }
        let no_protocol = |kind, reason| {
            Attempt::Never(EndpointError::NotTheProtocol {
                url: self.url.clone(),
                status,
                reason,
                base_url: self.names.base_url,
                kind,
            })
        };
        if reply.is_cut {
            let reason = format!("with more than the limit of {n_bytes} bytes, {body_excerpt}");
            return no_protocol(FaultKind::NoCompletion, reason);
        }
        if let Some(position) = first_bad {
            let reason = format!(
                "with invalid UTF-8 at byte {}, {body_excerpt}",
                position + 1
            );
            return no_protocol(FaultKind::NotUtf8, reason);
        }
        match answer::parse_completion(&body) {
            Ok(answer) => Attempt::Answer(answer),
            Err(InvalidReply::NoChoice(reason)) => {
                Attempt::Retry(FaultKind::NoChoice, reason, None)
            }
            Err(InvalidReply::Other(reason)) => no_protocol(FaultKind::NoCompletion, reason),
        }
    }

    /// What to check if there is no reply.
    fn check_error(&self, kind: FaultKind) -> String {
        match kind {
            FaultKind::Connection => {
                format!(
                    "check {} and that the server is running",
                    self.names.base_url
                )
            }
            _ => "check that the server is running, and its log".to_owned(),
        }
    }

    /// What to check or increase if all attempts failed.
    fn advice(&self, kind: FaultKind) -> String {
        let check = self.check_error(kind);
        match self.names.patience {
            Some(options) => format!("{check}, or increase {options}"),
            None => check,
        }
    }

    /// What to check if the server refuses.
    fn hint(&self, status: u16) -> String {
        let OptionNames {
            base_url,
            model,
            api_key_env,
            ..
        } = self.names;
        match status {
            300..=399 => format!("set {base_url} to the address that it redirects to"),
            401 | 403 => {
                format!("check the key in the environment variable that {api_key_env} names")
            }
            404 | 405 => format!("check {base_url}, which usually ends in /v1, and {model}"),
            413 => "shorten the request: it is too long for the server".to_owned(),
            _ => format!("check {model}, the length of the messages and the options"),
        }
    }
}
